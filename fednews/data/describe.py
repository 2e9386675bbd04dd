"""The counts of a paper's data table, taken from a prepared store."""

from collections.abc import Iterator

import numpy as np

from fednews.data.ragged import Ragged
from fednews.data.store import Store
from fednews.data.tables import TRAIN, Behaviors

_CHUNK = 10_000_000

_ROWS = {  # key, how the table names it, format
    "users": ("users", "{:,}"),
    "cold_users": ("cold users (not in train)", "{:,}"),
    "news": ("news", "{:,}"),
    "new_news": ("news not in train", "{:,}"),
    "impressions": ("impressions", "{:,}"),
    "unlabelled_impressions": ("unlabelled impressions", "{:,}"),
    "positive": ("positive behaviours", "{:,}"),
    "negative": ("negative behaviours", "{:,}"),
    "mean_candidates": ("candidates per impression", "{:.2f}"),
    "mean_title_words": ("words per title", "{:.2f}"),
    "mean_history": ("history length", "{:.2f}"),
    "empty_history": ("empty histories", "{:.1%}"),
}


def describe(store: Store) -> dict:
    """Count what a store holds, chunk by chunk over its memory-mapped arrays.

    Returns:
        ``name``, ``fingerprint``, ``options``, ``best_possible`` (dev metrics of synthetic data, else ``None``),
        ``training`` (``clients`` with a sample, their ``samples``, and ``dropped_samples``: clicks whose impression
        has no non-clicked candidate), ``problems`` (what the reader tolerated) and ``problem_examples``, and
        ``splits``: for each split and for ``"total"`` a dict with ``users``; ``cold_users`` who are not in the train
        split; ``news`` that are in a history or among candidates (total: all articles); ``new_news``, those of them
        that are not so in the train split; ``impressions`` and how many of them are unlabelled
        (``unlabelled_impressions``); ``positive`` and ``negative`` candidates with a label; ``mean_candidates`` per
        impression; ``mean_title_words`` over those news; ``mean_history`` length and share of ``empty_history`` over
        impressions. A mean over nothing is ``None``.
    """
    users = {name: _seen(behaviors.user, len(store.users)) for name, behaviors in store.splits.items()}
    news = {name: _news_seen(behaviors, len(store.news)) for name, behaviors in store.splits.items()}
    title_words = store.title_tokens.lengths()
    sums = {name: _sums(behaviors) for name, behaviors in store.splits.items()}
    sums["total"] = {key: sum(part[key] for part in sums.values()) for key in sums[TRAIN]}
    users["total"] = np.ones(len(store.users), bool)
    news["total"] = np.ones(len(store.news), bool)
    return {
        "name": store.name,
        "fingerprint": store.fingerprint,
        "options": store.meta["options"],
        "best_possible": store.meta.get("best_possible"),
        "splits": {
            name: {
                "users": int(users[name].sum()),
                "cold_users": int((users[name] & ~users[TRAIN]).sum()),
                "news": int(news[name].sum()),
                "new_news": int((news[name] & ~news[TRAIN]).sum()),
                **_means(part, title_words[news[name]]),
            }
            for name, part in sums.items()
        },
        "training": {key: store.meta[key] for key in ("clients", "samples", "dropped_samples")},
        "problems": store.meta["problems"],
        "problem_examples": store.meta["problem_examples"],
    }


def format_description(description: dict) -> str:
    """Lay `describe` out as a table, a column per split and one for the total, then the reader's problems."""
    splits = description["splits"]
    lines = [["", *splits]]
    for key, (title, style) in _ROWS.items():
        values = [part[key] for part in splits.values()]
        lines.append([title, *("-" if value is None else style.format(value) for value in values)])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    table = [
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    ]
    title = f"{description['name']}, fingerprint {description['fingerprint']}"
    return "\n".join(
        [
            title,
            "",
            *table,
            *_training(description["training"]),
            *_ceiling(description["best_possible"]),
            *_problems(description),
        ]
    )


def _training(counts: dict[str, int]) -> list[str]:
    line = (
        "training: {samples:,} samples of {clients:,} clients; {dropped_samples:,} clicks without a non-click dropped"
    )
    return ["", line.format(**counts)]


def _ceiling(best: dict[str, float] | None) -> list[str]:
    if not best:
        return []
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in best.items())
    return ["", f"synthetic data; the best that any model can reach on dev: {metrics}"]


def _problems(description: dict) -> list[str]:
    examples = description["problem_examples"]
    found = [f"  {kind}: {count:,}, first at {examples[kind]}" for kind, count in description["problems"].items()]
    return ["", "tolerated while reading:", *found] if found else []


def _sums(behaviors: Behaviors) -> dict[str, int]:
    labels = behaviors.labels
    positive = 0 if labels is None else sum(int(np.count_nonzero(part)) for part in _chunks(labels))
    history = behaviors.history.lengths()
    return {
        "impressions": len(behaviors),
        "unlabelled_impressions": len(behaviors) if labels is None else 0,
        "positive": positive,
        "negative": 0 if labels is None else len(labels) - positive,
        "candidates": _size(behaviors.candidates),
        "history": int(history.sum()),
        "without_history": int(np.count_nonzero(history == 0)),
    }


def _means(sums: dict[str, int], title_words: np.ndarray) -> dict:
    rows = sums["impressions"]
    counts = {key: sums[key] for key in ("impressions", "unlabelled_impressions", "positive", "negative")}
    return {
        **counts,
        "mean_candidates": sums["candidates"] / rows if rows else None,
        "mean_title_words": float(title_words.mean()) if len(title_words) else None,
        "mean_history": sums["history"] / rows if rows else None,
        "empty_history": sums["without_history"] / rows if rows else None,
    }


def _news_seen(behaviors: Behaviors, size: int) -> np.ndarray:
    return _seen(behaviors.history.values, size) | _seen(behaviors.candidates.values, size)


def _seen(values: np.ndarray, size: int) -> np.ndarray:
    seen = np.zeros(size, bool)
    for part in _chunks(values):
        seen[part] = True
    return seen


def _chunks(values: np.ndarray) -> Iterator[np.ndarray]:
    return (values[start : start + _CHUNK] for start in range(0, len(values), _CHUNK))


def _size(ragged: Ragged) -> int:
    return int(ragged.offsets[-1])
