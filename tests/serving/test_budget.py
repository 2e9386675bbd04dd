import math
import multiprocessing

import pytest

from fednews.errors import FednewsError, UsageError
from fednews.privacy.accounting import epsilon_of
from fednews.privacy.private_attention import PrivateAttention
from fednews.serving.budget import BudgetExceeded, BudgetGuard

LAPLACE = PrivateAttention(epsilon=1.0, noise="laplace", sensitivity="exact", padding=0.0).entry()
GAUSSIAN = PrivateAttention(epsilon=0.5, delta=1e-6, noise="gaussian", sensitivity="exact").entry()


def test_queries_are_answered_until_the_total_is_spent(tmp_path):
    guard = BudgetGuard(tmp_path / "account.json", epsilon=3.0, delta=0.0)
    spent = [guard.spend(LAPLACE).epsilon for _ in range(3)]
    assert spent == pytest.approx([1.0, 2.0, 3.0])
    with pytest.raises(BudgetExceeded, match="from 3 to 4, above the total of 3"):
        guard.spend(LAPLACE)
    assert guard.spent().epsilon == pytest.approx(3.0), "a refused query spends nothing"
    assert guard.releases() == 3


def test_a_restart_does_not_forget(tmp_path):
    for _ in range(3):
        BudgetGuard(tmp_path / "account.json", epsilon=3.0, delta=0.0).spend(LAPLACE)
    with pytest.raises(BudgetExceeded):
        BudgetGuard(tmp_path / "account.json", epsilon=3.0, delta=0.0).spend(LAPLACE)


def test_a_smaller_total_counts_what_was_spent_under_a_larger_one(tmp_path):
    BudgetGuard(tmp_path / "account.json", epsilon=10.0, delta=0.0).spend(LAPLACE)
    with pytest.raises(BudgetExceeded):
        BudgetGuard(tmp_path / "account.json", epsilon=1.5, delta=0.0).spend(LAPLACE)


def test_releases_of_several_kinds_are_composed_together(tmp_path):
    guard = BudgetGuard(tmp_path / "account.json", epsilon=100.0, delta=1e-5)
    for entry in (LAPLACE, GAUSSIAN, LAPLACE):
        total = guard.spend(entry)
    assert total == epsilon_of(((LAPLACE, 2), (GAUSSIAN, 1)), 1e-5)
    assert guard.spent() == total


def test_a_release_without_noise_is_refused_by_any_finite_total(tmp_path):
    entry = PrivateAttention(epsilon=math.inf).entry()
    with pytest.raises(BudgetExceeded, match="no noise is added"):
        BudgetGuard(tmp_path / "account.json", epsilon=1e9, delta=1e-5).spend(entry)
    assert BudgetGuard(tmp_path / "other.json", math.inf, 1e-5).spend(entry).epsilon == math.inf


@pytest.mark.parametrize(
    "content",
    ["", "{", "null", '{"releases": [{}]}', '{"releases": [{"count": 0, "entry": {}}]}', '{"releases": 3}', "\udcff"],
)
def test_a_damaged_account_is_never_taken_for_an_empty_one(tmp_path, content):
    path = tmp_path / "account.json"
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(FednewsError, match="damaged"):
        BudgetGuard(path, epsilon=3.0, delta=0.0).spend(LAPLACE)


def _spend(path) -> int:
    guard, made = BudgetGuard(path, epsilon=8.0, delta=0.0), 0
    for _ in range(5):
        try:
            guard.spend(LAPLACE)
        except BudgetExceeded:
            break
        made += 1
    return made


def test_processes_that_ask_at_once_do_not_overspend_together(tmp_path):
    with multiprocessing.get_context("fork").Pool(3) as pool:
        made = pool.map(_spend, [tmp_path / "account.json"] * 3)
    assert sum(made) == 8


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (-1.0, 0.0), (math.nan, 0.0), (1.0, 1.0), (1.0, -0.1)])
def test_totals_that_mean_nothing_are_refused(tmp_path, epsilon, delta):
    with pytest.raises(UsageError, match="total"):
        BudgetGuard(tmp_path / "account.json", epsilon, delta)
