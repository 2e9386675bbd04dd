import dataclasses
import time
from collections.abc import Mapping

import pytest
import torch

from fednews.errors import FednewsError
from fednews.tracking import rerun
from fednews.tracking.lookup import pauses
from fednews.tracking.provenance import Provenance, collect
from fednews.tracking.rerun import compare_runs, differences, recorded_config, repeat
from fednews.tracking.run import TrackedRun

from .small import Trained, batches, trainer


@dataclasses.dataclass(frozen=True)
class Outcome:
    run_id: str


@pytest.fixture(autouse=True)
def checkout(monkeypatch) -> Provenance:
    """One clean state of code and machine for the whole test, whoever edits the real checkout meanwhile."""
    clean = dataclasses.replace(collect(), commit="a" * 40, diff="", untracked=())
    monkeypatch.setattr("fednews.tracking.run.collect", lambda: clean)
    monkeypatch.setattr(rerun, "collect", lambda: clean)
    return clean


@pytest.fixture
def train(start, tmp_path):
    """Trains a little for real; a shift of the weights stands for what another machine may do."""

    def run(seed: int = 0, shift: float = 0.0, extra: Mapping[str, float] | None = None, **options) -> Outcome:
        with start(**options) as tracked:
            module = Trained(seed)
            fitter = trainer(tracked.logger)
            fitter.fit(module, batches())
            with torch.no_grad():
                module.model.body[3].weight.add_(shift)
            fitter.save_checkpoint(tmp_path / "last.ckpt")
            tracked.log_file(tmp_path / "last.ckpt", "checkpoints")
            tracked.log_metrics({"round_seconds": torch.rand(()).item(), **(extra or {})}, 3)
        return Outcome(tracked.run_id)

    return run


def test_the_recorded_configuration_is_the_text_of_then(client, train):
    text = "# a comment\nseed: 3\nname: é\n"
    assert recorded_config(client, train(config_yaml=text).run_id) == text


def test_nothing_differs_at_once(client, train):
    assert differences(client, train().run_id, "f00d") == []


def test_what_differs_is_said_in_sentences(client, train, checkout, monkeypatch):
    run = train().run_id
    changed = dataclasses.replace(
        checkout, commit="b" * 40, packages={**checkout.packages, "torch": "9.9"}, torch_threads=77, device="H100"
    )
    monkeypatch.setattr(rerun, "collect", lambda: changed)
    found = differences(client, run, "beef")
    assert len(found) == 5
    for line, part in zip(found, ["beef, then f00d", "bbbb", "torch: 9.9", "77", "H100"], strict=True):
        assert part in line


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"diff": "+ x"}, "uncommitted"),
        ({"untracked": ("new.py",)}, "new.py"),
        ({"commit": "unknown"}, "no git checkout"),
    ],
)
def test_changes_of_the_working_tree_are_noticed(client, train, checkout, monkeypatch, change, said):
    run = train().run_id
    monkeypatch.setattr(rerun, "collect", lambda: dataclasses.replace(checkout, **change))
    (found,) = differences(client, run, "f00d")
    assert said in found


def test_two_runs_of_one_seed_agree_bit_for_bit_whatever_their_timings(client, train):
    assert compare_runs(client, train().run_id, train().run_id, exact=True) == []


def test_two_seeds_disagree_in_metrics_and_weights(client, train):
    found = compare_runs(client, train().run_id, train(seed=1).run_id, exact=False)
    assert any(line.startswith("metric loss at step 0") for line in found)
    assert any(line.startswith("weight model.body.0.weight differs") for line in found)


def test_a_rounding_difference_fails_exactly_and_passes_within_tolerance(client, train):
    a, b = train().run_id, train(shift=1e-6).run_id
    (found,) = compare_runs(client, a, b, exact=True)
    assert "model.body.3.weight" in found
    assert compare_runs(client, a, b, exact=False) == []
    assert compare_runs(client, a, train(shift=1e-2).run_id, exact=False) != []


def test_a_metric_or_step_in_one_run_only_is_a_difference(client, train):
    a, b = train().run_id, train(extra={"clients": 1.0, "more": 1.0}).run_id
    assert compare_runs(client, a, b, exact=True) == [
        f"metric more is only in run {b[:8]}",
        "metric clients at step 3: 2.0 and 1.0",
    ]


def test_infinite_and_missing_values_equal_themselves(client, train):
    extra = {"epsilon_accounted": float("inf"), "val_auc": float("nan")}
    assert compare_runs(client, train(extra=extra).run_id, train(extra=extra).run_id, exact=True) == []
    one, other = (train(extra=values).run_id for values in (extra, dict.fromkeys(extra, 1.0)))
    assert len(compare_runs(client, one, other, exact=False)) == 2


def test_what_was_added_after_the_end_does_not_count(client, train):
    a, b = train().run_id, train().run_id
    end = client.get_run(a).info.end_time
    client.log_metric(a, "dev_auc", 0.6, timestamp=end + 10)
    client.log_metric(a, "loss", 0.6, timestamp=end + 10, step=1)
    assert compare_runs(client, a, b, exact=True) == []


def test_what_was_added_before_a_resume_does_not_count_either(client, train):
    a, b = train().run_id, train().run_id
    for _ in range(2):
        time.sleep(0.005)
        client.log_metric(a, "dev_auc", 0.6)
        time.sleep(0.005)
        with TrackedRun.resume(client, a) as run:
            pass
    assert len(pauses(client.get_run(run.run_id))) == 2
    assert compare_runs(client, a, b, exact=True) == []


def test_runs_without_final_weights_do_not_pass(client, start):
    with start() as a, start() as b:
        pass
    found = compare_runs(client, a.run_id, b.run_id, exact=True)
    assert found == [f"run {run.run_id[:8]} has no final weights (checkpoints/last.ckpt)" for run in (a, b)]


def test_a_rerun_that_agrees_says_so(client, train, capsys):
    old = train().run_id
    new = repeat(client, old, lambda: train(rerun_of=old), "f00d", check=True)
    assert client.get_run(new.run_id).data.tags["fednews.rerun_of"] == old
    out = capsys.readouterr().out
    assert "as run" in out
    assert "bit for bit: metrics and final weights agree" in out


def test_a_rerun_that_disagrees_fails_with_the_first_differences(client, train, capsys):
    old = train().run_id
    with pytest.raises(FednewsError, match=r"does not repeat.*bit for bit: metric loss") as error:
        repeat(client, old, lambda: train(seed=1), "beef", check=True)
    assert "\n" not in str(error.value)
    assert "fingerprint beef" in capsys.readouterr().out


def test_without_check_a_rerun_may_disagree(client, train):
    old = train().run_id
    assert repeat(client, old, lambda: train(seed=1), "f00d", check=False).run_id != old


def test_on_another_machine_a_tolerance_is_enough(client, train, checkout, monkeypatch, capsys):
    old = train().run_id
    elsewhere = dataclasses.replace(checkout, cpu="another")
    monkeypatch.setattr("fednews.tracking.run.collect", lambda: elsewhere)
    monkeypatch.setattr(rerun, "collect", lambda: elsewhere)
    repeat(client, old, lambda: train(shift=1e-6), "f00d", check=True)
    out = capsys.readouterr().out
    assert "processor: another" in out
    assert "within rtol" in out
    with pytest.raises(FednewsError, match="within rtol"):
        repeat(client, old, lambda: train(shift=1e-2), "f00d", check=True)
