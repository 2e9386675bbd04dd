"""The seam between models and everything else: encode news, encode user, score."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Container, Iterator
from typing import ClassVar

import torch
from torch import Tensor, nn

from fednews.data.features import TOKEN_INPUTS, trim_tokens
from fednews.models.layers import WordEmbedding, Words
from fednews.models.ragged import Sequences
from fednews.timing import section

_WORDS = ("title", "abstract")

Layer = str | tuple[str, ...]
"""Path of a module or parameter; several paths where parts work side by side at one depth."""


class NewsModel(nn.Module, ABC):
    """A news recommender: three functions, which columns of a news it reads, and the order of its layers.

    A subclass takes the data's :class:`~fednews.data.features.NewsInfo` as its first argument and its own
    settings after it, and knows nothing of federation. What stands for a news or a user need not be a vector: any
    trailing shape goes, as long as it is the same for all.
    """

    inputs: ClassVar[tuple[str, ...]]
    news_layers: tuple[Layer, ...]
    """The layers that ``encode_news`` uses, from input to output."""

    user_layers: tuple[Layer, ...]
    """Those that only ``encode_user`` and ``score`` use, from input to output."""

    whole_histories: ClassVar[bool] = False
    """Whether what ``encode_user`` gives or reads has a place for every column of a history, padding included."""

    ragged: ClassVar[str | None] = None
    """The text that ``encode_ragged_news`` reads, and no other input, where there is such a method; else None.

    A model with one encodes the news and histories of several clients side by side without padding, each client's
    with its own weights: its parameters are then stacked, ``[c, *shape]``. ``score`` must have none.
    """

    tokenizer: str | None = None
    """Name or folder of the tokenizer of models that read ``title_pieces``."""

    @abstractmethod
    def encode_news(self, news: dict[str, Tensor]) -> Tensor:
        """Model inputs, first dimension ``N`` -> representations of news ``[N, …]``, vectors ``[N, d]`` for most."""

    @abstractmethod
    def encode_user(self, history: Tensor, mask: Tensor, user: Tensor) -> Tensor:
        """What is known of a user before the candidates are.

        Args:
            history: clicked news ``[R, H, …]``, oldest first, padded on the left.
            mask: bool ``[R, H]``, true where a click is real.
            user: int64 ``[R]``, index of the user among the training users, 0 for an unknown one.

        Returns:
            ``[R, …]``, finite for an empty history too.
        """

    def encode_ragged_news(self, tokens: Tensor, sequences: Sequences) -> Tensor:
        """Words ``[T]`` of texts one after the other, none of them padding -> representations of news ``[N, …]``."""
        raise NotImplementedError

    def encode_ragged_user(self, history: Tensor, sequences: Sequences) -> Tensor:
        """Clicked news ``[T, …]`` of histories one after the other, oldest first -> ``[R, …]``."""
        raise NotImplementedError

    def score(self, user: Tensor, candidates: Tensor) -> Tensor:
        """Users ``[S, …]`` and candidate news ``[S, C, …]`` -> scores ``[S, C]``; here the dot product of vectors."""
        return (candidates @ user.unsqueeze(-1)).squeeze(-1)

    def forward(
        self,
        news: dict[str, Tensor],
        history: Tensor,
        history_mask: Tensor,
        user: Tensor,
        sample_history: Tensor,
        candidates: Tensor,
    ) -> Tensor:
        """Scores ``[S, K + 1]`` of samples laid out as in :class:`~fednews.data.cohort.Cohort`."""
        vectors = self.encode_news(news)
        users = self.encode_user(vectors[history], history_mask, user)
        return self.score(users[sample_history], vectors[candidates])

    @property
    def constant_users(self) -> bool:
        """Whether nothing is carried back from users to the news of their histories."""
        return False

    @property
    def pretrains(self) -> bool:
        """Whether :meth:`pretrain` does anything."""
        return False

    def pretrain(self, news: dict[str, Tensor], generator: torch.Generator) -> None:
        """Fit what is learned from the catalogue and not from clicks, once before training; nothing for most models.

        Args:
            news: model inputs of the train split's news.
            generator: for every random draw.
        """

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All layers from input to output; every parameter lies in exactly one."""
        return (*self.news_layers, *self.user_layers)

    def layer_of(self) -> dict[str, int]:
        """Each parameter's place in :attr:`layers`, by the parameter's name."""
        return {name: _only(name, self.layers) for name, _ in self.named_parameters()}

    def news_parameters(self) -> set[str]:
        """Names of the parameters that ``encode_news`` uses."""
        return {name for name, layer in self.layer_of().items() if layer < len(self.news_layers)}


