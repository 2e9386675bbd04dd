"""The table of trials that a sweep shows while it runs."""

import math
from typing import Any, Self

from optuna.trial import FrozenTrial, TrialState
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fednews.tracking.table import format_duration
from fednews.tuning.study import SweepStudy

ROWS = 15
_COLOURS = {"COMPLETE": "green", "PRUNED": "yellow", "FAIL": "red", "RUNNING": "cyan", "WAITING": "dim"}


class LiveTable:
    """Shows the latest trials and the best so far: redrawn on a terminal, a line for each trial elsewhere."""

    def __init__(self, study: SweepStudy, limit: int, console: Console | None = None) -> None:
        self._study, self._limit = study, limit
        self._console = console or Console()
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._seen = {trial.number for trial in study.trials() if trial.state.is_finished()}

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.update()
        if self._live:
            self._live.stop()

    def update(self) -> None:
        """Show how the study stands now."""
        trials = self._study.trials()
        if self._live:
            self._live.update(Group(self._table(trials), Text(self._footer(trials))), refresh=True)
            return
        for trial in trials:
            if trial.state.is_finished() and trial.number not in self._seen:
                self._seen.add(trial.number)
                print(self._line(trial), flush=True)

    def _table(self, trials: list[FrozenTrial]) -> Table:
        best = {trial.number for trial in self._study.best()}
        keys = [parameter.key for parameter in self._study.sweep.space]
        metrics = self._metrics()
        table = Table(title=self._study.study.study_name, title_justify="left")
        for name in ("trial", "state", *(_short(key, keys) for key in keys), *metrics, "time", "run"):
            table.add_column(name, justify="right" if name in (*metrics, "trial", "time") else "left")
        for trial in trials[-ROWS:]:
            values = self._study.shown(trial)
            state = Text(trial.state.name.lower(), style=_COLOURS[trial.state.name])
            star = "*" if trial.number in best else ""
            table.add_row(
                f"{star}{trial.number}", state,
                *(values.get(key, "-") for key in keys),
                *(cell(trial.user_attrs.get("metrics", {}).get(name)) for name in metrics),
                _duration(trial), trial.user_attrs.get("run_id", "")[:8],
            )  # fmt: skip
        return table

    def _footer(self, trials: list[FrozenTrial]) -> str:
        finished = sum(trial.state.is_finished() for trial in trials)
        best = self._study.best()
        shown = "; ".join(f"{trial.number} ({outcome(trial)})" for trial in best[:5]) + ("; …" if best[5:] else "")
        name = "best" if len(self._study.sweep.objectives) == 1 else "Pareto set"
        return f"{finished} of {self._limit} finished" + (f"; {name}: {shown}" if best else "")

    def _line(self, trial: FrozenTrial) -> str:
        best = " (best so far)" if trial.number in {found.number for found in self._study.best()} else ""
        values = ", ".join(f"{key} {value}" for key, value in self._study.shown(trial).items())
        done = sum(t.state.is_finished() for t in self._study.trials())
        return (
            f"[{done}/{self._limit}] trial {trial.number} {trial.state.name.lower()}: {values}: {outcome(trial)}{best}"
        )

    def _metrics(self) -> list[str]:
        sweep = self._study.sweep
        return list(dict.fromkeys((*sweep.objectives, *sweep.constraints)))


def outcome(trial: FrozenTrial) -> str:
    """What came of a trial, in words."""
    if "error" in trial.user_attrs:
        return trial.user_attrs["error"]
    found = ", ".join(f"{name} {cell(value)}" for name, value in trial.user_attrs.get("metrics", {}).items())
    twin = f", as trial {trial.user_attrs['twin']}" if "twin" in trial.user_attrs else ""
    if trial.state == TrialState.PRUNED and trial.intermediate_values:
        found = f"stopped in round {max(trial.intermediate_values)}"
    return found + twin


def cell(value: Any) -> str:
    """A value for a table."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return "∞" if math.isinf(value) else f"{value:.5g}"
    return str(value)


def _duration(trial: FrozenTrial) -> str:
    return format_duration(trial.duration.total_seconds()) if trial.duration else "-"


def _short(key: str, keys: list[str]) -> str:
    """The key's last part, where that is clear."""
    last = key.rsplit(".", 1)[-1]
    return last if sum(other.rsplit(".", 1)[-1] == last for other in keys) == 1 else key
