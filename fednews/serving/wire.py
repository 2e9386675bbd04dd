"""What a device downloads: the deployed part of the model and all news vectors. No pickles, which could run code."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jsonargparse import ArgumentError, ArgumentParser
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fednews.data.features import NewsInfo
from fednews.data.ragged import Ragged, Strings
from fednews.errors import FednewsError
from fednews.models.base import NewsModel
from fednews.models.private import PrivateRecModel
from fednews.privacy.private_attention import PrivateAttention
from fednews.serving.device import DeviceModel
from fednews.serving.service import ModelFiles

_OURS = "fednews.models."


@dataclass(frozen=True)
class Deployed:
    """What a device has downloaded.

    Attributes:
        model: makes weights of a history.
        vectors: of all news, by id.
        padding: p that the model is meant for.
        theta: largest norm of the weights that it is meant for.
        history_length: latest clicks that the model sees.
        k_max: most news that the service answers with.
    """

    model: DeviceModel
    vectors: Mapping[str, Tensor]
    padding: float
    theta: float
    history_length: int
    k_max: int


def pack(
    run_id: str,
    config: Mapping[str, Any],
    model: PrivateRecModel,
    ids: Strings,
    vectors: Tensor,
    mechanism: PrivateAttention,
    history_length: int,
) -> ModelFiles:
    """What the service gives to devices.

    Args:
        run_id: names the model.
        config: the model's class and settings, as in the run's configuration.
        model: in eval mode.
        ids: of all news.
        vectors: of all news ``[N, d]``.
        mechanism: whose padding and theta devices should use.
        history_length: latest clicks that the model sees.
    """
    with torch.no_grad():
        anonymous = model.anonymous_news().tolist()
    description = {
        "run": run_id,
        "model": config,
        "basis": model.basis.tolist(),
        "anonymous_news": anonymous,
        "private_attention": {"padding": mechanism.padding, "theta": mechanism.theta},
        "history_length": history_length,
        "weights": "/model/weights",
        "catalogue": "/catalogue",
    }
    catalogue = {
        "vectors": vectors,
        "ids": torch.from_numpy(np.array(ids.data.values)),
        "offsets": torch.from_numpy(np.array(ids.data.offsets)),
    }
    return ModelFiles(description, save(dict(_user_parameters(model))), save(catalogue))


def unpack(files: ModelFiles) -> Deployed:
    """The reverse of :func:`pack`.

    Raises:
        FednewsError: the files are not what :func:`pack` makes.
    """
    try:
        description = files.description
        model = _rebuilt(description["model"], load(files.weights))
        basis, anonymous = torch.tensor(description["basis"]), torch.tensor(description["anonymous_news"])
        catalogue = load(files.catalogue)
        ids = Strings(Ragged(catalogue["offsets"].numpy(), catalogue["ids"].numpy()))
        vectors = dict(zip(ids, catalogue["vectors"], strict=True))
        settings = description["private_attention"]
        device = DeviceModel(model.interests, basis, anonymous)
        return Deployed(
            device,
            vectors,
            float(settings["padding"]),
            float(settings["theta"]),
            int(description["history_length"]),
            int(description["k_max"]),
        )
    except (KeyError, TypeError, ValueError, RuntimeError, OSError, ArgumentError, SafetensorError) as error:
        raise FednewsError(f"the service's model cannot be read: {' '.join(str(error).split())}") from error


def _user_parameters(model: NewsModel) -> Iterator[tuple[str, Tensor]]:
    news = model.news_parameters()
    return ((name, value.detach().contiguous()) for name, value in model.named_parameters() if name not in news)


def _rebuilt(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> PrivateRecModel:
    """The model with the user's side of its weights; what it has on the news' side is never used on a device."""
    _refuse_foreign(config)
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--model", type=Callable[[NewsInfo], NewsModel])
    made = parser.instantiate(parser.parse_object({"model": config})).model
    model = made(NewsInfo(words=2, categories=1, subcategories=1)).eval()
    mine = dict(_user_parameters(model))
    if {name: value.shape for name, value in mine.items()} != {name: value.shape for name, value in weights.items()}:
        raise ValueError("its weights are not those of its model; does the service run another version of fednews?")
    model.load_state_dict(weights, strict=False)
    return model


def _refuse_foreign(config: Any) -> None:
    """A service names the classes that a device makes: none but fednews' own models."""
    if isinstance(config, Mapping):
        if not str(config.get("class_path", _OURS)).startswith(_OURS):
            raise FednewsError(f"the service names the class {config['class_path']}, which is none of fednews' models")
        for part in config.values():
            _refuse_foreign(part)
