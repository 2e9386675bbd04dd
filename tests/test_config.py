from pathlib import Path

import pytest

from fednews.config import dump, instantiate, make_parser, parse, parse_text
from fednews.errors import UsageError
from fednews.report.matrix import Table

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
NEEDED = ["--data.store", "x", "--model", "NRMS", "--algorithm", "FedNewsRec"]


def test_a_dumped_configuration_reads_back_equal():
    config = parse([*NEEDED, "--algorithm.clip", "null", "--optimizer", "Adam", "--model.heads", "3"])
    assert config.algorithm.init_args.clip is None
    again = parse_text(dump(config))
    assert again.as_dict() == config.as_dict()
    assert dump(again) == dump(config)


def test_later_files_and_options_win_and_bases_come_first(tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "model.yaml").write_text("model: {class_path: NRMS, init_args: {heads: 3, head_dim: 4}}\n")
    (tmp_path / "exp.yaml").write_text(
        "base: [parts/model.yaml]\nseed: 4\ndata: {store: s, negatives: 2}\n"
        "model: {class_path: NRMS, init_args: {heads: 5}}\nalgorithm: {class_path: FedAvg}\n"
    )
    (tmp_path / "more.yaml").write_text("data: {negatives: 7}\n")
    config = parse(["--config", str(tmp_path / "exp.yaml"), f"--config={tmp_path / 'more.yaml'}", "--seed", "9"])
    assert (config.seed, config.data.store, config.data.negatives) == (9, "s", 7)
    assert (config.model.init_args.heads, config.model.init_args.head_dim) == (5, 4)


def test_another_class_drops_the_settings_of_the_one_before(tmp_path):
    config = parse([*NEEDED, "--model.heads", "3", "--model", "NAML"])
    assert "heads" not in config.model.init_args
    assert config.model.init_args.filters == 400


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--sed", "1"], "unknown configuration key 'sed': did you mean 'seed'"),
        (["--algorithm.clp", "1"], "unknown configuration key 'algorithm.clp': did you mean 'algorithm.clip'"),
        (["--algorithm", "PFedMe", "--algorithm.inner_stepz", "2"], "did you mean 'algorithm.inner_steps'"),
        (["--optimizer.lrr", "1"], "unknown configuration key 'optimizer.lrr': did you mean 'optimizer.lr'"),
        (["--model.head", "1"], "did you mean 'model.heads'"),
        (["--data.negativs", "1"], "did you mean 'data.negatives'"),
        (["--trainer.max_step", "1"], "did you mean 'trainer.max_steps'"),
        (["--algorithm", "FedAvgg"], "algorithm: there is no class 'FedAvgg': did you mean FedAvg?"),
        (["--model", "Qwertz"], "NAML, NPA, NRMS"),
        (["--optimizer", "Adan"], "optimizer: there is no class 'Adan': did you mean Adam"),
        (["--seed", "x"], "seed must be a whole number, not 'x'"),
        (["--seed", "-1"], "seed must not be negative"),
        (["--delta", "0"], "delta must lie between 0 and 1"),
        (["--trainer.max_steps", "0"], "number of rounds"),
        (["--trainer.accumulate_grad_batches", "4"], "accumulate_grad_batches cannot be changed"),
        (["--trainer.fast_dev_run", "true"], "fast_dev_run cannot be changed"),
        (["--trainer.val_check_interval", "0.5"], "whole number of rounds"),
        (["--algorithm.loss", "median"], "algorithm.loss must be one of sum, mean, not 'median'"),
        (["--algorithm.clients_at_once", "many"], "algorithm.clients_at_once must be a whole number > 0, not 'many'"),
        (["--algorithm.clients_at_once", "0"], "algorithm.clients_at_once must be a whole number > 0, not '0'"),
        (["--algorithm.clip", "x"], "algorithm.clip must be a number, not 'x'"),
        (["--algorithm", "PrivateRec", "--algorithm.epsilon", "inf"], "not 'inf': infinity is written .inf"),
        (["--model.dropout", "1.5"], "model.dropout must be a number >= 0 and < 1, not '1.5'"),
        (["--model.heads", "0"], "model.heads must be a whole number > 0, not '0'"),
        (["--model.train_words", "5"], "model.train_words must be true or false, not '5'"),
        (
            ["--model", "PrivateRecModel", "--model.base", "NRMS", "--model.base.heads", "0"],
            "model.base.heads must be a",
        ),
        (["--model", "PrivateRecModel", "--model.base", "NRMZ"], "there is no class 'NRMZ': did you mean NRMS?"),
        (["--optimizer.lr", "fast"], "optimizer.lr must be a number, not 'fast'"),
        (
            ["--scheduler", "StepLR", "--scheduler.step_size", "x"],
            "scheduler.step_size must be a whole number, not 'x'",
        ),
        (["--trainer.precision", "8"], "trainer.precision must be one of 64, 32, 16, "),
        (["--algorithm", "FedPer", "--algorithm.personal_layers", "all"], "personal_layers must be a whole number"),
        (["--config", "absent.yaml"], "cannot read the configuration absent.yaml"),
    ],
)
def test_mistakes_are_one_clear_line(extra, message):
    with pytest.raises(UsageError) as error:
        parse([*NEEDED, *extra])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("part", "setting"), [("algorithm", "clients_at_once"), ("model", "dropout")])
