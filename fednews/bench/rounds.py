"""Rounds of an experiment, timed, and compared in turn with what else could be done with the same samples."""

import contextlib
import copy
import resource
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from jsonargparse import Namespace
from lightning.pytorch import Callback, Trainer

from fednews.bench.evaluation import time_evaluation
from fednews.bench.floor import Floor, has_floor
from fednews.bench.reference import has_reference, plain_round
from fednews.config import dump
from fednews.data.cohort import Cohort, CohortSource, Draw
from fednews.experiment import build, pretrain, quiet
from fednews.federated.algorithms.base import Selection
from fednews.federated.clients import fused_gradient, trainable
from fednews.federated.loop import FederatedLoop
from fednews.heap import frozen_heap
from fednews.models.base import encode_by_length, few_words, words_of
from fednews.timing import Sections, unmeasured
from fednews.tracking.run import TrackedRun
from fednews.tracking.store import connect

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
SECTIONS = (
    "data", "news_encoder", "user_encoder", "backward", "privacy", "aggregation", "clients", "server_step", "logging",
)  # fmt: skip
_MATRIX = 1024
_WARMUP = 1


def bench_rounds(
    config: Namespace, rounds: int, clock: str, reference_samples: int, eval_impressions: int
) -> dict[str, object]:
    """Train ``rounds`` rounds of an experiment, with logging into a store that is thrown away, and time them.

    Args:
        config: from :func:`fednews.config.parse`.
        rounds: rounds to time, after one to warm up.
        clock: ``"wall"``, or ``"cpu"``: the process's own time, for machines that others use too.
        reference_samples: the plain loop stops after the client that reaches this many samples of a round; its time is
            scaled to the round's.
        eval_impressions: impressions to evaluate.

    Returns:
        Figures by name, medians over the rounds; see the README.
    """
    quiet()
    loop, data = build(config)
    pretrain(loop, data)
    data.eval_impressions = min(eval_impressions, data.eval_impressions or eval_impressions)
    measured = _Measured(CLOCKS[clock], reference_samples)
    with _throwaway_run(config, data.source.fingerprint) as run, measured.sections, frozen_heap():
        settings = {
            **vars(config.trainer),
            "max_steps": rounds + _WARMUP,
            "limit_val_batches": 0,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
        }
        Trainer(**settings, logger=run.logger, callbacks=[measured]).fit(loop, data)
    names = {part: config[part].class_path.rsplit(".", 1)[-1] for part in ("algorithm", "model", "aggregation")}
    about = {
        **names,
        "data": data.source.name,
        "rounds": rounds,
        "clock": clock,
        "threads": torch.get_num_threads(),
        "precision": config.trainer.precision or "32-true",
        "compile": config.compile,
    }
    return {**about, **measured.figures()}


@contextlib.contextmanager
def _throwaway_run(config: Namespace, fingerprint: str) -> Iterator[TrackedRun]:
    with tempfile.TemporaryDirectory() as folder:
        client = connect(f"sqlite:///{Path(folder) / 'mlflow.db'}")
        with TrackedRun.start(client, "bench", "bench", {}, dump(config), {}, fingerprint) as run:
            yield run


