"""EBNR: embedding-based news recommendation (Okura et al. 2017, KDD)."""

import torch
from torch import Tensor, nn

from fednews.data.features import NewsInfo
from fednews.models.base import NewsModel
from fednews.models.encoders.news.denoising import BagOfWords, fit_autoencoder
from fednews.models.layers import GRU, FastDropout
from fednews.types import Dropout, Size


class RecurrentUser(nn.Module):
    """A GRU with a learned first state and a dense layer on its last one (Okura et al. 2017, section 4.4.3).

    Args:
        dim: width of news and user vectors.
        state_dim: width of the GRU's state.
        dropout: rate on news vectors.
    """

    def __init__(self, dim: int, state_dim: int, dropout: float) -> None:
        super().__init__()
        self.initial = nn.Parameter(torch.zeros(state_dim))
        self.recurrent = GRU(dim, state_dim)
        self.decode = nn.Linear(state_dim, dim)
        self.dropout = FastDropout(dropout)

    def forward(self, history: Tensor, mask: Tensor) -> Tensor:
        """``history [R, H, dim]``, ``mask [R, H]`` -> ``[R, dim]``."""
        first = self.initial.expand(len(history), -1)
        return self.decode(self.recurrent(self.dropout(history), mask, first)).tanh()


class EBNR(NewsModel):
    """News by a denoising autoencoder on their words, which categories teach what is alike; GRU users; dot product.

    ``pretrain`` fits the autoencoder to the train split's articles, title and abstract, before any click is seen; its
    encoder then stays as it is, so that clients train and upload the user model alone. Vectors are ``[N, dim]`` and
    ``[R, dim]``; an article without a known word is the zero vector, a user without history the one of the learned
    first state.

    Where this differs from the paper, or the paper leaves it open:

    - The text is title and abstract (article bodies in the paper, which MIND does not ship).
    - Corruption rate, weight of the triplets, rate and length of pretraining are this implementation's; Adam in place
      of SGD. Rate and weight were the better of two pairs on dev clicks of MIND and EB-NeRD, one seed each: at 1e-3
      and 10 the autoencoder hardly learns on so few articles.
    - Articles whose category is unknown, or that are alone in theirs, are no anchors of triplets.
    - Clicks are learned by the softmax over K + 1 candidates, which for K = 1 is the paper's pairwise loss; its term
      for the position on the page is left out, since data sets do not tell positions.

    Args:
        info: size of the data's vocabulary; word vectors are not used.
        dim: width of news and user vectors.
        state_dim: width of the GRU's state.
        train_news: train the news encoder on clicks too, and so communicate it.
        pretrain_epochs: passes over the articles in pretraining; 0 leaves the encoder random.
        pretrain_batch_size: triplets in a step of pretraining.
        pretrain_lr: learning rate of pretraining.
        corruption: share of words hidden in pretraining.
        triplet_weight: weight of the triplets' loss beside the reconstruction's (alpha in eq. 1).
        dropout: rate on clicked news.
    """

    inputs = ("title", "abstract", "category")
    news_layers = ("news",)
    user_layers = (("user.initial", "user.recurrent"), "user.decode")

    def __init__(
        self,
        info: NewsInfo,
        dim: Size = 500,
        state_dim: Size = 200,
        train_news: bool = False,
        pretrain_epochs: int = 5,
        pretrain_batch_size: Size = 256,
        pretrain_lr: float = 0.01,
        corruption: float = 0.3,
        triplet_weight: float = 100.0,
        dropout: Dropout = 0.2,
    ) -> None:
        super().__init__()
        self.news = BagOfWords(info.words, dim, corruption, train_news)
        self.user = RecurrentUser(dim, state_dim, dropout)
        self.pretrain_epochs = pretrain_epochs
        self.pretrain_batch_size = pretrain_batch_size
        self.pretrain_lr = pretrain_lr
        self.triplet_weight = triplet_weight

    @property
    def pretrains(self) -> bool:
        return self.pretrain_epochs > 0

    def pretrain(self, news: dict[str, Tensor], generator: torch.Generator) -> None:
        if self.pretrains:
            fit_autoencoder(
                self.news,
                _text(news),
                news["category"],
                self.pretrain_epochs,
                self.pretrain_batch_size,
                self.pretrain_lr,
                self.triplet_weight,
                generator,
            )

    def encode_news(self, news: dict[str, Tensor]) -> Tensor:
        return self.news(_text(news))

    def encode_user(self, history: Tensor, mask: Tensor, user: Tensor) -> Tensor:
        return self.user(history, mask)


def _text(news: dict[str, Tensor]) -> Tensor:
    return torch.cat([news["title"], news["abstract"]], dim=1)
