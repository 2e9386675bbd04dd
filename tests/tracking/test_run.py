import errno
import json
import math
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fednews.errors import DataError, FednewsError, UsageError
from fednews.tracking.lookup import metric_history, number, read_artifact
from fednews.tracking.reaper import close_dead_runs, is_alive
from fednews.tracking.run import Terminated, TrackedRun
from fednews.tracking.store import connect, experiment_id

TRACKED = """
import sys, time
from fednews.tracking.run import TrackedRun
from fednews.tracking.store import connect
with TrackedRun.start(connect(), "trial", "child", {}, "", {}, "f00d") as run:
    run.log_metrics({"loss": 1.0}, 0)
    print(run.run_id, flush=True)
    time.sleep(120)
"""


def tracked_child(folder: Path) -> subprocess.Popen:
    """A process that tracks a run; it prints the id."""
    return subprocess.Popen([sys.executable, "-c", TRACKED], cwd=folder, text=True, stdout=subprocess.PIPE)


def status_of(client, run_id: str) -> str:
    return client.get_run(run_id).info.status


def test_a_run_records_what_it_is_made_of(client, start, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/fednews", "train", "--name", "two words"])
    with start(tags={"mine": "1"}, rerun_of="0" * 32) as run:
        pass
    found = client.get_run(run.run_id)
    tags = found.data.tags
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "first"
    assert found.data.params == {"seed": "3", "model": "NRMS", "model.dim": "8"}
    assert tags["mine"] == "1"
    assert tags["fednews.fingerprint"] == "f00d"
    assert tags["fednews.pid"] == str(os.getpid())
    assert tags["fednews.rerun_of"] == "0" * 32
    assert tags["fednews.command"] == "fednews train --name 'two words'"
    assert tags["mlflow.note.content"] == "NRMS, seed 3"
    assert read_artifact(client, run.run_id, "config.yaml") == "seed: 3\n"
    provenance = json.loads(read_artifact(client, run.run_id, "provenance/provenance.json"))
    assert provenance["commit"] == tags["mlflow.source.git.commit"]
    assert str(provenance["dirty"]).lower() == tags["fednews.dirty"]


def test_hundreds_of_parameters_and_long_values_are_taken(client, start):
    config = {f"key_{i}": i for i in range(250)} | {"long": "x" * 10_000, "empty": "", "none": None}
    with start(config=config) as run:
        pass
    params = client.get_run(run.run_id).data.params
    assert len(params) == 253
    assert params["key_249"] == "249"
    assert params["long"].startswith("x" * 5_000)
    assert params["empty"] == ""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (KeyboardInterrupt(), "KILLED"),
        (Terminated(signal.SIGTERM), "KILLED"),
        (SystemExit(0), "FINISHED"),
        (SystemExit(2), "FAILED"),
        (ValueError("a\nb"), "FAILED"),
        (DataError("file:3: bad"), "FAILED"),
    ],
)
def test_the_status_says_how_the_block_ended(client, start, error, status):
    with pytest.raises(type(error)), start() as run:
        raise error
    found = client.get_run(run.run_id)
    assert found.info.status == status
    assert found.info.end_time is not None
    said = {"ValueError": "ValueError: a b", "DataError": "file:3: bad", "SystemExit": "SystemExit: 2"}
    expected = said[type(error).__name__] if status == "FAILED" else None
    assert found.data.tags.get("fednews.error") == expected


def test_lightnings_exit_after_ctrl_c_counts_as_killed(client, start):
    def as_lightning_does() -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            sys.exit(1)

    with pytest.raises(SystemExit), start() as run:
        as_lightning_does()
    assert status_of(client, run.run_id) == "KILLED"


def test_a_signal_closes_the_run_as_killed(client, tmp_path):
    codes = {signal.SIGTERM: 143, signal.SIGHUP: 129}
    processes = {signum: tracked_child(tmp_path) for signum in codes}
    for signum, process in processes.items():
        run_id = process.stdout.readline().strip()
        assert status_of(client, run_id) == "RUNNING"
        process.send_signal(signum)
        assert process.wait(timeout=60) == codes[signum]
        assert status_of(client, run_id) == "KILLED"


