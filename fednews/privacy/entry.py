"""What a mechanism declares of one kind of release."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LedgerEntry:
    """One kind of release; equal entries are the same kind, whenever and by whomever they are released.

    Attributes:
        mechanism: name of the mechanism with the paper's equation.
        release: what leaves the client.
        adjacency: which two data sets of a client must be indistinguishable.
        view: ``"local"`` (the server sees each upload) or ``"central"`` (only sums).
        coordinates: numbers released at a time, each with its own independent noise.
        sensitivity: largest change between adjacent data sets, in ``sensitivity_norm``; ``inf`` when unbounded.
        sensitivity_norm: ``"linf"``: of each coordinate; ``"l1"``, ``"l2"``: of all coordinates together; ``"log"``: of
            the logarithm of any output's probability, which is a pure epsilon.
        noise: distribution of the noise on every coordinate, ``"laplace"`` (accounted with ``"linf"`` or ``"l1"``),
            ``"gaussian"`` (with ``"l2"``), ``"randomized_response"`` (with ``"log"``) or ``"none"``.
        noise_scale: its scale, in the unit of the released numbers; the standard deviation of Gaussian noise.
        published_epsilon: what the paper's own formula gives for one release; ``inf`` without noise or bound.
        published_source: citation of that formula and what it covers.
        server_sees: what the server learns beside the noisy release.
        no_guarantee_reason: why no finite epsilon holds, or None when one does.
        times: how often it is released at a time, each with noise of its own.
        present: probability, drawn anew and in secret at every release, that what differs between adjacent data sets
            takes part in it at all (1 minus p of history padding).
        drawn: clients in a round, where whoever sees the release does not know which; 0 where that is known.
        population: how many clients they are drawn from, without replacement.
    """

    mechanism: str
    release: str
    adjacency: str
    view: str
    coordinates: int
    sensitivity: float
    sensitivity_norm: str
    noise: str
    noise_scale: float
    published_epsilon: float
    published_source: str
    server_sees: tuple[str, ...] = ()
    no_guarantee_reason: str | None = None
    times: int = 1
    present: float = 1.0
    drawn: int = 0
    population: int = 0
