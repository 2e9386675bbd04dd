"""The seam between models and everything else: encode news, encode user, score."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from fednews.data.features import TOKEN_INPUTS, trim_tokens


class NewsModel(nn.Module, ABC):
    """A news recommender: three functions, and which columns of a news it reads.

    A subclass takes the data's :class:`~fednews.data.features.NewsInfo` as its first argument and its own
    settings after it, and knows nothing of federation.
    """

    inputs: ClassVar[tuple[str, ...]]

    @abstractmethod
    def encode_news(self, news: dict[str, Tensor]) -> Tensor:
        """Model inputs, first dimension ``N`` -> news vectors ``[N, d]``."""

    @abstractmethod
    def encode_user(self, history: Tensor, mask: Tensor) -> Tensor:
        """Clicked news vectors ``[R, H, d]``, oldest first, padded on the left, and their mask -> ``[R, d]``.

        An empty history gives the zero vector or another finite constant.
        """

    def score(self, user: Tensor, candidates: Tensor) -> Tensor:
        """User vectors ``[S, d]`` and candidate vectors ``[S, C, d]`` -> scores ``[S, C]`` (dot product)."""
        return (candidates @ user.unsqueeze(-1)).squeeze(-1)

    def forward(
        self,
        news: dict[str, Tensor],
        history: Tensor,
        history_mask: Tensor,
        sample_history: Tensor,
        candidates: Tensor,
    ) -> Tensor:
        """Scores ``[S, K + 1]`` of samples laid out as in :class:`~fednews.data.cohort.Cohort`."""
        vectors = self.encode_news(news)
        users = self.encode_user(vectors[history], history_mask)
        return self.score(users[sample_history], vectors[candidates])


def encode_by_length(model: NewsModel, news: dict[str, Tensor], pieces: int) -> Tensor:
    """``model.encode_news`` in ``pieces`` groups of similar text length, so that little padding is computed.

    The result does not depend on ``pieces`` but for rounding.
    """
    texts = [news[name] for name in TOKEN_INPUTS if name in news]
    if not texts or pieces == 1:
        return model.encode_news(news)
    length = sum((text != 0).sum(1) for text in texts)
    order = length.argsort(stable=True)
    groups = (trim_tokens({name: column[rows] for name, column in news.items()}) for rows in order.chunk(pieces))
    return torch.cat([model.encode_news(group) for group in groups])[order.argsort()]


def click_losses(scores: Tensor) -> Tensor:
    """Negative log-likelihood of the clicked candidate among K + 1 (Qi et al. 2020, eq. 3).

    ``scores [S, K + 1]`` with the clicked one in column 0 -> losses ``[S]``.
    """
    return -scores.log_softmax(-1)[:, 0]
