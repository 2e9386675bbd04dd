"""LSTUR: neural news recommendation with long- and short-term user representations (An et al. 2019, ACL)."""

from typing import Literal

import torch
from torch import Tensor, nn

from fednews.data.features import NewsInfo
from fednews.models.base import Layer, NewsModel
from fednews.models.encoders.news.convolution import ConvolutionText
from fednews.models.encoders.user.personal import LongTermUser
from fednews.models.layers import GRU, FastDropout, WordEmbedding
from fednews.types import Dropout, Size


class LSTUR(NewsModel):
    """Title CNN beside topic and subtopic; a GRU over clicks joined with a vector of the user's id; dot product.

    A news is ``[N, filters + 2 topic_dim]``: title, topic and subtopic side by side. The GRU reads the clicks (short
    term), the user's own vector (long term) is its first state (``ini``) or stands beside its last one (``con``).

    Where the paper is silent, or this differs from it:

    - The paper gives no width of topic embeddings; 100 is what its authors use in NAML.
    - In ``con`` the two parts of the user share the news' width equally, so that the dot product fits.
    - Users' own vectors start at zero, not at random: one that was not trained yet acts like that of an unknown user.
    - "Dropout to each layer" is on word vectors, contextual words, topic embeddings and clicks.

    In a federated run the user embedding travels whole, although a client uses, trains and reveals one row of it:
    prefer a model without user ids there.

    Args:
        info: sizes of the data's vocabulary, categories and population, and word vectors to start from.
        variant: how long- and short-term interest are joined, ``ini`` or ``con``.
        word_dim: width of word vectors; those of ``data.word_vectors`` where given.
        train_words: train, and so communicate, the word vectors (the paper trains them).
        filters: convolution filters.
        window: words a filter sees, odd.
        topic_dim: width of topic and of subtopic embeddings.
        query_dim: width of the additive attention's query vector.
        masking: probability that training does without a user's long-term vector.
        dropout: dropout rate.
    """

    inputs = ("title", "category", "subcategory")
    news_layers = ("title.words", "title.convolution", ("title.pool", "category", "subcategory"))
    user_layers: tuple[Layer, ...]

    def __init__(
        self,
        info: NewsInfo,
        variant: Literal["ini", "con"] = "ini",
        word_dim: Size = 200,
        train_words: bool = False,
        filters: Size = 300,
        window: Size = 3,
        topic_dim: Size = 100,
        query_dim: Size = 200,
        masking: float = 0.5,
        dropout: Dropout = 0.2,
    ) -> None:
        super().__init__()
        self.variant = variant
        self.user_layers = ("long", "short") if variant == "ini" else (("long", "short"),)
        words = WordEmbedding(info.words, word_dim, info.word_vectors, train_words)
        self.title = ConvolutionText(words, filters, window, query_dim, dropout)
        self.category = nn.Embedding(info.categories, topic_dim)
        self.subcategory = nn.Embedding(info.subcategories, topic_dim)
        dim = filters + 2 * topic_dim
        long_dim = dim if variant == "ini" else dim // 2
        self.long = LongTermUser(info.users, long_dim, masking)
        self.short = GRU(dim, dim if variant == "ini" else dim - long_dim)
        self.dropout = FastDropout(dropout)

    def encode_news(self, news: dict[str, Tensor]) -> Tensor:
        topics = [self.dropout(getattr(self, name)(news[name])) for name in ("category", "subcategory")]
        return torch.cat([self.title(news["title"]), *topics], dim=-1)

    def encode_user(self, history: Tensor, mask: Tensor, user: Tensor) -> Tensor:
        history, long = self.dropout(history), self.long(user)
        if self.variant == "ini":
            return self.short(history, mask, long)
        return torch.cat([self.short(history, mask), long], dim=-1)
