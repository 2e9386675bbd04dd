"""Calling a model at other parameters than its own."""

from collections.abc import Mapping

from torch import Tensor, nn
from torch.func import functional_call


def call_at(wrapper: nn.Module, parameters: Mapping[str, Tensor] | None, *inputs: object) -> Tensor:
    """``wrapper(*inputs)`` while ``wrapper.model`` has ``parameters``, by the model's own names; the rest stay its own.

    A module that stands at several places of the model, as a word embedding that two encoders share, has one name
    here, the first, and is replaced at all its places. Left to tie names itself, torch would replace it once for each
    place and afterwards not restore it (pytorch issue 164759).
    """
    named = {f"model.{name}": value for name, value in (parameters or {}).items()}
    return functional_call(wrapper, named, inputs, tie_weights=False)
