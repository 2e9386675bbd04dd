"""The federated loop: one round is one training step of a Lightning ``Trainer``."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from fednews.aggregation.base import Aggregation
from fednews.aggregation.plain import Plain
from fednews.aggregation.secagg.errors import TooFewClients
from fednews.aggregation.updates import Aggregate, ClientUpdates
from fednews.data.cohort import CohortSource
from fednews.data.module import NewsDataModule
from fednews.errors import FednewsError, UsageError
from fednews.evaluation.scorers import Catalogue, Scorer
from fednews.federated.ahead import Ahead, Prepared
from fednews.federated.algorithms.base import Algorithm, Selection
from fednews.federated.clients import trainable
from fednews.federated.costs import RoundCosts
from fednews.federated.round import NewsUnion, Round
from fednews.models.recommender import Recommender
from fednews.privacy.ledger import READINGS, SCOPES, PrivacyLedger
from fednews.streams import Streams
from fednews.timing import section


class FederatedLoop(Recommender):
    """A recommender whose training step is a round of a federated method.

    A round draws its clients from (seed, round counter), lets the algorithm compute their updates, sums them over
    clients and processes, and writes the mean update to ``.grad``; the optimiser, schedules, clipping, precision and
    checkpoints are then Lightning's own.

    Args:
        algorithm: the federated method.
        aggregation: how client updates travel to their sum.
        streams: the experiment's random streams.
        delta: the delta at which (epsilon, delta) figures are stated.
        model, optimizer, scheduler: as for :class:`~fednews.models.recommender.Recommender`.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        streams: Streams,
        delta: float,
        aggregation: Aggregation | None = None,
        **recommender,
    ) -> None:
        super().__init__(**recommender)
        self.algorithm = algorithm
        self.aggregation = aggregation or Plain()
        algorithm.check_parts(self.model, self.aggregation)
        self.streams = streams
        self.delta = delta
        self.round = 0
        self.ledger: PrivacyLedger | None = None
        self._update: dict[str, Tensor] | None = None

    def setup(self, stage: str) -> None:
        if stage == "fit":
            if self.trainer.world_size > 1 and (self.aggregation.separate or self.algorithm.one_process):
                part = self.aggregation if self.aggregation.separate else self.algorithm
                raise UsageError(f"{type(part).__name__} runs in one process: set trainer.devices to 1")
            self.prepare(self.trainer.datamodule)

    def prepare(self, data: NewsDataModule) -> None:
        """Build what rounds and personal evaluation need beside the model."""
        self.source: CohortSource = data.cohorts()
        self.ledger = PrivacyLedger(self.source.samples.clients)
        self.algorithm.setup(self.model, self.source, self._optimizer)
        self._ahead = Ahead(self._prepared)

    def teardown(self, stage: str) -> None:
        if stage == "fit":
            self._ahead.close()

    def parameter_groups(self) -> list:
        return self.algorithm.parameter_groups(self.model)

    def scorer(self, catalogue: Catalogue) -> Scorer:
        return self.algorithm.scorer(self.model, catalogue)

    def on_train_batch_start(self, batch: int, batch_idx: int) -> None:
        self._started = time.perf_counter()
        self._costs = RoundCosts()

    def training_step(self, batch: int, batch_idx: int) -> Tensor:
        with self._costs.clock("simulation"):
            selection, aggregate, attempt = self._attempts()
            loss = self._checked_loss(aggregate)
            with self._costs.clock("server"):
                self._update = aggregate.mean() if len(selection.participants) else None
            self._record(selection)
        self._metrics = {
            "loss": loss,
            "clients": len(selection.participants),
            "samples": int(aggregate.samples),
            **self._costs.traffic(),
        }
        if self.aggregation.retries:
            self._metrics["retries"] = attempt
        # Advanced here and not in a later hook, so that a checkpoint written after this step names the next round.
        self.round += 1
        return torch.tensor(loss, device=self.device)

    def _attempts(self) -> tuple[Selection, Aggregate, int]:
        """Compute the round, with other clients where too few are left to sum over.

        Returns:
            Who worked, their sums, and how many attempts were aborted before.

        Raises:
            FednewsError: too few clients in all attempts.
        """
        retries = self.aggregation.retries if self.algorithm.repeatable else 0
        for attempt in range(1 + retries):
            with section("data"):
                work = self._ahead.take(self.round) if not attempt else self._prepared(self.round, attempt)
                self.algorithm.begin_round(self.source, work.selection)
                if not attempt and self.algorithm.ahead and self.round + 1 < self.trainer.max_steps:
                    self._ahead.start(self.round + 1)
            try:
                return work.selection, self._client_work(work, attempt), attempt
            except TooFewClients as error:
                self._count_traffic(work.selection, summed=False)
                last = error
        raise FednewsError(
            f"round {self.round} was aborted in all of {1 + retries} attempts: {last}. Invite more clients "
            "(algorithm.clients_per_round), or set aggregation.retries, threshold or min_clients otherwise"
        )

    def _prepared(self, number: int, attempt: int = 0) -> Prepared:
        selection = self.algorithm.select(self.source.attempt(attempt), number)
        draw = self.algorithm.share(selection.draw, self.trainer.global_rank, self.trainer.world_size)
        if not len(draw.client):
            return Prepared(selection, None)
        cohort = self.source.cohort(draw)
        return Prepared(selection, cohort.pinned() if self.device.type == "cuda" else cohort)

    def _client_work(self, work: Prepared, attempt: int) -> Aggregate:
        with section("data"):
            cohort = work.cohort.to(self.device) if work.cohort is not None else None
        dropout = self.streams.torch_global("model_dropout", self.round, self.trainer.global_rank)
        with section("clients"), self._costs.clock("client"), dropout:
            aggregate = self.algorithm.aggregate(self.model, cohort, self._work(self.round, attempt))
        self._count_traffic(work.selection, summed=True)
        return aggregate

    def _work(self, number: int, attempt: int = 0) -> Round:
        return Round(
            number=number,
            streams=self.streams,
            separate=self.aggregation.separate,
            sum=self._sum,
            sums_only=self.aggregation.sums_only,
            union=self._union,
            attempt=attempt,
            costs=self._costs,
        )

    def _sum(self, parts: Iterable[ClientUpdates]) -> Aggregate:
        like = self.algorithm.communicated(self.model)
        with section("aggregation"), self._costs.clock("aggregation"):
            aggregate = self.aggregation.sum(self._costs.timed(parts), like, self.streams, self.round)
        self._count_protocol("aggregation")
        if self.trainer.world_size > 1:
            tensors = aggregate.tensors()
            summed = self.sum_over_processes(torch.cat([t.double().flatten() for t in tensors]))
            for tensor, part in zip(tensors, summed.split([t.numel() for t in tensors]), strict=True):
                tensor.copy_(part.view_as(tensor))
        return aggregate

    def _union(self, touched: Sequence[np.ndarray], catalogue: int) -> NewsUnion:
        with self._costs.clock("aggregation"):
            seen = self.aggregation.count_news(touched, catalogue, self.streams, self.round)
        self._count_protocol("union")
        if self.trainer.world_size > 1:
            seen = self.sum_over_processes(torch.from_numpy(seen)).cpu().numpy()
        revealed = self.aggregation.reveals_counts
        own = np.bincount(np.concatenate([np.zeros(0, np.int64), *touched]), minlength=catalogue)
        return NewsUnion(seen, seen if revealed else own, revealed)

    def _count_protocol(self, kind: str) -> None:
        if (traffic := self.aggregation.traffic()) is not None:
            self._costs.carry(kind, *traffic)

    def _checked_loss(self, aggregate: Aggregate) -> float:
        loss = float(aggregate.loss / aggregate.samples.clamp(min=1))
        if not math.isfinite(loss):
            raise FednewsError(f"the loss became {loss} in round {self.round}: lower optimizer.lr or clip the updates")
        return loss

    def _record(self, selection: Selection) -> None:
        coordinates = sum(part.numel() for part in self.algorithm.communicated(self.model).values())
        entry = self.aggregation.covers(self.algorithm.release(coordinates))
        self.ledger.record(entry, selection.participants, self.round)
        self._record_others(self.round)

    def _record_others(self, number: int) -> None:
        for entry, clients in self.algorithm.releases():
            self.ledger.record(entry, clients, number)

    def _count_traffic(self, selection: Selection, summed: bool) -> None:
        """Count the attempt's messages; updates of an aborted one, and masked or encrypted ones, are not theirs."""
        messages = self.algorithm.messages(self.model, selection)
        if not summed or self.aggregation.separate:
            messages = replace(messages, up=dict.fromkeys(messages.up, 0))
        self._costs.send(messages)

    def _privacy(self) -> dict[str, float]:
        return {
            f"epsilon_{'round_' if scope == 'round' else ''}{reading}": self.ledger.epsilon(reading, scope, self.delta)
            for scope in SCOPES
            for reading in READINGS
        }

    def backward(self, loss: Tensor, *args, **kwargs) -> None:
        """Write the aggregated update where the optimiser looks; without an update the optimiser skips the round."""
        for name, parameter in trainable(self.model).items():
            update = None if self._update is None else self._update.get(name)
            parameter.grad = None if update is None else update.to(parameter.dtype)

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Optimizer, optimizer_closure: Callable) -> None:
        with self._costs.clock("server"):  # less the step, which has clocks of its own
            with section("server_step"):
                super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
            # Not in on_train_batch_end: callbacks write their checkpoints before that.
            done = self.round - 1
            self.algorithm.finish_round(self.model, optimizer, self._work(done))
        self._record_others(done)

    def on_train_batch_end(self, outputs: object, batch: int, batch_idx: int) -> None:
        seconds = time.perf_counter() - self._started
        self._metrics |= self._costs.times() | {"round_seconds": seconds}
        self._metrics |= self._privacy() | self.algorithm.metrics() | self.aggregation.metrics()
        self.publish(self._metrics, self.round)

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        checkpoint["federated"] = {
            "round": self.round,
            "seed": self.streams.seed,
            "algorithm": self.algorithm.state_dict(),
            "ledger": self.ledger.state_dict(),
        }

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        state = checkpoint["federated"]
        if state["seed"] != self.streams.seed:
            raise FednewsError(f"the checkpoint was made with seed {state['seed']}, not {self.streams.seed}")
        self.round = state["round"]
        self.algorithm.load_state_dict(state["algorithm"])
        self.ledger.load_state_dict(state["ledger"])
