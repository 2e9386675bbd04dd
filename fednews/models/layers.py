"""Building blocks of the published models. All mask padding, and all run under ``torch.func.vmap``."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fednews.models.ragged import Sequences, clients_linear, ragged_attention, ragged_pool
from fednews.models.small_heads import small_heads


def masked_softmax(scores: Tensor, mask: Tensor, dim: int = -1) -> Tensor:
    """Softmax over the entries where ``mask`` is true; a row with none gets zeros, not NaN."""
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~mask, lowest).softmax(dim) * mask


class FastDropout(nn.Dropout):
    """Dropout whose masks cost little on a CPU: four elements share one 64-bit draw.

    The rate is rounded to a multiple of 2^-16, and what is kept is scaled so that the mean is exact.
    """

    def forward(self, x: Tensor) -> Tensor:
        dropped = round(self.p * 2**16)
        if x.device.type != "cpu" or not self.training or not 0 < dropped < 2**16:
            return super().forward(x)
        words = torch.randint(-(2**63), 2**63 - 1, (-(-x.numel() // 4),), device=x.device)
        kept = words.view(torch.int16)[: x.numel()] >= dropped - 2**15
        return x * (kept.view(torch.uint8).to(x.dtype).view(x.shape) * (2**16 / (2**16 - dropped)))


class Linear(nn.Linear):
    """A linear layer whose weights may be several clients' own, stacked."""

    def forward(self, x: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        """``[…, in]`` -> ``[…, out]``; where clients have ``counts`` rows each, ``[T, in]`` -> ``[T, out]``."""
        if self.weight.dim() == 2:  # one for all, where it is not trained
            return super().forward(x)
        return clients_linear(x, self.weight, self.bias, counts)


class SelfAttention(nn.Module):
    """Multi-head self-attention without output projection, as the NRMS family defines it.

    Args:
        dim: input width.
        heads: number of heads.
        head_dim: width of each head; the output width is ``heads * head_dim``.
    """

    def __init__(self, dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.qkv = Linear(dim, 3 * heads * head_dim, bias=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """``x [B, L, dim]``, ``mask [B, L]`` -> ``[B, L, heads * head_dim]``; rows at padding are meaningless."""
        return small_heads(self.qkv(x), mask, self.heads)

    def ragged(self, x: Tensor, sequences: Sequences) -> Tensor:
        """``x [T, dim]`` -> ``[T, heads * head_dim]``, with each client's own weights."""
        return ragged_attention(self.qkv(x, sequences.counts), sequences, self.heads)


class AdditiveAttention(nn.Module):
    """Pooling by ``softmax(qᵀ tanh(W x + b))``; an all-padding row pools to zero.

    Keras implementations add a scalar bias before the softmax; it cancels there, so it does not exist here.

    Args:
        dim: input and output width.
        query_dim: width of the query vector.
    """

    def __init__(self, dim: int, query_dim: int = 200) -> None:
        super().__init__()
        self.key = Linear(dim, query_dim)
        self.query = Linear(query_dim, 1, bias=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """``x [B, L, dim]``, ``mask [B, L]`` -> ``[B, dim]``."""
        weights = masked_softmax(self.query(self.key(x).tanh()).squeeze(-1), mask)
        return (weights.unsqueeze(1) @ x).squeeze(1)

    def ragged(self, x: Tensor, sequences: Sequences) -> Tensor:
        """``x [T, dim]`` -> ``[N, dim]``, with each client's own weights."""
        scores = self.query(self.key(x, sequences.counts).tanh(), sequences.counts)
        return ragged_pool(x, scores.squeeze(-1), sequences)


class WordConvolution(nn.Module):
    """1-D convolution over words followed by ReLU; padding counts as zero vectors on both sides.

    Args:
        dim: input width.
        filters: output width.
        window: words a filter sees, odd.
    """

    def __init__(self, dim: int, filters: int, window: int = 3) -> None:
        super().__init__()
        self.window = window
        self.conv = nn.Linear(window * dim, filters)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """``x [B, L, dim]``, ``mask [B, L]`` -> ``[B, L, filters]``."""
        side = self.window // 2
        padded = F.pad(x * mask.unsqueeze(-1), (0, 0, side, side))
        length = x.shape[1]
        windows = torch.cat([padded[:, i : i + length] for i in range(self.window)], dim=-1)
        return self.conv(windows).relu()


class GRU(nn.Module):
    """Gated recurrent unit in its first form (Cho et al. 2014: the reset gate acts before the product).

    Steps at padding keep the state. Written from products, since ``nn.GRU`` does not run under ``vmap``.

    Args:
        dim: input width.
        hidden: state width.
    """

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.input = nn.Linear(dim, 3 * hidden)
        self.gates = nn.Linear(hidden, 2 * hidden, bias=False)
        self.candidate = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: Tensor, mask: Tensor, state: Tensor | None = None) -> Tensor:
        """``x [B, L, dim]``, ``mask [B, L]`` -> the last state ``[B, hidden]``; an empty row keeps the first one.

        The first ``state [B, hidden]`` is zero where none is given.
        """
        projected = self.input(x)
        if state is None:
            state = projected.new_zeros(len(x), self.candidate.out_features)
        for step in range(x.shape[1]):
            update, reset, new = projected[:, step].chunk(3, -1)
            recurrent_update, recurrent_reset = self.gates(state).chunk(2, -1)
            update = (update + recurrent_update).sigmoid()
            new = (new + self.candidate((reset + recurrent_reset).sigmoid() * state)).tanh()
            state = torch.where(mask[:, step, None], update * state + (1 - update) * new, state)
        return state


@dataclass(frozen=True)
class Words:
    """Some words of a vocabulary.

    Attributes:
        present: int64 ``[W]``, different words from low to high, the first is padding.
        place: int64 ``[vocabulary]``, each word's place among them; W for those that are not.
    """

    present: Tensor
    place: Tensor

    @classmethod
    def of(cls, present: Tensor, vocabulary: int) -> "Words":
        place = torch.full((vocabulary,), len(present), device=present.device)
        place[present] = torch.arange(len(present), device=present.device)
        return cls(present, place)


class WordEmbedding(nn.Module):
    """Word vectors; index 0 is padding: it starts as zero and has no gradient, and whoever reads words masks it.

    Args:
        words: vocabulary size.
        dim: vector width.
        vectors: float ``[words, dim]`` to start from, or ``None`` for random vectors.
        trainable: whether the vectors are trained, and so communicated.
    """

    def __init__(self, words: int, dim: int, vectors: Tensor | None, trainable: bool) -> None:
        super().__init__()
        start = torch.randn(words, dim) * 0.1 if vectors is None else vectors.clone()
        start[0] = 0.0
        self.weight = nn.Parameter(start, requires_grad=trainable)
        self.read_whole = False  # set where others read the table itself too
        self._few: tuple[Tensor, Tensor] | None = None

    @property
    def dim(self) -> int:
        return self.weight.shape[1]

    def forward(self, tokens: Tensor) -> Tensor:
        """``tokens [B, L]`` -> ``[B, L, dim]``."""
        if self._few is None:
            return F.embedding(tokens, self.weight, padding_idx=0)
        vectors, place = self._few
        return F.embedding(place[tokens], vectors, padding_idx=0)

    def ragged(self, tokens: Tensor, counts: Sequence[int]) -> Tensor:
        """``tokens [T]``, none of them padding -> ``[T, dim]``; a trained table is each client's own, stacked."""
        vectors, rows = (self.weight, tokens) if self._few is None else (self._few[0], self._few[1][tokens])
        if vectors.dim() == 2:
            return F.embedding(rows, vectors)
        owner = torch.arange(len(vectors)).repeat_interleave(torch.tensor(counts))
        return F.embedding(owner * vectors.shape[1] + rows, vectors.flatten(0, 1))

    @contextlib.contextmanager
    def among(self, words: Words, gathered: bool = False) -> Iterator[None]:
        """Gather the vectors of some words once, for all lookups in the block.

        A lookup's gradient is as large as what it looks up in, so that this one is added up over few words and put
        into a table's size once. To look another word up is an IndexError.

        Args:
            words: those.
            gathered: ``weight`` holds the vectors of these words alone.
        """
        self._few = self.weight if gathered else self.weight.index_select(-2, words.present), words.place
        try:
            yield
        finally:
            self._few = None
