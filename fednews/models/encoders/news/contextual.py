"""Titles as contextual words, for readers who pool them each in their own way (NPA)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fednews.models.layers import FastDropout, WordConvolution, WordEmbedding


class ContextualTitle(nn.Module):
    """Words -> CNN, without pooling (Wu et al. 2019b, section 3.1).

    Args:
        words: the word embedding.
        filters: convolution filters.
        window: words a filter sees, odd.
        length: words of every output; titles are padded, or cut, to it.
        dropout: rate on word vectors and on contextual words.
    """

    def __init__(self, words: WordEmbedding, filters: int, window: int, length: int, dropout: float) -> None:
        super().__init__()
        self.words = words
        self.convolution = WordConvolution(words.dim, filters, window)
        self.length = length
        self.dropout = FastDropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """``tokens [N, L]`` -> ``[N, length, filters + 1]``: zero at padding, the last column one at words."""
        tokens = tokens[:, : self.length]
        mask = tokens != 0
        contextual = self.dropout(self.convolution(self.dropout(self.words(tokens)), mask))
        real = mask.unsqueeze(-1).to(contextual.dtype)
        return F.pad(torch.cat([contextual * real, real], dim=-1), (0, 0, 0, self.length - tokens.shape[1]))
