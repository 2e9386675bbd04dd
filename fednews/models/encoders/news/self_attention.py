"""Titles by self-attention over words (NRMS)."""

from torch import Tensor, nn

from fednews.models.layers import AdditiveAttention, FastDropout, SelfAttention, WordEmbedding
from fednews.models.ragged import Sequences


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

    def forward(self, tokens: Tensor) -> Tensor:
        """``tokens [N, L]`` -> ``[N, heads * head_dim]``."""
        mask = tokens != 0
        contextual = self.attention(self.dropout(self.words(tokens)), mask)
        return self.pool(self.dropout(contextual), mask)

    def ragged(self, tokens: Tensor, sequences: Sequences) -> Tensor:
        """``tokens [T]``, none of them padding -> ``[N, heads * head_dim]``, with each client's own weights."""
        words = self.dropout(self.words.ragged(tokens, sequences.counts))
        return self.pool.ragged(self.dropout(self.attention.ragged(words, sequences)), sequences)
