"""PrivateRec's rounds: limits that equal plain training, a plain loop, and what the ledger says."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import stats

from fednews.aggregation.plain import Plain, plain_sum
from fednews.aggregation.secagg.aggregation import SecureAggregation
from fednews.data.features import NewsInfo
from fednews.errors import UsageError
from fednews.federated.algorithms.dp_fedrec import DPFedRec
from fednews.federated.algorithms.fednewsrec import FedNewsRec
from fednews.federated.algorithms.privaterec import PrivateRec
from fednews.federated.clients import client_gradients, fused_gradient, trainable
from fednews.federated.private_draws import bound_of_loss, history_uses, private_cohort, shares
from fednews.federated.round import Round
from fednews.models.base import click_losses
from fednews.models.private import PrivateRecModel
from fednews.privacy.accounting import epsilon_of
from fednews.privacy.history_padding import HistoryPadding
from fednews.privacy.ledger import PrivacyLedger
from tests.conftest import MODELS
from tests.federated.algorithms.looped import assert_alike, clients_of, detached, lively, run, step

NOISELESS = {"epsilon": math.inf, "padding": 0.0}


@pytest.fixture
def model(synthetic_store, streams):
    with streams.torch_global("test_model"):
        return lively(MODELS["private_nrms"](NewsInfo.of(synthetic_store, None, streams), train_words=True))


def work_of(cohorts, number=0, separate=False):
    return Round(number, cohorts.streams, separate, lambda parts: plain_sum(parts, {}))


def released(algorithm, cohorts, rounds=1):
    """The ledger after rounds in which nothing is computed."""
    ledger = PrivacyLedger(cohorts.samples.clients)
    for number in range(rounds):
        selection = algorithm.select(cohorts, number)
        algorithm.begin_round(cohorts, selection)
        ledger.record(algorithm.release(100), selection.participants, number)
        for entry, clients in algorithm.releases():
            ledger.record(entry, clients, number)
    return ledger


@pytest.mark.parametrize("upload", ["published", "clipped_noised"])
def test_without_noise_padding_and_permutation_a_round_is_plain_training_of_the_model(cohorts, model, upload):
    settings = {"clip_norm": 1e9, "noise_multiplier": 0.0} if upload == "clipped_noised" else {}
    private = PrivateRec(9, **NOISELESS, upload=upload, **settings)
    private.setup(model, cohorts, None)
    plain = FedNewsRec(9, clip=None, noise_scale=0, loss="mean")
    assert np.array_equal(private.select(cohorts, 0).draw.candidates, plain.select(cohorts, 0).draw.candidates)
    cohort = cohorts.cohort(plain.select(cohorts, 0).draw)
    if upload == "published":
        (found,) = private.client_updates(model, cohort, work_of(cohorts))
        expected = fused_gradient(model, cohort, "mean")
        torch.testing.assert_close(found.loss, expected.loss)
        for name, value in expected.updates.items():
            torch.testing.assert_close(found.updates[name], value, rtol=1e-4, atol=1e-6)
        return
    parts = private.client_updates(model, cohort, work_of(cohorts))
    for found, expected in zip(parts, client_gradients(model, cohort, "mean"), strict=True):
        assert (found.weights == 1).all()
        assert (found.samples == 1).all()
        torch.testing.assert_close(found.loss, (expected.loss / expected.samples).clamp(0, 2 * math.log(5)))
        for name, value in expected.whole(trainable(model)).updates.items():
            torch.testing.assert_close(found.updates[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("upload", ["published", "stop_gradient"])
def test_a_round_equals_a_plain_loop_over_clients_and_their_histories(cohorts, model, upload):
    """Joint labels, noise and padding on; every client by itself, written out."""
    algorithm = PrivateRec(6, 8.0, theta=0.8, padding=0.4, label_mechanism="joint", upload=upload, loss="mean")
    algorithm.setup(model, cohorts, None)
    attention = algorithm.attention
    total, weight = {name: torch.zeros_like(p) for name, p in trainable(model).items()}, 0
    for client, count, cohort in clients_of(algorithm, cohorts, 3):
        news = model.encode_news(cohort.news)
        r0 = model.anonymous_news()
        noise = attention.draw(len(cohort.history), cohorts.streams.torch("private_attention", 3, client))
        masks = HistoryPadding(0.4).draw(
            (len(cohort.history), cohorts.history_length), cohorts.streams.torch("history_padding", 3, client)
        )
        users = []
        for row in range(len(cohort.history)):
            clicks, real = news[cohort.history[row]], cohort.history_mask[row]
            replaced = masks[row][-len(real) :] & real
            clicks = torch.stack([r0 if gone else click for click, gone in zip(clicks, replaced, strict=True)])
            u = model.base.encode_user(clicks[None], real[None], cohort.user[row : row + 1])[0]
            alpha = (model.basis @ u / math.sqrt(len(u))).softmax(0)
            alpha = alpha if alpha.norm() <= 0.8 else 0.8 * alpha / alpha.norm()
            noisy = (alpha.double() + noise[row]).clamp(min=0)
            weights = noisy / noisy.sum() if noisy.sum() > 0 else torch.full_like(noisy, 1 / len(noisy))
            weights = weights.detach() if upload == "stop_gradient" else weights
            users.append(sum(w * b for w, b in zip(weights.float(), model.basis, strict=True)))
        losses = [
            click_losses((news[chosen] @ users[row])[None])[0]
            for row, chosen in zip(cohort.sample_history.tolist(), cohort.candidates, strict=True)
        ]
        gradients = torch.autograd.grad(sum(losses) / len(losses), list(trainable(model).values()), allow_unused=True)
        for name, gradient in zip(total, gradients, strict=True):
            total[name] += 0 if gradient is None else count * gradient
        weight += count
    start = detached(model)
    expected = {name: start[name] - total[name] / weight for name in start}
    step(algorithm, model, cohorts, 3)
    assert_alike(detached(model), expected, start)


@pytest.mark.parametrize("noise_per", ["history", "sample"])
@pytest.mark.parametrize("upload", ["published", "stop_gradient"])
def test_single_clients_gradients_together_are_the_fused_one(cohorts, model, noise_per, upload):
    algorithm = PrivateRec(7, 5.0, noise_per=noise_per, upload=upload, clients_at_once=3)
    algorithm.setup(model, cohorts, None)
    cohort = cohorts.cohort(algorithm.select(cohorts, 1).draw)
    like = trainable(model)
    sums = [
        plain_sum(algorithm.client_updates(model, cohort, work_of(cohorts, 1, separate)), like).mean()
        for separate in (False, True)
    ]
    for name, value in sums[0].items():
        torch.testing.assert_close(sums[1][name], value, rtol=1e-3, atol=1e-5)


def test_a_clients_draws_do_not_depend_on_who_else_is_in_the_cohort(cohorts, model):
    algorithm = PrivateRec(8, 1.0, padding=0.5)
    algorithm.setup(model, cohorts, None)
    draw = algorithm.select(cohorts, 0).draw
    _, together = private_cohort(cohorts.cohort(draw), work_of(cohorts), algorithm.attention, 20, False, False)
    row = 0
    for place in range(8):
        cohort = cohorts.cohort(draw.of_clients(np.array([place])))
        alone, users = private_cohort(cohort, work_of(cohorts), algorithm.attention, 20, False, False)
        rows = slice(row, row + len(alone.history))
        assert torch.equal(together.noise[rows], users.noise)
        width = users.replaced.shape[1]
        assert torch.equal(together.replaced[rows, -width:], users.replaced)
        row += len(alone.history)


def test_with_a_stopped_gradient_the_upload_is_a_function_of_what_was_released(cohorts, model):
    """Other histories whose noisy attention is the same give the same upload, bit for bit; as published they do not."""
    algorithm = PrivateRec(5, 10.0, padding=0.0, upload="stop_gradient", label_epsilon=math.inf)
    algorithm.setup(model, cohorts, None)
    cohort = cohorts.cohort(algorithm.select(cohorts, 0).draw)
    other = dataclasses.replace(cohort, history=(cohort.history + 1) % len(cohort.news["title"]))

    def updates(cohort, stop):
        rows, users = private_cohort(cohort, work_of(cohorts), algorithm.attention, 20, False, stop)
        # Noise that outweighs the clean weights by 1e9: they are rounded away, so both histories release the same.
        users = dataclasses.replace(users, noise=torch.full_like(users.noise, 1e9))
        with model.privately(users):
            return fused_gradient(model, rows, "mean").updates

    one, two = updates(cohort, True), updates(other, True)
    for name in model.layer_of():
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-7)
    user = [name for name in one if name.startswith("base.user")]
    assert user
    assert all(not one[name].any() for name in user), "the user encoder gets no gradient"
    assert one["basis"].abs().max() > 0


def test_only_the_published_gradient_touches_rows_of_words_that_the_history_alone_holds(cohorts, model):
    for upload, touched in (("stop_gradient", False), ("published", True)):
        algorithm = PrivateRec(1, 10.0, padding=0.0, upload=upload)
        algorithm.setup(model, cohorts, None)
        cohort = cohorts.cohort(algorithm.select(cohorts, 2).draw)
        history = cohort.news["title"][cohort.history[cohort.history_mask]].unique()
        shown = cohort.news["title"][cohort.candidates].unique()
        secret = history[~torch.isin(history, shown)]
        assert len(secret) > 3
        (part,) = algorithm.client_updates(model, cohort, work_of(cohorts))
        rows = part.updates["base.news.words.weight"][0][secret]
        assert bool(rows.any()) == touched


def test_published_training_is_unbounded_with_a_reason_and_ten_by_the_paper(cohorts, model):
    algorithm = PrivateRec(8, 10.0)
    algorithm.setup(model, cohorts, None)
    ledger = released(algorithm, cohorts, 2)
    assert ledger.epsilon("published", "round") == pytest.approx(10)
    assert math.isinf(ledger.epsilon("accounted", "round"))
    report = ledger.report()
    assert "raw history" in report["readings"]["accounted"]["total"]["reason"]
    reasons = [entry["no_guarantee_reason"] for entry in report["entries"]]
    assert any("always hold the true click" in reason for reason in reasons if reason)
    attention = next(entry for entry in report["entries"] if entry["mechanism"].startswith("private attention"))
    assert attention["present"] == 1, "the gradient shows the mask, so padding hides nothing"


def test_repaired_training_spends_what_the_hand_computes(cohorts, model):
    """One round: attention 3 (exact, no padding) and label 3, pure; later rounds spend attention alone."""
    algorithm = PrivateRec(
        cohorts.samples.clients, 3.0, padding=0.0, sensitivity="exact", label_mechanism="joint", upload="stop_gradient"
    )
    algorithm.setup(model, cohorts, None)
    most = max(times for times, _, _ in shares(histories(algorithm, cohorts)))
    for rounds in (1, 2, 4):
        algorithm.setup(model, cohorts, None)
        ledger = released(algorithm, cohorts, rounds)
        assert ledger.epsilon("accounted", "total", 0.0) == pytest.approx(3 + 3 * rounds * most)
        assert ledger.epsilon("accounted", "round", 0.0) == pytest.approx(3 + 3 * most)
        assert algorithm.attention.published_epsilon() < 3 == ledger.epsilon("published", "total")


def histories(algorithm, cohorts):
    return history_uses(cohorts, algorithm.select(cohorts, 0).draw, algorithm.per_sample, None)


def test_noise_for_every_sample_is_counted_for_every_sample(cohorts, model):
    settings = {"padding": 0.0, "sensitivity": "exact", "label_mechanism": "joint", "upload": "stop_gradient"}
    algorithm = PrivateRec(cohorts.samples.clients, 3.0, **settings, noise_per="sample")
    algorithm.setup(model, cohorts, None)
    draw = algorithm.select(cohorts, 0).draw
    with_history = cohorts.train.history.lengths(draw.impression) > 0
    most = np.bincount(draw.client[with_history]).max()
    assert released(algorithm, cohorts).epsilon("accounted", "total", 0.0) == pytest.approx(3 + 3 * most)


def test_labels_drawn_in_every_round_are_counted_in_every_round(cohorts, model):
    settings = {"padding": 0.0, "sensitivity": "exact", "label_mechanism": "joint", "upload": "stop_gradient"}
    for keep, labels in ((True, 1), (False, 3)):
        algorithm = PrivateRec(cohorts.samples.clients, 1.0, **settings, label_epsilon=2.0, keep_labels=keep)
        algorithm.setup(model, cohorts, None)
        most = max(times for times, _, _ in shares(histories(algorithm, cohorts)))
        assert released(algorithm, cohorts, 3).epsilon("accounted", "total", 0.0) == pytest.approx(
            3 * most + 2 * labels
        )


def test_kept_labels_stay_over_rounds_and_attempts_and_fresh_ones_change(cohorts, model):
    for keep in (True, False):
        everyone = PrivateRec(cohorts.samples.clients, 0.5, label_mechanism="joint", keep_labels=keep)
        everyone.setup(model, cohorts, None)
        named, changed = {}, 0
        for round_ in range(6):
            draw = everyone.select(cohorts.attempt(round_ % 3), round_).draw
            order = np.argsort(draw.clients[draw.client], kind="stable")
            labels = draw.candidates[order, 0]
            changed += int((labels != named.setdefault("first", labels)).sum())
        assert (changed == 0) == keep


def test_categories_that_are_not_sensitive_spend_nothing(cohorts, model):
    names = list(cohorts.categories)[1:]
    settings = {"padding": 0.0, "sensitivity": "exact", "label_mechanism": "joint", "upload": "stop_gradient"}
    algorithm = PrivateRec(cohorts.samples.clients, 3.0, **settings, sensitive_categories=names[:1])
    algorithm.setup(model, cohorts, None)
    ledger = released(algorithm, cohorts)
    sensitive = cohorts.category == 1
    spent = sum(ledger.participations(entry) for entry in ledger.entries if entry.sensitivity > 0)
    clicks = cohorts.train.candidates.values[cohorts.samples.click]
    for client in range(cohorts.samples.clients):
        rows = cohorts.samples.rows[client]
        read = np.concatenate([cohorts.train.history[i][-20:] for i in cohorts.samples.impression[rows]])
        hides = sensitive[read].any() or sensitive[clicks[rows]].any()
        assert (spent[client] > 0) == hides
    assert (spent == 0).any()
    draw = algorithm.select(cohorts, 0).draw
    true = FedNewsRec(cohorts.samples.clients, None, 0).select(cohorts, 0).draw
    public = ~sensitive[true.candidates[:, 0]]
    assert np.array_equal(draw.candidates[public, 0], true.candidates[public, 0])
    assert sensitive[draw.candidates[~public, 0]].all()
    cohort, users = private_cohort(cohorts.cohort(draw), work_of(cohorts), algorithm.attention, 20, False, True)
    hidden = (cohort.news["sensitive"][cohort.history] & cohort.history_mask).any(1)
    assert torch.equal(users.noise.any(1), hidden)


def test_a_stopped_gradient_is_the_same_under_autocast(cohorts, model):
    """News of histories alone are encoded without a graph; what autocast keeps of that must not cut the others'."""
    algorithm = PrivateRec(5, 10.0, upload="stop_gradient")
    algorithm.setup(model, cohorts, None)
    cohort = cohorts.cohort(algorithm.select(cohorts, 0).draw)
    rows, users = private_cohort(cohort, work_of(cohorts), algorithm.attention, 20, False, True)
    with model.privately(users):
        expected = fused_gradient(model, rows, "mean").updates
        with torch.autocast("cpu", torch.bfloat16):
            found = fused_gradient(model, rows, "mean").updates
    assert any(bool(value.any()) for name, value in expected.items() if name.startswith("base.news"))
    for name, value in expected.items():
        assert (found[name] - value).norm() < 0.1 * value.norm() + 5e-3, name


