"""What a study found: in words, as a table of trials, as an experiment file, and in figures."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from optuna.trial import FrozenTrial, TrialState

from fednews.config import dump
from fednews.errors import UsageError
from fednews.tracking.run import TrackedRun
from fednews.tracking.table import format_table
from fednews.tuning.figures import figures, importances
from fednews.tuning.study import SweepStudy
from fednews.tuning.table import outcome

if TYPE_CHECKING:
    from jsonargparse import Namespace


def write_report(study: SweepStudy, run: TrackedRun) -> None:
    """Write the report, all trials, the winner's experiment and the figures into the sweep's run."""
    files: dict[str, str | bytes] = {"report.md": _markdown(study), "trials.csv": _trials_csv(study)}
    if best := study.best():
        files["best.yaml"] = experiment_yaml(study, best[0])
        run.log_metrics(
            {f"best_{n}": best[0].values[i] for i, n in enumerate(study.sweep.objectives)}, study.finished()
        )
    files |= {f"figures/{name}": content for name, content in figures(study) if content}
    run.log_contents(files)


def summary(study: SweepStudy) -> str:
    """The study's state and its best trials, for the terminal."""
    states = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
    counts = ", ".join(f"{len(found)} {state.name.lower()}" for state in states if (found := study.trials(state)))
    lines = ["", f"study {study.study.study_name}: {counts or 'no trial has finished'}"]
    best = study.best()
    if best:
        title = "best trial" if len(study.sweep.objectives) == 1 else "Pareto set"
        lines += [f"{title}:", "", format_table(*_rows(study, best)), ""]
        lines.append(f"fednews rerun {best[0].user_attrs['run_id'][:8]} trains the first of them again")
    elif study.trials(TrialState.COMPLETE):
        lines.append("no trial keeps the constraints")
    if failed := study.trials(TrialState.FAIL):
        lines.append(f"trial {failed[0].number} failed: {failed[0].user_attrs.get('error')}")
    return "\n".join([*lines, f"in MLflow (fednews ui): experiment {study.sweep.name}, run {study.run_id}"])


def best_trial(study: SweepStudy, number: int | None) -> FrozenTrial:
    """The winner, or the first of the Pareto set, or the trial asked for.

    Raises:
        UsageError: there is none, or it is not complete.
    """
    if number is not None:
        found = next((trial for trial in study.trials(TrialState.COMPLETE) if trial.number == number), None)
        if found is None:
            raise UsageError(f"study {study.study.study_name} has no complete trial {number}")
        return found
    if not (best := study.best()):
        raise UsageError(f"study {study.study.study_name} has no complete trial within its constraints yet")
    return best[0]


def experiment_yaml(study: SweepStudy, trial: FrozenTrial) -> str:
    """The trial's experiment as ``fednews train --config`` reads it, with the sweep's first seed."""
    config: Namespace = study.sweep.configure(trial.user_attrs["values"], study.sweep.seeds[0])
    head = (
        f"# Trial {trial.number} of study {study.study.study_name}: {outcome(trial)}; run {trial.user_attrs['run_id']}"
    )
    return f"{head}\n{dump(config)}"


def write_best(study: SweepStudy, number: int | None, out: str | None) -> Path:
    """Write the experiment of a trial (:func:`best_trial`) to ``out``; returns where it went.

    Raises:
        UsageError: there is no such trial, or the file exists.
    """
    trial = best_trial(study, number)
    path = Path(out or f"{study.sweep.name}-best.yaml")
    if path.exists() and out is None:
        raise UsageError(f"{path} exists: remove it, or say where to write with --out")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(experiment_yaml(study, trial))
    return path


def _rows(study: SweepStudy, trials: Sequence[FrozenTrial]) -> tuple[list[dict], list[str]]:
    keys = [parameter.key for parameter in study.sweep.space]
    metrics = dict.fromkeys((*study.sweep.objectives, *study.sweep.constraints))
    rows = [
        {
            "trial": trial.number,
            "state": trial.state.name.lower(),
            **dict.fromkeys(keys),
            **study.shown(trial),
            **{name: trial.user_attrs.get("metrics", {}).get(name) for name in metrics},
            "run": trial.user_attrs.get("run_id", "")[:8],
        }
        for trial in trials
    ]
    return rows, ["trial", "state", *keys, *metrics, "run"]


def _trials_csv(study: SweepStudy) -> str:
    """Every trial with full precision."""
    keys = [parameter.key for parameter in study.sweep.space]
    metrics = list(dict.fromkeys((*study.sweep.objectives, *study.sweep.constraints)))
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["trial", "state", *keys, *metrics, "seconds", "run", "error"])
    for trial in study.trials():
        attrs = trial.user_attrs
        values, found = attrs.get("values", {}), attrs.get("metrics", {})
        seconds = trial.duration.total_seconds() if trial.duration else ""
        row = [trial.number, trial.state.name, *(values.get(k, "") for k in keys), *(found.get(m, "") for m in metrics)]
        writer.writerow([*row, seconds, attrs.get("run_id", ""), attrs.get("error", "")])
    return text.getvalue()


def _markdown(study: SweepStudy) -> str:
    blocks = [f"# {study.study.study_name}", f"```\n{summary(study).strip()}\n```"]
    for place, name in enumerate(study.sweep.objectives):
        if found := importances(study, place):
            lines = "\n".join(f"- {key}: {share:.2f}" for key, share in found.items())
            blocks.append(
                f"What {name} depends on (what the better trials have in common, PED-ANOVA; shares of 1):\n\n{lines}"
            )
    return "\n\n".join(blocks) + "\n"
