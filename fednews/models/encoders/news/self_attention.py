"""Titles by self-attention over words (NRMS)."""

import torch
from torch import Tensor, nn

from fednews.models.layers import AdditiveAttention, FastDropout, SelfAttention, WordEmbedding


class SelfAttentionTitle(nn.Module):
    """Words -> multi-head self-attention -> additive attention (Wu et al. 2019d, section 2.1).

    Args:
        words: the word embedding, shared with whoever else reads words.
        heads, head_dim: self-attention; the news vector is ``heads * head_dim`` wide.
        query_dim: additive attention.
        dropout: rate on word vectors and on contextual words.
    """

    def __init__(self, words: WordEmbedding, heads: int, head_dim: int, query_dim: int, dropout: float) -> None:
        super().__init__()
        self.words = words
        self.attention = SelfAttention(words.dim, heads, head_dim)
        self.pool = AdditiveAttention(heads * head_dim, query_dim)
        self.dropout = FastDropout(dropout)

    def forward(self, *groups: Tensor) -> Tensor:
        """Titles ``[N, L]``, of any number of lengths -> ``[N, heads * head_dim]`` of all."""
        masks = [tokens != 0 for tokens in groups]
        words = self.words(torch.cat([tokens.flatten() for tokens in groups]))
        contextual = self.attention.groups(self.dropout(words), masks)
        return self.pool.groups(self.dropout(contextual), masks)
