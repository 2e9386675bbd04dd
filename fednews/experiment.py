"""One experiment from configuration to tracked result."""

import contextlib
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jsonargparse import Namespace
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from fednews.checkpoints import WholeCheckpoints
from fednews.config import digest, dump, instantiate, parse, parse_text
from fednews.data.features import take_news
from fednews.data.module import NewsDataModule
from fednews.data.store import Store
from fednews.errors import FednewsError, StorageError, UsageError
from fednews.evaluation.evaluate import evaluate
from fednews.federated.loop import FederatedLoop
from fednews.heap import frozen_heap
from fednews.models.compiled import compile_encoders
from fednews.progress import RoundProgress
from fednews.streams import Streams
from fednews.tracking.lookup import download_artifact, read_artifact, resolve_run
from fednews.tracking.model import log_model
from fednews.tracking.provenance import code_digest
from fednews.tracking.reaper import close_dead_runs
from fednews.tracking.run import TrackedRun
from fednews.tracking.store import connect
from fednews.tracking.table import format_table

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

CHECKPOINTS = Path("mlruns") / "checkpoints"
_SHOWN = (
    "rounds", "val_auc", "val_mrr", "val_ndcg_5", "val_ndcg_10", "epsilon_published", "epsilon_accounted",
)  # fmt: skip
_COUNTS = ("rounds", "impressions", "left_out_auc", "left_out_mrr_ndcg")


@dataclass(frozen=True)
class Result:
    """What a finished run left behind.

    Attributes:
        run_id: MLflow's id of the run.
        metrics: the last value of every metric.
        best_auc: the best AUC that any model can reach on the dev split, where the data is synthetic.
    """

    run_id: str
    metrics: dict[str, float]
    best_auc: float | None = None


@dataclass(frozen=True)
class Watch:
    """What somebody who starts many runs adds to each.

    Attributes:
        tags: of the tracked run, beside the usual ones.
        name: of the tracked run; by default algorithm, model and seed.
        note: the tracked run's description; by default a summary.
        callbacks: of the trainer. What they raise ends the run; ``Stopped`` ends it as KILLED.
        on_start: is told the tracked run's id before the first round.
        bar: show the progress bar, if the configuration wants one.
    """

    tags: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    note: str | None = None
    callbacks: tuple[Callback, ...] = ()
    on_start: Callable[[str], None] | None = None
    bar: bool = True


def build(config: Namespace) -> tuple[FederatedLoop, NewsDataModule]:
    """The loop with its untrained model, and the data that it will see."""
    streams = Streams(config.seed)
    parts = instantiate(config)
    info = parts.data.bind(streams)
    with streams.torch_global("model_init"):
        model = parts.model(info)
    if config.compile:
        compile_encoders(model)
    parts.data.read(model.inputs, model.tokenizer)
    loop = FederatedLoop(
        algorithm=parts.algorithm,
        aggregation=parts.aggregation,
        streams=streams,
        delta=config.delta,
        model=model,
        optimizer=parts.optimizer,
        scheduler=parts.scheduler,
    )
    _check(loop, parts.data)
    return loop, parts.data


def _check(loop: FederatedLoop, data: NewsDataModule) -> None:
    """Find what cannot work before a run is started for it."""
    data.source.labelled_split(data.eval_split)
    loop.algorithm.check(data.source.samples.clients)
    try:
        loop.configure_optimizers()
    except (ValueError, TypeError) as error:
        raise UsageError(f"optimizer or scheduler: {error}") from error


