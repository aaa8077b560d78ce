"""bf16 on processors that have no instructions for it."""

from __future__ import annotations

import contextlib
import platform
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_PRODUCTS = {
    _aten.convolution.default,
    _aten.convolution_backward.default,
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
}


def fast_bf16(device: torch.device, precision: str) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which products in bf16 take no longer than in float32; enter it for the backward pass too.

    Instructions for bf16 multiply in bf16 and add in float32. On a processor without them torch does this in software:
    a training step of a ResNet takes 2 times (AVX-512) or 9 times (AVX2) as long as in float32. The context uses the
    instructions for float32 there. The numbers are rounded as before; sums are added in another order.

    Args:
        device: The device that computes.
        precision: "bf16" or "fp32".
    """
    has_instructions = platform.machine() != "x86_64" or torch.cpu._is_avx512_bf16_supported()
    if precision == "fp32" or device.type != "cpu" or has_instructions:
        return contextlib.nullcontext()
    return ProductsInFloat32()  # type: ignore[no-untyped-call]


class ProductsInFloat32(TorchDispatchMode):
    """Computes convolutions and matrix products of bf16 tensors in float32, and rounds what they return."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation."""
        if func not in _PRODUCTS or args[0].dtype != torch.bfloat16:
            return func(*args, **(kwargs or {}))
        # By hand: torch's tree_map took a third of a small training's time.
        wide = (arg.float() if isinstance(arg, Tensor) else arg for arg in args)
        out = func(*wide, **(kwargs or {}))
        if isinstance(out, Tensor):
            return out.bfloat16()
        return tuple(grad if grad is None else grad.bfloat16() for grad in out)