def test_signal_handlers_are_given_back(start):
    before = signal.getsignal(signal.SIGTERM)
    with start():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_run_whose_process_was_killed_is_found_and_closed(client, start, tmp_path):
    process = tracked_child(tmp_path)
    dead = process.stdout.readline().strip()
    experiment = experiment_id(client, "trial")
    foreign = client.create_run(experiment, tags={"fednews.host": "elsewhere", "fednews.pid": "1"}).info.run_id
    untagged = client.create_run(experiment).info.run_id
    with start() as mine:
        assert close_dead_runs(client) == []
        process.kill()
        process.wait()
        assert close_dead_runs(client) == [dead]
        assert close_dead_runs(client) == []
        assert [status_of(client, run) for run in (dead, foreign, untagged, mine.run_id)] == [
            "KILLED",
            "RUNNING",
            "RUNNING",
            "RUNNING",
        ]
    assert "reaper" in client.get_run(dead).data.tags["fednews.closed_by"]
    (logged,) = client.get_metric_history(dead, "loss")
    assert logged.value == 1.0
    assert client.get_run(dead).info.end_time == logged.timestamp


def test_a_process_number_given_to_another_process_is_not_the_run(client, start):
    with start() as run:
        assert is_alive(client.get_run(run.run_id))
        client.set_tag(run.run_id, "fednews.process_started", "12345.0")
        assert is_alive(client.get_run(run.run_id)) is False


def test_metrics_keep_nan_and_infinity(client, start):
    values = {"nan": math.nan, "up": math.inf, "down": -math.inf, "plain": 0.1, "round": 3}
    with start() as run:
        run.log_metrics(values, step=7)
    for key, value in values.items():
        assert metric_history(client, run.run_id, key) == pytest.approx({7: value}, abs=0, rel=0, nan_ok=True)


def test_a_large_finite_metric_is_not_infinity():
    assert number(1e308) == 1e308
    assert number(-sys.float_info.max) == -math.inf


def test_json_artifacts_are_strict_json_even_with_infinity(client, start):
    value = {"epsilon": math.inf, "list": [1.5, (math.nan, -math.inf)], "text": "é", "none": None}
    with start() as run:
        run.log_json("deep/ledger.json", value)

    def refuse(token: str) -> None:
        raise AssertionError(token)

    text = read_artifact(client, run.run_id, "deep/ledger.json")
    assert json.loads(text, parse_constant=refuse) == {
        "epsilon": "inf",
        "list": [1.5, ["nan", "-inf"]],
        "text": "é",
        "none": None,
    }


def test_files_are_copied_and_replaced_whole(client, start, tmp_path):
    source = tmp_path / "last.ckpt"
    with start() as run:
        for text in ("first, longer", "second"):
            source.write_text(text)
            run.log_file(source, "checkpoints")
    assert read_artifact(client, run.run_id, "checkpoints/last.ckpt") == "second"
    assert [item.path for item in client.list_artifacts(run.run_id, "checkpoints")] == ["checkpoints/last.ckpt"]


@pytest.mark.parametrize("links", [True, False])
def test_a_final_file_is_shared_where_the_disk_can_and_replacing_it_changes_no_artifact(
    client, start, tmp_path, monkeypatch, links
):
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "other disk")

    if not links:
        monkeypatch.setattr("os.link", refuse)
    source, new = tmp_path / "last.ckpt", tmp_path / "new.ckpt"
    source.write_text("first")
    new.write_text("second")
    with start() as run:
        run.log_file(source, "checkpoints", final=True)
        assert Path(run.artifact_uri, "checkpoints/last.ckpt").samefile(source) == links
        new.replace(source)
    assert read_artifact(client, run.run_id, "checkpoints/last.ckpt") == "first"


