"""A tracked run served by a real process on loopback, asked by the command line and by many clients at once."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import numpy as np
import pytest
from fastapi.testclient import TestClient

from fednews.cli import main
from fednews.config import parse
from fednews.experiment import Result, restore, train
from fednews.serving.run import app_of
from fednews.tracking.lookup import metric_history, read_artifact
from fednews.tracking.store import connect

EXPERIMENT = """
name: tests
seed: 3
data: {{store: {store}, history_length: 10}}
model:
  class_path: PrivateRecModel
  init_args:
    basis: 3
    base: {{class_path: NRMS, init_args: {{word_dim: 8, heads: 2, head_dim: 4, query_dim: 5}}}}
algorithm: {{class_path: PrivateRec, init_args: {{clients_per_round: 5, padding: 0.3}}}}
optimizer: {{class_path: torch.optim.Adam, init_args: {{lr: 0.01}}}}
trainer: {{max_steps: 2, val_check_interval: 2, accelerator: cpu, enable_progress_bar: false}}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory, synthetic_store) -> Path:
    folder = tmp_path_factory.mktemp("place")
    (folder / "exp.yaml").write_text(EXPERIMENT.format(store=synthetic_store.path))
    return folder


@pytest.fixture(autouse=True)
def inside(place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="module")
def run(place) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        return train(parse(["--config", "exp.yaml"]))


@pytest.fixture(scope="module")
def service(place, run) -> Iterator[str]:
    environment = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-m", "fednews.cli", "serve", run.run_id, "--port", "0", "--demo", "--k-max", "20"],
        cwd=place, env={**environment, "OMP_NUM_THREADS": "1", "PYTHONPATH": root}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    line = process.stdout.readline()
    address = re.fullmatch(r"fednews service: (http://127\.0\.0\.1:\d+) \(Ctrl-C ends it\)\n", line)
    assert address, line + process.communicate()[1]
    yield address[1]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "service stopped\n", "")


@pytest.fixture
def http(service) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=service, trust_env=False) as client:
        yield client


def user_of(http: httpx2.Client) -> str:
    return http.get("/demo/users").json()["users"][0]


def test_a_request_is_answered_from_the_whole_catalogue(http, synthetic_store):
    assert http.get("/health").json() == {
        "status": "ok", "news": len(synthetic_store.category), "basis": 3, "k_max": 20,
    }  # fmt: skip
    found = http.post("/recommend", json={"attention": [0.2, 0.5, 0.3], "k": 20}).json()["news"]
    assert len({news["id"] for news in found} & set(synthetic_store.news.id)) == 20


def test_concurrent_clients_each_get_their_own_answer(http, service):
    weights = np.random.default_rng(0).dirichlet([1, 1, 1], 40).tolist()
    alone = [http.post("/recommend", json={"attention": own, "k": 5}).json() for own in weights]

    async def together() -> list:
        async with httpx2.AsyncClient(base_url=service, trust_env=False) as client:
            asked = [client.post("/recommend", json={"attention": own, "k": 5}) for own in weights * 3]
            return [answer.json() for answer in await asyncio.gather(*asked)]

    assert asyncio.run(together()) == alone * 3


def test_broken_requests_leave_the_service_working(http, service):
    host, port = service.removeprefix("http://").split(":")
    head = b"POST /recommend HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n"
    for sent in (b"", b"garbage\r\n\r\n", head + b'{"atten', b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 5000):
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(sent)
    assert http.post("/recommend", content=b"[" * 100_000, headers={"Content-Type": "application/json"}).is_client_error
    assert http.get("/health").json()["status"] == "ok"


def test_the_command_line_device_asks_until_its_budget_is_spent(http, service, synthetic_store, capsys):
    user = user_of(http)
    asked = ["recommend", service, "--user", user, "--store", str(synthetic_store.path), "--k", "4"]
    asked += ["--epsilon", "1", "--total-epsilon", "2.9", "--total-delta", "0"]
    for number in (1, 2):
        assert main(asked) == 0
        out = capsys.readouterr().out
        assert len([line for line in out.splitlines() if re.match(r" +[1-4] ", line)]) == 4
        assert f"of all {number} together" in out
    assert main(asked) == 1
    err = capsys.readouterr().err
    assert "query refused, nothing was sent" in err
    assert len(err.splitlines()) == 1
    assert json.loads(Path("mlruns/devices", f"{user}.json").read_text())["releases"][0]["count"] == 2


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--user", "nobody", "--store", "{store}"], 2, "no user 'nobody'"),
        (["--user", "x", "--history", "none.txt"], 2, "cannot read the history none.txt"),
        (["--user", "x", "--history", "own.txt"], 2, "'N-unknown', which is not in the catalogue"),
        (["--user", "{user}", "--store", "{store}", "--k", "21"], 2, "--k must be between 1 and 20"),
        (["--user", "{user}", "--store", "{store}", "--epsilon", "0"], 2, "epsilon must be above 0"),
    ],
)
def test_a_device_that_cannot_ask_says_why_in_one_line(http, service, synthetic_store, capsys, options, code, message):
    Path("own.txt").write_text("N-unknown\n")
    names = {"store": synthetic_store.path, "user": user_of(http)}
    given = [option.format(**names) for option in options]
    assert main(["recommend", service, *given, "--account", "other.json"]) == code
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1
    assert not Path("other.json").exists(), "nothing was spent"


