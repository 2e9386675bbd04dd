from pathlib import Path

import pytest

from fednews.data.aside import check_target, written_aside
from fednews.errors import UsageError


def test_the_folder_appears_whole_when_the_block_ends(tmp_path: Path):
    with written_aside(tmp_path / "deep" / "out") as aside:
        (aside / "a").write_text("1")
        assert not (tmp_path / "deep" / "out").exists()
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["out"]
    assert (tmp_path / "deep" / "out" / "a").read_text() == "1"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_nothing_is_left_of_a_block_that_fails_and_what_was_there_stays(tmp_path: Path, error: BaseException):
    out = tmp_path / "out"
    with written_aside(out) as aside:
        (aside / "a").write_text("old")

    def fail():
        with written_aside(out) as aside:
            (aside / "a").write_text("new")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert (out / "a").read_text() == "old"


def test_a_replacement_leaves_only_the_new_folder(tmp_path: Path):
    out = tmp_path / "out"
    for text in ("old", "new"):
        with written_aside(out) as aside:
            (aside / text).write_text(text)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert [p.name for p in out.iterdir()] == ["new"]


def test_only_what_proves_to_be_ours_is_replaced(tmp_path: Path):
    check_target(tmp_path / "absent", "a store", "meta.json", overwrite=False)
    with pytest.raises(UsageError, match="exists already"):
        check_target(tmp_path, "a store", "meta.json", overwrite=False)
    check_target(tmp_path, "a store", "meta.json", overwrite=True)
    (tmp_path / "thesis.tex").write_text("years")
    with pytest.raises(UsageError, match="is not a store"):
        check_target(tmp_path, "a store", "meta.json", overwrite=True)
    with pytest.raises(UsageError, match="is not a store"):
        check_target(tmp_path / "thesis.tex", "a store", "meta.json", overwrite=True)
