"""What every client has spent, in each reading of epsilon.

Mechanisms write entries, the ledger counts how often each client released each of them, and the accounting turns one
client's counts into an epsilon. Budgets are never added across clients: a figure is the maximum over clients.
"""

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from fednews.errors import FednewsError
from fednews.privacy.accounting import DEFAULT_DELTA, Accounted, epsilon_of
from fednews.privacy.entry import LedgerEntry

READINGS = ("published", "accounted")
SCOPES = ("round", "total")

_KNOWN_SAMPLING = (
    "Composed over the rounds that a client really took part in; the server knows them, so sampling amplifies nothing."
)
_SECRET_SAMPLING = (
    "Entries with drawn and population count every round for every client, amplified by sampling: they hold for those "
    "who do not know which clients were drawn, and not for the server."
)
ASSUMPTIONS = (
    "Noise is treated as real-valued: attacks on floating-point rounding (Mironov 2012) are outside the figure.",
    "Only the entries listed are accounted: data that a run uses for choosing settings or rounds is not.",
)


class PrivacyLedger:
    """Participations of every client in every kind of release.

    Memory is 4 bytes per client and distinct entry; recording costs in proportion to the cohort.

    Args:
        n_clients: size of the population; clients are indices below it.
    """

    def __init__(self, n_clients: int) -> None:
        self.n_clients = n_clients
        self.entries: list[LedgerEntry] = []
        self._counts: list[np.ndarray] = []
        self._round = -1
        self._rounds = 0
        self._released: dict[int, np.ndarray] = {}  # entry -> clients, of the current round
        self._patterns: set[tuple[int, ...]] = set()  # entries that one client released in one round
        self._front = np.zeros((0, 0), np.int32)  # counts [clients, entries] that no other client's counts exceed

    def record(self, entry: LedgerEntry, clients: np.ndarray, round_index: int) -> None:
        """Record that each of ``clients`` released ``entry`` in round ``round_index``.

        Args:
            entry: the release.
            clients: int ``[cohort]`` client indices, no client twice. Those who dropped out before the upload released
                nothing and do not belong here.
            round_index: the round, never smaller than one recorded before.

        Raises:
            FednewsError: a client stands twice in the round's cohort or is outside the population, or rounds go
                backwards (a resumed run that replays rounds).
        """
        clients = self._checked(np.asarray(clients), round_index)
        index = self._index(entry)
        if round_index > self._round:
            self._round, self._rounds, self._released = round_index, self._rounds + 1, {}
        cohort = np.concatenate([self._released.get(index, np.zeros(0, np.int64)), clients])
        _refuse_duplicates(cohort, round_index)
        self._released[index] = cohort
        self._counts[index][clients] += 1
        self._patterns.update(self._patterns_of_round())
        self._front = _undominated(np.concatenate([self._front, self._counts_of(clients)]))

    def participations(self, entry: LedgerEntry) -> np.ndarray:
        """How often each client released ``entry``: int32 ``[n_clients]``."""
        return self._counts[self.entries.index(entry)].copy()

    def epsilon(self, reading: str, scope: str, delta: float = DEFAULT_DELTA) -> float:
        """Return the largest epsilon of any client; ``inf`` where nothing holds, 0 before the first release.

        Cached by content: a round that raises no client's count above the maximum costs nothing.

        Args:
            reading: ``"published"`` (the paper's formula, which is not composed over rounds, so both scopes agree) or
                ``"accounted"``.
            scope: ``"round"`` (the dearest single round so far) or ``"total"`` (all rounds so far).
            delta: of the accounted reading.
        """
        if reading not in READINGS or scope not in SCOPES:
            raise ValueError(f"reading must be one of {READINGS} and scope one of {SCOPES}, not {reading!r}, {scope!r}")
        return self._published() if reading == "published" else self._accounted(scope, delta)[0].epsilon

    def report(self, delta: float = DEFAULT_DELTA) -> dict[str, Any]:
        """Everything a reader needs to judge the figures, as JSON-serialisable values (infinity is ``"inf"``)."""
        return {
            "clients": self.n_clients,
            "rounds": self._rounds,
            "delta": delta,
            "maximum_over": "clients; budgets of different clients are never added",
            "readings": {
                "published": self._published_report(),
                "accounted": {scope: self._accounted_report(scope, delta) for scope in SCOPES},
                "audited": {"round": None, "total": None, "reason": "not run: needs an attack on this run"},
            },
            "entries": [self._entry_report(index, delta) for index in range(len(self.entries))],
            "server_sees": sorted({seen for entry in self.entries for seen in entry.server_sees}),
            "assumptions": [*self._sampling(), *ASSUMPTIONS],
        }

    def _sampling(self) -> list[str]:
        kinds = sorted({bool(entry.drawn) for entry in self.entries})
        return [_SECRET_SAMPLING if secret else _KNOWN_SAMPLING for secret in kinds]

    def state_dict(self) -> dict[str, Any]:
        """Everything, as tensors and plain values that ``torch.load(weights_only=True)`` accepts."""
        return {
            "n_clients": self.n_clients,
            "entries": [asdict(entry) for entry in self.entries],
            "counts": [torch.from_numpy(counts.copy()) for counts in self._counts],
            "round": self._round,
            "rounds": self._rounds,
            "released": {index: torch.from_numpy(clients) for index, clients in self._released.items()},
            "patterns": sorted(self._patterns),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken.

        Raises:
            FednewsError: the state is of another population.
        """
        if state["n_clients"] != self.n_clients:
            raise FednewsError(
                f"the checkpoint's privacy ledger has {state['n_clients']} clients and this data {self.n_clients}: "
                "resume with the data set that the run started with"
            )
        self.entries = [LedgerEntry(**{**e, "server_sees": tuple(e["server_sees"])}) for e in state["entries"]]
        self._counts = [counts.numpy().copy() for counts in state["counts"]]
        self._round, self._rounds = state["round"], state["rounds"]
        self._released = {index: clients.numpy().copy() for index, clients in state["released"].items()}
        self._patterns = {tuple(pattern) for pattern in state["patterns"]}
        self._front = _undominated(self._counts_of(np.arange(self.n_clients)))

    def _checked(self, clients: np.ndarray, round_index: int) -> np.ndarray:
        if round_index < self._round:
            raise FednewsError(
                f"round {round_index} would be recorded after round {self._round}: rounds are being replayed; "
                "resume with the round counter of the checkpoint"
            )
        clients = clients.astype(np.int64, casting="safe") if clients.size else np.zeros(0, np.int64)
        outside = clients[(clients < 0) | (clients >= self.n_clients)]
        if outside.size:
            raise FednewsError(f"client {outside[0]} is outside the ledger's population of {self.n_clients}")
        _refuse_duplicates(clients, round_index)
        return clients

    def _index(self, entry: LedgerEntry) -> int:
        if entry not in self.entries:
            self.entries.append(entry)
            self._counts.append(np.zeros(self.n_clients, np.int32))
            self._front = np.pad(self._front, ((0, 0), (0, 1)))
        return self.entries.index(entry)

    def _counts_of(self, clients: np.ndarray) -> np.ndarray:
        """Distinct counts ``[<= clients, entries]`` among ``clients``, without clients that released nothing."""
        if not self._counts:
            return np.zeros((0, 0), np.int32)
        counts = np.stack([counts[clients] for counts in self._counts], axis=1)
        return np.unique(counts[counts.any(axis=1)], axis=0)

    def _patterns_of_round(self) -> set[tuple[int, ...]]:
        clients = np.unique(np.concatenate(list(self._released.values())))
        indices = sorted(self._released)
        member = np.stack([np.isin(clients, self._released[index]) for index in indices], axis=1)
        return {tuple(indices[i] for i in np.flatnonzero(row)) for row in np.unique(member, axis=0)}

    def _published(self) -> float:
        return max((self._published_of(pattern) for pattern in self._patterns), default=0.0)

    def _published_of(self, pattern: tuple[int, ...]) -> float:
        return sum(self.entries[index].published_epsilon for index in pattern)

    def _accounted(self, scope: str, delta: float) -> tuple[Accounted, tuple[int, ...]]:
        """Find the worst client's figure and its counts per entry (of one round or of all)."""
        size = len(self.entries)
        if scope == "total":
            counts = [tuple(int(c) for c in row) for row in self._front]
        else:
            counts = [tuple(int(i in pattern) for i in range(size)) for pattern in sorted(self._patterns)]
        figures = [(self._compose(row, delta), row) for row in counts or [(0,) * size]]
        return max(figures, key=lambda figure: figure[0].epsilon)

    def _compose(self, counts: tuple[int, ...], delta: float) -> Accounted:
        return epsilon_of(tuple(zip(self.entries, counts, strict=True)), delta)

    def _published_report(self) -> dict[str, Any]:
        sources = sorted({entry.published_source for entry in self.entries})
        reasons = [entry.no_guarantee_reason for entry in self.entries if math.isinf(entry.published_epsilon)]
        figure = {"epsilon": _number(self._published()), "source": sources, "reason": next(iter(reasons), None)}
        note = "the paper does not compose over rounds, so the total is the figure of a single round"
        return {"round": figure, "total": {**figure, "note": note}}

    def _accounted_report(self, scope: str, delta: float) -> dict[str, Any]:
        figure, counts = self._accounted(scope, delta)
        report = {**asdict(figure), "epsilon": _number(figure.epsilon)}
        if scope == "total":
            worst = np.flatnonzero(np.all([c == n for c, n in zip(self._counts, counts, strict=True)], axis=0))
            report["client"] = int(worst[0]) if self._patterns else None
            report["participations"] = list(counts)
        return report

    def _entry_report(self, index: int, delta: float) -> dict[str, Any]:
        entry, counts = asdict(self.entries[index]), self._counts[index]
        taking_part = counts[counts > 0]
        numbers = {key: _number(value) for key, value in entry.items() if isinstance(value, float)}
        participations = {
            "clients": len(taking_part),
            "max": int(counts.max(initial=0)),
            "mean": float(taking_part.mean()) if len(taking_part) else 0.0,
        }
        # One kind of release may be covered where the run is not, such as noisy user vectors beside plain gradients.
        alone = epsilon_of(((self.entries[index], int(counts.max(initial=0))),), delta)
        return {
            **entry,
            **numbers,
            "server_sees": list(entry["server_sees"]),
            "participations": participations,
            "accounted_alone": {**asdict(alone), "epsilon": _number(alone.epsilon)},
        }


def _number(value: float) -> float | str:
    return "inf" if math.isinf(value) else value


def _refuse_duplicates(clients: np.ndarray, round_index: int) -> None:
    values, times = np.unique(clients, return_counts=True)
    if np.any(times > 1):
        raise FednewsError(
            f"client {values[times > 1][0]} stands twice in the cohort of round {round_index}: a client's epsilon "
            "assumes one upload a round; draw cohorts without replacement"
        )


def _undominated(rows: np.ndarray) -> np.ndarray:
    """Rows that no other row reaches or exceeds in every column: the worst client is always among them."""
    remaining = np.unique(rows, axis=0)[::-1]  # a row can only be exceeded by one that sorts before it
    kept = []
    while len(remaining):
        kept.append(remaining[0])
        remaining = remaining[~np.all(remaining <= remaining[0], axis=1)]
    return np.stack(kept) if kept else rows[:0]
