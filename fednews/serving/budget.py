"""What a device may still give away: the account of its own releases, kept on disk."""

import json
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path

from filelock import FileLock

from fednews.errors import FednewsError, UsageError
from fednews.privacy.accounting import Accounted, epsilon_of
from fednews.privacy.entry import LedgerEntry

Releases = tuple[tuple[LedgerEntry, int], ...]


class BudgetExceeded(FednewsError):
    """The release would spend more than the device's total."""


class BudgetGuard:
    """Refuses a release that would take a device's accounted total above its budget.

    Releases are written down before they are made: a crash between the two costs budget and reveals nothing. The
    account is the accounted reading (never the published one), composed over all releases so far.

    Args:
        path: file of the account, made at the first release; one for each person, whichever servers are asked.
        epsilon: total that all releases together may spend; ``inf`` only keeps the account.
        delta: at which the total is stated.

    Raises:
        UsageError: epsilon or delta out of range.
    """

    def __init__(self, path: str | Path, epsilon: float, delta: float) -> None:
        if not epsilon > 0:
            raise UsageError(f"the total epsilon must be above 0, not {epsilon}")
        if not 0 <= delta < 1:
            raise UsageError(f"the total delta must be at least 0 and below 1, not {delta}")
        self.path = Path(path)
        self.epsilon = epsilon
        self.delta = delta

    def spent(self) -> Accounted:
        """What all releases so far guarantee together."""
        with self._locked():
            return epsilon_of(self._read(), self.delta)

    def releases(self) -> int:
        """How many there were."""
        with self._locked():
            return sum(count for _, count in self._read())

    def spend(self, entry: LedgerEntry) -> Accounted:
        """Write down one release of ``entry`` that is about to be made; returns what all releases then guarantee.

        Raises:
            BudgetExceeded: it would spend more than the total; nothing is written down.
            FednewsError: the account cannot be read; it is never taken for an empty one.
        """
        with self._locked():
            counts = dict(self._read())
            before = epsilon_of(tuple(counts.items()), self.delta)
            counts[entry] = counts.get(entry, 0) + 1
            after = epsilon_of(tuple(counts.items()), self.delta)
            if after.epsilon > self.epsilon:
                raise BudgetExceeded(self._refusal(before, after))
            self._write(tuple(counts.items()))
            return after

    def _refusal(self, before: Accounted, after: Accounted) -> str:
        after_text = f"{after.epsilon:.4g}" if math.isfinite(after.epsilon) else f"∞ ({after.reason})"
        return (
            f"query refused, nothing was sent: it would bring the accounted epsilon from {before.epsilon:.4g} to "
            f"{after_text}, above the total of {self.epsilon:g} at delta {self.delta:g} ({self.path})"
        )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time: two queries must not both see the account as it was before."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self.path}.lock"):
            yield

    def _read(self) -> Releases:
        if not self.path.exists():
            return ()
        try:
            return tuple(_release(row) for row in json.loads(self.path.read_text(encoding="utf-8"))["releases"])
        except (ValueError, KeyError, TypeError):
            raise FednewsError(
                f"the privacy account {self.path} is damaged: what was spent is not known, so nothing more is sent"
            ) from None

    def _write(self, releases: Releases) -> None:
        rows = [{"count": count, "entry": asdict(entry)} for entry, count in releases]
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=self.path.parent, prefix=self.path.name, delete=False
        ) as new:
            json.dump({"releases": rows}, new, indent=1)
            new.flush()
            os.fsync(new.fileno())
        os.replace(new.name, self.path)


def _release(row: dict) -> tuple[LedgerEntry, int]:
    known = {field.name for field in fields(LedgerEntry)}
    entry, count = row["entry"], row["count"]
    if not isinstance(count, int) or count < 1 or not set(entry) <= known:
        raise ValueError
    return LedgerEntry(**{**entry, "server_sees": tuple(entry["server_sees"])}), count
