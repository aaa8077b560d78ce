"""Chebyshev series: functions that are smooth on an interval, to rounding and at the cost of a
few products.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def chebyshev_series(coefficients: Sequence[float], s: Tensor) -> Tensor:
    """Compute Σ_k c_k T_k(s), by Clenshaw's recurrence: two tensors, whatever the degree, and
    differentiable.

    The last terms are left out if their sum is less than a sixteenth of the rounding of the largest
    one in the dtype of s. Two operations are made for each of the others.

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
        sizes = np.abs(coefficients)
        left_N = np.cumsum(sizes[::-1])[::-1]
        least = torch.finfo(s.dtype).eps / 16 * sizes.max()
        felt = coefficients[: max(1, int((left_N > least).sum()))]
        # The signs of every other pair of b_k = c_k + 2 s b_{k+1} − b_{k+2} are turned, so that all
        # is added up in place.
        signed = [-c if k & 2 else c for k, c in enumerate(felt)]
        last, before = torch.full_like(s, signed[-1]), torch.zeros_like(s)
        for k in range(len(felt) - 2, -1, -1):
            before.add_(signed[k]).addcmul_(s, last, value=(2 if k else 1) * (-1) ** k)
            last, before = before, last
        return last

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, None]:
        (s,) = ctx.saved_tensors
        return outputs[0] * chebyshev_series(series_derivative(ctx.coefficients), s), None
