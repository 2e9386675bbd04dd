"""Sweeps with real workers, a real journal and a real tracking store."""

import csv
import json
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
from optuna.trial import TrialState

from fednews.cli import main
from fednews.config import parse
from fednews.errors import FednewsError, UsageError
from fednews.experiment import train
from fednews.tracking.lookup import has_artifact, metric_history, read_artifact, search
from fednews.tracking.rerun import rerun
from fednews.tracking.store import connect
from fednews.tuning import server
from fednews.tuning.launch import open_study, run_sweep
from fednews.tuning.study import SweepStudy

TWO = {"val_auc": "maximize", "epsilon_published": "minimize"}
ROUNDS = 30
PNG = b"\x89PNG\r\n\x1a\n"


def children(study: SweepStudy) -> list:
    """The trials' runs, in the order of the trials: of two that are given out at once, the later's may begin first."""
    runs = search(connect(), f"tags.`mlflow.parentRunId` = '{study.run_id}'", 1000)
    return sorted(runs, key=lambda run: int(run.data.tags["fednews.trial"]))


def trained(study: SweepStudy) -> int:
    """How many of the trials' runs are trainings, and not results taken over."""
    return sum("fednews.config" in run.data.tags for run in children(study))


def check_whole(study: SweepStudy, trials: int) -> None:
    """Exactly so many finished trials, each with its own finished run under one finished parent."""
    client = connect()
    assert [trial.state for trial in study.trials()] == [TrialState.COMPLETE] * trials
    runs = children(study)
    assert sorted(int(run.data.tags["fednews.trial"]) for run in runs) == list(range(trials))
    assert {run.info.run_id for run in runs} == {trial.user_attrs["run_id"] for trial in study.trials()}
    assert {run.info.status for run in runs} == {"FINISHED"}
    experiment = client.get_run(study.run_id).info.experiment_id
    parents = [run for run in search(client, "", 1000, experiment) if "fednews.sweep" in run.data.tags]
    assert [(run.info.run_id, run.info.status) for run in parents] == [(study.run_id, "FINISHED")]
    for trial, run in zip(study.trials(), runs, strict=True):
        assert dict(zip(study.sweep.objectives, trial.values, strict=True)) == pytest.approx(
            {name: run.data.metrics[name] for name in study.sweep.objectives}
        )


