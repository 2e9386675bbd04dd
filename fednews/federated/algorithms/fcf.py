"""FCF: federated training of item factors by the gradient of implicit feedback (Ammad-ud-din et al. 2019)."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.optim import Optimizer

from fednews.aggregation.updates import Aggregate, ClientUpdates
from fednews.data.cohort import Cohort, CohortSource
from fednews.errors import UsageError
from fednews.federated.algorithms.base import ClientSampling
from fednews.federated.round import Round
from fednews.models.base import NewsModel
from fednews.models.fcf import FCF as ItemFactors
from fednews.privacy.entry import LedgerEntry
from fednews.privacy.unprotected import unprotected

_ITEMS = "items.weight"


class FCF(ClientSampling):
    r"""Each drawn client solves its factor p and uploads its gradient of the articles' factors, which the server steps.

    With a client's clicked articles I (its histories and the clicks of its samples), r and c as in
    :class:`fednews.models.fcf.FCF`, the upload is, for every article of the catalogue,

    .. math:: \frac{\partial J(p, Q)}{\partial q_j} = -2 c_j (r_j - p^\top q_j) p.

    The server adds :math:`2 \lambda Q` to the sum over the round's clients and descends it divided by their number,
    which Adam, the paper's optimiser, does not notice. Every client weighs the same. The metric ``loss`` is the
    clients' J divided by their number of samples.

    Args:
        clients_per_round: how many clients are drawn each round; below 1 it is the fraction r of all clients.
        client_dropout: probability that a drawn client never answers.
        clients_at_once: clients computed together; more takes more memory.
    """

    def __init__(self, clients_per_round: float = 50, client_dropout: float = 0.0, clients_at_once: int = 50) -> None:
        super().__init__(clients_per_round, client_dropout)
        self.clients_at_once = clients_at_once

    def setup(self, model: NewsModel, source: CohortSource, make_optimizer: Callable[[list], Optimizer]) -> None:
        if not isinstance(model, ItemFactors):
            raise UsageError(f"algorithm FCF trains the model FCF alone, not {type(model).__name__}: set model to FCF")

    def aggregate(self, model: NewsModel, cohort: Cohort | None, work: Round) -> Aggregate:
        total = super().aggregate(model, cohort, work)
        total.total[_ITEMS] += 2 * model.regularization * model.items.weight.detach()
        return total

    def client_updates(self, model: NewsModel, cohort: Cohort, work: Round) -> Iterator[ClientUpdates]:
        clicked, mask = clicked_articles(cohort)
        for clients in torch.arange(len(cohort), device=clicked.device).split(self.clients_at_once):
            update, loss = item_gradients(model, clicked[clients], mask[clients], work.separate)
            samples, weights = cohort.counts[clients], torch.ones_like(loss)
            if work.separate:
                yield ClientUpdates(clients, {_ITEMS: update}, weights, loss, samples)
            else:
                count, mean = weights.sum()[None], update / len(clients)
                yield ClientUpdates(clients[:0], {_ITEMS: mean}, count, loss.sum()[None], samples.sum()[None])

    def release(self, coordinates: int) -> LedgerEntry:
        sees = (
            "every client's update by itself, with the client's identity",
            "the client's clicks: only in rows of clicked articles does the update differ from 2 p times the score",
        )
        return unprotected("item gradient", coordinates, "updates are uploaded without any noise", sees)


def clicked_articles(cohort: Cohort) -> tuple[Tensor, Tensor]:
    """Each client's different clicked articles, rows of the store's news: int64 ``[C, T]`` and bool ``[C, T]``."""
    owner = cohort.history_client.unsqueeze(1).expand_as(cohort.history)[cohort.history_mask]
    article = cohort.history[cohort.history_mask]
    pairs = torch.stack([torch.cat([owner, cohort.client]), torch.cat([article, cohort.candidates[:, 0]])], dim=1)
    client, article = pairs.unique(dim=0).unbind(1)
    counts = client.bincount(minlength=len(cohort))
    mask = torch.arange(int(counts.max()), device=counts.device) < counts.unsqueeze(1)
    clicked = torch.zeros_like(mask, dtype=torch.long)
    clicked[mask] = cohort.news["news"][article]
    return clicked, mask


@torch.no_grad()
def item_gradients(model: ItemFactors, clicked: Tensor, mask: Tensor, separate: bool) -> tuple[Tensor, Tensor]:
    """Gradients of the clients' J with respect to all articles' factors, and J ``[C]``.

    Args:
        model: the factors.
        clicked: rows of clicked articles ``[C, T]``.
        mask: which are real ``[C, T]``.
        separate: gradients ``[C, news, factors]`` of each client, or their sum ``[1, news, factors]``.
    """
    with torch.autocast(clicked.device.type, enabled=False):
        items, alpha = model.items.weight, model.alpha
        chosen = items[clicked]
        users = model.encode_user(chosen, mask, clicked[:, 0])
        scores = (chosen @ users.unsqueeze(-1)).squeeze(-1)
        # As if nothing were clicked: the gradient is 2 (p·q) p in every row. Then the rows of clicks are corrected.
        if separate:
            gradient = 2 * (users @ items.T).unsqueeze(-1) * users.unsqueeze(1)
            first_row = torch.arange(len(users), device=users.device) * len(items)
        else:
            gradient = (2 * items @ (users.T @ users)).unsqueeze(0)
            first_row = torch.zeros_like(clicked[:, 0])
        factor = -2 * (1 + alpha - alpha * scores) * mask
        correction = factor.unsqueeze(-1) * users.unsqueeze(1)
        rows = (first_row.unsqueeze(1) + clicked).flatten()
        gradient.view(-1, items.shape[1]).index_add_(0, rows, correction.flatten(0, 1))
        unclicked = ((users @ (items.T @ items)) * users).sum(-1)
        clicks = (((1 + alpha) * (1 - scores).square() - scores.square()) * mask).sum(-1)
        return gradient, unclicked + clicks + model.regularization * users.square().sum(-1)
