"""The recommendation model of FedNewsRec and CenNewsRec (Qi et al. 2020, section 3.1)."""

from torch import Tensor

from fednews.data.features import NewsInfo
from fednews.models.base import NewsModel
from fednews.models.encoders.news.convolution import ConvolutionAttentionTitle
from fednews.models.encoders.user.long_short import LongShortUser
from fednews.models.layers import WordEmbedding
from fednews.types import Dropout, Size


class FedNewsRecModel(NewsModel):
    """CNN and self-attention over title words; long-term attention and short-term GRU over clicks.

    With its defaults and frozen words the model has 2,522,800 trained parameters; the authors' Keras code counts
    2,522,803, three of them scalar biases before a softmax, where they have no effect.

    Args:
        info: sizes of the data's vocabulary, and word vectors to start from.
        word_dim: width of word vectors; those of ``data.word_vectors`` where given.
        train_words: train, and so communicate, the word vectors (the authors' code freezes them).
        filters: convolution filters.
        window: words a filter sees, odd.
        heads: attention heads in both encoders.
        head_dim: width of a head; news and user vectors and the GRU state are ``heads * head_dim`` wide.
        recent: latest clicks that the GRU reads (20 in the authors' code; the text gives no number).
        query_dim: width of the additive attentions' query vectors.
        dropout: dropout rate.
        attention_relu: a ReLU after the news self-attention, as in the authors' code.
    """

    inputs = ("title",)
    news_layers = ("news.words", "news.convolution", "news.attention", "news.pool")
    user_layers = ("user.long.attention", "user.long.pool", "user.short", "user.join")

    def __init__(
        self,
        info: NewsInfo,
        word_dim: Size = 300,
        train_words: bool = False,
        filters: Size = 400,
        window: Size = 3,
        heads: Size = 20,
        head_dim: Size = 20,
        recent: Size = 20,
        query_dim: Size = 200,
        dropout: Dropout = 0.2,
        attention_relu: bool = False,
    ) -> None:
        super().__init__()
        words = WordEmbedding(info.words, word_dim, info.word_vectors, train_words)
        self.news = ConvolutionAttentionTitle(
            words, filters, window, heads, head_dim, query_dim, dropout, attention_relu
        )
        self.user = LongShortUser(heads, head_dim, recent, query_dim, dropout)

    def encode_news(self, news: dict[str, Tensor]) -> Tensor:
        return self.news(news["title"])

    def encode_user(self, history: Tensor, mask: Tensor, user: Tensor) -> Tensor:
        return self.user(history, mask)
