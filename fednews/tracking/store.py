"""The tracking store: which one, opening it safely, and errors that one line explains."""

import contextlib
import logging
import os
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fednews.errors import FednewsError, StorageError, UsageError

if TYPE_CHECKING:
    from mlflow import MlflowClient

DEFAULT_URI = "sqlite:///mlruns/mlflow.db"
LOCK_SECONDS = 120
BUSY_SECONDS = 20

# MLflow retries a server for four minutes: right in the middle of a run, where a restart of the server
# must not cost hours of work, but wrong at the start. The user's own settings win over both.
_AT_START = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "5"}
_IN_A_RUN = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "4", "MLFLOW_HTTP_REQUEST_TIMEOUT": "30"}


def tracking_uri() -> str:
    """``MLFLOW_TRACKING_URI``, or the SQLite store under ``mlruns/`` of the working directory."""
    return os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI


def connect(uri: str | None = None) -> "MlflowClient":
    """Open the tracking store, creating the SQLite database exactly once however many processes ask.

    Args:
        uri: the store; by default ``tracking_uri()``.

    Raises:
        FednewsError: the store cannot be reached, read or written (after seconds, not minutes).
        UsageError: the URI names a database in memory, which no other process could see.
    """
    uri = uri or tracking_uri()
    with clear_errors(uri):
        from mlflow import MlflowClient

        # It prints a traceback for each error that it also raises.
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
        path = database_file(uri)
        if path:
            uri = _absolute(uri, path)
        with _patience(), _prepared(path) if path else contextlib.nullcontext():
            if path is None:
                _check_server(uri)
            client = MlflowClient(uri, registry_uri=uri)
            client.search_experiments(max_results=1)
    return client


def experiment_id(client: "MlflowClient", name: str) -> str:
    """Find the id of the experiment ``name``, created when missing.

    Raises:
        UsageError: the name is empty.
        FednewsError: an experiment of that name was deleted, or the store fails.
    """
    from mlflow.exceptions import MlflowException

    if not name.strip():
        raise UsageError("the experiment needs a name")
    with clear_errors(client.tracking_uri):
        found = client.get_experiment_by_name(name)
        if found is None:
            try:
                return client.create_experiment(name, artifact_location=_artifact_location(client.tracking_uri, name))
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another process may have been faster
                    raise
                found = client.get_experiment_by_name(name)
    if found is None or found.lifecycle_stage == "deleted":
        known = f" (id {found.experiment_id})" if found else ""
        raise FednewsError(
            f"experiment '{name}'{known} was deleted: restore it with `mlflow experiments restore -x ID`, "
            "or choose another name"
        )
    return found.experiment_id


def database_file(uri: str) -> Path | None:
    """Find the SQLite file behind ``uri``, None for servers and other databases."""
    if not uri.startswith("sqlite"):
        return None
    from sqlalchemy.engine import make_url

    name = make_url(uri).database
    if not name or name == ":memory:":
        raise UsageError(f"tracking store {uri} is a database in memory: give a file, e.g. {DEFAULT_URI}")
    return Path(name).absolute()


def _absolute(uri: str, path: Path) -> str:
    """Make ``uri`` hold after a change of the working directory."""
    from sqlalchemy.engine import make_url

    return make_url(uri).set(database=str(path)).render_as_string(hide_password=False)


def artifact_root(uri: str) -> str | None:
    """Where artifacts of a SQLite store lie: ``artifacts/`` beside the database; None where a server decides."""
    path = database_file(uri)
    return str(path.parent / "artifacts") if path else None


@contextlib.contextmanager
def clear_errors(uri: str) -> Iterator[None]:
    """Turn a failure of the tracking store inside the block into a one-line ``StorageError``."""
    import sqlalchemy.exc
    from mlflow.exceptions import MlflowException

    try:
        yield
    except (MlflowException, sqlalchemy.exc.SQLAlchemyError, sqlite3.Error, OSError, ImportError) as error:
        raise StorageError(f"tracking store {hide_password(uri)}: {_reason(error)}; {_advice(uri)}") from error


def hide_password(uri: str) -> str:
    """``uri`` without the password that it may hold."""
    return re.sub(r"(://[^:/@]*):[^@/]*@", r"\1:***@", uri)


def _artifact_location(uri: str, name: str) -> str | None:
    root = artifact_root(uri)
    folder = re.sub(r"[^\w.-]+", "-", name).strip(".-")[:100] or "experiment"
    return f"{root}/{folder}" if root else None


@contextlib.contextmanager
def _prepared(path: Path) -> Iterator[None]:
    """Hold the store's lock, with a database that exists, opens and can be written."""
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock", timeout=LOCK_SECONDS):
        if not path.exists():
            _create_database(path)
        _check_database(path)
        yield


def _create_database(path: Path) -> None:
    """Written aside, then renamed: a process killed in the 3 seconds that it takes leaves nothing half made."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        _check_database(part)
        store = SqlAlchemyStore(f"sqlite:///{part}", str(path.parent / "artifacts"))
        store.engine.dispose()
        os.replace(part, path)
    finally:
        for leftover in (part, part.with_name(f"{part.name}-journal")):
            leftover.unlink(missing_ok=True)


def _check_database(path: Path) -> None:
    """Ask SQLite itself first: MLflow repeats a hopeless opening for 100 seconds."""
    with contextlib.closing(sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)) as database:
        database.execute("PRAGMA schema_version").fetchone()
        database.execute("BEGIN IMMEDIATE")
        database.execute("ROLLBACK")


def _check_server(uri: str) -> None:
    """Ask a database server once: MLflow repeats a refused connection for 100 seconds."""
    if uri.startswith(("postgresql", "mysql", "mssql")):
        import sqlalchemy

        limit = {"connect_timeout": 5} if uri.startswith(("postgresql", "mysql")) else {"timeout": 5}
        engine = sqlalchemy.create_engine(uri, connect_args=limit)
        engine.connect().close()
        engine.dispose()


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    ours = [name for name in _IN_A_RUN if os.environ.get(name) in (None, _IN_A_RUN[name])]
    os.environ.update({name: _AT_START[name] for name in ours})
    try:
        yield
    finally:
        os.environ.update({name: _IN_A_RUN[name] for name in ours})


def _reason(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    known = {
        "file is not a database": "the file is not a database, or it is damaged",
        "disk image is malformed": "the database is damaged",
        "disk is full": "the disk is full",
        "disk I/O error": "the disk cannot be written (is it full?)",
        "readonly database": "the database cannot be written",
        "unable to open database": "the database cannot be opened",
        "database is locked": f"another process kept the database locked for {BUSY_SECONDS} s",
        "timed out": "no answer in time",
    }
    for sign, words in known.items():
        if sign in text:
            return words
    system = re.search(r"\[Errno -?\d+\] ([^'\")\n]+)", text)
    if system:
        where = getattr(error, "filename", None)
        return system.group(1).strip().rstrip(":") + (f": {where}" if where else "")
    return text.splitlines()[0][:300].rstrip(".;")


def _advice(uri: str) -> str:
    if uri.startswith("http"):
        return "start the server, or set MLFLOW_TRACKING_URI to another store"
    if uri.startswith("sqlite"):
        return "check the path, its permissions and the free space, or set MLFLOW_TRACKING_URI to another store"
    return "check MLFLOW_TRACKING_URI"
