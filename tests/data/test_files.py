"""Text members of a raw data set."""

import gzip
import zipfile
from pathlib import Path

import pytest

from fednews.data.files import find
from fednews.errors import DataError, UsageError

LINES = [(1, 'first "quoted'), (2, "æ\x85ø\u2028å\x0b"), (3, ""), (4, "last")]
CONTENT = "\n".join(text for _, text in LINES).encode()


def is_text(name: str) -> bool:
    return name == "a.txt"


def texts(root: Path) -> list[list[tuple[int, str]]]:
    return [list(member.lines()) for member in find(root, is_text, "a.txt")]


def write_zip(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def test_plain_and_compressed_files_zip_members_and_nested_folders_read_the_same(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "a.txt").write_bytes(CONTENT)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(CONTENT))
    write_zip(tmp_path / "set.zip", {"a.txt": CONTENT, "inner/a.txt.gz": gzip.compress(CONTENT), "inner/b.txt": b"b"})
    members = find(tmp_path, is_text, "a.txt")
    assert [member.folder for member in members] == ["", "deep/er", "set", "set/inner"]
    assert texts(tmp_path) == [LINES] * 4
    assert [str(member) for member in members] == [
        str(tmp_path / name) for name in ("a.txt.gz", "deep/er/a.txt", "set.zip/a.txt", "set.zip/inner/a.txt.gz")
    ]


def test_a_zip_or_a_single_file_can_be_the_root(tmp_path):
    write_zip(tmp_path / "set.zip", {"x/a.txt": CONTENT})
    (tmp_path / "a.txt").write_bytes(CONTENT)
    assert [member.folder for member in find(tmp_path / "set.zip", is_text, "a.txt")] == ["x"]
    assert texts(tmp_path / "set.zip") == texts(tmp_path / "a.txt") == [LINES]


@pytest.mark.parametrize("end", [b"", b"\r\n"])
def test_a_byte_order_mark_and_crlf_line_ends_are_no_part_of_the_text(tmp_path, end):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf" + CONTENT.replace(b"\n", b"\r\n") + end)
    assert texts(tmp_path) == [LINES]


def test_a_mark_or_carriage_return_inside_the_text_stays(tmp_path):
    (tmp_path / "a.txt").write_text("x\ry\n\ufeffz\n", newline="")
    assert texts(tmp_path) == [[(1, "x\ry"), (2, "\ufeffz")]]


def test_lines_are_streamed_from_a_zip_and_not_read_ahead(tmp_path):
    # The checksum of the damaged member is only wrong at its end: the first line comes before that is known.
    write_zip(tmp_path / "set.zip", {"a.txt": b"".join(b"%d\n" % i for i in range(300_000))})
    damaged = bytearray((tmp_path / "set.zip").read_bytes())
    with zipfile.ZipFile(tmp_path / "set.zip") as archive:
        header = archive.start_dir
    damaged[header + 16] ^= 0xFF
    (tmp_path / "set.zip").write_bytes(damaged)
    (member,) = find(tmp_path, is_text, "a.txt")
    lines = member.lines()
    assert next(lines) == (1, "0")
    with pytest.raises(DataError, match=r"set\.zip/a\.txt:\d{5,}: damaged file"):
        list(lines)


def test_a_missing_path_or_member_says_what_was_looked_for_and_where(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere does not exist: looked there for day files"):
        find(tmp_path / "nowhere", is_text, "day files")
    with pytest.raises(UsageError, match=f"no day files at {tmp_path}"):
        find(tmp_path, is_text, "day files")


def test_a_file_that_stands_there_plain_and_compressed_is_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes(CONTENT)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(CONTENT))
    with pytest.raises(UsageError, match=r"a\.txt and .*a\.txt\.gz are the same file twice"):
        find(tmp_path, is_text, "a.txt")


def test_damage_and_foreign_encodings_name_file_and_line(tmp_path):
    (tmp_path / "a.txt").write_bytes("fine\nnæy".encode("latin-1"))
    with pytest.raises(DataError, match=r"a\.txt:2: not UTF-8"):
        texts(tmp_path / "a.txt")
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "a.txt.gz").write_bytes(gzip.compress(CONTENT)[:-9])
    with pytest.raises(DataError, match=r"a\.txt\.gz:\d+: damaged file"):
        texts(tmp_path / "cut")
    (tmp_path / "bad.zip").write_bytes(b"PK not a zip")
    with pytest.raises(DataError, match=r"bad\.zip: damaged zip"):
        texts(tmp_path / "bad.zip")


def test_a_folder_that_links_to_itself_is_visited_once(tmp_path):
    (tmp_path / "a.txt").write_bytes(CONTENT)
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    assert texts(tmp_path) == [LINES]


def test_a_linked_folder_is_found(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.txt").write_bytes(CONTENT)
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "train").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    assert [member.folder for member in find(tmp_path / "root", is_text, "a.txt")] == ["train"]
