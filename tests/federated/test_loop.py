"""A round is a training step: identities of the loop, resume, and two processes."""

import copy
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from fednews.aggregation.secagg.aggregation import SecureAggregation
from fednews.aggregation.secagg.errors import TooFewClients
from fednews.data.module import NewsDataModule
from fednews.errors import FednewsError
from fednews.federated.algorithms.apfl import APFL
from fednews.federated.algorithms.centralized import Centralized
from fednews.federated.algorithms.cfl import CFL
from fednews.federated.algorithms.ditto import Ditto
from fednews.federated.algorithms.dp_fedrec import DPFedRec
from fednews.federated.algorithms.efficient_fedrec import EfficientFedRec
from fednews.federated.algorithms.fedavg import FedAvg
from fednews.federated.algorithms.fednewsrec import FedNewsRec
from fednews.federated.algorithms.fedper import FedPer
from fednews.federated.algorithms.fedprox import FedProx
from fednews.federated.algorithms.finding import Finding
from fednews.federated.algorithms.pfedme import PFedMe
from fednews.federated.algorithms.privaterec import PrivateRec
from fednews.federated.algorithms.scaffold import SCAFFOLD
from fednews.federated.clients import trainable
from fednews.federated.loop import FederatedLoop
from fednews.models.base import click_losses
from fednews.streams import Streams
from tests.conftest import MODELS


class Metrics(Callback):
    """Keeps the metrics of every round, as a logger would see them."""

    def __init__(self) -> None:
        self.rounds: dict[int, dict[str, float]] = {}

    def on_train_batch_end(self, trainer, pl_module, *args) -> None:
        kept = {name: value for name, value in pl_module._metrics.items() if not name.endswith("_seconds")}
        self.rounds[pl_module.round] = kept


def make_loop(store, algorithm, seed=5, model="nrms", optimizer=None, scheduler=None, **settings):
    data = NewsDataModule(str(store.path), history_length=15, eval_impressions=40)
    streams = Streams(seed)
    info = data.bind(streams)
    with streams.torch_global("model_init"):
        network = MODELS[model](info, **settings)
    data.read(network.inputs, network.tokenizer)
    optimizer = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    loop = FederatedLoop(algorithm, streams, delta=1e-5, model=network, optimizer=optimizer, scheduler=scheduler)
    return loop, data


def fit(loop, data, folder: Path, rounds: int, every: int = 100, resume: Path | None = None, **settings):
    metrics = Metrics()
    checkpoint = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    trainer = Trainer(
        max_steps=rounds,
        val_check_interval=every,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        logger=False,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[metrics, checkpoint],
        **settings,
    )
    trainer.fit(loop, data, ckpt_path=resume, weights_only=True)
    return trainer, metrics.rounds


def weights(loop) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in loop.model.state_dict().items()}


def test_a_round_of_all_clients_without_protection_equals_one_central_full_batch_step(synthetic_store, tmp_path):
    clients = synthetic_store.samples.clients
    loop, data = make_loop(synthetic_store, FedNewsRec(clients, clip=None, noise_scale=0, loss="mean"), dropout=0.0)
    central = copy.deepcopy(loop.model)
    fit(loop, data, tmp_path, rounds=1)

    source = data.cohorts()
    cohort = source.cohort(source.of_clients(source.draw_clients(clients, 0), 0))
    optimizer = torch.optim.SGD(central.parameters(), lr=0.1)
    scores = central(
        cohort.news, cohort.history, cohort.history_mask, cohort.user, cohort.sample_history, cohort.candidates
    )
    click_losses(scores).mean().backward()
    optimizer.step()
    for name, value in central.state_dict().items():
        torch.testing.assert_close(loop.model.state_dict()[name], value, rtol=1e-5, atol=1e-6)


def test_centralized_visits_every_sample_once_a_pass(synthetic_store):
    loop, data = make_loop(synthetic_store, Centralized(batch_size=16))
    source, samples = data.cohorts(), len(synthetic_store.samples.click)
    steps = math.ceil(samples / 16)
    for first in (0, steps):
        draws = [loop.algorithm.select(source, round_).draw for round_ in range(first, first + steps)]
        pairs = np.concatenate([np.column_stack([d.impression, d.candidates[:, 0]]) for d in draws])
        behaviors = synthetic_store.splits["train"]
        clicked = behaviors.candidates.values[synthetic_store.samples.click]
        expected = np.column_stack([synthetic_store.samples.impression, clicked])
        assert sorted(map(tuple, pairs)) == sorted(map(tuple, expected))


