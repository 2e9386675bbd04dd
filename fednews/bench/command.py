"""``fednews bench``: parse, measure, print."""

import argparse
import json

from fednews.bench.rounds import bench_rounds
from fednews.bench.secagg import bench_secagg
from fednews.config import parse
from fednews.errors import UsageError


def bench_command(options: argparse.Namespace) -> str:
    """What ``fednews bench`` prints: figures as lines ``name value``, or JSON.

    Raises:
        UsageError: a count below 1, or a configuration that :func:`fednews.config.parse` refuses.
    """
    if options.rest[:1] == ["secagg"]:
        figures = _secagg(options.rest[1:])
    else:
        for name in ("rounds", "reference_samples", "eval_impressions"):
            if getattr(options, name) < 1:
                raise UsageError(f"--{name.replace('_', '-')} must be at least 1")
        figures = bench_rounds(
            parse(options.rest), options.rounds, options.clock, options.reference_samples, options.eval_impressions
        )
    return json.dumps(figures, indent=2) if options.format == "json" else "\n".join(_lines(figures))


def _secagg(arguments: list[str]) -> dict[str, object]:
    parser = argparse.ArgumentParser(prog="fednews bench secagg", description=bench_secagg.__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--length", type=int, default=1_000_000, help="elements of each client's vector")
    parser.add_argument("--corrupt", type=float, default=0.1, help="of the sparse graph: colluding fraction")
    parser.add_argument("--dropout", type=float, default=0.1, help="of the sparse graph: fraction that drops out")
    return bench_secagg(**vars(parser.parse_args(arguments)))


def _lines(figures: dict[str, object], prefix: str = "") -> list[str]:
    lines = []
    for name, value in figures.items():
        if isinstance(value, dict):
            lines += _lines(value, f"{prefix}{name}.")
        else:
            lines.append(f"{prefix + name:32} {_shown(value)}")
    return lines


def _shown(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