def test_a_service_that_is_not_there_is_one_line(capsys, synthetic_store):
    Path("own.txt").write_text("")
    assert main(["recommend", "http://127.0.0.1:9", "--user", "x", "--history", "own.txt"]) == 1
    assert "no answer from http://127.0.0.1:9" in capsys.readouterr().err


def test_the_page_says_that_it_plays_the_device_and_shows_both_rankings(http):
    page = http.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "This page plays the device" in page.text
    assert not re.search(r"(src|href)=.https?:", page.text), "the page asks nobody else"
    found = http.get("/demo/rank", params={"user": user_of(http), "epsilon": 5, "k": 6}).json()
    assert len(found["clean"]["news"]) == len(found["private"]["news"]) == 6
    assert found["epsilon_published"] == pytest.approx(5)
    assert found["epsilon_accounted"] > 5
    assert found["clean"]["attention"] != found["private"]["attention"]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"user": "nobody"}, 404),
        ({}, 422),
        ({"user": "x", "epsilon": "nan"}, 422),
        ({"user": "x", "epsilon": "-1"}, 422),
        ({"user": "x", "epsilon": "1e9"}, 422),
        ({"user": "x", "k": "0"}, 422),
    ],
)
def test_the_demonstration_refuses_nonsense_in_json(http, query, status):
    answer = http.get("/demo/rank", params=query)
    assert (answer.status_code, set(answer.json())) == (status, {"error"})


def test_without_demo_no_history_can_be_seen(run):
    client = TestClient(app_of(restore(connect(), run.run_id), k_max=20, demo=False))
    assert client.get("/demo/users").status_code == 404
    assert client.get("/").json()["page"] == "start it with --demo for a page"
    assert client.get("/model").json()["private_attention"] == {"padding": 0.3, "theta": 1.0}


def test_serving_tables_are_recorded_with_the_run(run, capsys):
    arguments = ["evaluate", run.run_id, "--serving.epsilon", "10", "inf", "--serving.padding", "0"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert [line.split()[:2] for line in out.splitlines()[3:7]] == [
        ["privaterec", "10.0000"], ["privaterec", "∞"], ["vanilla", "10.0000"], ["vanilla", "∞"],
    ]  # fmt: skip
    client = connect()
    assert metric_history(client, run.run_id, "dev_privaterec_eps10_epsilon_accounted")[2] == pytest.approx(20)
    assert metric_history(client, run.run_id, "dev_vanilla_epsinf_skew")[2] == pytest.approx(0, abs=1e-3)
    report = json.loads(read_artifact(client, run.run_id, "serving/dev.json"))
    assert report["options"]["padding"] == 0
    assert len(report["rows"]) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--serving.epsilon", "0"], "--serving.epsilon must be above 0"),
        (
            ["--serving.epsilon", "1", "--serving.noise", "laplace", "--serving.delta", "0.1"],
            "Laplace noise has no delta",
        ),
        (["--serving.epsilon", "1", "--serving.padding", "1"], "padding is a probability below 1"),
        (["--serving.epsilon", "1", "--serving.theta", "0"], "theta must be above 0"),
        (["--serving.epsilon", "1", "--split", "nope"], "nope"),
    ],
)
def test_wrong_serving_options_are_one_line(run, capsys, options, message):
    assert main(["evaluate", run.run_id, *options]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1


def test_serving_options_without_a_budget_are_refused(run, capsys):
    assert main(["evaluate", run.run_id, "--serving.noise", "laplace"]) == 2
    assert "--serving.noise needs --serving.epsilon" in capsys.readouterr().err


def test_models_without_basis_vectors_can_be_evaluated_but_not_served(capsys):
    plain = ["--config", "exp.yaml", "--algorithm", "FedAvg", "--algorithm.clients_per_round", "5"]
    result = train(parse([*plain, "--model", "NRMS", "--model.heads", "2"]))
    assert main(["serve", result.run_id]) == 2
    assert "NRMS has no basis vectors" in capsys.readouterr().err
    assert main(["evaluate", result.run_id, "--serving.epsilon", "10"]) == 0
    assert "privaterec" not in capsys.readouterr().out
    assert main(["evaluate", result.run_id, "--serving.epsilon", "10", "--serving.mechanism", "privaterec"]) == 2
    assert "needs PrivateRec" in capsys.readouterr().err
