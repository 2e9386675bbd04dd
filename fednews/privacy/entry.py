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
        sensitivity_norm: ``"linf"``: of each coordinate; ``"l2"``: Euclidean, of all coordinates together.
        noise: distribution of the noise on every coordinate, ``"laplace"`` (accounted with ``"linf"``), ``"gaussian"``
            (with ``"l2"``) or ``"none"``.
        noise_scale: its scale, in the unit of the released numbers; the standard deviation of Gaussian noise.
        published_epsilon: what the paper's own formula gives for one release; ``inf`` without noise or bound.
        published_source: citation of that formula and what it covers.
        server_sees: what the server learns beside the noisy release.
        no_guarantee_reason: why no finite epsilon holds, or None when one does.
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
