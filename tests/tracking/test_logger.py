import os
import signal
import subprocess
import sys

import mlflow
import pytest

from fednews.tracking.lookup import metric_history

from . import small
from .small import Trained, batches, trainer

FITTING = f"""
import time
from fednews.tracking.run import TrackedRun
from fednews.tracking.store import connect
from {small.__name__} import Trained, batches, trainer

class Slow(Trained):
    def training_step(self, batch, index):
        if index == 1:
            print("in the second step", flush=True)
            time.sleep(120)
        return super().training_step(batch, index)

with TrackedRun.start(connect(), "trial", "child", {{}}, "", {{}}, "f00d") as run:
    print(run.run_id, flush=True)
    trainer(run.logger).fit(Slow(), batches())
"""


class CountedClient:
    """Passes everything on, and counts the batches."""

    def __init__(self, client) -> None:
        self.client = client
        self.batches = 0

    def __getattr__(self, name: str):
        return getattr(self.client, name)

    def log_batch(self, *args, **kwargs):
        self.batches += 1
        return self.client.log_batch(*args, **kwargs)


def test_a_lightning_run_logs_each_step_once_and_no_epoch(client, start):
    uri = mlflow.get_tracking_uri()
    with start() as run:
        run.client = CountedClient(client)
        trainer(run.logger).fit(Trained(), batches(4), batches(2))
        assert run.client.batches == 4 + 1
        assert client.get_run(run.run_id).info.status == "RUNNING"
    found = client.get_run(run.run_id)
    assert set(found.data.metrics) == {"loss", "clients", "val_auc"}
    assert metric_history(client, run.run_id, "clients") == dict.fromkeys(range(4), 2.0)
    assert found.data.params == {"seed": "3", "model": "NRMS", "model.dim": "8"}
    assert found.info.status == "FINISHED"
    assert mlflow.get_tracking_uri() == uri


def test_an_exception_in_training_fails_the_run(client, start):
    class Broken(Trained):
        def training_step(self, batch, index):
            raise ValueError("nan loss")

    with pytest.raises(ValueError, match="nan loss"), start() as run:
        trainer(run.logger).fit(Broken(), batches())
    found = client.get_run(run.run_id)
    assert (found.info.status, found.data.tags["fednews.error"]) == ("FAILED", "ValueError: nan loss")


def test_a_signal_during_training_closes_the_run_as_killed(client, tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = {
        signum: subprocess.Popen(
            [sys.executable, "-c", FITTING], cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE
        )
        for signum in (signal.SIGTERM, signal.SIGINT)
    }
    for signum, process in processes.items():
        run_id = process.stdout.readline().strip()
        assert "second step" in process.stdout.readline()
        process.send_signal(signum)
        assert process.wait(timeout=60) == {signal.SIGTERM: 143, signal.SIGINT: 1}[signum]
        found = client.get_run(run_id)
        assert found.info.status == "KILLED"
        assert "fednews.error" not in found.data.tags
