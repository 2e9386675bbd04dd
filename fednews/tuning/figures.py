"""A study's figures: history, importances, slices, contours and the Pareto set, as PNG files that need no server."""

import io
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from optuna.importance import get_param_importances
from optuna.trial import FrozenTrial, TrialState

from fednews.tuning.study import SweepStudy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 130
CONTOUR_KEYS = 2
LOG_SPAN = 50  # highest through lowest value from where on an axis is logarithmic
WIDE = 10  # a logarithmic axis that spans as much has labels enough at powers of ten


def figures(study: SweepStudy) -> Iterator[tuple[str, bytes]]:
    """``(file name, PNG)`` of every figure that the study has enough trials for.

    Importances, slices and contours need two complete trials with different finite values. Infinite values (epsilon
    without protection) are left out of all figures.
    """
    from matplotlib import pyplot, style
    from optuna.visualization import matplotlib as plots

    with style.context("default"):  # Optuna sets a style for the whole process
        if len(study.sweep.objectives) > 1 and study.trials(TrialState.COMPLETE):
            yield "pareto.png", _png(_pareto(plots, study), pyplot)
        for place, name in enumerate(study.sweep.objectives):
            for kind, make in _KINDS.items():
                if (kind == "history" and study.trials(TrialState.COMPLETE)) or _varies(study, place):
                    yield f"{kind}_{name}.png", _png(make(plots, study, place, name), pyplot)


def importances(study: SweepStudy, place: int) -> dict[str, float]:
    """How much each key decides whether a trial is among the better ones; empty where too few trials say so."""
    return _shares(study, place) if _varies(study, place) else {}


def _history(plots, study: SweepStudy, place: int, name: str) -> "Figure":
    axes = plots.plot_optimization_history(study.study, target=_or_none(study, place), target_name=name)
    return _tidy(axes, f"{study.study.study_name}: {name} by trial")


def _importances(plots, study: SweepStudy, place: int, name: str) -> "Figure":
    axes = plots.plot_param_importances(study.study, target=_lowest(study, place), target_name=name)
    return _tidy(axes, f"{study.study.study_name}: what {name} depends on")


def _slice(plots, study: SweepStudy, place: int, name: str) -> "Figure":
    axes = plots.plot_slice(study.study, target=_target(place), target_name=name)
    return _tidy(axes, f"{study.study.study_name}: {name} by key")


def _contour(plots, study: SweepStudy, place: int, name: str) -> "Figure | None":
    keys = list(_shares(study, place))[:CONTOUR_KEYS]
    if len(keys) < 2:
        return None
    found = plots.plot_contour(study.study, params=keys, target=_target(place), target_name=name)
    return _tidy(found, f"{study.study.study_name}: {name}")


_KINDS = {"history": _history, "importances": _importances, "slice": _slice, "contour": _contour}


def _pareto(plots, study: SweepStudy) -> "Figure":
    names = list(study.sweep.objectives)
    axes = plots.plot_pareto_front(study.study, target_names=names)
    for place, axis in zip(range(len(names)), "xyz", strict=False):
        if _spans(study, place):
            getattr(axes, f"set_{axis}scale")("log")
    return _tidy(axes, f"{study.study.study_name}: Pareto set")


def _tidy(axes, title: str) -> "Figure":
    """One title, and labels that do not run into each other. ``axes``: one, or an array of them."""
    from matplotlib.ticker import NullFormatter

    several = list(axes.flat) if hasattr(axes, "flat") else [axes]
    for one in several:
        for place in ("left", "center", "right"):
            one.set_title("", loc=place)
        for axis in (one.xaxis, one.yaxis):
            if axis.get_scale() == "log":
                low, high = axis.get_view_interval()
                if high / low > WIDE:
                    axis.set_minor_formatter(NullFormatter())
    figure = several[0].figure
    figure.suptitle(title)
    figure.set_size_inches(max(6.4, 3.6 * len(several)), 4.8)
    return figure


def _png(figure: "Figure | None", pyplot) -> bytes | None:
    if figure is None:
        return None
    content = io.BytesIO()
    figure.savefig(content, dpi=DPI, bbox_inches="tight")
    pyplot.close(figure)
    return content.getvalue()


def _target(place: int) -> Callable[[FrozenTrial], float]:
    return lambda trial: trial.values[place]


def _lowest(study: SweepStudy, place: int) -> Callable[[FrozenTrial], float]:
    """The objective as something to be made small: importances say what good trials have in common."""
    sign = -1 if list(study.sweep.objectives.values())[place] == "maximize" else 1
    return lambda trial: sign * trial.values[place]


def _shares(study: SweepStudy, place: int) -> dict[str, float]:
    return get_param_importances(study.study, target=_lowest(study, place))


def _or_none(study: SweepStudy, place: int) -> Callable | None:
    """Only without a target of its own does Optuna draw the best value so far."""
    return None if len(study.sweep.objectives) == 1 else _target(place)


def _values(study: SweepStudy, place: int) -> list[float]:
    return [trial.values[place] for trial in study.trials(TrialState.COMPLETE) if math.isfinite(trial.values[place])]


def _varies(study: SweepStudy, place: int) -> bool:
    return len(set(_values(study, place))) > 1


def _spans(study: SweepStudy, place: int) -> bool:
    """Whether only a logarithmic axis shows all values."""
    values = _values(study, place)
    return bool(values) and min(values) > 0 and max(values) / min(values) > LOG_SPAN