def test_a_setting_of_a_part_without_a_class_asks_for_the_class(part, setting):
    with pytest.raises(UsageError, match=f"^{part}.{setting}: name the {part} first, by --{part} CLASS"):
        parse(["--data.store", "x", f"--{part}.{setting}", "0"])
    with pytest.raises(UsageError, match=f"unknown configuration key '{part}.{setting}z': did you mean '{part}."):
        parse(["--data.store", "x", f"--{part}.{setting}z", "0"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: [", "is not YAML"),
        ("- a\n- b\n", "must hold keys and values"),
        ("base: exp.yaml\n", "builds on itself"),
        ("data: {store: x, negativs: 3}\n", "did you mean 'data.negatives'"),
        ("model: {class_path: NRMS, init_args: {head: 3}}\n", "did you mean 'model.heads'"),
    ],
)
def test_mistakes_in_files_are_one_clear_line(tmp_path, text, message):
    path = tmp_path / "exp.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        parse([*NEEDED, "--config", str(path)])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def files(tables: bool) -> list[Path]:
    return [path for path in sorted(EXPERIMENTS.rglob("*.yaml")) if (path.parent.name == "tables") == tables]


@pytest.mark.parametrize("path", files(tables=True), ids=lambda p: p.stem)
def test_every_table_that_ships_is_valid(path):
    cells = list(Table.read(path).cells())
    assert len({(cell.method, cell.data, cell.seed) for cell in cells}) == len(cells) > 0


@pytest.mark.parametrize("path", files(tables=False), ids=lambda p: str(p.relative_to(EXPERIMENTS)))
def test_every_experiment_and_part_that_ships_is_valid(path):
    config = parse([*NEEDED, "--config", str(path)])
    assert config.trainer.max_steps >= 1


def test_every_setting_has_a_description():
    help_text = make_parser().format_help()
    for key in ("data.store", "data.negatives", "seed", "delta"):
        assert f"--{key}" in help_text


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--data.negatives", "0"], "data.negatives must be at least 1"),
        (["--algorithm.clip", "-1"], "clip must be above 0"),
        (
            ["--algorithm.clients_per_round", "2.5"],
            "whole number of clients, or a fraction above 0 and below 1, not 2.5",
        ),
        (
            ["--algorithm.clients_per_round", ".inf"],
            "whole number of clients, or a fraction above 0 and below 1, not inf",
        ),
        (
            ["--algorithm.clients_per_round", ".nan"],
            "whole number of clients, or a fraction above 0 and below 1, not nan",
        ),
        (["--algorithm.client_dropout", "1"], "a probability below 1"),
        (["--algorithm", "Centralized", "--algorithm.batch_size", "0"], "batch_size must be at least 1"),
        (["--algorithm", "FedAvg", "--algorithm.local_steps", "0"], "local_steps must be at least 1"),
    ],
)
def test_settings_out_of_range_are_one_clear_line_when_built(synthetic_store, extra, message):
    config = parse([*NEEDED, "--data.store", str(synthetic_store.path), *extra])
    with pytest.raises(UsageError) as error:
        instantiate(config)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("model", "setting", "value", "allowed"),
    [
        ("nrms", "heads", "0", "a whole number > 0"),
        ("dkn", "windows", "[1,0]", "a whole number > 0"),
        ("naml", "dropout", "1.0", "a number >= 0 and < 1"),
    ],
)
def test_a_size_or_rate_out_of_range_is_refused_in_one_line(model, setting, value, allowed):
    layers = ["--config", "experiments/mind_sample_central.yaml", "--config", f"experiments/model/{model}.yaml"]
    with pytest.raises(UsageError, match=rf"^model.{setting} must be {allowed}, not '\S+'$"):
        parse([*layers, f"--model.init_args.{setting}={value}"])


def test_numbers_of_a_configuration_are_built_in_ones():
    layers = ["--config", "experiments/mind_sample_central.yaml", "--config", "experiments/model/dkn.yaml"]
    model = parse([*layers, "--model.init_args.windows=[1,3]"]).model.init_args
    assert {type(value) for value in (*model.windows, model.filters)} == {int}
    assert type(model.dropout) is float
