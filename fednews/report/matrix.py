"""A published table as a matrix of experiments: methods x data x seeds, and the tracked runs that fill it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace

from fednews.config import digest, parse_layers, read_yaml
from fednews.data.store import Store
from fednews.errors import UsageError
from fednews.tracking.lookup import number, search
from fednews.tracking.provenance import code_digest

if TYPE_CHECKING:
    from mlflow import MlflowClient

_PER_CONFIG = 100


@dataclass(frozen=True)
class Cell:
    """One experiment of a table: a method on a data set with a seed."""

    method: str
    data: str
    seed: int
    config: Namespace


@dataclass(frozen=True)
class Table:
    """A table as its YAML file says it.

    Attributes:
        title: of the table.
        seeds: every cell is run with each.
        metrics: names of the metrics shown, in order.
        data: columns: name -> configuration.
        methods: rows: name -> ``config`` for all columns, and ``by_data``: column -> what differs there.
        compare: the method that the others are tested against, if any.
        published: data set of the paper -> method -> the published values of ``metrics``.
        source: where the published values stand.
        config: what differs in every cell from what data and methods say.
        folder: what configurations name under ``base`` is relative to it.
    """

    title: str
    seeds: list[int]
    metrics: list[str]
    data: dict[str, dict]
    methods: dict[str, dict]
    compare: str | None = None
    published: dict[str, dict[str, list]] = field(default_factory=dict)
    source: str = ""
    config: dict = field(default_factory=dict)
    folder: Path = Path()

    @classmethod
    def read(cls, path: str | Path) -> "Table":
        """Read and check a table.

        It may build on another that it names under ``base``, key by key, and show some ``columns`` of its data alone.

        Raises:
            UsageError: not such a file, or a key that tables do not have.
        """
        path = Path(path)
        content = read_yaml(path, "table")
        if base := content.pop("base", None):
            path = path.parent / base
            content = read_yaml(path, "table") | content
        columns = content.pop("columns", None)
        known = [name for name in cls.__dataclass_fields__ if name != "folder"]
        required = ("title", "seeds", "metrics", "data", "methods")
        if wrong := [key for key in content if key not in known]:
            raise UsageError(f"{path}: a table has the keys {', '.join(known)}, not {wrong[0]}")
        if missing := [key for key in required if not content.get(key)]:
            raise UsageError(f"{path}: the table lacks '{missing[0]}'")
        if content.get("compare") not in (None, *content["methods"]):
            raise UsageError(f"{path}: compare names '{content['compare']}', which is none of the methods")
        if unknown := [name for name in columns or () if name not in content["data"]]:
            raise UsageError(f"{path}: columns names '{unknown[0]}', which is none of its data")
        content["data"] = {name: content["data"][name] for name in columns or content["data"]}
        return cls(**content, folder=path.parent)

    def cells(self) -> Iterator[Cell]:
        """Every experiment of the table with its resolved configuration, row by row."""
        for method in self.methods:
            for column in self.data:
                if (layers := self._layers(method, column)) is None:
                    continue
                config = parse_layers([*layers, {"seed": self.seeds[0], "name": self.title}], self.folder)
                for seed in self.seeds:
                    config = config.clone()  # parsing takes half a second
                    config.seed = seed
                    yield Cell(method, column, seed, config)

    def _layers(self, method: str, column: str) -> list[dict] | None:
        row = self.methods[method] or {}
        if unknown := [key for key in row if key not in ("config", "by_data")]:
            raise UsageError(f"method '{method}' of '{self.title}': {unknown[0]} is neither 'config' nor 'by_data'")
        own = (row.get("by_data") or {}).get(column, {})
        return None if own is None else [self.data[column], row.get("config") or {}, own, self.config]


def finished_runs(client: "MlflowClient", cell: Cell, any_code: bool = True) -> list[Any]:
    """Finished runs of the cell's configuration on the data as it is now, newest first.

    Args:
        client: of the tracking store.
        cell: the experiment.
        any_code: count runs that another version of this package made too.
    """
    fingerprint = Store.open(cell.config.data.store).fingerprint
    condition = (
        f"attributes.status = 'FINISHED' and tags.`fednews.config` = '{digest(cell.config)}' "
        f"and tags.`fednews.fingerprint` = '{fingerprint}'"
    )
    if not any_code:
        condition += f" and tags.`fednews.code` = '{code_digest()}'"
    return search(client, condition, _PER_CONFIG)


def values(client: "MlflowClient", table: Table) -> tuple[dict[tuple[str, str], list[list[float]]], set[str]]:
    """What tracked runs say of a table.

    Returns:
        ``(method, data)`` -> one list of metrics per seed that has been run; and the commits of the runs used.
    """
    found: dict[tuple[str, str], list[list[float]]] = {}
    commits = set()
    for cell in table.cells():
        rows = found.setdefault((cell.method, cell.data), [])
        if runs := finished_runs(client, cell):
            data = runs[0].data
            rows.append([number(data.metrics.get(name, float("nan"))) for name in table.metrics])
            commits.add(data.tags.get("mlflow.source.git.commit", "unknown")[:10])
    return found, commits
