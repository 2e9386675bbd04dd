"""FedNewsRec: FedSGD with element-wise clipping and Laplace noise on every upload (Qi et al. 2020)."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from fednews.aggregation.updates import Aggregate, ClientUpdates
from fednews.data.cohort import Cohort
from fednews.federated.algorithms.base import ClientSampling
from fednews.federated.clients import Reduction, client_gradients, gradients, trainable
from fednews.federated.round import Round
from fednews.models.base import NewsModel
from fednews.privacy.entry import LedgerEntry
from fednews.privacy.mechanisms import ClippedLaplace, NoiseGenerator
from fednews.streams import Streams
from fednews.timing import section
from fednews.types import Size


class FedNewsRec(ClientSampling):
    r"""Each drawn client uploads :math:`\mathrm{clip}(g_u, \delta) + \mathrm{La}(0, \lambda)` (eq. 4-5).

    The server descends the :math:`|B_u|`-weighted mean (eq. 6-7); pair it with ``torch.optim.SGD(lr=0.5)``.

    The text sums a client's losses (eq. 2) and weights by :math:`|B_u|` again in eq. 6; the authors' code takes the
    mean: ``loss`` chooses. Their code also adds the noise to uploaded weights after one local step of rate
    :math:`\eta`, which is this algorithm with ``noise_scale`` :math:`\lambda/\eta`.

    Args:
        clients_per_round: how many clients are drawn each round; below 1 it is the fraction r of all clients.
        clip: delta, the bound on every coordinate; null for none.
        noise_scale: lambda, the scale of the Laplace noise; 0 for none.
        loss: a client's loss is the sum (the text) or the mean (the code) over its samples.
        client_dropout: probability that a drawn client never answers.
        clients_at_once: clients whose own gradients are computed together, padded alike; null: on an accelerator 5,
            on a CPU none is padded.
    """

    def __init__(
        self,
        clients_per_round: float = 0.02,
        clip: float | None = 0.005,
        noise_scale: float = 0.015,
        loss: Reduction = "sum",
        client_dropout: float = 0.0,
        clients_at_once: Size | None = None,
    ) -> None:
        super().__init__(clients_per_round, client_dropout)
        self.mechanism = ClippedLaplace(clip, noise_scale)
        self.loss = loss
        self.clients_at_once = clients_at_once

    @property
    def releases_plain_sum(self) -> bool:
        """Whether updates are uploaded as they are, so that only their sum need be computed."""
        return self.mechanism.clip is None and self.mechanism.scale == 0

    def aggregate(self, model: NewsModel, cohort: Cohort | None, work: Round) -> Aggregate:
        sums = super().aggregate(model, cohort, work)
        if work.sums_only and self.mechanism.scale and cohort is not None:
            with section("privacy"):
                noise = work.streams.numpy("summed_upload_noise", work.number)
                self.mechanism.add_summed_noise(sums.total, cohort.counts, noise)
        return sums

    def client_updates(self, model: NewsModel, cohort: Cohort, work: Round) -> Iterator[ClientUpdates]:
        if self.releases_plain_sum:
            yield from gradients(model, cohort, self.loss, self.clients_at_once, work.separate)
            return
        device = cohort.clients.device
        for part in client_gradients(model, cohort, self.loss, self.clients_at_once):
            with section("privacy"):
                part = part.whole(trainable(model))
                if work.sums_only:
                    updates = self.mechanism.clipped(part.updates)
                else:
                    clients = cohort.clients[part.clients].tolist()
                    noise = [self.noise_generator(work.streams, work.number, client, device) for client in clients]
                    updates = self.mechanism(part.updates, noise)
            yield replace(part, updates=updates)

    def noise_generator(self, streams: Streams, round_: int, client: int, device: torch.device) -> NoiseGenerator:
        """A client's own stream, so that its noise does not depend on who is computed together."""
        if device.type == "cpu":
            return streams.numpy("upload_noise", round_, client)
        return streams.torch("upload_noise", round_, client, device=device)

    def release(self, coordinates: int) -> LedgerEntry:
        return self.mechanism.entry(coordinates)
