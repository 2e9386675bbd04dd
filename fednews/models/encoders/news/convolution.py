"""Texts by convolution over words (NAML, FedNewsRec)."""

from torch import Tensor, nn

from fednews.models.layers import AdditiveAttention, FastDropout, SelfAttention, WordConvolution, WordEmbedding


class ConvolutionText(nn.Module):
    """Words -> CNN -> additive attention (Wu et al. 2019a, section 3.1), for a title or an abstract.

    Args:
        words: the word embedding, shared between views.
        filters: convolution filters, the output width.
        window: words a filter sees, odd.
        query_dim: additive attention.
        dropout: rate on word vectors and on contextual words.
    """

    def __init__(self, words: WordEmbedding, filters: int, window: int, query_dim: int, dropout: float) -> None:
        super().__init__()
        self.words = words
        self.convolution = WordConvolution(words.dim, filters, window)
        self.pool = AdditiveAttention(filters, query_dim)
        self.dropout = FastDropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """``tokens [N, L]`` -> ``[N, filters]``; an empty text gives zeros."""
        mask = tokens != 0
        contextual = self.convolution(self.dropout(self.words(tokens)), mask)
        return self.pool(self.dropout(contextual), mask)


class ConvolutionAttentionTitle(nn.Module):
    """Words -> CNN -> multi-head self-attention -> additive attention (Qi et al. 2020, Fig. 1).

    Args:
        words: the word embedding.
        filters, window: convolution.
        heads, head_dim: self-attention; the news vector is ``heads * head_dim`` wide.
        query_dim: additive attention.
        dropout: rate before each of the three layers.
        attention_relu: a ReLU after the self-attention, as in the authors' code.
    """

    def __init__(
        self,
        words: WordEmbedding,
        filters: int,
        window: int,
        heads: int,
        head_dim: int,
        query_dim: int,
        dropout: float,
        attention_relu: bool,
    ) -> None:
        super().__init__()
        self.words = words
        self.convolution = WordConvolution(words.dim, filters, window)
        self.attention = SelfAttention(filters, heads, head_dim)
        self.activation = nn.ReLU() if attention_relu else nn.Identity()
        self.pool = AdditiveAttention(heads * head_dim, query_dim)
        self.dropout = FastDropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """``tokens [N, L]`` -> ``[N, heads * head_dim]``."""
        mask = tokens != 0
        local = self.convolution(self.dropout(self.words(tokens)), mask)
        contextual = self.activation(self.attention(self.dropout(local), mask))
        return self.pool(self.dropout(contextual), mask)
