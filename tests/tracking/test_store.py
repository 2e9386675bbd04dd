import ctypes
import os
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fednews.errors import FednewsError, UsageError
from fednews.tracking.store import artifact_root, connect, experiment_id, hide_password, tracking_uri

OPEN = """
from fednews.errors import FednewsError
from fednews.tracking.store import connect, experiment_id
try:
    print(experiment_id(connect(), "shared"))
except FednewsError as error:
    raise SystemExit(f"{type(error).__name__}: {error}")
"""
LIMIT_FILES = "import resource, signal; resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))\n"


def child(code: str, folder: Path, **options) -> subprocess.Popen:
    environment = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def assert_one_line(error: pytest.ExceptionInfo, *parts: str) -> None:
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 500
    for part in parts:
        assert part in text


def test_four_processes_that_open_a_fresh_store_at_once_all_succeed(tmp_path):
    processes = [child(OPEN, tmp_path) for _ in range(4)]
    outputs = [process.communicate(timeout=180) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, outputs
    assert len({out for out, _ in outputs}) == 1
    assert {path.name for path in (tmp_path / "mlruns").iterdir()} == {"mlflow.db", "mlflow.db.lock"}


def test_opening_an_existing_store_keeps_what_it_holds(client):
    made = experiment_id(client, "kept")
    assert experiment_id(connect(), "kept") == made


def test_the_store_is_where_the_variable_says(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    assert tracking_uri() == "http://127.0.0.1:1"
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert tracking_uri() == "sqlite:///mlruns/mlflow.db"


def test_a_store_opened_before_a_change_of_folder_is_still_found(client, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    run = client.create_run(experiment_id(client, "moved"))
    client.log_text(run.info.run_id, "x", "x.txt")
    assert not list(elsewhere.iterdir())


def test_artifacts_lie_beside_the_database(client, tmp_path):
    location = Path(client.get_experiment(experiment_id(client, "a b/..c")).artifact_location)
    assert location.parent == tmp_path / "mlruns" / "artifacts"
    assert artifact_root("http://127.0.0.1:1") is None


def test_a_deleted_experiment_is_a_clear_error(client):
    client.delete_experiment(experiment_id(client, "gone"))
    with pytest.raises(FednewsError) as error:
        experiment_id(client, "gone")
    assert_one_line(error, "gone", "deleted", "restore")


def test_an_experiment_needs_a_name(client):
    with pytest.raises(UsageError, match="name"):
        experiment_id(client, " ")


def test_a_refused_connection_fails_within_seconds():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{closed.getsockname()[1]}"
    begin = time.monotonic()
    with pytest.raises(FednewsError) as error:
        connect(uri)
    assert time.monotonic() - begin < 15
    assert_one_line(error, uri, "Connection refused", "MLFLOW_TRACKING_URI")


def test_a_server_that_never_answers_fails_after_the_users_timeout(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        begin = time.monotonic()
        with pytest.raises(FednewsError) as error:
            connect(f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert time.monotonic() - begin < 10
    assert_one_line(error, "no answer")


def test_a_run_in_progress_is_more_patient_than_its_start(client, monkeypatch):
    connect()
    assert int(os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"]) > 1
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    connect()
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "2"


@pytest.mark.parametrize(
    "uri", ["nonsense://x", "postgresql://user:secret@127.0.0.1:1/db", "file:./mlruns", "sqlite://host/x"]
)
def test_a_store_that_cannot_be_is_one_line_without_passwords(uri, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    begin = time.monotonic()
    with pytest.raises(FednewsError) as error:
        connect(uri)
    assert time.monotonic() - begin < 15
    assert_one_line(error)
    assert "secret" not in str(error.value)


def test_a_database_in_memory_is_refused():
    with pytest.raises(UsageError, match="memory"):
        connect("sqlite://")


def test_a_file_that_is_no_database_is_a_clear_error_and_stays(tmp_path):
    path = tmp_path / "mlflow.db"
    path.write_bytes(b"not a database, " * 100)
    with pytest.raises(FednewsError) as error:
        connect(f"sqlite:///{path}")
    assert_one_line(error, "not a database")
    assert path.read_bytes() == b"not a database, " * 100


def test_a_damaged_database_is_a_clear_error(client, tmp_path):
    path = tmp_path / "damaged.db"
    whole = bytearray((tmp_path / "mlruns" / "mlflow.db").read_bytes())
    whole[4096:] = b"\xff" * (len(whole) - 4096)
    path.write_bytes(whole)
    with pytest.raises(FednewsError) as error:
        connect(f"sqlite:///{path}")
    assert_one_line(error, "damaged")


def test_a_path_that_cannot_be_a_folder_is_a_clear_error(tmp_path):
    (tmp_path / "mlruns").write_text("a file")
    with pytest.raises(FednewsError) as error:
        connect(f"sqlite:///{tmp_path}/mlruns/mlflow.db")
    assert_one_line(error, "mlruns")


def give_up_roots_override() -> None:
    """Let permissions count for root too, from the next exec on (PR_CAPBSET_DROP, CAP_DAC_OVERRIDE)."""
    if os.geteuid() == 0:
        ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="drops a Linux capability when run as root")
def test_an_unwritable_folder_is_a_clear_error(tmp_path):
    folder = tmp_path / "mlruns"
    folder.mkdir(mode=0o555)
    process = child(OPEN, tmp_path, preexec_fn=give_up_roots_override)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert errors.strip().splitlines()[-1].startswith("StorageError: tracking store sqlite")
    assert "Permission denied" in errors
    assert "Traceback" not in errors


def test_a_full_disk_leaves_no_half_made_database(tmp_path):
    process = child(LIMIT_FILES + OPEN, tmp_path)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert errors.strip().startswith("StorageError: tracking store sqlite"), errors
    assert "disk" in errors
    assert len(errors.strip().splitlines()) == 1
    assert [path.name for path in (tmp_path / "mlruns").iterdir()] == ["mlflow.db.lock"]


def test_a_store_locked_by_another_program_is_a_clear_error(client, tmp_path, monkeypatch):
    monkeypatch.setattr("fednews.tracking.store.BUSY_SECONDS", 0.1)
    other = sqlite3.connect(tmp_path / "mlruns" / "mlflow.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(FednewsError) as error:
        connect()
    other.close()
    assert_one_line(error, "locked")


def test_passwords_are_hidden():
    assert hide_password("postgresql://me:secret@host:5432/db") == "postgresql://me:***@host:5432/db"
    assert hide_password("http://127.0.0.1:5000") == "http://127.0.0.1:5000"
