"""DFM: multi-channel deep fusion (Lian et al. 2018, IJCAI)."""

import torch
from torch import Tensor, nn

from fednews.data.features import NewsInfo
from fednews.models.base import NewsModel
from fednews.models.encoders.news.features import FIELDS, mean_of_tokens
from fednews.models.encoders.news.knowledge import entity_embedding
from fednews.models.encoders.user.channels import ChannelUser, Inception
from fednews.models.layers import FastDropout, WordEmbedding
from fednews.types import Dropout, Size


class DFM(NewsModel):
    """Inception modules (dense channels of different depth) over sparse features; attention over a user's channels.

    A news is the embeddings of its category and subcategory and the averages of its title words' and entities'
    vectors, through an inception module: ``[N, dim]``. A user is the id's embedding and the clicked news, each a
    channel with an inception module of its own, joined by attention: ``[R, dim]``. The score is the dot product.

    What is decided here, from the abstract and from descriptions, as the paper's text was not at hand:

    - The paper's channels are sources of knowledge about a user (news, search, browsing); click logs have the id and
      the clicks. Clicks enter as their additive attention, since their number differs.
    - The retrieval form, whose user does not know the candidate, and not the form for re-ranking.
    - An inception module ends in a dense layer without activation on the concatenation of its channels.
    - Entity vectors are those of ``data.entity_vectors``, frozen; without such files they are trained, and data without
      any entity leaves them out.

    Args:
        info: sizes of the data's users, categories, vocabulary and entities, and vectors to start from.
        word_dim: width of word vectors; those of ``data.word_vectors`` where given.
        train_words: train, and so communicate, the word vectors.
        entity_dim: width of entity vectors; those of ``data.entity_vectors`` where given.
        category_dim: width of category and subcategory embeddings.
        dim: width of news and user vectors.
        hidden: width of the layers in inception modules.
        depths: layers of an inception module's channels.
        query_dim: width of the additive attentions' query vectors.
        dropout: dropout rate.
    """

    inputs = FIELDS
    news_layers = (("words", "entities", "category", "subcategory"), "inception")
    user_layers = (("user.ids", "user.clicks"), "user.inceptions", "user.join")

    def __init__(
        self,
        info: NewsInfo,
        word_dim: Size = 300,
        train_words: bool = False,
        entity_dim: Size = 100,
        category_dim: Size = 100,
        dim: Size = 200,
        hidden: Size = 200,
        depths: tuple[Size, ...] = (1, 2, 3),
        query_dim: Size = 200,
        dropout: Dropout = 0.2,
    ) -> None:
        super().__init__()
        self.words = WordEmbedding(info.words, word_dim, info.word_vectors, train_words)
        self.entities = entity_embedding(info, entity_dim)
        self.category = nn.Embedding(info.categories, category_dim, padding_idx=0)
        self.subcategory = nn.Embedding(info.subcategories, category_dim, padding_idx=0)
        width = self.words.dim + 2 * category_dim + (0 if self.entities is None else self.entities.dim)
        self.inception = Inception(width, hidden, dim, depths, dropout)
        self.user = ChannelUser(info.users, dim, hidden, depths, query_dim, dropout)
        self.dropout = FastDropout(dropout)

    def encode_news(self, news: dict[str, Tensor]) -> Tensor:
        title, entities = news["title"], news["title_entities"]
        fields = [self.category(news["category"]), self.subcategory(news["subcategory"])]
        fields.append(mean_of_tokens(self.words(title), title))
        if self.entities is not None:
            fields.append(mean_of_tokens(self.entities(entities), entities))
        return self.inception(self.dropout(torch.cat(fields, dim=-1)))

    def encode_user(self, history: Tensor, mask: Tensor, user: Tensor) -> Tensor:
        return self.user(history, mask, user)
