"""The whole way: configuration -> tracked run -> evaluation, resume and rerun, with the real store and trainer."""

import json
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from fednews.checkpoints import WholeCheckpoints
from fednews.cli import main
from fednews.config import parse, parse_text
from fednews.data.tables import BehaviorRow, NewsRow
from fednews.errors import FednewsError, StorageError
from fednews.experiment import Result, train
from fednews.federated.loop import FederatedLoop
from fednews.models.compiled import compile_encoders
from fednews.tracking.lookup import download_artifact, metric_history, read_artifact, resolve_run
from fednews.tracking.model import load_model
from fednews.tracking.store import connect

EXPERIMENT = """
name: tests
seed: 3
data: {{store: {store}, history_length: 10}}
model: {{class_path: NRMS, init_args: {{word_dim: 8, heads: 2, head_dim: 4, query_dim: 5, train_words: true}}}}
algorithm: {{class_path: FedNewsRec, init_args: {{clients_per_round: 5, clip: 0.01, noise_scale: 0.001}}}}
optimizer: {{class_path: torch.optim.Adam, init_args: {{lr: 0.01}}}}
trainer: {{max_steps: 6, val_check_interval: 3, accelerator: cpu, enable_progress_bar: false}}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory, synthetic_store) -> Path:
    """A working directory with an experiment file; runs of these tests are tracked there."""
    folder = tmp_path_factory.mktemp("place")
    whole = EXPERIMENT.format(store=synthetic_store.path)
    (folder / "exp.yaml").write_text(whole)
    (folder / "small.yaml").write_text("".join(line for line in whole.splitlines(True) if "algorithm" not in line))
    return folder


@pytest.fixture(autouse=True)
def inside(place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="module")
def finished(place) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        return train(parse(["--config", "exp.yaml"]))


def test_a_run_records_everything_that_made_it_and_came_of_it(finished, synthetic_store):
    client = connect()
    run = client.get_run(finished.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["algorithm"] == "FedNewsRec"
    assert run.data.params["algorithm.clip"] == "0.01"
    assert run.data.params["seed"] == "3"
    assert run.data.tags["fednews.fingerprint"] == synthetic_store.fingerprint
    assert run.data.tags["mlflow.source.git.commit"]
    assert (
        parse(["--config", "exp.yaml"]).as_dict()
        == parse_text(read_artifact(client, finished.run_id, "config.yaml")).as_dict()
    )
    provenance = json.loads(read_artifact(client, finished.run_id, "provenance/provenance.json"))
    assert provenance["packages"]["torch"]


def test_checkpoints_lie_on_the_disk_once(finished):
    """With the state of single clients they take gigabytes."""
    artifacts = Path(connect().get_run(finished.run_id).info.artifact_uri.removeprefix("file://"))
    for name in ("best.ckpt", "last.ckpt"):
        assert Path("mlruns", "checkpoints", finished.run_id, name).samefile(artifacts / "checkpoints" / name)


@pytest.mark.parametrize(
    "name",
    ["loss", "clients", "samples", "bytes_up", "bytes_down", "client_seconds", "server_seconds", "round_seconds",
     "epsilon_published", "epsilon_accounted", "epsilon_round_published", "epsilon_round_accounted"],
)  # fmt: skip
def test_every_round_has_its_metrics_at_its_own_step(finished, name):
    assert sorted(metric_history(connect(), finished.run_id, name)) == [1, 2, 3, 4, 5, 6]


def test_validation_metrics_stand_at_the_round_they_were_measured_after(finished):
    for name in ("val_auc", "val_mrr", "val_ndcg_5", "val_ndcg_10"):
        assert sorted(metric_history(connect(), finished.run_id, name)) == [3, 6]


def test_the_last_round_is_evaluated_whatever_the_interval(place):
    result = train(parse(["--config", "exp.yaml", "--trainer.max_steps", "5"]))
    history = metric_history(connect(), result.run_id, "val_auc")
    assert sorted(history) == [3, 5]
    assert history[5] == pytest.approx(result.metrics["val_auc"])
    assert main(["evaluate", result.run_id]) == 0
    assert metric_history(connect(), result.run_id, "dev_auc")[5] == pytest.approx(history[5], abs=1e-6)


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
def test_lightnings_precisions_work(finished, precision):
    result = train(parse(["--config", "exp.yaml", "--trainer.precision", precision, "--trainer.max_steps", "3"]))
    whole = metric_history(connect(), result.run_id, "loss")
    expected = metric_history(connect(), finished.run_id, "loss")
    assert whole == pytest.approx({step: expected[step] for step in (1, 2, 3)}, rel=0.02)
    width = {"bf16-mixed": 4, "64-true": 8}[precision]
    down = metric_history(connect(), result.run_id, "bytes_down")[1]
    assert down == 5 * width * sum(
        p.numel() for p in load_model(connect(), result.run_id).parameters() if p.requires_grad
    )


def test_a_compiled_model_trains_as_the_model_does(monkeypatch):
    # Eager kernels, for the C++ compiler takes minutes; tests/models/test_compiled.py has it.
    monkeypatch.setattr("fednews.experiment.compile_encoders", partial(compile_encoders, backend="aot_eager"))
    plain = ["--algorithm.clip", "null", "--algorithm.noise_scale", "0", "--trainer.max_steps", "3"]
    eager, compiled = (train(parse(["--config", "exp.yaml", *plain, "--compile", on])) for on in ("false", "true"))
    first, second = (metric_history(connect(), run.run_id, "loss") for run in (eager, compiled))
    assert second == pytest.approx(first, rel=1e-4)
    assert compiled.metrics["val_auc"] == pytest.approx(eager.metrics["val_auc"], abs=1e-3)


@pytest.mark.parametrize("algorithm", ["APFL", "CFL", "Ditto", "FedPer", "Finding", "PFedMe", "SCAFFOLD"])
def test_methods_with_several_models_work_in_double(algorithm):
    own = {"Finding": ["--algorithm.groups", "2"]}.get(algorithm, ["--algorithm.local_steps", "2"])
    options = ["--trainer.precision", "64-true", "--trainer.max_steps", "2", "--algorithm", algorithm, *own]
    metrics = train(parse(["--config", "small.yaml", *options])).metrics
    assert 0 < metrics["val_auc"] < 1


def test_the_ledger_is_an_artifact_with_all_readings(finished):
    ledger = json.loads(read_artifact(connect(), finished.run_id, "privacy_ledger.json"))
    assert ledger["readings"]["published"]["total"]["epsilon"] == pytest.approx(2 * 0.01 / 0.001)
    assert ledger["readings"]["accounted"]["total"]["epsilon"] > 100
    assert ledger["readings"]["audited"]["total"] is None
    history = metric_history(connect(), finished.run_id, "epsilon_accounted")
    assert history[6] == ledger["readings"]["accounted"]["total"]["epsilon"], "not rounded to float32 on the way"
    assert list(history.values()) == sorted(history.values())


def test_the_model_loads_from_mlflow_with_the_trained_weights(finished, tmp_path):
    client = connect()
    model = load_model(client, finished.run_id)
    saved = torch.load(download_artifact(client, finished.run_id, "checkpoints/last.ckpt", tmp_path), weights_only=True)
    for name, value in model.state_dict().items():
        assert torch.equal(value, saved["state_dict"][f"model.{name}"])


def test_evaluate_gives_what_the_run_measured_last(finished, capsys):
    assert main(["evaluate", finished.run_id[:10], "--split", "dev"]) == 0
    client = connect()
    for name in ("auc", "mrr", "ndcg_5", "ndcg_10"):
        measured = metric_history(client, finished.run_id, f"val_{name}")[6]
        assert metric_history(client, finished.run_id, f"dev_{name}")[6] == pytest.approx(measured, abs=1e-6)
    assert "dev_auc" in capsys.readouterr().out


def test_rerun_with_check_agrees_bit_for_bit(finished, capsys):
    assert main(["rerun", finished.run_id, "--check"]) == 0
    out = capsys.readouterr().out
    assert "bit for bit" in out
    runs = connect().search_runs(
        [resolve_run(connect(), finished.run_id).info.experiment_id], f"tags.`fednews.rerun_of` = '{finished.run_id}'"
    )
    assert len(runs) == 1


def test_rerun_with_check_fails_when_the_outcome_differs(finished, capsys):
    """A run whose recorded configuration is not the one that it was made with does not repeat."""
    client = connect()
    other = train(parse(["--config", "exp.yaml"]))
    config = read_artifact(client, other.run_id, "config.yaml")
    client.log_text(other.run_id, config.replace("seed: 3", "seed: 4"), "config.yaml")
    assert main(["rerun", other.run_id, "--check"]) == 1
    assert "does not repeat" in capsys.readouterr().err


def test_runs_lists_the_run(finished, capsys):
    assert main(["runs"]) == 0
    out = capsys.readouterr().out
    assert finished.run_id[:8] in out
    assert "FedNewsRec" in out


def fednews(*arguments: str, **kwargs) -> subprocess.Popen:
    command = [sys.executable, "-m", "fednews.cli", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kwargs)


def stop_after_a_checkpoint(place: Path, signal_: signal.Signals, name: str) -> tuple[str, int, str]:
    process = fednews("train", "--config", "exp.yaml", "--name", name, "--trainer.max_steps", "4000")
    known = set((place / "mlruns" / "checkpoints").glob("*"))
    deadline = time.time() + 120
    while not (new := set((place / "mlruns" / "checkpoints").glob("*/last.ckpt")) - {k / "last.ckpt" for k in known}):
        assert process.poll() is None, process.communicate()[1]
        assert time.time() < deadline
        time.sleep(0.05)
    process.send_signal(signal_)
    _, err = process.communicate(timeout=60)
    return new.pop().parent.name, process.returncode, err


@pytest.mark.parametrize(
    ("signal_", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)], ids=lambda v: str(v)
)
def test_a_stopped_run_is_killed_and_its_resume_equals_the_uninterrupted_one(place, finished, signal_, code):
    run_id, returned, err = stop_after_a_checkpoint(place, signal_, f"stop-{code}")
    assert returned == code, err
    assert "Traceback" not in err
    assert main(["runs"]) == 0, "which also closes the runs of dead processes"
    client = connect()
    assert client.get_run(run_id).info.status == "KILLED"
    for name in ("loss", "epsilon_accounted"):
        whole, part = (metric_history(client, run, name) for run in (finished.run_id, run_id))
        assert part[3] == whole[3]


def test_a_run_stopped_before_its_first_checkpoint_says_so(place):
    process = fednews("train", "--config", "exp.yaml", "--name", "early", "--trainer.max_steps", "4000",
                      "--trainer.val_check_interval", "4000")  # fmt: skip
    deadline, runs = time.time() + 120, []
    while not runs or "loss" not in runs[0].data.metrics:
        assert time.time() < deadline
        time.sleep(0.2)
        experiment = connect().get_experiment_by_name("early")
        runs = connect().search_runs([experiment.experiment_id]) if experiment else []
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"run {runs[0].info.run_id} stopped; it left no checkpoint" in err


def test_resume_goes_on_in_the_same_run_and_ends_like_the_uninterrupted_one(place, finished, tmp_path):
    run_id, _, _ = stop_after_a_checkpoint(place, signal.SIGKILL, "resume")
    client = connect()
    config = read_artifact(client, run_id, "config.yaml").replace("max_steps: 4000", "max_steps: 60")
    client.log_text(run_id, config, "config.yaml")
    main(["runs"])
    last = place / "mlruns" / "checkpoints" / run_id / "last.ckpt"
    done = torch.load(last, weights_only=True)["global_step"]
    assert done < 60
    assert main(["train", "--resume", run_id]) == 0
    assert client.get_run(run_id).info.status == "FINISHED"
    whole = train(parse(["--config", "exp.yaml", "--trainer.max_steps", "60"]))
    for name in ("loss", "epsilon_accounted", "val_auc", "clients"):
        assert metric_history(client, run_id, name) == metric_history(client, whole.run_id, name)
    ends = [
        torch.load(download_artifact(client, run, "checkpoints/last.ckpt", tmp_path / run), weights_only=True)
        for run in (run_id, whole.run_id)
    ]
    for name, value in ends[0]["state_dict"].items():
        assert torch.equal(value, ends[1]["state_dict"][name])


def test_a_run_whose_checkpoint_does_not_fit_says_how_it_goes_on(place, finished, monkeypatch, capsys):
    """The disk is full at the second evaluation; once there is room the run goes on from the first."""
    save = WholeCheckpoints.save_checkpoint

    def full(self, checkpoint, path, storage_options=None):
        if checkpoint["global_step"] > 3:
            raise StorageError(f"cannot write the checkpoint {path}: No space left on device")
        save(self, checkpoint, path, storage_options)

    with monkeypatch.context() as patch:
        patch.setattr(WholeCheckpoints, "save_checkpoint", full)
        assert main(["train", "--config", "exp.yaml", "--name", "full"]) == 1
    err = capsys.readouterr().err
    (found,) = re.findall(r"continue with: fednews train --resume (\w+)", err)
    assert "No space left on device" in err.splitlines()[-1]
    assert connect().get_run(found).info.status == "FAILED"
    assert main(["train", "--resume", found]) == 0
    client = connect()
    for name in ("loss", "val_auc"):
        assert metric_history(client, found, name) == metric_history(client, finished.run_id, name)


@pytest.fixture
def breaks_after_five_rounds(monkeypatch):
    step = FederatedLoop.training_step

    def training_step(self, *args):
        if self.round == 5:
            raise FednewsError("the plug was pulled")
        return step(self, *args)

    monkeypatch.setattr(FederatedLoop, "training_step", training_step)


def test_the_last_checkpoint_is_the_last_evaluation_also_when_nothing_improved(breaks_after_five_rounds, capsys):
    """With a learning rate of 0 no evaluation is better than the first; none may be lost for that."""
    arguments = ["train", "--config", "exp.yaml", "--name", "still", "--optimizer", "SGD", "--optimizer.lr", "0"]
    assert main([*arguments, "--trainer.val_check_interval", "2"]) == 1
    client = connect()
    [run] = client.search_runs([client.get_experiment_by_name("still").experiment_id])
    steps = {
        name: torch.load(Path("mlruns/checkpoints", run.info.run_id, f"{name}.ckpt"), weights_only=True)["global_step"]
        for name in ("best", "last")
    }
    assert steps == {"best": 2, "last": 4}
    assert main(["evaluate", run.info.run_id]) == 0, "a run that did not finish can be evaluated"
    assert sorted(metric_history(client, run.info.run_id, "dev_auc")) == [4]
    assert json.loads(read_artifact(client, run.info.run_id, "privacy_ledger.json"))["rounds"] == 5


def test_a_failed_run_is_marked_failed_with_its_reason(capsys):
    arguments = ["train", "--config", "exp.yaml", "--name", "fails", "--optimizer", "SGD", "--optimizer.lr", "1e30"]
    assert main([*arguments, "--algorithm.clip", "null", "--algorithm.noise_scale", "0"]) == 1
    err = capsys.readouterr().err
    assert "the loss became" in err
    assert "Traceback" not in err
    client = connect()
    experiment = client.get_experiment_by_name("fails").experiment_id
    [run] = client.search_runs([experiment])
    assert run.info.status == "FAILED"
    assert "the loss became" in run.data.tags["fednews.error"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["train", "--config", "exp.yaml", "--data.store", "nowhere"], 2, "no prepared data at nowhere"),
        (["train", "--config", "exp.yaml", "--algorithm.clients_per_round", "5000"], 2, "the data has"),
        (["train", "--config", "exp.yaml", "--data.eval_split", "test"], 2, "has no split 'test'"),
        (["train", "--config", "exp.yaml", "--data.word_vectors", "none.txt"], 2, "no word vectors at none.txt"),
        (["train", "--config", "exp.yaml", "--optimizer.lr", "-1"], 2, "optimizer or scheduler: Invalid learning rate"),
        (["train"], 2, "required"),
        (["train", "--resume", ""], 2, "is not a run id"),
        (["train", "--resume", "abc"], 2, "abc"),
        (["evaluate", "nope"], 2, "nope"),
        (["rerun", "nope"], 2, "nope"),
        (["data", "describe", "nowhere"], 2, "no prepared data at nowhere"),
        (["data", "prepare", "mind", "--root", "nowhere", "--out", "x"], 2, "nowhere"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2_and_starts_no_run(finished, capsys, arguments, code, message):
    runs = len(connect().search_runs([resolve_run(connect(), finished.run_id).info.experiment_id]))
    assert main(arguments) == code
    err = capsys.readouterr().err.strip()
    assert message in err
    assert err.startswith("fednews: ")
    assert len(err.splitlines()) == 1
    assert len(connect().search_runs([resolve_run(connect(), finished.run_id).info.experiment_id])) == runs


def test_changed_data_is_not_taken_for_the_runs_own(finished, place, synthetic_store, rows_store, capsys):
    news = [NewsRow(f"N{i}", "c", "s", f"title {i}") for i in range(8)]
    clicks = [BehaviorRow(f"U{i}", i, ["N0"], [f"N{j}" for j in range(8)], [1] + [0] * 7) for i in range(9)]
    other = rows_store({"train": (news, clicks), "dev": (news, clicks)})
    client = connect()
    config = read_artifact(client, finished.run_id, "config.yaml")
    run = train(parse(["--config", "exp.yaml"]))
    client.log_text(run.run_id, config.replace(str(synthetic_store.path), str(other.path)), "config.yaml")
    client.set_terminated(run.run_id, "KILLED")
    for command in (["evaluate", run.run_id], ["train", "--resume", run.run_id]):
        assert main(command) == 2
        assert "is not the data that run" in capsys.readouterr().err


def test_resuming_a_finished_run_is_refused(finished, capsys):
    assert main(["train", "--resume", finished.run_id]) == 2
    assert "has finished" in capsys.readouterr().err


def test_an_unreachable_tracking_server_is_one_line(monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert main(["train", "--config", "exp.yaml"]) == 1
    err = capsys.readouterr().err.strip()
    assert "tracking store http://127.0.0.1:9" in err
    assert len(err.splitlines()) == 1


def test_debug_shows_the_traceback(capsys):
    assert main(["--debug", "data", "describe", "nowhere"]) == 2
    assert "Traceback" in capsys.readouterr().err
