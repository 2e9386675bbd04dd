"""What a sweep file says: an experiment, what is varied in it, and what counts as better."""

import difflib
import functools
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from fednews.config import digest, parse_layers, read_yaml
from fednews.data.store import Store
from fednews.errors import UsageError
from fednews.tuning.optimiser import make_pruner, make_sampler
from fednews.tuning.parameter import Parameter
from fednews.tuning.space import defaults, internal, options, probes, read_space

DIRECTIONS = ("maximize", "minimize")
_WORDS = {str: "a text", list: "a list", dict: "a mapping", int: "a whole number"}
_TYPES: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "base": (str, list),
    "config": (dict,),
    "objectives": (dict,),
    "constraints": (dict,),
    "trials": (int,),
    "seeds": (list,),
    "enqueue": (list,),
}
METRICS = (
    "val_auc", "val_mrr", "val_ndcg_5", "val_ndcg_10", "loss", "bytes_up", "bytes_down", "round_seconds",
    "client_seconds", "server_seconds", "epsilon_published", "epsilon_accounted", "epsilon_round_published",
    "epsilon_round_accounted",
)  # fmt: skip


@dataclass(frozen=True)
class Sweep:
    """A sweep as its YAML file says it.

    Attributes:
        name: of the study's family and of the MLflow experiment; the file's name unless given.
        base: experiment files that it builds on, relative to ``folder``.
        config: what differs from them.
        space: the varied keys.
        objectives: metric -> direction; the metric's last value counts, averaged over seeds.
        constraints: metric -> ``{max: X}`` or ``{min: X}``; trials outside are never best.
        sampler, pruner: Optuna's, as class name or ``class_path`` and ``init_args``.
        trials: how many trials the study has in the end.
        seeds: every trial is trained with each.
        enqueue: settings to try first, right after the experiment's own (trial 0).
        folder: of the file.
        arguments: further options of ``fednews train``, which win over ``base`` and ``config``.
    """

    name: str
    space: tuple[Parameter, ...]
    objectives: dict[str, str]
    base: list[str] = field(default_factory=list)
    config: dict = field(default_factory=dict)
    constraints: dict[str, dict[str, float]] = field(default_factory=dict)
    sampler: dict | str = "TPESampler"
    pruner: dict | str | None = None
    trials: int = 20
    seeds: tuple[int, ...] = (0,)
    enqueue: list[dict] = field(default_factory=list)
    folder: Path = Path()
    arguments: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: str | Path, arguments: Sequence[str] = ()) -> "Sweep":
        """Read and check a sweep, the keys of its space against the experiment that it builds on.

        Raises:
            UsageError: what is wrong with the file, in one line that names it.
        """
        path = Path(path)
        content = read_yaml(path, "sweep")
        known = [name for name in cls.__dataclass_fields__ if name not in ("folder", "arguments")]
        try:
            for key in content:
                if key not in known:
                    near = difflib.get_close_matches(str(key), known, 1)
                    raise UsageError(f"a sweep has no key '{key}'" + (f": did you mean '{near[0]}'?" if near else ""))
            for key, kinds in _TYPES.items():
                if key in content and not isinstance(content[key], kinds):
                    raise UsageError(f"{key} must be {' or '.join(_WORDS[kind] for kind in kinds)}")
            if missing := [key for key in ("space", "objectives") if not content.get(key)]:
                raise UsageError(f"the sweep lacks '{missing[0]}'")
            base = content.get("base", [])
            given = {
                "name": path.stem,
                **content,
                "base": [base] if isinstance(base, str) else base,
                "space": read_space(content["space"]),
                "seeds": tuple(content.get("seeds", (0,))),
            }
            sweep = cls(**given, folder=path.parent, arguments=tuple(arguments))
            sweep._check()
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None
        return sweep

    def configure(self, values: Mapping[str, Any], seed: int) -> Namespace:
        """The experiment with these values of the space's keys."""
        layers = [{"base": self.base}, self.config]
        last = [f"--seed={seed}", f"--name={self.name}"]
        return parse_layers(layers, self.folder, [*self.arguments, *options(values), *last])

    @functools.cached_property
    def experiment(self) -> Namespace:
        """The experiment as it is without the space."""
        return self.configure({}, self.seeds[0])

    def own(self) -> dict[str, Any] | None:
        """Parameters of the experiment's own settings; None where the space does not hold them."""
        return defaults(self.space, self.experiment)

    def enqueued(self) -> list[dict[str, Any]]:
        """Parameters of the settings under ``enqueue``."""
        return [internal(self.space, values) for values in self.enqueue]

    def content(self) -> dict[str, str]:
        """What makes trials comparable, by topic; a study whose content differs is another study."""
        return {
            "space": "; ".join(_describe(parameter) for parameter in self.space),
            "objectives": json.dumps(self.objectives),
            "constraints": json.dumps(self.constraints, sort_keys=True),
            "seeds": json.dumps(self.seeds),
            "experiment": digest(self.experiment),
            "data": Store.open(self.experiment.data.store).fingerprint,
        }

    def study_name(self) -> str:
        """The file's name and a digest of :meth:`content`."""
        text = json.dumps(self.content(), sort_keys=True)
        return f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def _check(self) -> None:
        self._check_words()
        self._check_goals()
        make_sampler(self.sampler, 0)
        if make_pruner(self.pruner) is not None:
            if len(self.objectives) > 1:
                raise UsageError("pruner: only sweeps with a single objective can prune")
            if not next(iter(self.objectives)).startswith("val_"):
                raise UsageError("pruner: the objective must be a validation metric (val_…), known between rounds")
        self._check_space()

    def _check_words(self) -> None:
        if not re.fullmatch(r"[\w.-]+", self.name):
            raise UsageError(f"name '{self.name}' may hold letters, digits, '-', '_' and '.' only: it names files")
        for option in (argument.split("=")[0] for argument in self.arguments):
            if option in ("--seed", "--name"):
                raise UsageError(f"{option} is not an option of a sweep: the file has 'seeds' and 'name'")
        if self.trials < 1:
            raise UsageError(f"trials must be a whole number of at least 1, not {self.trials}")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or not all(isinstance(s, int) for s in self.seeds):
            raise UsageError("seeds must be a list of different whole numbers")

    def _check_goals(self) -> None:
        if len(self.objectives) > 3:
            raise UsageError("objectives: give one, two or three")
        for metric, direction in self.objectives.items():
            _check_metric("objectives", metric)
            if direction not in DIRECTIONS:
                raise UsageError(f"objectives: {metric} is to '{direction}': give {' or '.join(DIRECTIONS)}")
        for metric, bound in self.constraints.items():
            _check_metric("constraints", metric)
            if not isinstance(bound, dict) or not bound or not bound.keys() <= {"min", "max"}:
                raise UsageError(f"constraints: {metric} needs {{max: X}}, {{min: X}} or both")
            if not all(isinstance(value, int | float) for value in bound.values()):
                raise UsageError(f"constraints: the bounds of {metric} must be numbers (1.0e-3, not 1e-3)")

    def _check_space(self) -> None:
        _ = self.experiment  # what is wrong with the experiment itself is not the space's fault
        for values in probes(self.space):
            try:
                self.configure(values, self.seeds[0])
            except UsageError as error:
                raise UsageError(f"space: {error}") from None
        self.enqueued()


def _check_metric(place: str, metric: str) -> None:
    """Algorithms have metrics of their own, so that only a near miss is certainly wrong."""
    near = difflib.get_close_matches(str(metric), METRICS, 1, cutoff=0.8)
    if metric not in METRICS and near:
        raise UsageError(f"{place}: no run has a metric '{metric}': did you mean '{near[0]}'?")


def _describe(parameter: Parameter) -> str:
    over = dict(parameter.choices) if parameter.choices else [parameter.low, parameter.high, parameter.minus]
    when = f" when {json.dumps(parameter.when)}" if parameter.when else ""
    return f"{parameter.key}: {parameter.kind} {json.dumps(over)}{when}"


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    """What differs between the contents of two studies, in words."""
    for topic in new:
        if old.get(topic) != new[topic]:
            yield f"{topic} (was {old.get(topic)})" if topic not in ("experiment", "data") else topic
