"""Users by long-term attention and a short-term GRU (FedNewsRec)."""

import torch
from torch import Tensor, nn

from fednews.models.encoders.user.self_attention import SelfAttentionUser
from fednews.models.layers import GRU, AdditiveAttention, FastDropout


class LongShortUser(nn.Module):
    """Self-attention over all clicks and a GRU over the latest ones, joined by attention (Qi et al. 2020, Fig. 2).

    Args:
        heads, head_dim: self-attention; news and user vectors are ``heads * head_dim`` wide.
        recent: clicks that the GRU reads.
        query_dim: the additive attentions.
        dropout: rate on news vectors.
    """

    def __init__(self, heads: int, head_dim: int, recent: int, query_dim: int, dropout: float) -> None:
        super().__init__()
        dim = heads * head_dim
        self.recent = recent
        self.long = SelfAttentionUser(heads, head_dim, query_dim, dropout)
        self.short = GRU(dim, dim)
        self.join = AdditiveAttention(dim, query_dim)
        self.dropout = FastDropout(dropout)

    def forward(self, history: Tensor, mask: Tensor) -> Tensor:
        """``history [R, H, d]`` padded on the left, ``mask [R, H]`` -> ``[R, d]``, zero for an empty history."""
        short = self.short(self.dropout(history[:, -self.recent :]), mask[:, -self.recent :])
        both = torch.stack([self.long(history, mask), short], dim=1)
        return self.join(both, torch.ones_like(both[..., 0], dtype=torch.bool))
