"""A sweep's study: which trials there are, who works on them, and which are best."""

import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from fednews.errors import UsageError
from fednews.tuning.optimiser import make_pruner, make_sampler
from fednews.tuning.process import is_dead, owner
from fednews.tuning.space import shown, suggest
from fednews.tuning.storage import StudyStorage
from fednews.tuning.sweep import Sweep, changes

MOST_DEATHS = 3
REUSABLE = (TrialState.COMPLETE, TrialState.PRUNED)


@dataclass(frozen=True)
class Claim:
    """A trial that this process is to run: Optuna's trial, and the values of the space's keys."""

    trial: Trial
    values: dict[str, Any]


class SweepStudy:
    """The study of one sweep in one storage, shared by any number of processes.

    A trial is given out, counted and taken back under the storage's lock. One whose process died or was stopped
    goes back to WAITING with its parameters and its tracked run: the same trial is then run to its end by whoever
    comes next, so that none is lost and none is there twice.
    """

    def __init__(self, sweep: Sweep, storage: StudyStorage, study: optuna.Study) -> None:
        self.sweep = sweep
        self.storage = storage
        self.study = study
        self._id = storage.optuna.get_study_id_from_name(study.study_name)

    @classmethod
    def open(cls, sweep: Sweep, storage: StudyStorage, create: bool = False) -> Self:
        """The study of ``sweep``.

        Args:
            sweep: what is searched; the study's name follows from it.
            storage: where studies are kept.
            create: begin the study where there is none, with the experiment's own settings as trial 0.

        Raises:
            UsageError: there is no such study, and none was to be begun.
        """
        content, name = sweep.content(), sweep.study_name()
        with storage.clear_errors(), storage.lock():
            known = optuna.get_all_study_names(storage.optuna)
            if name not in known:
                others = [other for other in known if re.fullmatch(re.escape(sweep.name) + "-[0-9a-f]{8}", other)]
                notice = _other_studies(name, others, content, storage)
                if not create:
                    raise UsageError(notice or f"the sweep '{sweep.name}' has no study yet: fednews sweep begins it")
                if notice:
                    print(notice, file=sys.stderr)
            study = optuna.create_study(
                storage=storage.optuna,
                study_name=name,
                directions=list(sweep.objectives.values()),
                pruner=make_pruner(sweep.pruner) or optuna.pruners.NopPruner(),
                load_if_exists=True,
            )
            if "content" not in study.user_attrs:  # new, or its maker died right here
                own, others = sweep.own(), sweep.enqueued()
                if own is None:
                    print("the space does not hold the experiment's own settings: trial 0 has others", file=sys.stderr)
                for parameters in [own, *others] if own is not None else others:
                    study.enqueue_trial(parameters, skip_if_exists=True)
                study.set_metric_names(list(sweep.objectives))
                study.set_user_attr("content", content)
            return cls(sweep, storage, study)

    @classmethod
    def join(cls, sweep: Sweep, storage: StudyStorage, name: str) -> Self:
        """The study called ``name``, which somebody else has opened for ``sweep``."""
        pruner = make_pruner(sweep.pruner) or optuna.pruners.NopPruner()
        with storage.clear_errors():
            return cls(sweep, storage, optuna.load_study(study_name=name, storage=storage.optuna, pruner=pruner))

    def claim(self, limit: int) -> Claim | None:
        """Take the next trial; None when ``limit`` trials have been begun."""
        with self.storage.clear_errors(), self.storage.lock():
            trials = self.trials()
            if sum(trial.state != TrialState.WAITING for trial in trials) >= limit:
                return None
            self.study.sampler = make_sampler(self.sweep.sampler, len(trials))
            trial = self.study.ask()
            trial.set_user_attr("owner", owner())
            values = suggest(self.sweep.space, trial)
            trial.set_user_attr("values", values)
            return Claim(trial, values)

    def beat(self, trial: Trial) -> None:
        """Record that the trial's process lives."""
        with self.storage.clear_errors():
            self._set(trial.number, "beat", time.time())

    def give_back(self, trial: Trial) -> None:
        """Leave an unfinished trial to whoever comes next."""
        with self.storage.clear_errors():
            self.storage.optuna.set_trial_state_values(self._trial_id(trial.number), TrialState.WAITING)

    def take_from_the_dead(self) -> list[FrozenTrial]:
        """Free running trials whose process is gone, and give up those that lost too many; returns both kinds."""
        freed = []
        if not self._dead():  # seen without the lock, which costs a connection
            return freed
        with self.storage.clear_errors(), self.storage.lock():
            for trial in self._dead():
                deaths = trial.user_attrs.get("deaths", 0) + 1
                self._set(trial.number, "deaths", deaths)
                if deaths < MOST_DEATHS:
                    self.storage.optuna.set_trial_state_values(self._trial_id(trial.number), TrialState.WAITING)
                else:
                    self._set(trial.number, "error", f"its process died {deaths} times (out of memory?)")
                    self.study.tell(trial.number, state=TrialState.FAIL)
                freed.append(self.study.get_trials(deepcopy=False)[trial.number])
        return freed

    def trials(self, *states: TrialState) -> list[FrozenTrial]:
        """All trials by number, or those in one of ``states``; not to be changed."""
        return self.study.get_trials(deepcopy=False, states=states or None)

    def shown(self, trial: FrozenTrial) -> dict[str, str]:
        """The trial's values of the space's keys, for tables."""
        return shown(self.sweep.space, trial.user_attrs.get("values", {}))

    def twin(self, number: int, digest: str) -> FrozenTrial | None:
        """An earlier finished or pruned trial of the same configuration."""
        found = (t for t in self.trials(*REUSABLE) if t.number != number and t.user_attrs.get("config") == digest)
        return next((t for t in found if "twin" not in t.user_attrs), None)

    def best(self) -> list[FrozenTrial]:
        """The best trial, or the Pareto set by the first objective; empty while none is feasible."""
        if not any(_feasible(trial) for trial in self.trials(TrialState.COMPLETE)):
            return []
        if len(self.sweep.objectives) == 1:
            return [self.study.best_trial]
        sign = -1 if next(iter(self.sweep.objectives.values())) == "maximize" else 1
        return sorted(self.study.best_trials, key=lambda trial: sign * trial.values[0])

    def finished(self) -> int:
        """How many trials are complete, pruned or failed."""
        return sum(trial.state.is_finished() for trial in self.trials())

    @property
    def run_id(self) -> str | None:
        """The tracked parent run."""
        return self.study.user_attrs.get("run_id")

    def _dead(self) -> list[FrozenTrial]:
        running = self.trials(TrialState.RUNNING)
        return [trial for trial in running if is_dead(trial.user_attrs.get("owner"), trial.user_attrs.get("beat"))]

    def _set(self, number: int, key: str, value: Any) -> None:
        self.storage.optuna.set_trial_user_attr(self._trial_id(number), key, value)

    def _trial_id(self, number: int) -> int:
        return self.storage.optuna.get_trial_id_from_study_id_trial_number(self._id, number)


def _feasible(trial: FrozenTrial) -> bool:
    return all(value <= 0 for value in trial.constraints.values())


def _other_studies(name: str, others: list[str], content: Mapping[str, str], storage: StudyStorage) -> str | None:
    """What is to be said of studies that the same file once had."""
    if not others:
        return None
    last = optuna.load_study(study_name=others[-1], storage=storage.optuna)
    different = ", ".join(changes(last.user_attrs.get("content", {}), content))
    count = len(last.get_trials(deepcopy=False))
    return (
        f"the sweep has changed since study {last.study_name}, whose {count} trials stay where they are: {different}; "
        f"what the file says now is study {name}"
    )
