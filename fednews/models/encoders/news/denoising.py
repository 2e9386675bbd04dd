"""Articles by a denoising autoencoder on their words, taught by categories (EBNR)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fednews.data.text import UNKNOWN
from fednews.errors import DataError
from fednews.models.layers import WordEmbedding


class BagOfWords(nn.Module):
    """``h = sigmoid((1 - p) W x + b) - sigmoid(b)`` of the binary bag of words x (Okura et al. 2017, section 3.1).

    Args:
        words: vocabulary size; padding and the unknown word are in no bag.
        dim: width of h.
        corruption: p, the share of words hidden in pretraining, where 1 - p is a random mask instead.
        trainable: whether W and b are trained on clicks, and so communicated.
    """

    def __init__(self, words: int, dim: int, corruption: float, trainable: bool) -> None:
        super().__init__()
        self.words = WordEmbedding(words, dim, None, trainable)
        self.words.read_whole = True
        self.bias = nn.Parameter(torch.zeros(dim), requires_grad=trainable)
        self.corruption = corruption

    def forward(self, tokens: Tensor) -> Tensor:
        """``tokens [N, L]`` -> ``[N, dim]``, zero for an article without a known word."""
        bag, present = distinct(tokens)
        return hidden(self.words.weight, self.bias, bag, (1 - self.corruption) * present)


def distinct(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Token ids ``[N, L]`` sorted, and bool ``[N, L]``, true once for each known word of a row."""
    tokens = tokens.sort(-1).values
    first = torch.cat([torch.ones_like(tokens[:, :1], dtype=torch.bool), tokens[:, 1:] != tokens[:, :-1]], dim=1)
    return tokens, first & (tokens > UNKNOWN)


def hidden(weight: Tensor, bias: Tensor, tokens: Tensor, amount: Tensor) -> Tensor:
    """Vectors h ``[N, dim]`` of bags in which each token counts by its ``amount [N, L]``; ``weight [words, dim]``."""
    rows = F.embedding(tokens, weight, padding_idx=0)
    summed = (amount.to(rows.dtype).unsqueeze(1) @ rows).squeeze(1)
    return (summed + bias).sigmoid() - bias.sigmoid()


class Triplets:
    """Draws for an article one of the same category and one of another; those without a known category are left out.

    Args:
        category: int64 ``[N]``, 0 unknown.

    Raises:
        DataError: no category has two articles, or there is only one category.
    """

    def __init__(self, category: Tensor) -> None:
        known = category.nonzero().flatten()
        self.articles = known[category[known].argsort(stable=True)]  # a category's articles stand together
        kinds, self.kind, self.count = category[self.articles].unique(return_inverse=True, return_counts=True)
        self.start = self.count.cumsum(0) - self.count
        self.anchors = (self.count[self.kind] > 1).nonzero().flatten()
        if len(kinds) < 2 or not len(self.anchors):
            raise DataError("EBNR learns that articles of one category are alike: the train news need two categories")

    def draw(self, generator: torch.Generator) -> Tensor:
        """int64 ``[3, A]``: every article that has a companion, in random order; the companion; a stranger."""
        anchor = self.anchors[torch.randperm(len(self.anchors), generator=generator)]
        start, count = self.start[self.kind[anchor]], self.count[self.kind[anchor]]
        companion = start + _other_than(anchor - start, 1, count, generator)
        stranger = _other_than(start, count, len(self.articles), generator)
        return self.articles[torch.stack([anchor, companion, stranger])]


def _other_than(start: Tensor, width: Tensor | int, total: Tensor | int, generator: torch.Generator) -> Tensor:
    """Uniform in ``0..total - 1`` without the ``width`` numbers from ``start`` on."""
    drawn = (torch.rand(start.shape, generator=generator, dtype=torch.float64) * (total - width)).long()
    return drawn + width * (drawn >= start)


def fit_autoencoder(
    encoder: BagOfWords,
    tokens: Tensor,
    category: Tensor,
    epochs: int,
    batch_size: int,
    lr: float,
    triplet_weight: float,
    generator: torch.Generator,
) -> None:
    """Fit the encoder to articles ``[N, L]`` and their categories ``[N]`` (Okura et al. 2017, eq. 1).

    Of a triplet the anchor alone is reconstructed, for all three: in a pass every article is anchor once. The decoder
    is not kept. Everything random is drawn on the generator's device, whatever that of the articles.
    """
    triplets = Triplets(category.cpu())
    fitted = _start(encoder, tokens, generator)
    optimizer = torch.optim.Adam(fitted.values(), lr=lr, fused=True)
    for _ in range(epochs):
        for batch in triplets.draw(generator).split(batch_size, dim=1):
            bag, present = distinct(tokens[batch.flatten().to(tokens.device)])
            kept = (torch.rand(bag.shape, generator=generator) >= encoder.corruption).to(bag.device)
            h = hidden(fitted["weight"], fitted["bias"], bag, present & kept).chunk(3)
            anchors = slice(batch.shape[1])
            logits = h[0] @ fitted["out"].T + fitted["out_bias"]
            loss = 3 * reconstruction_loss(logits, bag[anchors], present[anchors]) + triplet_weight * triplet_loss(*h)
            optimizer.zero_grad()
            loss.mean().backward()
            optimizer.step()
    with torch.no_grad():
        encoder.words.weight.copy_(fitted["weight"])
        encoder.bias.copy_(fitted["bias"])


def _start(encoder: BagOfWords, tokens: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    """W, b, W' and b' to start from: b' says how frequent words are, so that W' need not learn it."""
    words, dim = encoder.words.weight.shape
    bag, present = distinct(tokens)
    frequency = (bag[present].bincount(minlength=words) + 0.5) / (len(tokens) + 1)
    start = {
        "weight": encoder.words.weight.detach().clone(),
        "bias": encoder.bias.detach().clone(),
        "out": torch.randn(words, dim, generator=generator) / dim**0.5,
        "out_bias": frequency.logit(),
    }
    return {name: value.to(tokens.device).requires_grad_() for name, value in start.items()}


def reconstruction_loss(logits: Tensor, bag: Tensor, present: Tensor) -> Tensor:
    """Cross-entropy ``[N]`` of ``logits [N, words]`` against binary bags, summed over the vocabulary."""
    return F.softplus(logits).sum(-1) - (logits.gather(1, bag) * present).sum(-1)


def triplet_loss(anchor: Tensor, companion: Tensor, stranger: Tensor) -> Tensor:
    """``log(1 + exp(h0·h2 - h0·h1))`` ``[A]`` (Okura et al. 2017, section 3.1)."""
    return F.softplus((anchor * (stranger - companion)).sum(-1))