class _Measured(Callback):
    """Times whole rounds, from one start to the next, and runs what they are compared with in between."""

    def __init__(self, clock: Callable[[], float], reference_samples: int) -> None:
        self.clock = clock
        self.sections = Sections(clock)
        self.reference_samples = reference_samples
        self.values: dict[str, list[float]] = defaultdict(list)
        self.evaluation: dict[str, float] = {}
        self.peak = 0
        self._started: float | None = None

    def on_fit_start(self, trainer: Trainer, loop: FederatedLoop) -> None:
        self.floor = Floor(loop.model)
        self.central = copy.deepcopy(loop.model)
        self.optimizer = loop._optimizer(list(trainable(self.central).values()))
        begin = loop.algorithm.begin_round

        def remembered(source: CohortSource, selection: Selection) -> None:
            self.selection = selection
            begin(source, selection)

        loop.algorithm.begin_round = remembered

    def on_train_batch_start(self, trainer: Trainer, loop: FederatedLoop, batch: int, batch_idx: int) -> None:
        self._finish_round(loop)
        self._started = self.clock()

    def on_train_end(self, trainer: Trainer, loop: FederatedLoop) -> None:
        self._finish_round(loop)
        with unmeasured():
            self.evaluation = time_evaluation(loop, trainer.datamodule, self.clock)

    def _finish_round(self, loop: FederatedLoop) -> None:
        if self._started is None:
            return
        seconds, sections = self.clock() - self._started, dict(self.sections.seconds)
        self.sections.seconds.clear()
        self.peak = max(self.peak, peak_memory())
        with unmeasured():
            if loop.round > _WARMUP:
                self._record(loop, seconds, sections)
            elif len(self.selection.draw.client):
                self._central(loop, self.selection.draw)  # warm too

    def _record(self, loop: FederatedLoop, seconds: float, sections: dict[str, float]) -> None:
        draw = self.selection.draw
        cohort = loop.source.cohort(draw)
        rate = self._matrix_rate()
        found = {
            "round_seconds": seconds,
            "clients": len(cohort),
            "samples": len(draw.client),
            "news": len(cohort.news[loop.model.inputs[0]]),
            "histories": len(cohort.history),
            "matmul_gflops": rate,
            "round_over_central": seconds / self._central(loop, draw),
            **{f"{name}_seconds": sections.get(name, 0.0) for name in SECTIONS},
            "other_seconds": seconds - sum(sections.values()),
        }
        encoder, needed = self._news_encoder(loop, cohort)
        found |= {"news_encoder_gflops": needed / encoder / 1e9, "news_encoder_share": needed / encoder / rate / 1e9}
        if has_floor(loop.algorithm):
            gflop = self.floor.round(loop.algorithm, cohort, loop.aggregation.separate) / 1e9
            found |= {"floor_gflop": gflop, "achieved_gflops": gflop / seconds}
            found |= {"achieved_share": gflop / seconds / rate, "round_over_floor": seconds * rate / gflop}
        if has_reference(loop.algorithm):
            found["reference_over_round"] = self._reference(loop, draw) / seconds
        for name, value in found.items():
            self.values[name].append(value)

    def _timed(self, run: Callable[[], object]) -> float:
        started = self.clock()
        run()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return self.clock() - started

    def _matrix_rate(self) -> float:
        """GFLOP/s of a float32 product of square matrices, the best of three."""
        a = torch.randn(_MATRIX, _MATRIX)
        return 2 * _MATRIX**3 / min(self._timed(lambda: a @ a) for _ in range(3)) / 1e9

    def _central(self, loop: FederatedLoop, draw: Draw) -> float:
        """One central step on the samples of the round, from drawn rows to the optimiser."""
        loose = Draw(np.zeros(1, np.int64), np.zeros_like(draw.client), draw.impression, draw.candidates)

        def step() -> None:
            gradient = fused_gradient(self.central, loop.source.cohort(loose), "mean").updates
            for name, parameter in trainable(self.central).items():
                parameter.grad = gradient[name][0]
            self.optimizer.step()

        return self._timed(step)

    def _reference(self, loop: FederatedLoop, draw: Draw) -> float:
        ends = np.cumsum(np.bincount(draw.client, minlength=len(draw.clients)))
        kept = int(np.searchsorted(ends, self.reference_samples)) + 1
        part = draw.of_clients(np.arange(min(kept, len(ends))))
        seconds = self._timed(lambda: plain_round(loop.algorithm, loop.model, loop.source, part, loop.round - 1))
        return seconds * len(draw.client) / len(part.client)

    def _news_encoder(self, loop: FederatedLoop, cohort: Cohort) -> tuple[float, int]:
        """Seconds of the news encoder's forward and backward pass over the round's news, and operations needed."""
        parameters = list(trainable(loop.model).values())

        def both() -> None:
            with few_words(loop.model, words_of(loop.model, cohort.news)):
                vectors = encode_by_length(loop.model, cohort.news)
            if vectors.requires_grad:
                torch.autograd.grad(vectors, parameters, torch.ones_like(vectors), allow_unused=True)

        return self._timed(both), max(self.floor.news(cohort.news).total, 1)

    def figures(self) -> dict[str, object]:
        """Medians over the rounds."""
        middle = {name: statistics.median(values) for name, values in self.values.items()}
        seconds = {name: middle.pop(f"{name}_seconds") for name in (*SECTIONS, "other")}
        whole = sum(seconds.values())
        for name in ("clients", "samples"):
            middle[f"{name}_per_second"] = middle[name] / middle["round_seconds"]
        return {
            **middle,
            "rounds_per_second": 1 / middle["round_seconds"],
            "peak_memory_mb": self.peak / 2**20,
            "split": {name: value / whole for name, value in seconds.items()},
            **self.evaluation,
        }


def peak_memory() -> int:
    """The most bytes that the process has held: on the accelerator where it uses one, else resident."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
