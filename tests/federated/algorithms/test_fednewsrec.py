"""FedNewsRec's noise where only sums are simulated."""

import numpy as np
import torch
from scipy import stats

from fednews.aggregation.plain import plain_sum
from fednews.aggregation.secagg.aggregation import SecureAggregation
from fednews.federated.algorithms.fednewsrec import FedNewsRec
from fednews.federated.clients import trainable
from fednews.federated.round import Round


def total(nrms, cohorts, scale: float, sums_only: bool, number: int = 0) -> np.ndarray:
    algorithm = FedNewsRec(6, clip=0.01, noise_scale=scale)
    cohort = cohorts.cohort(cohorts.of_clients(cohorts.draw_clients(6, 0), 0))
    work = Round(number, cohorts.streams, True, lambda parts: plain_sum(parts, trainable(nrms)), sums_only)
    sums = algorithm.aggregate(nrms, cohort, work)
    return torch.cat([value.flatten() for value in sums.total.values()]).numpy()


def test_noise_drawn_as_one_has_the_distribution_of_the_clients_noises(nrms, cohorts):
    clean = total(nrms, cohorts, 0.0, True)
    as_one, apart = (total(nrms, cohorts, 1.0, sums_only) - clean for sums_only in (True, False))
    assert stats.ks_2samp(as_one, apart).pvalue > 0.01
    assert not np.array_equal(as_one, apart)


def test_noise_drawn_as_one_is_drawn_anew_in_every_round_and_again_in_a_rerun(nrms, cohorts):
    first = total(nrms, cohorts, 1.0, True)
    np.testing.assert_array_equal(first, total(nrms, cohorts, 1.0, True))
    assert not np.isclose(first, total(nrms, cohorts, 1.0, True, number=1)).any()


def test_only_a_simulated_secure_sum_lets_noise_be_drawn_as_one():
    """A real one needs every client's own noise under its mask, and a plain one shows every update to the server."""
    assert SecureAggregation(simulate=True).sums_only
    assert not SecureAggregation().sums_only
