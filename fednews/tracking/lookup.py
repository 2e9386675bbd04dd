"""Finding runs and reading back what they recorded."""

import math
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fednews.errors import FednewsError, UsageError
from fednews.tracking.store import clear_errors

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

PAGE = 1000


def resolve_run(client: "MlflowClient", id_or_prefix: str) -> "Run":
    """Find the run whose id begins with ``id_or_prefix``.

    Raises:
        UsageError: no run, or several, begin with it.
        FednewsError: the store fails.
    """
    if not re.fullmatch(r"[0-9a-f]{1,32}", id_or_prefix):
        raise UsageError(f"'{id_or_prefix}' is not a run id (hexadecimal digits): `fednews runs` lists them")
    found = search(client, f"attributes.run_id LIKE '{id_or_prefix}%'", limit=6)
    if not found:
        raise UsageError(f"no run has an id that begins with {id_or_prefix}: `fednews runs` lists them")
    if len(found) > 1:
        ids = ", ".join(run.info.run_id[:12] for run in found[:5])
        raise UsageError(f"several runs have ids that begin with {id_or_prefix} ({ids}, …): give more digits")
    return found[0]


def search(client: "MlflowClient", filter_string: str, limit: int, experiment: str | None = None) -> list["Run"]:
    """Up to ``limit`` runs, newest first, of one experiment (an id) or of all."""
    with clear_errors(client.tracking_uri):
        ids = [experiment] if experiment else [e.experiment_id for e in _experiments(client)]
        found: list[Run] = []
        token = None
        while len(found) < limit:
            page = client.search_runs(
                ids, filter_string, max_results=min(PAGE, limit - len(found)), page_token=token,
                order_by=["attributes.start_time DESC"],
            )  # fmt: skip
            found.extend(page)
            token = page.token
            if not token:
                break
        return found


def _experiments(client: "MlflowClient") -> list:
    found, token = [], None
    while True:
        page = client.search_experiments(max_results=PAGE, page_token=token)
        found.extend(page)
        token = page.token
        if not token:
            return found


def number(value: float) -> float:
    """Give a metric back as it was logged: SQL stores hold ±∞ as the largest double."""
    return math.copysign(math.inf, value) if abs(value) == sys.float_info.max else value


PAUSES = "fednews.pauses"
"""Tag of a resumed run: when it ended and went on, ``end-start end-start …`` in milliseconds since 1970."""


def pauses(run: "Run") -> list[tuple[int, int]]:
    """When a run had ended before it was resumed, in milliseconds since 1970."""
    return [tuple(map(int, pause.split("-"))) for pause in run.data.tags.get(PAUSES, "").split()]


def metric_history(
    client: "MlflowClient",
    run_id: str,
    key: str,
    but: Sequence[tuple[float, float]] = (),
) -> dict[int, float]:
    """``key`` by step. A step that a resumed run logged again counts with its last value.

    Args:
        client: of the store.
        run_id: the run.
        key: the metric's name.
        but: leave out what was logged between such moments (milliseconds since 1970).
    """
    with clear_errors(client.tracking_uri):
        history = client.get_metric_history(run_id, key)
    kept = [m for m in history if not any(end < m.timestamp < start for end, start in but)]
    return {m.step: number(m.value) for m in sorted(kept, key=lambda m: m.timestamp)}


def has_artifact(client: "MlflowClient", run_id: str, path: str) -> bool:
    """Whether the run holds the artifact ``path``."""
    folder = str(Path(path).parent)
    with clear_errors(client.tracking_uri):
        return path in {item.path for item in client.list_artifacts(run_id, None if folder == "." else folder)}


def download_artifact(client: "MlflowClient", run_id: str, path: str, folder: str | Path) -> Path:
    """Copy the artifact ``path`` into ``folder``.

    Raises:
        FednewsError: the run has no such artifact, or the store fails.
    """
    if not has_artifact(client, run_id, path):
        raise FednewsError(f"run {run_id[:12]} has no artifact {path}: it ended before writing it, or it was deleted")
    with clear_errors(client.tracking_uri):
        return Path(client.download_artifacts(run_id, path, str(folder)))


def read_artifact(client: "MlflowClient", run_id: str, path: str) -> str:
    """Read the text of the artifact ``path``."""
    with tempfile.TemporaryDirectory() as folder:
        return download_artifact(client, run_id, path, folder).read_text(encoding="utf-8")
