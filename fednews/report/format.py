"""A table's numbers as Markdown and LaTeX: mean and standard deviation over seeds, t-tests, published values."""

import numpy as np
import pandas as pd
from scipy import stats

from fednews.report.matrix import Table

Values = dict[tuple[str, str], list[list[float]]]
_SHARES = ("auc", "mrr", "ndcg_5", "ndcg_10")


def markdown(table: Table, found: Values, commits: set[str]) -> str:
    """The table in Markdown, one block for each data set, and one for each published data set."""
    frames = _frames(table, found)
    parts = (f"{name}\n\n{frame.to_markdown(disable_numparse=True)}" for name, frame in frames)
    blocks = [f"**{table.title}**", *parts]
    return "\n\n".join([*blocks, _caption(table, commits)])


def latex(table: Table, found: Values, commits: set[str]) -> str:
    """The table in LaTeX (package booktabs), one tabular for each data set, and one for each published data set."""
    blocks = [
        frame.style.to_latex(caption=f"{table.title}: {name}", hrules=True, convert_css=False).replace("±", r"$\pm$")
        for name, frame in _frames(table, found)
    ]
    return "\n".join([*blocks, f"% {_caption(table, commits)}"])


def _frames(table: Table, found: Values) -> list[tuple[str, pd.DataFrame]]:
    ours = [(f"{column} (measured here)", _measured(table, found, column)) for column in table.data]
    theirs = [
        (f"{name} (as published, {table.source})", _published(table, rows)) for name, rows in table.published.items()
    ]
    return [*ours, *theirs]


def _published(table: Table, rows: dict[str, list[float | str | None]]) -> pd.DataFrame:
    """Shares are published times 100."""
    cells = {
        method: [_stated(x, name) for x, name in zip(values, table.metrics, strict=True)]
        for method, values in rows.items()
    }
    return pd.DataFrame.from_dict(cells, orient="index", columns=table.metrics)


def _measured(table: Table, found: Values, column: str) -> pd.DataFrame:
    rows = {}
    for method in table.methods:
        if (runs := found.get((method, column))) is None:
            continue
        cells = [_spread([run[i] for run in runs], name) for i, name in enumerate(table.metrics)]
        row = dict(zip(table.metrics, cells, strict=True)) | {"seeds": f"{len(runs)}/{len(table.seeds)}"}
        if table.compare:
            row[f"p ({table.compare} better)"] = _p_value(table, found, column, method)
        rows[method] = row
    return pd.DataFrame.from_dict(rows, orient="index")


def _spread(values: list[float], metric: str) -> str:
    """Mean ± sample standard deviation; shares of one are shown times 100, as the papers print them."""
    if not values:
        return "-"
    numbers = np.array(values) * (100 if _is_share(metric) else 1)
    form = _form(metric)
    mean = form.format(numbers.mean()) if np.isfinite(numbers).all() else "∞" if np.isinf(numbers).any() else "-"
    if len(numbers) < 2 or not np.isfinite(numbers).all():
        return mean
    return f"{mean} ± {form.format(numbers.std(ddof=1))}"


def _stated(value: float | str | None, metric: str) -> str:
    """What a paper prints, which may be a word or nothing."""
    return value if isinstance(value, str) else "-" if value is None else _form(metric).format(value)


def _is_share(metric: str) -> bool:
    return metric.split("_", 1)[-1] in _SHARES


def _form(metric: str) -> str:
    return "{:.2f}" if _is_share(metric) else "{:.4g}"


def _p_value(table: Table, found: Values, column: str, method: str) -> str:
    """Welch's one-sided t-test on the first metric, over seeds."""
    ours, other = ([run[0] for run in found.get((name, column), [])] for name in (table.compare, method))
    if method == table.compare or min(len(ours), len(other)) < 2:
        return "-"
    return f"{stats.ttest_ind(ours, other, equal_var=False, alternative='greater').pvalue:.3f}"


def _caption(table: Table, commits: set[str]) -> str:
    tested = f" p: Welch's one-sided t-test over seeds on {table.metrics[0]}." if table.compare else ""
    made = (
        f" Runs of commit {', '.join(sorted(commits))}." if commits else " No run yet: `fednews reproduce` makes them."
    )
    return (
        f"Mean ± standard deviation over seeds {', '.join(map(str, table.seeds))}; ranking metrics × 100.{tested}{made}"
    )
