import math
from dataclasses import replace

import pytest
import torch

from fednews.errors import UsageError
from fednews.privacy.private_attention import PrivateAttention
from fednews.serving.budget import BudgetExceeded, BudgetGuard
from fednews.serving.device import DeviceClient

from .conftest import BASIS

NOISELESS = PrivateAttention(epsilon=math.inf, padding=0.0, basis=BASIS)
PRIVATE = PrivateAttention(epsilon=2.0, noise="laplace", sensitivity="exact", padding=0.3, basis=BASIS)


@pytest.fixture
def device_of(served, tmp_path):
    """Makes a device with some clicks, a mechanism and a total."""

    def make(clicks=(3, 1, 4, 1, 5), mechanism=PRIVATE, total=1e9, **options) -> DeviceClient:
        history = [served.store.news.id[row] for row in clicks]
        guard = BudgetGuard(tmp_path / "account.json", total, 0.0)
        return DeviceClient(served.device, served.by_id(), history, mechanism, guard, **options)

    return make


def test_a_query_is_weights_between_0_and_1_that_sum_to_1(device_of):
    device = device_of()
    for _ in range(20):
        attention = device.query().attention
        assert attention.shape == (BASIS,)
        assert bool(((attention >= 0) & (attention <= 1)).all())
        assert float(attention.sum()) == pytest.approx(1.0, abs=1e-5)


def test_every_query_has_noise_of_its_own(device_of):
    device = device_of()
    assert not torch.equal(device.query().attention, device.query().attention)


def test_without_noise_and_padding_a_query_is_the_clean_one(device_of):
    device = device_of(mechanism=NOISELESS, total=math.inf)
    torch.testing.assert_close(device.query().attention, device.clean(), rtol=0, atol=1e-6)


def test_the_larger_epsilon_the_nearer_to_the_clean_weights(device_of):
    def distance(epsilon: float) -> float:
        device = device_of(mechanism=replace(PRIVATE, epsilon=epsilon, padding=0.0))
        clean = device.clean()
        return sum(float((device.query().attention - clean).abs().sum()) for _ in range(30))

    near, far = distance(1e6), distance(0.5)
    assert near < 1e-3
    assert far > 100 * near


def test_clean_weights_are_those_of_the_models_own_user_vector(served, device_of):
    device = device_of(clicks=(7, 8, 9), mechanism=replace(NOISELESS, activation="relu"), total=math.inf)
    clicks = served.vectors[[7, 8, 9]][None]
    with torch.no_grad():
        own = served.model.encode_user(clicks, torch.ones(1, 3, dtype=torch.bool), torch.zeros(1, dtype=torch.long))[0]
    torch.testing.assert_close(device.clean() @ served.model.basis.detach(), own, rtol=1e-4, atol=1e-4)


def test_only_the_latest_clicks_count(device_of):
    options = {"mechanism": NOISELESS, "total": math.inf}
    short = device_of(clicks=(6, 7, 8), **options).clean()
    assert torch.equal(device_of(clicks=(1, 2, 6, 7, 8), history_length=3, **options).clean(), short)


def test_an_empty_history_can_be_asked_with(device_of):
    assert bool(device_of(clicks=()).query().attention.isfinite().all())


def test_a_refused_query_makes_no_weights(device_of, monkeypatch):
    device = device_of(total=5.0)
    spent = [device.query().total.epsilon for _ in range(2)]
    assert spent[1] == pytest.approx(2 * spent[0])
    made = []
    monkeypatch.setattr(type(device.model), "private_weights", lambda *arguments: made.append(arguments))
    with pytest.raises(BudgetExceeded):
        device.query()
    assert not made


def test_budget_is_written_down_before_the_weights_exist(device_of, monkeypatch):
    device = device_of()

    def crash(*arguments):
        raise RuntimeError("the device lost power")

    monkeypatch.setattr(type(device.model), "private_weights", crash)
    with pytest.raises(RuntimeError):
        device.query()
    assert device.guard.releases() == 1


def test_exact_noise_spends_what_is_asked_for_and_repeated_articles_spend_more(device_of):
    once = device_of(clicks=(1, 2, 3)).query()
    often = device_of(clicks=(1, 1, 1, 1, 2)).query()
    assert once.accounted.epsilon == pytest.approx(PRIVATE.epsilon)
    present = 1 - PRIVATE.padding**4
    without_padding = math.log1p((math.exp(PRIVATE.epsilon) - 1) / (1 - PRIVATE.padding))
    assert often.accounted.epsilon == pytest.approx(math.log1p(present * math.expm1(without_padding)))
    assert often.accounted.epsilon > once.accounted.epsilon


def test_published_noise_spends_more_than_it_says(device_of):
    query = device_of(clicks=(1, 2, 3), mechanism=replace(PRIVATE, sensitivity="published")).query()
    assert query.published == pytest.approx(PRIVATE.epsilon)
    assert query.accounted.epsilon > 1.5 * query.published


def test_a_history_of_unknown_news_is_refused(served, tmp_path):
    guard = BudgetGuard(tmp_path / "account.json", 1.0, 0.0)
    with pytest.raises(UsageError, match="'N-none', which is not in the catalogue"):
        DeviceClient(served.device, served.by_id(), ["N-none"], PRIVATE, guard)
    with pytest.raises(UsageError, match="made for 5 weights, the model has 4"):
        DeviceClient(served.device, served.by_id(), [], replace(PRIVATE, basis=5), guard)
