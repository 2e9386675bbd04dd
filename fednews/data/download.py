"""Fetch MIND from the Hugging Face hub or a local folder, once its licence is accepted."""

import re
import shutil
import sys
from pathlib import Path

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from fednews.data.aside import written_aside
from fednews.data.files import find
from fednews.data.mind import BEHAVIORS, NEWS
from fednews.errors import FednewsError, UsageError

# A copy of the official zip files that asks for the same licence, behind a log-in.
REPOSITORY = "yjw1029/MIND"
VARIANTS = {
    "mind-small": ("MINDsmall_train.zip", "MINDsmall_dev.zip"),
    "mind-large": ("MINDlarge_train.zip", "MINDlarge_dev.zip", "MINDlarge_test.zip"),
}
LICENCE = """MIND is Microsoft's, under the Microsoft Research License Terms:
https://github.com/msnews/MIND/blob/master/MSR%20License_Data.pdf
In short (only the terms themselves count): the data may be used for non-commercial, non-revenue generating
research, for analysing and testing; it may not be distributed; it comes as it is, without any warranty."""


def download(variant: str, out: str | Path, source: str | None = None, accept_licence: bool = False) -> Path:
    """Put the zip files (or folders) of ``variant`` into the new folder ``out``, ready for ``MindReader``.

    The licence is shown first. They are fetched aside and checked, then renamed: ``out`` is never half there.

    Args:
        variant: a key of ``VARIANTS``.
        out: folder to make.
        source: a dataset repository ``owner/name`` of the hub, or a local folder that holds the zip files or folders
            of the same names; ``REPOSITORY`` when not given.
        accept_licence: the person has accepted the licence; else they are asked, if there is a terminal.

    Returns:
        ``out``.

    Raises:
        UsageError: unknown variant or source, ``out`` exists, or nobody is there to accept the licence.
        FednewsError: the licence was refused, the hub or a file cannot be had, or a file is incomplete.
    """
    out = Path(out)
    if variant not in VARIANTS:
        raise UsageError(f"unknown data set '{variant}': choose from {', '.join(VARIANTS)}")
    if out.exists():
        raise UsageError(f"{out} exists already: give another --out, or remove it")
    source = REPOSITORY if source is None else source
    local = Path(source).is_dir()
    if not local and not re.fullmatch(r"[\w.-]+/[\w.-]+", source):
        raise UsageError(f"--source {source} is neither a folder nor a dataset repository like {REPOSITORY}")
    _agree(accept_licence)
    with written_aside(out) as aside:
        for name in VARIANTS[variant]:
            _check(_copy(Path(source), name, aside) if local else _fetch(source, variant, name, aside))
        shutil.rmtree(aside / ".cache", ignore_errors=True)  # the hub client's notes
    return out


def _agree(accepted: bool) -> None:
    print(LICENCE, file=sys.stderr)
    if accepted:
        return
    if not sys.stdin.isatty():
        raise UsageError("the licence has to be accepted before anything is fetched: read it and add --accept-licence")
    if input("Do you accept the licence? [y/N] ").strip().lower() not in ("y", "yes"):
        raise FednewsError("the licence was not accepted: nothing was fetched")


def _copy(folder: Path, name: str, target: Path) -> Path:
    unpacked = name.removesuffix(".zip")
    if (folder / name).is_file():
        return Path(shutil.copy2(folder / name, target))
    if (folder / unpacked).is_dir():
        return Path(shutil.copytree(folder / unpacked, target / unpacked))
    raise FednewsError(f"{folder} holds neither {name} nor a folder {unpacked}")


def _fetch(repository: str, variant: str, name: str, target: Path) -> Path:
    try:
        return Path(hf_hub_download(repository, name, repo_type="dataset", local_dir=target))
    except (OSError, EntryNotFoundError, HFValidationError) as error:
        files = " and ".join(VARIANTS[variant])
        raise FednewsError(
            f"{name} could not be fetched: {_reason(error, repository, name)}; "
            f"or put {files} into a folder and give it as --source FOLDER"
        ) from error


def _reason(error: Exception, repository: str, name: str) -> str:
    page = f"https://huggingface.co/datasets/{repository}"
    if isinstance(error, GatedRepoError):
        return f"its terms have to be accepted at {page} first, then log in with 'hf auth login'"
    if isinstance(error, RepositoryNotFoundError):
        return f"there is no dataset repository {page}, or it is private"
    if isinstance(error, LocalEntryNotFoundError):
        return "the Hugging Face hub cannot be reached from here"
    if isinstance(error, EntryNotFoundError):
        return f"{page} holds no {name}"
    return next(iter(str(error).splitlines()), type(error).__name__)


def _check(path: Path) -> None:
    """Raise DataError or UsageError unless a split's two files are there."""
    for wanted in (NEWS, BEHAVIORS):
        find(path, wanted.__eq__, wanted)
