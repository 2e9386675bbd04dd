"""A service of random vectors; imports little, so that a process of it starts fast."""

import torch
from fastapi import FastAPI

from fednews.data.ragged import Strings
from fednews.serving.ranking import Listing, Ranker
from fednews.serving.service import create_app
from fednews.streams import Streams


def random_service(news: int = 1000, dim: int = 16, basis: int = 5, **options) -> FastAPI:
    """A service of random vectors."""
    generator = Streams(1).torch("vectors")
    ranker = Ranker(torch.randn(news, dim, generator=generator), torch.randn(basis, dim, generator=generator))
    return create_app(ranker, listing_of(news), **options)


def listing_of(news: int) -> Listing:
    return Listing(*(Strings.from_texts(f"{kind} {row}" for row in range(news)) for kind in ("N", "title", "topic")))
