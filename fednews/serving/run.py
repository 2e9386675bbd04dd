"""``fednews serve RUN_ID``: a tracked run as a service."""

import torch
from fastapi import FastAPI
from torch import Tensor

from fednews.errors import UsageError
from fednews.evaluation.scorers import Catalogue, SharedModel
from fednews.experiment import Restored, restore
from fednews.models.base import NewsModel
from fednews.models.private import PrivateRecModel
from fednews.serving.demo import Demo
from fednews.serving.device import DeviceModel
from fednews.serving.options import ServingOptions
from fednews.serving.ranking import Listing, Ranker
from fednews.serving.serve import serve
from fednews.serving.service import create_app
from fednews.serving.tables import trained_settings
from fednews.serving.wire import pack
from fednews.tracking.store import connect


def serve_run(run_id: str, checkpoint: str, host: str, port: int, k_max: int, demo: bool) -> None:
    """Serve a run's model until Ctrl-C.

    Args:
        run_id: a run's id or its unique beginning.
        checkpoint: ``"last"`` or ``"best"``.
        host: where to listen.
        port: likewise.
        k_max: largest k of a request.
        demo: serve the page that plays the device, with the histories of the run's evaluation split.

    Raises:
        UsageError: an unknown run, changed data, or a model without basis vectors.
    """
    app = app_of(restore(connect(), run_id, checkpoint), k_max, demo)
    serve(app, host, port)


def app_of(restored: Restored, k_max: int, demo: bool) -> FastAPI:
    """The service of a restored run; encodes its whole catalogue."""
    model, data = restored.loop.model, restored.data
    _check(model)
    news = data.source.news
    vectors = _vectors(restored)
    device = DeviceModel.of(model)
    mechanism = ServingOptions().attention(1.0, len(device.basis), trained_settings(restored))
    ranker, listing = Ranker(vectors, device.basis), Listing(news.id, news.title, news.category)
    config = restored.config.model.as_dict()
    files = pack(restored.run_id, config, model, news.id, vectors, mechanism, data.history_length)
    player = Demo(ranker, listing, vectors, device, mechanism, data) if demo else None
    return create_app(ranker, listing, k_max, files, player)


def _check(model: NewsModel) -> None:
    if not isinstance(model, PrivateRecModel):
        raise UsageError(
            f"{type(model).__name__} has no basis vectors to be asked with: serve a run of PrivateRecModel"
        )
    if type(model.base).score is not NewsModel.score:
        raise UsageError(f"{type(model.base).__name__} does not score by a dot product: it cannot be served")


def _vectors(restored: Restored) -> Tensor:
    features = restored.data.features
    everything = torch.arange(len(next(iter(features.values()))))
    scorer = restored.loop.scorer(Catalogue(features, everything, torch.device("cpu")))
    if not isinstance(scorer, SharedModel):
        raise UsageError(
            f"users of {type(restored.loop.algorithm).__name__} have parameters of their own: no one server"
        )
    return scorer.vectors
