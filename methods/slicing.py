"""Sliced statistics: regularizers that see a view along random directions.

Shapes: N = batch (n), Q = embedding dimension (q), K = directions, T = frequencies.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from regbench.methods.decomposed import Addends, Decomposed


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


def random_directions(q: int, count: int, like: Tensor) -> Tensor:
    """Draw unit vectors as columns, shape (q, count), of the dtype and on the device of `like`.

    They are from torch's generator of that device, of one precision there, so that a seed gives the same ones whatever
    the dtype: double on a CPU, single on a GPU, which would draw doubles slowly.
    """
    dtype = torch.float64 if like.device.type == "cpu" else torch.float32
    directions_QK = torch.randn(q, count, dtype=dtype, device=like.device)
    lengths_K: Tensor = torch.linalg.vector_norm(directions_QK, dim=0)
    return (directions_QK / lengths_K).to(like)


def epps_pulley(real_TK: Tensor, imaginary_TK: Tensor, frequencies_T: Tensor) -> Tensor:
    """Compute ∫ |φ̂(t) − φ(t)|² e^{−t²/2} dt of characteristic functions φ̂ and φ, its mean over directions.

    Args:
        real_TK: Real part of φ̂ − φ at T frequencies and along K directions.
        imaginary_TK: Imaginary part.
        frequencies_T: t, evenly spaced from 0 on; 0 itself, where φ̂ = φ = 1, is left out.
    """
    # The trapezoid rule halves its two ends. All is doubled because the integrand is even.
    weights_T = 2 * frequencies_T[0] * (-(frequencies_T**2) / 2).exp()
    weights_T[-1] /= 2
    return (weights_T[:, None].to(real_TK) * (real_TK.square() + imaginary_TK.square())).sum(dim=0).mean()
