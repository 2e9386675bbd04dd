"""How clients move between groups from one clustering to the next, as tables and as a figure (FINDING Fig. 6)."""

import io
import json
from itertools import pairwise

import numpy as np

from fednews.federated.groups import Grouping, transition_matrix

_CLIENTS = 400
_BREAK = 0.03  # of the figure's width, between groups


def group_files(grouping: Grouping, rng: np.random.Generator) -> dict[str, str | bytes]:
    """Files for a run, by name: groups of all clients, transition matrices, and the figure of some clients' flow.

    Args:
        grouping: the groups after each clustering.
        rng: draws the clients of the figure.
    """
    header = ",".join(["client", *(f"round_{number}" for number in grouping.rounds)])
    rows = np.column_stack([np.arange(len(grouping.labels)), *grouping.history])
    table = io.StringIO()
    np.savetxt(table, rows, fmt="%d", delimiter=",", header=header, comments="")
    matrices = [transition_matrix(old, new, grouping.groups).tolist() for old, new in pairwise(grouping.history)]
    files = {
        "groups/groups.csv": table.getvalue(),
        "groups/transitions.json": json.dumps({"rounds": grouping.rounds, "transitions": matrices}),
    }
    if matrices:
        chosen = np.sort(rng.choice(len(rows), min(_CLIENTS, len(rows)), replace=False))
        figure = flow_figure(np.stack(grouping.history)[:, chosen], grouping.rounds, grouping.groups)
        files["groups/flow.svg"] = figure
    return files


def places(history: np.ndarray, groups: int) -> np.ndarray:
    """Where each client stands at each clustering, float ``[clusterings, clients]`` between 0 and 1.

    Members of a group stand together, in order of the group that they end in, then of those before and after, so that
    lines of one colour make bands. Groups stand in order, with a gap after each.

    Args:
        history: int ``[clusterings, clients]``, the groups.
        groups: how many groups.
    """
    clusterings, clients = history.shape
    out = np.empty(history.shape)
    for row, labels in enumerate(history):
        near = (history[max(row - 1, 0)], history[min(row + 1, clusterings - 1)])
        order = np.lexsort((*near, history[-1], labels))
        rank = np.empty(clients)
        rank[order] = np.arange(clients)
        out[row] = (rank + 0.5) / clients * (1 - _BREAK * (groups - 1)) + _BREAK * labels
    return out


def flow_figure(history: np.ndarray, rounds: list[int], groups: int, format_: str = "svg") -> bytes:
    """One line for each client, from top to bottom through its groups, coloured by the group where it ends.

    Args:
        history: int ``[clusterings, clients]``, the groups.
        rounds: rounds done at each clustering.
        groups: how many groups.
        format_: of the picture, ``svg`` or ``png``.
    """
    from matplotlib import colormaps, rc_context
    from matplotlib.collections import PathCollection
    from matplotlib.figure import Figure

    clusterings, clients = history.shape
    at = places(history, groups)
    palette = colormaps["tab10" if groups <= 10 else "turbo"]
    colours = palette(history[-1] if groups <= 10 else history[-1] / (groups - 1))

    # No date and no random names of elements: the same run gives the same bytes.
    with rc_context({"svg.hashsalt": "fednews", "font.size": 9}):
        figure = Figure(figsize=(8, 0.8 + 0.7 * clusterings), layout="constrained")
        axes = figure.add_subplot()
        width = max(0.5, 300 / clients)
        lines = PathCollection(_curves(at), facecolors="none", edgecolors=colours, linewidths=width, alpha=0.6)
        axes.add_collection(lines)
        axes.set(xlim=(0, 1), ylim=(clusterings - 1, 0), yticks=range(clusterings))
        axes.set_yticklabels([f"R{number}" for number in rounds])
        axes.tick_params(length=0)
        for side, row in (("top", 0), ("bottom", -1)):
            _name_groups(axes.secondary_xaxis(side), at[row], history[row], groups)
        axes.set_xticks([])
        axes.spines[:].set_visible(False)
        picture = io.BytesIO()
        figure.savefig(picture, format=format_, dpi=150, metadata={"Date": None} if format_ == "svg" else None)
    return picture.getvalue()


def _curves(at: np.ndarray) -> list:
    """Each client's line as cubic Bézier curves that pass every clustering vertically."""
    from matplotlib.path import Path

    steps, clients = at.shape[0] - 1, at.shape[1]
    start = np.stack([at[0], np.zeros(clients)], axis=-1)[:, None]
    x = np.stack([at[:-1], at[1:], at[1:]], axis=-1)  # of two control points and the end
    y = np.arange(steps)[:, None] + np.array([0.5, 0.5, 1.0])
    curves = np.stack([x, np.broadcast_to(y[:, None], x.shape)], axis=-1).transpose(1, 0, 2, 3)
    points = np.concatenate([start, curves.reshape(clients, 3 * steps, 2)], axis=1)
    codes = [Path.MOVETO] + [Path.CURVE4] * (3 * steps)
    return [Path(line, codes) for line in points]


def _name_groups(axis, at: np.ndarray, labels: np.ndarray, groups: int) -> None:
    present = [group for group in range(groups) if (labels == group).any()]
    axis.set_xticks([at[labels == group].mean() for group in present], [f"G{group}" for group in present])
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
