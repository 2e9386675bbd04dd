"""How much of its group's own model a layer takes (FINDING, Yu et al. 2023, section 4.1)."""

import math
from dataclasses import dataclass

from fednews.errors import UsageError


@dataclass(frozen=True)
class Interpolation:
    r"""Time- and layer-aware :math:`\lambda(t, i) = \lambda_{max} (1 - \alpha^{-t}) ((i + 1) / N)^\beta`.

    It is eq. 7 with a factor :math:`\lambda_{max}`, 1 in the paper. The limits of the parameters are the ablations of
    Fig. 5: ``beta=0`` is aware of time only, ``alpha=None`` of layers only, both together a fixed
    :math:`\lambda = \lambda_{max}`. ``beta=inf`` makes the last layer alone personal.

    Attributes:
        alpha: how fast lambda grows over rounds, above 1; None for the limit of infinity.
        beta: how much more of it upper layers take, 0 or more.
        max_lambda: what lambda tends to in the last layer, between 0 and 1.

    Raises:
        UsageError: a parameter out of range.
    """

    alpha: float | None = 1.0003
    beta: float = 0.5
    max_lambda: float = 1.0

    def __post_init__(self) -> None:
        if self.alpha is not None and not self.alpha > 1:
            raise UsageError(f"algorithm.alpha must be above 1, or null for no growth over time, not {self.alpha}")
        if not self.beta >= 0:
            raise UsageError(f"algorithm.beta must be 0 or more, not {self.beta}")
        if not 0 <= self.max_lambda <= 1:
            raise UsageError(f"algorithm.max_lambda must lie between 0 and 1, not {self.max_lambda}")

    def __call__(self, t: int, layers: int) -> list[float]:
        """Lambda of each of ``layers`` layers in round ``t``, counted from 1."""
        grown = 1.0 if self.alpha is None else -math.expm1(-t * math.log(self.alpha))
        return [self.max_lambda * grown * ((layer + 1) / layers) ** self.beta for layer in range(layers)]
