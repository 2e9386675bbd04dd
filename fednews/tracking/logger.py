"""Lightning's MLflow logger, bound to a run that somebody else owns."""

from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import MLFlowLogger
from lightning.pytorch.loggers.logger import rank_zero_experiment
from lightning.pytorch.utilities.rank_zero import rank_zero_only

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from fednews.tracking.run import TrackedRun

# Lightning adds it to every record; a round is the only clock here.
DROPPED = frozenset({"epoch"})


class RunLogger(MLFlowLogger):
    """Writes metrics into a ``TrackedRun``, one batch per call.

    The run records its configuration, artifacts and status itself, so hyperparameters, checkpoints and
    Lightning's idea of the final status are ignored. Nothing global is set (MLFlowLogger would change
    the process's tracking URI).
    """

    def __init__(self, run: "TrackedRun") -> None:
        super().__init__(tracking_uri=run.client.tracking_uri, run_id=run.run_id)
        self._mlflow_client = run.client
        self._run = run

    @property
    @rank_zero_experiment
    def experiment(self) -> "MlflowClient":
        """The MLflow client."""
        return self._mlflow_client

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._run.run_id

    @property
    def name(self) -> str:
        """First part of the folder that Lightning would choose for checkpoints."""
        return "fednews"

    @property
    def version(self) -> str:
        """Second part of that folder."""
        return self._run.run_id

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Record ``metrics`` without Lightning's epoch."""
        kept = {key: value for key, value in metrics.items() if key not in DROPPED}
        if kept:
            self._run.log_metrics(kept, step or 0)

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Nothing: the run holds the resolved configuration already, and MLflow forbids changing a parameter."""

    def after_save_checkpoint(self, checkpoint_callback: ModelCheckpoint) -> None:
        """Nothing: checkpoints go through ``TrackedRun.log_file``."""

    def finalize(self, status: str = "success") -> None:
        """Nothing: Lightning says "failed" for Ctrl-C too; ``TrackedRun`` knows better."""
