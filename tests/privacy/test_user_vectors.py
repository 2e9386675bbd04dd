import math

import pytest
import torch

from fednews.errors import FednewsError, UsageError
from fednews.privacy.accounting import epsilon_of
from fednews.privacy.user_vectors import UserVectorRelease


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_vectors_are_clipped_to_the_norm_and_keep_their_direction():
    vectors = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    expected = torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]])
    torch.testing.assert_close(UserVectorRelease(1.0, 0)(vectors, generator()), expected)


def test_no_clipped_vector_is_longer_than_the_bound():
    vectors = torch.randn(2000, 50, generator=generator()) * 100
    assert float(UserVectorRelease(0.37, 0).clipped(vectors).norm(dim=1).max()) <= 0.37 * (1 + 1e-15)


def test_noise_has_the_stated_deviation_and_no_mean():
    noise = UserVectorRelease(1.0, 2.5)(torch.zeros(400, 500), generator()) / 2.5
    assert float(noise.mean()) == pytest.approx(0, abs=4 / math.sqrt(200_000))
    assert float(noise.std()) == pytest.approx(1, abs=4 / math.sqrt(400_000))
    assert float((noise.abs() < 1).float().mean()) == pytest.approx(math.erf(math.sqrt(0.5)), abs=0.005)


def test_without_clip_and_noise_vectors_are_released_as_they_are():
    vectors = torch.randn(3, 4, generator=generator())
    release = UserVectorRelease(None, 0)
    assert torch.equal(release(vectors, generator()), vectors)
    assert math.isinf(epsilon_of(((release.entry(4), 1),)).epsilon)


def test_the_entry_holds_for_the_two_vectors_that_are_furthest_apart():
    """Opposite vectors of the largest norm are 2 C apart: the Gaussian mechanism's multiplier is sigma / 2 C."""
    entry = UserVectorRelease(0.5, 2.0).entry(300)
    figure = epsilon_of(((entry, 1),), 1e-5)

    def delta(epsilon):  # Balle and Wang 2018, eq. 6, with distance 1 and deviation 2
        below = 0.5 * math.erfc((epsilon * 2 - 1 / 4) / math.sqrt(2))
        above = 0.5 * math.erfc((epsilon * 2 + 1 / 4) / math.sqrt(2))
        return below - math.exp(epsilon) * above

    assert delta(figure.epsilon) == pytest.approx(1e-5, rel=1e-6)


@pytest.mark.parametrize(
    "settings", [(0.0, 0.0), (-1.0, 0.0), (math.inf, 1.0), (1.0, -1.0), (1.0, math.inf), (None, 1.0)]
)
def test_settings_out_of_range_and_noise_without_a_clip_are_refused(settings):
    with pytest.raises(UsageError, match="vector_"):
        UserVectorRelease(*settings)


def test_a_vector_that_is_not_finite_is_an_error():
    with pytest.raises(FednewsError, match="not finite"):
        UserVectorRelease(1.0, 1.0)(torch.tensor([[1.0, math.nan]]), generator())
