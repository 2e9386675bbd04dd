"""NPA: neural news recommendation with personalized attention (Wu et al. 2019b, KDD)."""

import torch
from torch import Tensor

from fednews.data.features import NewsInfo
from fednews.models.base import NewsModel
from fednews.models.encoders.news.contextual import ContextualTitle
from fednews.models.encoders.user.personal import PreferenceQuery, pool_news, pool_words
from fednews.models.layers import WordEmbedding
from fednews.types import Dropout, Size


class NPA(NewsModel):
    """CNN over title words; attention over words and over clicks with queries made of the user's id; dot product.

    A news has no vector of its own, since every reader weighs its words differently: it is contextual words
    ``[N, title_length, filters + 1]``, the last column 1 at words and 0 at padding. A user is ``[R, 2 filters]``, the
    vector pooled from the clicks beside the word query by which ``score`` pools the candidates. Memory follows: a
    catalogue of N articles takes ``4 N title_length (filters + 1)`` bytes, 1.4 GB for 30,000 with the defaults.

    Where the paper is silent:

    - A user without training samples (index 0) has the zero vector as embedding, which is not trained. Such users share
      the queries that the dense layers' biases make.
    - Scores of the attentions are not scaled, as in the paper, and dropout is where the authors' code has it.

    In a federated run the user embedding travels whole, although a client uses, trains and reveals one row of it:
    prefer a model without user ids there.

    Args:
        info: sizes of the data's vocabulary and population, title length, and word vectors to start from.
        word_dim: width of word vectors; those of ``data.word_vectors`` where given.
        train_words: train, and so communicate, the word vectors (the paper trains them).
        filters: convolution filters; the width of news and user vectors.
        window: words a filter sees, odd.
        user_dim: width of the user embedding.
        query_dim: width of the preference queries.
        dropout: rate on word vectors and on contextual words.
    """

    inputs = ("title",)
    news_layers = ("news.words", "news.convolution")
    user_layers = (
        "users",
        ("word_query.preference", "news_query.preference"),
        ("word_query.projection", "news_query.projection"),
    )

    def __init__(
        self,
        info: NewsInfo,
        word_dim: Size = 300,
        train_words: bool = False,
        filters: Size = 400,
        window: Size = 3,
        user_dim: Size = 50,
        query_dim: Size = 200,
        dropout: Dropout = 0.2,
    ) -> None:
        super().__init__()
        words = WordEmbedding(info.words, word_dim, info.word_vectors, train_words)
        self.news = ContextualTitle(words, filters, window, info.title_length, dropout)
        self.users = WordEmbedding(info.users, user_dim, None, trainable=True)
        self.word_query = PreferenceQuery(user_dim, query_dim, filters)
        self.news_query = PreferenceQuery(user_dim, query_dim, filters)

    def encode_news(self, news: dict[str, Tensor]) -> Tensor:
        return self.news(news["title"])

    def encode_user(self, history: Tensor, mask: Tensor, user: Tensor) -> Tensor:
        identity = self.users(user)
        word_query = self.word_query(identity)
        clicks = pool_words(word_query, history)
        return torch.cat([pool_news(self.news_query(identity), clicks, mask), word_query], dim=-1)

    def score(self, user: Tensor, candidates: Tensor) -> Tensor:
        vector, word_query = user.chunk(2, -1)
        return super().score(vector, pool_words(word_query, candidates))
