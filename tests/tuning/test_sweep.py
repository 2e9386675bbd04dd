"""Sweep files: what they say, and how each wrong word is answered."""

import math
import re

import optuna
import pytest

from fednews.errors import UsageError
from fednews.tuning.optimiser import make_sampler
from fednews.tuning.space import lookup, probes, read_space, suggest
from fednews.tuning.sweep import Sweep
from tests.tuning.conftest import SPACE

WRONG = [
    ({"objective": {"val_auc": "maximize"}}, "no key 'objective': did you mean 'objectives'"),
    ({"space": None}, "lacks 'space'"),
    (
        {"space": {"algorithm.clp": {"log": [0.1, 1]}}},
        "space: unknown .*'algorithm.clp': did you mean 'algorithm.clip'",
    ),
    ({"space": {"algorithm.clip": {"log": ["a", 1]}}}, "algorithm.clip: could not convert"),
    ({"space": {"algorithm.clip": {"log": [0, 1]}}}, "lower bound above 0"),
    ({"space": {"algorithm.clip": {"float": [2, 1]}}}, "2 is not below the highest 1"),
    ({"space": {"algorithm.clip": {"float": [0, 1], "lgo": True}}}, "float has no option 'lgo'"),
    ({"space": {"algorithm.clip": {"uniform": [0, 1]}}}, "one of float, log, int, categorical"),
    ({"space": {"algorithm.clip": {"float": [2, 3], "transform": "exp(x)"}}}, "transform is 'log"),
    ({"space": {"algorithm.clients_at_once": {"int": [1, 2.5]}}}, "int needs whole numbers"),
    ({"space": {"algorithm.loss": {"categorical": ["sum", "median"]}}}, "space: .*median"),
    ({"space": {"algorithm.clients_at_once": {"categorical": [5, "many"]}}}, "space: .*clients_at_once"),
    ({"space": {**SPACE, "seed": {"int": [0, 9]}}}, "'seeds' lists"),
    ({"space": {"algorithm.clip": {"log": [0.1, 1], "when": {"algorithm.loss": "sum"}}}}, "no categorical or int key"),
    ({"objectives": {"val_acu": "maximize"}}, "no run has a metric 'val_acu': did you mean 'val_auc'"),
    ({"objectives": {"val_auc": "max"}}, "give maximize or minimize"),
    ({"objectives": ["val_auc"]}, "objectives must be a mapping"),
    ({"constraints": {"epsilon_accounted": 10}}, "needs {max: X}"),
    ({"sampler": "TPESmpler"}, "no 'TPESmpler' here: did you mean TPESampler"),
    ({"sampler": {"class_path": "TPESampler", "init_args": {"n_startup": 3}}}, "'n_startup_trials'"),
    ({"pruner": "MedianPruner", "objectives": {"val_auc": "maximize", "loss": "minimize"}}, "single objective"),
    ({"pruner": "MedianPruner", "objectives": {"epsilon_accounted": "minimize"}}, "validation metric"),
    ({"trials": 0}, "at least 1"),
    ({"trials": "many"}, "trials must be a whole number"),
    ({"base": 3}, "base must be a text or a list"),
    ({"name": "a/b"}, "it names files"),
    ({"seeds": [1, 1]}, "different whole numbers"),
    ({"enqueue": [{"algorithm.clip": 3}]}, "does not hold 3"),
    ({"enqueue": [{"optimizer.lr": 3}]}, "'optimizer.lr' is not in the space"),
    ({"base": "missing.yaml"}, "cannot read the configuration"),
    ({"config": {"algorithm": {"init_args": {"clop": 3}}}}, "unknown .*clop"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_every_wrong_word_is_one_line_that_names_the_file(write, change, message):
    with pytest.raises(UsageError, match=message) as error:
        Sweep.read(write("wrong.yaml", **change))
    assert str(error.value).startswith("wrong.yaml: ")
    assert "\n" not in str(error.value)


def test_values_reach_the_experiment_and_options_win_over_the_file(write):
    sweep = Sweep.read(write(config={"optimizer": {"init_args": {"lr": 0.5}}}), ["--trainer.max_steps", "9"])
    config = sweep.configure({"algorithm.clip": 0.0123}, seed=4)
    assert config.algorithm.init_args.clip == 0.0123
    assert config.algorithm.init_args.noise_scale == 0.001
    assert (config.seed, config.name, config.trainer.max_steps) == (4, "sweep", 9)
    assert lookup(config, "optimizer.lr") == 0.5


def test_alpha_is_drawn_uniformly_in_the_logarithm_of_alpha_minus_one():
    (alpha,) = read_space({"algorithm.alpha": {"float": [1.0001, 1.1], "transform": "log(alpha - 1)"}})
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    drawn = [alpha.suggest(study.ask()) for _ in range(400)]
    assert all(1.0001 <= value <= 1.1 for value in drawn)
    shares = sorted((math.log(value - 1) - math.log(1e-4)) / math.log(1e3) for value in drawn)
    # Kolmogorov's distance to the uniform law stays below 1.95 / sqrt(n) with probability 0.999.
    assert max(abs(share - i / 400) for i, share in enumerate(shares)) < 1.95 / 20


def test_a_conditional_key_is_there_exactly_when_its_condition_holds():
    space = read_space(
        {
            "algorithm": {"categorical": ["FedAvg", "FedProx"]},
            "algorithm.mu": {"log": [0.01, 1], "when": {"algorithm": "FedProx"}},
        }
    )
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=2))
    drawn = [suggest(space, study.ask()) for _ in range(30)]
    assert {values["algorithm"] for values in drawn} == {"FedAvg", "FedProx"}
    assert all(("algorithm.mu" in values) == (values["algorithm"] == "FedProx") for values in drawn)


