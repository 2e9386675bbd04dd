"""Titles as the pieces of a pretrained language model's tokenizer."""

import numpy as np

from fednews.data.store import Store


def title_pieces(store: Store, tokenizer: str, length: int) -> np.ndarray:
    """Tokenizer ids plus one, int64 ``[news, length]``, padded with 0."""
    raise NotImplementedError
