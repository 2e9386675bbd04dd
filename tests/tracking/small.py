"""A small module and a small Lightning module, importable by name as a model must be."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader


class Small(nn.Module):
    """A layer of each kind that has weights, buffers or both."""

    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Embedding(10, size), nn.BatchNorm1d(size), nn.Dropout(0.5), nn.Linear(size, 1))
        self.register_buffer("seen", torch.arange(3))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.body(words)


class Trained(L.LightningModule):
    """Logs a loss per step, and hyperparameters that MLflow would refuse."""

    def __init__(self, seed: int = 0, wait: float = 0.0) -> None:
        super().__init__()
        self.save_hyperparameters({"a@b": object(), "seed": seed, "wait": wait})
        torch.manual_seed(seed)
        self.model = Small()

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        loss = self.model(batch).square().mean()
        self.log_dict({"loss": loss, "clients": 2.0}, batch_size=1)
        return loss

    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        self.log("val_auc", 0.5, batch_size=1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def batches(count: int = 4) -> DataLoader:
    words = torch.arange(count * 6).reshape(count, 6) % 10
    return DataLoader(list(words), batch_size=None)


def trainer(logger, **options) -> L.Trainer:
    return L.Trainer(
        **{
            "max_epochs": 1,
            "accelerator": "cpu",
            "log_every_n_steps": 1,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": False,
            "num_sanity_val_steps": 0,
            "logger": logger,
            **options,
        }
    )
