"""One experiment from configuration to tracked result."""

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from jsonargparse import Namespace
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from fednews.config import dump, instantiate, parse
from fednews.data.module import NewsDataModule
from fednews.errors import FednewsError, UsageError
from fednews.federated.loop import FederatedLoop
from fednews.progress import RoundProgress
from fednews.streams import Streams
from fednews.tracking.model import log_model
from fednews.tracking.run import TrackedRun
from fednews.tracking.store import connect

CHECKPOINTS = Path("mlruns") / "checkpoints"


@dataclass(frozen=True)
class Result:
    """What a finished run left behind.

    Attributes:
        run_id: MLflow's id of the run.
        metrics: the last value of every metric.
    """

    run_id: str
    metrics: dict[str, float]


def build(config: Namespace) -> tuple[FederatedLoop, NewsDataModule]:
    """The loop with its untrained model, and the data that it will see."""
    streams = Streams(config.seed)
    parts = instantiate(config)
    info = parts.data.bind(streams)
    with streams.torch_global("model_init"):
        model = parts.model(info)
    parts.data.read(model.inputs)
    loop = FederatedLoop(
        algorithm=parts.algorithm,
        streams=streams,
        delta=config.delta,
        model=model,
        optimizer=parts.optimizer,
        scheduler=parts.scheduler,
    )
    return loop, parts.data


def train(config: Namespace, resume: str | None = None, rerun_of: str | None = None) -> Result:
    """Train, evaluate and track one run.

    Args:
        config: from :func:`fednews.config.parse`.
        resume: continue this run (its full id) at its last checkpoint instead of making a new one.
        rerun_of: id of the run that this one repeats, for the link between them.

    Raises:
        FednewsError: the data, the tracking store or training itself failed.
    """
    loop, data = build(config)
    with _tracked(config, data, resume, rerun_of) as run:
        folder = CHECKPOINTS / run.run_id if run else None
        checkpoints = ModelCheckpoint(
            folder, "best", monitor="val_auc", mode="max", save_last=True, enable_version_counter=False
        )
        trainer = Trainer(
            **vars(config.trainer),
            logger=run.logger if run else False,
            callbacks=[checkpoints, RoundProgress()],
        )
        trainer.fit(loop, data, ckpt_path=_last_checkpoint(resume) if resume else None, weights_only=True)
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        if run:
            _record(run, trainer, loop, folder)
    return Result(run.run_id if run else "", metrics)


def _tracked(config: Namespace, data: NewsDataModule, resume: str | None, rerun_of: str | None):
    if rank_zero_only.rank != 0:  # other processes of a distributed run compute, the first one writes
        return contextlib.nullcontext()
    client = connect()
    if resume:
        return TrackedRun.resume(client, resume)
    tags = {"fednews.data": data.source.name, "fednews.store": str(data.source.path)}
    return TrackedRun.start(
        client,
        config.name,
        run_name=_run_name(config),
        config=config.as_dict(),
        config_yaml=dump(config),
        tags=tags,
        fingerprint=data.source.fingerprint,
        rerun_of=rerun_of,
    )


def _run_name(config: Namespace) -> str:
    algorithm, model = (part.class_path.rsplit(".", 1)[-1] for part in (config.algorithm, config.model))
    return f"{algorithm}-{model}-seed{config.seed}"


def _last_checkpoint(run_id: str) -> Path:
    path = CHECKPOINTS / run_id / "last.ckpt"
    if not path.is_file():
        raise UsageError(f"run {run_id} left no checkpoint at {path}: it stopped before its first evaluation; train anew")
    return path


def _record(run: TrackedRun, trainer: Trainer, loop: FederatedLoop, folder: Path) -> None:
    trainer.save_checkpoint(folder / "last.ckpt")
    run.log_json("privacy_ledger.json", loop.ledger.report(loop.delta))
    for name in ("best.ckpt", "last.ckpt"):
        if (folder / name).is_file():
            run.log_file(folder / name, "checkpoints")
    log_model(run.client, run.run_id, loop.model)
