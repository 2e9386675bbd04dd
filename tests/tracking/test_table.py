import datetime
import math

import pytest

from fednews.errors import UsageError
from fednews.tracking.store import experiment_id
from fednews.tracking.table import COLUMNS, format_duration, format_runs, format_table, list_runs


def test_runs_are_listed_newest_first_with_what_they_recorded(client, start):
    with start(tags={"fednews.data": "mind-sample"}) as first:
        for step in (1, 2, 3):
            first.log_metrics({"loss": 1.0, "epsilon_accounted": math.inf}, step)
        first.log_metrics({"val_auc": 0.6}, 3)
    with pytest.raises(ValueError, match="bad"), start(run_name="second"):
        raise ValueError("bad")
    failed, finished = list_runs(client)
    assert (failed["name"], failed["status"], failed["rounds"], failed["val_auc"]) == ("second", "FAILED", None, None)
    assert finished["run_id"] == first.run_id
    assert first.run_id.startswith(finished["run"])
    assert finished["rounds"] == 3
    assert finished["val_auc"] == 0.6
    assert finished["epsilon_accounted"] == math.inf
    assert (finished["model"], finished["data"], finished["algorithm"]) == ("NRMS", "mind-sample", None)
    assert abs(finished["started"] - datetime.datetime.now()) < datetime.timedelta(minutes=5)
    assert 0 <= finished["duration"] < 300


def test_a_run_in_progress_has_its_duration_so_far(client):
    long_ago = int(datetime.datetime.now().timestamp() * 1000) - 7_200_000
    client.create_run(experiment_id(client, "trial"), start_time=long_ago)
    assert list_runs(client)[0]["duration"] == pytest.approx(7_200, abs=120)


def test_runs_are_chosen_by_limit_experiment_and_status(client, start):
    for experiment in ("one", "two", "two"):
        with start(experiment=experiment):
            pass
    client.create_run(experiment_id(client, "two"))
    assert len(list_runs(client)) == 4
    assert len(list_runs(client, limit=2)) == 2
    assert [run["experiment"] for run in list_runs(client, experiment="one")] == ["one"]
    assert [run["status"] for run in list_runs(client, experiment="two", status="running")] == ["RUNNING"]


def test_unknown_experiments_and_states_are_refused_with_the_known_ones(client):
    experiment_id(client, "real")
    with pytest.raises(UsageError, match="real"):
        list_runs(client, experiment="unreal")
    with pytest.raises(UsageError, match="FINISHED"):
        list_runs(client, status="DONE")


def test_the_table_of_runs_shows_every_column(client, start):
    assert "fednews train" in format_runs(list_runs(client))
    with start() as run:
        run.log_metrics({"loss": 1.0, "epsilon_accounted": math.inf}, 0)
    head, rule, line = format_runs(list_runs(client)).splitlines()
    assert head.split() == list(COLUMNS)
    assert set(rule) == {"-", " "}
    for part in (run.run_id[:8], "FINISHED", "NRMS", "∞"):
        assert part in line


def test_columns_are_aligned():
    rows = [{"name": "short", "x": 1.0, "n": 10}, {"name": "much longer", "x": -12.345678, "n": None}]
    lines = format_table(rows, ["name", "x", "n"]).splitlines()
    assert lines == [
        "name                x   n",
        "-----------  --------  --",
        "short          1.0000  10",
        "much longer  -12.3457   -",
    ]


def test_a_table_without_rows_is_its_heading():
    assert format_table([], ["a", "b"]) == "a  b\n-  -"


def test_cells_hold_no_line_breaks_and_name_what_is_not_finite():
    rows = [{"a": "x\ny", "b": math.nan, "c": -math.inf}]
    assert format_table(rows, ["a", "b", "c"]).splitlines()[-1].split("  ") == ["x y", "nan", "-∞"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, None), (0, "0s"), (59.6, "1m 00s"), (187, "3m 07s"), (3600 * 5 + 125, "5h 02m")]
)
def test_durations_are_short(seconds, text):
    assert format_duration(seconds) == text
