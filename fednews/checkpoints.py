"""Checkpoints that are there whole or not at all."""

import os
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from fednews.errors import StorageError


class WholeCheckpoints(TorchCheckpointIO):
    """Writes a checkpoint beside the one before, which it then replaces in one step.

    Lightning's own goes through memory and ``TMPDIR``: where that is on another disk, a full one leaves half a file in
    the place of the checkpoint that was good.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike, storage_options: Any | None = None
    ) -> None:
        """Save as Lightning says.

        Raises:
            StorageError: it cannot be written; the checkpoint before is still there.
        """
        whole = Path(path)
        part = whole.with_name(f"{whole.name}.part")
        try:
            whole.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                torch.save(checkpoint, file)
            part.replace(whole)
        except (OSError, RuntimeError) as error:  # torch raises the latter at its end, when it has failed before
            part.unlink(missing_ok=True)
            reason = next((e.strerror for e in (error, error.__context__) if isinstance(e, OSError)), error)
            raise StorageError(f"cannot write the checkpoint {whole}: {reason}") from error
