"""What is learned for each user by identity: personal attention (NPA), long-term interest (LSTUR)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fednews.models.layers import WordEmbedding, masked_softmax


class PreferenceQuery(nn.Module):
    """A user's attention query: ``tanh(W relu(V e + v) + b)`` (Wu et al. 2019b, eqs. 2, 3 and 6, 7).

    Args:
        user_dim: width of the user's embedding e.
        query_dim: width of the preference query, the hidden layer.
        dim: width of what is attended to.
    """

    def __init__(self, user_dim: int, query_dim: int, dim: int) -> None:
        super().__init__()
        self.preference = nn.Linear(user_dim, query_dim)
        self.projection = nn.Linear(query_dim, dim)

    def forward(self, user: Tensor) -> Tensor:
        """``[R, user_dim]`` -> ``[R, dim]``."""
        return self.projection(self.preference(user).relu()).tanh()


def pool_news(query: Tensor, news: Tensor, mask: Tensor) -> Tensor:
    """News ``[R, H, d]`` weighted by ``softmax(news · query)`` for queries ``[R, d]`` -> ``[R, d]``, zero for none."""
    weights = masked_softmax((news @ query.unsqueeze(-1)).squeeze(-1), mask)
    return (weights.unsqueeze(1) @ news).squeeze(1)


def pool_words(query: Tensor, words: Tensor) -> Tensor:
    """Titles as a reader with query ``[R, d]`` sees them.

    ``words [R, K, L, d + 1]`` as :class:`~fednews.models.encoders.news.contextual.ContextualTitle` gives them ->
    ``[R, K, d]``, zero for an empty title.
    """
    # The mask's column gets weight zero, and is dropped after pooling: no copy of the words without it is made.
    query = F.pad(query, (0, 1))[:, None, :, None]
    weights = masked_softmax((words @ query).squeeze(-1), words[..., -1] > 0)
    return (weights.unsqueeze(-2) @ words).squeeze(-2)[..., :-1]


class LongTermUser(nn.Module):
    """A vector for each user, hidden in training with some probability (An et al. 2019, section 3.2.2 and eq. 6).

    All start at zero, so that a user whose vector was not trained yet is treated like an unknown one.

    Args:
        users: how many, index 0 unknown: always the zero vector.
        dim: width of the vector.
        masking: probability that a history row does without its user's vector in training.
    """

    def __init__(self, users: int, dim: int, masking: float) -> None:
        super().__init__()
        self.embedding = WordEmbedding(users, dim, torch.zeros(users, dim), trainable=True)
        self.masking = masking

    def forward(self, user: Tensor) -> Tensor:
        """``[R]`` -> ``[R, dim]``."""
        vectors = self.embedding(user)
        if not self.training:
            return vectors
        return vectors * (torch.rand(user.shape, device=user.device) >= self.masking).unsqueeze(-1)