def test_a_missing_file_is_a_clear_error(start, tmp_path):
    with start() as run, pytest.raises(FednewsError, match=r"No such file.*absent"):
        run.log_file(tmp_path / "absent", "x")


def test_a_full_disk_during_a_run_is_one_line_and_leaves_no_part(client, start, tmp_path):
    source = tmp_path / "big.ckpt"
    source.write_bytes(b"x" * 2_000_000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with start() as run:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
        try:
            with pytest.raises(FednewsError) as error:
                run.log_file(source, "checkpoints")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert "\n" not in str(error.value)
        assert "large" in str(error.value)
        assert not list(Path(run.artifact_uri, "checkpoints").iterdir())


def test_a_store_that_fails_at_the_end_does_not_hide_why_the_run_failed(client, start, tmp_path):
    def fail() -> None:
        damage(tmp_path)
        raise ValueError("the cause")

    with pytest.raises(ValueError, match="the cause") as error, start():
        fail()
    assert "could not be closed" in error.value.__notes__[0]


def test_a_store_that_fails_during_the_run_is_one_line(start, tmp_path, capfd):
    run = start()
    damage(tmp_path)
    with pytest.raises(FednewsError, match="tracking store") as error:
        run.log_metrics({"loss": 1.0}, 0)
    assert "\n" not in str(error.value)
    assert "Traceback" not in capfd.readouterr().err


def damage(folder: Path) -> None:
    """Overwrite the whole database, as a broken disk may."""
    path = folder / "mlruns" / "mlflow.db"
    path.write_bytes(b"\xff" * path.stat().st_size)


def test_a_start_that_fails_half_way_is_not_left_running(client, start, tmp_path):
    (tmp_path / "mlruns" / "artifacts").write_text("in the way")
    with pytest.raises(FednewsError, match="tracking store"):
        start()
    assert [run.info.status for run in client.search_runs([experiment_id(client, "trial")])] == ["FAILED"]


def test_a_resumed_run_goes_on_under_its_id(client, start):
    run = start()
    run.log_metrics({"loss": 1.0}, 0)
    run.log_metrics({"loss": 9.0}, 1)
    with pytest.raises(ValueError, match="stop"), run:
        raise ValueError("stop")
    with TrackedRun.resume(client, run.run_id[:10]) as again:
        assert status_of(client, run.run_id) == "RUNNING"
        again.log_metrics({"loss": 2.0}, 1)
        again.log_metrics({"loss": 3.0}, 2)
    found = client.get_run(run.run_id)
    assert again.run_id == run.run_id
    assert found.info.status == "FINISHED"
    assert "fednews.error" not in found.data.tags
    assert found.data.tags["fednews.resumed"] == "1"
    assert found.data.tags["fednews.fingerprint"] == "f00d"
    assert metric_history(client, run.run_id, "loss") == {0: 1.0, 1: 2.0, 2: 3.0}
    assert json.loads(read_artifact(client, run.run_id, "provenance/resumed_1/provenance.json"))["python"]


def test_a_run_in_progress_cannot_be_resumed(client, start):
    with start() as run, pytest.raises(FednewsError, match=f"still running.*{os.getpid()}"):
        TrackedRun.resume(client, run.run_id)


def test_an_unknown_run_cannot_be_resumed(client):
    with pytest.raises(UsageError, match="no run"):
        TrackedRun.resume(client, "abc")


def test_a_run_goes_to_an_mlflow_server_as_well(server):
    client = connect(server)
    with TrackedRun.start(client, "remote", "r", {"a": 1}, "a: 1\n", {}, "f") as run:
        run.log_metrics({"epsilon": math.inf, "nan": math.nan}, 1)
        run.log_file(__file__, "code")
    assert status_of(client, run.run_id) == "FINISHED"
    assert metric_history(client, run.run_id, "epsilon") == {1: math.inf}
    assert read_artifact(client, run.run_id, f"code/{Path(__file__).name}") == Path(__file__).read_text()
