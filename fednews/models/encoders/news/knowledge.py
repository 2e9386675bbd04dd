"""Titles by convolution with max-over-time pooling over words and their entities (DKN, DAN)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fednews.data.features import NewsInfo
from fednews.errors import UsageError
from fednews.models.layers import FastDropout, WordEmbedding


def entity_embedding(info: NewsInfo, dim: int) -> WordEmbedding | None:
    """Vectors of the data's entities, index 0 none and zero: frozen where they come from a knowledge graph.

    Without ``info.entity_vectors`` they are ``dim`` wide and trained; ``None`` where the data names no entity.
    """
    if info.entities == 1:
        return None
    return WordEmbedding(info.entities, dim, info.entity_vectors, trainable=info.entity_vectors is None)


class MaxConvolution(nn.Module):
    """Convolutions of several widths, ReLU, maximum over the text (Kim 2014).

    A window begins at every word, and what lies behind the last word is zero, so that a text shorter than the
    window has a value too. Windows that begin at padding are no part of the maximum.

    Args:
        dim: input width.
        filters: filters of each width; the output is ``filters * len(windows)`` wide.
        windows: how many words the filters see.

    Raises:
        UsageError: no window.
    """

    def __init__(self, dim: int, filters: int, windows: Sequence[int]) -> None:
        super().__init__()
        if not windows:
            raise UsageError("model.windows is empty: name at least one width of filters")
        self.windows = tuple(windows)
        self.convs = nn.ModuleList(nn.Linear(window * dim, filters) for window in windows)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """``x [B, L, dim]``, ``mask [B, L]`` -> ``[B, filters * len(windows)]``, zero for an empty text."""
        length, mask = x.shape[1], mask.unsqueeze(-1)
        padded = F.pad(x * mask, (0, 0, 0, max(self.windows) - 1))
        shifted = [padded[:, i : i + length] for i in range(max(self.windows))]
        features = (
            conv(torch.cat(shifted[:window], dim=-1)).relu() * mask
            for window, conv in zip(self.windows, self.convs, strict=True)
        )
        return torch.cat([feature.amax(1) for feature in features], dim=-1)


class KnowledgeConvolution(nn.Module):
    """KCNN (Wang et al. 2018): words and their entities as aligned channels of one convolution.

    Filters over several channels are filters over the channels' concatenation. An entity enters as
    ``tanh(M e + b)``, at words without entity with e = 0; the entity's context is left out (see
    :class:`~fednews.models.dkn.DKN`).

    Args:
        words: the word embedding.
        entities: the entity embedding; without it words are the only channel.
        filters, windows: see :class:`MaxConvolution`.
        dropout: rate on the channels and on the news vector.
    """

    def __init__(
        self,
        words: WordEmbedding,
        entities: WordEmbedding | None,
        filters: int,
        windows: Sequence[int],
        dropout: float,
    ) -> None:
        super().__init__()
        self.words, self.entities = words, entities
        self.transform = None if entities is None else nn.Linear(entities.dim, words.dim)
        channels = 1 if entities is None else 2
        self.convolution = MaxConvolution(channels * words.dim, filters, windows)
        self.dropout = FastDropout(dropout)

    def forward(self, title: Tensor, entities: Tensor) -> Tensor:
        """Words and entities ``[N, L]`` -> ``[N, filters * len(windows)]``."""
        channels = self.words(title)
        if self.entities is not None:
            channels = torch.cat([channels, self.transform(self.entities(entities)).tanh()], dim=-1)
        return self.dropout(self.convolution(self.dropout(channels), title != 0))


class ParallelConvolution(nn.Module):
    """PCNN (Zhu et al. 2019b): a convolution over words beside one over entities, joined by a dense layer.

    Args:
        words: the word embedding.
        entities: the entity embedding; without it words are read alone.
        filters, windows: of each convolution, see :class:`MaxConvolution`.
        dim: width of the news vector.
        dropout: rate on embeddings and on pooled features.
    """

    def __init__(
        self,
        words: WordEmbedding,
        entities: WordEmbedding | None,
        filters: int,
        windows: Sequence[int],
        dim: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.words, self.entities = words, entities
        self.title = MaxConvolution(words.dim, filters, windows)
        self.profile = None if entities is None else MaxConvolution(entities.dim, filters, windows)
        branches = 1 if entities is None else 2
        self.join = nn.Linear(branches * filters * len(windows), dim)
        self.dropout = FastDropout(dropout)

    def forward(self, title: Tensor, entities: Tensor) -> Tensor:
        """Words and entities ``[N, L]`` -> ``[N, dim]``."""
        mask = title != 0
        pooled = self.title(self.dropout(self.words(title)), mask)
        if self.entities is not None:
            pooled = torch.cat([pooled, self.profile(self.dropout(self.entities(entities)), mask)], dim=-1)
        return self.join(self.dropout(pooled)).tanh()
