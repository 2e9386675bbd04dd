"""FCF: federated collaborative filtering (Ammad-ud-din et al. 2019, arXiv 1901.09888)."""

import torch
from torch import Tensor, nn

from fednews.data.features import NewsInfo
from fednews.errors import UsageError
from fednews.models.base import NewsModel
from fednews.models.layers import FastDropout
from fednews.types import Dropout, Size


class FCF(NewsModel):
    r"""Factors of articles; a user's factor is solved from the clicks, on the client, and kept nowhere.

    The factor of a user with the clicked articles I minimises the implicit-feedback objective of Hu et al. (2008)
    over all articles j, with r = 1 where j is in I and 0 elsewhere, and confidence c = 1 + alpha r:

    .. math:: J(p, Q) = \sum_j c_j (r_j - p^\top q_j)^2 + \lambda |p|^2, \qquad
              p = (Q^\top C Q + \lambda I)^{-1} Q^\top C r.

    News are their factors ``[N, factors]``, users ``[R, factors]``, zero without a click; the score is the dot product.
    An article clicked several times counts once. An article that no training client has clicked keeps its small
    random start, pulled towards zero: new articles, most of what a dev split shows, cannot be told apart.

    The paper's training is :class:`fednews.federated.algorithms.fcf.FCF`. Other algorithms train the same factors by
    the click loss, through the solution.

    Args:
        info: number of articles.
        factors: width of the factors.
        alpha: extra confidence in a click.
        regularization: lambda, of users and, in the paper's training, of articles.
        dropout: rate on articles' factors, in training by the click loss.

    Raises:
        UsageError: ``regularization`` is not positive, so that nothing fixes the factor of a user without clicks.
    """

    inputs = ("news",)
    news_layers = ("items",)
    user_layers = ()

    def __init__(
        self,
        info: NewsInfo,
        factors: Size = 32,
        alpha: float = 10.0,
        regularization: float = 1.0,
        dropout: Dropout = 0.0,
    ) -> None:
        super().__init__()
        if regularization <= 0:
            raise UsageError(f"model.regularization must be positive, not {regularization}")
        self.items = nn.Embedding(info.news, factors)
        nn.init.normal_(self.items.weight, std=0.1)
        self.alpha, self.regularization = alpha, regularization
        self.dropout = FastDropout(dropout)

    def encode_news(self, news: dict[str, Tensor]) -> Tensor:
        return self.dropout(self.items(news["news"]))

    def encode_user(self, history: Tensor, mask: Tensor, user: Tensor) -> Tensor:
        """See :meth:`NewsModel.encode_user`; at least float32 inside, as no solver works in less."""
        dtype = torch.promote_types(history.dtype, torch.float32)
        with torch.autocast(history.device.type, enabled=False):
            items = self.items.weight.to(dtype)
            clicks = torch.where((mask & _first(history, mask)).unsqueeze(-1), history.to(dtype), 0)
            identity = torch.eye(items.shape[1], dtype=dtype, device=items.device)
            system = items.T @ items + self.alpha * clicks.mT @ clicks + self.regularization * identity
            return (
                torch.linalg.solve(system, (1 + self.alpha) * clicks.sum(1).unsqueeze(-1)).squeeze(-1).to(history.dtype)
            )


def _first(history: Tensor, mask: Tensor) -> Tensor:
    """Which clicks ``[R, H]`` are the first on their article; the same article has the same factor to the bit."""
    same = (history.unsqueeze(2) == history.unsqueeze(1)).all(-1) & mask.unsqueeze(1)
    return ~(same.tril(-1).any(-1))
