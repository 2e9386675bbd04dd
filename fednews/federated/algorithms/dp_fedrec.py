"""DP-FedRec, PrivateRec's baseline in training: noisy gradients for a budget (Liu et al. 2022, section 4.1)."""

import math

from fednews.errors import UsageError
from fednews.federated.algorithms.fednewsrec import FedNewsRec
from fednews.federated.clients import Reduction
from fednews.types import Size


class DPFedRec(FedNewsRec):
    """FedNewsRec's rounds with the Laplace noise that its formula, 2 * clip / scale, gives for ``epsilon``.

    At ``epsilon`` infinity gradients are neither clipped nor noised. The baseline's serving is
    :class:`fednews.privacy.user_embedding.PrivateEmbedding`.

    Args:
        clients_per_round: how many clients are drawn each round; below 1 it is the fraction r of all clients.
        epsilon: budget by the paper's formula: of one coordinate in one round; the ledger accounts for all of them.
        clip: theta, the bound on every coordinate.
        loss: a client's loss is the sum or the mean over its samples.
        client_dropout: probability that a drawn client never answers.
        clients_at_once: clients whose own gradients are computed together, padded alike; null: on an accelerator 5,
            on a CPU none is padded.
    """

    def __init__(
        self,
        clients_per_round: float = 0.01,
        epsilon: float = 10.0,
        clip: float = 0.005,
        loss: Reduction = "mean",
        client_dropout: float = 0.0,
        clients_at_once: Size | None = None,
    ) -> None:
        if not epsilon > 0:
            raise UsageError(f"algorithm.epsilon must be above 0 (.inf for no noise), not {epsilon}")
        noiseless = math.isinf(epsilon)
        super().__init__(
            clients_per_round,
            None if noiseless else clip,
            0.0 if noiseless else 2 * clip / epsilon,
            loss,
            client_dropout,
            clients_at_once,
        )