def test_clipping_without_noise_equals_a_plain_loop_over_clients(synthetic_store, tmp_path):
    algorithm = FedNewsRec(7, clip=0.003, noise_scale=0, loss="sum")
    loop, data = make_loop(synthetic_store, algorithm, dropout=0.0)
    start = weights(loop)
    model = copy.deepcopy(loop.model)
    fit(loop, data, tmp_path, rounds=1)

    source = data.cohorts()
    draw = algorithm.select(source, 0).draw
    parameters = trainable(model)
    total = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    for client in range(7):
        cohort = source.cohort(draw.of_clients(np.array([client])))
        scores = model(
            cohort.news, cohort.history, cohort.history_mask, cohort.user, cohort.sample_history, cohort.candidates
        )
        gradients = torch.autograd.grad(click_losses(scores).sum(), list(parameters.values()))
        for name, gradient in zip(parameters, gradients, strict=True):
            total[name] += cohort.counts[0] * gradient.clamp(-0.003, 0.003)
    for name in parameters:
        expected = start[name] - 0.1 * total[name] / len(draw.client)
        torch.testing.assert_close(loop.model.state_dict()[name], expected, rtol=1e-5, atol=1e-7)


def test_one_local_step_of_fedavg_equals_fedsgd(synthetic_store, tmp_path):
    results = []
    for algorithm, lr in ((FedAvg(8, local_steps=1, local_lr=0.2), 1.0), (FedNewsRec(8, None, 0, "mean"), 0.2)):
        loop, data = make_loop(
            synthetic_store, algorithm, dropout=0.0, optimizer=lambda p, lr=lr: torch.optim.SGD(p, lr=lr)
        )
        fit(loop, data, tmp_path / str(lr), rounds=3)
        results.append(weights(loop))
    for name, value in results[0].items():
        torch.testing.assert_close(value, results[1][name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("model", sorted(MODELS))
def test_every_model_trains_centrally(synthetic_store, tmp_path, model):
    loop, data = make_loop(synthetic_store, Centralized(32), model=model, optimizer=adam)
    start = weights(loop)
    _, metrics = fit(loop, data, tmp_path, rounds=2)
    assert sorted(metrics) == [1, 2]
    changed = {name for name, value in weights(loop).items() if not torch.equal(value, start[name])}
    assert changed == set(trainable(loop.model))


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


ALGORITHMS = {
    "apfl": lambda: APFL(6, 2, 0.1, client_dropout=0.3),
    "centralized": lambda: Centralized(16),
    "cfl": lambda: CFL(
        8, eps1=1e9, eps2=1e-9, linkage="complete", warmup=0, max_clusters=3, local_steps=2, local_lr=0.1
    ),
    "ditto": lambda: Ditto(6, 2, 0.1, personal_steps=1, client_dropout=0.3),
    "efficient_fedrec": lambda: EfficientFedRec(6, news_lr=0.02, client_dropout=0.3, news_at_once=50),
    "fedper": lambda: FedPer(6, 2, 0.1, client_dropout=0.3),
    "fedprox": lambda: FedProx(6, 2, 0.1, mu=1.0, client_dropout=0.3),
    "finding": lambda: Finding(3, 8, alpha=1.3, recluster_every=2, mix_moments=True, vector_clip=1.0, vector_noise=0.1),
    "pfedme": lambda: PFedMe(6, 2, 0.05, inner_steps=1, inner_lr=0.1, lam=8.0, client_dropout=0.3),
    "dp_fedrec": lambda: DPFedRec(0.1, epsilon=5.0, clip=0.01, client_dropout=0.2),
    "privaterec": lambda: PrivateRec(8, 10.0, padding=0.3, label_mechanism="joint", client_dropout=0.3),
    "privaterec_stop_gradient": lambda: PrivateRec(
        8, 5.0, noise="gaussian", noise_per="sample", keep_labels=False, upload="stop_gradient", client_dropout=0.3
    ),
    "scaffold": lambda: SCAFFOLD(6, 2, 0.1, client_dropout=0.3),
    "fedavg": lambda: FedAvg(6, local_steps=2, local_lr=0.1, client_dropout=0.3),
    "fednewsrec": lambda: FedNewsRec(0.2, clip=0.01, noise_scale=0.001, client_dropout=0.2),
}


# Every method with one model, and every model with one method.
PAIRS = sorted(
    {(name, "private_nrms" if name.startswith("privaterec") else "nrms") for name in ALGORITHMS}
    | {("fednewsrec", model) for model in MODELS}
)


@pytest.mark.parametrize(("name", "model"), PAIRS)
def test_a_resumed_run_equals_one_that_never_stopped(synthetic_store, tmp_path, name, model):
    """Model, optimiser, schedule, ledger and metrics, bit for bit, with dropout, noise and client dropout on."""

    def loop_of():
        schedule = lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)  # noqa: E731
        return make_loop(synthetic_store, ALGORITHMS[name](), model=model, optimizer=adam, scheduler=schedule)

    whole, data = loop_of()
    whole_trainer, whole_metrics = fit(whole, data, tmp_path / "whole", rounds=6, every=2)

    first, data = loop_of()
    fit(first, data, tmp_path / "parts", rounds=3, every=2)
    second, data = loop_of()
    torch.rand(100)  # a new process does not have the old one's global random state
    trainer, metrics = fit(second, data, tmp_path / "parts", 6, every=2, resume=tmp_path / "parts" / "step=3.ckpt")

    assert sorted(metrics) == [4, 5, 6]
    assert all(metrics[round_] == whole_metrics[round_] for round_ in metrics)
    for key, value in weights(whole).items():
        assert torch.equal(weights(second)[key], value), key
    saved = [torch.load(tmp_path / part / "step=6.ckpt", weights_only=True) for part in ("whole", "parts")]
    for part in ("federated", "optimizer_states", "lr_schedulers"):
        assert same(saved[0][part], saved[1][part]), part
    validation = [n for n in whole_trainer.callback_metrics if n.startswith("val_")]
    assert validation
    assert all(trainer.callback_metrics[n] == whole_trainer.callback_metrics[n] for n in validation)


def same(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def test_a_checkpoint_of_another_seed_is_refused(synthetic_store, tmp_path):
    loop, data = make_loop(synthetic_store, FedAvg(4))
    fit(loop, data, tmp_path, rounds=1)
    other, data = make_loop(synthetic_store, FedAvg(4), seed=6)
    with pytest.raises(FednewsError, match="seed 5, not 6"):
        fit(other, data, tmp_path, rounds=2, resume=tmp_path / "step=1.ckpt")


def test_two_processes_equal_one(synthetic_store, tmp_path):
    script = Path(__file__).with_name("two_processes.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for devices in ("1", "2"):
        command = [sys.executable, str(script), str(synthetic_store.path), devices, str(tmp_path / devices)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    one, two = (torch.load(tmp_path / devices / "result.pt", weights_only=True) for devices in ("1", "2"))
    for name, value in one["weights"].items():
        torch.testing.assert_close(two["weights"][name], value, rtol=0, atol=1e-5)
    assert one["metrics"].keys() == two["metrics"].keys()
    for name, value in one["metrics"].items():
        assert two["metrics"][name] == pytest.approx(value, abs=1e-5), name


def test_clients_that_drop_out_send_nothing_and_spend_nothing(synthetic_store, tmp_path):
    loop, data = make_loop(synthetic_store, FedNewsRec(20, 0.01, 0.01, client_dropout=0.5))
    _, metrics = fit(loop, data, tmp_path, rounds=4)
    clients = [round_["clients"] for round_ in metrics.values()]
    assert 4 * 20 * 0.2 < sum(clients) < 4 * 20 * 0.8
    entry = loop.algorithm.release(sum(p.numel() for p in trainable(loop.model).values()))
    assert loop.ledger.participations(entry).sum() == sum(clients)
    for round_ in metrics.values():
        assert round_["bytes_down"] * round_["clients"] < round_["bytes_up"] * 20
        assert round_["bytes_down"] == 20 * 4 * entry.coordinates


def test_a_round_without_answers_changes_nothing_and_is_counted(synthetic_store, tmp_path):
    algorithm = FedAvg(1, client_dropout=0.999)
    loop, data = make_loop(synthetic_store, algorithm, optimizer=adam)
    start = weights(loop)
    trainer, metrics = fit(loop, data, tmp_path, rounds=3)
    assert [round_["clients"] for round_ in metrics.values()] == [0, 0, 0]
    assert trainer.global_step == loop.round == 3
    assert all(torch.equal(value, start[name]) for name, value in weights(loop).items())


def test_a_loss_that_is_not_finite_stops_the_run(synthetic_store, tmp_path):
    loop, data = make_loop(synthetic_store, FedAvg(20), optimizer=lambda p: torch.optim.SGD(p, lr=1e20), dropout=0.0)
    with pytest.raises(FednewsError, match=r"the loss became (nan|inf) in round \d+"):
        fit(loop, data, tmp_path, rounds=10)


def test_published_metrics_keep_every_digit(synthetic_store, tmp_path):
    loop, data = make_loop(synthetic_store, FedAvg(4))
    trainer, metrics = fit(loop, data, tmp_path, rounds=2)
    loop.publish({"bytes_up": 2**24 + 1, "epsilon": 0.1}, step=2)
    assert float(trainer.callback_metrics["bytes_up"]) == 2**24 + 1
    assert float(trainer.callback_metrics["epsilon"]) == 0.1
    assert float(trainer.callback_metrics["loss"]) == metrics[2]["loss"]


def test_training_learns(synthetic_store, tmp_path):
    loop, data = make_loop(synthetic_store, FedAvg(20), optimizer=adam, dropout=0.0, train_words=True)
    _, metrics = fit(loop, data, tmp_path, rounds=60)
    losses = [round_["loss"] for round_ in metrics.values()]
    assert np.mean(losses[-10:]) < np.mean(losses[:10]) - 0.3


class Few(SecureAggregation):
    """Secure sums of which the first of every round are aborted, so many as ``aborts`` says."""

    def __init__(self, aborts: int, **settings) -> None:
        super().__init__(simulate=True, **settings)
        self.aborts, self.tries = aborts, {}

    def sum(self, parts, like, streams, round_):
        self.tries[round_] = self.tries.get(round_, 0) + 1
        if self.tries[round_] <= self.aborts:
            list(parts)
            raise TooFewClients("2 clients are left and 3 are needed")
        return super().sum(parts, like, streams, round_)


def test_an_aborted_round_is_tried_again_with_other_clients(synthetic_store, tmp_path):
    results = []
    for aborts in (0, 2):
        loop, data = make_loop(synthetic_store, FedAvg(6))
        loop.aggregation = Few(aborts)
        _, metrics = fit(loop, data, tmp_path / str(aborts), rounds=2)
        results.append((loop, metrics))
    (_, once), (rough, again) = results
    assert [round_["retries"] for round_ in once.values()] == [0, 0]
    assert [round_["retries"] for round_ in again.values()] == [2, 2]
    cohorts = [
        {tuple(rough.algorithm.select(rough.source.attempt(k), n).participants.tolist()) for k in range(3)}
        for n in range(2)
    ]
    assert [len(found) for found in cohorts] == [3, 3], "every attempt draws its own clients"
    entry = rough.ledger.entries[0]
    last = [rough.algorithm.select(rough.source.attempt(2), n).participants for n in range(2)]
    expected = np.bincount(np.concatenate(last), minlength=rough.ledger.n_clients)
    assert np.array_equal(rough.ledger.participations(entry), expected), "an aborted attempt releases nothing"
    for number in again:
        assert again[number]["bytes_down_model"] == 3 * once[number]["bytes_down_model"]
        assert again[number]["bytes_up"] == once[number]["bytes_up"]


def test_attempts_at_a_round_are_bounded_and_end_in_one_clear_line(synthetic_store, tmp_path):
    loop, data = make_loop(synthetic_store, FedAvg(6))
    loop.aggregation = Few(10, retries=3)
    start = weights(loop)
    with pytest.raises(FednewsError, match=r"round 0 was aborted in all of 4 attempts: .* Invite more clients"):
        fit(loop, data, tmp_path, rounds=2)
    assert loop.aggregation.tries == {0: 4}
    assert all(torch.equal(value, start[name]) for name, value in weights(loop).items())
    assert not loop.ledger.entries


def test_a_method_whose_clients_keep_state_is_not_tried_again(synthetic_store, tmp_path):
    loop, data = make_loop(synthetic_store, FedPer(6, 1, 0.1))
    loop.aggregation = Few(1)
    with pytest.raises(FednewsError, match="in all of 1 attempts"):
        fit(loop, data, tmp_path, rounds=1)


def test_rounds_with_too_few_answers_for_a_secure_sum_are_tried_again_and_resume_alike(synthetic_store, tmp_path):
    def loop_of():
        loop, data = make_loop(synthetic_store, EfficientFedRec(4, client_dropout=0.4))
        loop.aggregation = SecureAggregation(min_clients=3, retries=30, simulate=True)
        return loop, data

    whole, data = loop_of()
    _, metrics = fit(whole, data, tmp_path / "whole", rounds=4)
    assert sum(round_["retries"] for round_ in metrics.values()) > 0
    assert all(round_["clients"] >= 3 for round_ in metrics.values())
    part, data = loop_of()
    _, later = fit(part, data, tmp_path / "part", 4, resume=tmp_path / "whole" / "step=2.ckpt")
    assert all(later[number] == metrics[number] for number in (3, 4))
    for name, value in weights(whole).items():
        assert torch.equal(weights(part)[name], value), name


def test_a_round_s_seconds_are_those_of_clients_sums_server_and_simulation(synthetic_store, tmp_path):
    loop, data = make_loop(synthetic_store, EfficientFedRec(6))
    fit(loop, data, tmp_path, rounds=1)
    found = loop._metrics
    parts = [found[f"{payer}_seconds"] for payer in ("client", "aggregation", "server")]
    assert min(parts) > 0
    assert sum(parts) < found["round_seconds"]
    assert found["per_client_seconds"] == pytest.approx(found["client_seconds"] / 6)
