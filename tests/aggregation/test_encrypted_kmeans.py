import pytest
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from fednews.aggregation.base import Aggregation
from fednews.aggregation.ckks import CKKS
from fednews.aggregation.encrypted_kmeans import encrypted_kmeans
from fednews.aggregation.paillier import Paillier
from fednews.aggregation.plain import Plain


def points(n: int, d: int, seed: int) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("steps", [1, 2, 5, 100])
def test_plain_sums_give_lloyds_algorithm(steps: int):
    for seed, (n, d, k) in enumerate([(300, 3, 4), (20, 2, 2), (600, 5, 8)]):
        vectors = points(n, d, seed)
        labels, centroids = encrypted_kmeans(vectors, vectors[:k], steps, Plain())
        lloyd = KMeans(k, init=vectors[:k].numpy(), n_init=1, max_iter=steps, algorithm="lloyd", tol=0)
        expected = lloyd.fit(vectors.numpy())
        assert labels.tolist() == expected.labels_.tolist()
        torch.testing.assert_close(centroids, torch.from_numpy(expected.cluster_centers_))


@pytest.mark.parametrize(
    "aggregation", [Paillier(key_bits=512, max_clients=30, threads=1), CKKS()], ids=["paillier", "ckks"]
)
def test_encrypted_sums_give_the_plain_clusters(aggregation: Aggregation):
    vectors = points(30, 3, 0).float()
    labels, centroids = encrypted_kmeans(vectors, vectors[:4], 4, aggregation)
    expected_labels, expected_centroids = encrypted_kmeans(vectors, vectors[:4], 4, Plain())
    assert torch.equal(labels, expected_labels)
    torch.testing.assert_close(centroids, expected_centroids, rtol=0, atol=1e-5)
    assert aggregation.metrics()["aggregation_bytes_up"] > 0


def test_an_empty_cluster_keeps_its_centroid():
    vectors, far = points(50, 2, 0), torch.tensor([[100.0, 100.0]], dtype=torch.float64)
    labels, centroids = encrypted_kmeans(vectors, torch.cat([vectors[:2], far]), 5, Plain())
    assert torch.equal(centroids[2:], far)
    without, _ = encrypted_kmeans(vectors, vectors[:2], 5, Plain())
    assert torch.equal(labels, without)


def test_one_cluster_is_the_mean_and_no_step_the_nearest_start():
    vectors = points(50, 2, 0)
    labels, centroids = encrypted_kmeans(vectors, vectors[:1], 3, Plain())
    assert not labels.any()
    torch.testing.assert_close(centroids[0], vectors.mean(0))
    labels, centroids = encrypted_kmeans(vectors, vectors[:3], 0, Plain())
    assert torch.equal(centroids, vectors[:3])
    assert labels[:3].tolist() == [0, 1, 2]
    assert labels.dtype == torch.int64


def test_it_stops_when_no_client_changes_its_cluster():
    vectors = torch.cat([points(20, 2, 0), points(20, 2, 1) + 50])
    counted = CKKS()
    encrypted_kmeans(vectors, vectors[[0, 20]], 1, counted)
    one_step = counted.metrics()["aggregation_bytes_up"]
    encrypted_kmeans(vectors, vectors[[0, 20]], 100, counted)
    assert counted.metrics()["aggregation_bytes_up"] < 1.5 * one_step


def test_the_input_type_is_kept():
    vectors = points(10, 2, 0).float()
    assert encrypted_kmeans(vectors, vectors[:2], 2, Plain())[1].dtype == torch.float32
