"""Giving trials out, counting them and taking them back, without training."""

import io
import socket
import time

import pytest
from optuna.trial import TrialState
from rich.console import Console

from fednews.errors import UsageError
from fednews.tuning.process import SILENT_SECONDS, is_dead, owner
from fednews.tuning.storage import StudyStorage
from fednews.tuning.study import MOST_DEATHS, SweepStudy
from fednews.tuning.sweep import Sweep
from fednews.tuning.table import LiveTable

ELSEWHERE = {"host": "another-host", "pid": 1, "started": 0.0}


@pytest.fixture
def study(write, tmp_path) -> SweepStudy:
    return open_in(tmp_path, Sweep.read(write()))


def open_in(folder, sweep) -> SweepStudy:
    return SweepStudy.open(sweep, StudyStorage(str(folder / "studies.journal")), create=True)


def test_no_more_trials_are_begun_than_asked_for(study):
    claims = [study.claim(3) for _ in range(4)]
    assert [claim and claim.trial.number for claim in claims] == [0, 1, 2, None]
    assert claims[0].values == pytest.approx({"algorithm.clip": 0.01, "algorithm.noise_scale": 0.001})


def test_a_trial_given_back_is_the_next_one_with_the_same_values(study):
    study.claim(3)
    second = study.claim(3)
    study.claim(3)
    study.give_back(second.trial)
    again = study.claim(3)
    assert (again.trial.number, again.values) == (1, second.values)
    assert study.claim(3) is None


def test_trials_of_living_processes_stay_with_them(study):
    study.claim(3)
    assert study.take_from_the_dead() == []
    assert not is_dead(owner(), None)


def test_a_dead_process_is_told_by_number_and_start_or_from_afar_by_silence():
    mine = owner()
    assert is_dead({**mine, "started": mine["started"] - 3600}, time.time()), "the number belongs to another process"
    assert is_dead({**mine, "pid": 2**22 + 1}, time.time())
    assert is_dead(None, None), "it died before it could say who it was"
    assert not is_dead(ELSEWHERE, time.time() - SILENT_SECONDS / 2)
    assert is_dead(ELSEWHERE, time.time() - 2 * SILENT_SECONDS)
    assert ELSEWHERE["host"] != socket.gethostname()


def test_a_trial_that_kills_its_process_again_and_again_is_given_up(study):
    for death in range(1, MOST_DEATHS + 1):
        claim = study.claim(3)
        claim.trial.set_user_attr("owner", ELSEWHERE)
        (freed,) = study.take_from_the_dead()
        assert (freed.number, freed.user_attrs["deaths"]) == (0, death)
        assert freed.state == (TrialState.WAITING if death < MOST_DEATHS else TrialState.FAIL)
    assert "died 3 times" in freed.user_attrs["error"]
    assert study.claim(3).trial.number == 1


def test_values_do_not_depend_on_who_draws_them(write, tmp_path):
    sweep = Sweep.read(write())
    alone = [open_in(tmp_path, sweep).claim(9).values for _ in range(4)]
    other = open_in(tmp_path / "other", sweep)
    assert [other.claim(9).values for _ in range(4)] == alone
    assert len({values["algorithm.clip"] for values in alone}) == 4


def test_a_journal_whose_last_line_was_cut_by_a_power_failure_still_opens(study, tmp_path):
    study.claim(3)
    path = tmp_path / "studies.journal"
    with path.open("ab") as file:
        file.write(b'{"op_code":5,"wor')
    again = open_in(tmp_path, study.sweep)
    assert again.claim(3).trial.number == 1
    assert [trial.number for trial in open_in(tmp_path, study.sweep).trials()] == [0, 1]


def test_other_databases_are_refused(tmp_path):
    with pytest.raises(UsageError, match="--storage takes postgresql://"):
        StudyStorage(f"sqlite:///{tmp_path}/x.db")


def test_a_study_that_was_never_begun_is_not_made_by_looking(write, tmp_path):
    with pytest.raises(UsageError, match="has no study yet"):
        SweepStudy.open(Sweep.read(write()), StudyStorage(str(tmp_path / "studies.journal")))


@pytest.mark.parametrize("terminal", [True, False])
def test_whoever_watches_sees_every_trial_and_the_best_so_far(study, capsys, terminal):
    shown = io.StringIO()
    with LiveTable(study, 3, Console(file=shown, force_terminal=terminal, color_system=None, width=150)) as table:
        for value in (0.6, 0.5):
            claim = study.claim(3)
            table.update()
            claim.trial.set_user_attr("metrics", {"val_auc": value})
            study.study.tell(claim.trial, value)
    text = shown.getvalue() if terminal else capsys.readouterr().out
    if terminal:
        last = text.rsplit("state", 1)[-1]
        assert all(part in last for part in ("*0", "complete", "2 of 3 finished; best: 0 (val_auc 0.6)"))
        assert "running" in text
    else:
        first, second = text.strip().splitlines()
        assert first.startswith("[1/3] trial 0 complete: algorithm.clip 0.01, ")
        assert first.endswith("(best so far)")
        assert "trial 1 complete" in second
        assert "best" not in second
