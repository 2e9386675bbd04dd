"""News as sparse features: category, subcategory, and the averages of title words and of their entities (FM, DFM)."""

import torch
from torch import Tensor, nn

from fednews.data.features import NewsInfo

FIELDS = ("category", "subcategory", "title", "title_entities")


def field_sizes(info: NewsInfo) -> dict[str, int]:
    """Values of each field, index 0 none; without the fields that have no value in this data."""
    sizes = (info.categories, info.subcategories, info.words, info.entities)
    return {field: size for field, size in zip(FIELDS, sizes, strict=True) if size > 1}


def mean_of_tokens(vectors: Tensor, tokens: Tensor) -> Tensor:
    """Mean of ``vectors [N, L, d]`` where ``tokens [N, L]`` are not 0; zero where there is none."""
    real = (tokens != 0).to(vectors.dtype)
    return (real.unsqueeze(1) @ vectors).squeeze(1) / real.sum(1, keepdim=True).clamp(min=1)


class Factors(nn.Module):
    """A vector for each value of each field; index 0 is no value, and zero.

    A title of m words has m times 1/m, and so have its entities (Rendle 2012, on features that are sets).

    Args:
        sizes: values of each field.
        dim: width of the vectors.
    """

    def __init__(self, sizes: dict[str, int], dim: int) -> None:
        super().__init__()
        self.tables = nn.ModuleDict({field: nn.Embedding(size, dim, padding_idx=0) for field, size in sizes.items()})
        for table in self.tables.values():
            nn.init.normal_(table.weight, std=0.01)
            nn.init.zeros_(table.weight[0])

    def sums(self, news: dict[str, Tensor]) -> Tensor:
        r""":math:`\sum_j x_j v_j` over the features j of each news, ``[N, dim]``."""
        parts = []
        for field, table in self.tables.items():
            vectors = table(news[field])
            parts.append(mean_of_tokens(vectors, news[field]) if vectors.ndim == 3 else vectors)
        return torch.stack(parts).sum(0)

    def squares(self, news: dict[str, Tensor]) -> Tensor:
        r""":math:`\sum_j x_j^2 v_j^2`, ``[N, dim]``; a word that stands in a title twice is one feature j."""
        parts = []
        for field, table in self.tables.items():
            tokens, squares = news[field], table(news[field]).square()
            if squares.ndim == 3:
                again = (tokens.unsqueeze(2) == tokens.unsqueeze(1)).sum(2)
                length = (tokens != 0).sum(1, keepdim=True).clamp(min=1)
                squares = mean_of_tokens(squares * (again / length).unsqueeze(-1).to(squares.dtype), tokens)
            parts.append(squares)
        return torch.stack(parts).sum(0)
