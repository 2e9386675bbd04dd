"""Users as a candidate finds them: attention over clicks that knows the candidate (DKN, DAN)."""

import torch
from torch import Tensor, nn

from fednews.models.layers import masked_softmax


class CandidateAttention(nn.Module):
    """How much each click matters to each candidate: a network with one hidden layer on their concatenation.

    A bias of the output would cancel in the softmax, so there is none.

    Args:
        clicks: width of what stands for a click.
        candidate: width of a candidate.
        hidden: width of the hidden layer.
        activation: of the hidden layer.
    """

    def __init__(self, clicks: int, candidate: int, hidden: int, activation: nn.Module) -> None:
        super().__init__()
        # The concatenation's layer in two parts, so that a click is projected once and not once for each candidate.
        self.click = nn.Linear(clicks, hidden)
        self.candidate = nn.Linear(candidate, hidden, bias=False)
        self.activation = activation
        self.output = nn.Linear(hidden, 1, bias=False)

    def forward(self, clicks: Tensor, candidates: Tensor) -> Tensor:
        """``clicks [S, H, d]``, ``candidates [S, C, e]`` -> logits ``[S, C, H]``."""
        hidden = self.click(clicks).unsqueeze(1) + self.candidate(candidates).unsqueeze(2)
        return self.output(self.activation(hidden)).squeeze(-1)


class LSTM(nn.Module):
    """Long short-term memory (Hochreiter and Schmidhuber 1997, with forget gate), all states.

    Steps at padding keep state and memory. Written from products, since ``nn.LSTM`` knows no mask on the left.

    Args:
        dim: input width.
        hidden: state width.
    """

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.input = nn.Linear(dim, 4 * hidden)
        self.state = nn.Linear(hidden, 4 * hidden, bias=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """``x [B, L, dim]``, ``mask [B, L]`` -> states ``[B, L, hidden]``, zero before the first real step."""
        projected = self.input(x)
        state = memory = projected.new_zeros(len(x), self.state.in_features)
        states = []
        for step in range(x.shape[1]):
            into, forget, new, out = (projected[:, step] + self.state(state)).chunk(4, -1)
            real = mask[:, step, None]
            memory = torch.where(real, forget.sigmoid() * memory + into.sigmoid() * new.tanh(), memory)
            state = torch.where(real, out.sigmoid() * memory.tanh(), state)
            states.append(state)
        return torch.stack(states, dim=1)


def attend(logits: Tensor, mask: Tensor, clicks: Tensor) -> Tensor:
    """Clicks ``[S, H, d]`` weighted by the softmax of ``logits [S, C, H]`` -> ``[S, C, d]``."""
    return masked_softmax(logits, mask.unsqueeze(1)) @ clicks


def attend_at_every_step(logits: Tensor, mask: Tensor, states: Tensor) -> Tensor:
    """Mean over the steps of what attention makes of the states up to each step; zero for an empty history.

    ``logits [S, C, H]``, ``mask [S, H]``, ``states [S, H, d]`` -> ``[S, C, d]``.
    """
    steps = logits.shape[-1]
    past = torch.ones(steps, steps, dtype=torch.bool, device=logits.device).tril()
    seen = (past & mask.unsqueeze(1)).unsqueeze(1)
    weights = masked_softmax(logits.unsqueeze(-2).expand(*logits.shape, steps), seen)
    real = mask.to(weights.dtype)
    weights = (real[:, None, None] @ weights).squeeze(-2) / real.sum(-1).clamp(min=1)[:, None, None]
    return weights @ states


def pack(mask: Tensor, *parts: Tensor) -> Tensor:
    """Parts ``[R, H, …]`` side by side for :func:`unpack`; zero at padding, the mask in the last column."""
    real = mask.unsqueeze(-1).to(parts[0].dtype)
    return torch.cat([*(torch.where(mask.unsqueeze(-1), part, 0) for part in parts), real], dim=-1)


def unpack(user: Tensor, *widths: int) -> tuple[Tensor, ...]:
    """The mask ``[S, H]`` and the parts of the given widths that :func:`pack` put together."""
    *parts, real = user.split([*widths, 1], dim=-1)
    return real.squeeze(-1) > 0, *parts
