"""``fednews bench`` on a tiny experiment."""

import json

import pytest
import yaml

from fednews.cli import main

SMALL = {"word_dim": 12, "heads": 2, "head_dim": 5, "query_dim": 7}


@pytest.fixture
def config(synthetic_store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    experiment = {
        "data": {"store": str(synthetic_store.path), "history_length": 10},
        "model": {"class_path": "NRMS", "init_args": SMALL},
        "algorithm": {"class_path": "FedNewsRec", "init_args": {"clients_per_round": 5, "clip": 0.01}},
    }
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(experiment))
    return tmp_path / "tiny.yaml"


def test_bench_prints_rates_split_and_ratios_and_leaves_no_run_behind(config, capsys):
    command = ["bench", "--config", str(config), "--rounds", "2", "--reference-samples", "4", "--format", "json"]
    assert main([*command, "--eval-impressions", "30", "--trainer.accelerator", "cpu"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["algorithm"], figures["model"], figures["rounds"]) == ("FedNewsRec", "NRMS", 2)
    assert figures["clients"] == 5 <= figures["samples"]
    assert figures["rounds_per_second"] == pytest.approx(1 / figures["round_seconds"])
    assert figures["clients_per_second"] == pytest.approx(5 / figures["round_seconds"])
    for ratio in ("reference_over_round", "round_over_central", "round_over_floor", "news_encoder_share"):
        assert figures[ratio] > 0
    assert sum(figures["split"].values()) == pytest.approx(1)
    assert min(figures["split"][part] for part in ("data", "news_encoder", "backward", "privacy", "logging")) > 0
    assert figures["eval_impressions"] == 30
    assert figures["eval_impressions_per_second"] > 0
    assert figures["peak_memory_mb"] > 50
    assert not (config.parent / "mlruns").exists()


def test_bench_secagg_prints_both_graphs(capsys):
    assert main(["bench", "secagg", "--clients", "5", "--length", "100"]) == 0
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert shown["clients"] == "5"
    assert {"full.client_seconds", "sparse.bytes_up"} <= shown.keys()


def test_bench_refuses_no_rounds_and_unknown_keys(config, capsys):
    assert main(["bench", "--config", str(config), "--rounds", "0"]) == 2
    assert main(["bench", "--config", str(config), "--algorithm.clip_norm", "1"]) == 2
    assert "fednews: " in capsys.readouterr().err
