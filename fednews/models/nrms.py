"""NRMS: neural news recommendation with multi-head self-attention (Wu et al. 2019d, EMNLP)."""

from torch import Tensor

from fednews.data.features import NewsInfo
from fednews.models.base import NewsModel
from fednews.models.encoders.news.self_attention import SelfAttentionTitle
from fednews.models.encoders.user.self_attention import SelfAttentionUser
from fednews.models.layers import WordEmbedding
from fednews.models.ragged import Sequences
from fednews.types import Dropout, Size


class NRMS(NewsModel):
    """Self-attention over title words, self-attention over clicks, dot product.

    Args:
        info: sizes of the data's vocabulary, and word vectors to start from.
        word_dim: width of word vectors; those of ``data.word_vectors`` where given.
        train_words: train, and so communicate, the word vectors.
        heads: attention heads in both encoders.
        head_dim: width of a head; news and user vectors are ``heads * head_dim`` wide.
        query_dim: width of the additive attentions' query vectors.
        dropout: dropout rate.
    """

    inputs = ("title",)
    ragged = "title"
    news_layers = ("news.words", "news.attention", "news.pool")
    user_layers = ("user.attention", "user.pool")

    def __init__(
        self,
        info: NewsInfo,
        word_dim: Size = 300,
        train_words: bool = False,
        heads: Size = 20,
        head_dim: Size = 20,
        query_dim: Size = 200,
        dropout: Dropout = 0.2,
    ) -> None:
        super().__init__()
        words = WordEmbedding(info.words, word_dim, info.word_vectors, train_words)
        self.news = SelfAttentionTitle(words, heads, head_dim, query_dim, dropout)
        self.user = SelfAttentionUser(heads, head_dim, query_dim, dropout)

    def encode_news(self, news: dict[str, Tensor]) -> Tensor:
        return self.news(news["title"])

    def encode_user(self, history: Tensor, mask: Tensor, user: Tensor) -> Tensor:
        return self.user(history, mask)

    def encode_ragged_news(self, tokens: Tensor, sequences: Sequences) -> Tensor:
        return self.news.ragged(tokens, sequences)

    def encode_ragged_user(self, history: Tensor, sequences: Sequences) -> Tensor:
        return self.user.ragged(history, sequences)
