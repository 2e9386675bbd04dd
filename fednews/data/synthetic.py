"""Synthetic clicks in MIND's file format, with the truth that generated them. Never to be presented as real.

``synthetic_model.py`` says how clicks come about.
"""

import dataclasses
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

from fednews.data.aside import check_target, written_aside
from fednews.data.mind import MindReader
from fednews.data.synthetic_model import DAYS, DEV_DAY, Block, Catalogue, Settings, simulate
from fednews.errors import UsageError
from fednews.evaluation.metrics import METRICS, RankingSums

_DATES = [f"01/{day:02}/2001" for day in range(1, DAYS + 1)]  # a Monday to a Sunday long before the project
_TRUTH = "truth.json"
_GROUPS = "groups.tsv"
_ADDED = ("history", "kinship", "groups", "group_strength", "group_visibility")  # not in the first version's truth.json
_README = """SYNTHETIC DATA, made by 'fednews data synthesize'. No person and no article in it is real.
The files have the format of the MIND data set; truth.json holds the settings that generated them and
the best metrics that any model can reach on the dev split. Never present results on it as results on real clicks.
"""


@dataclass(frozen=True)
class Truth:
    """What is known about a synthetic data set because it was generated.

    Attributes:
        settings: the generating ``Settings``.
        counts: users, cold users, news and impressions of each split.
        best_possible: dev ``auc``, ``mrr``, ``ndcg_5``, ``ndcg_10`` of ranking by the true logits.
        without_interest: the same of ranking by popularity and recency alone, as one who knows no user would.
    """

    settings: Settings
    counts: dict[str, int]
    best_possible: dict[str, float]
    without_interest: dict[str, float]

    def to_json(self) -> str:
        """Return the text of ``truth.json``, the same for the same settings in every version."""
        written = {"synthetic": True, **dataclasses.asdict(self)}
        for field in dataclasses.fields(Settings):
            if field.name in _ADDED and getattr(self.settings, field.name) == field.default:
                del written["settings"][field.name]
        return json.dumps(written, indent=1) + "\n"

    def summary(self) -> str:
        """Say in a few lines what was made and what can be reached on it."""
        counts, best = self.counts, self.best_possible
        metrics = ", ".join(f"{name} {value:.4f}" for name, value in best.items())
        return (
            f"synthetic data, seed {self.settings.seed}: {counts['users']:,} users, "
            f"{counts['cold_users']:,} of them in dev only, {counts['news']:,} news, "
            f"{counts['train']:,} train and {counts['dev']:,} dev impressions\n{self._groups()}"
            f"best possible on dev: {metrics}\n"
            f"without knowing any user: auc {self.without_interest['auc']:.4f}; a random ranking: auc 0.5000"
        )

    def _groups(self) -> str:
        groups = self.settings.groups
        return f"{groups} hidden groups of users; {_GROUPS} says who is of which\n" if groups > 1 else ""

    @classmethod
    def read(cls, folder: str | Path) -> "Truth":
        """Read the truth of the synthetic data in ``folder``.

        Raises:
            UsageError: there is no ``truth.json``, or not one of this version.
        """
        path = Path(folder) / _TRUTH
        try:
            written = json.loads(path.read_text())
            written.pop("synthetic")
            return cls(**{**written, "settings": Settings(**written["settings"])})
        except FileNotFoundError:
            raise UsageError(f"{folder} is not synthetic data: it has no {_TRUTH}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{path} is damaged or of another version: make the data again") from error


class SyntheticReader(MindReader):
    """Reads what `synthesize` wrote, as ``MindReader`` does, under a name that does not pass for real data.

    Raises:
        UsageError: the folder is not synthetic data.
    """

    name = "synthetic"

    def __init__(self, root: Path | str) -> None:
        Truth.read(root)
        super().__init__(root)


def best_possible(root: str | Path) -> dict[str, float] | None:
    """Give the best dev metrics that any model can reach, ``None`` where nothing below ``root`` is synthetic data.

    Raises:
        UsageError: its ``truth.json`` is damaged or of another version.
    """
    truth = next(Path(root).rglob(_TRUTH), None)
    return Truth.read(truth.parent).best_possible if truth else None


def user_groups(root: str | Path) -> dict[str, int] | None:
    """Give the hidden group of every user by its id, ``None`` where the data below ``root`` have no groups.

    Raises:
        UsageError: its ``groups.tsv`` is damaged.
    """
    path = next(Path(root).rglob(_GROUPS), None)
    if path is None:
        return None
    try:
        lines = (line.split("\t") for line in path.read_text().splitlines())
        return {user: int(group) for user, group in lines}
    except ValueError:
        raise UsageError(f"{path} is damaged: make the data again") from None