def train(
    config: Namespace, resume: str | None = None, rerun_of: str | None = None, watch: Watch | None = None
) -> Result:
    """Train, evaluate and track one run.

    Args:
        config: from :func:`fednews.config.parse`.
        resume: continue this run (its full id) at its last checkpoint instead of making a new one; one that left no
            checkpoint starts over under the same id.
        rerun_of: id of the run that this one repeats, for the link between them.
        watch: what the caller adds to the run.

    Raises:
        FednewsError: the data, the tracking store or training itself failed.
    """
    quiet()
    watch = watch or Watch()
    loop, data = build(config)
    checkpoint = _local_checkpoint(resume) if resume and _local_checkpoint(resume).is_file() else None
    if not checkpoint:
        pretrain(loop, data)
    with _tracked(config, data, resume, rerun_of, watch) as run:
        if run and watch.on_start:
            watch.on_start(run.run_id)
        folder = CHECKPOINTS / run.run_id if run else None  # the other processes are told by the first
        last = ModelCheckpoint(folder, filename="last", enable_version_counter=False)
        best = ModelCheckpoint(folder, filename="best", monitor="val_auc", mode="max", enable_version_counter=False)
        settings = vars(config.trainer) | ({} if watch.bar else {"enable_progress_bar": False})
        bar = [] if settings["enable_progress_bar"] is False else [RoundProgress()]
        callbacks = [last, best, *bar, *watch.callbacks]
        logger = run.logger if run else False
        trainer = Trainer(**settings, logger=logger, callbacks=callbacks, plugins=[WholeCheckpoints()])
        try:
            with frozen_heap():
                trainer.fit(loop, data, ckpt_path=checkpoint, weights_only=True)
            trainer.save_checkpoint(Path(last.dirpath) / "last.ckpt")
        except BaseException as error:
            if run:
                _record_unfinished(run, loop, error)
            raise
        if run:
            _record(run, loop)
            log_model(run.client, run.run_id, loop.model, step=loop.round)
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    ceiling = data.source.meta.get("best_possible")
    return Result(run.run_id if run else "", {"rounds": loop.round, **metrics}, ceiling and ceiling["auc"])


def pretrain(loop: FederatedLoop, data: NewsDataModule) -> None:
    """Fit what the model learns from the catalogue before training."""
    if loop.model.pretrains:  # which news there are takes a look at all clicks
        news = take_news(data.features, torch.from_numpy(data.train_news()))
        with loop.streams.torch_global("pretraining"):
            loop.model.pretrain(news, loop.streams.torch("pretraining"))
    loop.train()  # layers loaded from elsewhere come in eval mode, and Lightning would leave them there


def train_command(arguments: list[str]) -> Result:
    """``fednews train``: parse ``--config FILE … --KEY VALUE …`` and train."""
    return train(parse(arguments))


def resume_command(run_id: str, arguments: list[str]) -> Result:
    """``fednews train --resume RUN_ID``: continue an interrupted run with the configuration that it recorded.

    Raises:
        UsageError: further options, an unknown run, one that has finished or left no checkpoint, or changed data.
    """
    if arguments:
        raise UsageError(f"--resume takes the run's own configuration: leave out {' '.join(arguments)}")
    client = connect()
    close_dead_runs(client)
    run = resolve_run(client, run_id)
    if run.info.status == "FINISHED":
        raise UsageError(f"run {run.info.run_id} has finished all its rounds: 'fednews rerun' repeats it")
    if not _local_checkpoint(run.info.run_id).is_file():
        raise UsageError(
            f"run {run.info.run_id} left no checkpoint under {CHECKPOINTS}: it stopped before its first evaluation, "
            "or ran in another folder; train anew"
        )
    return train(_config_of(client, run), resume=run.info.run_id)


def _config_of(client: "MlflowClient", run: "Run") -> Namespace:
    """What the run recorded, if the data that it names is still the data that the run saw."""
    config = load_config(read_artifact(client, run.info.run_id, "config.yaml"))
    if Store.open(config.data.store).fingerprint != run.data.tags.get("fednews.fingerprint"):
        raise UsageError(
            f"{config.data.store} is not the data that run {run.info.run_id} was made with: prepare it as it was then"
        )
    return config


@dataclass(frozen=True)
class Restored:
    """A tracked run's weights and whole state, on the CPU in evaluation mode.

    Attributes:
        run_id: the full id.
        config: what the run recorded.
        loop: with the run's model.
        data: the run's own.
        step: rounds done.
    """

    run_id: str
    config: Namespace
    loop: FederatedLoop
    data: NewsDataModule
    step: int


def restore(client: "MlflowClient", run_id: str, checkpoint: str = "last") -> Restored:
    """Load a run as it was at one of its checkpoints.

    Args:
        client: of the tracking store.
        run_id: a run's id or its unique beginning.
        checkpoint: ``"last"`` or ``"best"``.

    Raises:
        UsageError: an unknown run, or changed data.
        FednewsError: the run left no such checkpoint.
    """
    run = resolve_run(client, run_id)
    config = _config_of(client, run)
    loop, data = build(config)
    with tempfile.TemporaryDirectory() as folder:
        path = _local_checkpoint(run.info.run_id, checkpoint)
        if not path.is_file():
            path = download_artifact(client, run.info.run_id, f"checkpoints/{checkpoint}.ckpt", folder)
        state = torch.load(path, map_location="cpu", weights_only=True)
    loop.prepare(data)
    loop.load_state_dict(state["state_dict"])
    loop.on_load_checkpoint(state)
    loop.eval()
    return Restored(run.info.run_id, config, loop, data, state["global_step"])


