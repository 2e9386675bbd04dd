import pytest

from fednews.errors import FednewsError, UsageError
from fednews.tracking.lookup import has_artifact, read_artifact, resolve_run, search
from fednews.tracking.store import experiment_id


def test_a_run_is_found_by_a_prefix_of_its_id(client, start):
    with start() as run:
        pass
    for length in (32, 12):
        assert resolve_run(client, run.run_id[:length]).info.run_id == run.run_id


def test_a_prefix_of_several_runs_is_refused_with_their_ids(client):
    experiment = experiment_id(client, "many")
    ids = [client.create_run(experiment).info.run_id for _ in range(17)]  # 16 hexadecimal digits: two must share one
    first = next(digit for digit in "0123456789abcdef" if sum(i[0] == digit for i in ids) > 1)
    with pytest.raises(UsageError, match="several") as error:
        resolve_run(client, first)
    assert any(i[:12] in str(error.value) for i in ids)


@pytest.mark.parametrize("text", ["", "not hex", "abc' OR '1", "A1", "%", "0" * 33])
def test_what_is_no_run_id_is_a_usage_error(client, text):
    with pytest.raises(UsageError, match="not a run id"):
        resolve_run(client, text)


def test_an_unknown_id_is_a_usage_error(client):
    with pytest.raises(UsageError, match="no run"):
        resolve_run(client, "0" * 32)


def test_a_deleted_run_is_not_found(client, start):
    with start() as run:
        pass
    client.delete_run(run.run_id)
    with pytest.raises(UsageError, match="no run"):
        resolve_run(client, run.run_id)


def test_a_search_goes_through_pages_and_experiments(client, monkeypatch):
    monkeypatch.setattr("fednews.tracking.lookup.PAGE", 2)
    made = [client.create_run(experiment_id(client, f"e{i % 2}"), start_time=1 + i).info.run_id for i in range(5)]
    assert [run.info.run_id for run in search(client, "", 10)] == made[::-1]
    assert [run.info.run_id for run in search(client, "", 3)] == made[:1:-1]
    assert [run.info.run_id for run in search(client, "", 10, experiment_id(client, "e1"))] == [made[3], made[1]]


def test_a_missing_artifact_is_a_clear_error(client, start):
    with start() as run:
        pass
    assert has_artifact(client, run.run_id, "config.yaml")
    assert not has_artifact(client, run.run_id, "deep/config.yaml")
    with pytest.raises(FednewsError, match="no artifact deep/x"):
        read_artifact(client, run.run_id, "deep/x")
