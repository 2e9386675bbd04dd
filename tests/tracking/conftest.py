"""A real SQLite store per test; creating one takes seconds, so each test gets a copy of a fresh one."""

import contextlib
import shutil
import signal
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


@pytest.fixture
def start_server(client, tmp_path: Path) -> Callable[..., contextlib.AbstractContextManager[str]]:
    """An MLflow server over the test's own store."""

    @contextlib.contextmanager
    def run(host: str = "127.0.0.1") -> Iterator[str]:
        with socket.socket() as probe:
            probe.bind((host, 0))
            port = probe.getsockname()[1]
        code = f"from fednews.tracking.ui import serve_ui; serve_ui({host!r}, {port})"
        server = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, text=True, stdout=subprocess.PIPE)
        try:
            assert f"http://{host}:{port}" in server.stdout.readline()
            yield f"http://{host}:{port}"
        finally:
            server.send_signal(signal.SIGINT)
            assert server.wait(timeout=60) == 0

    return run
