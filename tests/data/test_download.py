import io
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from fednews.data.download import LICENCE, REPOSITORY, VARIANTS, download
from fednews.data.mind import MindReader
from fednews.errors import DataError, FednewsError, UsageError

NEWS = "N1\tsports\tgolf\tA title\t\t\t[]\t[]\nN2\tnews\tworld\tAnother\t\t\t[]\t[]\n"
BEHAVIORS = "1\tU1\t11/11/2019 9:05:58 AM\tN1\tN1-0 N2-1\n"
SMALL = VARIANTS["mind-small"]


def _zip(**files: str) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, text in files.items():
            archive.writestr(f"{name}.tsv", text)
    return data.getvalue()


GOOD = _zip(news=NEWS, behaviors=BEHAVIORS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    source.mkdir()
    for name in SMALL:
        (source / name).write_bytes(GOOD)
    return source


def _left(tmp_path: Path) -> list[str]:
    return [path.name for path in tmp_path.iterdir() if path.name != "source"]


def test_a_local_folder_of_zip_files_is_copied_and_can_be_read(folder: Path, tmp_path: Path) -> None:
    out = download("mind-small", tmp_path / "deep" / "out", str(folder), accept_licence=True)
    assert sorted(path.name for path in out.iterdir()) == sorted(SMALL)
    reader = MindReader(out)
    assert reader.splits == ("train", "dev")
    assert [row.user for row in reader.behaviors("dev")] == ["U1"]


def test_unpacked_folders_are_taken_too(tmp_path: Path) -> None:
    for name in SMALL:
        unpacked = tmp_path / "source" / name.removesuffix(".zip")
        unpacked.mkdir(parents=True)
        (unpacked / "news.tsv").write_text(NEWS)
        (unpacked / "behaviors.tsv").write_text(BEHAVIORS)
    out = download("mind-small", tmp_path / "out", str(tmp_path / "source"), accept_licence=True)
    assert MindReader(out).splits == ("train", "dev")


def test_the_licence_is_shown_and_without_a_terminal_its_acceptance_is_asked_for(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(UsageError, match="--accept-licence"):
        download("mind-small", tmp_path / "out", str(folder))
    assert LICENCE in capsys.readouterr().err
    assert _left(tmp_path) == []


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("answer", ["n\n", "\n", "maybe\n"])
def test_a_licence_refused_at_the_terminal_fetches_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    monkeypatch.setattr("sys.stdin", _Terminal(answer))
    with pytest.raises(FednewsError, match="not accepted") as refused:
        download("mind-small", tmp_path / "out", str(folder))
    assert refused.value.exit_code == 1
    assert _left(tmp_path) == []


def test_a_licence_accepted_at_the_terminal_is_enough(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", _Terminal("Yes\n"))
    assert MindReader(download("mind-small", tmp_path / "out", str(folder))).splits == ("train", "dev")


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (lambda path: path.unlink(), FednewsError, "holds neither MINDsmall_dev.zip"),
        (lambda path: path.write_bytes(GOOD[:-30]), DataError, "damaged"),
        (lambda path: path.write_bytes(_zip(news=NEWS)), FednewsError, "no behaviors.tsv"),
    ],
    ids=["missing", "cut off", "incomplete"],
)
def test_a_bad_file_is_one_line_and_leaves_nothing(folder: Path, tmp_path: Path, spoil, error, message) -> None:
    spoil(folder / "MINDsmall_dev.zip")
    with pytest.raises(error, match=message) as caught:
        download("mind-small", tmp_path / "out", str(folder), accept_licence=True)
    assert "\n" not in str(caught.value)
    assert _left(tmp_path) == []


@pytest.mark.parametrize(
    ("variant", "source", "message"),
    [("mind-tiny", None, "choose from mind-small"), ("mind-small", "/no/such/folder", "neither a folder nor")],
)
def test_wrong_arguments_are_usage_errors(tmp_path: Path, variant: str, source: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        download(variant, tmp_path / "out", source, accept_licence=True)
    assert _left(tmp_path) == []


def test_an_existing_folder_is_left_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(UsageError, match="exists already"):
        download("mind-small", tmp_path / "out", str(folder), accept_licence=True)


class _Hub(BaseHTTPRequestHandler):
    """What the hub answers for files of a dataset repository."""

    files: ClassVar[dict[str, bytes]]
    refusal: tuple[int, str] | None = None

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        data = self.files.get(self.path.split("?")[0])
        if self.refusal or data is None:
            status, code = self.refusal or (404, "EntryNotFound")
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("ETag", f'"{sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[tuple[type[_Hub], str]]:
    class Handler(_Hub):
        files: ClassVar = {f"/datasets/{REPOSITORY}/resolve/main/{name}": GOOD for name in SMALL}

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Handler, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _download_apart(out: Path, **environment: str) -> str:
    """Download in a process of its own, as the hub client reads its environment once; returns the error's text."""
    code = (
        "import sys; from fednews.data.download import download\n"
        "from fednews.errors import FednewsError\n"
        "try: download('mind-small', sys.argv[1], accept_licence=True)\n"
        "except FednewsError as error: print(error)\n"
    )
    kept = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    kept.update(environment, HF_HOME=str(out.parent / "source"), HF_HUB_DISABLE_TELEMETRY="1")
    done = subprocess.run([sys.executable, "-c", code, str(out)], env=kept, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_hub_client_fetches_the_files_and_leaves_no_notes(hub: tuple[type[_Hub], str], tmp_path: Path) -> None:
    assert _download_apart(tmp_path / "out", HF_ENDPOINT=hub[1]) == ""
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(SMALL)
    assert MindReader(tmp_path / "out").splits == ("train", "dev")
    assert _left(tmp_path) == ["out"]


@pytest.mark.parametrize(
    ("refusal", "message"),
    [
        ((401, "GatedRepo"), "terms have to be accepted at"),
        ((404, "RepoNotFound"), "there is no dataset repository"),
        ((404, "EntryNotFound"), "holds no MINDsmall_train.zip"),
    ],
)
def test_what_the_hub_refuses_is_one_line_that_points_to_a_folder(
    hub: tuple[type[_Hub], str], tmp_path: Path, refusal: tuple[int, str], message: str
) -> None:
    hub[0].refusal = refusal
    said = _download_apart(tmp_path / "out", HF_ENDPOINT=hub[1])
    assert message in said
    assert "--source FOLDER" in said
    assert "\n" not in said
    assert _left(tmp_path) == []


def test_offline_is_one_line_that_points_to_a_folder(tmp_path: Path) -> None:
    said = _download_apart(tmp_path / "out", HF_HUB_OFFLINE="1")
    assert "the Hugging Face hub cannot be reached from here" in said
    assert "put MINDsmall_train.zip and MINDsmall_dev.zip into a folder and give it as --source FOLDER" in said
    assert "\n" not in said
    assert _left(tmp_path) == []
