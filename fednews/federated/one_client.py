"""Gradients of clients one after the other: on a CPU faster than several together, which pads them all alike."""

from collections.abc import Container

from torch import Tensor

from fednews.data.cohort import Cohort
from fednews.federated.losses import CohortLosses, gradients_of
from fednews.models.base import NewsModel
from fednews.models.functional import call_at
from fednews.models.layers import Words


class OneClient:
    """A single client, whose tensors are still stacked, ``[1, …]``.

    Args:
        model: the recommender.
        mean: its loss is the mean over its samples, not the sum.
        words: of its news.
        gathered: names of the parameters that are given at the rows of ``words`` alone.
        cohort: the client's data.
    """

    def __init__(
        self, model: NewsModel, mean: bool, words: Words | None, gathered: Container[str], cohort: Cohort
    ) -> None:
        self._losses = CohortLosses(model, words, gathered)
        self._mean = mean
        self._cohort = cohort

    def __call__(self, parameters: dict[str, Tensor], stacked: bool) -> tuple[dict[str, Tensor], Tensor]:
        """Gradients at ``parameters``, ``stacked`` or as they are, and the sum of sample losses ``[1]``."""
        own = {name: (value[0] if stacked else value).detach() for name, value in parameters.items()}
        own = {name: value.requires_grad_() for name, value in own.items()}
        losses = call_at(self._losses, own, self._cohort)
        total = losses.sum()
        loss = total / len(losses) if self._mean else total
        return {name: gradient[None] for name, gradient in gradients_of(loss, own).items()}, total.detach()[None]
