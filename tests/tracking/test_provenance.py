import dataclasses
import importlib.metadata
import json
import platform
import subprocess
from pathlib import Path

import pytest
import torch

import fednews
from fednews.tracking.provenance import PACKAGES, UNKNOWN, collect


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True, text=True)
    return done.stdout


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose package is, for this test, the one that runs."""
    package = tmp_path / "checkout" / "fednews"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("one = 1\n")
    git(tmp_path, "init", "-q", "checkout")
    git(package, "add", ".")
    git(package, "commit", "-q", "-m", "first")
    monkeypatch.setattr(fednews, "__file__", str(package / "__init__.py"))
    return package.parent


def test_a_clean_checkout_has_its_commit_and_no_diff(checkout):
    found = collect()
    assert found.commit == git(checkout, "rev-parse", "HEAD").strip()
    assert not found.dirty
    assert found.record()["diff_sha256"] == ""


def test_changed_and_staged_files_are_in_the_diff_and_it_applies(checkout):
    (checkout / "fednews" / "__init__.py").write_text("one = 2\n")
    (checkout / "fednews" / "new.py").write_text("äöü\n")
    git(checkout, "add", "fednews/new.py")
    found = collect()
    assert found.dirty
    git(checkout, "reset", "-q", "--hard")
    (checkout.parent / "changes.diff").write_text(found.diff)
    git(checkout, "apply", str(checkout.parent / "changes.diff"))
    assert (checkout / "fednews" / "__init__.py").read_text() == "one = 2\n"
    assert (checkout / "fednews" / "new.py").read_text() == "äöü\n"


def test_untracked_files_are_named_and_make_the_tree_dirty(checkout):
    (checkout / "notes of mine.txt").write_text("x")
    (checkout / ".gitignore").write_text("*.log\n")
    (checkout / "a.log").write_text("x")
    found = collect()
    assert found.untracked == (".gitignore", "notes of mine.txt")
    assert found.dirty
    assert found.diff == ""


def test_another_diff_has_another_digest(checkout):
    digests = set()
    for text in ("one = 2\n", "one = 3\n"):
        (checkout / "fednews" / "__init__.py").write_text(text)
        digests.add(collect().record()["diff_sha256"])
    assert len(digests) == 2


def test_an_installed_package_inside_somebody_elses_checkout_is_not_its_commit(checkout, tmp_path, monkeypatch):
    installed = checkout / ".venv" / "fednews"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    monkeypatch.setattr(fednews, "__file__", str(installed / "__init__.py"))
    monkeypatch.chdir(tmp_path)
    assert collect().commit == UNKNOWN


def test_outside_a_checkout_the_working_directory_counts(checkout, tmp_path, monkeypatch):
    monkeypatch.setattr(fednews, "__file__", str(tmp_path / "site" / "fednews" / "__init__.py"))
    (tmp_path / "site" / "fednews").mkdir(parents=True)
    monkeypatch.chdir(checkout)
    assert collect().commit == git(checkout, "rev-parse", "HEAD").strip()


def test_without_git_or_a_checkout_the_commit_is_unknown(checkout, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    found = collect()
    assert (found.commit, found.diff, found.untracked, found.dirty) == (UNKNOWN, "", (), False)


def test_a_checkout_without_commits_is_unknown(tmp_path, monkeypatch):
    git(tmp_path, "init", "-q", "empty")
    monkeypatch.setattr(fednews, "__file__", str(tmp_path / "empty" / "__init__.py"))
    monkeypatch.chdir(tmp_path / "empty")
    assert collect().commit == UNKNOWN


def test_packages_and_machine_are_recorded_as_plain_json():
    found = collect()
    record = json.loads(json.dumps(found.record()))
    assert set(record["packages"]) == set(PACKAGES)
    assert record["packages"]["torch"] == importlib.metadata.version("torch")
    assert record["python"] == platform.python_version()
    assert record["torch_threads"] == torch.get_num_threads()
    assert record["cpu"]
    assert set(record) == {f.name for f in dataclasses.fields(found)} - {"diff"} | {"dirty", "diff_sha256"}
