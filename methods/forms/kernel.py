"""Regularizers that are the squared MMD to the uniform distribution for a rotation-invariant
kernel.

Shapes: N = batch (n), Q = embedding dimension (q).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from regbench.methods.forms.decomposed import Addends, Decomposed, StreamedView
from regbench.methods.forms.gradients import with_slopes
from regbench.methods.forms.pairwise import energy, fused, off_diagonal_energy, quadratic_energy
from regbench.settings import NonNegative, settings
from regbench.spaces import Range, Space


@settings
class KernelEnergy(Decomposed):
    """λ ℓ_a + ½ (ℓ_u(Z₁) + ℓ_u(Z₂)), Eqs. (2), (3) and (7) of Zheng et al. (ICLR 2023), for K(u, v)
    = φ(u·v).

    ℓ_u(Z) = n⁻² Σᵢ Σⱼ φ(zᵢ·zⱼ) over unit embeddings, diagonal included, as printed. The diagonal is
    a constant, φ(1)/n, and near uniform nearly all of the value, so it is given as the addend
    `diagonal`.
    """

    unit = True

    @abstractmethod
    def kernel(self, t: Tensor, q: int) -> Tensor:
        """Compute φ(t) of inner products t of any shape, in embedding dimension q; same shape."""

    def kernel_and_derivative(self, t: Tensor, q: int) -> tuple[Tensor, Tensor]:
        """Compute φ(t) and φ′(t), same shape as t; by autograd unless a kernel knows better."""
        phi, derivative = with_slopes(partial(self.kernel, q=q), t)
        return phi, derivative

    def at_one(self, like: Tensor, q: int) -> Tensor:
        """Compute φ(1), a scalar of the dtype and on the device of `like`."""
        return self.kernel(torch.ones_like(like), q)

    def quadratic(self, q: int) -> tuple[float, float, float] | None:
        """Return (c₀, c₁, c₂) if φ(t) = c₀ + c₁ t + c₂ t², which opens the covariance form;
        None otherwise.
        """
        return None

    def regularizer(self, u_NQ: Tensor) -> Addends:
        """Compute uniformity over pairs i ≠ j, and the constant diagonal of the Gram matrix."""
        n, q = u_NQ.shape
        uniformity = off_diagonal_energy(u_NQ, partial(self.kernel, q=q))
        return {"uniformity": uniformity, "diagonal": self.at_one(uniformity, q) / n}

    @property
    def forms(self) -> tuple[str, ...]:
        """The textbook form, `gram`, and `covariance` for polynomials of degree two at most."""
        # Whether a kernel is quadratic does not depend on q, so any will do.
        return ("textbook", "gram", "covariance") if self.quadratic(2) else ("textbook", "gram")

    def add_regularizer(self, view: StreamedView) -> Addends:
        """Compute it in Gram or covariance form, see `Decomposed.add_regularizer`."""
        z_NQ, inverse_N, gradient_NQ, share, shard, form = view
        n, q = shard.n, z_NQ.shape[1]
        coefficients = self.quadratic(q)
        if form == "covariance" and coefficients is not None:
            total = quadratic_energy(z_NQ, inverse_N, coefficients, gradient_NQ, shard)
        else:
            phi = fused(self.kernel_and_derivative)
            total = energy(z_NQ, inverse_N, lambda t: phi(t, q), gradient_NQ, shard)
        # The factor is 2 because both energies give half of the gradient.
        gradient_NQ.mul_(2 * share / n**2)
        uniformity = shard.sum(total) / n**2
        return {"uniformity": uniformity, "diagonal": self.at_one(uniformity, q) / n}


@settings
class KernelRegularizer(KernelEnergy):
    """A kernel's energy beside the paper's alignment.

    Attributes:
        alignment_weight: λ as the paper's tables print it: the weight of the mean over n and q of
            (z₁ − z₂)², which is q times the λ of Eq. (2).
    """

    alignment_weight: NonNegative
    # λ/q is the weight of the squared distance of two views, which does not depend on q.
    space: ClassVar[Space] = {"alignment_weight": Range(0.01, 10, times="q", balances=True)}


def legendre(order: int, t: Tensor, q: int) -> list[Tensor]:
    """Compute the Legendre (Gegenbauer) polynomials P_0(q; t) … P_order(q; t), normalised to P_ℓ(q;
    1) = 1.

    By the three-term recurrence (ℓ + q − 2) P_{ℓ+1} = (2ℓ + q − 2) t P_ℓ − ℓ P_{ℓ−1}, which stays
    within [−1, 1] at every q, where the explicit sum (Theorem 1 of the paper) overflows.

    Args:
        order: Highest degree, >= 0.
        t: Inner products in [−1, 1], any shape.
        q: Dimension of the space, >= 2.

    Returns:
        order + 1 tensors of t's shape.
    """
    polynomials = [torch.ones_like(t), t]
    for degree in range(1, order):
        previous, last = polynomials[-2:]
        polynomials.append(((2 * degree + q - 2) * t * last - degree * previous) / (degree + q - 2))
    return polynomials[: order + 1]


def legendre_series(coefficients: Sequence[float], t: Tensor, q: int) -> Tensor:
    """Compute Σ_ℓ c_ℓ P_ℓ(q; t) by Clenshaw's backward recurrence: two tensors, whatever the order,
    and differentiable.

    The derivative is a series in dimension q + 2, since P_ℓ′(q; t) = ℓ (ℓ + q − 2)/(q − 1)
    P_{ℓ−1}(q + 2; t).

    Args:
        coefficients: c_0, c_1, …, at least one.
        t: Inner products in [−1, 1], any shape.
        q: Dimension of the space, >= 2.

    Returns:
        The sum, same shape as t.
    """
    series: Tensor = _LegendreSeries.apply(t, tuple(coefficients), q)
    return series


def series_derivative(coefficients: Sequence[float], q: int) -> list[float]:
    """Compute the coefficients, in dimension q + 2, of the derivative of a Legendre series in
    dimension q.
    """
    derivative = [c * order * (order + q - 2) / (q - 1) for order, c in enumerate(coefficients)]
    # The derivative of a constant has one coefficient, as a series needs.
    return derivative[1:] or [0.0]


class _LegendreSeries(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor, coefficients: tuple[float, ...], q: int) -> Tensor:
        ctx.save_for_backward(t)
        ctx.coefficients, ctx.q = coefficients, q
        last = torch.full_like(t, coefficients[-1])
        before = torch.zeros_like(t)
        for degree in range(len(coefficients) - 2, -1, -1):
            # P_{ℓ+1} = a t P_ℓ − b P_{ℓ−1}; here a is taken at ℓ = degree, b at ℓ = degree + 1.
            # At ℓ = 0 a is 1, which the formula does not give at q = 2: 0/0.
            a = (2 * degree + q - 2) / (degree + q - 2) if degree else 1.0
            b = (degree + 1) / (degree + q - 1)
            before.mul_(-b).add_(coefficients[degree]).addcmul_(t, last, value=a)
            before, last = last, before
        return last

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, None, None]:
        (t,) = ctx.saved_tensors
        slope = legendre_series(series_derivative(ctx.coefficients, ctx.q), t, ctx.q + 2)
        return outputs[0] * slope, None, None
