"""The HTTP service: JSON in, JSON out, and a JSON error for whatever is not a request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from fednews.errors import UsageError
from fednews.serving.ranking import Listing, Ranker
from fednews.serving.requests import Recommendation, answer_errors_in_json, json_body, request_model

if TYPE_CHECKING:
    from fednews.serving.demo import Demo

_SUM_TOLERANCE = 1e-3


@dataclass(frozen=True)
class ModelFiles:
    """What a device needs to make its own requests; the same for everybody.

    Attributes:
        description: of the model and its private attention, as JSON values.
        weights: the user model's parameters, safetensors.
        catalogue: ids and vectors of all news, safetensors. There is no way to ask for single news: it would tell the
            server what was read.
    """

    description: dict[str, Any]
    weights: bytes
    catalogue: bytes


def create_app(
    ranker: Ranker, listing: Listing, k_max: int = 100, files: ModelFiles | None = None, demo: "Demo | None" = None
) -> FastAPI:
    """The service.

    Args:
        ranker: ranks.
        listing: what to show of the news, row by row as the ranker has them.
        k_max: largest k of a request.
        files: enables ``GET /model`` and what it names.
        demo: enables the page that plays the device.

    Raises:
        UsageError: ``k_max`` is not positive, or the listing is not the ranker's.
    """
    if k_max < 1:
        raise UsageError(f"--k-max must be at least 1, not {k_max}")
    if len(listing) != ranker.news:
        raise UsageError(f"{len(listing)} news are listed, but {ranker.news} are ranked")
    app = FastAPI(title="fednews", docs_url=None, redoc_url=None)
    answer_errors_in_json(app)
    _add_ranking(app, ranker, listing, min(k_max, ranker.news))
    if files:
        _add_files(app, files, min(k_max, ranker.news))
    if demo:
        demo.add_to(app)
    else:
        app.get("/", include_in_schema=False)(_no_page)
    return app


def _add_ranking(app: FastAPI, ranker: Ranker, listing: Listing, k_max: int) -> None:
    wanted = request_model(ranker.basis, k_max)
    schema = {"content": {"application/json": {"schema": wanted.model_json_schema()}}, "required": True}

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "news": ranker.news, "basis": ranker.basis, "k_max": k_max}

    # Computed in the event loop: a product and a partial sort of 100,000 scores take less than handing it to a thread.
    @app.post("/recommend", response_model=Recommendation, openapi_extra={"requestBody": schema})
    async def recommend(request: Request) -> Response:
        asked = wanted.model_validate_json(await json_body(request))
        if abs(sum(asked.attention) - 1) > _SUM_TOLERANCE:
            raise HTTPException(422, "attention: the weights must sum to 1")
        return JSONResponse({"news": ranked_news(ranker, listing, asked.attention, asked.k)})


def ranked_news(ranker: Ranker, listing: Listing, attention: Sequence[float], k: int) -> list[dict[str, Any]]:
    """The ``k`` best news for weights ``[B]``, best first, with the fields of :class:`RankedNews`."""
    scores, rows = ranker.top(torch.tensor([attention]), k)
    return [
        {"id": listing.id[row], "title": listing.title[row], "category": listing.category[row], "score": score}
        for score, row in zip(scores[0].tolist(), rows[0].tolist(), strict=True)
    ]


def _add_files(app: FastAPI, files: ModelFiles, k_max: int) -> None:
    @app.get("/model")
    async def model() -> dict[str, Any]:
        return {**files.description, "k_max": k_max}

    @app.get("/model/weights", response_class=Response)
    async def weights() -> Response:
        return Response(files.weights, media_type="application/octet-stream")

    @app.get("/catalogue", response_class=Response)
    async def catalogue() -> Response:
        return Response(files.catalogue, media_type="application/octet-stream")


async def _no_page() -> Response:
    return JSONResponse({"service": "fednews", "api": "/openapi.json", "page": "start it with --demo for a page"})
