"""A table of one run, as a notebook sees it."""

from pathlib import Path

import pytest
import yaml

from fednews.errors import FednewsError, UsageError
from fednews.report.tracked import TrackedTable, enter_repository, fill

BASE = {
    "model": {"class_path": "NRMS", "init_args": {"word_dim": 8, "heads": 2, "head_dim": 4, "query_dim": 5}},
    "algorithm": {"class_path": "FedNewsRec", "init_args": {"clients_per_round": 4}},
    "trainer": {"max_steps": 2, "val_check_interval": 1, "accelerator": "cpu", "enable_progress_bar": False},
}
PAPER = {"MIND": {"FedNewsRec": [65.43, 0.67]}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, synthetic_store) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    (folder / "experiments" / "tables").mkdir(parents=True)
    data = BASE | {"data": {"store": str(synthetic_store.path), "history_length": 10}}
    table = {
        "title": "one",
        "seeds": [1],
        "metrics": ["val_auc", "epsilon_published"],
        "data": {"synthetic": data},
        "methods": {"FedNewsRec": {}},
    }
    write(folder / "experiments" / "tables" / "one.yaml", table)
    write(folder / "paper.yaml", table | {"published": PAPER, "source": "a paper"})
    write(folder / "other.yaml", table | {"published": PAPER, "metrics": ["val_mrr", "epsilon_published"]})
    return folder


def write(path, content):
    path.write_text(yaml.safe_dump(content, sort_keys=False))


@pytest.fixture(scope="module")
def table(folder) -> TrackedTable:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        assert TrackedTable.read("experiments/tables/one.yaml").runs == []
        return fill("experiments/tables/one.yaml")


@pytest.fixture(autouse=True)
def inside(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def test_a_row_has_the_metrics_of_the_run_and_the_settings_asked_for(table):
    (row,) = table.frame(noise="algorithm.init_args.noise_scale", absent="algorithm.init_args.budget").to_dict(
        "records"
    )
    assert (row["method"], row["data"], row["seed"]) == ("FedNewsRec", "synthetic", 1)
    assert row["epsilon_published"] == pytest.approx(2 * 0.005 / row["noise"])
    assert row["epsilon_accounted"] > row["epsilon_published"]
    assert row["absent"] is None


def test_the_history_has_every_round_and_ends_at_the_last_value(table):
    history = table.history("val_auc")
    assert history["round"].tolist() == [1, 2]
    assert history["val_auc"].iloc[-1] == table.frame()["val_auc"].item()
    assert table.history("never_logged").empty


def test_the_numbers_stand_beside_those_of_the_paper_that_is_named(table):
    text = table.markdown(paper="paper.yaml")
    assert f"{100 * table.frame()['val_auc'].item():.2f}" in text
    assert "65.43" in text
    assert "a paper" in text
    with pytest.raises(UsageError, match="publishes"):
        table.markdown(paper="other.yaml")


def test_artifacts_are_those_of_the_methods_run(table):
    assert "accounted" in table.artifact("FedNewsRec", "privacy_ledger.json")
    with pytest.raises(UsageError, match="there are FedNewsRec"):
        table.artifact("FINDING", "privacy_ledger.json")
    with pytest.raises(FednewsError, match="no artifact"):
        table.artifact("FedNewsRec", "groups/flow.svg")


def test_a_notebook_finds_the_repository_from_a_folder_inside_it(folder, tmp_path, monkeypatch):
    (folder / "notebooks").mkdir()
    monkeypatch.chdir(folder / "notebooks")
    assert enter_repository() == folder == Path.cwd()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="no checkout"):
        enter_repository()