def test_a_category_that_the_data_lacks_is_refused(cohorts, model):
    algorithm = PrivateRec(4, sensitive_categories=["horoscopes"])
    with pytest.raises(UsageError, match="no category 'horoscopes'"):
        algorithm.setup(model, cohorts, None)


def test_a_clipped_and_noised_sum_is_accounted_for_the_server_and_for_those_who_see_only_models(cohorts, model):
    clients = cohorts.samples.clients
    figures = {}
    for secret in (True, False):
        algorithm = PrivateRec(6, **NOISELESS, upload="clipped_noised", noise_multiplier=2.0, secret_sampling=secret)
        algorithm.setup(model, cohorts, None)
        ledger = released(algorithm, cohorts, 3)
        figures[secret] = ledger.epsilon("accounted", "total")
        entry = next(entry for entry in ledger.entries if entry.noise == "gaussian")
        assumptions = " ".join(ledger.report()["assumptions"])
        assert ("amplified by sampling" in assumptions) == secret
        assert entry.sensitivity == 2
        counts = ledger.participations(entry)
        assert counts.sum() == 3 * (clients if secret else 6)
        known = epsilon_of(((dataclasses.replace(entry, drawn=0, population=0), int(counts.max())),))
        assert figures[secret] <= known.epsilon * (1 + 1e-9)
        if not secret:
            assert figures[secret] == pytest.approx(known.epsilon)


