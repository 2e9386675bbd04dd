import json
import os
import signal
import socket
import urllib.request

import psutil
import pytest

from fednews.errors import FednewsError, UsageError
from fednews.tracking.store import experiment_id
from fednews.tracking.ui import serve_ui

from .conftest import start_ui


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(url: str, body: dict | None = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=30) as answer:
        return answer.read()


def test_the_ui_serves_the_store_and_ctrl_c_leaves_no_process(client, tmp_path):
    experiment_id(client, "seen in the UI")
    process, uri = start_ui(tmp_path)
    children = psutil.Process(process.pid).children(recursive=True)
    assert 1 <= len(children) <= 2
    assert ask(f"{uri}/health") == b"OK"
    found = ask(f"{uri}/api/2.0/mlflow/experiments/search", {"max_results": 10})
    assert "seen in the UI" in {experiment["name"] for experiment in json.loads(found)["experiments"]}
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 0
    assert process.stdout.read() == "UI stopped\n"
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


def test_a_port_in_use_is_a_clear_error(client):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(FednewsError, match=f"127.0.0.1:{port}: address already in use"):
            serve_ui("127.0.0.1", port)


def test_an_address_of_another_machine_is_a_clear_error(client):
    with pytest.raises(FednewsError, match="cannot serve on"):
        serve_ui("192.0.2.1", free_port())  # a network for documentation, RFC 5737


def test_a_port_out_of_range_is_a_usage_error(client):
    with pytest.raises(UsageError, match="70000"):
        serve_ui("127.0.0.1", 70_000)


def test_a_tracking_server_is_named_instead_of_served(server, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    before = psutil.Process(os.getpid()).children()
    serve_ui("127.0.0.1", free_port())
    assert psutil.Process(os.getpid()).children() == before
    assert server in capsys.readouterr().out
