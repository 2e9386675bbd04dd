"""The paper's gradient against automatic differentiation of the written objective, and rounds of it."""

import pytest
import torch
from lightning.pytorch import Trainer

from fednews.aggregation.plain import plain_sum
from fednews.data.module import NewsDataModule
from fednews.errors import UsageError
from fednews.federated.algorithms.fcf import FCF, clicked_articles
from fednews.federated.clients import trainable
from fednews.federated.loop import FederatedLoop
from fednews.federated.round import Round
from fednews.models.fcf import FCF as ItemFactors
from fednews.models.nrms import NRMS
from fednews.streams import Streams

CLOSE = {"rtol": 1e-4, "atol": 1e-6}


@pytest.fixture
def model(synthetic_store):
    torch.manual_seed(2)
    features = NewsDataModule(str(synthetic_store.path)).bind(Streams(0))
    return ItemFactors(features, factors=6, alpha=4.0, regularization=0.3)


@pytest.fixture
def cohort(cohorts):
    return cohorts.cohort(cohorts.of_clients(cohorts.draw_clients(9, 0), 0))


def work(model, streams, separate: bool) -> Round:
    return Round(0, streams, separate, lambda parts: plain_sum(parts, trainable(model)))


def clicks_of(cohort, client: int) -> set[int]:
    """A client's clicked articles, collected one by one."""
    found = set()
    for row, owner in enumerate(cohort.history_client.tolist()):
        if owner == client:
            found |= {int(cohort.news["news"][n]) for n in cohort.history[row][cohort.history_mask[row]]}
    for sample, owner in enumerate(cohort.client.tolist()):
        if owner == client:
            found.add(int(cohort.news["news"][cohort.candidates[sample, 0]]))
    return found


def objective(model, items: torch.Tensor, p: torch.Tensor, clicked: set[int]) -> torch.Tensor:
    r = torch.zeros(len(items))
    r[sorted(clicked)] = 1.0
    return ((1 + model.alpha * r) * (r - items @ p) ** 2).sum() + model.regularization * p @ p


def factor(model, clicked: set[int]) -> torch.Tensor:
    history = model.items.weight[sorted(clicked)][None]
    mask = torch.ones(1, len(clicked), dtype=torch.bool)
    return model.encode_user(history, mask, torch.zeros(1, dtype=torch.long))[0]


def test_the_clicked_articles_are_those_of_histories_and_samples(cohort):
    clicked, mask = clicked_articles(cohort)
    for client in range(9):
        found = clicked[client][mask[client]].tolist()
        assert len(found) == len(set(found))
        assert set(found) == clicks_of(cohort, client)


def test_every_clients_update_is_the_gradient_of_the_objective(model, cohort, streams):
    """With the factor held fixed, as the paper has it, and through its solution, which is the same at the minimum."""
    seen = 0
    for part in FCF(clients_at_once=4).client_updates(model, cohort, work(model, streams, separate=True)):
        for place, client in enumerate(part.clients.tolist()):
            clicked = clicks_of(cohort, client)
            p = factor(model, clicked)
            for fixed in (p.detach(), p):
                loss = objective(model, model.items.weight, fixed, clicked)
                (gradient,) = torch.autograd.grad(loss, model.items.weight, retain_graph=True)
                torch.testing.assert_close(part.updates["items.weight"][place], gradient, **CLOSE)
            torch.testing.assert_close(part.loss[place], loss.detach(), **CLOSE)
            assert part.samples[place] == cohort.counts[client]
            seen += 1
    assert seen == 9


@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("at_once", [4, 50])
def test_the_aggregate_is_the_gradient_of_the_regularised_objective(model, cohort, streams, separate, at_once):
    total = FCF(clients_at_once=at_once).aggregate(model, cohort, work(model, streams, separate))
    items = model.items.weight
    loss = sum(objective(model, items, factor(model, c).detach(), c) for c in (clicks_of(cohort, i) for i in range(9)))
    (gradient,) = torch.autograd.grad(loss + model.regularization * items.square().sum(), items)
    torch.testing.assert_close(total.mean()["items.weight"], gradient / 9, **CLOSE)
    torch.testing.assert_close(total.loss.float(), loss.detach(), **CLOSE)
    assert total.weight == 9
    assert total.samples == cohort.counts.sum()


def test_nobody_gives_no_weight(model, streams):
    total = FCF().aggregate(model, None, work(model, streams, separate=False))
    assert total.weight == total.loss == total.samples == 0


def loop_of(store, network, lr=0.02):
    data = NewsDataModule(str(store.path), history_length=15, eval_impressions=20)
    streams = Streams(5)
    info = data.bind(streams)
    with streams.torch_global("model_init"):
        model = network(info)
    data.read(model.inputs)
    optimizer = lambda parameters: torch.optim.Adam(parameters, lr=lr)  # noqa: E731
    return FederatedLoop(FCF(40), streams, delta=1e-5, model=model, optimizer=optimizer), data


def fit(loop, data, rounds: int, folder) -> None:
    trainer = Trainer(
        max_steps=rounds,
        val_check_interval=1000,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        logger=False,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder,
    )
    trainer.fit(loop, data)


def test_rounds_of_the_loop_lower_the_objective(synthetic_store, streams, tmp_path):
    loop, data = loop_of(synthetic_store, lambda info: ItemFactors(info, factors=8))
    source = data.cohorts()
    cohort = source.cohort(source.of_clients(source.draw_clients(40, 0), 0))
    one_round = work(loop.model, streams, separate=False)
    before = loop.algorithm.aggregate(loop.model, cohort, one_round).loss
    nothing_learned = (1 + loop.model.alpha) * clicked_articles(cohort)[1].sum()
    assert before <= nothing_learned, "p = 0 is one of the factors that the client can choose"
    fit(loop, data, 40, tmp_path)
    assert loop.algorithm.aggregate(loop.model, cohort, one_round).loss < 0.5 * before
    items = loop.model.items.weight
    assert loop._metrics["bytes_up"] == 40 * (4 * items.numel() + 8)
    assert loop._metrics["epsilon_accounted"] == float("inf")


def test_another_model_is_refused(synthetic_store, tmp_path):
    loop, data = loop_of(synthetic_store, lambda info: NRMS(info, word_dim=8, heads=2, head_dim=3, query_dim=4))
    with pytest.raises(UsageError, match="algorithm FCF trains the model FCF alone, not NRMS"):
        fit(loop, data, 1, tmp_path)
