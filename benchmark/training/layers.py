"""Layers that need less memory in training than torch's own; the numbers are the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regbench.benchmark.machine.bf16 import multiplier


class SmallLinear(nn.Linear):
    """A linear layer that, under autocast, keeps no copies of its weight's size.

    Autocast keeps the cast weight from forward to backward, and has the gradient in both precisions
    before it reaches `weight.grad`. With 8192 × 32768 weights this is 0.5 GB all the time, and
    1.6 GB when backward begins and all activations are alive. This layer casts blocks of the weight
    where they are used. If there is a `weight.grad`, it adds blocks of the gradient to it itself,
    and returns none to autograd, whose hooks still run. The numbers are the same, for no sum is
    split. `torch.autograd.grad` must not be asked for the weight's gradient while there is a
    `weight.grad`.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the plain layer."""
        device = x.device.type
        if not torch.is_autocast_enabled(device) or torch.compiler.is_compiling():
            return super().forward(x)
        cast = x.to(torch.get_autocast_dtype(device))
        out: Tensor = _CastLinear.apply(cast, self.weight, self.bias)
        return out


BLOCK_ELEMENTS = 2**23
"""Elements of a weight that are cast at a time: 16 MB, which a GPU's cache holds until the
product has read them.
"""


def _blocks(length: int, width: int) -> Iterator[slice]:
    """Yield slices of `length` rows of `width` elements, or columns, each of at most
    `BLOCK_ELEMENTS` elements.
    """
    step = max(1, BLOCK_ELEMENTS // width)
    for start in range(0, length, step):
        yield slice(start, start + step)


class _CastLinear(torch.autograd.Function):
    """Shapes: N = rows, I = inputs, O = outputs; a block has the suffix of the whole."""

    @staticmethod
    def forward(ctx: Any, x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
        ctx.save_for_backward(x_NI, weight_OI)
        ctx.multiply = multiplier()
        out_NO = x_NI.new_empty(len(x_NI), len(weight_OI))
        for rows in _blocks(*weight_OI.shape):
            bias = None if bias_O is None else bias_O[rows].to(x_NI.dtype)
            out_NO[:, rows] = F.linear(x_NI, weight_OI[rows].to(x_NI.dtype), bias)
        return out_NO

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        (gradient_NO,) = outputs
        x_NI, weight_OI = ctx.saved_tensors
        gradient_NI = gradient_OI = gradient_O = None
        if ctx.needs_input_grad[0]:
            gradient_NI = torch.empty_like(x_NI)
            for columns in _blocks(*weight_OI.T.shape):
                gradient_NI[:, columns] = ctx.multiply(
                    gradient_NO, weight_OI[:, columns].to(x_NI.dtype)
                )
        if ctx.needs_input_grad[1]:
            total_OI = weight_OI.grad
            if total_OI is None:  # then autograd takes the gradient, as of any layer
                total_OI = gradient_OI = torch.zeros_like(weight_OI)
            for rows in _blocks(*weight_OI.shape):
                total_OI[rows] += ctx.multiply(gradient_NO[:, rows].T, x_NI)
        if ctx.needs_input_grad[2]:
            gradient_O = gradient_NO.sum(dim=0)
        return gradient_NI, gradient_OI, gradient_O


class SmallMaxPool(nn.MaxPool2d):
    """A max-pool that keeps two bytes per output (four in large maps) instead of eight and the
    input.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the plain layer."""
        if torch.compiler.is_compiling():
            return F.max_pool2d(x, self.kernel_size, self.stride, self.padding)
        out: Tensor = _MaxPoolFunction.apply(x, (self.kernel_size, self.stride, self.padding))
        return out


class _MaxPoolFunction(torch.autograd.Function):
    """A max-pool; `window` is kernel size, stride and padding."""

    @staticmethod
    def forward(ctx: Any, x_NCHW: Tensor, window: tuple[int, int, int]) -> Tensor:
        out: Tensor
        out, indices = F.max_pool2d(x_NCHW, *window, return_indices=True)
        # An index is a place in the map of one channel.
        small = torch.int16 if x_NCHW.shape[2] * x_NCHW.shape[3] <= 2**15 else torch.int32
        ctx.save_for_backward(indices.to(small))
        channels_last = x_NCHW.is_contiguous(memory_format=torch.channels_last)
        ctx.format = torch.channels_last if channels_last else torch.contiguous_format
        ctx.shape, ctx.window = x_NCHW.shape, window
        return out

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = outputs
        (indices,) = ctx.saved_tensors
        # torch's function looks at the shape of its input, not at the values.
        shape_NCHW = torch.empty(
            ctx.shape, dtype=gradient.dtype, device=gradient.device, memory_format=ctx.format
        )
        sides = ([side, side] for side in (*ctx.window, 1))
        into = torch.ops.aten.max_pool2d_with_indices_backward
        return into(gradient, shape_NCHW, *sides, False, indices.long()), None
