"""The settings of private serving, and the mechanisms that follow from them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fednews.errors import UsageError
from fednews.privacy.private_attention import Activation, Calibration, Noise, PrivateAttention, Sensitivity
from fednews.privacy.user_embedding import PrivateEmbedding

Mechanism = Literal["privaterec", "vanilla"]
MECHANISMS: tuple[Mechanism, ...] = ("privaterec", "vanilla")

_DELTA = 1e-3


@dataclass(frozen=True)
class ServingOptions:
    """How a query is made private; what is None follows from the rest.

    Attributes:
        padding: p of history padding; by default what the run was trained with, or 0.2.
        theta: largest norm before noise; by default 0.001 for user vectors, and for weights what the run was trained
            with, or 1.
        noise: by default Gaussian where ``delta`` is given and Laplace, as in the paper's tables, where it is not.
        delta: of Gaussian noise, by default 0.001.
        sensitivity, calibration, activation: as in :class:`~fednews.privacy.private_attention.PrivateAttention`.

    Raises:
        UsageError: ``delta`` with Laplace noise, which has none.
    """

    padding: float | None = None
    theta: float | None = None
    noise: Noise | None = None
    delta: float | None = None
    sensitivity: Sensitivity = "published"
    calibration: Calibration = "classical"
    activation: Activation = "softplus"

    def __post_init__(self) -> None:
        if self.noise == "laplace" and self.delta is not None:
            raise UsageError("Laplace noise has no delta: leave --serving.delta or --serving.noise laplace out")

    def attention(self, epsilon: float, basis: int, trained: Mapping[str, Any]) -> PrivateAttention:
        """PrivateRec's mechanism for one query.

        Args:
            epsilon: of the query.
            basis: B, number of basis vectors.
            trained: settings of the algorithm that trained the model.
        """
        return PrivateAttention(
            theta=_first(self.theta, trained.get("theta"), 1.0),
            padding=self._padding(trained),
            activation=self.activation,
            basis=basis,
            **self._shared(epsilon),
        )

    def embedding(self, epsilon: float, dim: int, trained: Mapping[str, Any]) -> PrivateEmbedding:
        """The vanilla mechanism for one query with user vectors of width ``dim``.

        As published, its formula has the factor of a padding that it does not do.
        """
        stray = self._padding(trained) if self.sensitivity == "published" else 0.0
        return PrivateEmbedding(dim, theta=_first(self.theta, 0.001), stray_padding=stray, **self._shared(epsilon))

    def _padding(self, trained: Mapping[str, Any]) -> float:
        return _first(self.padding, trained.get("padding"), 0.2)

    def _shared(self, epsilon: float) -> dict[str, Any]:
        return {
            "epsilon": epsilon,
            "delta": _first(self.delta, _DELTA),
            "noise": self.noise or ("laplace" if self.delta is None else "gaussian"),
            "sensitivity": self.sensitivity,
            "calibration": self.calibration,
        }


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)


def checked_epsilons(epsilons: list[float]) -> list[float]:
    """The serving budgets, each above 0 (or infinite).

    Raises:
        UsageError: one of them is not.
    """
    for epsilon in epsilons:
        if math.isnan(epsilon) or epsilon <= 0:
            raise UsageError(f"--serving.epsilon must be above 0 (inf for no noise), not {epsilon:g}")
    return epsilons
