"""A worker: a process that runs one trial after the other."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

import torch

from fednews.tracking.run import ending
from fednews.tracking.store import connect
from fednews.tuning.interrupts import Interrupts
from fednews.tuning.storage import StudyStorage
from fednews.tuning.study import SweepStudy
from fednews.tuning.sweep import Sweep
from fednews.tuning.trial import TrialRun


@dataclass(frozen=True)
class Job:
    """What a worker is told.

    Attributes:
        sweep, study, storage: what is searched, the study's name, and the storage's URL.
        parent: id of the sweep's tracked run.
        limit: begin no trial when the study has begun so many.
        deadline: begin no trial after this time (seconds since 1970).
        threads: of torch; None for its default.
        folder, tracking: working directory and tracking store.
        log: file for what it prints.
    """

    sweep: Sweep
    study: str
    storage: str
    parent: str
    limit: int
    deadline: float | None
    threads: int | None
    folder: Path
    tracking: str
    log: Path


def work(job: Job) -> None:
    """Run trials until there is none left, the time is up, or somebody interrupts."""
    interrupts = Interrupts()
    _settle(job, interrupts)
    client = connect()
    study = SweepStudy.join(job.sweep, StudyStorage(job.storage), job.study)
    while not interrupts.wanted and (job.deadline is None or time.time() < job.deadline):
        claim = study.claim(job.limit)
        if claim is None:
            return
        print(f"trial {claim.trial.number}: {claim.values}", flush=True)
        try:
            TrialRun(study, client, job.parent, claim, interrupts)()
        except BaseException as error:
            if ending(error) == "KILLED":
                return
            raise


def _settle(job: Job, interrupts: Interrupts) -> None:
    """Leave the launcher's terminal, but not the launcher itself."""
    os.setsid()  # Ctrl-C reaches the launcher alone, which then ends its workers in order
    interrupts.install()
    os.chdir(job.folder)
    os.environ["MLFLOW_TRACKING_URI"] = job.tracking
    log = os.open(job.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(log, stream.fileno())
    if job.threads:
        torch.set_num_threads(job.threads)
    threading.Thread(target=_follow_launcher, daemon=True).start()


def _follow_launcher() -> None:
    """Stop in order when the launcher is gone, however it went."""
    wait([multiprocessing.parent_process().sentinel])
    os.kill(os.getpid(), signal.SIGINT)
