"""bf16 on processors that multiply it more slowly than float32."""

from __future__ import annotations

import contextlib
import platform
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from regbench.benchmark.machine import processor

_PRODUCTS = {
    torch.conv1d,
    torch.conv2d,
    torch.conv3d,
    F.linear,
    torch.bmm,
    torch.matmul,
    torch.mm,
    Tensor.__matmul__,
    Tensor.matmul,
}


def fast_bf16(device: torch.device, precision: str) -> contextlib.AbstractContextManager[Any]:
    """Return a context for the forward pass in which products in bf16 take no longer than in float32.

    Instructions for bf16 multiply in bf16 and add in float32. Where they are slower than those for float32, or missing,
    the context rounds the factors to bf16, multiplies in float32, and rounds the product. Gradients are rounded at the
    same places. The numbers are those of torch's own products in bf16, but for the order of sums.

    Args:
        device: The device that computes.
        precision: "bf16" or "fp32".
    """
    if precision == "fp32" or device.type != "cpu" or _multiplies_bf16_fast():
        return contextlib.nullcontext()
    return ProductsInFloat32()


def _multiplies_bf16_fast() -> bool:
    """Return True if bf16 is faster than float32, by what the processor says of itself.

    A timing might answer differently when a run is resumed, which would change the run's bits.
    """
    if platform.machine() != "x86_64" or torch.cpu._is_amx_tile_supported():
        return True
    # Intel's AVX-512 multiplies bf16 at half the speed of float32, AMD's (from Zen 4 on) at twice the speed.
    return torch.cpu._is_avx512_bf16_supported() and processor("vendor_id") == "AuthenticAMD"


class ProductsInFloat32(TorchFunctionMode):
    """Computes convolutions and matrix products under bf16 autocast from rounded factors in float32."""

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
