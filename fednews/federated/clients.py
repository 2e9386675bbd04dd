"""Client work, computed for many clients at once.

Three kinds, from cheap to dear: one fused gradient where only the weighted sum is wanted, per-client gradients
where each client's own is clipped or noised, and local training where clients take several steps.
"""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from fednews.aggregation.updates import ClientUpdates
from fednews.data.cohort import ClientBatch, Cohort, client_batches
from fednews.models.base import NewsModel, click_losses, encode_by_length

Reduction = Literal["sum", "mean"]
_LENGTH_GROUPS = 4


def trainable(model: NewsModel) -> dict[str, Tensor]:
    """The parameters that are trained, and so communicated, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def cohort_losses(model: NewsModel, cohort: Cohort) -> Tensor:
    """Loss of every sample ``[S]``, each article and each history encoded once."""
    vectors = encode_by_length(model, cohort.news, _LENGTH_GROUPS)
    users = model.encode_user(vectors[cohort.history], cohort.history_mask, cohort.user)
    return click_losses(model.score(users[cohort.sample_history], vectors[cohort.candidates]))


def fused_gradient(model: NewsModel, cohort: Cohort, reduction: Reduction) -> ClientUpdates:
    r"""The cohort's weighted mean gradient by one backward pass, as if one client had sent it.

    With :math:`w_u = |B_u|` it is :math:`\sum_u w_u \nabla L_u / \sum_u w_u` (Qi et al. 2020, eq. 6), where
    :math:`L_u` is the sum or the mean of the client's sample losses.
    """
    losses = cohort_losses(model, cohort)
    weight = cohort.counts.sum().to(losses.dtype)
    per_sample = cohort.counts[cohort.client].to(losses.dtype) if reduction == "sum" else torch.ones_like(losses)
    parameters = trainable(model)
    gradients = torch.autograd.grad((losses * per_sample).sum() / weight, list(parameters.values()), allow_unused=True)
    updates = {
        name: torch.zeros_like(parameter)[None] if gradient is None else gradient[None]
        for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True)
    }
    total = losses.detach().sum()[None]
    return ClientUpdates(cohort.clients[:0], updates, weight[None], total, cohort.counts.sum()[None])


def gradients(
    model: NewsModel, cohort: Cohort, reduction: Reduction, clients_at_once: int, separate: bool
) -> Iterator[ClientUpdates]:
    """The clients' gradients at the global parameters, fused into one unless they are wanted ``separate``."""
    if separate:
        yield from client_gradients(model, cohort, reduction, clients_at_once)
    else:
        yield fused_gradient(model, cohort, reduction)


def client_gradients(
    model: NewsModel, cohort: Cohort, reduction: Reduction, clients_at_once: int
) -> Iterator[ClientUpdates]:
    """Every client's own gradient at the global parameters, ``clients_at_once`` together."""
    parameters = {name: parameter.detach() for name, parameter in trainable(model).items()}
    gradient = vmap(_client_gradient(model, reduction), in_dims=(None, 0), randomness="different")
    for batch in client_batches(cohort, clients_at_once):
        gradients, losses = gradient(parameters, _tensors(batch))
        yield _stacked(cohort, batch, gradients, losses)


def local_training(
    model: NewsModel, cohort: Cohort, reduction: Reduction, steps: int, lr: float, clients_at_once: int
) -> Iterator[ClientUpdates]:
    """Each client's ``steps`` of gradient descent on all its samples; the update is start minus end."""
    start = {name: parameter.detach() for name, parameter in trainable(model).items()}
    gradient = vmap(_client_gradient(model, reduction), in_dims=(0, 0), randomness="different")
    for batch in client_batches(cohort, clients_at_once):
        local = {name: value.expand(len(batch.clients), *value.shape) for name, value in start.items()}
        first_losses = None
        for _ in range(steps):
            gradients, losses = gradient(local, _tensors(batch))
            first_losses = losses if first_losses is None else first_losses
            local = {name: value - lr * gradients[name] for name, value in local.items()}
        yield _stacked(cohort, batch, {name: start[name] - value for name, value in local.items()}, first_losses)


def _client_gradient(model: NewsModel, reduction: Reduction):
    def loss(parameters: dict[str, Tensor], batch: tuple) -> tuple[Tensor, Tensor]:
        *inputs, real = batch
        total = (click_losses(functional_call(model, parameters, tuple(inputs))) * real).sum()
        return (total / real.sum() if reduction == "mean" else total), total

    return grad(loss, has_aux=True)


def _tensors(batch: ClientBatch) -> tuple:
    return (
        batch.news,
        batch.history,
        batch.history_mask,
        batch.user,
        batch.sample_history,
        batch.candidates,
        batch.sample_mask,
    )


def _stacked(cohort: Cohort, batch: ClientBatch, updates: dict[str, Tensor], losses: Tensor) -> ClientUpdates:
    counts = cohort.counts[batch.clients]
    return ClientUpdates(batch.clients, updates, counts.to(losses.dtype), losses.detach(), counts)
