from dataclasses import fields

import numpy as np
import pytest
import torch

from fednews.federated.parts import part_of


@pytest.mark.parametrize("chosen", [[0], [2, 5, 6], [1, 3, 4, 7, 8]])
def test_a_part_of_a_cohort_is_the_cohort_of_that_part(cohorts, chosen):
    draw = cohorts.of_clients(cohorts.draw_clients(9, 0), 0)
    kept = torch.zeros(9, dtype=torch.bool)
    kept[chosen] = True
    part, expected = part_of(cohorts.cohort(draw), kept), cohorts.cohort(draw.of_clients(np.array(chosen)))
    for field in fields(expected):
        found, wanted = getattr(part, field.name), getattr(expected, field.name)
        if field.name != "news":
            assert torch.equal(found, wanted), field.name
            continue
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[name], column) for name, column in wanted.items())
