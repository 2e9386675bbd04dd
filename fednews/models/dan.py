"""DAN: deep attention neural network for news recommendation (Zhu et al. 2019b, AAAI)."""

import torch
from torch import Tensor, nn

from fednews.data.features import NewsInfo
from fednews.models.base import NewsModel
from fednews.models.encoders.news.knowledge import ParallelConvolution, entity_embedding
from fednews.models.encoders.user.candidate_aware import (
    LSTM,
    CandidateAttention,
    attend,
    attend_at_every_step,
    pack,
    unpack,
)
from fednews.models.layers import FastDropout, WordEmbedding
from fednews.types import Dropout, Size


class DAN(NewsModel):
    """CNNs over words and entities in parallel; attention over clicks and over an LSTM's states; dot product.

    News are PCNN's vectors ``[N, dim]``. What stands for a user is ``[R, H, 2 dim + 1]``: the clicks, the LSTM's states
    and the mask, since both attentions know the candidate and so belong to ``score``. There ANN weights the clicks
    (current interest), ARNN at every step the LSTM's states up to it (interest as it developed), and a dense layer
    joins both into the user's vector.

    Where this differs from the paper, or follows from descriptions of it because its text was not at hand:

    - ARNN's results at the steps are averaged; the paper lays them side by side as one matrix, which binds the
      parameters to one length of history and to its padding.
    - Clicks and states are weighted by a network with one tanh layer on click and candidate.
    - The score is the dot product: the paper compares user and candidate by their similarity, but a softmax over
      cosines could not put more than e² between two candidates.
    - The profile is the entities of title words, where they stand in the title; their types are not read. Entity
      vectors are those of ``data.entity_vectors``, frozen; without such files they are trained, and data without any
      entity leaves this CNN out.

    Args:
        info: sizes of the data's vocabulary and entities, and vectors to start from.
        word_dim: width of word vectors; those of ``data.word_vectors`` where given.
        train_words: train, and so communicate, the word vectors.
        entity_dim: width of entity vectors; those of ``data.entity_vectors`` where given.
        filters: convolution filters of each width, in each of the two CNNs.
        windows: words that the filters see.
        dim: width of news and user vectors and of the LSTM's state.
        attention_dim: hidden layers of the two attention networks.
        dropout: dropout rate.
    """

    inputs = ("title", "title_entities")
    whole_histories = True
    news_layers = (("news.words", "news.entities"), ("news.title", "news.profile"), "news.join")
    user_layers = ("recurrent", ("interest", "sequence"), "join")

    def __init__(
        self,
        info: NewsInfo,
        word_dim: Size = 300,
        train_words: bool = False,
        entity_dim: Size = 100,
        filters: Size = 100,
        windows: tuple[Size, ...] = (1, 2, 3, 4),
        dim: Size = 200,
        attention_dim: Size = 100,
        dropout: Dropout = 0.2,
    ) -> None:
        super().__init__()
        words = WordEmbedding(info.words, word_dim, info.word_vectors, train_words)
        self.news = ParallelConvolution(words, entity_embedding(info, entity_dim), filters, windows, dim, dropout)
        self.dim = dim
        self.recurrent = LSTM(dim, dim)
        self.interest = CandidateAttention(dim, dim, attention_dim, nn.Tanh())
        self.sequence = CandidateAttention(dim, dim, attention_dim, nn.Tanh())
        self.join = nn.Linear(2 * dim, dim)
        self.dropout = FastDropout(dropout)

    def encode_news(self, news: dict[str, Tensor]) -> Tensor:
        return self.news(news["title"], news["title_entities"])

    def encode_user(self, history: Tensor, mask: Tensor, user: Tensor) -> Tensor:
        history = self.dropout(history)
        return pack(mask, history, self.recurrent(history, mask))

    def score(self, user: Tensor, candidates: Tensor) -> Tensor:
        mask, clicks, states = unpack(user, self.dim, self.dim)
        interest = attend(self.interest(clicks, candidates), mask, clicks)
        sequence = attend_at_every_step(self.sequence(states, candidates), mask, states)
        users = self.join(self.dropout(torch.cat([interest, sequence], dim=-1)))
        return (users * candidates).sum(-1)
