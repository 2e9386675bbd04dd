"""The workers of one launcher: started, watched, replaced when they die, and stopped."""

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from optuna.trial import TrialState

from fednews.errors import FednewsError
from fednews.tuning.study import SweepStudy
from fednews.tuning.worker import Job, work

TICK_SECONDS = 0.5
STOP_SECONDS = 60.0
MOST_KILLS = 3


class Crew:
    """Keeps ``workers`` processes at work on a study until its trials have been begun.

    Processes are forked from a server that has everything imported and nothing running, so that one costs a fraction
    of a second. Each has a session of its own, and ends by itself when the launcher does.

    Args:
        study: the study.
        job: what each worker is told; its log's name gets the worker's number.
        workers: how many.
        tick: called again and again while they work.
    """

    def __init__(self, study: SweepStudy, job: Job, workers: int, tick: Callable[[], None]) -> None:
        self._study, self._job, self._tick = study, job, tick
        self._processes: dict[int, BaseProcess | None] = dict.fromkeys(range(workers))
        self._kills = 0
        self._finished = -1

    def run(self, free: Callable[[], None]) -> None:
        """Work until no trial is left to begin and every worker has ended.

        Args:
            free: gives trials of dead processes back to the study.

        Raises:
            FednewsError: a worker failed outside its trials, or they are killed again and again.
        """
        try:
            while True:
                self._collect(free)
                if self._work_left():
                    self._fill()
                self._tick()
                if not (alive := self._alive()):
                    return
                wait([process.sentinel for process in alive], TICK_SECONDS)
        finally:
            self._stop()

    def _alive(self) -> list[BaseProcess]:
        return [process for process in self._processes.values() if process is not None]

    def _collect(self, free: Callable[[], None]) -> None:
        for place, process in self._processes.items():
            if process is None or process.exitcode is None:
                continue
            process.join()
            self._processes[place] = None
            if process.exitcode > 0:
                raise FednewsError(f"worker {place} failed: {_last_line(self._log(place))} (see {self._log(place)})")
            if process.exitcode < 0:
                self._count_kill(-process.exitcode)
        free()

    def _count_kill(self, number: int) -> None:
        finished = self._study.finished()
        self._kills = self._kills + 1 if finished == self._finished else 1
        self._finished = finished
        if self._kills > MOST_KILLS * len(self._processes):
            raise FednewsError(f"workers are killed again and again (signal {number}): is there enough memory?")

    def _work_left(self) -> bool:
        if self._job.deadline is not None and time.time() >= self._job.deadline:
            return False
        begun = sum(trial.state != TrialState.WAITING for trial in self._study.trials())
        return begun < self._job.limit

    def _fill(self) -> None:
        context = multiprocessing.get_context("forkserver")
        for place, process in self._processes.items():
            if process is None:
                new = context.Process(target=work, args=(replace(self._job, log=self._log(place)),), daemon=False)
                new.start()
                self._processes[place] = new

    def _log(self, place: int) -> Path:
        return self._job.log.with_name(f"{self._job.log.name}.worker-{place}.log")

    def _stop(self) -> None:
        """Let workers hand their trials back; a second interrupt, or a minute, ends them at once."""
        for process in self._alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGINT)
        deadline = time.monotonic() + STOP_SECONDS
        try:
            for process in self._alive():
                process.join(max(0.0, deadline - time.monotonic()))
        finally:
            for process in self._alive():
                process.kill()
                process.join()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1] if lines else "it left no message"
