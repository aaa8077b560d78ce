"""bf16 on processors that multiply it more slowly than float32."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from regbench.benchmark.machine.description import has_fast_bf16
from regbench.methods.forms.pairwise import planned_kind

_PRODUCTS = {torch.conv1d, torch.conv2d, torch.conv3d, F.linear}
_PRODUCTS |= {torch.bmm, torch.matmul, torch.mm, Tensor.__matmul__, Tensor.matmul}
_IN_FLOAT32 = ContextVar("in_float32", default=False)


def fast_bf16(device: torch.device, precision: str) -> contextlib.AbstractContextManager[Any]:
    """Return a context for the forward pass in which products in bf16 take no longer than in
    float32.

    Instructions for bf16 multiply in bf16 and add in float32. Where they are slower than those for
    float32, or missing, the context rounds the factors to bf16, multiplies in float32, and rounds
    the product. Gradients are rounded at the same places. The numbers are those of torch's own
    products in bf16, but for the order of sums.

    Args:
        device: The device that computes.
        precision: "bf16" or "fp32".
    """
    if precision == "fp32" or planned_kind(device) != "cpu" or has_fast_bf16():
        return contextlib.nullcontext()
    return ProductsInFloat32()


def multiplier() -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function that multiplies two matrices as the context around this call does.

    A backward pass needs it, because the context has ended by then.
    """
    return _multiplied_in_float32 if _IN_FLOAT32.get() else torch.matmul


def _multiplied_in_float32(a: Tensor, b: Tensor) -> Tensor:
    return (a.float() @ b.float()).bfloat16()


class ProductsInFloat32(TorchFunctionMode):
    """Computes convolutions and matrix products under bf16 autocast from rounded factors in
    float32.
    """

    def __enter__(self) -> Self:
        """Begin."""
        self._before = _IN_FLOAT32.set(True)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        """End."""
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        _IN_FLOAT32.reset(self._before)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch."""
        kwargs = kwargs or {}
        if func not in _PRODUCTS or not torch.is_autocast_enabled("cpu"):
            return func(*args, **kwargs)
        with torch.autocast("cpu", enabled=False):
            named = {name: _rounded(value) for name, value in kwargs.items()}
            return func(*map(_rounded, args), **named).bfloat16()


def _rounded(value: Any) -> Any:
    """Round a tensor to bf16, in float32; return other arguments unchanged."""
    return value.bfloat16().float() if isinstance(value, Tensor) else value
