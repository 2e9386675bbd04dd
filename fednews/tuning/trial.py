"""One trial: training for every seed, tracked under the sweep's run, and what it counts for the study."""

import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from jsonargparse import Namespace
from lightning.pytorch import Callback, LightningModule, Trainer
from optuna.trial import FrozenTrial, Trial, TrialState

from fednews.config import digest, dump
from fednews.errors import FednewsError, Stopped
from fednews.experiment import Watch, train
from fednews.tracking.lookup import number
from fednews.tracking.run import TrackedRun, ending, message_of
from fednews.tracking.store import clear_errors
from fednews.tuning.interrupts import Interrupts
from fednews.tuning.process import Heartbeat
from fednews.tuning.space import options, shown
from fednews.tuning.study import Claim, SweepStudy

if TYPE_CHECKING:
    from mlflow import MlflowClient


class Pruned(Stopped):
    """The pruner gave the trial up."""


class Reporter(Callback):
    """Tells the study the objective at every validation, and asks whether to go on."""

    def __init__(self, trial: Trial, metric: str) -> None:
        self.trial = trial
        self.metric = metric

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        rounds = trainer.global_step
        self.trial.report(float(trainer.callback_metrics[self.metric]), rounds)
        if rounds < trainer.max_steps and self.trial.should_prune():
            raise Pruned(f"pruned after {rounds} of {trainer.max_steps} rounds")


