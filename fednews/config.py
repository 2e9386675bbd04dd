"""Experiment configuration: load, layer, check, dump.

An experiment is YAML in the conventions of Lightning's own command line: parts are classes (``class_path`` and
``init_args``; names of fednews classes may be short), later files and options win over earlier ones. A file may
name others that it builds on::

    base: [data/mind_sample.yaml, model/nrms.yaml, algorithm/fednewsrec.yaml]
    seed: 1
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentError, ArgumentParser, Namespace
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

# Imported for their short names in ``class_path``.
import fednews.aggregation.ckks
import fednews.aggregation.paillier
import fednews.aggregation.plain
import fednews.aggregation.secagg.aggregation
import fednews.federated.algorithms.apfl
import fednews.federated.algorithms.centralized
import fednews.federated.algorithms.cfl
import fednews.federated.algorithms.ditto
import fednews.federated.algorithms.dp_fedrec
import fednews.federated.algorithms.efficient_fedrec
import fednews.federated.algorithms.fcf
import fednews.federated.algorithms.fedavg
import fednews.federated.algorithms.fednewsrec
import fednews.federated.algorithms.fedper
import fednews.federated.algorithms.fedprox
import fednews.federated.algorithms.finding
import fednews.federated.algorithms.pfedme
import fednews.federated.algorithms.privaterec
import fednews.federated.algorithms.scaffold
import fednews.models.dan
import fednews.models.dfm
import fednews.models.dkn
import fednews.models.ebnr
import fednews.models.fcf
import fednews.models.fednewsrec
import fednews.models.fm
import fednews.models.lstur
import fednews.models.naml
import fednews.models.npa
import fednews.models.nrms
import fednews.models.plm_nr
import fednews.models.private  # noqa: F401
from fednews.aggregation.base import Aggregation
from fednews.data.features import NewsInfo
from fednews.data.module import NewsDataModule
from fednews.errors import UsageError
from fednews.federated.algorithms.base import Algorithm
from fednews.mistakes import explain
from fednews.models.base import NewsModel
from fednews.privacy.accounting import DEFAULT_DELTA

_PARTS = {
    "model": NewsModel,
    "algorithm": Algorithm,
    "aggregation": Aggregation,
    "optimizer": Optimizer,
    "scheduler": LRScheduler,
}
_OURS = {"logger", "callbacks", "plugins", "default_root_dir", "enable_checkpointing", "profiler"}
_TRAINER_DEFAULTS = {
    "trainer.max_steps": 100,
    "trainer.val_check_interval": 100,
    # A round is a step of an endless loader, so that the interval counts rounds.
    "trainer.check_val_every_n_epoch": None,
    "trainer.log_every_n_steps": 1,
    "trainer.num_sanity_val_steps": 0,
    "trainer.enable_model_summary": False,
}

# Lightning's settings that count epochs or batches, or that switch off what a run records.
_FIXED = {
    "trainer.fast_dev_run": False,
    "trainer.barebones": False,
    "trainer.max_epochs": None,
    "trainer.min_epochs": None,
    "trainer.limit_train_batches": None,
    "trainer.overfit_batches": 0.0,
    "trainer.accumulate_grad_batches": 1,
    "trainer.check_val_every_n_epoch": None,
}


def make_parser() -> ArgumentParser:
    """The parser of ``fednews train``; it knows every key and its type."""
    parser = ArgumentParser(
        prog="fednews train",
        exit_on_error=False,
        allow_abbrev=False,
        description="Train one experiment. Later --config files and options win over earlier ones. "
        "--resume RUN_ID, alone, continues an interrupted run.",
    )
    parser.add_argument("--config", action="config", help="experiment YAML; may be given several times")
    parser.add_argument("--name", type=str, default="experiment", help="MLflow experiment that the run belongs to")
    parser.add_argument("--seed", type=int, default=0, help="seed of every random stream")
    parser.add_argument("--delta", type=float, default=DEFAULT_DELTA, help="delta at which epsilon is stated")
    parser.add_class_arguments(NewsDataModule, "data")
    parser.add_argument("--model", type=Callable[[NewsInfo], NewsModel], required=True, help="recommender")
    parser.add_argument("--compile", type=bool, default=False, help="compile the model's encoders with torch.compile")
    parser.add_subclass_arguments(Algorithm, "algorithm", required=True, help="federated method")
    parser.add_subclass_arguments(Aggregation, "aggregation", required=False, help="how updates travel to their sum")
    parser.set_defaults({"aggregation": {"class_path": "fednews.aggregation.plain.Plain"}})
    parser.add_argument(
        "--optimizer",
        type=OptimizerCallable,
        default={"class_path": "torch.optim.SGD", "init_args": {"lr": 0.5}},
        help="server optimiser, fed with the aggregated update",
    )
    parser.add_argument("--scheduler", type=LRSchedulerCallable | None, default=None, help="schedule per round")
    parser.add_class_arguments(Trainer, "trainer", instantiate=False, skip=_OURS)
    parser.set_defaults(_TRAINER_DEFAULTS)
    return parser


def parse(arguments: list[str]) -> Namespace:
    """Resolve ``--config FILE … --KEY VALUE …`` into a complete, checked configuration.

    Raises:
        UsageError: an unknown key (the nearest valid one is named), a value of the wrong type, a missing file.
    """
    return _resolve(list(_expand(arguments)))


def parse_text(text: str) -> Namespace:
    """Resolve one configuration given as YAML text, as :func:`dump` writes it."""
    return _resolve(["--config", text])


def parse_layers(layers: Iterable[dict], folder: Path, arguments: Iterable[str] = ()) -> Namespace:
    """Resolve configurations given as mappings, later ones winning; what they name under ``base`` is in ``folder``.

    ``arguments`` are options as :func:`parse` takes them; they win over all layers.
    """
    texts = [text for layer in layers for text in _layers_of(dict(layer), folder, ())]
    return _resolve([argument for text in texts for argument in ("--config", text)] + list(_expand(list(arguments))))


def digest(config: Namespace) -> str:
    """Short hash of everything that decides a run's result: all of the configuration but its ``name``.

    What has its default value is left out, so that a setting added later does not make old runs look different.
    """
    rest = config.clone(with_meta=False)
    rest.pop("name")
    text = make_parser().dump(rest, skip_validation=True, skip_default=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _resolve(arguments: list[str]) -> Namespace:
    parser = make_parser()
    try:
        config = parser.parse_args(arguments)
    except (ArgumentError, TypeError, ValueError) as error:
        raise UsageError(explain(str(error), parser, _PARTS)) from error
    config.pop("config")  # where the values came from is not part of what they are
    return _checked(_plain(config))


def _plain(value: Any) -> Any:
    """The same with built-in numbers in place of those of ranged types, which are not to travel into models."""
    if isinstance(value, Namespace):
        return Namespace(**{key: _plain(item) for key, item in vars(value).items()})
    if isinstance(value, dict | list | tuple):
        items = {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else map(_plain, value)
        return type(value)(items)
    ranged = type(value) not in (int, float, bool)
    return next((kind(value) for kind in (int, float) if ranged and isinstance(value, kind)), value)


def dump(config: Namespace) -> str:
    """The resolved configuration as YAML, which :func:`parse` reads back to the same configuration."""
    return make_parser().dump(config.clone(with_meta=False), skip_validation=True, skip_unset=False)


def instantiate(config: Namespace) -> Namespace:
    """Build the parts that the configuration names: ``data``, ``model`` (a factory), ``algorithm``, ``optimizer``."""
    parser = make_parser()
    try:
        return parser.instantiate(config)
    except ValueError as error:
        raise UsageError(explain(str(error), parser, _PARTS)) from error


def _checked(config: Namespace) -> Namespace:
    if config.seed < 0:
        raise UsageError(f"seed must not be negative, but is {config.seed}")
    if not 0 < config.delta < 1:
        raise UsageError(f"delta must lie between 0 and 1, but is {config.delta}")
    rounds = config.trainer.max_steps
    if rounds < 1:
        raise UsageError(f"trainer.max_steps is the number of rounds and must be at least 1, not {rounds}")
    if not isinstance(config.trainer.val_check_interval, int) or config.trainer.val_check_interval < 1:
        raise UsageError("trainer.val_check_interval is a whole number of rounds")
    for key, value in _FIXED.items():
        if config[key] != value:
            raise UsageError(f"{key} cannot be changed: a round is one training step of an endless epoch")
    return config


def _expand(arguments: list[str]) -> Iterator[str]:
    """Put the files that a ``--config`` file names under ``base`` in front of it, as configurations of their own."""
    rest = iter(arguments)
    for argument in rest:
        option, _, value = argument.partition("=")
        if option != "--config":
            yield argument
            continue
        for text in _layers(Path(value or next(rest, "")), ()):
            yield from ("--config", text)


def read_yaml(path: Path, kind: str) -> dict:
    """The keys and values of a file, none of an empty one.

    Args:
        path: of the file.
        kind: what messages call it.

    Raises:
        UsageError: it cannot be read, is not YAML, or holds something else.
    """
    try:
        content = yaml.safe_load(path.read_text()) or {}
    except OSError as error:
        raise UsageError(f"cannot read the {kind} {path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise UsageError(f"{path} must hold keys and values")
    return content


def _layers(path: Path, inside: tuple[Path, ...]) -> Iterator[str]:
    if path.resolve() in inside:
        raise UsageError(f"{path} builds on itself")
    content = read_yaml(path, "configuration")
    yield from _layers_of(content, path.parent, (*inside, path.resolve()))


def _layers_of(content: dict, folder: Path, inside: tuple[Path, ...]) -> Iterator[str]:
    base = content.pop("base", [])
    for name in [base] if isinstance(base, str) else base:
        yield from _layers(folder / name, inside)
    yield yaml.safe_dump(content)
