"""Running a recorded run again, and saying whether the two agree."""

import functools
import json
import math
import pickle
import struct
import tempfile
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from fednews.errors import FednewsError, UsageError
from fednews.tracking.lookup import (
    download_artifact,
    has_artifact,
    metric_history,
    pauses,
    read_artifact,
    resolve_run,
    search,
)
from fednews.tracking.provenance import UNKNOWN, collect
from fednews.tracking.store import clear_errors, connect

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from fednews.experiment import Result

RTOL, ATOL = 1e-4, 1e-5
TIMINGS = ("_seconds", "_per_second")
CHECKPOINT = "checkpoints/last.ckpt"
SHOWN = 5
LIMIT = 1000
MACHINE = {
    "python": "Python version",
    "platform": "platform",
    "cpu": "processor",
    "torch_threads": "number of torch threads",
    "device": "device",
}


def rerun(run_id: str, check: bool = False) -> "Result":
    """Train again from the recorded configuration of the run ``run_id`` (a unique prefix is enough).

    What differs from then (data, code, packages, machine) is printed, and refuses nothing. The new run is
    linked to the old one by its tag ``fednews.rerun_of``. A sweep's trial of several seeds is rerun seed by seed,
    and the last result returned.

    Args:
        run_id: the run to repeat.
        check: also compare the two runs: bit for bit when both recorded the same kind of machine, device,
            number of threads and packages, else within ``RTOL`` and ``ATOL``.

    Raises:
        UsageError: no such run, or a sweep.
        FednewsError: with ``check``, the runs disagree; or training failed.
    """
    from fednews import experiment

    client = connect()
    found = resolve_run(client, run_id)
    old = found.info.run_id
    if "fednews.sweep" in found.data.tags:
        raise UsageError(f"run {old[:8]} is a sweep: `fednews sweep` goes on with it, and its trials can be rerun")
    if "fednews.trial" in found.data.tags and (seeds := search(client, f"tags.`mlflow.parentRunId` = '{old}'", LIMIT)):
        return [rerun(run.info.run_id, check) for run in reversed(seeds)][-1]
    config = experiment.load_config(recorded_config(client, old))
    train = functools.partial(experiment.train, config, rerun_of=old)
    return repeat(client, old, train, experiment.data_fingerprint(config), check)


def repeat(
    client: "MlflowClient", old: str, train: Callable[[], "Result"], fingerprint_now: str, check: bool
) -> "Result":
    """Say what differs, call ``train``, and with ``check`` compare its run with ``old``; see ``rerun``."""
    different = differences(client, old, fingerprint_now)
    for line in different:
        print(f"differs from run {old[:8]}: {line}", flush=True)
    if not different:
        print(f"data, code, packages and machine are as run {old[:8]} recorded them", flush=True)
    result = train()
    if check:
        exact = _same_machine(client, old, result.run_id)
        found = compare_runs(client, old, result.run_id, exact)
        how = "bit for bit" if exact else f"within rtol {RTOL:g}, atol {ATOL:g}"
        if found:
            more = f" (and {len(found) - SHOWN} more)" if len(found) > SHOWN else ""
            raise FednewsError(
                f"run {result.run_id[:8]} does not repeat run {old[:8]} {how}: {'; '.join(found[:SHOWN])}{more}"
            )
        print(f"run {result.run_id[:8]} repeats run {old[:8]} {how}: metrics and final weights agree", flush=True)
    return result


def recorded_config(client: "MlflowClient", run_id: str) -> str:
    """Read the text of the run's ``config.yaml``."""
    return read_artifact(client, run_id, "config.yaml")


def differences(client: "MlflowClient", run_id: str, fingerprint_now: str) -> list[str]:
    """Say in sentences what is not as the run recorded it: data, code, packages, machine."""
    with clear_errors(client.tracking_uri):
        tags = client.get_run(run_id).data.tags
    then = _provenance(client, run_id)
    now = collect().record()
    found = []
    if tags.get("fednews.fingerprint") != fingerprint_now:
        found.append(f"the data: fingerprint {fingerprint_now}, then {tags.get('fednews.fingerprint', UNKNOWN)}")
    if times := int(tags.get("fednews.resumed", 0)):
        found.append(f"the run was interrupted and resumed {times} time{'s' * (times > 1)}")
    return found + _code(then, now) + _packages(then, now) + _machine(then, now)


def _provenance(client: "MlflowClient", run_id: str) -> dict[str, Any]:
    return json.loads(read_artifact(client, run_id, "provenance/provenance.json"))


def _same_machine(client: "MlflowClient", a: str, b: str) -> bool:
    """Whether equal bits can be asked for."""
    one, two = _provenance(client, a), _provenance(client, b)
    return not (_packages(one, two) or _machine(one, two))


