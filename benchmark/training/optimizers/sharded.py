"""Optimizers whose state the ranks of a run share (ZeRO stage 1, Rajbhandari et al., 2020).

torch's ZeroRedundancyOptimizer breaks two promises. It deals out whole tensors, so the rank with the largest matrix of
the projector saves next to nothing, while here every rank keeps an equal part of each. And its state must first be sent
to one rank in pickles, while a checkpoint here is a plain `state_dict` that any number of ranks goes on from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from regbench.methods.engine import all_gather

Groups = list[dict[str, Any]]
"""torch's parameter groups."""


class SharedOptimizer(Optimizer):
    """The base of optimizers that can share their state.

    Given a group of ranks, each rank keeps an equal part of the state of a tensor of two or more dimensions, updates
    that part of the tensor and sends it to the others. A tensor that cannot be cut into equal parts is not shared.
    Without a group nothing is.
    """

    def __init__(
        self, parameters: Iterable[Tensor] | Groups, defaults: dict[str, Any], group: dist.ProcessGroup | None
    ) -> None:
        """Set up torch's part of it; each rank of the group has the same gradients."""
        self._group = group
        super().__init__(parameters, defaults)

    def _own(self, tensor: Tensor, p: Tensor | None = None) -> Tensor:
        """Return this rank's part of `tensor`, which has the shape of p; the whole where p is not shared."""
        p = tensor if p is None else p
        if self._group is None or p.ndim < 2 or p.numel() % dist.get_world_size(self._group):
            return tensor
        return _flat(tensor, p).chunk(dist.get_world_size(self._group))[dist.get_rank(self._group)]

    def _exchange(self, parts: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Send this rank's parts of tensors to the others, and take theirs."""
        pending: list[Any] = []
        for p, part in parts:
            if part.shape != p.shape:
                # All at once: each exchange by itself would wait for the slowest rank.
                pending.append(all_gather(_flat(p, p), part, group=self._group, async_op=True))
        for work in pending:
            work.wait()

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state, whatever the number of ranks; with a group, all ranks must call it."""
        state = super().state_dict()
        parameters = [p for group in self.param_groups for p in group["params"]]
        # torch numbers the tensors of the state in the order of the groups.
        for index, entry in state["state"].items():
            state["state"][index] = {name: self._whole(value, parameters[index]) for name, value in entry.items()}
        return state

    def _whole(self, value: Any, p: Tensor) -> Any:
        if not _is_per_element(value) or value.shape == p.shape:
            return value
        whole = torch.empty_like(p)
        all_gather(_flat(whole, p), value, group=self._group)
        # One tensor at a time is whole on the device.
        return whole.cpu()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state that any number of ranks saved."""
        super().load_state_dict(state_dict)
        for p, entry in self.state.items():
            for name, value in entry.items():
                part = self._own(value, p) if _is_per_element(value) else value
                if part is not value:
                    entry[name] = part.clone()  # a view would keep the whole alive


class ElementwiseOptimizer(SharedOptimizer):
    """Shares the state of an optimizer of torch that treats every number of a tensor by itself.

    torch's optimizer trains this rank's parts, as tensors of their own.
    """

    def __init__(self, parameters: Groups, make: Callable[[Groups], Optimizer], group: dist.ProcessGroup) -> None:
        """Set up the optimizer that `make` makes of this rank's parts."""
        self._group = group
        self._parts: dict[Tensor, Tensor] = {}
        groups_of_parts = []
        for entry in parameters:
            for p in entry["params"]:
                part = self._own(p.detach())
                self._parts[p] = p if part.shape == p.shape else torch.nn.Parameter(part)
            groups_of_parts.append({**entry, "params": [self._parts[p] for p in entry["params"]]})
        self._updates = make(groups_of_parts)
        super().__init__(parameters, self._updates.defaults, group)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all tensors that have a gradient once."""
        # The trainer sets the learning rate in these groups, and torch's optimizer reads it in its own.
        for entry, own in zip(self.param_groups, self._updates.param_groups, strict=True):
            own.update({name: value for name, value in entry.items() if name != "params"})
        for p, part in self._parts.items():
            if part is not p:
                part.grad = None if p.grad is None else self._own(p.grad, p)
        self._updates.step()
        self._exchange(self._parts.items())
        for p, part in self._parts.items():
            self.state[p] = self._updates.state[part]
            if part is not p:
                part.grad = None  # or it would keep the gradient of the whole alive

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state that any number of ranks saved."""
        super().load_state_dict(state_dict)
        for p, part in self._parts.items():
            self._updates.state[part] = self.state[p]


def elementwise(parameters: Groups, make: Callable[[Groups], Optimizer], group: dist.ProcessGroup | None) -> Optimizer:
    """Return the optimizer that `make` makes of parameter groups; the ranks of a group share its state."""
    return make(parameters) if group is None else ElementwiseOptimizer(parameters, make, group)


def _is_per_element(value: Any) -> bool:
    """Tell whether an entry of a tensor's state has a number for each of the tensor's; a count of steps has not."""
    return isinstance(value, Tensor) and value.ndim > 0


def _flat(tensor: Tensor, p: Tensor) -> Tensor:
    """Return all numbers of `tensor` in the order that p has in memory: a view if both agree (channels last or not)."""
    return tensor.permute(sorted(range(p.ndim), key=p.stride, reverse=True)).reshape(-1)
