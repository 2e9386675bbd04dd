"""Trains a few rounds on some number of processes; run by ``test_loop.py``."""

import sys
from pathlib import Path

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy

sys.path.insert(0, str(Path(__file__).parents[2]))

from fednews.data.store import Store
from fednews.federated.algorithms.fednewsrec import FedNewsRec
from tests.federated.test_loop import adam, make_loop


def main(store: str, devices: int, out: Path) -> None:
    algorithm = FedNewsRec(7, clip=0.01, noise_scale=0.002, client_dropout=0.2)
    loop, data = make_loop(Store.open(store), algorithm, optimizer=adam, dropout=0.0)
    trainer = Trainer(
        max_steps=4,
        val_check_interval=2,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        logger=False,
        accelerator="cpu",
        devices=devices,
        strategy=DDPStrategy(process_group_backend="gloo") if devices > 1 else "auto",
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(loop, data)
    if trainer.is_global_zero:
        metrics = {n: float(v) for n, v in trainer.callback_metrics.items() if not n.endswith("_seconds")}
        out.mkdir(parents=True)
        torch.save({"weights": loop.model.state_dict(), "metrics": metrics}, out / "result.pt")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
