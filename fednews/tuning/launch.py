"""``fednews sweep``: launch a sweep, or go on with it."""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from optuna.trial import TrialState

from fednews.errors import FednewsError, UsageError
from fednews.tracking.reaper import close_dead_run, close_dead_runs
from fednews.tracking.run import TrackedRun
from fednews.tracking.store import clear_errors, connect
from fednews.tuning import server
from fednews.tuning.crew import Crew
from fednews.tuning.parent import parent_run
from fednews.tuning.report import summary, write_report
from fednews.tuning.storage import FOLDER, StudyStorage, journal_of
from fednews.tuning.study import SweepStudy
from fednews.tuning.sweep import Sweep
from fednews.tuning.table import LiveTable
from fednews.tuning.worker import Job

if TYPE_CHECKING:
    from mlflow import MlflowClient


def run_sweep(
    path: str | Path,
    arguments: Sequence[str] = (),
    trials: int | None = None,
    workers: int = 1,
    storage: str | None = None,
    timeout: float | None = None,
) -> None:
    """Run a sweep's trials until the study has as many as it should have, whoever ran the first of them.

    Args:
        path: the sweep's YAML file.
        arguments: further options of ``fednews train``, as layers over the file's experiment.
        trials: how many trials the study has in the end; by default what the file says.
        workers: processes that run trials at the same time.
        storage: ``postgresql://…`` or a journal's path; by default a journal under ``mlruns/sweeps``.
        timeout: begin no trial after so many seconds.

    Raises:
        UsageError: a wrong sweep, found before anything runs.
        FednewsError: no trial succeeded, or a store or worker failed.
    """
    if workers < 1 or (trials is not None and trials < 1):
        raise UsageError("--workers and --trials must be at least 1")
    server.prepare()
    deadline = None if timeout is None else time.time() + timeout
    study = open_study(path, arguments, storage, create=True)
    sweep, limit = study.sweep, trials or study.sweep.trials
    client = connect()
    close_dead_runs(client)
    _free(client, study)
    print(f"study {study.study.study_name}: {study.finished()} of {limit} trials finished", flush=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        with parent_run(client, study, Path(path), limit) as run, LiveTable(study, limit) as table:
            job = Job(
                sweep, study.study.study_name, study.storage.url, run.run_id, limit, deadline, _threads(workers),
                Path.cwd(), client.tracking_uri, FOLDER / study.study.study_name,
            )  # fmt: skip
            Crew(study, job, workers, table.update).run(lambda: _free(client, study))
            write_report(study, run)
    except (KeyboardInterrupt, SystemExit):
        print(f"\nstopped; the same command goes on: fednews sweep {path}", file=sys.stderr)
        raise
    print(summary(study))
    if not study.trials(TrialState.COMPLETE, TrialState.PRUNED) and (failed := study.trials(TrialState.FAIL)):
        raise FednewsError(f"all {len(failed)} trials failed; the first: {failed[0].user_attrs.get('error')}")


def redraw(path: str | Path, arguments: Sequence[str] = (), storage: str | None = None) -> str:
    """Write report and figures of a study as it is now into its tracked run; returns the summary."""
    study = open_study(path, arguments, storage)
    client = connect()
    if study.run_id is None:
        raise UsageError(f"study {study.study.study_name} has not run yet")
    with clear_errors(client.tracking_uri):
        run = client.get_run(study.run_id)
    write_report(study, TrackedRun(client, study.run_id, run.info.artifact_uri))
    return summary(study)


def open_study(
    path: str | Path, arguments: Sequence[str] = (), storage: str | None = None, create: bool = False
) -> SweepStudy:
    """The study of a sweep file.

    Raises:
        UsageError: a wrong file, or no such study where none is to be created.
    """
    sweep = Sweep.read(path, arguments)
    return SweepStudy.open(sweep, StudyStorage(storage or journal_of(sweep.name)), create)


def _free(client: "MlflowClient", study: SweepStudy) -> None:
    """Give trials of dead processes back, and close what they left open in the tracking store."""
    for trial in study.take_from_the_dead():
        status = "FAILED" if trial.state == TrialState.FAIL else "KILLED"
        for run_id in {trial.user_attrs.get("run_id"), *trial.user_attrs.get("runs", {}).values()} - {None}:
            with clear_errors(client.tracking_uri):
                run = client.get_run(run_id)
            if run.info.status != "FINISHED":
                close_dead_run(client, run, status)
            if status == "FAILED":
                with clear_errors(client.tracking_uri):
                    client.set_tag(run_id, "fednews.error", trial.user_attrs["error"])


def _threads(workers: int) -> int | None:
    """Threads for each worker: together as many as there are cores, unless somebody has decided it."""
    if workers == 1 or "OMP_NUM_THREADS" in os.environ:
        return None
    return max(1, (os.cpu_count() or 1) // workers)
