"""FM: factorization machine on sparse features (Rendle 2012, TIST)."""

import torch
from torch import Tensor

from fednews.data.features import NewsInfo
from fednews.models.base import NewsModel
from fednews.models.encoders.news.features import FIELDS, Factors, field_sizes
from fednews.models.layers import FastDropout
from fednews.types import Dropout, Size


class FM(NewsModel):
    r"""All pairs of features interact through the inner products of their factors.

    The features x of a user and a candidate are the user's id, the average of the clicked news' features, and the
    candidate's features; a news has its category, its subcategory, and its title's words and entities with weights
    that sum to 1. Clicked and candidate news are different features, with factors of their own. With :math:`S =
    \sum_j x_j v_j` over a side's features and :math:`Q = \sum_j x_j^2 v_j^2`,

    .. math:: \hat y = w_0 + \sum_j w_j x_j + \tfrac12 \left(|S_u + S_c|^2 - 1^\top (Q_u + Q_c)\right)
              = S_u^\top S_c + \left(w^\top x_c + \tfrac12 (|S_c|^2 - 1^\top Q_c)\right) + f(u).

    What depends on the user alone, f(u), cancels in the softmax over candidates and in every ranking, so :math:`w_0`,
    the user's linear weights and the interactions among the user's own features do not exist here: scores differ from
    a whole FM's by one number for each user. ``encode_news`` gives ``[N, 2 factors + 1]``: a clicked news' sum, a
    candidate's sum, and the bracket. Values that training never saw (index 0) are no features.

    Args:
        info: sizes of the data's users, categories, vocabulary and entities.
        factors: width of the factors.
        dropout: rate on the user's sum; Rendle regularises by weight decay, which is the optimiser's.
    """

    inputs = FIELDS
    news_layers = (("linear", "clicked", "candidate"),)
    user_layers = ("user",)

    def __init__(self, info: NewsInfo, factors: Size = 64, dropout: Dropout = 0.0) -> None:
        super().__init__()
        sizes = field_sizes(info)
        self.factors = factors
        self.linear = Factors(sizes, 1)
        self.clicked = Factors(sizes, factors)
        self.candidate = Factors(sizes, factors)
        self.user = Factors({"user": info.users}, factors)
        self.dropout = FastDropout(dropout)

    def encode_news(self, news: dict[str, Tensor]) -> Tensor:
        sums = self.candidate.sums(news)
        pairs = (sums.square() - self.candidate.squares(news)).sum(-1, keepdim=True) / 2
        return torch.cat([self.clicked.sums(news), sums, self.linear.sums(news) + pairs], dim=-1)

    def encode_user(self, history: Tensor, mask: Tensor, user: Tensor) -> Tensor:
        clicked = torch.where(mask.unsqueeze(-1), history[..., : self.factors], 0)
        average = clicked.sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        return self.dropout(average + self.user.sums({"user": user}))

    def score(self, user: Tensor, candidates: Tensor) -> Tensor:
        _, sums, own = candidates.split([self.factors, self.factors, 1], dim=-1)
        return (sums @ user.unsqueeze(-1) + own).squeeze(-1)
