"""The page that plays the device: rankings with and without privacy for a user of the run's evaluation data."""

import dataclasses
import secrets
from importlib import resources
from typing import Annotated, Any

import numpy as np
import torch
from fastapi import FastAPI, HTTPException, Query
from fastapi.responses import HTMLResponse
from torch import Tensor

from fednews.data.module import NewsDataModule
from fednews.privacy.private_attention import PrivateAttention
from fednews.serving.device import DeviceModel
from fednews.serving.evaluation import largest_multiplicity
from fednews.serving.ranking import Listing, Ranker
from fednews.serving.service import ranked_news

_USERS_SHOWN = 200
_EPSILON_MAX = 1000.0
_HISTORY_SHOWN = 20


class Demo:
    """Plays devices on the server, which then knows histories that a real server never sees.

    Args:
        ranker, listing: the service's.
        vectors: of all news ``[N, d]``.
        device: the part of the model that devices have.
        mechanism: makes weights private; its epsilon is the page's.
        data: whose evaluation split has the users.
    """

    def __init__(
        self,
        ranker: Ranker,
        listing: Listing,
        vectors: Tensor,
        device: DeviceModel,
        mechanism: PrivateAttention,
        data: NewsDataModule,
    ) -> None:
        self.ranker = ranker
        self.listing = listing
        self.vectors = vectors
        self.device = device
        self.mechanism = mechanism
        self.impressions = data.impressions(data.eval_split)
        self.names = data.source.users
        behaviors = self.impressions.behaviors
        users, first = np.unique(behaviors.user[::-1], return_index=True)
        self.latest = dict(zip(users.tolist(), (len(behaviors) - 1 - first).tolist(), strict=True))
        self.index = {self.names[user]: user for user in self.latest}

    def add_to(self, app: FastAPI) -> None:
        """Add the page and what it asks for."""

        @app.get("/", response_class=HTMLResponse, include_in_schema=False)
        async def page() -> str:
            return resources.files("fednews.serving").joinpath("page.html").read_text(encoding="utf-8")

        @app.get("/demo/users")
        async def users() -> dict[str, Any]:
            return {"users": sorted(self.index)[:_USERS_SHOWN], "of": len(self.index)}

        @app.get("/demo/rank")
        async def rank(
            user: str,
            epsilon: Annotated[float, Query(gt=0, le=_EPSILON_MAX, allow_inf_nan=False)] = 10.0,
            k: Annotated[int, Query(ge=1, le=50)] = 10,
        ) -> dict[str, Any]:
            if user not in self.index:
                raise HTTPException(404, "no such user in the run's evaluation data")
            return self.rank(user, epsilon, min(k, self.ranker.news))

    def rank(self, user: str, epsilon: float, k: int) -> dict[str, Any]:
        """Both rankings of a user's latest history, and what the private one spends."""
        batch = self.impressions.batch(np.array([self.latest[self.index[user]]]))
        mechanism = dataclasses.replace(self.mechanism, epsilon=epsilon)
        shown = (self.vectors[batch.history], batch.history_mask, batch.user)
        generator = torch.Generator().manual_seed(secrets.randbits(63))
        private = self.device.private_weights(*shown, mechanism, generator)[0].tolist()
        clean = self.device.clean_weights(*shown, mechanism)[0].tolist()
        read = batch.history[batch.history_mask].tolist()[::-1]
        accounted = mechanism.epsilon_accounted(largest_multiplicity(batch.history, batch.history_mask))
        return {
            "history": [self.listing.title[row] for row in read[:_HISTORY_SHOWN]],
            "clicks": len(read),
            "clean": {"attention": clean, "news": ranked_news(self.ranker, self.listing, clean, k)},
            "private": {"attention": private, "news": ranked_news(self.ranker, self.listing, private, k)},
            "epsilon_published": mechanism.published_epsilon(),
            "epsilon_accounted": accounted.epsilon,
        }
