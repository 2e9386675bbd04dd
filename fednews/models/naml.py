"""NAML: attentive multi-view learning of news (Wu et al. 2019a, IJCAI)."""

import torch
from torch import Tensor, nn

from fednews.data.features import NewsInfo
from fednews.models.base import NewsModel
from fednews.models.encoders.news.convolution import ConvolutionText
from fednews.models.layers import AdditiveAttention, WordEmbedding
from fednews.types import Dropout, Size


class CategoryView(nn.Module):
    """A category's embedding through a dense layer with ReLU (section 3.1.3).

    Args:
        categories: how many there are, index 0 unknown.
        embedding_dim: width of the embedding.
        dim: width of the view.
    """

    def __init__(self, categories: int, embedding_dim: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(categories, embedding_dim)
        self.dense = nn.Linear(embedding_dim, dim)

    def forward(self, category: Tensor) -> Tensor:
        """``[N]`` -> ``[N, dim]``."""
        return self.dense(self.embedding(category)).relu()


class NAML(NewsModel):
    """Title, abstract, category and subcategory as views joined by attention; attention over clicks.

    An article without abstract gets a zero vector as that view.

    Args:
        info: sizes of the data's vocabulary and categories, and word vectors to start from.
        word_dim: width of word vectors; those of ``data.word_vectors`` where given.
        train_words: train, and so communicate, the word vectors.
        filters: convolution filters; the width of news and user vectors.
        window: words a filter sees, odd.
        category_dim: width of category embeddings.
        query_dim: width of the additive attentions' query vectors.
        dropout: dropout rate.
    """

    inputs = ("title", "abstract", "category", "subcategory")
    news_layers = (
        "title.words",
        ("title.convolution", "abstract.convolution", "category.embedding", "subcategory.embedding"),
        ("title.pool", "abstract.pool", "category.dense", "subcategory.dense"),
        "views",
    )
    user_layers = ("user",)

    def __init__(
        self,
        info: NewsInfo,
        word_dim: Size = 300,
        train_words: bool = False,
        filters: Size = 400,
        window: Size = 3,
        category_dim: Size = 100,
        query_dim: Size = 200,
        dropout: Dropout = 0.2,
    ) -> None:
        super().__init__()
        words = WordEmbedding(info.words, word_dim, info.word_vectors, train_words)
        self.title = ConvolutionText(words, filters, window, query_dim, dropout)
        self.abstract = ConvolutionText(words, filters, window, query_dim, dropout)
        self.category = CategoryView(info.categories, category_dim, filters)
        self.subcategory = CategoryView(info.subcategories, category_dim, filters)
        self.views = AdditiveAttention(filters, query_dim)
        self.user = AdditiveAttention(filters, query_dim)

    def encode_news(self, news: dict[str, Tensor]) -> Tensor:
        views = torch.stack([getattr(self, name)(news[name]) for name in self.inputs], dim=1)
        return self.views(views, torch.ones_like(views[..., 0], dtype=torch.bool))

    def encode_user(self, history: Tensor, mask: Tensor, user: Tensor) -> Tensor:
        return self.user(history, mask)
