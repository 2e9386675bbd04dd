"""Users by self-attention over clicks (NRMS)."""

from torch import Tensor, nn

from fednews.models.layers import AdditiveAttention, FastDropout, SelfAttention
from fednews.models.ragged import Sequences


class SelfAttentionUser(nn.Module):
    """Clicks -> multi-head self-attention -> additive attention (Wu et al. 2019d, section 2.2).

    Args:
        heads, head_dim: self-attention; news and user vectors are ``heads * head_dim`` wide.
        query_dim: additive attention.
        dropout: rate on news vectors and on contextual clicks.
    """

    def __init__(self, heads: int, head_dim: int, query_dim: int, dropout: float) -> None:
        super().__init__()
        self.attention = SelfAttention(heads * head_dim, heads, head_dim)
        self.pool = AdditiveAttention(heads * head_dim, query_dim)
        self.dropout = FastDropout(dropout)

    def forward(self, history: Tensor, mask: Tensor) -> Tensor:
        """``history [R, H, d]``, ``mask [R, H]`` -> ``[R, d]``, zero for an empty history."""
        contextual = self.attention(self.dropout(history), mask)
        return self.pool(self.dropout(contextual), mask)

    def ragged(self, history: Tensor, sequences: Sequences) -> Tensor:
        """``history [T, d]`` -> ``[R, d]``, zero for an empty history, with each client's own weights."""
        contextual = self.attention.ragged(self.dropout(history), sequences)
        return self.pool.ragged(self.dropout(contextual), sequences)
