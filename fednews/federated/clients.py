"""Client work, computed for many clients at once.

Three kinds, from cheap to dear: one fused gradient where only the weighted sum is wanted, per-client gradients
where each client's own is clipped or noised, and local training where clients take several steps.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.func import vmap

from fednews.aggregation.updates import ClientUpdates
from fednews.data.cohort import Cohort, client_batches
from fednews.federated.local import (
    Direction,
    Parameters,
    Reduction,
    at_rows,
    batch_inputs,
    gradient_function,
    local_clients,
)
from fednews.models.base import NewsModel, click_losses, encode_by_length, encode_users_by_length, word_rows, words_of
from fednews.models.functional import call_at
from fednews.timing import section


def trainable(model: NewsModel) -> dict[str, Tensor]:
    """The parameters that are trained, and so communicated, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def cohort_losses(model: NewsModel, cohort: Cohort) -> Tensor:
    """Loss of every sample ``[S]``, each article and each history encoded once."""
    vectors = encode_by_length(model, cohort.news)
    users = encode_users_by_length(model, vectors, cohort.history, cohort.history_mask, cohort.user)
    return click_losses(model.score(users[cohort.sample_history], vectors[cohort.candidates]))


def fused_gradient(
    model: NewsModel, cohort: Cohort, reduction: Reduction, parameters: dict[str, Tensor] | None = None
) -> ClientUpdates:
    r"""The cohort's weighted mean gradient by one backward pass, as if one client had sent it.

    With :math:`w_u = |B_u|` it is :math:`\sum_u w_u \nabla L_u / \sum_u w_u` (Qi et al. 2020, eq. 6), where
    :math:`L_u` is the sum or the mean of the client's sample losses. It is taken at, and for, ``parameters`` by
    name where given, else the global model's trained ones.
    """
    at = trainable(model)
    if parameters is None:
        losses = cohort_losses(model, cohort)
    else:
        at = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        losses = call_at(_CohortLosses(model), at, cohort)
    weight = cohort.counts.sum().to(losses.dtype)
    per_sample = cohort.counts[cohort.client].to(losses.dtype) if reduction == "sum" else torch.ones_like(losses)
    with section("backward"):
        gradients = torch.autograd.grad((losses * per_sample).sum() / weight, list(at.values()), allow_unused=True)
    updates = {
        name: torch.zeros_like(parameter)[None] if gradient is None else gradient[None]
        for (name, parameter), gradient in zip(at.items(), gradients, strict=True)
    }
    total = losses.detach().sum()[None]
    return ClientUpdates(cohort.clients[:0], updates, weight[None], total, cohort.counts.sum()[None])


class _CohortLosses(torch.nn.Module):
    """``call_at`` calls ``forward``."""

    def __init__(self, model: NewsModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, cohort: Cohort) -> Tensor:
        return cohort_losses(self.model, cohort)


def gradients(
    model: NewsModel,
    cohort: Cohort,
    reduction: Reduction,
    clients_at_once: int,
    separate: bool,
    parameters: dict[str, Tensor] | None = None,
) -> Iterator[ClientUpdates]:
    """The clients' gradients, fused into one unless they are wanted ``separate``; at ``parameters`` where given."""
    if separate:
        yield from client_gradients(model, cohort, reduction, clients_at_once, parameters)
    else:
        yield fused_gradient(model, cohort, reduction, parameters)


def client_gradients(
    model: NewsModel,
    cohort: Cohort,
    reduction: Reduction,
    clients_at_once: int,
    parameters: dict[str, Tensor] | None = None,
) -> Iterator[ClientUpdates]:
    """Every client's own gradient, ``clients_at_once`` together; word tables' at the rows that these clients read.

    Taken at, and for, ``parameters`` by name where given, else the global model's trained ones.
    """
    parameters = _values(model, parameters)
    for batch in client_batches(cohort, clients_at_once):
        words = words_of(model, batch.news)
        rows = word_rows(model, words, parameters)
        gradient = vmap(gradient_function(model, reduction, words, rows), in_dims=(None, 0), randomness="different")
        with section("backward"):
            gradients, losses = gradient(at_rows(parameters, rows), batch_inputs(batch))
        counts = cohort.counts[batch.clients]
        yield ClientUpdates(batch.clients, gradients, counts.to(losses.dtype), losses.detach(), counts, rows)


def local_training(
    model: NewsModel,
    cohort: Cohort,
    reduction: Reduction,
    steps: int,
    lr: float,
    clients_at_once: int,
    parameters: dict[str, Tensor] | None = None,
    direction: Callable[[Parameters], Direction] | None = None,
) -> Iterator[ClientUpdates]:
    """Each client's ``steps`` of gradient descent on all its samples; the update is start minus end.

    Clients start from ``parameters``, all trained ones by name, where given, else from the global ones. They descend
    ``direction``, which is made of their start, instead of the gradient where it is given; it leaves where it is what
    has no gradient from the start on.
    """
    start = _values(model, parameters)
    for group in local_clients(model, cohort, reduction, clients_at_once, at_rest=start):
        first = group.stacked(start)
        end, losses = group.descend(first, steps, lr, direction and direction(first))
        yield group.updates({name: value - end[name] for name, value in first.items()}, losses)


def _values(model: NewsModel, parameters: dict[str, Tensor] | None) -> dict[str, Tensor]:
    chosen = trainable(model) if parameters is None else parameters
    return {name: value.detach() for name, value in chosen.items()}