def _only(parameter: str, layers: tuple[Layer, ...]) -> int:
    found = [
        place
        for place, layer in enumerate(layers)
        for path in ((layer,) if isinstance(layer, str) else layer)
        if parameter == path or parameter.startswith(f"{path}.")
    ]
    if len(found) != 1:
        raise TypeError(f"parameter {parameter} lies in {len(found)} of the layers {layers}, not in one")
    return found[0]


def encode_by_length(model: NewsModel, news: dict[str, Tensor], least: int = 256) -> Tensor:
    """``model.encode_news`` in groups of one text length, so that hardly any padding is computed.

    Groups of fewer than ``least`` words join the next longer one. The result does not depend on that but for rounding.
    """
    texts = [news[name] for name in TOKEN_INPUTS if name in news]
    with section("news_encoder"):
        if not texts:
            return model.encode_news(news)
        rows = _by_length(sum((text != 0).sum(1) for text in texts), least)
        groups = (trim_tokens({name: column[chosen] for name, column in news.items()}) for chosen in rows)
        return torch.cat([model.encode_news(group) for group in groups])[torch.cat(rows).argsort()]


def words_of(model: NewsModel, news: dict[str, Tensor]) -> Words | None:
    """Words of the news, columns ``[…, L]``, for :func:`few_words`; None where none is read or trained."""
    tables = [table for table in word_tables(model).values() if table.weight.requires_grad]
    texts = [news[name] for name in _WORDS if name in news]
    if not tables or not texts or not torch.is_grad_enabled():
        return None
    seen = torch.zeros(len(tables[0].weight), dtype=torch.bool, device=texts[0].device)
    seen[0] = seen[-1] = True  # padding, and the word that PrivateRecModel pads with
    for text in texts:
        seen[text.flatten()] = True
    return Words.of(seen.nonzero().flatten(), len(seen))


def word_rows(model: NewsModel, words: Words | None, names: Container[str]) -> dict[str, Tensor]:
    """Rows of the trained tables called ``names`` that ``words`` stand in, int64 ``[W]`` by parameter name."""
    tables = {} if words is None else word_tables(model)
    return {name: words.present for name, table in tables.items() if name in names and not table.read_whole}


@contextlib.contextmanager
def few_words(model: NewsModel, words: Words | None, gathered: Container[str] = ()) -> Iterator[None]:
    """In the block only ``words`` are looked up, which makes their gradients cheaper; None changes nothing.

    Args:
        model: the recommender.
        words: those of all news that are encoded in the block.
        gathered: names of parameters that hold the rows of ``words`` alone.
    """
    tables = {} if words is None else word_tables(model)
    with contextlib.ExitStack() as stack:
        for name, table in tables.items():
            stack.enter_context(table.among(words, name in gathered))
        yield


def word_tables(model: NewsModel) -> dict[str, WordEmbedding]:
    """The tables of all words of the vocabulary, by the names of their parameters."""
    return {
        f"{path}.weight": module
        for path, module in model.named_modules()
        if isinstance(module, WordEmbedding) and path.split(".")[-1] == "words"
    }


def encode_users_by_length(
    model: NewsModel, vectors: Tensor, history: Tensor, mask: Tensor, user: Tensor, least: int = 256
) -> Tensor:
    """``model.encode_user(vectors[history], mask, user)`` in at most eight groups of similar history length."""
    with section("user_encoder"):
        if model.whole_histories or not len(history):
            return model.encode_user(vectors[history], mask, user)
        clicks = mask.sum(1)
        rows = _by_length(clicks, max(least, int(clicks.sum()) // 8))
        widths = (max(int(clicks[chosen[-1]]), 1) for chosen in rows)
        users = [
            model.encode_user(vectors[history[chosen, -width:]], mask[chosen, -width:], user[chosen])
            for chosen, width in zip(rows, widths, strict=True)
        ]
        return torch.cat(users)[torch.cat(rows).argsort()]


def _by_length(lengths: Tensor, least: int) -> tuple[Tensor, ...]:
    """Rows from short to long, cut where the length changes and a group has at least ``least`` tokens."""
    order = lengths.argsort(stable=True)
    values, counts = lengths[order].unique_consecutive(return_counts=True)
    sizes, rows, tokens = [], 0, 0
    for length, count in zip(values.tolist(), counts.tolist(), strict=True):
        rows, tokens = rows + count, tokens + length * count
        if tokens >= least:
            sizes.append(rows)
            rows = tokens = 0
    return order.split([*sizes, rows] if rows else sizes)


def click_losses(scores: Tensor) -> Tensor:
    """Negative log-likelihood of the clicked candidate among K + 1 (Qi et al. 2020, eq. 3).

    ``scores [S, K + 1]`` with the clicked one in column 0 -> losses ``[S]``.
    """
    return -scores.log_softmax(-1)[:, 0]
