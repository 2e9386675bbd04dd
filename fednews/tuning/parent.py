"""The sweep's own tracked run, under which its trials are nested."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from optuna.trial import TrialState

from fednews.errors import FednewsError
from fednews.tracking.reaper import is_alive
from fednews.tracking.run import TrackedRun
from fednews.tracking.store import clear_errors, hide_password
from fednews.tuning.study import SweepStudy

if TYPE_CHECKING:
    from mlflow import MlflowClient


@contextlib.contextmanager
def parent_run(client: "MlflowClient", study: SweepStudy, path: Path, limit: int) -> Iterator[TrackedRun]:
    """The run of the sweep while the block runs: begun, taken up again, or shared with a launcher that has it now.

    It ends as FINISHED when ``limit`` trials have finished, and as KILLED when some are left for another time.
    """
    with study.storage.lock():
        run, ours = _find(client, study, path)
    with run if ours else contextlib.nullcontext():
        yield run
    finished = study.finished()
    if finished >= limit or ours:
        count = {state.name.lower(): len(study.trials(state)) for state in TrialState if state.is_finished()}
        run.log_metrics({f"trials_{name}": number for name, number in count.items()}, finished)
        with clear_errors(client.tracking_uri):
            client.set_terminated(run.run_id, "FINISHED" if finished >= limit else "KILLED")


def _find(client: "MlflowClient", study: SweepStudy, path: Path) -> tuple[TrackedRun, bool]:
    """The run, and whether it is this process that ends it."""
    known = study.study.user_attrs.get("run_id")
    if known is None:
        run = _begin(client, study, path)
        study.study.set_user_attr("run_id", run.run_id)
        return run, True
    try:
        with clear_errors(client.tracking_uri):
            found = client.get_run(known)
    except FednewsError:
        raise FednewsError(
            f"study {study.study.study_name} is tracked as run {known}, which is not in "
            f"{hide_password(client.tracking_uri)}: set MLFLOW_TRACKING_URI to where it began, "
            "or give the sweep another name"
        ) from None
    if found.info.status == "RUNNING" and is_alive(found) is not False:
        return TrackedRun(client, known, found.info.artifact_uri), False
    return TrackedRun.resume(client, known), True


def _begin(client: "MlflowClient", study: SweepStudy, path: Path) -> TrackedRun:
    sweep, content = study.sweep, study.study.user_attrs["content"]
    keys = ", ".join(parameter.key for parameter in sweep.space)
    goals = " and ".join(f"{direction} {metric}" for metric, direction in sweep.objectives.items())
    space = dict(line.split(": ", 1) for line in content["space"].split("; "))
    config = {
        "space": space,
        "objectives": sweep.objectives,
        "constraints": sweep.constraints,
        "sampler": sweep.sampler,
        "pruner": sweep.pruner,
        "seeds": list(sweep.seeds),
        "experiment": sweep.base,
    }
    return TrackedRun.start(
        client,
        sweep.name,
        f"sweep-{study.study.study_name}",
        config,
        path.read_text(),
        {"fednews.sweep": study.study.study_name},
        content["data"],
        note=f"sweep over {keys} to {goals}",
    )
