"""The device: holds what a user read and the user model, and lets out noisy weights only (Liu et al. 2022)."""

import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fednews.errors import UsageError
from fednews.models.private import PrivateRecModel
from fednews.privacy.accounting import Accounted
from fednews.privacy.history_padding import HistoryPadding
from fednews.privacy.private_attention import PrivateAttention
from fednews.serving.budget import BudgetGuard


@dataclass(frozen=True)
class DeviceModel:
    """The part of the trained model that makes weights of a history.

    Attributes:
        interests: the user encoder: histories ``[R, H, d]``, mask ``[R, H]``, user indices ``[R]`` -> u ``[R, d]``.
        basis: basis vectors ``[B, d]``.
        anonymous: r_0 ``[d]``, which stands in for padded clicks.
    """

    interests: Callable[[Tensor, Tensor, Tensor], Tensor]
    basis: Tensor
    anonymous: Tensor

    @classmethod
    def of(cls, model: PrivateRecModel) -> "DeviceModel":
        """The part of ``model``, which is in eval mode."""
        with torch.no_grad():
            return cls(model.interests, model.basis.detach(), model.anonymous_news())

    @torch.no_grad()
    def private_weights(
        self, history: Tensor, mask: Tensor, user: Tensor, mechanism: PrivateAttention, generator: torch.Generator
    ) -> Tensor:
        """What leaves the devices, ``[R, B]``: of padded histories, clipped and noised (Algorithm 2)."""
        padded = HistoryPadding(mechanism.padding)(history, mask, self.anonymous, generator)
        return mechanism(self.interests(padded, mask, user), self.basis, generator)

    @torch.no_grad()
    def clean_weights(self, history: Tensor, mask: Tensor, user: Tensor, mechanism: PrivateAttention) -> Tensor:
        """The same without padding and noise; these never leave a device."""
        return mechanism.normalised(mechanism.clean(self.interests(history, mask, user), self.basis))


@dataclass(frozen=True)
class Query:
    """What a device sends.

    Attributes:
        attention: weights ``[B]``, between 0 and 1 with sum 1.
        published: the paper's epsilon of this query.
        accounted: what this query really guarantees.
        total: what all queries of this device guarantee together, this one included.
    """

    attention: Tensor
    published: float
    accounted: Accounted
    total: Accounted


class DeviceClient:
    """One user's device.

    Every query is a release of its own with fresh noise. Noise is seeded from the operating system's entropy: whoever
    could guess a seed could take the noise off.

    Args:
        model: the deployed part of the model.
        vectors: the device's copy of news vectors, by id.
        history: ids of what the user read, oldest first.
        mechanism: makes the weights private.
        guard: the device's account, which refuses what would spend too much.
        history_length: latest clicks that the model sees.

    Raises:
        UsageError: the history names an unknown news, or the mechanism is made for another number of basis vectors.
    """

    def __init__(
        self,
        model: DeviceModel,
        vectors: Mapping[str, Tensor],
        history: Sequence[str],
        mechanism: PrivateAttention,
        guard: BudgetGuard,
        history_length: int = 50,
    ) -> None:
        if mechanism.basis != len(model.basis):
            raise UsageError(f"the noise is made for {mechanism.basis} weights, the model has {len(model.basis)}")
        self.model = model
        self.mechanism = mechanism
        self.guard = guard
        self.history = tuple(history)[-history_length:]
        if unknown := next((news for news in self.history if news not in vectors), None):
            raise UsageError(f"the history names '{unknown}', which is not in the catalogue")
        clicks = [vectors[news] for news in self.history] or [torch.zeros_like(model.anonymous)]
        self._clicks = torch.stack(clicks)[None]
        self._mask = torch.full((1, len(clicks)), bool(self.history))

    @property
    def multiplicity(self) -> int:
        """How often the article that occurs most often is in the history; padding hides it less well."""
        return max(Counter(self.history).values(), default=1)

    def query(self) -> Query:
        """Make one query, and write down what it spends before it exists.

        Raises:
            BudgetExceeded: it would spend more than the total.
        """
        entry = self.mechanism.entry(self.multiplicity)
        total = self.guard.spend(entry)
        generator = torch.Generator().manual_seed(secrets.randbits(63))
        attention = self.model.private_weights(self._clicks, self._mask, _UNKNOWN, self.mechanism, generator)[0]
        return Query(attention, entry.published_epsilon, self.mechanism.epsilon_accounted(self.multiplicity), total)

    def clean(self) -> Tensor:
        """The weights ``[B]`` without padding and noise, for the device itself."""
        return self.model.clean_weights(self._clicks, self._mask, _UNKNOWN, self.mechanism)[0]


_UNKNOWN = torch.zeros(1, dtype=torch.long)
