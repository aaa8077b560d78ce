"""Count the operations that a loss gives a GPU, without one: `python -m
regbench.instruments.cost.operations [METHODS]`.

A GPU's host takes some microseconds to start each of them, which small losses wait for.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regbench import methods
from regbench.methods import Engine
from regbench.methods.forms.pairwise import panels_of

SIZES = ((256, 8192), (4096, 2048), (2048, 32768))
# Operations that only describe memory, or take it.
_WITHOUT_WORK = {
    "detach",
    "alias",
    "_unsafe_view",
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
}


class LaunchCounter(TorchDispatchMode):
    """Counts operations that work on a device other than the CPU; views are none.

    An operation on several lists of tensors counts as many times as a list is long if their shapes
    differ: torch has a common kernel for equal shapes only.

    Attributes:
        count: The number of them.
    """

    def __init__(self) -> None:
        """Begin at 0."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count an operation."""
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        # Operations that change a list of tensors return nothing.
        changed = args[0] if name.startswith("_foreach_") else out
        tensors = [each for each in tree_leaves(changed) if isinstance(each, Tensor)]
        on_device = any(each.device.type != "cpu" for each in tensors)
        if on_device and not func.is_view and name not in _WITHOUT_WORK:
            self.count += (
                len(args[0]) if name.startswith("_foreach_") and _shapes_differ(args) else 1
            )
        return out


def _shapes_differ(args: tuple[Any, ...]) -> bool:
    """Tell whether the tensors of an operation's lists differ in shape from one list to the
    next.
    """
    first, *others = [arg for arg in args if isinstance(arg, list | tuple)]
    for other in others:
        for a, b in zip(first, other, strict=True):
            if isinstance(b, Tensor) and a.shape != b.shape:
                return True
    return False


def count_operations(name: str, n: int, q: int) -> int:
    """Count those of a loss's value and gradient for two views, on tensors that have a shape
    but no data.
    """
    z1, z2 = (torch.empty(n, q, device="meta", requires_grad=True) for _ in range(2))
    with panels_of("cuda"), LaunchCounter() as operations:
        methods.build(name).loss(z1, z2, engine=Engine(draw_seed=lambda: 0)).backward()
    return int(operations.count)


def main() -> None:
    """Print a table of the losses that are named, or of all."""
    rows = []
    for name in sys.argv[1:] or methods.names():
        rows.append([name, *(count_operations(name, n, q) for n, q in SIZES)])
    print(tabulate(rows, ["loss", *(f"{n} × {q}" for n, q in SIZES)], "github"))


if __name__ == "__main__":
    main()
