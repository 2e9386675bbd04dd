"""Client work, computed for many clients at once.

Three kinds, from cheap to dear: one fused gradient where only the weighted sum is wanted, per-client gradients
where each client's own is clipped or noised, and local training where clients take several steps.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from fednews.aggregation.updates import ClientUpdates
from fednews.data.cohort import Cohort
from fednews.federated.local import Direction, Parameters, Reduction, at_rows, local_clients
from fednews.federated.losses import CohortLosses, cohort_losses, gradients_of
from fednews.models.base import NewsModel
from fednews.models.functional import call_at
from fednews.timing import section


def trainable(model: NewsModel) -> dict[str, Tensor]:
    """The parameters that are trained, and so communicated, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


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
        losses = call_at(CohortLosses(model), at, cohort)
    weight = cohort.counts.sum().to(losses.dtype)
    per_sample = cohort.counts[cohort.client].to(losses.dtype) if reduction == "sum" else torch.ones_like(losses)
    with section("backward"):
        gradients = gradients_of((losses * per_sample).sum() / weight, at)
    updates = {name: gradient[None] for name, gradient in gradients.items()}
    total = losses.detach().sum()[None]
    return ClientUpdates(cohort.clients[:0], updates, weight[None], total, cohort.counts.sum()[None])


def gradients(
    model: NewsModel,
    cohort: Cohort,
    reduction: Reduction,
    clients_at_once: int | None,
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
    clients_at_once: int | None = None,
    parameters: dict[str, Tensor] | None = None,
) -> Iterator[ClientUpdates]:
    """Every client's own gradient, ``clients_at_once`` together; word tables' at the rows that these clients read.

    Taken at, and for, ``parameters`` by name where given, else the global model's trained ones.
    """
    start = _values(model, parameters)
    for group in local_clients(model, cohort, reduction, clients_at_once, at_rest=start):
        yield group.updates(*group.gradients(at_rows(start, group.rows), stacked=False))


def local_training(
    model: NewsModel,
    cohort: Cohort,
    reduction: Reduction,
    steps: int,
    lr: float,
    clients_at_once: int | None,
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
