"""One study in a real PostgreSQL server, which the test starts on loopback."""

import contextlib
import math
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from optuna.trial import TrialState

from fednews.errors import FednewsError
from fednews.tuning.launch import open_study, run_sweep
from fednews.tuning.storage import StudyStorage
from tests.tuning.test_run import TWO, children

START_SECONDS = 60


def _programs() -> Path | None:
    """Debian keeps the server's programs off the PATH."""
    found = [shutil.which("initdb"), *sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)]
    return next((Path(path).resolve().parent for path in found if path), None)


def _account() -> str | None:
    """The server refuses to be root."""
    if os.geteuid():
        return None
    return next((name for name in ("postgres", "nobody") if name in {entry.pw_name for entry in pwd.getpwall()}), None)


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The URL of an empty database."""
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'fednews[postgres]'")
    programs, user = _programs(), _account()
    if programs is None:
        pytest.skip("no PostgreSQL server is installed (initdb is neither on the PATH nor in /usr/lib/postgresql)")
    if os.geteuid() == 0 and user is None:
        pytest.skip("PostgreSQL does not run as root, and there is no account 'postgres' or 'nobody'")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="fednews-postgres-") as folder:
        if user:
            shutil.chown(folder, user)
        options = {"user": user, "cwd": folder, "stdout": subprocess.DEVNULL}
        subprocess.run(
            [programs / "initdb", "-D", "data", "-U", "fednews", "-A", "trust", "--no-sync", "-E", "UTF8"],
            check=True, **options,
        )  # fmt: skip
        settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off"}
        given = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        command = [programs / "postgres", "-D", "data", "-p", str(port), *given]
        server = subprocess.Popen(command, stderr=subprocess.DEVNULL, **options)
        url = f"postgresql://fednews@127.0.0.1:{port}/postgres"
        try:
            _wait(server, url)
            yield url
        finally:
            server.send_signal(signal.SIGINT)  # ends open connections; SIGTERM would wait for them
            server.wait(START_SECONDS)


def _wait(server: subprocess.Popen, url: str) -> None:
    import psycopg

    deadline = time.monotonic() + START_SECONDS
    while True:
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(url).close()
            return
        assert server.poll() is None, "the server ended by itself"
        assert time.monotonic() < deadline, "the server does not answer"
        time.sleep(0.1)


def test_two_workers_share_a_study_on_a_server(write, postgres):
    # Without noise epsilon is infinite, which a database has to hold too.
    space = {"algorithm.clip": {"log": [0.001, 0.1]}, "algorithm.noise_scale": {"categorical": [0.001, 0.0]}}
    enqueue = [{"algorithm.clip": 0.02, "algorithm.noise_scale": 0.0}]
    name = write("server.yaml", objectives=TWO, space=space, enqueue=enqueue, trials=4)
    run_sweep(name, workers=2, storage=postgres)
    study = open_study(name, storage=postgres)
    assert [trial.state for trial in study.trials()] == [TrialState.COMPLETE] * 4
    assert study.trials()[1].values[1] == math.inf
    assert {study.trials()[1].user_attrs["run_id"]} < {run.info.run_id for run in children(study)}
    assert [run.info.status for run in children(study)] == ["FINISHED"] * 4
    assert len({trial.user_attrs["owner"]["pid"] for trial in study.trials()}) == 2
    run_sweep(name, workers=2, storage=postgres)
    assert len(study.trials()) == 4


def test_the_lock_excludes_other_processes(postgres):
    first, second = StudyStorage(postgres), StudyStorage(postgres)
    order = []

    def other() -> None:
        with second.lock():
            order.append("second")

    with first.lock():
        thread = threading.Thread(target=other)
        thread.start()
        time.sleep(0.3)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_a_server_that_is_not_there_is_one_line():
    pytest.importorskip("psycopg")
    with pytest.raises(FednewsError, match=r"study storage postgresql://u:\*\*\*@127.0.0.1:1/db: .*refused") as error:
        StudyStorage("postgresql://u:secret@127.0.0.1:1/db")
    assert "\n" not in str(error.value)
