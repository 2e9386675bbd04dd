"""A working directory with a small experiment and a tracking store, and sweeps over it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

EXPERIMENT = """
data: {{store: {store}, history_length: 10}}
model: {{class_path: NRMS, init_args: {{word_dim: 8, heads: 2, head_dim: 4, query_dim: 5, train_words: true}}}}
algorithm: {{class_path: FedNewsRec, init_args: {{clients_per_round: 5, clip: 0.01, noise_scale: 0.001}}}}
optimizer: {{class_path: torch.optim.Adam, init_args: {{lr: 0.01}}}}
trainer: {{max_steps: 6, val_check_interval: 3, accelerator: cpu, enable_progress_bar: false}}
"""
SPACE = {"algorithm.clip": {"log": [0.001, 0.1]}, "algorithm.noise_scale": {"log": [1e-4, 0.01]}}


@pytest.fixture(scope="module")
def place(tmp_path_factory, synthetic_store) -> Path:
    folder = tmp_path_factory.mktemp("sweeps")
    (folder / "exp.yaml").write_text(EXPERIMENT.format(store=synthetic_store.path))
    return folder


@pytest.fixture(autouse=True)
def inside(place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", "1")


@pytest.fixture
def write(place) -> Callable[..., str]:
    """Writes a sweep file; returns its name."""

    def write(file: str = "sweep.yaml", **changes) -> str:
        content = {"base": "exp.yaml", "objectives": {"val_auc": "maximize"}, "space": SPACE, "trials": 3} | changes
        (place / file).write_text(yaml.safe_dump({k: v for k, v in content.items() if v is not None}, sort_keys=False))
        return file

    return write
