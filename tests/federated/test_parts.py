from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from fednews.federated.parts import each_client, part_of


@pytest.mark.parametrize("chosen", [[0], [2, 5, 6], [1, 3, 4, 7, 8]])
def test_a_part_of_a_cohort_is_the_cohort_of_that_part(cohorts, chosen):
    draw = cohorts.of_clients(cohorts.draw_clients(9, 0), 0)
    kept = torch.zeros(9, dtype=torch.bool)
    kept[chosen] = True
    assert_same(part_of(cohorts.cohort(draw), kept), cohorts.cohort(draw.of_clients(np.array(chosen))))


def test_every_client_is_a_cohort_of_its_own(cohorts):
    """But for columns of padding on the left."""
    draw = cohorts.of_clients(cohorts.draw_clients(9, 0), 0)
    whole, seen = cohorts.cohort(draw), 0
    for client, part in enumerate(each_client(whole)):
        expected = cohorts.cohort(draw.of_clients(np.array([client])))
        width = expected.history.shape[1]
        assert part.history.shape[1] == whole.history.shape[1]
        assert not part.history_mask[:, : whole.history.shape[1] - width].any()
        narrow = {name: getattr(part, name)[:, -width:] for name in ("history", "history_mask")}
        assert_same(replace(part, **narrow), expected)
        seen += 1
    assert seen == 9


def assert_same(part, expected):
    for field in fields(expected):
        found, wanted = getattr(part, field.name), getattr(expected, field.name)
        if field.name != "news":
            assert torch.equal(found, wanted), field.name
            continue
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[name], column) for name, column in wanted.items())
