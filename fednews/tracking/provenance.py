"""What a run was made with: code, packages and machine."""

import dataclasses
import hashlib
import importlib.metadata
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import fednews

UNKNOWN = "unknown"
PACKAGES = (
    "fednews", "torch", "lightning", "mlflow", "optuna", "transformers", "datasets", "numpy", "pyarrow",
    "dp-accounting", "jsonargparse",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Provenance:
    """The state of code and machine at one moment.

    ``diff`` is the text of ``git diff HEAD``; ``untracked`` the names of files that git neither
    tracks nor ignores (their content is not kept). ``packages`` maps a distribution to its version.
    """

    commit: str
    diff: str
    untracked: tuple[str, ...]
    packages: dict[str, str]
    python: str
    platform: str
    cpu: str
    cpus: int
    torch_threads: int
    device: str
    hostname: str

    @property
    def dirty(self) -> bool:
        """Whether the working tree differs from the commit."""
        return bool(self.diff or self.untracked)

    def record(self) -> dict[str, Any]:
        """Everything but the diff, for which its SHA-256 stands, as plain JSON values."""
        values = dataclasses.asdict(self)
        diff = values.pop("diff")
        digest = hashlib.sha256(diff.encode()).hexdigest() if diff else ""
        return {**values, "untracked": list(self.untracked), "dirty": self.dirty, "diff_sha256": digest}


def code_digest() -> str:
    """Short hash of this package's source files, whether committed or not."""
    package = Path(fednews.__file__).parent
    content = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        content.update(f"{path.relative_to(package).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return content.hexdigest()[:16]


def collect() -> Provenance:
    """Collect the provenance of this process; outside a git checkout the commit is ``unknown``."""
    import torch

    tree = _working_tree()
    commit = _git(tree, "rev-parse", "HEAD").strip() if tree else ""
    known = bool(commit)
    untracked = _git(tree, "ls-files", "--others", "--exclude-standard", "-z") if known else ""
    return Provenance(
        commit=commit or UNKNOWN,
        diff=_git(tree, "diff", "HEAD", "--no-ext-diff", "--no-color", "--no-textconv") if known else "",
        untracked=tuple(name for name in untracked.split("\0") if name),
        packages=_versions(),
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        cpu=_cpu(),
        cpus=os.cpu_count() or 1,
        torch_threads=torch.get_num_threads(),
        device=torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        hostname=socket.gethostname(),
    )


def _working_tree() -> Path | None:
    """Find the checkout that this package runs from, else the one around the working directory."""
    package = Path(fednews.__file__).parent
    # A virtual environment may lie inside a checkout of something else, so being tracked is what counts.
    if _git(package, "ls-files", "__init__.py"):
        return Path(_git(package, "rev-parse", "--show-toplevel").rstrip("\n"))
    top = _git(Path.cwd(), "rev-parse", "--show-toplevel").rstrip("\n")
    return Path(top) if top else None


def _git(folder: Path, *arguments: str) -> str:
    """Return what git prints; nothing when git is missing, refuses, or ``folder`` is no checkout."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            check=False,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except FileNotFoundError:
        return ""
    return done.stdout.decode("utf-8", errors="replace") if done.returncode == 0 else ""


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = fednews.__version__ if name == "fednews" else "not installed"
    return found


def _cpu() -> str:
    """Name the processor; ``platform.processor()`` is empty on most Linux systems."""
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
