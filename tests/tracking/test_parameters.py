import math
from pathlib import Path

import pytest
import yaml

from fednews.tracking.parameters import VALUE_LIMIT, flatten


def test_parts_appear_by_short_class_name_with_their_arguments_below():
    config = {
        "algorithm": {"class_path": "fednews.federated.algorithms.FedNewsRec", "init_args": {"clip": 0.005}},
        "data": {"store": Path("stores/mind"), "negatives": 4},
    }
    assert flatten(config) == {
        "algorithm": "FedNewsRec",
        "algorithm.clip": "0.005",
        "data.store": "stores/mind",
        "data.negatives": "4",
    }


def test_parts_nest_in_parts_and_in_lists():
    inner = {"class_path": "a.b.Inner", "init_args": {"x": 1}}
    config = {"outer": {"class_path": "a.Outer", "init_args": {"inner": inner, "many": [inner, "plain"]}}}
    assert flatten(config) == {
        "outer": "Outer",
        "outer.inner": "Inner",
        "outer.inner.x": "1",
        "outer.many.0": "Inner",
        "outer.many.0.x": "1",
        "outer.many.1": "plain",
    }


def test_a_part_without_arguments_is_its_name_alone():
    assert flatten({"a": {"class_path": "x.Y"}, "b": {"class_path": "x.Z", "init_args": {}}}) == {"a": "Y", "b": "Z"}


@pytest.mark.parametrize("value", [None, True, 3, 0.015, 1.5e300, "word", [1, 2], [], {}, math.inf, -math.inf])
def test_values_read_back_as_they_were(value):
    assert yaml.safe_load(flatten({"key": value})["key"]) == value


def test_a_long_value_is_cut_to_what_mlflow_takes_and_says_so():
    cut = flatten({"exact": "x" * VALUE_LIMIT, "long": "é" * (VALUE_LIMIT + 1)})
    assert cut["exact"] == "x" * VALUE_LIMIT
    assert len(cut["long"]) == VALUE_LIMIT
    assert "config.yaml" in cut["long"]


def test_names_hold_only_what_mlflow_accepts():
    assert list(flatten({"layers": {"a@b(c)": 1}})) == ["layers.a_b_c_"]
