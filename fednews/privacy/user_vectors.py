"""User vectors that leave the device to be clustered: clipped and noised, or in the clear.

FINDING (Yu et al. 2023, section 4.2) uploads them in the clear and claims no differential privacy. With a clip and
noise the vector is released once by the Gaussian mechanism; what is clustered from it afterwards is post-processing.
"""

import math

import torch
from torch import Tensor

from fednews.errors import FednewsError, UsageError
from fednews.privacy.entry import LedgerEntry
from fednews.privacy.unprotected import unprotected

REPLACE_CLIENT_HISTORY = "replace one client's data by any other data"

SERVER_SEES = (
    "every client's (noisy) user vector by itself, with the client's identity",
    "the group of every client, which follows from it",
)


class UserVectorRelease:
    """Clips a client's vector to an L2 norm and adds Gaussian noise to each of its coordinates.

    Args:
        clip: C, the largest L2 norm, above 0; None does not clip.
        noise: standard deviation of the noise, 0 or more; 0 adds none.

    Raises:
        UsageError: a setting is out of range, or noise without a clip, which hides nothing.
    """

    def __init__(self, clip: float | None, noise: float) -> None:
        if clip is not None and not 0 < clip < math.inf:
            raise UsageError(f"algorithm.vector_clip must be above 0, or null for no clipping, not {clip}")
        if not 0 <= noise < math.inf:
            raise UsageError(f"algorithm.vector_noise is a standard deviation of 0 or more, not {noise}")
        if noise and clip is None:
            raise UsageError("algorithm.vector_noise hides nothing without algorithm.vector_clip: set both")
        self.clip = clip
        self.noise = noise

    def clipped(self, vectors: Tensor) -> Tensor:
        """Vectors ``[n, d]`` scaled down to the largest norm, float64, or as they are without a clip."""
        if self.clip is None:
            return vectors
        exact = vectors.double()
        norm = exact.norm(dim=1, keepdim=True)
        return exact * (self.clip / norm.clamp(min=self.clip))

    def __call__(self, vectors: Tensor, generator: torch.Generator) -> Tensor:
        """What the clients upload, of the vectors' type ``[n, d]``.

        Computed in float64 and rounded once, so that rounding is post-processing.

        Args:
            vectors: one client's vector a row.
            generator: draws the noise, on the vectors' device.

        Raises:
            FednewsError: a vector is not finite; it has no sensitivity.
        """
        if not bool(vectors.isfinite().all()):
            raise FednewsError("a user vector is not finite: training has diverged; lower the learning rate")
        released = self.clipped(vectors)
        if self.noise:
            noise = torch.randn(vectors.shape, dtype=torch.float64, device=vectors.device, generator=generator)
            released = released + self.noise * noise
        return released.to(vectors.dtype)

    def entry(self, coordinates: int) -> LedgerEntry:
        """Declare one upload of a vector of ``coordinates`` numbers."""
        if not self.noise:
            return unprotected("user vector", coordinates, "user vectors are uploaded without any noise", SERVER_SEES)
        return LedgerEntry(
            mechanism="L2 clip and Gaussian noise on the user vector",
            release="user vector",
            adjacency=REPLACE_CLIENT_HISTORY,
            view="local",
            coordinates=coordinates,
            sensitivity=2 * self.clip,
            sensitivity_norm="l2",
            noise="gaussian",
            noise_scale=self.noise,
            published_epsilon=math.inf,
            published_source="Yu et al. 2023 claim no differential privacy for clustering",
            server_sees=SERVER_SEES,
        )
