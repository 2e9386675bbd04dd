"""Users by attention over channels that know different things of them (DFM)."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from fednews.errors import UsageError
from fednews.models.layers import AdditiveAttention, FastDropout


class Inception(nn.Module):
    """Dense layers with ReLU in channels of different depth, joined by a dense layer (Lian et al. 2018).

    Args:
        dim: input width.
        hidden: width of every layer.
        out: output width.
        depths: layers of each channel.
        dropout: rate on the channels' outputs.

    Raises:
        UsageError: no channel.
    """

    def __init__(self, dim: int, hidden: int, out: int, depths: Sequence[int], dropout: float) -> None:
        super().__init__()
        if not depths:
            raise UsageError("model.depths is empty: name at least one channel")
        self.channels = nn.ModuleList(_dense([dim, *[hidden] * depth]) for depth in depths)
        self.join = nn.Linear(hidden * len(depths), out)
        self.dropout = FastDropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """``[…, dim]`` -> ``[…, out]``."""
        return self.join(self.dropout(torch.cat([channel(x) for channel in self.channels], dim=-1)))


def _dense(widths: Sequence[int]) -> nn.Sequential:
    return nn.Sequential(*(layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())))


class ChannelUser(nn.Module):
    """The user's id and the clicks, each through an inception module of its own, joined by attention.

    A channel that says nothing (an unknown id, an empty history) has no weight; without both a user is zero.

    Args:
        users: number of users, index 0 unknown.
        dim: width of news and user vectors.
        hidden, depths: the inception modules.
        query_dim: the attentions over clicks and over channels.
        dropout: rate in the inception modules.
    """

    def __init__(
        self, users: int, dim: int, hidden: int, depths: Sequence[int], query_dim: int, dropout: float
    ) -> None:
        super().__init__()
        self.ids = nn.Embedding(users, dim, padding_idx=0)
        nn.init.normal_(self.ids.weight, std=0.1)  # small: of a user with few clicks it stays what was drawn
        nn.init.zeros_(self.ids.weight[0])
        self.clicks = AdditiveAttention(dim, query_dim)
        self.inceptions = nn.ModuleList(Inception(dim, hidden, dim, depths, dropout) for _ in range(2))
        self.join = AdditiveAttention(dim, query_dim)

    def forward(self, history: Tensor, mask: Tensor, user: Tensor) -> Tensor:
        """``history [R, H, dim]``, ``mask [R, H]``, ``user [R]`` -> ``[R, dim]``."""
        known = (self.ids(user), self.clicks(history, mask))
        channels = torch.stack([inception(x) for inception, x in zip(self.inceptions, known, strict=True)], dim=1)
        return self.join(channels, torch.stack([user != 0, mask.any(1)], dim=1))
