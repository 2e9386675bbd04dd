"""``fednews recommend URL``: a device at the command line, which asks a service over HTTP."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import httpx2
import numpy as np

from fednews.data.store import Store
from fednews.errors import FednewsError, UsageError
from fednews.privacy.private_attention import PrivateAttention
from fednews.serving.budget import BudgetGuard
from fednews.serving.device import DeviceClient, Query
from fednews.serving.service import ModelFiles
from fednews.serving.wire import Deployed, unpack
from fednews.tracking.table import format_table

ACCOUNTS = Path("mlruns") / "devices"
_TIMEOUT = 60.0


class ServiceClient:
    """A service over HTTP.

    Args:
        url: its address.

    Raises:
        UsageError: not an address.
    """

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"'{url}' is not an address: give what 'fednews serve' printed, http://HOST:PORT")
        self.url = url.rstrip("/")
        self._http = httpx2.Client(base_url=self.url, timeout=_TIMEOUT)

    def deployed(self) -> Deployed:
        """Download what a device needs; the same for everybody, so asking for it tells nothing."""
        description = self._asked("GET", "/model").json()
        return unpack(
            ModelFiles(
                description, self._asked("GET", "/model/weights").content, self._asked("GET", "/catalogue").content
            )
        )

    def recommend(self, query: Query, k: int) -> list[dict]:
        """The ``k`` best news for a query."""
        body = {"attention": query.attention.tolist(), "k": k}
        return self._asked("POST", "/recommend", json=body).json()["news"]

    def _asked(self, method: str, path: str, **body) -> httpx2.Response:
        try:
            answer = self._http.request(method, path, **body)
        except httpx2.HTTPError as error:
            raise FednewsError(f"no answer from {self.url}: {error or type(error).__name__}") from error
        if answer.status_code != 200:
            raise FednewsError(f"{self.url}{path} answered {answer.status_code}: {_said(answer)}")
        return answer


@dataclass(frozen=True)
class Recommended:
    """The answer and what it cost.

    Attributes:
        news: best first.
        query: what was sent and spent.
        guard: the device's account.
    """

    news: list[dict]
    query: Query
    guard: BudgetGuard

    def text(self) -> str:
        """A table, and the account below it."""
        rows = [{"rank": rank, **news} for rank, news in enumerate(self.news, 1)]
        guard, query = self.guard, self.query
        spent = (
            f"epsilon of this query: {query.published:.4g} as published, {query.accounted.epsilon:.4g} accounted; "
            f"of all {guard.releases()} together: {query.total.epsilon:.4g} of {guard.epsilon:g} (delta "
            f"{guard.delta:g})"
        )
        return "\n".join([format_table(rows, ("rank", "score", "id", "category", "title")), "", spent])


def recommend(
    url: str, user: str, history: Sequence[str], epsilon: float, k: int, total: float, delta: float, account: Path
) -> Recommended:
    """Ask a service as the device of ``user``.

    The noise is made for the exact sensitivity, so that ``epsilon`` is what holds (more only where one article is
    several times in the history, which padding hides less well).

    Args:
        url: the service's address.
        user: whose device it is; only the device itself uses it.
        history: ids of what the user read, oldest first.
        epsilon: of this query, Laplace noise.
        k: how many news.
        total: accounted epsilon that all queries of the device together may spend.
        delta: at which the total is stated.
        account: file of what was spent.

    Raises:
        BudgetExceeded: the query would spend more than the total; nothing is sent.
        UsageError: k or a setting is out of range.
        FednewsError: the service does not answer as it should.
    """
    guard = BudgetGuard(account, total, delta)
    service = ServiceClient(url)
    deployed = service.deployed()
    if not 1 <= k <= deployed.k_max:  # asked before anything is spent
        raise UsageError(f"--k must be between 1 and {deployed.k_max}, which is the service's limit, not {k}")
    mechanism = PrivateAttention(
        epsilon=epsilon,
        theta=deployed.theta,
        padding=deployed.padding,
        noise="laplace",
        sensitivity="exact",
        basis=len(deployed.model.basis),
    )
    device = DeviceClient(deployed.model, deployed.vectors, history, mechanism, guard, deployed.history_length)
    query = device.query()
    return Recommended(service.recommend(query, k), query, guard)


def account_of(user: str) -> Path:
    """Where the account of ``user`` is kept unless another file is given."""
    return ACCOUNTS / f"{quote(user, safe='')}.json"


def history_from_store(store: str, user: str, split: str) -> list[str]:
    """Ids of the user's latest history in a prepared data set.

    Raises:
        UsageError: no such store, split or user.
    """
    source = Store.open(store)
    behaviors = source.labelled_split(split)
    index = next((row for row, name in enumerate(source.users) if name == user), -1)
    rows = np.flatnonzero(behaviors.user == index)
    if not len(rows):
        raise UsageError(f"{store} has no user '{user}' in its {split} split")
    return [source.news.id[row] for row in behaviors.history[rows[-1]]]


def history_from_file(path: str) -> list[str]:
    """Ids in a text file, one a line, oldest first.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        return Path(path).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the history {path}: {getattr(error, 'strerror', None) or 'not text'}") from None


def _said(answer: httpx2.Response) -> str:
    try:
        return str(answer.json()["error"])
    except (ValueError, KeyError, TypeError):
        return "no explanation"
