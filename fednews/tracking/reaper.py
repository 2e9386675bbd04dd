"""Closing runs whose process died without a word (SIGKILL, power, out of memory)."""

import socket
from typing import TYPE_CHECKING

import psutil

from fednews.tracking.lookup import search
from fednews.tracking.store import clear_errors

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

# A process's start time is reckoned from the boot time, which shifts when the clock is corrected. A number
# given to another process within a minute of its first owner's start is out of the question.
CLOCK_SECONDS = 60.0
LIMIT = 100_000


def close_dead_runs(client: "MlflowClient") -> list[str]:
    """End as KILLED the RUNNING runs of this host whose process is gone; returns their ids.

    Their end is when they last logged a metric: nobody knows better, and now may be days later.
    Runs of other hosts, and runs that fednews did not start, are left alone.
    """
    closed = []
    for run in search(client, "attributes.status = 'RUNNING'", LIMIT):
        if is_alive(run) is not False:
            continue
        with clear_errors(client.tracking_uri):
            # It may have ended properly since it was listed.
            if client.get_run(run.info.run_id).info.status != "RUNNING":
                continue
        close_dead_run(client, run)
        closed.append(run.info.run_id)
    return closed


def close_dead_run(client: "MlflowClient", run: "Run", status: str = "KILLED") -> None:
    """End a run whose process is known to be gone, at the time when it last logged a metric."""
    with clear_errors(client.tracking_uri):
        client.set_tag(run.info.run_id, "fednews.closed_by", "reaper: the run's process no longer exists")
        client.set_terminated(run.info.run_id, status, end_time=_last_sign(run))


def _last_sign(run: "Run") -> int:
    return max((metric.timestamp for metric in run.data.to_proto().metrics), default=run.info.start_time)


def is_alive(run: "Run") -> bool | None:
    """Whether the run's process still exists; None when that cannot be seen from this host."""
    tags = run.data.tags
    if tags.get("fednews.host") != socket.gethostname():
        return None
    try:
        pid, started = int(tags["fednews.pid"]), float(tags["fednews.process_started"])
    except (KeyError, ValueError):
        return None
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return abs(process.create_time() - started) < CLOCK_SECONDS
    except psutil.NoSuchProcess:
        return False