def wait_for(condition, seconds: float = 240):
    """What ``condition`` gives once it holds."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
    return found


def in_training(study: SweepStudy) -> list[dict]:
    """Owners of trials that have trained some of their rounds, less than half of ROUNDS.

    Two workers keep step: when one's trial ends the other's is about to, and a signal would come too late for it.
    """
    client, running = connect(), study.trials(TrialState.RUNNING)
    known = [trial.user_attrs for trial in running if "run_id" in trial.user_attrs]
    return [attrs["owner"] for attrs in known if 0 < len(metric_history(client, attrs["run_id"], "loss")) < ROUNDS // 2]


def deaths(study: SweepStudy) -> list[int]:
    return [trial.user_attrs["deaths"] for trial in study.trials() if "deaths" in trial.user_attrs]


def test_killed_workers_and_a_killed_launcher_lose_and_double_nothing(write, place):
    name = write("killed.yaml", objectives=TWO, trials=5, config={"trainer": {"max_steps": ROUNDS}})
    study = open_study(name, create=True)
    server.prepare()
    launcher = multiprocessing.get_context("forkserver").Process(target=launch_in, args=(place, name))
    launcher.start()
    victim = wait_for(lambda: study.finished() >= 1 and in_training(study))[0]["pid"]
    os.kill(victim, signal.SIGKILL)
    # The launcher finds the dead worker's trial by itself.
    owners = wait_for(lambda: study.finished() >= 2 and deaths(study) and in_training(study))
    assert deaths(study) == [1]
    workers = {owner["pid"] for owner in owners}
    assert victim not in workers
    launcher.kill()
    launcher.join()
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in workers))
    assert study.finished() < 5
    assert connect().get_run(study.run_id).info.status == "RUNNING", "nobody could say otherwise"

    run_sweep(name, workers=2)
    check_whole(study, 5)
    client = connect()
    assert Path(client.download_artifacts(study.run_id, "figures/pareto.png")).read_bytes().startswith(PNG)
    resumed = [run for run in children(study) if "fednews.resumed" in run.data.tags]
    assert resumed, "an interrupted trial goes on in its own run"
    for run in children(study):
        assert sorted(metric_history(client, run.info.run_id, "loss")) == list(range(1, ROUNDS + 1))
    run_sweep(name, workers=2)
    check_whole(study, 5)


def launch_in(folder: Path, name: str) -> None:
    os.chdir(folder)
    os.environ["OMP_NUM_THREADS"] = "1"
    run_sweep(name, workers=2)


def test_ctrl_c_stops_cleanly_and_the_same_command_goes_on(write, capsys):
    name = write("stopped.yaml", trials=3, config={"trainer": {"max_steps": ROUNDS}})
    study = open_study(name, create=True)

    def interrupt() -> None:
        wait_for(lambda: study.finished() >= 1 and in_training(study))
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    assert main(["sweep", name, "--workers", "2"]) == 130
    assert "goes on: fednews sweep stopped.yaml" in capsys.readouterr().err
    assert study.trials(TrialState.RUNNING) == []
    waiting = study.trials(TrialState.WAITING)
    assert waiting, "the interrupted trial was given back"
    states = {run.info.run_id: run.info.status for run in children(study)}
    assert {states[trial.user_attrs["run_id"]] for trial in waiting if "run_id" in trial.user_attrs} <= {"KILLED"}
    assert connect().get_run(study.run_id).info.status == "KILLED"
    assert main(["sweep", name, "--workers", "2"]) == 0
    check_whole(study, 3)
    assert "deaths" not in {key for trial in study.trials() for key in trial.user_attrs}


def test_failures_are_recorded_and_do_not_stop_the_study(write, capsys):
    space = {"algorithm.clients_per_round": {"categorical": [5, -1]}, "optimizer.lr": {"categorical": [0.01, 1e30]}}
    enqueue = [
        {"algorithm.clients_per_round": -1, "optimizer.lr": 0.01},
        {"algorithm.clients_per_round": 5, "optimizer.lr": 1e30},
    ]
    name = write("failing.yaml", space=space, enqueue=enqueue, trials=3)
    run_sweep(name)
    study = open_study(name)
    assert [trial.state.name for trial in study.trials()] == ["COMPLETE", "FAIL", "FAIL"]
    runs = children(study)
    assert [run.info.status for run in runs] == ["FINISHED", "FAILED", "FAILED"]
    assert "clients_per_round" in runs[1].data.tags["fednews.error"], "it failed before it could train"
    assert "diverged" in runs[2].data.tags["fednews.error"]
    assert "trial 1 failed: " in capsys.readouterr().out
    assert connect().get_run(study.run_id).data.metrics["trials_fail"] == 2
    only = write("broken.yaml", space={"algorithm.clients_per_round": {"int": [-3, -1]}}, trials=1)
    with pytest.raises(FednewsError, match=r"all 1 trials failed; the first: .*clients_per_round"):
        run_sweep(only)


def test_a_finished_configuration_is_not_trained_again(write):
    name = write("twins.yaml", space={"algorithm.clip": {"categorical": [0.01, 0.02]}}, trials=4)
    run_sweep(name)
    study = open_study(name)
    check_whole(study, 4)
    assert trained(study) == 2
    values = {trial.params["algorithm.clip"]: trial.value for trial in study.trials()}
    for trial, run in zip(study.trials(), children(study), strict=True):
        assert trial.value == values[trial.params["algorithm.clip"]]
        if "twin" in trial.user_attrs:
            first = study.trials()[trial.user_attrs["twin"]]
            assert run.data.tags["fednews.duplicate_of"] == first.user_attrs["run_id"]
            assert first.params == trial.params


def test_pruned_trials_are_marked_as_such_and_fill_no_table(write):
    # No AUC reaches 2, so that everything is pruned at its first validation.
    pruner = {"class_path": "ThresholdPruner", "init_args": {"lower": 2.0}}
    name = write("pruned.yaml", pruner=pruner, trials=2)
    run_sweep(name)
    study = open_study(name)
    assert [trial.state for trial in study.trials()] == [TrialState.PRUNED] * 2
    for trial, run in zip(study.trials(), children(study), strict=True):
        assert list(trial.intermediate_values) == [3]
        assert run.info.status == "KILLED"
        assert run.data.tags["fednews.trial_state"] == "PRUNED"
        assert "pruned after 3 of 6 rounds" in run.data.tags["mlflow.note.content"]
        assert max(metric_history(connect(), run.info.run_id, "loss")) == 3
    assert connect().get_run(study.run_id).info.status == "FINISHED"
    assert study.best() == []


def test_seeds_are_nested_in_their_trial_and_averaged(write, capsys):
    name = write("seeds.yaml", seeds=[1, 2], trials=1)
    run_sweep(name)
    study = open_study(name)
    check_whole(study, 1)
    (trial,) = children(study)
    seeds = search(connect(), f"tags.`mlflow.parentRunId` = '{trial.info.run_id}'", 10)
    assert sorted(run.data.params["seed"] for run in seeds) == ["1", "2"]
    mean = sum(run.data.metrics["val_auc"] for run in seeds) / 2
    assert study.trials()[0].value == pytest.approx(mean)
    assert trial.data.metrics["val_auc"] == pytest.approx(mean)
    rerun(trial.info.run_id, check=True)
    assert capsys.readouterr().out.count("metrics and final weights agree") == 2
    with pytest.raises(UsageError, match="is a sweep"):
        rerun(study.run_id)


def test_constraints_keep_the_winner_and_the_winner_trains(write, place, capsys):
    constraints = {"epsilon_published": {"max": 10}}
    enqueue = [{"algorithm.clip": 0.01, "algorithm.noise_scale": 0.01}]
    name = write("best.yaml", constraints=constraints, enqueue=enqueue, trials=2)
    run_sweep(name)
    study = open_study(name)
    assert [trial.user_attrs["metrics"]["epsilon_published"] for trial in study.trials()] == pytest.approx([20, 2])
    assert [trial.number for trial in study.best()] == [1], "trial 0 spends too much"
    assert main(["sweep", "best", name, "--out", "out/winner.yaml"]) == 0
    result = train(parse(["--config", "out/winner.yaml"]))
    assert result.metrics["val_auc"] == pytest.approx(study.trials()[1].value, abs=1e-6)
    assert main(["sweep", "best", name, "--trial", "7"]) == 2
    assert "no complete trial 7" in capsys.readouterr().err
    assert main(["sweep", "report", name]) == 0
    assert "best trial" in capsys.readouterr().out
    client = connect()
    rows = list(csv.DictReader(read_artifact(client, study.run_id, "trials.csv").splitlines()))
    assert [float(row["val_auc"]) for row in rows] == [trial.value for trial in study.trials()]
    names = ("importances", "slice", "contour", "history")
    assert all(has_artifact(client, study.run_id, f"figures/{kind}_val_auc.png") for kind in names)


def test_more_trials_go_on_a_timeout_stops_and_a_changed_space_is_another_study(write, capsys):
    name = write("longer.yaml", trials=1)
    run_sweep(name, timeout=0)
    study = open_study(name)
    assert study.finished() == 0
    assert connect().get_run(study.run_id).info.status == "KILLED"
    run_sweep(name)
    run_sweep(name, trials=2)
    check_whole(study, 2)
    capsys.readouterr()
    write(name, space={"algorithm.clip": {"log": [0.005, 0.5]}})
    assert main(["sweep", "report", name]) == 2
    message = capsys.readouterr().err
    assert f"has changed since study {study.study.study_name}, whose 2 trials stay" in message
    assert "space (was algorithm.clip: log [0.001, 0.1" in message
    assert json.loads(study.study.user_attrs["content"]["objectives"]) == {"val_auc": "maximize"}
