"""Lists of runs, and plain tables for the terminal."""

import datetime
import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fednews.errors import UsageError
from fednews.tracking.lookup import number, search
from fednews.tracking.store import clear_errors

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

STATUSES = ("RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED")
COLUMNS = (
    "run", "experiment", "name", "status", "started", "duration", "rounds", "val_auc", "epsilon_accounted", "model",
    "algorithm", "data",
)  # fmt: skip
ID_LENGTH = 8
ABSENT = "-"


def list_runs(
    client: "MlflowClient", limit: int = 20, experiment: str | None = None, status: str | None = None
) -> list[dict[str, Any]]:
    """List the newest runs, one dictionary with the keys ``COLUMNS`` and ``run_id`` each.

    ``started`` is a local ``datetime``, ``duration`` in seconds (until now while it runs), ``rounds`` the
    step of the last loss (a record's step is the number of rounds done), ``val_auc`` and ``epsilon_accounted``
    the last ones. What a run lacks is None.
    ``model``, ``algorithm`` and ``data`` come from the tags ``fednews.model`` …, else from the parameters.

    Raises:
        UsageError: unknown status, or no experiment of that name.
        FednewsError: the store fails.
    """
    if status is not None and status.upper() not in STATUSES:
        raise UsageError(f"unknown status '{status}': one of {', '.join(STATUSES)}")
    known = _experiment_names(client)
    wanted = None
    if experiment is not None:
        wanted = next((key for key, name in known.items() if name == experiment), None)
        if wanted is None:
            raise UsageError(f"no experiment '{experiment}': there are {', '.join(sorted(known.values()))}")
    condition = f"attributes.status = '{status.upper()}'" if status else ""
    return [_row(run, known) for run in search(client, condition, limit, wanted)]


def format_runs(runs: Sequence[Mapping[str, Any]]) -> str:
    """Render the rows of ``list_runs`` as a table, or a sentence when there are none."""
    if not runs:
        return "no runs yet: `fednews train --config FILE` makes one"
    shown = [
        {
            **run,
            "started": f"{run['started']:%Y-%m-%d %H:%M}" if run["started"] else None,
            "duration": format_duration(run["duration"]),
        }
        for run in runs
    ]
    return format_table(shown, COLUMNS)


def format_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Render ``rows`` with fixed widths: floats with four decimals, numbers to the right, ``-`` for None."""
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    right = [any(isinstance(row.get(column), int | float) for row in rows) for column in columns]

    def line(texts: Sequence[str]) -> str:
        padded = (
            text.rjust(width) if numeric else text.ljust(width)
            for text, width, numeric in zip(texts, widths, right, strict=True)
        )
        return "  ".join(padded).rstrip()

    return "\n".join([line(columns), "  ".join("-" * width for width in widths), *map(line, cells)])


def format_duration(seconds: float | None) -> str | None:
    """Render seconds as ``42s``, ``3m 07s`` or ``5h 02m``."""
    if seconds is None:
        return None
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"


def _cell(value: Any) -> str:
    if value is None:
        return ABSENT
    if isinstance(value, float):
        return (
            (f"{value:.4f}" if abs(value) < 1e4 else f"{value:.3g}")
            if math.isfinite(value)
            else {math.inf: "∞", -math.inf: "-∞"}.get(value, "nan")
        )
    return " ".join(str(value).split())


def _experiment_names(client: "MlflowClient") -> dict[str, str]:
    with clear_errors(client.tracking_uri):
        return {found.experiment_id: found.name for found in client.search_experiments(max_results=1000)}


def _row(run: "Run", experiments: Mapping[str, str]) -> dict[str, Any]:
    info = run.info
    # Only the protocol form gives the step of each metric without one more query per run.
    last = {metric.key: metric for metric in run.data.to_proto().metrics}
    end = info.end_time if info.status != "RUNNING" else time.time() * 1000
    return {
        "run_id": info.run_id,
        "run": info.run_id[:ID_LENGTH],
        "name": info.run_name,
        "experiment": experiments.get(info.experiment_id),
        "status": info.status,
        "started": datetime.datetime.fromtimestamp(info.start_time / 1000) if info.start_time else None,
        "duration": (end - info.start_time) / 1000 if end and info.start_time else None,
        "rounds": last["loss"].step if "loss" in last else None,
        **{key: number(last[key].value) if key in last else None for key in ("val_auc", "epsilon_accounted")},
        **{key: _part(run, key) for key in ("model", "algorithm", "data")},
    }


def _part(run: "Run", key: str) -> str | None:
    tags, params = run.data.tags, run.data.params
    return tags.get(f"fednews.{key}") or params.get(f"{key}.store") or params.get(key)