def compare_runs(client: "MlflowClient", a: str, b: str, exact: bool) -> list[str]:
    """Say in sentences where two runs disagree: metrics at every step, and the final weights.

    Metrics that end in ``_seconds`` or ``_per_second`` are timings and left out, and so is what was logged after a
    run's end (`fednews evaluate`). The weights are the ``state_dict``
    of the artifact ``checkpoints/last.ckpt``. Not exact means |x − y| ≤ 1e-5 + 1e-4·|y|; exact means equal bits.
    """
    return _compare_metrics(client, a, b, exact) + _compare_weights(client, a, b, exact)


def _code(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    if UNKNOWN in (then["commit"], now["commit"]):
        return ["the code cannot be compared: " + ("then" if then["commit"] == UNKNOWN else "now") + " no git checkout"]
    if then["commit"] != now["commit"]:
        return [f"the code: commit {now['commit'][:12]}, then {then['commit'][:12]}"]
    if then["diff_sha256"] != now["diff_sha256"]:
        return ["the code: other uncommitted changes (the old ones are in provenance/working_tree.diff)"]
    if then["untracked"] != now["untracked"]:
        changed = sorted(set(then["untracked"]) ^ set(now["untracked"]))
        return [f"files that git does not track came or went: {', '.join(changed[:SHOWN])}"]
    return []


def _packages(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    old, new = then["packages"], now["packages"]
    names = sorted({*old, *new})
    return [
        f"the package {name}: {new.get(name, 'not recorded')}, then {old.get(name, 'not recorded')}"
        for name in names
        if old.get(name) != new.get(name)
    ]


def _machine(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [f"the {words}: {now[key]}, then {then[key]}" for key, words in MACHINE.items() if then[key] != now[key]]


def _compare_metrics(client: "MlflowClient", a: str, b: str, exact: bool) -> list[str]:
    one, two = _histories(client, a), _histories(client, b)
    found = [f"metric {key} is only in run {a[:8]}" for key in sorted(one.keys() - two.keys())]
    found += [f"metric {key} is only in run {b[:8]}" for key in sorted(two.keys() - one.keys())]
    for key in sorted(one.keys() & two.keys()):
        found += _compare_history(key, one[key], two[key], exact)
    return found


def _histories(client: "MlflowClient", run_id: str) -> dict[str, dict[int, float]]:
    """Collect the metrics that the run itself logged: `fednews evaluate` adds some while it does not run."""
    with clear_errors(client.tracking_uri):
        run = client.get_run(run_id)
    idle = [*pauses(run), *([(run.info.end_time, math.inf)] if run.info.end_time is not None else [])]
    keys = [key for key in run.data.metrics if not key.endswith(TIMINGS)]
    histories = {key: metric_history(client, run_id, key, idle) for key in keys}
    return {key: history for key, history in histories.items() if history}


def _compare_history(key: str, a: Mapping[int, float], b: Mapping[int, float], exact: bool) -> list[str]:
    if a.keys() != b.keys():
        step = min(a.keys() ^ b.keys())
        return [f"metric {key} has {len(a)} and {len(b)} values (only one has step {step})"]
    for step in sorted(a):
        if not _same_number(a[step], b[step], exact):
            return [f"metric {key} at step {step}: {a[step]!r} and {b[step]!r}"]
    return []


def _same_number(x: float, y: float, exact: bool) -> bool:
    if math.isnan(x) or math.isnan(y):
        return math.isnan(x) and math.isnan(y)
    if exact:
        return struct.pack("d", x) == struct.pack("d", y)
    return x == y or abs(x - y) <= ATOL + RTOL * abs(y)


def _compare_weights(client: "MlflowClient", a: str, b: str, exact: bool) -> list[str]:
    states = [_final_weights(client, run) for run in (a, b)]
    absent = [run for run, state in zip((a, b), states, strict=True) if state is None]
    if absent:
        return [f"run {run[:8]} has no final weights ({CHECKPOINT})" for run in absent]
    one, two = states
    found = [f"weight {name} is in one run only" for name in sorted(one.keys() ^ two.keys())]
    for name in sorted(one.keys() & two.keys()):
        found += _compare_values(name, one[name], two[name], exact)
    return found


def _compare_values(name: str, x: Any, y: Any, exact: bool) -> list[str]:
    if not (isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)):
        return [] if type(x) is type(y) and x == y else [f"weight {name} is not equal"]
    if x.shape != y.shape or x.dtype != y.dtype:
        return [f"weight {name}: {x.dtype} {list(x.shape)} and {y.dtype} {list(y.shape)}"]
    if _bits(x).equal(_bits(y)):
        return []
    if not exact and torch.allclose(x, y, rtol=RTOL, atol=ATOL, equal_nan=True):
        return []
    largest = (x.double() - y.double()).abs().nan_to_num(math.inf).max().item()
    return [f"weight {name} differs by up to {largest:.3g}"]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _final_weights(client: "MlflowClient", run_id: str) -> dict[str, Any] | None:
    if not has_artifact(client, run_id, CHECKPOINT):
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = download_artifact(client, run_id, CHECKPOINT, folder)
        try:
            return torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
        except pickle.UnpicklingError:
            # An algorithm's state may hold more than tensors; --resume trusts the same file as much.
            return torch.load(path, map_location="cpu", weights_only=False)["state_dict"]
