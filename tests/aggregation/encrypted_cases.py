"""What every encrypted aggregation is held to."""

import torch
from torch import Tensor

from fednews.aggregation.encrypted import Encrypted
from fednews.aggregation.plain import plain_sum
from fednews.aggregation.updates import Aggregate, ClientUpdates
from fednews.streams import Streams

LIKE = {"a": torch.zeros(3, 2), "b": torch.zeros(()), "c": torch.zeros(2, 1, 2)}


def client_updates(clients: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> ClientUpdates:
    """Updates of both signs and weights that are no integers."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype)

    samples = torch.randint(1, 1000, (clients,), generator=generator)
    updates = {name: draw(clients, *value.shape) for name, value in LIKE.items()}
    return ClientUpdates(torch.arange(clients), updates, draw(clients).abs(), draw(clients) * 100, samples)


def split(part: ClientUpdates, size: int) -> list[ClientUpdates]:
    clients = range(0, len(part.clients), size)
    return [
        ClientUpdates(
            part.clients[i : i + size],
            {name: update[i : i + size] for name, update in part.updates.items()},
            part.weights[i : i + size],
            part.loss[i : i + size],
            part.samples[i : i + size],
        )
        for i in clients
    ]


def encrypted_sum(aggregation: Encrypted, parts: list[ClientUpdates], like: dict[str, Tensor] = LIKE) -> Aggregate:
    return aggregation.sum(parts, like, Streams(0), 0)


def rounded_sum(part: ClientUpdates, fraction_bits: int) -> dict[str, Tensor]:
    """Plain loop: every client rounds its weighted update to the step, then all are added, in float64."""
    step = 2.0**-fraction_bits
    sums = {name: torch.zeros(value.shape, dtype=torch.float64) for name, value in LIKE.items()}
    for row, weight in enumerate(part.weights.double()):
        for name, update in part.updates.items():
            sums[name] += (update[row].double() * weight / step).round() * step
    return sums


def check_sum(aggregation: Encrypted, clients: int) -> None:
    """The sum of what clients rounded, exactly; the plain sum within half a step per client."""
    part, bits = client_updates(clients), aggregation.fixed.fraction_bits
    sums = encrypted_sum(aggregation, split(part, 2))
    for name, expected in rounded_sum(part, bits).items():
        assert sums.total[name].dtype == LIKE[name].dtype
        torch.testing.assert_close(sums.total[name], expected.to(LIKE[name].dtype), rtol=0, atol=0)
    wide = ClientUpdates(
        part.clients, {n: u.double() for n, u in part.updates.items()}, part.weights, part.loss, part.samples
    )
    exact = plain_sum([wide], {name: value.double() for name, value in LIKE.items()})
    in_double = encrypted_sum(aggregation, [wide], {name: value.double() for name, value in LIKE.items()})
    for name, value in exact.total.items():
        assert (in_double.total[name] - value).abs().max() <= clients * 2.0 ** -(bits + 1) + 1e-12
    assert sums.samples == exact.samples
    for scalar, plain in ((sums.weight, part.weights), (sums.loss, part.loss)):
        assert abs(scalar - plain.double().sum()) <= clients * 2.0**-33
