import copy

import pytest
import torch

from fednews.federated.group_models import GroupModels


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.1)


def values(*shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {f"p{i}": torch.randn(shape, generator=generator) for i, shape in enumerate(shapes)}


@pytest.fixture
def shared():
    return {name: torch.nn.Parameter(value) for name, value in values((3, 2), (4,)).items()}


@pytest.fixture
def models(shared):
    """Three groups, each stepped another number of times."""
    models = GroupModels(shared, 3, adam)
    for group in range(3):
        for step in range(group + 1):
            models.step(group, values((3, 2), (4,), seed=10 * group + step), adam(list(shared.values())))
    return models


def test_groups_step_as_an_optimiser_of_their_own_with_the_settings_of_the_shared_one(shared):
    models = GroupModels(shared, 2, adam)
    alone = {name: torch.nn.Parameter(value.detach().clone()) for name, value in shared.items()}
    optimizer = adam(list(alone.values()))
    for step in range(4):
        optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
        for name, update in values((3, 2), (4,), seed=step).items():
            alone[name].grad = update.clone()
        optimizer.step()
        models.step(1, values((3, 2), (4,), seed=step), optimizer)
    for name, value in alone.items():
        assert torch.equal(models.parameters[1][name], value)
        assert torch.equal(models.parameters[0][name], shared[name])


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
def test_interpolation_is_eq_1a_and_exact_at_its_ends(models, shared, share):
    before = copy.deepcopy(models.parameters)
    models.interpolate(shared, {"p0": share, "p1": 0.0})
    for own, old in zip(models.parameters, before, strict=True):
        torch.testing.assert_close(own["p0"], share * old["p0"] + (1 - share) * shared["p0"])
        assert torch.equal(own["p1"], shared["p1"])
        if share in (0, 1):
            assert torch.equal(own["p0"], old["p0"] if share else shared["p0"])


def test_a_group_that_is_the_shared_model_stays_so_bit_for_bit(shared):
    models = GroupModels(shared, 1, adam)
    for share in (0.1, 1 / 3, 0.5, 0.9):
        models.interpolate(shared, dict.fromkeys(shared, share))
        assert all(torch.equal(models.parameters[0][name], shared[name]) for name in shared)


def test_mixing_is_eq_8_for_parameters_and_for_moments(models):
    shares = torch.tensor([[0.8, 0.0, 0.5], [0.1, 1.0, 0.0], [0.1, 0.0, 0.5]])
    parameters = copy.deepcopy(models.parameters)
    moments = [
        {n: copy.deepcopy(o.state[own[n]]) for n in own}
        for own, o in zip(models.parameters, models.optimizers, strict=True)
    ]
    models.mix(shares)
    models.mix_moments(shares)
    for new in range(3):
        for name, value in models.parameters[new].items():
            torch.testing.assert_close(value, sum(shares[old, new] * parameters[old][name] for old in range(3)))
            state = models.optimizers[new].state[value]
            for key in ("exp_avg", "exp_avg_sq"):
                expected = sum(shares[old, new] * moments[old][name][key] for old in range(3))
                torch.testing.assert_close(state[key], expected)
            assert state["step"] == moments[new][name]["step"]


def test_moments_interpolate_like_parameters_and_start_from_zero(shared):
    models, optimizer = GroupModels(shared, 2, adam), adam(list(shared.values()))
    models.step(0, values((3, 2), (4,), seed=5), optimizer)
    for value in shared.values():
        value.grad = torch.ones_like(value)
    optimizer.step()
    before = {
        name: models.optimizers[0].state[value]["exp_avg"].clone() for name, value in models.parameters[0].items()
    }
    models.interpolate_moments(shared, optimizer, {"p0": 0.25, "p1": 1.0})
    for name, share in (("p0", 0.25), ("p1", 1.0)):
        own = optimizer.state[shared[name]]["exp_avg"]
        for group, old in ((0, before[name]), (1, torch.zeros_like(own))):
            found = models.optimizers[group].state[models.parameters[group][name]]["exp_avg"]
            torch.testing.assert_close(found, share * old + (1 - share) * own)


def test_an_added_group_goes_on_with_the_moments_that_it_is_given(models, shared):
    models.add(models.parameters[2], models.optimizers[2])
    for group in (2, 3):
        models.step(group, values((3, 2), (4,), seed=99), adam(list(shared.values())))
    assert all(torch.equal(models.parameters[2][name], models.parameters[3][name]) for name in shared)


def test_state_restores_every_group_even_where_there_are_more_than_before(models, shared):
    other = GroupModels(shared, 1, adam)
    other.load_state_dict(copy.deepcopy(models.state_dict()))
    for group in range(3):
        for each in (models, other):
            each.step(group, values((3, 2), (4,), seed=7), adam(list(shared.values())))
        for name in shared:
            assert torch.equal(models.parameters[group][name], other.parameters[group][name])
