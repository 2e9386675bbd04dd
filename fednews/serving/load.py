"""How much the service takes: concurrent clients over loopback against a catalogue of random vectors.

``python -m fednews.serving.load --news 100000 --dim 400 --clients 16 --seconds 10``
"""

import argparse
import asyncio
import json
import multiprocessing
import time
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection

import httpx2
import numpy as np
import psutil
import torch
import uvicorn

from fednews.data.ragged import Strings
from fednews.listening import listen
from fednews.serving.ranking import Listing, Ranker
from fednews.serving.service import create_app

_START_SECONDS = 120
_WARM_UP_SECONDS = 1.0


@dataclass(frozen=True)
class Load:
    """What was measured.

    Attributes:
        requests: answered in the measured time, with whatever status.
        errors: those whose status was not 200, or whose answer had not ``k`` news, or that got none.
        requests_per_second: of all clients together.
        median_ms, p99_ms: of the time from sending to the whole answer, as a client sees it.
        server_cpu_ms: CPU time of the service a request, which other work on the machine changes least.
        clients: that each had one request under way at any time.
        news, dim, basis, k: sizes.
    """

    requests: int
    errors: int
    requests_per_second: float
    median_ms: float
    p99_ms: float
    server_cpu_ms: float
    clients: int
    news: int
    dim: int
    basis: int
    k: int


def measure(
    news: int = 100_000, dim: int = 400, basis: int = 5, k: int = 10, clients: int = 16, seconds: float = 10.0
) -> Load:
    """Start a service of random vectors in a process of its own, and ask it for ``seconds``.

    The clients share one process, so with two cores the service has one of them.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    server = context.Process(target=_serve, args=(there, news, dim, basis, k), daemon=True)
    server.start()
    try:
        if not here.poll(_START_SECONDS):
            raise TimeoutError(f"the service did not start within {_START_SECONDS} s")
        url, process = f"http://127.0.0.1:{here.recv()}", psutil.Process(server.pid)
        latencies, errors, elapsed, cpu = asyncio.run(_ask(url, process, basis, k, clients, seconds))
    finally:
        server.terminate()
        server.join()
    median, p99 = np.percentile(latencies, [50, 99]) * 1000
    count = len(latencies)
    return Load(count, errors, count / elapsed, median, p99, cpu / count * 1000, clients, news, dim, basis, k)


def _serve(ready: Connection, news: int, dim: int, basis: int, k: int) -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    ranker = Ranker(torch.randn(news, dim, generator=generator), torch.randn(basis, dim, generator=generator))
    texts = (
        Strings.from_texts(f"{name} {row}" for row in range(news)) for name in ("news", "a title of news", "topic")
    )
    with listen("127.0.0.1", 0) as sock:
        ready.send(sock.getsockname()[1])
        app = create_app(ranker, Listing(*texts), k_max=max(k, 1))
        uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[sock])


async def _ask(
    url: str, server: psutil.Process, basis: int, k: int, clients: int, seconds: float
) -> tuple[list[float], int, float, float]:
    """Latencies in seconds, errors, the seconds that were measured, and the service's CPU seconds in them."""
    weights = np.random.default_rng(0).dirichlet(np.ones(basis), clients).tolist()
    # One pool, in which each client keeps a connection open; verify=False: setting up TLS, unused here, takes long.
    limits = httpx2.Limits(max_connections=clients, max_keepalive_connections=clients)
    async with httpx2.AsyncClient(base_url=url, timeout=30, trust_env=False, verify=False, limits=limits) as http:

        async def until(end: float) -> list[tuple[float, bool]]:
            found = await asyncio.gather(*(_one(http, own, k, end) for own in weights))
            return [request for client in found for request in client]

        await until(time.perf_counter() + _WARM_UP_SECONDS)
        start, before = time.perf_counter(), server.cpu_times()
        requests = await until(start + seconds)
        elapsed, after = time.perf_counter() - start, server.cpu_times()
    cpu = after.user + after.system - before.user - before.system
    return [latency for latency, _ in requests], sum(failed for _, failed in requests), elapsed, cpu


async def _one(http: httpx2.AsyncClient, weights: list[float], k: int, end: float) -> list[tuple[float, bool]]:
    """Seconds of each request of one client, and whether it failed."""
    found = []
    while (sent := time.perf_counter()) < end:
        try:
            answer = await http.post("/recommend", json={"attention": weights, "k": k})
            failed = answer.status_code != 200 or len(answer.json()["news"]) != k
        except httpx2.HTTPError:
            failed = True
        found.append((time.perf_counter() - sent, failed))
    return found


def main() -> None:
    """Print what was measured as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("news", 100_000), ("dim", 400), ("basis", 5), ("k", 10), ("clients", 16)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--seconds", type=float, default=10.0)
    print(json.dumps({key: round(value, 3) for key, value in asdict(measure(**vars(parser.parse_args()))).items()}))


if __name__ == "__main__":
    main()
