"""Optuna's samplers and pruners by name, their settings checked before anything runs."""

import difflib
import inspect
import warnings
from typing import Any

import optuna
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler

from fednews.errors import UsageError
from fednews.streams import Streams

# Those that need no further object or package, and do not stop a study by themselves.
SAMPLERS = ("TPESampler", "RandomSampler", "NSGAIISampler", "NSGAIIISampler", "GPSampler", "QMCSampler")
PRUNERS = ("MedianPruner", "PercentilePruner", "SuccessiveHalvingPruner", "HyperbandPruner", "ThresholdPruner")
# Spaces are mixed and may be conditional: parameters of one branch are sampled together.
_DEFAULTS = {"TPESampler": {"multivariate": True, "group": True, "constant_liar": True}}


def make_sampler(given: Any, trial: int) -> BaseSampler:
    """A sampler for one trial.

    Its random numbers follow from the seed (of ``init_args``, else 0) and the trial's number, so that it does not
    matter which process draws a trial, and a study that goes on does not draw its first trials again.

    Raises:
        UsageError: an unknown sampler or setting.
    """
    name, settings = _part("sampler", given, SAMPLERS)
    seed = Streams(int(settings.pop("seed", 0))).integer("sampler", trial) % 2**32
    return _build("sampler", getattr(optuna.samplers, name), {**_DEFAULTS.get(name, {}), **settings, "seed": seed})


def make_pruner(given: Any) -> BasePruner | None:
    """A pruner, None for none.

    Raises:
        UsageError: an unknown pruner or setting.
    """
    if given is None:
        return None
    name, settings = _part("pruner", given, PRUNERS)
    return _build("pruner", getattr(optuna.pruners, name), settings)


def _part(what: str, given: Any, known: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    given = {"class_path": given} if isinstance(given, str) else given
    if not isinstance(given, dict) or "class_path" not in given or not given.keys() <= {"class_path", "init_args"}:
        raise UsageError(f"{what}: give a class name, or class_path and init_args")
    name = str(given["class_path"]).rsplit(".", 1)[-1]
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(known)}"
        raise UsageError(f"{what}: there is no '{name}' here: {hint}")
    return name, dict(given.get("init_args") or {})


def _build(what: str, kind: type, settings: dict[str, Any]) -> Any:
    accepted = list(inspect.signature(kind).parameters)
    if wrong := [key for key in settings if key not in accepted]:
        near = difflib.get_close_matches(wrong[0], accepted, 1)
        raise UsageError(f"{what}: {kind.__name__} has no setting '{wrong[0]}'" + (f": '{near[0]}'?" if near else ""))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return kind(**settings)
    except (TypeError, ValueError, ImportError) as error:
        raise UsageError(f"{what}: {kind.__name__}: {error}") from None
