"""One varied configuration key: how Optuna knows it, and how the configuration does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jsonargparse import Namespace
from optuna.trial import Trial

KINDS = ("float", "log", "int", "categorical")


@dataclass(frozen=True)
class Parameter:
    """One varied configuration key.

    Attributes:
        key: as on the command line, e.g. ``algorithm.alpha``.
        kind: ``float`` (uniform), ``log`` (uniform in the logarithm), ``int`` or ``categorical``.
        low, high: bounds in the key's own units, both included.
        choices: label -> value of a categorical parameter.
        minus: what is subtracted before the logarithm (``transform: log(alpha - 1)``).
        when: earlier keys and the values of theirs with which this key is there at all.
    """

    key: str
    kind: str
    low: float = 0
    high: float = 0
    choices: Mapping[str, Any] | None = None
    minus: float = 0.0
    when: Mapping[str, Sequence[Any]] | None = None

    @property
    def name(self) -> str:
        """What Optuna calls it: the key, and what is subtracted from it before the logarithm."""
        return f"{self.key} - {self.minus:g}" if self.minus else self.key

    def applies(self, chosen: Mapping[str, Any]) -> bool:
        """Whether the key is there, given the values of earlier ones."""
        return all(key in chosen and chosen[key] in values for key, values in (self.when or {}).items())

    def suggest(self, trial: Trial) -> Any:
        """The trial's value, in the key's own units."""
        if self.kind == "categorical":
            return self.choices[trial.suggest_categorical(self.name, list(self.choices))]
        if self.kind == "int":
            return trial.suggest_int(self.name, int(self.low), int(self.high))
        log = self.kind == "log"
        return self.minus + trial.suggest_float(self.name, self.low - self.minus, self.high - self.minus, log=log)

    def internal(self, value: Any) -> Any:
        """Optuna's name for ``value``; None where the space does not hold it."""
        if self.kind == "categorical":
            return next((label for label, choice in self.choices.items() if _same(choice, value)), None)
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.low <= value <= self.high:
            return None
        return int(value) if self.kind == "int" else value - self.minus

    def shown(self, value: Any) -> str:
        """``value`` for tables: a choice by its label, a number with five digits."""
        if self.kind == "categorical":
            return self.internal(value)
        return str(value) if self.kind == "int" else f"{value:.5g}"

    def edges(self) -> list[Any]:
        """Values to try the configuration with: both bounds, or every choice."""
        return list(self.choices.values()) if self.kind == "categorical" else [self.low, self.high]


def _same(choice: Any, value: Any) -> bool:
    """Whether a choice says what ``value`` is, which may be a part with all of its settings filled in."""
    if isinstance(value, Namespace):
        choice = {"class_path": choice} if isinstance(choice, str) else choice
        return isinstance(choice, dict) and all(key in value and _same(c, value[key]) for key, c in choice.items())
    if isinstance(choice, str) and isinstance(value, str):
        return choice.rsplit(".", 1)[-1] == value.rsplit(".", 1)[-1] if "." in value else choice == value
    return (type(choice) is type(value) and choice == value) or (_number(choice) and _number(value) and choice == value)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
