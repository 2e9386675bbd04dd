"""A checkpoint that cannot be written leaves the one before."""

import resource

import pytest
import torch

from fednews.checkpoints import WholeCheckpoints
from fednews.errors import StorageError


@pytest.fixture
def no_more_than():
    """Limit the size of files, as a full disk does."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_checkpoint_is_read_back_and_replaced(tmp_path):
    path, io = tmp_path / "runs" / "last.ckpt", WholeCheckpoints()
    for value in (1.0, 2.0):
        io.save_checkpoint({"x": torch.full((3,), value)}, path)
        assert io.load_checkpoint(path, weights_only=True)["x"].tolist() == [value] * 3
    assert [file.name for file in path.parent.iterdir()] == ["last.ckpt"]


@pytest.mark.parametrize("size", [0, 1000, 100_000])
def test_one_that_does_not_fit_names_its_file_and_leaves_the_one_before(tmp_path, monkeypatch, no_more_than, size):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "elsewhere"))
    path, io = tmp_path / "last.ckpt", WholeCheckpoints()
    io.save_checkpoint({"x": torch.ones(3)}, path)
    no_more_than(size)
    with pytest.raises(StorageError, match=r"cannot write the checkpoint .*last\.ckpt: File too large$"):
        io.save_checkpoint({"x": torch.ones(100_000)}, path)
    no_more_than(10**9)
    assert io.load_checkpoint(path, weights_only=True)["x"].tolist() == [1.0] * 3
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]
