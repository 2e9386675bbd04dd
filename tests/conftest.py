"""Fixtures that several rooms share."""

import os
from pathlib import Path

import pytest
import torch

REAL_DATA = Path(os.environ.get("FEDNEWS_REAL_DATA", Path(__file__).parents[2] / "shared" / "data"))


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Several OpenMP threads under contention run many times slower than one."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real click data, which may not be distributed with the repository."""
    if not REAL_DATA.is_dir():
        pytest.skip(f"real data is not at {REAL_DATA}; set FEDNEWS_REAL_DATA to its folder")
    return REAL_DATA
