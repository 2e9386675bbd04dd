"""A real SQLite store per test; creating one takes seconds, so each test gets a copy of a fresh one."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fednews.tracking.run import TrackedRun
from fednews.tracking.store import connect

CONFIG = {"seed": 3, "model": {"class_path": "fednews.models.NRMS", "init_args": {"dim": 8}}}


@pytest.fixture(scope="session")
def fresh_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    connect(f"sqlite:///{path}")
    return path


@pytest.fixture
def client(fresh_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "mlruns").mkdir()
    shutil.copyfile(fresh_database, tmp_path / "mlruns" / "mlflow.db")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return connect()


@pytest.fixture
def start(client) -> Callable[..., TrackedRun]:
    def begin(**changes) -> TrackedRun:
        given = {
            "experiment": "trial",
            "run_name": "first",
            "config": CONFIG,
            "config_yaml": "seed: 3\n",
            "tags": {},
            "fingerprint": "f00d",
        }
        return TrackedRun.start(client, **{**given, **changes})

    return begin


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an MLflow server with a store of its own."""
    folder = tmp_path_factory.mktemp("server")
    process, uri = start_ui(folder)
    yield uri
    process.terminate()
    assert process.wait(timeout=60) == 0


def start_ui(folder: Path) -> tuple[subprocess.Popen, str]:
    """Serve the store in ``folder``; returns when the UI answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = f"from fednews.tracking.ui import serve_ui; serve_ui('127.0.0.1', {port})"
    environment = {key: value for key, value in os.environ.items() if key != "MLFLOW_TRACKING_URI"}
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=folder, env=environment, text=True, stdout=subprocess.PIPE
    )
    uri = f"http://127.0.0.1:{port}"
    assert process.stdout.readline() == f"MLflow UI: {uri} (Ctrl-C ends it)\n"
    return process, uri
