import numpy as np
import pytest
import torch

from fednews.aggregation.ckks import CKKS
from fednews.aggregation.plain import Plain
from fednews.federated.clustering import UserClustering, kmeans
from fednews.federated.user_vectors import user_vectors
from fednews.privacy.user_vectors import UserVectorRelease

CLEAR = UserVectorRelease(None, 0.0)


def test_kmeans_puts_every_vector_to_its_nearest_centroid_which_is_the_mean_of_its_own():
    vectors = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    labels, centroids = kmeans(vectors, 4, seed=2**62)
    assert labels.tolist() == torch.cdist(vectors, centroids).argmin(1).tolist()
    for group in range(4):
        torch.testing.assert_close(centroids[group], vectors[labels == group].mean(0), rtol=1e-4, atol=1e-4)
    again, _ = kmeans(vectors, 4, seed=2**62)
    assert labels.tolist() == again.tolist()


def test_clustering_in_the_clear_is_kmeans_on_every_clients_vector(cohorts, nrms):
    labels, centroids = UserClustering(3, CLEAR, None, 1)(nrms, cohorts, done=7)
    expected = kmeans(torch.cat(list(user_vectors(nrms, cohorts))), 3, cohorts.streams.integer("kmeans", 7))
    assert labels.tolist() == expected[0].tolist()
    assert torch.equal(centroids, expected[1])


def test_clustering_under_encryption_finds_the_groups_of_plain_sums(cohorts, nrms):
    found = [UserClustering(3, CLEAR, aggregation, 4) for aggregation in (Plain(), CKKS())]
    (plain, plain_centroids), (encrypted, centroids) = (clustering(nrms, cohorts, 0) for clustering in found)
    assert plain.tolist() == encrypted.tolist()
    assert len(set(plain.tolist())) == 3
    torch.testing.assert_close(centroids, plain_centroids, rtol=0, atol=1e-4)
    ((entry, clients),) = found[1].released()
    assert entry.view == "central"
    assert not any("vector by itself" in seen for seen in entry.server_sees)
    assert any("centroid" in seen for seen in entry.server_sees)
    assert len(clients) == cohorts.samples.clients
    assert found[1].metrics()["clustering_aggregation_bytes_up"] > 0


def test_noise_blurs_groups_and_is_drawn_anew_at_each_clustering(cohorts, nrms):
    clear, _ = UserClustering(3, UserVectorRelease(1.0, 0.0), None, 1)(nrms, cohorts, 0)
    noisy = UserClustering(3, UserVectorRelease(1.0, 5.0), None, 1)
    first, again, later = (noisy(nrms, cohorts, done)[0] for done in (0, 0, 2))
    assert first.tolist() == again.tolist()
    assert agreement(clear, first) < 0.8
    assert agreement(first, later) < 0.8


def agreement(one, other):
    """Fraction of pairs of clients that both keep together or both keep apart."""
    above = np.triu_indices(len(one), 1)
    return ((one[:, None] == one) == (other[:, None] == other))[above].mean()


@pytest.mark.parametrize("aggregation", [None, Plain()])
def test_what_is_released_is_declared_once_for_each_clustering(cohorts, nrms, aggregation):
    clustering = UserClustering(2, UserVectorRelease(2.0, 3.0), aggregation, 2)
    clustering(nrms, cohorts, 0)
    ((entry, _),) = clustering.released()
    assert (entry.coordinates, entry.sensitivity, entry.noise_scale) == (10, 4.0, 3.0)
    assert clustering.released() == []
    assert clustering.metrics()["clustering_bytes_down"] == cohorts.samples.clients * 828 * 4
    assert clustering.metrics() == {}
