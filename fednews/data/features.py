"""News as model inputs: one row per article, padded, ready to be gathered for a round."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fednews.data.store import Store
from fednews.data.text import PADDING, load_word_vectors
from fednews.streams import Streams

TOKEN_INPUTS = ("title", "abstract")


@dataclass(frozen=True)
class NewsInfo:
    """What a model must know of the data to size its layers.

    Attributes:
        words: vocabulary size, index 0 padding and 1 unknown.
        categories: number of categories, index 0 unknown.
        subcategories: number of subcategories, index 0 unknown.
        word_vectors: float32 ``[words, d]`` to start the word embedding from, or ``None``.
    """

    words: int
    categories: int
    subcategories: int
    word_vectors: Tensor | None = None

    @classmethod
    def of(cls, store: Store, word_vectors: str | None, streams: Streams) -> "NewsInfo":
        """Sizes of ``store``; words that the pretrained vectors lack are drawn with the vectors' own scale."""
        vectors = None
        if word_vectors is not None:
            found, known = load_word_vectors(word_vectors, store.vocabulary)
            drawn = streams.numpy("word_vectors").normal(0.0, found[known].std(), found.shape)
            vectors = torch.from_numpy(np.where(known[:, None], found, drawn).astype(np.float32))
            vectors[PADDING] = 0.0
        return cls(len(store.vocabulary), len(store.categories), len(store.subcategories), vectors)


def news_features(store: Store, inputs: tuple[str, ...], title_length: int, abstract_length: int) -> dict[str, Tensor]:
    """The named inputs of every article of the store.

    Returns:
        ``title`` int64 ``[news, title_length]`` and ``abstract`` likewise, padded with 0 on the right and cut
        to their first words; ``category`` and ``subcategory`` int64 ``[news]``. Only what ``inputs`` names.
    """
    columns = {
        "title": lambda: _tokens(store.title_tokens, title_length),
        "abstract": lambda: _tokens(store.abstract_tokens, abstract_length),
        "category": lambda: store.category,
        "subcategory": lambda: store.subcategory,
    }
    return {name: torch.from_numpy(columns[name]().astype(np.int64)) for name in inputs}


def _tokens(tokens, length: int) -> np.ndarray:
    return tokens.first(length).padded(PADDING, width=length)[0]


def take_news(features: dict[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    """The given articles, token inputs trimmed to the longest text among them (at least one column)."""
    return trim_tokens({name: column[rows] for name, column in features.items()})


def trim_tokens(news: dict[str, Tensor]) -> dict[str, Tensor]:
    """Drop the token columns that are padding in every row, keeping at least one."""
    return {name: _trim(column) if name in TOKEN_INPUTS else column for name, column in news.items()}


def _trim(tokens: Tensor) -> Tensor:
    used = (tokens != PADDING).any(0).nonzero()
    return tokens[:, : int(used[-1]) + 1 if len(used) else 1]
