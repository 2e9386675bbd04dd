"""The progress bar of rounds."""

import sys

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm


class RoundProgress(TQDMProgressBar):
    """Counts rounds up to ``trainer.max_steps`` and shows rounds/s, loss, AUC and epsilon."""

    def __init__(self) -> None:
        # In a log file every refresh is a line.
        super().__init__(refresh_rate=1 if sys.stdout.isatty() else 50)

    def init_validation_tqdm(self) -> Tqdm:
        return Tqdm(disable=True)

    def init_train_tqdm(self) -> Tqdm:
        bar = super().init_train_tqdm()
        bar.unit = "round"
        return bar

    def on_train_start(self, trainer: Trainer, *args: object) -> None:
        super().on_train_start(trainer, *args)
        bar = self.train_progress_bar
        bar.reset(trainer.max_steps)
        bar.initial = bar.n = trainer.global_step
        bar.set_description("Round")

    def on_train_epoch_start(self, *args: object) -> None:
        """The only epoch; a resumed one does not start."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *args: object) -> None:
        # Not when the round before ended: its metrics are published after that.
        if self._should_update(trainer.global_step, trainer.max_steps):
            self._count(trainer)
            self.train_progress_bar.set_postfix(self.get_metrics(trainer, pl_module))

    def on_train_batch_end(self, *args: object) -> None:
        """See above."""

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._count(trainer)
        super().on_validation_end(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._count(trainer)
        super().on_train_epoch_end(trainer, pl_module)

    def _count(self, trainer: Trainer) -> None:
        if self._train_progress_bar is not None:
            self._train_progress_bar.n = trainer.global_step

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, int | str | float | dict]:
        metrics = trainer.callback_metrics
        shown = {"loss": "loss", "auc": "val_auc", "epsilon": "epsilon_accounted"}
        return {label: f"{float(metrics[name]):.4g}" for label, name in shown.items() if name in metrics}