def synthesize(
    out: str | Path, users: int, news: int, seed: int = 0, overwrite: bool = False, **settings: float
) -> Truth:
    """Write ``train/`` and ``dev/`` with MIND's ``news.tsv`` and ``behaviors.tsv``, and ``truth.json``.

    With several hidden groups, ``groups.tsv`` says which user is of which.

    Memory does not grow with the number of users. Written aside and renamed, so ``out`` is never half there.

    Args:
        out: folder to make.
        users: how many.
        news: how many.
        seed: the same arguments give the same bytes.
        overwrite: replace synthetic data that is already there.
        settings: any other field of ``Settings``.

    Raises:
        UsageError: a setting is out of range, or ``out`` exists and may not be replaced.
    """
    known = {field.name for field in dataclasses.fields(Settings)}
    if unknown := settings.keys() - known:
        raise UsageError(f"unknown setting {sorted(unknown)[0]}: the settings are {', '.join(sorted(known))}")
    chosen = Settings(users, news, seed, **settings)
    out = Path(out)
    check_target(out, "synthetic data", _TRUTH, overwrite)
    with written_aside(out) as aside:
        truth = _write(chosen, aside)
    return truth


def _write(settings: Settings, folder: Path) -> Truth:
    catalogue = Catalogue(settings)
    ids = np.array([f"N{number}" for number in range(1, len(catalogue) + 1)], object)
    labelled = np.stack([ids + "-0", ids + "-1"], axis=1).ravel()
    best, impersonal = RankingSums(), RankingSums()
    counts = {"users": settings.users, "cold_users": 0, "news": len(catalogue), "train": 0, "dev": 0}
    seen_in_dev = np.zeros(len(catalogue), bool)
    with ExitStack() as stack:
        files = {split: stack.enter_context(_open(folder / split / "behaviors.tsv")) for split in ("train", "dev")}
        groups = stack.enter_context(_open(folder / _GROUPS)) if settings.groups > 1 else None
        for block in simulate(settings, catalogue):
            if groups:
                groups.writelines(f"U{user}\t{group}\n" for user, group in enumerate(block.group, block.first_user + 1))
            for split, file in files.items():
                file.writelines(_lines(block, split, counts[split] + 1, ids, labelled))
                counts[split] += len(block.impressions[split])
            counts["cold_users"] += int(block.cold.sum())
            dev = block.impressions["dev"]
            seen_in_dev[dev.candidates.values] = True
            seen_in_dev[block.history["dev"].take(dev.user).values] = True
            best += RankingSums.of(dev.logits, dev.labels, dev.candidates.offsets)
            impersonal += RankingSums.of(dev.impersonal, dev.labels, dev.candidates.offsets)
    for split in ("train", "dev"):
        if not counts[split]:
            raise UsageError(f"no {split} impression was drawn: take more users or impressions_per_user")
    _write_news(catalogue, folder, seen_in_dev)
    truth = Truth(settings, counts, _means(best), _means(impersonal))
    (folder / _TRUTH).write_text(truth.to_json())
    (folder / "README.txt").write_text(_README)
    return truth


def _means(sums: RankingSums) -> dict[str, float]:
    means = sums.means()
    return {name: means[name] for name in METRICS}


def _open(path: Path) -> TextIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("w", encoding="utf-8", newline="\n")


def _write_news(catalogue: Catalogue, folder: Path, seen_in_dev: np.ndarray) -> None:
    """List what was published before the dev day in train, and what the dev split shows or is new in dev."""
    old = catalogue.published < DEV_DAY
    with (
        (folder / "train" / "news.tsv").open("w", encoding="utf-8", newline="\n") as train,
        (folder / "dev" / "news.tsv").open("w", encoding="utf-8", newline="\n") as dev,
    ):
        for line, in_train, in_dev in zip(catalogue.rows(), old, seen_in_dev | ~old, strict=True):
            if in_train:
                train.write(line)
            if in_dev:
                dev.write(line)


def _lines(block: Block, split: str, number: int, ids: np.ndarray, labelled: np.ndarray) -> Iterator[str]:
    shown, history = block.impressions[split], block.history[split]
    tokens = labelled[2 * shown.candidates.values + shown.labels].tolist()
    read = ids[history.values].tolist()
    starts, read_starts = shown.candidates.offsets.tolist(), history.offsets.tolist()
    times = [_time(second) for second in shown.seconds.tolist()]
    for row, user in enumerate(shown.user.tolist()):
        past = " ".join(read[read_starts[user] : read_starts[user + 1]])
        impression = " ".join(tokens[starts[row] : starts[row + 1]])
        yield f"{number + row}\tU{block.first_user + user + 1}\t{times[row]}\t{past}\t{impression}\n"


def _time(seconds: int) -> str:
    """MIND's time format, whose hours have no leading zero."""
    day, second = divmod(seconds, 86_400)
    hour, second = divmod(second, 3600)
    return f"{_DATES[day]} {hour % 12 or 12}:{second // 60:02}:{second % 60:02} {'AP'[hour // 12]}M"
