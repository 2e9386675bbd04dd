"""DKN: deep knowledge-aware network for news recommendation (Wang et al. 2018, WWW)."""

from typing import Literal

import torch
from torch import Tensor, nn

from fednews.data.features import NewsInfo
from fednews.models.base import NewsModel
from fednews.models.encoders.news.knowledge import KnowledgeConvolution, entity_embedding
from fednews.models.encoders.user.candidate_aware import CandidateAttention, attend, pack, unpack
from fednews.models.layers import FastDropout, WordEmbedding
from fednews.types import Dropout, Size


class DKN(NewsModel):
    """Words and aligned entities by KCNN; clicks weighted for each candidate; a network on user and candidate.

    A news is a vector of ``filters * len(windows)``; what stands for a user is the history itself, ``[R, H, d + 1]``
    with the mask in the last column, since the attention knows the candidate and so belongs to ``score``.

    Where this differs from the paper, or the paper leaves it open:

    - The third channel, the mean of the entities' neighbours in the knowledge graph, is left out: it needs the graph,
      which no news data set ships. The paper's own ablation has this variant, and the authors' code defaults to it.
    - Entity vectors are those of ``data.entity_vectors`` and stay frozen; an entity without one counts as none. Without
      such files they are trained from clicks alone, and data without any entity leaves the channel out.
    - Both networks have one hidden layer with ReLU (the paper gives no sizes). Output biases, which cancel in the
      softmax over clicks or over candidates, do not exist. The authors' code has inner products in place of both:
      ``scoring: product``. A network has to learn to compare what a product compares, so it learns far slower.
    - Trained on the softmax over K + 1 candidates like all models here, not on single clicks.

    Args:
        info: sizes of the data's vocabulary and entities, and vectors to start from.
        word_dim: width of word vectors; those of ``data.word_vectors`` where given.
        train_words: train, and so communicate, the word vectors.
        entity_dim: width of entity vectors; those of ``data.entity_vectors`` where given.
        filters: convolution filters of each width (100 in the paper).
        windows: words that the filters see (1, 2, 3, 4 in the paper).
        attention_dim: hidden layer of the attention network.
        score_dim: hidden layer of the scoring network.
        scoring: attention and score by the paper's networks, or by the authors' inner products.
        dropout: dropout rate.
    """

    inputs = ("title", "title_entities")
    whole_histories = True
    news_layers = (("news.words", "news.entities"), ("news.transform", "news.convolution"))

    def __init__(
        self,
        info: NewsInfo,
        word_dim: Size = 300,
        train_words: bool = False,
        entity_dim: Size = 100,
        filters: Size = 100,
        windows: tuple[Size, ...] = (1, 2, 3, 4),
        attention_dim: Size = 100,
        score_dim: Size = 100,
        scoring: Literal["network", "product"] = "network",
        dropout: Dropout = 0.2,
    ) -> None:
        super().__init__()
        words = WordEmbedding(info.words, word_dim, info.word_vectors, train_words)
        self.news = KnowledgeConvolution(words, entity_embedding(info, entity_dim), filters, windows, dropout)
        self.dim = filters * len(windows)
        self.user_layers = ()
        if scoring == "network":
            self.user_layers = ("attention", "network")
            self.attention = CandidateAttention(self.dim, self.dim, attention_dim, nn.ReLU())
            self.network = nn.Sequential(
                nn.Linear(2 * self.dim, score_dim), nn.ReLU(), FastDropout(dropout), nn.Linear(score_dim, 1, bias=False)
            )

    def encode_news(self, news: dict[str, Tensor]) -> Tensor:
        return self.news(news["title"], news["title_entities"])

    def encode_user(self, history: Tensor, mask: Tensor, user: Tensor) -> Tensor:
        return pack(mask, history)

    def score(self, user: Tensor, candidates: Tensor) -> Tensor:
        mask, clicks = unpack(user, self.dim)
        if not self.user_layers:
            users = attend(candidates @ clicks.transpose(-1, -2), mask, clicks)
            return (users * candidates).sum(-1)
        users = attend(self.attention(clicks, candidates), mask, clicks)
        return self.network(torch.cat([users, candidates], dim=-1)).squeeze(-1)
