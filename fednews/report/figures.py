"""What the notebooks' figures share: one palette, one style, and the plots that several of them draw.

Every function draws on the axes that it is given and names them. Privacy is always drawn in both readings: published
(the paper's own formula) and accounted (what holds for a client's whole upload over all its rounds).
"""

import math
from collections.abc import Iterable, Sequence

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

# Okabe and Ito 2008: told apart with every kind of colour vision.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#F0E442")
READINGS = {"epsilon_published": "published", "epsilon_accounted": "accounted"}
READING_COLOURS = {"epsilon_published": PALETTE[1], "epsilon_accounted": PALETTE[0]}
_MARKERS = "osD^vP*X"
_TICKS = 7
_MARKED = 20  # points of a line beyond which marks would run together


def style() -> None:
    """The style of all figures, for this process."""
    mpl.rcParams.update(
        {
            "axes.prop_cycle": mpl.cycler(color=PALETTE),
            "axes.grid": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "figure.constrained_layout.use": True,
            "figure.figsize": (6.4, 3.8),
            "figure.dpi": 100,
            "font.size": 9,
            "grid.alpha": 0.3,
            "legend.frameon": False,
            "lines.markersize": 5,
        }
    )


def epsilon_scale(epsilons: Iterable[float]) -> tuple[float, list[float], list[str]]:
    """A logarithmic axis for epsilons that may be infinite.

    Returns:
        Where ∞ stands, a power of ten clear of all finite values; ticks; their labels, ∞ last where it occurs.
    """
    given = list(epsilons)
    finite = [value for value in given if 0 < value < math.inf]
    low, high = (math.floor(math.log10(min(finite))), math.ceil(math.log10(max(finite)))) if finite else (0, 0)
    step = max(1, math.ceil((high - low + 1) / _TICKS))
    powers = list(range(low, high + 1, step)) if finite else []
    infinity = high + max(1, step)
    ticks, labels = [10.0**power for power in powers], [f"$10^{{{power}}}$" for power in powers]
    if any(math.isinf(value) for value in given):
        ticks, labels = [*ticks, 10.0**infinity], [*labels, "∞"]
    return 10.0**infinity, ticks, labels


def epsilon_axis(axes: Axes, which: str, ticks: Sequence[float], labels: Sequence[str]) -> None:
    """Draw the ``x`` or ``y`` axis of :func:`epsilon_scale`, with a line at ∞ where it occurs."""
    scale, put, line = (
        (axes.set_yscale, axes.set_yticks, axes.axhline)
        if which == "y"
        else (axes.set_xscale, axes.set_xticks, axes.axvline)
    )
    scale("log")
    put(ticks, labels)
    put([], minor=True)
    if labels and labels[-1] == "∞":
        line(ticks[-1], color="grey", linestyle=":", linewidth=1, zorder=0)


def readings(axes: Axes, frame: pd.DataFrame, x: str, xlabel: str) -> None:
    """Both readings of epsilon over a setting, mean over seeds; infinite ones stand on their own line.

    Args:
        axes: to draw on.
        frame: columns ``x`` and :data:`READINGS`.
        x: column of the setting.
        xlabel: its name and unit.
    """
    infinity, ticks, labels = epsilon_scale(frame[list(READINGS)].to_numpy().ravel())
    for column, name in READINGS.items():
        means = frame.groupby(x)[column].mean().replace(math.inf, infinity)
        axes.plot(means.index, means, "o-", color=READING_COLOURS[column], label=name)
    epsilon_axis(axes, "y", ticks, labels)
    axes.set(xlabel=xlabel, ylabel="ε (largest of any client)")
    axes.legend(title="reading")


def curves(axes: Axes, history: pd.DataFrame, metric: str, ylabel: str) -> None:
    """A metric over rounds, one line for each method: mean over seeds, and their range where there are several.

    Args:
        axes: to draw on.
        history: columns ``method``, ``round`` and the metric.
        metric: its column.
        ylabel: its name and unit.
    """
    for method, rows in history.groupby("method", sort=False):
        spread = rows.groupby("round")[metric].agg(["mean", "min", "max"])
        mark = "o" if len(spread) <= _MARKED else None
        (line,) = axes.plot(spread.index, spread["mean"], marker=mark, label=method)
        axes.fill_between(spread.index, spread["min"], spread["max"], color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set(xlabel="round", ylabel=ylabel)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def trade_off(axes: Axes, frame: pd.DataFrame, metric: str, ylabel: str) -> None:
    """A metric against epsilon: for each run a hollow mark (published) joined to a full one (accounted).

    The longer the line between a run's two marks, the more the published figure leaves out.

    Args:
        axes: to draw on.
        frame: columns ``method``, the metric and :data:`READINGS`.
        metric: its column.
        ylabel: its name and unit.
    """
    infinity, ticks, labels = epsilon_scale(frame[list(READINGS)].to_numpy().ravel())
    placed = frame.replace({column: {math.inf: infinity} for column in READINGS})
    published, accounted = READINGS
    handles = []
    for place, (method, rows) in enumerate(placed.groupby("method", sort=False)):
        # A mark of its own, so that methods with equal results are told apart.
        look = {"color": PALETTE[place % len(PALETTE)], "marker": _MARKERS[place % len(_MARKERS)]}
        for _, row in rows.iterrows():
            axes.plot([row[published], row[accounted]], [row[metric]] * 2, "-", color=look["color"], alpha=0.5)
        axes.plot(rows[published], rows[metric], linestyle="", fillstyle="none", **look)
        axes.plot(rows[accounted], rows[metric], linestyle="", alpha=0.7, **look)
        handles.append(Line2D([], [], linestyle="", label=method, **look))
    epsilon_axis(axes, "x", ticks, labels)
    axes.set(xlabel="ε: published (hollow), accounted (full)", ylabel=ylabel)
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1, 0.5))


def stacked_bars(axes: Axes, parts: pd.DataFrame, xlabel: str, kinds: Sequence[str] = ()) -> None:
    """A cost split into parts: a bar from left to right for each row of ``parts``, a colour for each column.

    Args:
        axes: to draw on.
        parts: all in one unit.
        xlabel: what the cost is, and its unit.
        kinds: columns of several figures in the order of their colours; those of ``parts`` when not given.
    """
    left = np.zeros(len(parts))
    order = list(kinds or parts.columns)
    for column in parts.columns:
        colour = PALETTE[order.index(column) % len(PALETTE)]
        axes.barh(parts.index, parts[column], left=left, color=colour, label=column)
        left = left + parts[column].to_numpy()
    axes.set_xlabel(xlabel)
    axes.set_ylim(len(parts) - 0.5, -0.5)  # in the order of the rows, from above
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