def test_upload_noise_on_the_sum_has_the_stated_deviation_and_clips_hold(cohorts, model):
    algorithm = PrivateRec(6, **NOISELESS, upload="clipped_noised", clip_norm=0.01, noise_multiplier=3.0)
    quiet = PrivateRec(6, **NOISELESS, upload="clipped_noised", clip_norm=0.01, noise_multiplier=0.0)
    sums = []
    for one in (algorithm, quiet):
        one.setup(model, cohorts, None)
        cohort = cohorts.cohort(one.select(cohorts, 0).draw)
        parts = list(one.client_updates(model, cohort, work_of(cohorts, separate=True)))
        sums.append(plain_sum(parts, trainable(model)).total)
    for part in parts:
        norms = torch.stack([v.double().flatten(1).norm(dim=1) for v in part.updates.values()]).norm(dim=0)
        unit = part.loss.double() * 0.01 / 4 / (2 * math.log(5))
        assert (torch.stack([norms, unit]).norm(dim=0) <= 0.01 * (1 + 1e-6)).all()
    noise = torch.cat([(sums[0][name] - sums[1][name]).flatten() for name in sums[0]]).double()
    assert float(noise.std()) == pytest.approx(0.03, rel=4 / math.sqrt(2 * len(noise)))


@pytest.mark.parametrize("sums_only", [False, True])
def test_the_sums_noise_has_the_stated_deviation_whether_drawn_at_once_or_by_the_clients(cohorts, model, sums_only):
    sums = []
    for multiplier in (3.0, 0.0):
        algorithm = PrivateRec(6, **NOISELESS, upload="clipped_noised", clip_norm=0.01, noise_multiplier=multiplier)
        algorithm.setup(model, cohorts, None)
        cohort = cohorts.cohort(algorithm.select(cohorts, 0).draw)
        work = Round(0, cohorts.streams, True, lambda parts: plain_sum(parts, trainable(model)), sums_only)
        sums.append(algorithm.aggregate(model, cohort, work))
    noise = torch.cat([(sums[0].total[name] - sums[1].total[name]).flatten() for name in sums[0].total]).double()
    assert stats.kstest(noise.numpy(), "norm", args=(0, 0.03)).pvalue > 1e-3
    loss_unit = 0.01 / 4 / bound_of_loss(cohorts.negatives)
    assert 0 < abs(float(sums[0].loss - sums[1].loss)) < 5 * 0.03 / loss_unit
    assert sums[0].weight == sums[1].weight == 6


