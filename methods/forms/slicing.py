"""Sliced statistics: regularizers that see a view along random directions.

Shapes: N = batch (n), Q = embedding dimension (q), K = directions, T = frequencies.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from regbench.methods.forms.decomposed import Addends, AddRegularizer, Decomposed, StreamedView
from regbench.methods.forms.pairwise import panels


class Sliced(Decomposed):
    """A regularizer that sees all views of a step along the same random directions.

    A subclass is a dataclass with `directions`, the number of them, and implements `sliced`.
    """

    random: ClassVar[bool] = True
    directions: int

    @abstractmethod
    def sliced(self, u_NQ: Tensor, directions_QK: Tensor) -> Addends:
        """Compute the weighted addends of one view, see `Decomposed.regularizer`.

        Args:
            u_NQ: Embeddings of one view of the whole batch, shape (n, q).
            directions_QK: Unit vectors as columns, shape (q, directions).
        """

    def regularizer(self, u_NQ: Tensor) -> Addends:
        """Compute the addends of one view along directions of its own."""
        return self.regularizer_of_step(u_NQ)(u_NQ)

    def regularizer_of_step(self, like_NQ: Tensor) -> Callable[[Tensor], Addends]:
        """Draw the directions of a step."""
        directions_QK = random_directions(like_NQ.shape[1], self.directions, like_NQ)
        return lambda u_NQ: self.sliced(u_NQ, directions_QK)


class SlicedCharacteristic(Sliced):
    """A sliced Epps-Pulley statistic: of characteristic functions at evenly spaced frequencies.

    A subclass is a dataclass with these fields, states the other two, and computes in `sliced`,
    frequency by frequency, `weight` n times `epps_pulley`.

    Attributes:
        addend: Name of the addend.
        knots: Points of the quadrature, frequency 0 among them.
        largest_frequency: The last of them.
    """

    revision: ClassVar[int] = 2
    # `powers`, which needs one sine and one cosine of each projection.
    forms = ("textbook", "powers")
    addend: ClassVar[str]
    knots: int
    largest_frequency: float

    @property
    @abstractmethod
    def weight(self) -> float:
        """Factor of the statistic."""

    @abstractmethod
    def characteristic(self, frequencies_T: Tensor, q: int) -> Tensor:
        """Compute the target characteristic function, of projections in q dimensions: real, shape
        (T,).
        """

    def add_regularizer_of_step(self, like_NQ: Tensor) -> AddRegularizer:
        """Draw the directions of a step."""
        directions_QK = random_directions(like_NQ.shape[1], self.directions, like_NQ)
        return partial(self._add_powers, directions_QK)

    def _add_powers(self, directions_QK: Tensor, view: StreamedView) -> Addends:
        """Compute e^{itx} at all frequencies as powers of the first, see
        `Decomposed.add_regularizer`.

        They are computed twice, for the sums over images and for the gradient, so that none is
        kept.
        """
        z_NQ, inverse_N, gradient_NQ, share, shard, _ = view
        step = self.largest_frequency / (self.knots - 1)
        frequencies_T = step * torch.arange(1, self.knots, dtype=torch.float64, device=z_NQ.device)
        weights_T = self.weight / self.directions * quadrature_weights(frequencies_T)
        slopes_T11 = (2 * share * weights_T * frequencies_T).to(z_NQ)[:, None, None]
        aim_T1 = self.characteristic(frequencies_T, z_NQ.shape[1]).to(z_NQ)[:, None]
        total = torch.zeros((), dtype=torch.float64, device=z_NQ.device)
        projections_KN = (directions_QK.T @ z_NQ.T).mul_(inverse_N)
        # All ranks have to cut alike, so they cut by the rows of all. A CPU's cache holds two
        # panels of 1 MiB.
        for rows in panels(self.directions, shard.n, z_NQ, lower={"cpu": 8, "cuda": 2}):
            x_PN = projections_KN[rows]
            first_PN = torch.polar(x_PN.new_ones(()).expand_as(x_PN), x_PN.mul_(step))
            power_PN = first_PN.clone()
            sums = [power_PN.sum(dim=1)]
            for _ in frequencies_T[1:]:
                sums.append(power_PN.mul_(first_PN).sum(dim=1))
            # The last dimension holds the real and the imaginary part.
            excess_TP2 = shard.sum(torch.view_as_real(torch.stack(sums))).div_(shard.n)
            excess_TP2[..., 0] -= aim_T1
            total += weights_T @ excess_TP2.square().sum(dim=(1, 2)).double()
            # The slope is the real part of Σ s_t (Im + i Re) e^{itx}, by Horner's rule.
            swapped_TP = torch.view_as_complex(excess_TP2.flip(2) * slopes_T11)
            power_PN.zero_()
            for coefficients_P in reversed(swapped_TP.unbind()):
                power_PN.add_(coefficients_P[:, None]).mul_(first_PN)
            x_PN.copy_(power_PN.real)
        gradient_NQ.addmm_(projections_KN.T, directions_QK.T)
        return {self.addend: shard.n * total}


def random_directions(q: int, count: int, like: Tensor) -> Tensor:
    """Draw unit vectors as columns, shape (q, count), of the dtype and on the device of `like`.

    They come from torch's generator of that device, in one precision there, so that a seed gives
    the same ones whatever the dtype: double on a CPU, single on a GPU, which would draw doubles
    slowly.
    """
    directions_QK = standard_normal(q, count, like.device)
    return directions_QK.div_(directions_QK.square().sum(dim=0).sqrt()).to(like)


def standard_normal(rows: int, columns: int, device: torch.device) -> Tensor:
    """Draw numbers from N(0, 1), shape (rows, columns): double on a CPU, single on a GPU.

    They are those of torch.randn. On a CPU torch.randn computes its Box-Muller method (logarithm,
    root, sine and cosine) one number at a time. Here it is computed, in the same order, for all at
    once: twice as fast.
    """
    count = rows * columns
    if device.type != "cpu":
        return torch.randn(rows, columns, device=device)
    # torch.randn draws in blocks of 8 radii and 8 angles, and in another way if a block is not
    # full.
    if count % 16:
        return torch.randn(rows, columns, dtype=torch.float64)
    uniform_B28 = torch.rand(count // 16, 2, 8, dtype=torch.float64)
    radius_B8 = uniform_B28[:, 0].neg().log1p_().mul_(-2).sqrt_()
    angle_B8 = uniform_B28[:, 1] * (2 * math.pi)
    torch.mul(angle_B8.cos(), radius_B8, out=uniform_B28[:, 0])
    torch.mul(angle_B8.sin(), radius_B8, out=uniform_B28[:, 1])
    return uniform_B28.view(rows, columns)


def epps_pulley(real_TK: Tensor, imaginary_TK: Tensor, frequencies_T: Tensor) -> Tensor:
    """Compute the mean over directions of ∫ |φ̂(t) − φ(t)|² e^{−t²/2} dt, φ̂ and φ being
    characteristic functions.

    Args:
        real_TK: Real part of φ̂ − φ at T frequencies and along K directions.
        imaginary_TK: Imaginary part.
        frequencies_T: t, evenly spaced from 0 on; 0 itself, where φ̂ = φ = 1, is left out.
    """
    weights_T1 = quadrature_weights(frequencies_T)[:, None].to(real_TK)
    return (weights_T1 * (real_TK.square() + imaginary_TK.square())).sum(dim=0).mean()


def quadrature_weights(frequencies_T: Tensor) -> Tensor:
    """Compute the weights of `epps_pulley`, e^{−t²/2} among them, shape (T,)."""
    # The trapezoid rule halves its two ends. All is doubled because the integrand is even.
    weights_T = 2 * frequencies_T[0] * (-(frequencies_T**2) / 2).exp()
    weights_T[-1] /= 2
    return weights_T
