"""``fednews reproduce`` and ``fednews report``: fill a table with tracked runs, and print it."""

from pathlib import Path

from fednews.experiment import train
from fednews.report.format import latex, markdown
from fednews.report.matrix import Cell, Table, finished_runs, values
from fednews.tracking.store import connect


def reproduce(path: str | Path, only: list[str] | None = None) -> int:
    """Train every cell of a table that no run with the same configuration, code and data has filled.

    Args:
        path: the table's YAML file.
        only: methods to run; all when not given.

    Returns:
        How many runs were trained.

    Raises:
        UsageError: a wrong table or configuration, found before anything is trained.
    """
    table = Table.read(path)
    client = connect()
    wanted = [cell for cell in table.cells() if not only or cell.method in only]
    missing = [cell for cell in wanted if not finished_runs(client, cell, any_code=False)]
    print(f"{table.title}: {len(wanted)} runs, {len(wanted) - len(missing)} tracked already, {len(missing)} to train")
    for place, cell in enumerate(missing, 1):
        result = train(cell.config)
        auc = result.metrics.get("val_auc", float("nan"))
        print(f"[{place}/{len(missing)}] {_name(cell)}: run {result.run_id[:8]}, val_auc {auc:.4f}", flush=True)
    return len(missing)


def report(path: str | Path, form: str) -> str:
    """The table from tracked runs beside the published one, as ``"markdown"`` or ``"latex"``."""
    table = Table.read(path)
    found, commits = values(connect(), table)
    return {"markdown": markdown, "latex": latex}[form](table, found, commits)


def _name(cell: Cell) -> str:
    return f"{cell.method} on {cell.data}, seed {cell.seed}"
