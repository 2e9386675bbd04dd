"""A small table, made by tracked runs and printed beside published numbers."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy import stats

from fednews.cli import main
from fednews.errors import UsageError
from fednews.report.matrix import Table, values
from fednews.report.reproduce import report, reproduce
from fednews.tracking.store import connect

TRAINER = {"max_steps": 2, "val_check_interval": 2, "accelerator": "cpu", "enable_progress_bar": False}
MODEL = {"class_path": "NRMS", "init_args": {"word_dim": 8, "heads": 2, "head_dim": 4, "query_dim": 5}}


def adam(lr: float) -> dict:
    return {"class_path": "torch.optim.Adam", "init_args": {"lr": lr}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, synthetic_store) -> Path:
    """A table of two methods and two seeds, all of its runs made."""
    folder = tmp_path_factory.mktemp("table")
    data = {"data": {"store": str(synthetic_store.path), "history_length": 10}, "model": MODEL, "trainer": TRAINER}
    (folder / "data.yaml").write_text(yaml.safe_dump(data))
    table = {
        "title": "small",
        "seeds": [1, 2],
        "metrics": ["val_auc", "val_mrr", "epsilon_accounted"],
        "data": {"synthetic": {"base": "data.yaml"}},
        "methods": {
            "central": {"config": {"algorithm": {"class_path": "Centralized"}, "optimizer": adam(0.01)}},
            "FedAvg": {
                "config": {"algorithm": {"class_path": "FedAvg"}, "optimizer": adam(0.5)},
                "by_data": {"synthetic": {"algorithm": {"init_args": {"clients_per_round": 5}}}},
            },
        },
        "compare": "central",
        "published": {"MIND": {"central": [65.43, 31.1, "-"]}},
        "source": "a paper, Table 1",
    }
    (folder / "table.yaml").write_text(yaml.safe_dump(table, sort_keys=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        assert reproduce("table.yaml", ["central"]) == 2
        assert reproduce("table.yaml") == 2, "the other method only"
    return folder


@pytest.fixture(autouse=True)
def inside(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def test_what_is_tracked_is_not_trained_again(folder):
    assert reproduce("table.yaml") == 0


def test_a_run_counts_whatever_it_is_called_but_not_with_another_setting(folder):
    content = yaml.safe_load((folder / "table.yaml").read_text())
    (folder / "renamed.yaml").write_text(yaml.safe_dump(content | {"title": "other"}))
    assert reproduce("renamed.yaml") == 0
    content["methods"] = {"central": {"config": {"algorithm": {"class_path": "Centralized"}, "optimizer": adam(0.02)}}}
    (folder / "changed.yaml").write_text(yaml.safe_dump(content | {"seeds": [1]}))
    assert reproduce("changed.yaml") == 1


def test_settings_for_one_data_set_reach_its_cells(folder):
    fedavg = [cell for cell in Table.read("table.yaml").cells() if cell.method == "FedAvg"]
    assert {cell.config.algorithm.init_args.clients_per_round for cell in fedavg} == {5}
    assert [cell.config.seed for cell in fedavg] == [1, 2]


def test_the_printed_numbers_are_those_of_the_runs(folder):
    table = Table.read("table.yaml")
    found, commits = values(connect(), table)
    assert len(commits) == 1
    text = report("table.yaml", "markdown")
    for method in ("central", "FedAvg"):
        aucs = 100 * np.array([run[0] for run in found[method, "synthetic"]])
        assert f"{aucs.mean():.2f} ± {aucs.std(ddof=1):.2f}" in text
    runs = [[run[0] for run in found[method, "synthetic"]] for method in ("central", "FedAvg")]
    assert f"{stats.ttest_ind(*runs, equal_var=False, alternative='greater').pvalue:.3f}" in text
    assert "∞" in text, "no protection, no finite epsilon"
    assert "65.43" in text
    assert "a paper, Table 1" in text
    tex = report("table.yaml", "latex")
    assert all(part in tex for part in (r"\toprule", r"\pm", "65.43"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metric": ["val_auc"]}, "not metric"),
        ({"seeds": []}, "lacks 'seeds'"),
        ({"compare": "FINDING"}, "compare names 'FINDING'"),
        ({"methods": {"central": {"conf": {}}}, "compare": None}, "'conf'|conf is neither"),
    ],
)
def test_a_wrong_table_is_one_clear_line(folder, change, message):
    content = yaml.safe_load((folder / "table.yaml").read_text())
    (folder / "wrong.yaml").write_text(yaml.safe_dump(content | change))
    with pytest.raises(UsageError, match=message):
        list(Table.read("wrong.yaml").cells())


def test_the_command_line_prints_a_table(folder, capsys):
    assert main(["report", "table.yaml"]) == 0
    assert "| central" in capsys.readouterr().out
    assert main(["report", "missing.yaml"]) == 2


def test_a_table_may_build_on_another_and_change_all_its_cells(folder):
    rest = {"title": "short", "seeds": [3], "config": {"trainer": {"max_steps": 1}}, "columns": ["synthetic"]}
    (folder / "short.yaml").write_text(yaml.safe_dump({"base": "table.yaml", **rest}))
    cells = list(Table.read("short.yaml").cells())
    assert [(cell.method, cell.seed) for cell in cells] == [("central", 3), ("FedAvg", 3)]
    assert {cell.config.trainer.max_steps for cell in cells} == {1}
    assert cells[1].config.algorithm.init_args.clients_per_round == 5
    (folder / "short.yaml").write_text(yaml.safe_dump({"base": "table.yaml", **rest, "columns": ["MIND"]}))
    with pytest.raises(UsageError, match="columns names 'MIND'"):
        Table.read("short.yaml")
