"""A model in two halves: the server encodes news, clients hold the vectors and the user model (Yi et al. 2021)."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fednews.data.features import TOKEN_INPUTS, take_news
from fednews.federated.clients import trainable
from fednews.models.base import NewsModel, encode_by_length
from fednews.streams import Streams

VECTORS = "vectors"


class ClientHalf(NewsModel):
    """What a client computes with: the user model, and vectors of news that it looks up instead of encoding them.

    Args:
        model: the whole model.
        vectors: representations of news ``[N, …]``.
    """

    inputs = ("row",)
    news_layers = (VECTORS,)
    user_layers = ("model",)

    def __init__(self, model: NewsModel, vectors: Tensor) -> None:
        super().__init__()
        self.model = model
        self.vectors = nn.Parameter(vectors)
        self.training = model.training

    def encode_news(self, news: dict[str, Tensor]) -> Tensor:
        """``row [n]``, positions among the vectors -> ``[n, …]``."""
        return self.vectors[news["row"]]

    def encode_user(self, history: Tensor, mask: Tensor, user: Tensor) -> Tensor:
        return self.model.encode_user(history, mask, user)

    def score(self, user: Tensor, candidates: Tensor) -> Tensor:
        return self.model.score(user, candidates)


def user_parameters(model: NewsModel) -> dict[str, Tensor]:
    """The trained parameters that ``encode_news`` does not use, by name."""
    news = model.news_parameters()
    return {name: parameter for name, parameter in trainable(model).items() if name not in news}


def news_parameters(model: NewsModel) -> dict[str, Tensor]:
    """The trained parameters that ``encode_news`` uses, by name."""
    news = model.news_parameters()
    return {name: parameter for name, parameter in trainable(model).items() if name in news}


class ServerHalf:
    """Encodes news and carries gradients of their vectors back to the news model, some news at a time.

    News of one chunk keep their activations for the backward pass; of more they are computed again, chunk by chunk, so
    that memory is that of one chunk whatever the number of news. Dropout leaves out the same activations both times:
    what comes out is the gradient of the vectors that clients worked with.

    Args:
        features: model inputs of all the store's news.
        at_once: news to a chunk.
        streams: for dropout.
    """

    def __init__(self, features: dict[str, Tensor], at_once: int, streams: Streams) -> None:
        self._features = features
        self._at_once = at_once
        self._streams = streams
        self._kept: tuple[tuple[int, ...], Tensor, Tensor] | None = None

    def encode(self, model: NewsModel, rows: Tensor, *draw: int, keep: bool = False) -> Tensor:
        """Representations ``[n, …]`` of the store's news ``rows``, of which there is one at least; ``draw`` numbers the
        dropout, such as (round, part of its news). ``keep``: :meth:`gradients` will be asked for theirs.
        """
        if keep:
            self._kept = None
            if len(rows) <= self._at_once:
                [(positions, news)] = self._chunks(rows, _device(model))
                vectors = self._encode(model, news, *draw, 0)
                self._kept = draw, positions, vectors
                return torch.empty_like(vectors).index_copy_(0, positions, vectors.detach())
        return self._encode_all(model, rows, *draw)

    @torch.no_grad()
    def _encode_all(self, model: NewsModel, rows: Tensor, *draw: int) -> Tensor:
        out = None
        for chunk, (positions, news) in enumerate(self._chunks(rows, _device(model))):
            vectors = self._encode(model, news, *draw, chunk)
            out = vectors.new_empty(len(rows), *vectors.shape[1:]) if out is None else out
            out[positions] = vectors
        return out

    def gradients(self, model: NewsModel, rows: Tensor, gradient: Tensor, *draw: int) -> dict[str, Tensor]:
        """Gradients of the news model by name, given those of the vectors ``[n, …]`` that :meth:`encode` gave."""
        parameters = news_parameters(model)
        if not parameters:
            return {}
        # What autocast keeps from encoding was cast without a graph, and would cut this one.
        torch.clear_autocast_cache()
        totals = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
        for positions, vectors in self._differentiable(model, rows, *draw):
            parts = torch.autograd.grad(
                vectors, list(parameters.values()), gradient[positions].to(vectors.dtype), allow_unused=True
            )
            for total, part in zip(totals.values(), parts, strict=True):
                if part is not None:
                    total += part
        return totals

    def _differentiable(self, model: NewsModel, rows: Tensor, *draw: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Positions in ``rows`` and vectors with their graph, kept or made again."""
        kept, self._kept = self._kept, None
        if kept is not None and kept[0] == draw:
            yield kept[1:]
            return
        for chunk, (positions, news) in enumerate(self._chunks(rows, _device(model))):
            yield positions, self._encode(model, news, *draw, chunk)

    def _encode(self, model: NewsModel, news: dict[str, Tensor], *draw: int) -> Tensor:
        with self._streams.torch_global("news_dropout", *draw):
            return encode_by_length(model, news)

    def _chunks(self, rows: Tensor, device: torch.device) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Positions in ``rows`` and model inputs of news of similar text length, so that little padding is computed."""
        texts = [self._features[name][rows] for name in TOKEN_INPUTS if name in self._features]
        length = sum((text != 0).sum(1) for text in texts) if texts else torch.zeros(len(rows))
        for positions in length.argsort(stable=True).split(self._at_once):
            news = take_news(self._features, rows[positions])
            yield positions.to(device), {name: column.to(device) for name, column in news.items()}


def _device(model: NewsModel) -> torch.device:
    return next(model.parameters()).device
