"""What the server does once the shares are there: open seeds and remove the masks that are left in the sum."""

from functools import lru_cache

import numpy as np

from fednews.aggregation.secagg.errors import MessageRefused, TooFewClients
from fednews.aggregation.secagg.graph import Graph
from fednews.aggregation.secagg.keys import KeyPair
from fednews.aggregation.secagg.masks import add_mask, commitment, pair_mask_key, self_mask_key, subtract_mask
from fednews.aggregation.secagg.shares import Opening


class Unmasking:
    """Removes masks from the sum of the survivors' masked inputs.

    Args:
        graph: who masked with whom.
        transcript: hash of all keys.
        survivors: whose masked inputs are in the sum.
        mask_keys: each member's public mask key.
        commitments: to the self-mask seeds, of those who shared their seeds; they may be in others' masks.
    """

    def __init__(
        self,
        graph: Graph,
        transcript: bytes,
        survivors: frozenset[int],
        mask_keys: dict[int, bytes],
        commitments: dict[int, bytes],
    ) -> None:
        self._graph, self._transcript, self._survivors = graph, transcript, survivors
        self._mask_keys, self._commitments = mask_keys, commitments
        self._opening = lru_cache(Opening)  # on the full graph all secrets have the same holders

    def apply(self, masked: np.ndarray, revealed: dict[int, dict[int, bytes]]) -> np.ndarray:
        """The sum without masks.

        Args:
            masked: ring elements ``[length]``.
            revealed: shares by owner and holder; of a survivor's self-mask seed, else of the mask key's seed.

        Raises:
            TooFewClients: an owner's shares are fewer than the threshold.
            MessageRefused: opened seeds are not those that were committed to.
        """
        total = masked.copy()
        for owner in sorted(self._commitments):
            seed = self._open(owner, revealed.get(owner, {}))
            if owner in self._survivors:
                self._remove_self_mask(total, owner, seed)
            else:
                self._remove_pair_masks(total, owner, seed)
        return total

    def _open(self, owner: int, parts: dict[int, bytes]) -> bytes:
        threshold = self._graph.threshold
        if len(parts) < threshold:
            raise TooFewClients(
                f"the round is aborted: {len(parts)} holders of client {owner}'s seeds are left and {threshold} are "
                "needed; draw another group"
            )
        holders = sorted(parts)[:threshold]
        places = {holder: place for place, holder in enumerate(self._graph.holders(owner), start=1)}
        opening = self._opening(tuple(places[holder] for holder in holders))
        return opening.open([parts[holder] for holder in holders])

    def _remove_self_mask(self, total: np.ndarray, owner: int, seed: bytes) -> None:
        if commitment(seed) != self._commitments[owner]:
            raise MessageRefused(f"the shares of client {owner}'s self mask are wrong: the sum cannot be opened")
        subtract_mask(total, self_mask_key(seed, self._transcript))

    def _remove_pair_masks(self, total: np.ndarray, owner: int, seed: bytes) -> None:
        keys = KeyPair(seed)
        if keys.public != self._mask_keys[owner]:
            raise MessageRefused(f"the shares of client {owner}'s mask key are wrong: the sum cannot be opened")
        for peer in self._survivors.intersection(self._graph.neighbours(owner)):
            remove = subtract_mask if peer < owner else add_mask
            remove(total, pair_mask_key(keys.agree(self._mask_keys[peer]), self._transcript))
