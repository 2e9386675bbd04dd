"""A service in a process of its own, and its end."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from fednews.errors import FednewsError, UsageError
from fednews.serving.load import measure
from fednews.serving.serve import serve

from .cases import random_service

CODE = "from fednews.serving.serve import serve; from tests.serving.cases import random_service; "


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_order_with_connections_open(how):
    process = subprocess.Popen(
        [sys.executable, "-c", CODE + "serve(random_service(), port=0)"],
        cwd=Path(__file__).parents[2], env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    url = re.search(r"http://\S+", process.stdout.readline())[0]
    with httpx2.Client(base_url=url, trust_env=False) as http:
        assert http.post("/recommend", json={"attention": [0.2] * 5}).status_code == 200
        process.send_signal(how)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "service stopped\n", "")


def test_where_nothing_can_listen_is_a_clear_error():
    app = random_service()
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(FednewsError, match="address already in use"):
        serve(app, port=taken.getsockname()[1])
    with pytest.raises(FednewsError, match="cannot serve on"):
        serve(app, host="192.0.2.1")  # a network for documentation, RFC 5737
    with pytest.raises(UsageError, match="70000"):
        serve(app, port=70_000)


def test_load_is_measured_without_an_error():
    load = measure(news=2000, dim=16, clients=4, seconds=0.5)
    assert load.errors == 0
    assert load.requests >= 4
    assert load.requests_per_second > 0
    assert 0 < load.median_ms <= load.p99_ms
