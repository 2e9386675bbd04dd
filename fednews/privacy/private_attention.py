"""Private attention: a user as B noisy weights of public basis vectors (Liu et al. 2022, Algorithm 2, lines 7-10).

The release is the vector of weights; the ledger entry declares its true sensitivity, whatever the noise was made for.

Sensitivity (lines 1 and 9 take theta, "because attention scores are always positive"): two weight vectors are not
negative, sum to 1 before and at most 1 after clipping, and have norms of at most theta. They can therefore be
``sqrt(2) * min(1, theta)`` apart in the Euclidean norm, and ``max_k min(1, sqrt(k) * theta) + min(1, sqrt(B - k) *
theta)`` apart in the sum of absolute values, with k entries of one and the B - k others of the other not zero.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fednews.errors import FednewsError, UsageError
from fednews.privacy.accounting import Accounted, epsilon_of, padded_epsilon
from fednews.privacy.entry import LedgerEntry
from fednews.privacy.mechanisms import laplace_noise

Noise = Literal["gaussian", "laplace"]
Activation = Literal["softplus", "relu"]
Sensitivity = Literal["published", "exact"]
Calibration = Literal["classical", "analytic"]

REPLACE_CLICK = "replace one article of a client's history by any other, wherever it is in it"
PUBLISHED = "Liu et al. 2022, Algorithm 2, line 9: sensitivity theta, and an article that is once in the history"


@dataclass(frozen=True)
class PrivateAttention:
    """Clips weights, adds noise, makes them positive and lets them sum to 1.

    Attributes:
        epsilon: budget of one release, from which the noise follows; ``inf`` for no noise.
        delta: of that budget; above 0 for Gaussian noise, not used by Laplace noise.
        theta: largest norm of the weights; from 1 on nothing is clipped.
        padding: p, probability with which each history item is replaced by the anonymous news before.
        noise: ``laplace`` or ``gaussian``.
        activation: what makes noisy weights positive: ``softplus`` (serving) or ``relu`` (training).
        sensitivity: that the noise is made for: ``published`` (theta) or ``exact``.
        calibration: of Gaussian noise: ``classical`` (line 9, proved for epsilon below 1 only) or ``analytic`` (Balle
            and Wang 2018, in the accounting library).
        basis: B, number of basis vectors.
        scale: of the noise in place of ``epsilon`` and ``delta``: Laplace scale, or standard deviation.

    Raises:
        UsageError: a setting out of range.
    """

    epsilon: float = 10.0
    delta: float = 0.001
    theta: float = 1.0
    padding: float = 0.2
    noise: Noise = "gaussian"
    activation: Activation = "softplus"
    sensitivity: Sensitivity = "published"
    calibration: Calibration = "classical"
    basis: int = 5
    scale: float | None = None

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise UsageError(f"{name} is one of {', '.join(known)}, not {getattr(self, name)}")
        if self.basis < 2:
            raise UsageError(f"basis must be at least 2, not {self.basis}: a single weight is always 1")
        if not 0 < self.theta < math.inf:
            raise UsageError(f"theta must be above 0, not {self.theta}")
        if not 0 <= self.padding < 1:
            raise UsageError(f"padding is a probability below 1, not {self.padding}")
        if self.scale is not None and not 0 <= self.scale < math.inf:
            raise UsageError(f"scale must be 0 or more, not {self.scale}")
        if not self.epsilon > 0:
            raise UsageError(f"epsilon must be above 0 (.inf for no noise), not {self.epsilon}")
        if self.noise == "gaussian" and self._derived and not 0 < self.delta < 1 - self.padding:
            raise UsageError(
                f"delta must lie between 0 and {1 - self.padding:g} for Gaussian noise, not at {self.delta}"
            )

    @property
    def _derived(self) -> bool:
        return self.scale is None and not math.isinf(self.epsilon)

    def noise_scale(self) -> float:
        """Scale of the noise on every weight: b of Laplace noise, the standard deviation of Gaussian noise."""
        if self.scale is not None:
            return self.scale
        if math.isinf(self.epsilon):
            return 0.0
        distance = self.theta if self.sensitivity == "published" else self.exact_sensitivity()
        epsilon, delta = self._without_padding()
        if self.noise == "laplace":
            return distance / epsilon
        if self.calibration == "classical":
            return distance / epsilon * math.sqrt(2 * math.log(1.25 / delta))
        import dp_accounting

        return distance * dp_accounting.get_sigma_gaussian(epsilon, delta)

    def exact_sensitivity(self) -> float:
        """How far two clients' clipped weights can be apart: L1 for Laplace noise, L2 for Gaussian noise."""
        if self.noise == "gaussian":
            return math.sqrt(2) * min(1.0, self.theta)
        size = range(1, self.basis)
        return max(min(1.0, math.sqrt(k) * self.theta) + min(1.0, math.sqrt(self.basis - k) * self.theta) for k in size)

    def clean(self, user: Tensor, basis: Tensor) -> Tensor:
        """Clipped weights ``[R, B]`` of users ``[R, d]`` over ``basis [B, d]``, before noise (lines 7 and 8)."""
        alpha = attention_weights(user, basis)
        return alpha / (alpha.norm(dim=-1, keepdim=True) / self.theta).clamp(min=1.0)

    def draw(self, rows: int, generator: torch.Generator) -> Tensor:
        """Noise for ``rows`` releases, float64 ``[rows, B]``."""
        count, scale = rows * self.basis, self.noise_scale()
        if self.noise == "laplace":
            noise = laplace_noise(count, scale, generator)
        else:
            noise = torch.randn(count, dtype=torch.float64, device=generator.device, generator=generator) * scale
        return noise.view(rows, self.basis)

    def normalised(self, noisy: Tensor) -> Tensor:
        """Noisy weights ``[R, B]`` made positive and divided by their sum (line 10).

        Where ReLU leaves nothing every weight is 1/B: the paper does not say, and a division by zero must not reach
        the model.
        """
        positive = F.softplus(noisy) if self.activation == "softplus" else noisy.relu()
        total = positive.sum(-1, keepdim=True)
        empty = total <= 0
        return torch.where(empty, 1 / noisy.shape[-1], positive / torch.where(empty, 1.0, total))

    def __call__(self, user: Tensor, basis: Tensor, generator: torch.Generator) -> Tensor:
        """What leaves the client, ``[R, B]``, of users ``[R, d]``, each with noise of its own.

        Summed in float64 and rounded once, so that rounding is post-processing.

        Raises:
            FednewsError: a user vector is not finite; it has no sensitivity.
        """
        if not bool(user.isfinite().all()):
            raise FednewsError("a user vector is not finite: training has diverged; lower the learning rate")
        clean = self.clean(user, basis).double()
        return self.normalised(clean + self.draw(len(user), generator).to(clean.device)).to(user.dtype)

    def rebuild(self, alpha: Tensor, basis: Tensor) -> Tensor:
        """The server's user vectors ``[R, d]`` of released weights ``[R, B]`` (Algorithm 1, line 5)."""
        return alpha @ basis

    def published_epsilon(self) -> float:
        """What the paper's formula gives for this noise: ``epsilon`` again where the noise was made by that formula."""
        if not (scale := self.noise_scale()):
            return math.inf
        distance = self.theta / scale
        if self.noise == "gaussian":
            delta = self.delta / (1 - self.padding)
            if not 0 < delta < 1:
                return math.inf
            distance *= math.sqrt(2 * math.log(1.25 / delta))
        return padded_epsilon(distance, 1 - self.padding)

    def entry(
        self, multiplicity: int = 1, times: int = 1, hidden_mask: bool = True, view: str = "local"
    ) -> LedgerEntry:
        """Declare ``times`` releases at a time, for the ledger.

        Args:
            multiplicity: m, how often the article that occurs most often is in the history; it is hidden by padding
                with probability p^m only.
            times: releases from histories that may share clicks.
            hidden_mask: nobody sees which items were padded; else padding amplifies nothing.
            view: who sees it, as in `LedgerEntry`.
        """
        scale, laplace = self.noise_scale(), self.noise == "laplace"
        return LedgerEntry(
            mechanism="private attention (Liu et al. 2022, Algorithm 2)",
            release="weights of the basis vectors",
            adjacency=REPLACE_CLICK,
            view=view,
            coordinates=self.basis,
            sensitivity=self.exact_sensitivity(),
            sensitivity_norm="l1" if laplace else "l2",
            noise=self.noise if scale else "none",
            noise_scale=scale,
            published_epsilon=self.published_epsilon(),
            published_source=PUBLISHED,
            server_sees=("every client's noisy weights by themselves, with the client's identity",),
            no_guarantee_reason=None if scale else "no noise is added: the weights are released as they are",
            times=times,
            present=1 - self.padding**multiplicity if hidden_mask and self.padding else 1.0,
        )

    def epsilon_accounted(self, multiplicity: int = 1, delta: float | None = None) -> Accounted:
        """What one release really guarantees, at ``delta`` (the mechanism's own when None; pure for Laplace noise)."""
        own = 0.0 if self.noise == "laplace" else self.delta
        return epsilon_of(((self.entry(multiplicity), 1),), own if delta is None else delta)

    def _without_padding(self) -> tuple[float, float]:
        """(epsilon0, delta0) that padding brings down to (epsilon, delta); written so that no exponential overflows."""
        p = self.padding
        return self.epsilon + math.log1p(-p * math.exp(-self.epsilon)) - math.log1p(-p), self.delta / (1 - p)


_CHOICES = {
    "noise": ("gaussian", "laplace"),
    "activation": ("softplus", "relu"),
    "sensitivity": ("published", "exact"),
    "calibration": ("classical", "analytic"),
}


def attention_weights(user: Tensor, basis: Tensor) -> Tensor:
    """``softmax(u bᵀ / sqrt(d))``, ``[R, B]``, of users ``[R, d]`` over ``basis [B, d]`` (Algorithm 2, line 7)."""
    return (user @ basis.mT / math.sqrt(basis.shape[-1])).softmax(-1)