def test_uploads_that_need_a_sum_and_models_without_basis_are_refused_before_a_run(cohorts, model, nrms):
    algorithm = PrivateRec(4, upload="clipped_noised")
    with pytest.raises(UsageError, match="SecureAggregation"):
        algorithm.check_parts(model, Plain())
    for simulate in (True, False):
        algorithm.check_parts(model, SecureAggregation(simulate=simulate))
    with pytest.raises(UsageError, match="PrivateRecModel with base NRMS"):
        algorithm.check_parts(nrms, SecureAggregation(simulate=True))


@pytest.mark.parametrize(
    "settings",
    [
        {"epsilon": 0.0}, {"noise": "gaussian", "delta": 0.0}, {"label_epsilon": -1.0},
        {"upload": "clipped_noised", "clip_norm": 0.0}, {"upload": "clipped_noised", "noise_multiplier": -1.0},
        {"upload": "clipped_noised", "sensitive_categories": ["a"]},
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(UsageError):
        PrivateRec(4, **settings)


def test_dp_fedrec_at_infinity_is_federated_training_without_protection_and_else_fednewsrecs_noise(cohorts, nrms):
    free, private = DPFedRec(5, epsilon=math.inf), DPFedRec(5, epsilon=10.0, clip=0.005)
    start = detached(nrms)
    ends = []
    for algorithm in (free, FedNewsRec(5, None, 0, "mean")):
        nrms.load_state_dict(start, strict=False)
        ends.append(run(algorithm, nrms, cohorts, 2))
    for name, value in ends[1].items():
        assert torch.equal(ends[0][name], value)
    assert private.mechanism.scale == pytest.approx(0.001)
    entry = private.release(1000)
    assert entry.published_epsilon == pytest.approx(10)
    assert epsilon_of(((entry, 1),), 0).epsilon == pytest.approx(10_000)
    assert math.isinf(epsilon_of(((free.release(1000), 1),)).epsilon)
    with pytest.raises(UsageError, match="epsilon"):
        DPFedRec(5, epsilon=0)


def test_the_model_is_what_private_training_without_draws_computes(cohorts, model):
    assert isinstance(model, PrivateRecModel)
    cohort = cohorts.cohort(cohorts.of_clients(cohorts.draw_clients(3, 0), 0))
    news = model.eval().encode_news(cohort.news)
    u = model.interests(news[cohort.history], cohort.history_mask, cohort.user)
    alpha = (u @ model.basis.T / math.sqrt(u.shape[1])).softmax(-1)
    rebuilt = model.encode_user(news[cohort.history], cohort.history_mask, cohort.user)
    torch.testing.assert_close(
        rebuilt, torch.stack([sum(w * b for w, b in zip(row, model.basis, strict=True)) for row in alpha])
    )
