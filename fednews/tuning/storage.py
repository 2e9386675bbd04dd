"""Where studies are kept: a journal file, or PostgreSQL for many machines; and a lock that all workers share."""

import contextlib
import logging
import os
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

import optuna
from filelock import FileLock
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

from fednews.errors import FednewsError, UsageError
from fednews.tracking.store import hide_password

FOLDER = Path("mlruns") / "sweeps"
_LOCK_KEY = zlib.crc32(b"fednews.tuning")
_CONNECT_SECONDS = 10


class KernelLock:
    """A lock for Optuna's journal that the kernel frees when its owner dies.

    Optuna's own locks are files that outlive a killed process; the others then wait 30 s to break them.
    """

    def __init__(self, path: Path) -> None:
        self._lock = FileLock(f"{path}.lock")

    def acquire(self) -> bool:
        self._lock.acquire()
        return True

    def release(self) -> None:
        self._lock.release()


class StudyStorage:
    """Optuna's storage behind ``url``, and the lock under which its trials are counted and given out.

    Args:
        url: ``postgresql://…``, or the path of a journal file.

    Raises:
        UsageError: another kind of database.
        FednewsError: the database cannot be reached.
    """

    def __init__(self, url: str) -> None:
        quiet_optuna()
        self.url = url
        self._path = None if "://" in url else Path(url)
        if self._path is None and not url.startswith(("postgresql://", "postgresql+")):
            raise UsageError(f"--storage takes postgresql://… or the path of a journal file, not {hide_password(url)}")
        with self.clear_errors():
            self._engine = None if self._path else _engine(url)
            if self._path:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            with self.lock():  # tables are made once, however many workers come
                self.optuna = self._open()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock; whoever dies inside frees it."""
        if self._path:
            with FileLock(f"{self._path}.trials.lock"):
                yield
            return
        from sqlalchemy import text

        with self._engine.connect() as connection:
            connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _LOCK_KEY})
            try:
                yield
            finally:
                connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": _LOCK_KEY})

    @contextlib.contextmanager
    def clear_errors(self) -> Iterator[None]:
        """Turn a failure of the storage inside the block into a one-line ``FednewsError``."""
        from sqlalchemy.exc import SQLAlchemyError

        known = (SQLAlchemyError, optuna.exceptions.StorageInternalError, OSError, ImportError)
        try:
            yield
        except known as error:
            lines = str(error.__cause__ or error).strip().splitlines() or [type(error).__name__]
            hint = "; pip install 'fednews[postgres]'" if isinstance(error, ImportError) else ""
            raise FednewsError(f"study storage {hide_password(self.url)}: {lines[0][:300]}{hint}") from error

    def _open(self) -> BaseStorage:
        if self._path:
            _mend(self._path)
            return JournalStorage(JournalFileBackend(str(self._path), lock_obj=KernelLock(self._path)))
        return RDBStorage(self.url, engine_kwargs={"pool_pre_ping": True})


def journal_of(name: str) -> str:
    """The journal that holds the studies of the sweep ``name`` unless another storage is given."""
    return str(FOLDER / f"{name}.journal")


def quiet_optuna() -> None:
    """Optuna reports each trial by itself, and warns that parts in daily use may change."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    # Said of every objective that is not minimised, whatever sign the caller has given it.
    warnings.filterwarnings("ignore", message="PedAnovaImportanceEvaluator computes the importances of params to")
    warnings.filterwarnings("ignore", message="Attempting to set identical low and high xlims")  # one value so far
    # A trial that goes on after its process died says again what it said before.
    warnings.filterwarnings("ignore", message=r"The reported value is ignored because this `step`")


def _engine(url: str):
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    # A connection of its own for each use: one that breaks, or whose process dies, loses the lock with it.
    return create_engine(url, poolclass=NullPool, connect_args={"connect_timeout": _CONNECT_SECONDS})


def _mend(path: Path) -> None:
    """Cut off a last line that was not finished, as a power failure leaves it; nobody could read past it."""
    with FileLock(f"{path}.lock"):
        if not path.exists() or not (content := path.read_bytes()) or content.endswith(b"\n"):
            return
        os.truncate(path, content.rfind(b"\n") + 1)
