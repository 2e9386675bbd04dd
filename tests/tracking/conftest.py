"""A real SQLite store per test; creating one takes seconds, so each test gets a copy of a fresh one."""

import shutil
from collections.abc import Callable
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
