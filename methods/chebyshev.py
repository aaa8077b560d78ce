"""Chebyshev series: functions that are smooth on an interval, to rounding and at the cost of a few products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def chebyshev_series(coefficients: Sequence[float], s: Tensor) -> Tensor:
    """Compute Σ_k c_k T_k(s), by Clenshaw's recurrence: three tensors, whatever the degree, and differentiable.

    Args:
        coefficients: c_0, c_1, …, at least one.
        s: Points in [−1, 1], any shape.

    Returns:
        The sum, same shape as s.
    """
    series: Tensor = _Chebyshev.apply(s, tuple(coefficients))
    return series


def series_derivative(coefficients: Sequence[float]) -> tuple[float, ...]:
    """Compute the coefficients of the derivative."""
    return tuple(np.polynomial.chebyshev.chebder(coefficients).tolist())


# Through the recurrence autograd would keep tensors of every degree; here it keeps s alone.
class _Chebyshev(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, s: Tensor, coefficients: tuple[float, ...]) -> Tensor:
        ctx.save_for_backward(s)
        ctx.coefficients = coefficients
        last, before = torch.zeros_like(s), torch.zeros_like(s)
        for coefficient in reversed(coefficients[1:]):
            last, before = (2 * s * last).sub_(before).add_(coefficient), last
        return (s * last).sub_(before).add_(coefficients[0])

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, None]:
        (s,) = ctx.saved_tensors
        return outputs[0] * chebyshev_series(series_derivative(ctx.coefficients), s), None
