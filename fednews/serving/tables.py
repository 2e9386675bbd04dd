"""``fednews evaluate RUN_ID --serving.epsilon E``: the serving table of a tracked run."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from fednews.errors import UsageError
from fednews.evaluation.scorers import SharedModel
from fednews.experiment import Restored, restore
from fednews.models.private import PrivateRecModel
from fednews.serving.device import DeviceModel
from fednews.serving.evaluation import AttentionServing, EmbeddingServing, PrivateServing, evaluate_serving
from fednews.serving.options import MECHANISMS, ServingOptions, checked_epsilons
from fednews.tracking.store import connect
from fednews.tracking.table import format_table

COLUMNS = (
    "mechanism",
    "epsilon_s",
    "epsilon_published",
    "epsilon_accounted",
    "auc",
    "mrr",
    "ndcg_5",
    "ndcg_10",
    "skew",
)


@dataclass(frozen=True)
class ServingTable:
    """What :func:`evaluate_run_serving` found.

    Attributes:
        run_id: the run.
        rows: one per mechanism and epsilon, keys ``COLUMNS``.
    """

    run_id: str
    rows: list[dict]

    def text(self) -> str:
        """The table for the terminal."""
        note = "epsilon of one query: as published, and accounted (what holds); skew: share of ranks that noise changes"
        return "\n".join(["", format_table(self.rows, COLUMNS), "", note, f"run {self.run_id}"])


def evaluate_run_serving(
    run_id: str,
    split: str,
    checkpoint: str,
    epsilons: Sequence[float],
    mechanisms: Sequence[str] | None = None,
    options: ServingOptions | None = None,
) -> ServingTable:
    """Evaluate a run under private serving; adds ``<split>_<mechanism>_eps<E>_auc`` … and a JSON artifact to the run.

    Args:
        run_id: a run's id or its unique beginning.
        split: a labelled split of the run's store.
        checkpoint: ``"last"`` or ``"best"``.
        epsilons: serving budgets of one query.
        mechanisms: ``privaterec`` and ``vanilla``; by default those that the run's model has.
        options: how a query is made private.

    Raises:
        UsageError: the run's users are no vectors or have parameters of their own, or the model has no basis vectors.
    """
    epsilons = checked_epsilons(list(epsilons))
    client = connect()
    restored = restore(client, run_id, checkpoint)
    options = options or ServingOptions()
    scorers = make_scorers(restored, split, epsilons, mechanisms, options)
    found = evaluate_serving([scorer for _, _, scorer in scorers], restored.data.impressions(split))
    rows = [
        {"mechanism": name, "epsilon_s": epsilon, **row} for (name, epsilon, _), row in zip(scorers, found, strict=True)
    ]
    prefix = split if checkpoint == "last" else f"{split}_{checkpoint}"
    for row in rows:
        for name in COLUMNS[2:]:
            key = f"{prefix}_{row['mechanism']}_eps{row['epsilon_s']:g}_{name}"
            client.log_metric(restored.run_id, key, row[name], step=restored.step)
    report = {"split": split, "checkpoint": checkpoint, "options": asdict(options), "rows": rows}
    client.log_text(restored.run_id, json.dumps(_finite(report), indent=1), f"serving/{prefix}.json")
    return ServingTable(restored.run_id, rows)


def make_scorers(
    restored: Restored, split: str, epsilons: Sequence[float], mechanisms: Sequence[str] | None, options: ServingOptions
) -> list[tuple[str, float, PrivateServing]]:
    """Mechanism, epsilon and scorer of each row."""
    model, streams = restored.loop.model, restored.loop.streams
    private = isinstance(model, PrivateRecModel)
    mechanisms = mechanisms or (MECHANISMS if private else ("vanilla",))
    if "privaterec" in mechanisms and not private:
        raise UsageError(
            f"{type(model).__name__} has no basis vectors: --serving.mechanism privaterec needs PrivateRec"
        )
    shared = restored.loop.scorer(restored.data.catalogue(split, torch.device("cpu")))
    if not isinstance(shared, SharedModel):
        raise UsageError(
            f"users of {type(restored.loop.algorithm).__name__} have parameters of their own: no one server"
        )
    vectors = shared.vectors
    if vectors.ndim != 2:
        raise UsageError(f"news of {type(model).__name__} are no vectors: it cannot be served privately")
    device = DeviceModel.of(model) if private else None
    trained = trained_settings(restored)
    rows: list[tuple[str, float, PrivateServing]] = []
    for name in mechanisms:
        for epsilon in epsilons:
            if name == "privaterec":
                mechanism = options.attention(epsilon, len(device.basis), trained)
                rows.append((name, epsilon, AttentionServing(model, vectors, streams, device, mechanism)))
            else:
                mechanism = options.embedding(epsilon, vectors.shape[1], trained)
                rows.append((name, epsilon, EmbeddingServing(model, vectors, streams, mechanism)))
    return rows


def trained_settings(restored: Restored) -> dict[str, Any]:
    """Settings of the algorithm that trained a run."""
    return restored.config.algorithm.as_dict().get("init_args") or {}


def _finite(value):
    """JSON has no infinity: it is written as in the privacy ledger."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return "inf" if isinstance(value, float) and math.isinf(value) else value
