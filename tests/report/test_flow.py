import json
from xml.etree import ElementTree

import numpy as np

from fednews.federated.groups import Grouping
from fednews.report.flow import flow_figure, group_files, places


def grouping_of(history, groups):
    grouping = Grouping(groups)
    for done, labels in enumerate(history):
        grouping.rounds.append(500 * done)
        grouping.history.append(np.array(labels))
    return grouping


def test_members_of_a_group_stand_together_in_order_of_where_they_end():
    rng = np.random.default_rng(0)
    history = rng.integers(3, size=(4, 50))
    for labels, at in zip(history, places(history, 3), strict=True):
        order = np.argsort(at)
        assert labels[order].tolist() == sorted(labels)
        assert len(set(at)) == 50
        assert at.min() > 0
        assert at.max() < 1
        for group in range(3):
            ends = history[-1][order][labels[order] == group]
            assert ends.tolist() == sorted(ends)
        gaps = np.diff(at[order])[np.diff(labels[order]) > 0]
        assert gaps.min() > 2 * np.diff(at[order])[np.diff(labels[order]) == 0].max()


def test_the_figure_has_a_curve_for_every_client_and_names_for_groups_and_rounds():
    history = np.random.default_rng(0).integers(3, size=(3, 20))
    tree = ElementTree.fromstring(flow_figure(history, [0, 500, 1000], 3))
    space = {"svg": "http://www.w3.org/2000/svg"}
    curves = [path for path in tree.iterfind(".//svg:path", space) if path.get("d", "").count("C ") == 2]
    assert len(curves) == 20
    assert flow_figure(history, [0, 500, 1000], 3, "png").startswith(b"\x89PNG")


def test_the_same_groups_give_the_same_bytes():
    history = np.random.default_rng(0).integers(12, size=(3, 40))
    assert flow_figure(history, [0, 1, 2], 12) == flow_figure(history, [0, 1, 2], 12)


def test_files_hold_every_clients_groups_and_the_moves_between_them():
    files = group_files(grouping_of([[0, 0, 1], [0, 1, 1]], 2), np.random.default_rng(0))
    assert files["groups/groups.csv"].split() == ["client,round_0,round_500", "0,0,0", "1,0,1", "2,1,1"]
    assert json.loads(files["groups/transitions.json"]) == {"rounds": [0, 500], "transitions": [[[1, 1], [0, 1]]]}
    assert files["groups/flow.svg"].startswith(b"<?xml")


def test_one_clustering_has_no_flow_to_draw():
    files = group_files(grouping_of([[0, 1]], 2), np.random.default_rng(0))
    assert sorted(files) == ["groups/groups.csv", "groups/transitions.json"]


def test_the_figure_shows_four_hundred_clients_at_most():
    labels = np.random.default_rng(0).integers(2, size=(2, 500))
    tree = ElementTree.fromstring(group_files(grouping_of(labels, 2), np.random.default_rng(1))["groups/flow.svg"])
    curves = [path for path in tree.iter("{http://www.w3.org/2000/svg}path") if path.get("d", "").count("C ") == 1]
    assert len(curves) == 400
