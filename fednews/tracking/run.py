"""One tracked run: what is recorded when it starts, while it lasts and when it ends."""

import json
import math
import os
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlparse
from urllib.request import url2pathname

import psutil

from fednews.errors import FednewsError, Stopped
from fednews.tracking.lookup import PAUSES, resolve_run
from fednews.tracking.parameters import flatten
from fednews.tracking.provenance import Provenance, collect
from fednews.tracking.reaper import is_alive
from fednews.tracking.store import clear_errors, experiment_id

if TYPE_CHECKING:
    from lightning.pytorch.loggers import MLFlowLogger
    from mlflow import MlflowClient

PARAMS_PER_BATCH = 100
METRICS_PER_BATCH = 1000
ERROR_LIMIT = 1000
COMMAND_LIMIT = 4000
STOP_SIGNALS = ("SIGTERM", "SIGHUP")


class Terminated(SystemExit):
    """The process was told to stop; its exit code is 128 + the signal, as in a shell."""

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)


class TrackedRun:
    """A run in the tracking store, closed with the right status when its block ends.

    ``with TrackedRun.start(...) as run:`` ends as FINISHED, as KILLED after Ctrl-C, SIGTERM, SIGHUP or ``Stopped``, and
    as FAILED after any other exception, whose message is then in the tag ``fednews.error``. While the
    block runs, SIGTERM and SIGHUP raise ``Terminated`` in the main thread.

    Make one on global rank zero only.
    """

    def __init__(self, client: "MlflowClient", run_id: str, artifact_uri: str) -> None:
        self.client = client
        self.run_id = run_id
        self.artifact_uri = artifact_uri
        self._handlers: dict[signal.Signals, Any] = {}

    @classmethod
    def start(
        cls,
        client: "MlflowClient",
        experiment: str,
        run_name: str,
        config: Mapping[str, Any],
        config_yaml: str,
        tags: Mapping[str, str],
        fingerprint: str,
        *,
        note: str | None = None,
        rerun_of: str | None = None,
        resumed_from: str | None = None,
    ) -> Self:
        """Create a run and record what it is made of.

        Args:
            client: of the store.
            experiment: its name; created when missing.
            run_name: shown by the UI.
            config: the resolved configuration; its leaves become parameters (``parameters.flatten``).
            config_yaml: the same as text, kept as artifact ``config.yaml``.
            tags: further tags.
            fingerprint: of the data store that the run reads.
            note: one line that MLflow shows as the run's description; by default the main parts.
            rerun_of: id of the run that this one repeats.
            resumed_from: id of the run that this one continues.

        Raises:
            FednewsError: the store fails, or the experiment was deleted.
        """
        provenance = collect()
        params = flatten(config)
        links = {"fednews.rerun_of": rerun_of, "fednews.resumed_from": resumed_from}
        all_tags = {
            **{key: str(value) for key, value in tags.items()},
            **_process_tags(provenance),
            **{key: value for key, value in links.items() if value},
            "fednews.fingerprint": fingerprint,
            "mlflow.note.content": note or _summary(params, tags.get("fednews.data")),
        }
        with clear_errors(client.tracking_uri):
            created = client.create_run(experiment_id(client, experiment), tags=all_tags, run_name=run_name)
        run = cls(client, created.info.run_id, created.info.artifact_uri)
        try:
            run._log_params(params)
            run.log_text("config.yaml", config_yaml)
            run._log_provenance(provenance, "provenance")
        except BaseException as error:
            run._close(error)
            raise
        return run

    @classmethod
    def resume(cls, client: "MlflowClient", run_id: str) -> Self:
        """Continue a run that ended or died: same id, same parameters, status RUNNING again.

        What the code and machine are now goes into ``provenance/resumed_<n>/``.

        Raises:
            UsageError: there is no such run.
            FednewsError: the run is still in progress, or the store fails.
        """
        found = resolve_run(client, run_id)
        if found.info.status == "RUNNING" and is_alive(found) is not False:
            host, pid = (found.data.tags.get(f"fednews.{key}", "unknown") for key in ("host", "pid"))
            name = found.info.run_id[:12]
            raise FednewsError(f"run {name} is recorded as still running (process {pid} on {host}): stop it first")
        provenance = collect()
        run = cls(client, found.info.run_id, found.info.artifact_uri)
        times = int(found.data.tags.get("fednews.resumed", 0)) + 1
        # The commit and command that the run started with stay; its process is a new one.
        process = {k: v for k, v in _process_tags(provenance).items() if k in _PROCESS_TAGS}
        with clear_errors(client.tracking_uri):
            client.update_run(run.run_id, status="RUNNING")
        if found.info.end_time:
            process[PAUSES] = (
                f"{found.data.tags.get(PAUSES, '')} {found.info.end_time}-{int(time.time() * 1000)}".strip()
            )
        run.set_tags({**process, "fednews.resumed": str(times)})
        with clear_errors(client.tracking_uri):
            for stale in {"fednews.error", "fednews.closed_by"} & found.data.tags.keys():
                client.delete_tag(run.run_id, stale)
        run._log_provenance(provenance, f"provenance/resumed_{times}")
        return run

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for name in STOP_SIGNALS:
                number = getattr(signal, name, None)
                if number and signal.getsignal(number) is signal.SIG_DFL:
                    self._handlers[number] = signal.signal(number, _stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()
        self._close(error)

    @property
    def logger(self) -> "MLFlowLogger":
        """A Lightning logger that writes into this run and leaves its status alone."""
        from fednews.tracking.logger import RunLogger

        return RunLogger(self)

    def log_metrics(self, metrics: Mapping[str, float], step: int = 0) -> None:
        """Record ``metrics`` at ``step`` in one batch.

        NaN is kept. SQL stores have no infinity: MLflow holds ±∞ as ±1.797e308 (and its UI shows that);
        ``lookup.number`` and ``lookup.metric_history`` give ∞ back.
        """
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        batch = [Metric(key, float(value), now, step) for key, value in metrics.items()]
        with clear_errors(self.client.tracking_uri):
            for start in range(0, len(batch), METRICS_PER_BATCH):
                self.client.log_batch(self.run_id, metrics=batch[start : start + METRICS_PER_BATCH])

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set or replace tags."""
        from mlflow.entities import RunTag

        with clear_errors(self.client.tracking_uri):
            self.client.log_batch(self.run_id, tags=[RunTag(key, str(value)) for key, value in tags.items()])

    def log_text(self, name: str, text: str) -> None:
        """Write the text artifact ``name`` (may hold folders)."""
        with clear_errors(self.client.tracking_uri):
            self.client.log_text(self.run_id, text, name)

    def log_json(self, name: str, value: Any) -> None:
        """Write ``value`` as the artifact ``name``; JSON has no ∞ or NaN, they become "inf", "-inf", "nan"."""
        self.log_text(name, json.dumps(_finite(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n")

    def log_contents(self, files: Mapping[str, str | bytes]) -> None:
        """Write artifacts given as text or bytes, by name (may hold folders)."""
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                path = Path(folder, Path(name).name)
                path.write_bytes(content.encode() if isinstance(content, str) else content)
                self.log_file(path, str(Path(name).parent))

    def log_file(self, path: str | Path, artifact_dir: str | None = None, final: bool = False) -> None:
        """Copy a file into the run; in a local store a reader never sees it half written.

        Args:
            path: the file.
            artifact_dir: folder of the artifact; the run's own when not given.
            final: the file may be replaced but is never written to again, so that a local store may share its bytes.

        Raises:
            FednewsError: the file cannot be read, the store fails or is full.
        """
        path, folder = Path(path), self._local_folder()
        with clear_errors(self.client.tracking_uri):
            if folder is None:
                self.client.log_artifact(self.run_id, str(path), artifact_dir)
                return
            target = folder / (artifact_dir or "") / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(f".{target.name}.{os.getpid()}.part")
            try:
                _link_or_copy(path, part) if final else shutil.copyfile(path, part)
                os.replace(part, target)
            finally:
                part.unlink(missing_ok=True)

    def _local_folder(self) -> Path | None:
        if self.artifact_uri.startswith("file:"):
            return Path(url2pathname(urlparse(self.artifact_uri).path))
        return None if "://" in self.artifact_uri or ":/" in self.artifact_uri else Path(self.artifact_uri)

    def _log_params(self, params: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        batch = [Param(key, value) for key, value in params.items()]
        with clear_errors(self.client.tracking_uri):
            for start in range(0, len(batch), PARAMS_PER_BATCH):
                self.client.log_batch(self.run_id, params=batch[start : start + PARAMS_PER_BATCH])

    def _log_provenance(self, provenance: Provenance, folder: str) -> None:
        self.log_json(f"{folder}/provenance.json", provenance.record())
        if provenance.diff:
            self.log_text(f"{folder}/working_tree.diff", provenance.diff)

    def _close(self, error: BaseException | None) -> None:
        status = ending(error)
        try:
            if error is not None and status == "FAILED":
                self.set_tags({"fednews.error": message_of(error)})
            with clear_errors(self.client.tracking_uri):
                self.client.set_terminated(self.run_id, status)
        except FednewsError as failure:
            if error is None:
                raise
            error.add_note(f"the run could not be closed either: {failure}")  # the first error matters more


_PROCESS_TAGS = ("fednews.pid", "fednews.host", "fednews.process_started")


def _link_or_copy(source: Path, target: Path) -> None:
    """One file with two names where the disk can do it: checkpoints with single clients' state take gigabytes."""
    try:
        os.link(source, target)
    except OSError:  # other disk, or a file system without links
        shutil.copyfile(source, target)


def _process_tags(provenance: Provenance) -> dict[str, str]:
    return {
        "mlflow.source.git.commit": provenance.commit,
        "mlflow.source.name": "fednews",
        "mlflow.source.type": "LOCAL",
        "fednews.dirty": str(provenance.dirty).lower(),
        "fednews.command": shlex.join(["fednews", *sys.argv[1:]])[:COMMAND_LIMIT],
        "fednews.pid": str(os.getpid()),
        "fednews.host": socket.gethostname(),
        "fednews.process_started": repr(psutil.Process().create_time()),
    }


def _summary(params: Mapping[str, str], data: str | None) -> str:
    seed = f"seed {params['seed']}" if "seed" in params else None
    parts = (params.get("algorithm"), params.get("model"), data or params.get("data.store"), seed)
    return ", ".join(part for part in parts if part) or "fednews run"


def _stop(signum: int, frame: FrameType | None) -> None:
    raise Terminated(signum)


def ending(error: BaseException | None) -> str:
    """The status of a run that ends with ``error``: FINISHED, KILLED or FAILED."""
    if error is None or (type(error) is SystemExit and not error.code):
        return "FINISHED"
    # Lightning answers Ctrl-C with sys.exit(1), and SIGTERM with a SystemExit class of its own.
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, KeyboardInterrupt | Stopped) or (
            isinstance(chain, SystemExit) and type(chain) is not SystemExit
        ):
            return "KILLED"
        chain = chain.__cause__ or chain.__context__
    return "FAILED"


def message_of(error: BaseException) -> str:
    """One line on ``error``, for the tag ``fednews.error``."""
    text = " ".join(str(error).split())
    if isinstance(error, FednewsError):
        return text[:ERROR_LIMIT]
    return f"{type(error).__name__}: {text}"[:ERROR_LIMIT]


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
