"""MLflow's own user interface, on the store that fednews uses."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

from fednews.errors import FednewsError
from fednews.listening import check_port, shown_host, terminable
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
    check_port(host, port)
    with terminable(), _server(uri, host, port) as server:
        _wait_until_it_answers(server, host, port)
        print(f"MLflow UI: http://{shown_host(host)}:{port} (Ctrl-C ends it)", flush=True)
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


def _wait_until_it_answers(server: subprocess.Popen, host: str, port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise FednewsError(f"the UI did not start (exit code {server.returncode}): see its messages above")
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            opener.open(f"http://{shown_host(host)}:{port}/health", timeout=2).close()
            return
        time.sleep(0.2)
    raise FednewsError(f"the UI did not answer within {START_SECONDS} s")
