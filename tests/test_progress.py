"""What the progress bar shows of rounds, off a terminal, where every refresh is a line."""

import re
from pathlib import Path

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from fednews.progress import RoundProgress
from tests.tracking.small import Trained, batches, trainer


class Endless(Trained):
    """One epoch of as many steps as are asked for."""

    def train_dataloader(self) -> DataLoader:
        words = torch.arange(6)
        return DataLoader([words] * 100, batch_size=None)

    def val_dataloader(self) -> DataLoader:
        return batches(1)


def shown(capsys, steps: int, folder: Path, checkpoint: Path | None = None) -> list[str]:
    """How far the rounds are, line by line; the last validation's checkpoint is left as last.ckpt."""
    last = ModelCheckpoint(folder, filename="last", enable_version_counter=False)
    options = {"max_epochs": None, "max_steps": steps, "val_check_interval": 4, "enable_checkpointing": True}
    fit = trainer(False, enable_progress_bar=True, callbacks=[RoundProgress(), last], **options)
    fit.fit(Endless(), ckpt_path=checkpoint, weights_only=False)
    lines = re.split(r"[\r\n]+", capsys.readouterr().out)
    return [found[1] for line in lines if (found := re.search(r"Round: .*?(\d+/\d+|\d+/\?) \[", line))]


def test_it_counts_rounds_at_every_validation_and_to_the_end(capsys, tmp_path):
    lines = shown(capsys, 10, tmp_path)
    assert lines[-1] == "10/10"
    assert {"4/10", "8/10"} <= set(lines)
    assert not [line for line in lines[lines.index("4/10") :] if line.startswith("0/")]


def test_after_a_resume_it_goes_on_where_it_was(capsys, tmp_path):
    shown(capsys, 6, tmp_path)
    lines = shown(capsys, 10, tmp_path, tmp_path / "last.ckpt")
    assert lines[0] == "4/10"
    assert "8/10" in lines
    assert lines[-1] == "10/10"
