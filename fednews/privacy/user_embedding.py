"""The vanilla private user embedding, the baseline of private serving (Liu et al. 2022, section 3.2.1)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fednews.errors import FednewsError, UsageError
from fednews.privacy.accounting import Accounted, epsilon_of
from fednews.privacy.entry import LedgerEntry
from fednews.privacy.mechanisms import laplace_noise
from fednews.privacy.private_attention import REPLACE_CLICK, Calibration, Noise, Sensitivity

PUBLISHED = "Liu et al. 2022, section 3.2.1: sensitivity 2 * theta, whatever the noise"


@dataclass(frozen=True)
class PrivateEmbedding:
    """Clips a user vector to norm theta and adds noise to each of its d numbers.

    Two vectors of norm theta are at most ``2 * theta`` apart in the Euclidean norm, but up to ``2 * sqrt(d) * theta``
    in the sum of absolute values: the published sensitivity is true for Gaussian noise and too small for Laplace noise.
    The published standard deviation has a factor ``1 - p`` inside its logarithm, a leftover of padding that this
    baseline does not do; it makes the noise smaller.

    Attributes:
        epsilon: budget of one release, from which the noise follows; ``inf`` for no noise.
        delta: of that budget; above 0 for Gaussian noise, not used by Laplace noise.
        theta: largest norm of the vector.
        stray_padding: p of the published factor; 0 leaves the factor out.
        noise: ``laplace`` or ``gaussian``.
        sensitivity: that the noise is made for: ``published`` or ``exact``.
        calibration: of Gaussian noise, as in :class:`~fednews.privacy.private_attention.PrivateAttention`; the stray
            factor belongs to ``classical``.
        dim: d, width of the vector.

    Raises:
        UsageError: a setting out of range.
    """

    dim: int
    epsilon: float = 10.0
    delta: float = 0.001
    theta: float = 0.001
    stray_padding: float = 0.0
    noise: Noise = "laplace"
    sensitivity: Sensitivity = "published"
    calibration: Calibration = "classical"

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise UsageError(f"epsilon must be above 0 (inf for no noise), not {self.epsilon}")
        if not 0 < self.theta < math.inf:
            raise UsageError(f"theta must be above 0, not {self.theta}")
        if not 0 <= self.stray_padding < 1:
            raise UsageError(f"padding is a probability below 1, not {self.stray_padding}")
        if self.noise == "gaussian" and not 0 < self.delta < 1:
            raise UsageError(f"delta must lie between 0 and 1 for Gaussian noise, not at {self.delta}")

    def noise_scale(self) -> float:
        """Scale of the noise on every number: b of Laplace noise, the standard deviation of Gaussian noise."""
        if math.isinf(self.epsilon):
            return 0.0
        if self.noise == "laplace":
            return (self.exact_sensitivity() if self.sensitivity == "exact" else 2 * self.theta) / self.epsilon
        if self.calibration == "classical":
            return 2 * self.theta / self.epsilon * self._classical_factor()
        import dp_accounting

        return 2 * self.theta * dp_accounting.get_sigma_gaussian(self.epsilon, self.delta)

    def exact_sensitivity(self) -> float:
        """How far two clients' clipped vectors can be apart: L1 for Laplace noise, L2 for Gaussian noise."""
        return 2 * self.theta * (math.sqrt(self.dim) if self.noise == "laplace" else 1.0)

    def clean(self, user: Tensor) -> Tensor:
        """Clipped vectors ``[R, d]``."""
        return user / (user.norm(dim=-1, keepdim=True) / self.theta).clamp(min=1.0)

    def __call__(self, user: Tensor, generator: torch.Generator) -> Tensor:
        """What leaves the client, ``[R, d]``, of users ``[R, d]``, each with noise of its own.

        Summed in float64 and rounded once, so that rounding is post-processing.

        Raises:
            FednewsError: a user vector is not finite; it has no sensitivity.
        """
        if not bool(user.isfinite().all()):
            raise FednewsError("a user vector is not finite: training has diverged; lower the learning rate")
        clean = self.clean(user.double())
        return (clean + self._draw(clean.shape, generator).to(clean.device)).to(user.dtype)

    def published_epsilon(self) -> float:
        """What the paper's formula gives for this noise: ``epsilon`` again where the noise was made by it."""
        if not (scale := self.noise_scale()):
            return math.inf
        return 2 * self.theta / scale * (1.0 if self.noise == "laplace" else self._classical_factor())

    def entry(self) -> LedgerEntry:
        """Declare one release, for the ledger."""
        scale = self.noise_scale()
        return LedgerEntry(
            mechanism="clipped and noised user embedding (Liu et al. 2022, section 3.2.1)",
            release="user vector",
            adjacency=REPLACE_CLICK,
            view="local",
            coordinates=self.dim,
            sensitivity=self.exact_sensitivity(),
            sensitivity_norm="l1" if self.noise == "laplace" else "l2",
            noise=self.noise if scale else "none",
            noise_scale=scale,
            published_epsilon=self.published_epsilon(),
            published_source=PUBLISHED,
            server_sees=("every client's noisy user vector by itself, with the client's identity",),
            no_guarantee_reason=None if scale else "no noise is added: the user vector is released as it is",
        )

    def epsilon_accounted(self) -> Accounted:
        """What one release really guarantees: pure for Laplace noise, at ``delta`` for Gaussian noise."""
        return epsilon_of(((self.entry(), 1),), 0.0 if self.noise == "laplace" else self.delta)

    def _classical_factor(self) -> float:
        """``sqrt(2 log(1.25 (1 - p) / delta))``."""
        logarithm = math.log(1.25 * (1 - self.stray_padding) / self.delta)
        if logarithm <= 0:
            raise UsageError(f"delta {self.delta} is too large for the published formula: lower it")
        return math.sqrt(2 * logarithm)

    def _draw(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        scale = self.noise_scale()
        if self.noise == "laplace":
            return laplace_noise(shape.numel(), scale, generator).view(shape)
        return torch.randn(shape, dtype=torch.float64, device=generator.device, generator=generator) * scale
