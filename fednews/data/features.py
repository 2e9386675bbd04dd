"""News as model inputs: one row per article, padded, ready to be gathered for a round."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fednews.data.entities import entity_names, load_entity_vectors, title_entities
from fednews.data.pieces import title_pieces
from fednews.data.store import Store
from fednews.data.text import PADDING, load_word_vectors
from fednews.streams import Streams

TOKEN_INPUTS = ("title", "abstract", "title_pieces")
_ALIGNED = {"title_entities": "title"}


@dataclass(frozen=True)
class NewsInfo:
    """What a model must know of the data to size its layers.

    Attributes:
        words: vocabulary size, index 0 padding and 1 unknown.
        categories: number of categories, index 0 unknown.
        subcategories: number of subcategories, index 0 unknown.
        word_vectors: float32 ``[words, d]`` to start the word embedding from, or ``None``.
        users: number of users with training samples plus one, index 0 unknown.
        news: number of articles.
        entities: number of entities, index 0 none.
        entity_vectors: float32 ``[entities, d]``, zero where no vector is known, or ``None``.
        title_length: first words of a title that a model sees.
    """

    words: int
    categories: int
    subcategories: int
    word_vectors: Tensor | None = None
    users: int = 1
    news: int = 1
    entities: int = 1
    entity_vectors: Tensor | None = None
    title_length: int = 30

    @classmethod
    def of(
        cls,
        store: Store,
        word_vectors: str | None,
        streams: Streams,
        entity_vectors: tuple[str, ...] = (),
        title_length: int = 30,
    ) -> "NewsInfo":
        """Sizes of ``store``; words that the pretrained vectors lack are drawn with the vectors' own scale."""
        entities = entity_names(store)
        return cls(
            words=len(store.vocabulary),
            categories=len(store.categories),
            subcategories=len(store.subcategories),
            word_vectors=None if word_vectors is None else _word_vectors(store, word_vectors, streams),
            users=store.samples.clients + 1,
            news=len(store.category),
            entities=len(entities),
            entity_vectors=load_entity_vectors(entity_vectors, entities) if entity_vectors else None,
            title_length=title_length,
        )


def _word_vectors(store: Store, path: str, streams: Streams) -> Tensor:
    found, known = load_word_vectors(path, store.vocabulary)
    drawn = streams.numpy("word_vectors").normal(0.0, found[known].std(), found.shape)
    vectors = torch.from_numpy(np.where(known[:, None], found, drawn).astype(np.float32))
    vectors[PADDING] = 0.0
    return vectors


def news_features(
    store: Store, inputs: tuple[str, ...], title_length: int, abstract_length: int, tokenizer: str | None = None
) -> dict[str, Tensor]:
    """The named inputs of every article of the store, int64; only what ``inputs`` names.

    Args:
        store: the data.
        inputs: ``title`` ``[news, title_length]`` and ``abstract`` likewise, word ids padded with 0 on the right and
            cut to their first words; ``title_entities``, the entity that each title word belongs to, 0 for none;
            ``title_pieces``, the ids of ``tokenizer`` plus one, padded with 0; ``category``, ``subcategory`` and
            ``news``, the article's own index, ``[news]``.
        title_length: first words, or pieces, of a title that are kept.
        abstract_length: first words of an abstract that are kept.
        tokenizer: name or folder of the tokenizer for ``title_pieces``.
    """
    columns = {
        "title": lambda: _tokens(store.title_tokens, title_length),
        "abstract": lambda: _tokens(store.abstract_tokens, abstract_length),
        "title_entities": lambda: title_entities(store, title_length),
        "title_pieces": lambda: title_pieces(store, tokenizer, title_length),
        "category": lambda: store.category,
        "subcategory": lambda: store.subcategory,
        "news": lambda: np.arange(len(store.category)),
    }
    return {name: torch.from_numpy(columns[name]().astype(np.int64)) for name in inputs}


def _tokens(tokens, length: int) -> np.ndarray:
    return tokens.first(length).padded(PADDING, width=length)[0]


def take_news(features: dict[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    """The given articles, token inputs trimmed to the longest text among them (at least one column)."""
    return trim_tokens({name: column[rows] for name, column in features.items()})


def trim_tokens(news: dict[str, Tensor]) -> dict[str, Tensor]:
    """Drop the token columns that are padding in every row, keeping at least one."""
    widths = {name: _width(column) for name, column in news.items() if name in TOKEN_INPUTS}
    widths |= {name: widths[text] for name, text in _ALIGNED.items() if name in news}
    return {name: column[:, : widths[name]] if name in widths else column for name, column in news.items()}


def _width(tokens: Tensor) -> int:
    used = (tokens != PADDING).any(0).nonzero()
    return int(used[-1]) + 1 if len(used) else 1
