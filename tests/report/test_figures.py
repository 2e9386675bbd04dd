import math

import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from fednews.report import figures

INF = math.inf


@pytest.fixture
def axes():
    return Figure().add_subplot()


def test_infinity_stands_clear_of_all_finite_values_and_is_the_last_tick():
    place, ticks, labels = figures.epsilon_scale([0.67, 4e5, INF])
    assert place >= 10 * 4e5
    assert (ticks[-1], labels[-1]) == (place, "∞")
    assert ticks == sorted(ticks)
    assert ticks[0] <= 0.67


@pytest.mark.parametrize(("values", "labels"), [([INF, INF], ["∞"]), ([], []), ([0.0, INF], ["∞"])])
def test_without_finite_values_infinity_is_the_only_tick(values, labels):
    assert figures.epsilon_scale(values)[2] == labels


def test_finite_values_alone_have_no_infinity():
    assert "∞" not in figures.epsilon_scale([1.0, 30.0])[2]


@pytest.mark.parametrize("high", [1.0, 1e3, 1e9, 1e40])
def test_there_are_never_many_ticks(high):
    assert len(figures.epsilon_scale([0.1, high, INF])[1]) <= 9


def frame():
    return pd.DataFrame(
        {
            "method": ["a", "b", "b"],
            "noise": [0.0, 0.1, 0.1],
            "val_auc": [0.6, 0.5, 0.7],
            "epsilon_published": [INF, 2.0, 2.0],
            "epsilon_accounted": [INF, 1e4, 3e4],
        }
    )


def test_both_readings_are_drawn_and_named_with_infinity_at_its_place(axes):
    figures.readings(axes, frame(), "noise", "λ")
    published, accounted = axes.lines[:2]
    place = figures.epsilon_scale([2.0, 3e4, INF])[0]
    assert list(published.get_ydata()) == [place, 2.0]
    assert list(accounted.get_ydata()) == [place, 2e4]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["published", "accounted"]
    assert axes.get_xlabel()
    assert axes.get_ylabel()


def test_a_run_of_the_trade_off_is_joined_from_its_published_to_its_accounted_epsilon(axes):
    figures.trade_off(axes, frame(), "val_auc", "AUC")
    joined = [line.get_xdata().tolist() for line in axes.lines if line.get_linestyle() == "-"]
    assert [2.0, 1e4] in joined
    assert [2.0, 3e4] in joined
    assert len(axes.get_legend().get_texts()) == 2


def test_equal_results_of_two_methods_have_marks_of_their_own(axes):
    twins = frame().assign(method=["a", "b", "c"], val_auc=0.5)
    figures.trade_off(axes, twins, "val_auc", "AUC")
    marks = {line.get_marker() for line in axes.lines} - {"None", ""}
    assert len(marks) == 3


def test_a_curve_is_the_mean_over_seeds_at_every_round(axes):
    history = pd.DataFrame(
        {"method": "a", "seed": [1, 2, 1, 2], "round": [10, 10, 20, 20], "val_auc": [0.5, 0.6, 0.7, 0.9]}
    )
    figures.curves(axes, history, "val_auc", "AUC")
    assert axes.lines[0].get_xdata().tolist() == [10, 20]
    assert axes.lines[0].get_ydata().tolist() == pytest.approx([0.55, 0.8])


def test_stacked_parts_add_up_and_keep_their_colours_from_figure_to_figure(axes):
    parts = pd.DataFrame({"up": [1.0, 2.0], "down": [3.0, 4.0]}, index=["a", "b"])
    figures.stacked_bars(axes, parts, "MB", kinds=["other", "up", "down"])
    ends = [bar.get_x() + bar.get_width() for bar in axes.patches[-2:]]
    assert ends == [4.0, 6.0]
    assert [to_hex(axes.patches[i].get_facecolor()).upper() for i in (0, 2)] == list(figures.PALETTE[1:3])
