"""The floor of a round: the floating-point operations that its algebra needs.

Each title counts at its true length and each history at its own, each news once per set of parameters. Operations are
counted on the model by ``torch.utils.flop_counter``, one text and one history of each length at a time.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from fednews.data.cohort import Cohort
from fednews.data.features import TOKEN_INPUTS, take_news, trim_tokens
from fednews.federated.algorithms.apfl import APFL
from fednews.federated.algorithms.base import Algorithm
from fednews.federated.algorithms.centralized import Centralized
from fednews.federated.algorithms.cfl import CFL
from fednews.federated.algorithms.ditto import Ditto
from fednews.federated.algorithms.efficient_fedrec import EfficientFedRec
from fednews.federated.algorithms.fedavg import FedAvg
from fednews.federated.algorithms.fednewsrec import FedNewsRec
from fednews.federated.algorithms.fedper import FedPer
from fednews.federated.algorithms.fedprox import FedProx
from fednews.federated.algorithms.finding import Finding
from fednews.federated.algorithms.pfedme import PFedMe
from fednews.federated.algorithms.privaterec import PrivateRec
from fednews.federated.algorithms.scaffold import SCAFFOLD
from fednews.federated.clients import trainable
from fednews.federated.parts import each_client, part_of
from fednews.federated.private_draws import with_history_per_sample
from fednews.models.base import NewsModel


@dataclass(frozen=True)
class Flops:
    """Floating-point operations: of the forward and of the backward pass."""

    forward: int = 0
    backward: int = 0

    def __add__(self, other: "Flops") -> "Flops":
        return Flops(self.forward + other.forward, self.backward + other.backward)

    def __mul__(self, times: int) -> "Flops":
        return Flops(self.forward * times, self.backward * times)

    @property
    def total(self) -> int:
        return self.forward + self.backward


class Floor:
    """Counts what cohorts need of a model; what was counted once for a length is remembered.

    Args:
        model: the recommender.
    """

    def __init__(self, model: NewsModel) -> None:
        self.model = model
        self._parameters = list(trainable(model).values())
        self._news: dict[tuple[int, ...], Flops] = {}
        self._users: dict[int, tuple[Flops, Flops]] = {}

    def round(self, algorithm: Algorithm, cohort: Cohort, separate: bool) -> int:
        """Operations of a round of ``algorithm``; ``separate``: its aggregation needs every update by itself."""
        if isinstance(algorithm, Finding):
            groups = torch.from_numpy(algorithm.grouping.labels)[cohort.clients]
            parts = [part_of(cohort, groups == group) for group in groups.unique().tolist()]
            if not separate:
                return sum(self.cohort(part).total for part in parts)
            return sum(self.cohort(part).forward for part in parts) + self._apart(cohort).backward
        if isinstance(algorithm, EfficientFedRec):  # news are the server's work, histories the clients'
            return self.cohort(cohort).total
        if isinstance(algorithm, PrivateRec):
            return self._private(algorithm, cohort, separate or algorithm.clipped_sum is not None)
        shared, own, together = _gradients(algorithm)
        if together and not separate:
            return self.cohort(cohort).total
        apart = self._apart(cohort)
        return shared * self.cohort(cohort).forward + (own - shared) * apart.forward + own * apart.backward

    def _private(self, algorithm: PrivateRec, cohort: Cohort, apart: bool) -> int:
        """The news that replaces clicks is one more; of users taken as constants nothing is carried back."""
        cohort = with_history_per_sample(cohort) if algorithm.per_sample else cohort
        constant = algorithm.upload == "stop_gradient"
        whole = self.cohort(cohort, constant)
        needed = whole.forward + (self._apart(cohort, constant) if apart else whole).backward
        if algorithm.attention.padding:
            one = self.anonymous()
            needed += one.forward + (0 if constant else one.backward * (len(cohort) if apart else 1))
        return needed

    def _apart(self, cohort: Cohort, constant_users: bool = False) -> Flops:
        return sum((self.cohort(part, constant_users) for part in each_client(cohort)), Flops())

    def cohort(self, cohort: Cohort, constant_users: bool = False) -> Flops:
        """One forward and backward pass at one set of parameters.

        ``constant_users``: a PrivateRecModel's noisy weights are constants to the backward pass.
        """
        news = self.news(cohort.news)
        clicks = cohort.history_mask.sum(1)
        self._shape = self.model.encode_news(trim_tokens({n: c[:1] for n, c in cohort.news.items()})).detach()
        for length in clicks.unique().tolist():
            if length not in self._users:
                self._users[length] = self._user(length, cohort.candidates.shape[1])
        rows = sum((self._users[n][0] for n in clicks.tolist()), Flops())
        scores = sum((self._users[n][1] for n in clicks[cohort.sample_history].tolist()), Flops())
        if constant_users:
            shown = self.news(take_news(cohort.news, cohort.candidates.unique()))
            basis = 2 * self.model.basis.numel() * len(clicks)
            news, rows = Flops(news.forward, shown.backward), Flops(rows.forward, basis)
        return news + rows + scores

    def news(self, news: dict[str, Tensor]) -> Flops:
        """The news encoder alone."""
        texts = [(news[name] != 0).sum(1).tolist() for name in TOKEN_INPUTS if name in news]
        first = {}
        lengths = list(zip(*texts, strict=True)) if texts else [()] * len(next(iter(news.values())))
        for row, key in enumerate(lengths):
            first.setdefault(key, row)
        for key, row in first.items():
            if key not in self._news:
                one = trim_tokens({name: column[row : row + 1] for name, column in news.items()})
                self._news[key] = self._count(lambda one=one: self.model.encode_news(one), [])
        return sum((self._news[key] * times for key, times in Counter(lengths).items()), Flops())

    def anonymous(self) -> Flops:
        """The news that a PrivateRecModel puts in the place of clicks."""
        return self._count(self.model.anonymous_news, [])

    def _user(self, length: int, candidates: int) -> tuple[Flops, Flops]:
        """Of one history with ``length`` clicks, and of scoring one sample with it."""
        trained = any(name in self.model.news_parameters() for name in trainable(self.model))
        click = self._shape.unsqueeze(1)
        history = click.expand(1, max(length, 1), *click.shape[2:]).clone().requires_grad_(trained)
        shown = click.expand(1, candidates, *click.shape[2:]).clone().requires_grad_(trained)
        inputs = [history] if trained else []
        mask, nobody = torch.ones(1, max(length, 1), dtype=torch.bool), torch.zeros(1, dtype=torch.int64)
        encode = self._count(lambda: self.model.encode_user(history, mask, nobody), inputs)
        user = self.model.encode_user(history, mask, nobody).detach().requires_grad_()
        score = self._count(lambda: self.model.score(user, shown), [user, *([shown] if trained else [])])
        return (encode if length else Flops()), score

    def _count(self, run: Callable[[], Tensor], inputs: list[Tensor]) -> Flops:
        with FlopCounterMode(display=False) as forward:
            out = run()
        if not out.requires_grad:
            return Flops(forward.get_total_flops(), 0)
        with FlopCounterMode(display=False) as backward:
            torch.autograd.grad(out.sum(), [*self._parameters, *inputs], allow_unused=True)
        return Flops(forward.get_total_flops(), backward.get_total_flops())


def has_floor(algorithm: Algorithm) -> bool:
    """Whether it is known what the method's algebra needs."""
    return isinstance(algorithm, (Centralized, EfficientFedRec, FedNewsRec, Finding, PrivateRec, *_OWN))


def _gradients(algorithm: Algorithm) -> tuple[int, int, bool]:
    """(whether all clients' first forward is at the same parameters, gradients of a client, whether a sum will do)."""
    own = _OWN.get(type(algorithm))
    gradients = 1 if own is None else own(algorithm)
    shared = 0 if isinstance(algorithm, FedPer | PFedMe | APFL) else 1
    clipped = isinstance(algorithm, FedNewsRec) and not algorithm.releases_plain_sum
    together = gradients == 1 and not clipped and isinstance(algorithm, Centralized | FedAvg | FedNewsRec)
    return shared, gradients, together


_OWN: dict[type[Algorithm], Callable] = {
    APFL: lambda a: 2 * a.local_steps,
    CFL: lambda a: 1,
    Ditto: lambda a: a.local_steps + a.personal_steps,
    FedAvg: lambda a: a.local_steps,
    FedPer: lambda a: a.local_steps,
    FedProx: lambda a: a.local_steps,
    PFedMe: lambda a: a.local_steps * a.inner_steps,
    SCAFFOLD: lambda a: a.local_steps,
}
