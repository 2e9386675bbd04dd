"""A small private model on the synthetic data, and what serves it."""

from dataclasses import dataclass

import pytest
import torch
from fastapi import FastAPI
from torch import Tensor

from fednews.data.features import NewsInfo, news_features
from fednews.data.impressions import Impressions
from fednews.data.store import Store
from fednews.evaluation.scorers import Catalogue
from fednews.models.private import PrivateRecModel
from fednews.serving.device import DeviceModel
from fednews.serving.ranking import Listing, Ranker
from fednews.serving.service import create_app
from fednews.streams import Streams
from tests.conftest import MODELS

BASIS = 4


@dataclass(frozen=True)
class Served:
    """A model in eval mode, its news vectors, and the data they are from."""

    model: PrivateRecModel
    vectors: Tensor
    store: Store

    @property
    def device(self) -> DeviceModel:
        return DeviceModel.of(self.model)

    @property
    def ranker(self) -> Ranker:
        return Ranker(self.vectors, self.model.basis.detach())

    @property
    def listing(self) -> Listing:
        news = self.store.news
        return Listing(news.id, news.title, news.category)

    def by_id(self) -> dict[str, Tensor]:
        return dict(zip(self.store.news.id, self.vectors, strict=True))

    def impressions(self) -> Impressions:
        return Impressions(self.store.split("dev"), self.store.samples, history_length=20, batch_size=64)

    def app(self, **options) -> FastAPI:
        return create_app(self.ranker, self.listing, **options)


@pytest.fixture
def served(synthetic_store, streams) -> Served:
    return serve("nrms", synthetic_store, streams)


def serve(name: str, store: Store, streams: Streams) -> Served:
    """One of the models with basis vectors, untrained."""
    with streams.torch_global("test_model"):
        model = PrivateRecModel(NewsInfo.of(store, None, streams), MODELS[name], basis=BASIS).eval()
        # Untrained users are all alike; wide ones and a wide basis make weights that differ.
        model.basis.data = torch.randn(BASIS, model.basis.shape[1]) * 30
    features = news_features(store, model.inputs, 30, 50, model.tokenizer)
    rows = torch.arange(len(store.category))
    return Served(model, Catalogue(features, rows, torch.device("cpu")).encode(model), store)
