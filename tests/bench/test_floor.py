"""The operations of a round, counted, against products written down by hand."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fednews.bench.floor import Floor, has_floor
from fednews.federated.algorithms.cfl import CFL
from fednews.federated.algorithms.efficient_fedrec import EfficientFedRec
from fednews.federated.algorithms.fcf import FCF
from fednews.federated.algorithms.fedavg import FedAvg
from fednews.federated.algorithms.fednewsrec import FedNewsRec
from fednews.federated.algorithms.fedper import FedPer
from fednews.federated.algorithms.privaterec import PrivateRec
from fednews.federated.clients import fused_gradient
from fednews.federated.parts import each_client, part_of
from fednews.federated.private_draws import private_cohort, with_history_per_sample
from fednews.federated.round import Round
from fednews.models.private import PrivateRecModel

WORD, HEADS, HEAD, QUERY = 12, 2, 5, 7  # of the small NRMS
DIM = HEADS * HEAD


def encoder(length: int, width: int) -> int:
    """Operations of self-attention and additive attention over ``length`` vectors of ``width``."""
    products = (
        length * width * 3 * DIM + 2 * length * length * DIM + length * DIM * QUERY + length * QUERY + length * DIM
    )
    return 2 * products


@pytest.fixture
def cohort(cohorts):
    return cohorts.cohort(cohorts.of_clients(cohorts.draw_clients(6, 0), 0))


def test_a_forward_pass_is_what_the_formulas_need_at_true_lengths(nrms, cohort):
    lengths = (cohort.news["title"] != 0).sum(1).tolist()
    clicks = cohort.history_mask.sum(1).tolist()
    expected = sum(encoder(length, WORD) for length in lengths) + sum(encoder(n, DIM) for n in clicks if n)
    expected += 2 * cohort.candidates.numel() * DIM
    assert Floor(nrms).cohort(cohort).forward == expected


def test_a_backward_pass_costs_two_forward_ones_less_what_frozen_words_need(nrms, cohort):
    found = Floor(nrms).cohort(cohort)
    words = int((cohort.news["title"] != 0).sum())
    assert found.backward == 2 * found.forward - 2 * words * WORD * 3 * DIM


def test_padding_and_bigger_batches_cost_nothing_more(nrms, cohort):
    floor = Floor(nrms)
    padded = {"title": torch.nn.functional.pad(cohort.news["title"], (0, 9))}
    assert floor.news(padded) == floor.news(cohort.news)
    twice = {"title": cohort.news["title"].repeat(2, 1)}
    assert floor.news(twice).total == 2 * floor.news(cohort.news).total


def test_methods_count_each_news_once_per_set_of_parameters(nrms, cohort):
    floor = Floor(nrms)
    whole = floor.cohort(cohort)
    clients = [floor.cohort(part_of(cohort, one)) for one in torch.eye(len(cohort), dtype=torch.bool)]
    forward, backward = (sum(getattr(client, way) for client in clients) for way in ("forward", "backward"))
    assert forward > whole.forward
    fedsgd = FedAvg(clients_per_round=6)
    assert floor.round(fedsgd, cohort, separate=False) == whole.total
    assert floor.round(fedsgd, cohort, separate=True) == whole.forward + backward
    assert floor.round(FedNewsRec(clients_per_round=6), cohort, False) == whole.forward + backward
    assert floor.round(CFL(clients_per_round=6, eps1=0.1, eps2=1.0), cohort, False) == whole.forward + backward
    for separate in (False, True):
        assert floor.round(EfficientFedRec(clients_per_round=6), cohort, separate) == whole.total
    three = FedAvg(clients_per_round=6, local_steps=3)
    assert floor.round(three, cohort, False) == whole.forward + 2 * forward + 3 * backward
    assert floor.round(FedPer(clients_per_round=6, local_steps=3), cohort, False) == 3 * (forward + backward)


on_privaterec = pytest.mark.parametrize("make_model", ["private_nrms"], indirect=True)


@pytest.fixture
def private(make_model) -> PrivateRecModel:
    return make_model(dropout=0.0)


def one_history(cohort):
    """A client with one history alone, of which no column is padding."""
    parts = (part_of(cohort, one) for one in torch.eye(len(cohort), dtype=torch.bool))
    return next(part for part in parts if len(part.history) == 1 and part.history_mask.all())


@on_privaterec
@pytest.mark.parametrize("upload", ["published", "stop_gradient"])
@pytest.mark.parametrize("padding", [0.0, 0.3])
def test_privaterecs_floor_is_what_its_pass_takes_where_nothing_is_padded(private, cohorts, cohort, upload, padding):
    algorithm = PrivateRec(6, padding=padding, upload=upload)
    algorithm.setup(private, cohorts, None)
    part = one_history(cohorts.cohort(cohorts.of_clients(cohorts.draw_clients(30, 1), 0)))
    work = Round(0, cohorts.streams, False, lambda parts: None)
    rows, users = private_cohort(part, work, algorithm.attention, 20, False, upload == "stop_gradient")
    with private.privately(users), FlopCounterMode(display=False) as counted:
        fused_gradient(private, rows, "mean")
    floor = Floor(private)
    anonymous = floor.anonymous()  # the pass takes it whether it is needed or not
    spared = 0 if padding else (anonymous.forward if upload == "stop_gradient" else anonymous.total)
    assert counted.get_total_flops() - spared == floor.round(algorithm, part, separate=False)


@on_privaterec
def test_privaterecs_clients_share_a_forward_pass_alone_where_each_sends_its_own_gradient(private, cohorts, cohort):
    floor = Floor(private)
    whole, clients = floor.cohort(cohort), [floor.cohort(part) for part in each_client(cohort)]
    apart = whole.forward + sum(client.backward for client in clients)
    apart += floor.anonymous().forward + len(cohort) * floor.anonymous().backward
    assert floor.round(PrivateRec(6), cohort, separate=True) == apart
    clipped = PrivateRec(6, upload="clipped_noised")
    assert floor.round(clipped, cohort, separate=False) == apart
    sampled = floor.round(PrivateRec(6, noise_per="sample"), cohort, separate=False)
    assert sampled == floor.cohort(with_history_per_sample(cohort)).total + floor.anonymous().total


def test_a_method_whose_algebra_is_not_written_down_has_no_floor():
    assert has_floor(FedAvg(clients_per_round=6))
    assert not has_floor(FCF(clients_per_round=6))
