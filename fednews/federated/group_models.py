"""A server model for each group of clients, every one with an optimiser of its own."""

import copy
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Lambdas = dict[str, float]


class GroupModels:
    """Parameters of groups, stepped like the global model.

    Args:
        start: every group's first parameters, by name.
        groups: how many groups.
        make_optimizer: makes a server optimiser for a list of parameters.
    """

    def __init__(self, start: dict[str, Tensor], groups: int, make_optimizer: Callable[[list], Optimizer]) -> None:
        self._make_optimizer = make_optimizer
        self.parameters: list[dict[str, nn.Parameter]] = []
        self.optimizers: list[Optimizer] = []
        for _ in range(groups):
            self._append(start)

    def __len__(self) -> int:
        return len(self.parameters)

    def _append(self, start: dict[str, Tensor]) -> None:
        self.parameters.append({name: nn.Parameter(value.detach().clone()) for name, value in start.items()})
        self.optimizers.append(self._make_optimizer(list(self.parameters[-1].values())))

    def add(self, start: dict[str, Tensor], optimizer: Optimizer) -> None:
        """One more group, which goes on from ``start`` with the moments that ``optimizer`` has there."""
        self._append(start)
        self.optimizers[-1].load_state_dict(copy.deepcopy(optimizer.state_dict()))

    def follow(self, shared: dict[str, Tensor]) -> None:
        """Move everything to the device of the shared parameters, and into their type, which Lightning may change."""
        for own, optimizer in zip(self.parameters, self.optimizers, strict=True):
            like = {name: (shared[name].device, shared[name].dtype) for name in own}
            if all((value.device, value.dtype) == like[name] for name, value in own.items()):
                continue
            for name, value in own.items():
                value.data = value.data.to(*like[name])
            optimizer.load_state_dict(optimizer.state_dict())  # takes moments to where their parameters are

    def step(self, group: int, update: dict[str, Tensor], like: Optimizer) -> None:
        """Descend ``update`` with the learning rate and other settings that optimiser ``like`` has now."""
        optimizer = self.optimizers[group]
        for mine, its in zip(optimizer.param_groups, like.param_groups, strict=True):
            mine.update({key: value for key, value in its.items() if key != "params"})
        for name, value in self.parameters[group].items():
            value.grad = update[name].to(value.dtype)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def interpolate(self, shared: dict[str, Tensor], lambdas: Lambdas) -> None:
        r"""Set every group's parameters to :math:`\lambda w_l + (1 - \lambda) w_g` (FINDING eq. 1a).

        Exact where :math:`\lambda` is 0 or 1, and where a group's parameters are the shared ones already.
        """
        for own in self.parameters:
            for name, value in own.items():
                torch.lerp(shared[name], value, lambdas[name], out=value)

    @torch.no_grad()
    def interpolate_moments(self, shared: dict[str, Tensor], optimizer: Optimizer, lambdas: Lambdas) -> None:
        """The same with the moments of the groups' optimisers and those of the shared parameters' ``optimizer``."""
        for name, parameter in shared.items():
            pattern = optimizer.state.get(parameter, {})
            for state in self._states(name, pattern):
                for key, moment in _moments(pattern, parameter):
                    torch.lerp(moment, state[key], lambdas[name], out=state[key])

    @torch.no_grad()
    def mix(self, mixing: Tensor) -> None:
        """Set group j's parameters to the sum over i of ``mixing[i, j]`` times group i's (FINDING eq. 8)."""
        for name in self.parameters[0]:
            _mix([own[name] for own in self.parameters], mixing)

    @torch.no_grad()
    def mix_moments(self, mixing: Tensor) -> None:
        """The same with the moments of the groups' optimisers."""
        for name, like in self.parameters[0].items():
            states = (o.state.get(own[name], {}) for own, o in zip(self.parameters, self.optimizers, strict=True))
            pattern = max(states, key=len)
            mixed = list(self._states(name, pattern))
            for key, _ in _moments(pattern, like):
                _mix([state[key] for state in mixed], mixing)

    def _states(self, name: str, pattern: dict) -> Iterator[dict]:
        """Each group's optimiser state of a parameter; a group that never stepped starts from zero moments."""
        for own, optimizer in zip(self.parameters, self.optimizers, strict=True):
            if not optimizer.state.get(own[name]) and pattern:
                fresh = copy.deepcopy(pattern)
                for _, moment in _moments(fresh, own[name]):
                    moment.zero_()
                optimizer.state[own[name]] = fresh
            yield optimizer.state.get(own[name], {})

    def state_dict(self) -> dict:
        return {
            "parameters": [{name: value.detach() for name, value in own.items()} for own in self.parameters],
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict) -> None:
        """Restore what :meth:`state_dict` gave, whatever the number of groups."""
        while len(self) < len(state["parameters"]):
            self._append(state["parameters"][len(self)])
        for own, saved in zip(self.parameters, state["parameters"], strict=True):
            for name, value in own.items():
                value.copy_(saved[name])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)


def _moments(state: dict, parameter: Tensor) -> list[tuple[str, Tensor]]:
    """What an optimiser averages for every element of a parameter, such as Adam's ``exp_avg`` and ``exp_avg_sq``."""
    return [
        (key, value)
        for key, value in state.items()
        if key != "step" and isinstance(value, Tensor) and value.shape == parameter.shape
    ]


def _mix(values: list[Tensor], mixing: Tensor) -> None:
    mixed = torch.tensordot(mixing.to(values[0]).T, torch.stack(list(values)), dims=1)
    for value, new in zip(values, mixed, strict=True):
        value.copy_(new)
