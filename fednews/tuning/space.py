"""Search spaces: which configuration keys a sweep varies, and over what."""

import difflib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jsonargparse import Namespace
from optuna.trial import Trial

from fednews.errors import UsageError
from fednews.tuning.parameter import KINDS, Parameter

_OPTIONS = {"float": {"transform"}, "log": set(), "int": set(), "categorical": set()}
_TRANSFORM = re.compile(r"log\(\s*[A-Za-z_]\w*\s*-\s*([\d.eE+-]+)\s*\)")
_RESERVED = {"seed": "'seeds' lists the seeds of each trial", "name": "'name' of the sweep names the experiment"}


def read_space(space: Any) -> tuple[Parameter, ...]:
    """The space of a sweep file.

    Raises:
        UsageError: what is wrong with which key.
    """
    if not isinstance(space, dict) or not space:
        raise UsageError("space must map configuration keys to what they are varied over")
    parameters: list[Parameter] = []
    for key, content in space.items():
        if key in _RESERVED:
            raise UsageError(f"space: '{key}' cannot be varied: {_RESERVED[key]}")
        try:
            parameters.append(_parameter(key, content, parameters))
        except (TypeError, ValueError, KeyError) as error:
            raise UsageError(f"space: {key}: {error}") from None
    return tuple(parameters)


def _parameter(key: str, content: Any, earlier: list[Parameter]) -> Parameter:
    kinds = [kind for kind in KINDS if isinstance(content, dict) and kind in content]
    if len(kinds) != 1:
        raise UsageError(f"space: {key}: give one of {', '.join(KINDS)}, e.g. {{float: [0.1, 0.9]}}")
    (kind,) = kinds
    known = {kind, "when", *_OPTIONS[kind]}
    if wrong := [name for name in content if name not in known]:
        near = difflib.get_close_matches(str(wrong[0]), known, 1)
        raise UsageError(f"space: {key}: {kind} has no option '{wrong[0]}'" + (f": '{near[0]}'?" if near else ""))
    when = _conditions(key, content.get("when") or {}, earlier)
    if kind == "categorical":
        return Parameter(key, kind, choices=_choices(content[kind]), when=when)
    low, high = _bounds(content[kind], kind)
    minus = _minus(content["transform"]) if "transform" in content else 0.0
    if "transform" in content or kind == "log":
        kind = "log"
        if low <= minus:
            raise ValueError(f"the logarithm needs a lower bound above {minus:g}, not {low:g}")
    return Parameter(key, kind, low, high, minus=minus, when=when)


def _bounds(given: Any, kind: str) -> tuple[float, float]:
    if not isinstance(given, list) or len(given) != 2:
        raise ValueError(f"give {kind}: [lowest, highest]")
    # YAML takes 1e-5 for text.
    low, high = (value if isinstance(value, int) and not isinstance(value, bool) else float(value) for value in given)
    if kind == "int" and not (isinstance(low, int) and isinstance(high, int)):
        raise ValueError("int needs whole numbers")
    if not low < high:
        raise ValueError(f"the lowest value {low:g} is not below the highest {high:g}")
    return low, high


def _choices(given: Any) -> dict[str, Any]:
    if isinstance(given, list) and all(isinstance(value, str | int | float | bool | None) for value in given):
        given = {str(value): value for value in given}
    if not isinstance(given, dict) or len(given) < 2:
        raise ValueError("categorical needs a list of two or more plain values, or a mapping of labels to values")
    return {str(label): value for label, value in given.items()}


def _minus(transform: Any) -> float:
    if not (found := _TRANSFORM.fullmatch(str(transform))):
        raise ValueError(f"transform is 'log(x - NUMBER)', not '{transform}'")
    return float(found[1])


def _conditions(key: str, given: Any, earlier: list[Parameter]) -> dict[str, list]:
    known = {parameter.key: parameter for parameter in earlier if parameter.kind in ("categorical", "int")}
    conditions = {}
    for other, values in given.items():
        if other not in known:
            raise UsageError(f"space: {key}: when names '{other}', which is no categorical or int key above it")
        labels = known[other].choices or {}
        conditions[other] = [
            labels.get(value, value) if isinstance(value, str) else value
            for value in (values if isinstance(values, list) else [values])
        ]
        if wrong := [value for value in conditions[other] if known[other].internal(value) is None]:
            raise UsageError(f"space: {key}: when {other} is {wrong[0]}, which is none of its values")
    return conditions


def suggest(space: Sequence[Parameter], trial: Trial) -> dict[str, Any]:
    """Key -> value of everything that the trial varies."""
    chosen: dict[str, Any] = {}
    for parameter in space:
        if parameter.applies(chosen):
            chosen[parameter.key] = parameter.suggest(trial)
    return chosen


def options(values: Mapping[str, Any]) -> list[str]:
    """``values`` as options of ``fednews train``."""
    return [f"--{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in values.items()]


def shown(space: Sequence[Parameter], values: Mapping[str, Any]) -> dict[str, str]:
    """``values`` for tables."""
    return {parameter.key: parameter.shown(values[parameter.key]) for parameter in space if parameter.key in values}


def internal(space: Sequence[Parameter], values: Mapping[str, Any]) -> dict[str, Any]:
    """Optuna's parameters for the values of keys.

    Raises:
        UsageError: the space lacks a key or does not hold a value.
    """
    known = {parameter.key: parameter for parameter in space}
    found = {}
    for key, value in values.items():
        if key not in known:
            raise UsageError(f"enqueue: '{key}' is not in the space")
        if (inner := known[key].internal(value)) is None:
            raise UsageError(f"enqueue: the space of {key} does not hold {value}")
        found[known[key].name] = inner
    return found


def defaults(space: Sequence[Parameter], config: Namespace) -> dict[str, Any] | None:
    """Optuna's parameters for what ``config`` says itself; None where the space does not hold it."""
    chosen: dict[str, Any] = {}
    for parameter in space:
        if parameter.applies(chosen):
            value = lookup(config, parameter.key)
            if parameter.internal(value) is None:
                return None
            chosen[parameter.key] = value
    return internal(space, chosen)


def lookup(config: Namespace, key: str) -> Any:
    """The value of a dotted key, with or without ``init_args`` in it; None if absent."""
    value: Any = config
    for part in key.split("."):
        inside = value.get("init_args") if isinstance(value, Namespace) and part != "init_args" else None
        value = next((place[part] for place in (inside, value) if isinstance(place, Namespace) and part in place), None)
    return value


def probes(space: Sequence[Parameter]) -> Iterator[dict[str, Any]]:
    """Assignments that together hold both bounds or every choice of each key, conditional ones once at least."""
    seen: set[str] = set()
    for index in range(max(len(parameter.edges()) for parameter in space)):
        yield (chosen := _probe(space, index, {}))
        seen |= chosen.keys()
    for parameter in space:
        if parameter.key not in seen:
            forced = dict(itertools.chain(*(_demands(space, parameter))))
            yield (chosen := _probe(space, 0, forced))
            seen |= chosen.keys()


def _probe(space: Sequence[Parameter], index: int, forced: Mapping[str, Any]) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for parameter in space:
        if parameter.applies(chosen):
            edges = parameter.edges()
            chosen[parameter.key] = forced.get(parameter.key, edges[index % len(edges)])
    return chosen


def _demands(space: Sequence[Parameter], parameter: Parameter) -> Iterator[Iterator[tuple[str, Any]]]:
    """What must be chosen for the parameter to apply."""
    for key, values in (parameter.when or {}).items():
        yield from _demands(space, next(other for other in space if other.key == key))
        yield iter([(key, values[0])])
