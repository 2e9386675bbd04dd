"""The sweeps that come with the repository: they parse, their keys are real, the papers' settings come first."""

import dataclasses
from pathlib import Path

import pytest

from fednews.tuning.sweep import Sweep

SWEEPS = sorted((Path(__file__).parents[2] / "sweeps").glob("*.yaml"))
MODELS = sorted((Path(__file__).parents[2] / "experiments" / "model").glob("*.yaml"))


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_a_shipped_sweep_parses_and_tries_its_experiments_own_settings_first(path):
    sweep = Sweep.read(path)  # tries both bounds or all choices of every key in the experiment's own parser
    assert sweep.own() is not None


def test_the_learning_rate_sweep_takes_every_model():
    sweep = Sweep.read(Path(__file__).parents[2] / "sweeps" / "learning_rate.yaml")
    for model in MODELS:
        layered = dataclasses.replace(sweep, arguments=("--config", str(model)))
        assert layered.own() == {"optimizer.lr": 0.0005}
