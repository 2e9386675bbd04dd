"""MLflow's own user interface, on the store that fednews uses."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from types import FrameType

from fednews.errors import FednewsError, UsageError
from fednews.tracking.store import artifact_root, connect, hide_password, tracking_uri

START_SECONDS = 120
STOP_SECONDS = 10


def serve_ui(host: str = "127.0.0.1", port: int = 5000) -> None:
    """Serve MLflow's UI until Ctrl-C or SIGTERM; prints its address when it answers.

    One worker and no job executor: with its defaults MLflow starts 15 processes of 3.3 GB. When the tracking
    store is a server already, only its address is printed.

    Raises:
        FednewsError: the port is taken, the store cannot be used, or the server ends by itself.
        UsageError: the port is not one.
    """
    uri = tracking_uri()
    uri = connect(uri).tracking_uri
    if uri.startswith("http"):
        print(f"the tracking server has its own UI: {hide_password(uri)}", flush=True)
        return
    _check_port(host, port)
    with _terminable(), _server(uri, host, port) as server:
        _wait_until_it_answers(server, host, port)
        print(f"MLflow UI: http://{_shown(host)}:{port} (Ctrl-C ends it)", flush=True)
        code = server.wait()
        raise FednewsError(f"the UI's server ended by itself with exit code {code}: see its messages above")


def _command(uri: str, host: str, port: int) -> list[str]:
    root = artifact_root(uri)
    return [
        sys.executable, "-m", "mlflow", "server",
        "--backend-store-uri", uri,
        "--registry-store-uri", uri,
        *(["--default-artifact-root", root] if root else []),
        "--host", host,
        "--port", str(port),
        "--workers", "1",
        "--uvicorn-opts", "--log-level warning",
    ]  # fmt: skip


@contextlib.contextmanager
def _server(uri: str, host: str, port: int) -> Iterator[subprocess.Popen]:
    # In a session of its own: Ctrl-C then reaches only this process, which ends the whole group in order.
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    server = subprocess.Popen(
        _command(uri, host, port), env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield server
    except KeyboardInterrupt:
        print("UI stopped", flush=True)
    finally:
        _end(server)


def _end(server: subprocess.Popen) -> None:
    """End the server's whole process group, gently first; a second Ctrl-C must not leave half of it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, number)
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline:
            server.poll()  # reaps the leader, which the group would otherwise still count
            try:
                os.killpg(server.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.05)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end the UI as Ctrl-C does, and give both handlers back in the end."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _check_port(host: str, port: int) -> None:
    if not 0 < port < 65536:
        raise UsageError(f"port {port} is not between 1 and 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise FednewsError(f"cannot serve on {host}:{port}: {reason}; choose another --port or --host") from error


def _wait_until_it_answers(server: subprocess.Popen, host: str, port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise FednewsError(f"the UI did not start (exit code {server.returncode}): see its messages above")
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            opener.open(f"http://{_shown(host)}:{port}/health", timeout=2).close()
            return
        time.sleep(0.2)
    raise FednewsError(f"the UI did not answer within {START_SECONDS} s")


def _shown(host: str) -> str:
    """Name the address at which a browser on this machine finds ``host``."""
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1" if host == "0.0.0.0" else "[::1]"
    return f"[{host}]" if ":" in host else host
