"""What the service takes and what it says to everything else: one JSON line, never a traceback."""

from collections.abc import Callable
from typing import Annotated

from annotated_types import Ge, Le, Len
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, create_model
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

MAX_BODY = 65_536
"""Bytes that a request may have: 2,000 weights at full precision."""


class RankedNews(BaseModel):
    """One news of the answer."""

    id: str
    title: str
    category: str
    score: float


class Recommendation(BaseModel):
    """The answer, best news first."""

    news: list[RankedNews]


def request_model(basis: int, k_max: int) -> type[BaseModel]:
    """What ``POST /recommend`` takes: ``basis`` finite weights between 0 and 1, and k up to ``k_max``."""
    return create_model(
        "RecommendationRequest",
        __config__=ConfigDict(strict=True, extra="forbid"),
        attention=(
            Annotated[list[Annotated[FiniteFloat, Ge(0), Le(1)]], Len(basis, basis)],
            Field(description="weights of the basis vectors, which sum to 1"),
        ),
        k=(Annotated[int, Ge(1), Le(k_max)], Field(default=min(10, k_max), description="how many news")),
    )


async def json_body(request: Request) -> bytes:
    """The body of a JSON request, of which no more is read than a request may have.

    Raises:
        HTTPException: 415 where it is not said to be JSON, 413 where it is longer, 400 where the client went away.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "the body must be JSON, with the header Content-Type: application/json")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY:
                raise HTTPException(413, f"the body is longer than {MAX_BODY} bytes")
    except ClientDisconnect:
        raise HTTPException(400, "the request ended before its body did") from None
    return bytes(body)


def answer_errors_in_json(app: FastAPI) -> None:
    """Errors are ``{"error": one line}``; what was sent is not repeated, as it may not be JSON (NaN)."""

    async def invalid(request: Request, error: ValidationError | RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return _error(422, f"{where}: {first['msg']}" if where else first["msg"])

    async def refused(request: Request, error: HTTPException) -> Response:
        return _error(error.status_code, error.detail, error.headers)

    async def unexpected(request: Request, error: Exception) -> Response:
        return _error(500, "internal error")

    handlers: dict[type[Exception], Callable] = {
        ValidationError: invalid,
        RequestValidationError: invalid,
        HTTPException: refused,
        Exception: unexpected,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": message}, status, headers)
