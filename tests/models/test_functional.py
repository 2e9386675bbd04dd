"""A model called at other parameters is afterwards the model that it was."""

from pathlib import Path

import torch
from torch import nn

import fednews
from fednews.models.functional import call_at


class Shared(nn.Module):
    """One module at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.title = self.abstract = nn.Linear(2, 1, bias=False)


class Sum(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model.title(x) + self.model.abstract(x)


def test_a_module_at_two_places_is_replaced_at_both_and_has_its_own_parameter_back():
    model, x = Shared(), torch.ones(1, 2)
    own = model.title.weight
    assert call_at(Sum(model), {"title.weight": torch.tensor([[3.0, 4.0]])}, x).item() == 14
    assert model.title.weight is own
    torch.testing.assert_close(call_at(Sum(model), None, x), Sum(model)(x))


def test_nothing_else_calls_models_at_other_parameters():
    root = Path(fednews.__file__).parent
    users = [path.name for path in root.rglob("*.py") if "functional_call" in path.read_text()]
    assert users == ["functional.py"]
