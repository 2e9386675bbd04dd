"""Entities of news: which title word belongs to which knowledge-graph entity, and the entities' vectors."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from fednews.data.store import Store


def entity_names(store: Store) -> list[str]:
    """WikiData ids of the entities that the store's titles name, behind an empty string at index 0."""
    return [""]


def title_entities(store: Store, length: int) -> np.ndarray:
    """int64 ``[news, length]``."""
    return np.zeros((len(store.category), length), np.int64)


def load_entity_vectors(paths: Sequence[str], names: Sequence[str]) -> Tensor:
    """float32 ``[len(names), d]``."""
    raise NotImplementedError
