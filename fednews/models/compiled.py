"""Compiling a model's encoders with ``torch.compile``."""

from torch import nn

from fednews.models.base import NewsModel


def compile_encoders(model: NewsModel, backend: str = "inductor") -> None:
    """Compile the model's parts in place, for inputs of any size; names of parameters stay as they are.

    Scores and gradients stay equal but for rounding; dropout draws the same. Copies of the model are not compiled, and
    under ``torch.func.vmap``, as in clients' own gradients, torch runs the parts as they are. A part is traced anew for
    what cannot vary within one program, such as the steps of a recurrent encoder.
    """
    options = {"fallback_random": True} if backend == "inductor" else None
    for part in _parts(model):
        part.compile(backend=backend, dynamic=True, options=options)


def _parts(module: nn.Module) -> list[nn.Module]:
    """The outermost modules that are called themselves: the others hold modules, or are models, called by method."""
    held = isinstance(module, NewsModel | nn.ModuleList | nn.ModuleDict)
    return [part for child in module.children() for part in _parts(child)] if held else [module]
