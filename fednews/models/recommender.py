"""The LightningModule that all models share: optimiser, schedule and evaluation."""

from collections.abc import Callable, Iterable

import lightning as L
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from fednews.data.impressions import ImpressionBatch
from fednews.evaluation.evaluate import evaluate, rank_batch
from fednews.evaluation.metrics import RankingSums
from fednews.evaluation.scorers import Catalogue, Scorer, SharedModel
from fednews.models.base import NewsModel
from fednews.timing import section


class Recommender(L.LightningModule):
    """Wraps a model for training and evaluation; knows nothing of how training steps come about.

    Args:
        model: the recommender network.
        optimizer: makes the (server) optimiser from the trained parameters.
        scheduler: makes a learning-rate schedule from the optimiser, stepped every round.
    """

    def __init__(
        self,
        model: NewsModel,
        optimizer: Callable[[Iterable], Optimizer],
        scheduler: Callable[[Optimizer], LRScheduler] | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._evaluated_at = -1

    def parameter_groups(self) -> list:
        """The trained parameters, in groups where some have settings of their own."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def configure_optimizers(self) -> dict:
        optimizer = self._optimizer(self.parameter_groups())
        if self._scheduler is None:
            return {"optimizer": optimizer}
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self._scheduler(optimizer), "interval": "step"}}

    def scorer(self, catalogue: Catalogue) -> Scorer:
        """Says which parameters each user is evaluated with."""
        return SharedModel(self.model, catalogue)

    def on_validation_epoch_start(self) -> None:
        data = self.trainer.datamodule
        self._scorer = self.scorer(data.catalogue(data.eval_split, self.device))
        self._sums = RankingSums()

    def validation_step(self, batch: ImpressionBatch, batch_idx: int) -> None:
        self._sums += rank_batch(self._scorer, batch)

    def on_validation_epoch_end(self) -> None:
        self.publish(self._means(self._sums), self.trainer.global_step)
        self._evaluated_at = self.trainer.global_step
        del self._scorer

    def on_train_end(self) -> None:
        """Evaluate the last round, where the interval of validation has not."""
        if self._evaluated_at == self.trainer.global_step:
            return
        data = self.trainer.datamodule
        impressions = data.impressions(data.eval_split, (self.trainer.global_rank, self.trainer.world_size))
        self.model.eval()
        with self.trainer.precision_plugin.forward_context():
            scorer = self.scorer(data.catalogue(data.eval_split, self.device))
            metrics = self._means(evaluate(scorer, impressions, self.device))
        self.publish(metrics, self.trainer.global_step)

    def publish(self, metrics: dict[str, float], step: int) -> None:
        """Record ``metrics`` at ``step`` (rounds done) in one batch, for loggers and callbacks alike.

        Lightning's ``log`` would round to float32, and count bytes wrongly from 16 MiB on.
        """
        with section("logging"):
            self.trainer.callback_metrics.update({n: torch.tensor(v, dtype=torch.float64) for n, v in metrics.items()})
            for logger in self.trainer.loggers:
                logger.log_metrics(metrics, step)

    def _means(self, sums: RankingSums) -> dict[str, float]:
        return {f"val_{name}": float(value) for name, value in self._reduced(sums).means().items()}

    def _reduced(self, sums: RankingSums) -> RankingSums:
        return RankingSums.from_array(self.sum_over_processes(torch.from_numpy(sums.array())).cpu().numpy())

    def sum_over_processes(self, values: Tensor) -> Tensor:
        """``values`` summed over the processes of a distributed run."""
        if self.trainer.world_size == 1:
            return values
        return self.trainer.strategy.reduce(values.to(self.device), reduce_op="sum")
