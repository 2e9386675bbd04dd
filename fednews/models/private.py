"""PrivateRec's model: any recommender, with users rebuilt from a few basis vectors (Liu et al. 2022)."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fednews.data.features import NewsInfo
from fednews.errors import UsageError
from fednews.models.base import Layer, NewsModel, word_tables
from fednews.privacy.history_padding import pad_history
from fednews.privacy.private_attention import PrivateAttention, attention_weights


@dataclass(frozen=True)
class PrivateUsers:
    """What private training draws for the users of one round, each a row of the tables.

    Attributes:
        attention: makes noisy weights of clean ones.
        noise: float64 ``[R, B]``.
        replaced: bool ``[R, H]``, which clicks stand back for the anonymous news.
        user: int64 ``[R]``, the users' indices among the training users.
        stop_gradient: noisy weights are constants to the backward pass.
    """

    attention: PrivateAttention
    noise: Tensor
    replaced: Tensor
    user: Tensor
    stop_gradient: bool


class PrivateRecModel(NewsModel):
    r"""A base recommender whose user vector u becomes :math:`\tilde u = \sum_i \tilde\alpha_i b_i`.

    Titles are padded to the data's title length with a padding token whose vector e_0 is trained, and the anonymous
    news r_0 is the news encoder's vector of a title of nothing but it (section 3.2.3, Fig. 3); it has no abstract, and
    its category is the unknown one. In a base with a language model the token is the language model's own padding
    token, which then is no longer masked.

    Called as it is, the model rebuilds users without padding, clipping or noise: training at epsilon infinity, and
    what evaluation uses. Within :meth:`privately` it does what private training does, with draws that are handed in.

    Args:
        info: sizes of the data.
        base: the recommender; its news and users must be vectors.
        basis: B, number of basis vectors.

    Raises:
        UsageError: fewer than 2 basis vectors, or a base that reads no titles word by word, or whose users are no
            vectors before the candidates are known.
    """

    whole_histories = True  # which clicks are replaced is drawn for every column

    def __init__(self, info: NewsInfo, base: Callable[[NewsInfo], NewsModel], basis: int = 5) -> None:
        super().__init__()
        if basis < 2:
            raise UsageError(f"model.basis must be at least 2, not {basis}: a single weight is always 1")
        self.title_length = info.title_length
        self.base = base(_with_padding_word(info))
        self.inputs, self.tokenizer = self.base.inputs, self.base.tokenizer
        self.padding = self._hook(info.words)
        self.basis = nn.Parameter(nn.init.xavier_uniform_(torch.empty(basis, self._user_dim())))
        first, *rest = (_under("base", layer) for layer in self.base.news_layers)
        self.news_layers: tuple[Layer, ...] = (("padding", *((first,) if isinstance(first, str) else first)), *rest)
        self.user_layers: tuple[Layer, ...] = (*(_under("base", layer) for layer in self.base.user_layers), "basis")
        self._users: PrivateUsers | None = None

    @property
    def constant_users(self) -> bool:
        return self._users is not None and self._users.stop_gradient

    @property
    def pretrains(self) -> bool:
        return self.base.pretrains

    def pretrain(self, news: dict[str, Tensor], generator: torch.Generator) -> None:
        self.base.pretrain(news, generator)

    def encode_news(self, news: dict[str, Tensor]) -> Tensor:
        return self.base.encode_news({name: self._padded(name, news[name]) for name in self.inputs})

    def encode_user(self, history: Tensor, mask: Tensor, user: Tensor) -> Tensor:
        """Rebuilt users ``[R, d]``; within :meth:`privately` ``user`` is a row of its tables."""
        if self._users is None:
            return attention_weights(self.interests(history, mask, user), self.basis) @ self.basis
        drawn = self._users
        padded = pad_history(history, mask, self.anonymous_news(), drawn.replaced[user])
        clean = drawn.attention.clean(self.interests(padded, mask, drawn.user[user]), self.basis)
        noisy = drawn.attention.normalised(clean.double() + drawn.noise[user]).to(clean.dtype)
        return drawn.attention.rebuild(noisy.detach() if drawn.stop_gradient else noisy, self.basis)

    def score(self, user: Tensor, candidates: Tensor) -> Tensor:
        return self.base.score(user, candidates)

    def interests(self, history: Tensor, mask: Tensor, user: Tensor) -> Tensor:
        """The base's user vectors u ``[R, d]``, which never leave the client."""
        return self.base.encode_user(history, mask, user)

    def anonymous_news(self) -> Tensor:
        """r_0 ``[d]``, the vector of the news that replaces padded clicks."""
        device = self.padding.device
        return self.encode_news(
            {name: torch.zeros(self._empty(name), dtype=torch.long, device=device) for name in self.inputs}
        )[0]

    @contextlib.contextmanager
    def privately(self, users: PrivateUsers) -> Iterator[None]:
        """Within the block users are private, and ``user`` of :meth:`encode_user` names rows of ``users``."""
        self._users = users
        try:
            yield
        finally:
            self._users = None

    def _empty(self, name: str) -> tuple[int, ...]:
        return (1, 1) if name in ("title", "abstract", "title_pieces", "title_entities") else (1,)

    def _padded(self, name: str, column: Tensor) -> Tensor:
        if name not in (*_TITLES, "title_entities"):
            return column
        width = self.title_length
        column = F.pad(column[:, :width], (0, max(0, width - column.shape[1])))
        return column if name == "title_entities" else torch.where(column == 0, self._tokens[name], column)

    def _hook(self, word: int) -> nn.Parameter:
        """Make e_0 and let every table of words give it for the padding token."""
        self._tokens, start = {}, None
        for table in word_tables(self.base).values():
            if table.read_whole:
                continue
            self._tokens["title"], start = word, table.weight[word]
            table.register_forward_hook(self._replace_word)
        for module in self.base.modules():
            if hasattr(module, "get_input_embeddings"):
                token = module.config.pad_token_id or 0
                table = module.get_input_embeddings()
                self._tokens["title_pieces"], start = token + 1, table.weight[token]
                table.register_forward_hook(self._replace_piece)
                break
        if start is None:
            raise UsageError(
                f"model.base: {type(self.base).__name__} reads no titles word by word, so there is no padding to train"
            )
        return nn.Parameter(start.detach().clone())

    def _replace_word(self, module: nn.Module, inputs: tuple, output: Tensor) -> Tensor:
        return torch.where((inputs[0] == self._tokens["title"]).unsqueeze(-1), self.padding, output)

    def _replace_piece(self, module: nn.Module, inputs: tuple, output: Tensor) -> Tensor:
        return torch.where((inputs[0] == self._tokens["title_pieces"] - 1).unsqueeze(-1), self.padding, output)

    @torch.no_grad()
    def _user_dim(self) -> int:
        training = self.base.training
        self.base.eval()
        news = self.anonymous_news()
        user = None
        if news.dim() == 1:
            user = self.base.encode_user(
                news[None, None], torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, dtype=torch.long)
            )
        self.base.train(training)
        if user is None or user.dim() != 2:
            raise UsageError(
                f"model.base: users of {type(self.base).__name__} are no vectors before the candidates are known"
            )
        return user.shape[1]


_TITLES = ("title", "title_pieces")


def _with_padding_word(info: NewsInfo) -> NewsInfo:
    """One word more, behind the vocabulary, which starts as the pretrained vectors' mean."""
    vectors = info.word_vectors
    if vectors is not None:
        vectors = torch.cat([vectors, vectors[1:].mean(0, keepdim=True)])
    return replace(info, words=info.words + 1, word_vectors=vectors)


def _under(prefix: str, layer: Layer) -> Layer:
    return f"{prefix}.{layer}" if isinstance(layer, str) else tuple(f"{prefix}.{path}" for path in layer)
