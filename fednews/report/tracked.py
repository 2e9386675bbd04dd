"""The runs behind a table, for notebooks: what is missing is trained, all else is read from the tracking store."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from fednews.errors import UsageError
from fednews.report.format import markdown
from fednews.report.matrix import Cell, Table, finished_runs, values
from fednews.report.reproduce import reproduce
from fednews.tracking.lookup import metric_history, number, read_artifact
from fednews.tracking.store import connect

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


@dataclass(frozen=True)
class TrackedTable:
    """A table with the newest finished run of every cell that has one.

    Attributes:
        table: as its file says it.
        client: of the tracking store.
        runs: cells and their runs, in the table's order.
    """

    table: Table
    client: "MlflowClient"
    runs: list[tuple[Cell, "Run"]]

    @classmethod
    def read(cls, path: str | Path) -> "TrackedTable":
        """What is tracked of a table; nothing is trained."""
        table, client = Table.read(path), connect()
        found = ((cell, finished_runs(client, cell)) for cell in table.cells())
        return cls(table, client, [(cell, runs[0]) for cell, runs in found if runs])

    def markdown(self, paper: str | Path | None = None) -> str:
        """The table beside the published numbers: its own, or those of the table file ``paper``."""
        table = self.table
        if paper is not None:
            source = Table.read(paper)
            if source.metrics != table.metrics:
                raise UsageError(f"{paper} publishes {source.metrics}, and '{table.title}' measures {table.metrics}")
            table = replace(table, published=source.published, source=source.source)
        return markdown(table, *values(self.client, table))

    def frame(self, **settings: str) -> pd.DataFrame:
        """One row for each run: ``method``, ``data``, ``seed``, the last value of every metric, and ``settings``.

        Args:
            settings: column -> key of the configuration, such as ``noise="algorithm.init_args.noise_scale"``.
        """
        rows = []
        for cell, run in self.runs:
            metrics = {name: number(value) for name, value in run.data.metrics.items()}
            chosen = {column: cell.config.get(key) for column, key in settings.items()}
            rows.append({**_names(cell), **metrics, **chosen})
        return pd.DataFrame(rows)

    def history(self, metric: str) -> pd.DataFrame:
        """A metric over rounds: columns ``method``, ``data``, ``seed``, ``round`` and the metric."""
        rows = [
            {**_names(cell), "round": step, metric: value}
            for cell, run in self.runs
            for step, value in metric_history(self.client, run.info.run_id, metric).items()
        ]
        return pd.DataFrame(rows, columns=["method", "data", "seed", "round", metric])

    def first(self, method: str) -> tuple[Cell, "Run"]:
        """The method's first cell that has a run, and the run.

        Raises:
            UsageError: no run of this method is tracked.
        """
        for cell, run in self.runs:
            if cell.method == method:
                return cell, run
        known = ", ".join(dict.fromkeys(cell.method for cell, _ in self.runs))
        raise UsageError(f"no run of '{method}' is tracked for '{self.table.title}'; there are {known or 'none'}")

    def artifact(self, method: str, path: str) -> str:
        """The text of an artifact of the method's first run.

        Raises:
            UsageError: no run of this method is tracked.
            FednewsError: the run has no such artifact.
        """
        return read_artifact(self.client, self.first(method)[1].info.run_id, path)


def fill(path: str | Path) -> TrackedTable:
    """Train what no run with the same configuration, code and data has filled, and read the table back."""
    reproduce(path)
    return TrackedTable.read(path)


def enter_repository() -> Path:
    """Work in the nearest folder upwards that holds ``experiments/tables``: tables, data and runs are named from there.

    Raises:
        UsageError: there is none.
    """
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "experiments" / "tables").is_dir():
            os.chdir(folder)
            return folder
    raise UsageError(f"{here} lies in no checkout of fednews: start the notebook inside one")


def _names(cell: Cell) -> dict[str, str | int]:
    return {"method": cell.method, "data": cell.data, "seed": cell.seed}