def evaluate_run(run_id: str, split: str, checkpoint: str) -> Result:
    """Evaluate a run's weights on a labelled split and add ``<split>_auc`` … to the run's metrics.

    Args:
        run_id: a run's id or its unique beginning.
        split: a split of the run's store.
        checkpoint: ``"last"`` or ``"best"`` (whose metrics are named ``<split>_best_auc`` …).

    Raises:
        UsageError: an unknown run or split, a split without labels, or changed data.
    """
    client = connect()
    restored = restore(client, run_id, checkpoint)
    loop, data, cpu = restored.loop, restored.data, torch.device("cpu")
    means = evaluate(loop.scorer(data.catalogue(split, cpu)), data.impressions(split), cpu).means()
    prefix = split if checkpoint == "last" else f"{split}_{checkpoint}"
    metrics = {f"{prefix}_{name}": float(value) for name, value in means.items()}
    for name, value in metrics.items():
        client.log_metric(restored.run_id, name, value, step=restored.step)
    return Result(restored.run_id, metrics)


def load_config(text: str) -> Namespace:
    """A configuration from the YAML that a run recorded."""
    return parse_text(text)


def data_fingerprint(config: Namespace) -> str:
    """The fingerprint of the configuration's data as it lies on disk now, its content checked."""
    store = Store.open(config.data.store)
    store.verify()
    return store.fingerprint


def format_result(result: Result) -> str:
    """The result as a table for the terminal."""
    names = [name for name in _SHOWN if name in result.metrics] or list(result.metrics)
    row = {name: int(value) if name.endswith(_COUNTS) else value for name, value in result.metrics.items()}
    lines = ["", format_table([row], names), "", f"run {result.run_id}"]
    if result.best_auc is not None:
        lines.insert(2, f"synthetic data: the best possible AUC is {result.best_auc:.4f}, a random ranking has 0.5000")
    return "\n".join([*lines, "see it in MLflow: fednews ui"])


def _tracked(config: Namespace, data: NewsDataModule, resume: str | None, rerun_of: str | None, watch: Watch):
    if rank_zero_only.rank != 0:  # other processes of a distributed run compute, the first one writes
        return contextlib.nullcontext()
    client = connect()
    if resume:
        return TrackedRun.resume(client, resume)
    tags = {
        "fednews.data": data.source.name,
        "fednews.store": str(data.source.path),
        "fednews.config": digest(config),
        "fednews.code": code_digest(),
        **watch.tags,
    }
    return TrackedRun.start(
        client,
        config.name,
        run_name=watch.name or _run_name(config),
        config=config.as_dict(),
        config_yaml=dump(config),
        tags=tags,
        fingerprint=data.source.fingerprint,
        note=watch.note,
        rerun_of=rerun_of,
    )


def _run_name(config: Namespace) -> str:
    algorithm, model = (part.class_path.rsplit(".", 1)[-1] for part in (config.algorithm, config.model))
    return f"{algorithm}-{model}-seed{config.seed}"


def _local_checkpoint(run_id: str, name: str = "last") -> Path:
    return CHECKPOINTS / run_id / f"{name}.ckpt"


def quiet() -> None:
    """Lightning's hints and deprecation notes about itself say nothing about an experiment."""
    for name in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module=r"lightning\.(pytorch|fabric)\.")
    warnings.filterwarnings("ignore", message=r".*does not have many workers.*")


def _record(run: TrackedRun, loop: FederatedLoop) -> None:
    run.log_json("privacy_ledger.json", loop.ledger.report(loop.delta))
    run.log_contents(loop.algorithm.artifacts())
    for name in ("best", "last"):
        if (path := _local_checkpoint(run.run_id, name)).is_file():
            run.log_file(path, "checkpoints", final=True)  # Lightning writes a new file each time


def _record_unfinished(run: TrackedRun, loop: FederatedLoop, error: BaseException) -> None:
    """What a stopped or failed run learned and spent until then; the error itself matters more."""
    if loop.ledger is not None:
        with contextlib.suppress(FednewsError, OSError):
            _record(run, loop)
    if isinstance(error, KeyboardInterrupt | SystemExit | StorageError | OSError):
        saved = _local_checkpoint(run.run_id).is_file()
        then = f"continue with: fednews train --resume {run.run_id}" if saved else "it left no checkpoint to go on from"
        print(f"\nrun {run.run_id} stopped; {then}", file=sys.stderr)