def test_probes_reach_every_bound_and_choice_and_keys_under_several_conditions():
    space = read_space(
        {
            "a": {"categorical": [1, 2, 3]},
            "b": {"categorical": {"x": [1], "y": [2]}, "when": {"a": 3}},
            "c": {"float": [0, 1], "when": {"b": "y"}},
            "d": {"int": [1, 5]},
        }
    )
    tried = list(probes(space))
    assert {values["a"] for values in tried} == {1, 2, 3}
    assert {values["d"] for values in tried} == {1, 5}
    assert any(values.get("a") == 3 and values.get("b") == [2] and "c" in values for values in tried)
    assert all("c" not in values or values["b"] == [2] for values in tried)


def test_the_experiments_own_settings_come_first_where_the_space_holds_them(write):
    assert Sweep.read(write()).own() == {"algorithm.clip": 0.01, "algorithm.noise_scale": 0.001}
    assert Sweep.read(write(space={"algorithm.clip": {"log": [0.1, 1]}})).own() is None
    adam = {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.01}}
    parts = {"optimizer": {"categorical": {"slow": {**adam, "init_args": {"lr": 0.001}}, "fast": adam}}}
    assert Sweep.read(write(space=parts)).own() == {"optimizer": "fast"}
    classes = {"algorithm": {"categorical": ["FedAvg", "FedNewsRec"]}}
    assert Sweep.read(write(space=classes)).own() == {"algorithm": "FedNewsRec"}


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"trials": 99}, True),
        ({"sampler": "RandomSampler"}, True),
        ({"seeds": [1]}, False),
        ({"space": {"algorithm.clip": {"log": [0.001, 0.2]}}}, False),
        ({"config": {"trainer": {"max_steps": 7}}}, False),
        ({"constraints": {"epsilon_published": {"max": 3}}}, False),
    ],
)
def test_a_study_is_the_same_while_its_trials_are_comparable(write, change, same):
    names = [Sweep.read(write(**content)).study_name() for content in ({}, change)]
    assert (names[0] == names[1]) == same
    assert all(re.fullmatch("sweep-[0-9a-f]{8}", name) for name in names)


def test_a_sampler_draws_by_its_seed_and_the_trials_number_alone():
    space = read_space({"x": {"float": [0, 1]}})

    def draw(seed: int, number: int) -> float:
        sampler = make_sampler({"class_path": "RandomSampler", "init_args": {"seed": seed}}, number)
        return suggest(space, optuna.create_study(sampler=sampler).ask())["x"]

    assert draw(1, 4) == draw(1, 4)
    assert len({draw(1, 4), draw(1, 5), draw(2, 4)}) == 3
