"""Operations that a GPU's host starts, counted without a GPU, on tensors without data.

Each start takes some microseconds, which small losses wait for.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Operations that only describe memory, or take it.
_WITHOUT_WORK = {"detach", "alias", "_unsafe_view"}
_WITHOUT_WORK |= {"empty", "empty_like", "empty_strided", "new_empty"}


class LaunchCounter(TorchDispatchMode):
    """Counts operations that work on a device other than the CPU; views are none.

    An operation on several lists of tensors counts as many times as a list is long if their shapes
    differ: torch has a common kernel for equal shapes only.

    Attributes:
        count: The number of them.
    """

    def __init__(self) -> None:
        """Begin at 0."""
        super().__init__()
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
