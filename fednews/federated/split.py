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
        self._kept: tuple[tuple[int, ...], list[tuple[Tensor, Tensor]]] | None = None

    def encode(self, model: NewsModel, rows: Tensor, *draw: int, keep: bool = False) -> Tensor:
        """Representations ``[n, …]`` of the store's news ``rows``, of which there is one at least; ``draw`` numbers the
        dropout, such as (round, part of its news). ``keep``: :meth:`gradients` will be asked for theirs.
        """
        kept = keep and len(rows) <= self._at_once
        with torch.set_grad_enabled(kept):
            chunks = list(self._encoded(model, rows, *draw))
        if keep:
            self._kept = (draw, chunks) if kept else None
        positions, vectors = zip(*chunks, strict=True)
        return torch.cat(vectors).detach()[torch.cat(positions).argsort()]

    def gradients(self, model: NewsModel, rows: Tensor, gradient: Tensor, *draw: int) -> dict[str, Tensor]:
        """Gradients of the news model by name, given those of the vectors ``[n, …]`` that :meth:`encode` gave."""
        parameters = news_parameters(model)
        if not parameters:
            return {}
        # What autocast keeps from encoding was cast without a graph, and would cut this one.
        torch.clear_autocast_cache()
        totals = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
        kept, self._kept = self._kept, None
        for positions, vectors in kept[1] if kept and kept[0] == draw else self._encoded(model, rows, *draw):
            parts = torch.autograd.grad(
                vectors, list(parameters.values()), gradient[positions].to(vectors.dtype), allow_unused=True
            )
            for total, part in zip(totals.values(), parts, strict=True):
                if part is not None:
                    total += part
        return totals

    def _encoded(self, model: NewsModel, rows: Tensor, *draw: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Chunk by chunk, positions in ``rows`` and vectors, with their graph where gradients are enabled."""
        for chunk, (positions, news) in enumerate(self._chunks(rows, _device(model))):
            with self._streams.torch_global("news_dropout", *draw, chunk):
                vectors = encode_by_length(model, news)
            yield positions, vectors

    def _chunks(self, rows: Tensor, device: torch.device) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Positions in ``rows`` and model inputs of news of similar text length, so that little padding is computed."""
        texts = [self._features[name][rows] for name in TOKEN_INPUTS if name in self._features]
        length = sum((text != 0).sum(1) for text in texts) if texts else torch.zeros(len(rows))
        for positions in length.argsort(stable=True).split(self._at_once):
            news = take_news(self._features, rows[positions])
            yield positions.to(device), {name: column.to(device) for name, column in news.items()}


def _device(model: NewsModel) -> torch.device:
    return next(model.parameters()).device