class TrialRun:
    """Runs a claimed trial to an end that the study knows.

    With one seed the trial's run is the training itself. With several it holds their means, and a run for each seed
    is nested in it. A pruner decides on the first seed alone.

    Args:
        study: the sweep's study.
        client: of the tracking store.
        parent: id of the sweep's run.
        claim: the trial.
        interrupts: when training may be interrupted.
    """

    def __init__(
        self, study: SweepStudy, client: "MlflowClient", parent: str, claim: Claim, interrupts: Interrupts
    ) -> None:
        self.study, self.sweep, self.client = study, study.sweep, client
        self.trial, self.values = claim.trial, claim.values
        self.interrupts = interrupts
        self.tags = {
            "mlflow.parentRunId": parent,
            "fednews.study": study.study.study_name,
            "fednews.trial": str(self.trial.number),
        }
        self.name = f"trial-{self.trial.number:03d}"
        self.config: Namespace | None = None

    def __call__(self) -> None:
        """Run the trial.

        Raises:
            KeyboardInterrupt, SystemExit: it was interrupted, and given back to the study.
        """
        try:
            with Heartbeat(functools.partial(self.study.beat, self.trial)):
                metrics = self._metrics()
                self._check(metrics)
        except Pruned as stop:
            self._end(TrialState.PRUNED, f"{self._summary()}: {stop}")
        except BaseException as error:
            if ending(error) == "KILLED":
                self.study.give_back(self.trial)
                raise
            if not isinstance(error, Exception):
                raise
            self._fail(error)
        else:
            self._complete(metrics)

    def _metrics(self) -> dict[str, float]:
        """Every metric's last value, averaged over seeds."""
        self.config = self.sweep.configure(self.values, self.sweep.seeds[0])
        self.trial.set_user_attr("config", digest(self.config))
        if twin := self.study.twin(self.trial.number, digest(self.config)):
            return self._repeat(twin)
        if len(self.sweep.seeds) == 1:
            return self._train(self.config, self.sweep.seeds[0], self.tags, self.name)
        with self._own_run() as run:
            self._remember(run.run_id)
            tags = {**self.tags, "mlflow.parentRunId": run.run_id}
            found = []
            for seed in self.sweep.seeds:
                config = self.sweep.configure(self.values, seed)
                found.append(self._train(config, seed, tags, f"{self.name}-seed-{seed}"))
            shared = set.intersection(*map(set, found))
            means = {name: sum(metrics[name] for metrics in found) / len(found) for name in sorted(shared)}
            run.log_metrics(means, self.config.trainer.max_steps)
        return means

    def _train(self, config: Namespace, seed: int, tags: Mapping[str, str], name: str) -> dict[str, float]:
        """Train one seed, or what its interrupted run left to do."""
        runs = self.trial.user_attrs.get("runs", {})
        run_id = runs.get(str(seed))
        if not run_id or self._status(run_id) != "FINISHED":
            watch = Watch(
                tags, name, self._summary(), self._reporters(seed), functools.partial(self._remember, seed=seed), False
            )
            with self.interrupts.allowed():
                run_id = train(config, resume=run_id, watch=watch).run_id
        with clear_errors(self.client.tracking_uri):
            return {name: number(value) for name, value in self.client.get_run(run_id).data.metrics.items()}

    def _reporters(self, seed: int) -> tuple[Callback, ...]:
        if self.sweep.pruner is None or seed != self.sweep.seeds[0]:
            return ()
        return (Reporter(self.trial, next(iter(self.sweep.objectives))),)

    def _remember(self, run_id: str, seed: int | None = None) -> None:
        """Let whoever has to go on with this trial find its runs."""
        if seed is not None:
            self.trial.set_user_attr("runs", {**self.trial.user_attrs.get("runs", {}), str(seed): run_id})
        if seed is None or len(self.sweep.seeds) == 1:
            self.trial.set_user_attr("run_id", run_id)

    def _own_run(self, **links: str) -> TrackedRun:
        """The trial's run where it is not a training itself."""
        if known := self.trial.user_attrs.get("run_id"):
            return TrackedRun.resume(self.client, known)
        config = self.values if self.config is None else self.config.as_dict()
        text = "\n".join(options(self.values)) if self.config is None else dump(self.config)
        content = self.study.study.user_attrs["content"]
        tags = {**self.tags, **links}
        return TrackedRun.start(
            self.client, self.sweep.name, self.name, config, text, tags, content["data"], note=self._summary()
        )

    def _repeat(self, twin: FrozenTrial) -> dict[str, float]:
        """Take the result of an earlier trial of the same configuration over."""
        self.trial.set_user_attr("twin", twin.number)
        with self._own_run(**{"fednews.duplicate_of": twin.user_attrs["run_id"]}) as run:
            self._remember(run.run_id)
            with clear_errors(self.client.tracking_uri):
                found = self.client.get_run(twin.user_attrs["run_id"]).data.metrics
            run.log_metrics(found, self.config.trainer.max_steps)
            if twin.state == TrialState.PRUNED:
                for step, value in twin.intermediate_values.items():
                    self.trial.report(value, step)
                raise Pruned(f"pruned like trial {twin.number}, which has the same configuration")
        return {name: number(value) for name, value in found.items()}

    def _check(self, metrics: Mapping[str, float]) -> None:
        for name in (*self.sweep.objectives, *self.sweep.constraints):
            if name not in metrics:
                raise FednewsError(f"its runs have no metric '{name}', only {', '.join(sorted(metrics))}")
            if math.isnan(metrics[name]):
                raise FednewsError(f"its metric {name} is not a number")

    def _complete(self, metrics: Mapping[str, float]) -> None:
        shown = {name: metrics[name] for name in (*self.sweep.objectives, *self.sweep.constraints)}
        self.trial.set_user_attr("metrics", shown)
        for name, bound in self.sweep.constraints.items():
            if "max" in bound:
                self.trial.set_constraint(f"{name} <= {bound['max']}", metrics[name] - float(bound["max"]))
            if "min" in bound:
                self.trial.set_constraint(f"{name} >= {bound['min']}", float(bound["min"]) - metrics[name])
        text = ", ".join(f"{name} {value:.5g}" for name, value in shown.items())
        self._end(TrialState.COMPLETE, f"{self._summary()}: {text}", [metrics[name] for name in self.sweep.objectives])

    def _fail(self, error: Exception) -> None:
        message = message_of(error)
        self.trial.set_user_attr("error", message)
        if "run_id" not in self.trial.user_attrs:  # it failed before training began
            try:
                with self._own_run() as run:
                    self._remember(run.run_id)
                    raise error
            except type(error):
                pass
        run_id = self.trial.user_attrs["run_id"]
        with clear_errors(self.client.tracking_uri):
            self.client.set_tag(run_id, "fednews.error", message)
            self.client.set_terminated(run_id, "FAILED")
        self._end(TrialState.FAIL, f"{self._summary()}: {message}")

    def _end(self, state: TrialState, note: str, values: list[float] | None = None) -> None:
        run_id = self.trial.user_attrs["run_id"]
        with clear_errors(self.client.tracking_uri):
            self.client.set_tag(run_id, "fednews.trial_state", state.name)
            self.client.set_tag(run_id, "mlflow.note.content", note)
        with self.study.storage.clear_errors():
            self.study.study.tell(self.trial, values, None if values else state, skip_if_finished=True)

    def _status(self, run_id: str) -> str:
        with clear_errors(self.client.tracking_uri):
            return self.client.get_run(run_id).info.status

    def _summary(self) -> str:
        values = ", ".join(f"{key} {value}" for key, value in shown(self.sweep.space, self.values).items())
        return f"trial {self.trial.number}: {values}"
