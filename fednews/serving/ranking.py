"""The server's ranking: from weights of basis vectors to the best news (Liu et al. 2022, Algorithm 1, lines 3-6)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fednews.data.ragged import Strings
from fednews.errors import UsageError


@dataclass(frozen=True)
class Listing:
    """What is shown of the news that are ranked, row by row as their vectors."""

    id: Strings
    title: Strings
    category: Strings

    def __len__(self) -> int:
        return len(self.id)


class Ranker:
    """Ranks a whole catalogue for any number of users at a time.

    The rebuilt user vector is a weighted sum of basis vectors and the score a dot product, so a score is the same
    weighted sum of the basis vectors' scores: ``(sum_i a_i b_i) . v = sum_i a_i (b_i . v)``. Those are computed once;
    a batch of requests is then one product ``[n, B] @ [B, N]``, whatever the width d of the vectors.

    Args:
        vectors: news ``[N, d]``.
        basis: basis vectors ``[B, d]``.

    Raises:
        UsageError: widths differ, or a score is not finite.
    """

    def __init__(self, vectors: Tensor, basis: Tensor) -> None:
        if vectors.ndim != 2 or basis.ndim != 2 or vectors.shape[1] != basis.shape[1]:
            raise UsageError(f"news {tuple(vectors.shape)} and basis {tuple(basis.shape)} must be vectors of one width")
        self.basis_scores = basis @ vectors.mT
        if not bool(self.basis_scores.isfinite().all()):
            raise UsageError("news or basis vectors are not finite: the model has diverged; serve another run")

    @property
    def basis(self) -> int:
        """B, how many weights a request has."""
        return len(self.basis_scores)

    @property
    def news(self) -> int:
        """N, how many news are ranked."""
        return self.basis_scores.shape[1]

    def scores(self, attention: Tensor) -> Tensor:
        """Scores ``[n, N]`` of all news for weights ``[n, B]``."""
        return attention.to(self.basis_scores.dtype) @ self.basis_scores

    def top(self, attention: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Scores and rows, each ``[n, k]`` and best first, of the ``k`` best news for weights ``[n, B]``.

        A partial sort: the rest of the catalogue is not put in order.
        """
        found = torch.topk(self.scores(attention), k, sorted=True)
        return found.values, found.indices
