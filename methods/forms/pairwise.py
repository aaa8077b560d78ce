"""Sums over all pairs of a batch: as plain formulas, and streamed with their gradients.

Shapes: N = rows (n in the whole batch, this rank's share of them in the streamed functions), M =
rows of other ranks or of a panel's columns, Q = embedding dimension (q).

The streamed functions walk over panels of the Gram matrix, some hundred rows at a time. A panel
serves for the value and for the gradient, so nothing of size n × n is kept, and of a rank's own
rows only the upper triangle is computed. With ū the gradient with respect to unit embeddings u =
z/‖z‖, callers add up ū in a buffer and turn it at the end, in place, into the gradient with respect
to z (`to_embedding_gradient`); no normalised copy is made either.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regbench.methods.forms.engine import Shard

# Rows shorter than this, the eps of F.normalize, count as zero: u = 0, and no gradient reaches
# them.
SHORTEST = 1e-12

PairFunction = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Inner products of any shape -> (φ, φ′) of the same shape."""

PANEL_BYTES = {"cpu": 4 * 2**20, "cuda": 32 * 2**20}
"""Size of one panel, or of one chunk of rows, by device.

Kernels hold up to a dozen of these at a time.

A CPU's caches hold small ones; a GPU takes as long to start the work on a small one as to do it.
"""
_planned_device: ContextVar[str | None] = ContextVar("planned_device", default=None)


_fusing: ContextVar[bool] = ContextVar("fusing", default=False)


@contextlib.contextmanager
def _as_long(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def as_on(device: str) -> contextlib.AbstractContextManager[None]:
    """Compute as on another kind of device, to count what it would need."""
    return _as_long(_planned_device, device)


def fusing(enabled: bool) -> contextlib.AbstractContextManager[None]:
    """Let torch.compile build the functions given to `fused`, or none of them."""
    return _as_long(_fusing, enabled)


def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an elementwise function of tensors of one shape, compiled into one kernel if `fusing`.

    Args:
        function: A bound method or a function of a module: a function that is made anew would be
            compiled anew.
    """
    return _compiled(function) if _fusing.get() else function


@lru_cache(maxsize=64)
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    # Without `dynamic` the last panel of a batch, which is lower than the others, would be compiled
    # by itself.
    return torch.compile(function, dynamic=True)


def planned_kind(device: torch.device) -> str:
    """Return the kind of device to compute for: the device's own, unless `as_on` names another."""
    return _planned_device.get() or device.type


def _panel_bytes(like: Tensor) -> int:
    return PANEL_BYTES.get(planned_kind(like.device), PANEL_BYTES["cpu"])


# Plain formulas: what the streamed functions must equal.


def normalize(z_NQ: Tensor) -> Tensor:
    """Scale rows to unit length, shape (n, q).

    A row that is not longer than `SHORTEST` becomes zero, and no gradient reaches it. A row whose
    length is beyond the type's range becomes NaN.
    """
    length_N1 = torch.linalg.vector_norm(z_NQ.detach(), dim=1, keepdim=True)
    usual_N1 = (length_N1 > SHORTEST) & length_N1.isfinite()
    others_N1 = torch.full_like(length_N1, torch.nan).masked_fill(length_N1 <= SHORTEST, 0.0)
    # F.normalize alone would divide the gradient of a row of zeros by the eps: 10¹² times as large.
    return F.normalize(z_NQ.where(usual_N1, others_N1), dim=1)


def normalize_columns(shifted_NQ: Tensor, z_NQ: Tensor) -> Tensor:
    """Scale columns to unit length, shape (n, q).

    A constant column becomes zero, and no gradient reaches it: what is left of it is the rounding
    of its mean.

    Args:
        shifted_NQ: The columns, centred or not.
        z_NQ: The columns as they were before.
    """
    size_Q = torch.linalg.vector_norm(z_NQ.detach(), dim=0)
    # With 10⁵ rows, means of constant columns are up to 5 ulp off.
    rounding_Q = 16 * torch.finfo(z_NQ.dtype).eps * size_Q
    constant_Q = torch.linalg.vector_norm(shifted_NQ.detach(), dim=0) <= rounding_Q
    # Nothing is known of a column that is not finite: it stays as it is.
    return F.normalize(shifted_NQ.where(~constant_Q | size_Q.isinf(), 0.0), dim=0)


def infinite_as_nan(z_NQ: Tensor) -> Tensor:
    """Turn infinities into NaN, same shape: a softmax or a rectifier would make an ordinary 0
    of −∞.
    """
    return z_NQ + 0 * z_NQ


def centred_units(z_NQ: Tensor) -> Tensor:
    """Scale rows to unit length and take off their mean, shape (n, q), which leaves the differences
    of rows as they are.

    Both are done in double precision: float32 keeps the digits of such rows, however close to a
    point they were.
    """
    u_NQ = normalize(z_NQ.double())
    return (u_NQ - u_NQ.detach().mean(dim=0)).to(z_NQ)


def squared_distances(x_NQ: Tensor) -> Tensor:
    """Compute ‖xᵢ − xⱼ‖², shape (n, n), of rows whose mean is about 0: else digits cancel."""
    squared_N = x_NQ.square().sum(dim=1)
    squared_NN = squared_N[:, None] + squared_N - 2 * (x_NQ @ x_NQ.T)
    # Rounding can leave a negative square where rows nearly coincide. A clamp would take its slope.
    return squared_NN - squared_NN.detach().clamp_max(0.0)


def frobenius_norm(matrix: Tensor) -> Tensor:
    """Compute ‖matrix‖_F, a scalar, whose gradient is 0 at 0."""
    # On a CPU torch adds up the squares of a float32 matrix of 4096² with an error of 1e-3, and row
    # by row with none. Small matrices lose nothing, and keep the last bits of published results.
    parts = matrix if matrix.numel() <= 2**16 else torch.linalg.vector_norm(matrix, dim=1)
    norm: Tensor = torch.linalg.vector_norm(parts)
    return norm


def smaller_gram(z_NQ: Tensor) -> Tensor:
    """Compute the smaller of ZᵀZ and ZZᵀ, which have the same eigenvalues but for zeros."""
    n, q = z_NQ.shape
    return z_NQ.T @ z_NQ if q < n else z_NQ @ z_NQ.T


def log_det_identity_plus(z_NQ: Tensor, scale: float) -> Tensor:
    """Compute log det(I + scale · ZᵀZ) = log det(I + scale · ZZᵀ) in float64, by a Cholesky factor
    of size min(n, q).

    Every eigenvalue is at least 1, so neither the value nor the gradient needs a guard as long as
    the rounding of the largest one stays below 1. In TF32 that can fail in a collapse, so this is
    float64: scale · ‖Z‖² may be 10¹⁴.
    """
    z_NQ = z_NQ.double()
    gram = smaller_gram(z_NQ)
    shifted = torch.eye(len(gram), dtype=z_NQ.dtype, device=z_NQ.device) + scale * gram
    factor: Tensor = torch.linalg.cholesky(shifted)
    return 2 * factor.diagonal().log().sum()


def off_diagonal_mask(n: int, like: Tensor) -> Tensor:
    """Mark the pairs with i ≠ j, shape (n, n), on the device of `like`."""
    return ~torch.eye(n, dtype=torch.bool, device=like.device)


def off_diagonal_energy(z_NQ: Tensor, phi: Callable[[Tensor], Tensor]) -> Tensor:
    """Compute n⁻² Σ_{i≠j} φ(zᵢ·zⱼ), a scalar; z_NQ has shape (n, q).

    The pairs i = j are left out of the sum because they are a constant on the sphere, and because φ
    may have no derivative there; a loss that counts them adds φ(1)/n.
    """
    n = len(z_NQ)
    pairs_NN = off_diagonal_mask(n, z_NQ)
    # One mask after φ would not do: its zeros times an infinite slope of φ would be NaN.
    gram_NN = (z_NQ @ z_NQ.T).where(pairs_NN, 0.0)
    return phi(gram_NN).where(pairs_NN, 0.0).sum() / n**2


def mask_diagonal(logits_NN: Tensor) -> Tensor:
    """Put −∞ on the diagonal, shape (n, n), to leave these pairs out of a log-sum-exp."""
    return logits_NN.where(off_diagonal_mask(len(logits_NN), logits_NN), -torch.inf)


# Streamed.


def inverse_lengths(z_NQ: Tensor) -> Tensor:
    """Compute 1/‖zᵢ‖, shape (n,); 0 for rows that count as zero (shorter than 1e-12), NaN for those
    whose length is beyond the type's range.
    """
    length_N = torch.linalg.vector_norm(z_NQ, dim=1)
    inverse_N = torch.where(length_N <= SHORTEST, 0.0, length_N.reciprocal())
    return inverse_N.masked_fill(length_N.isinf(), torch.nan)


def chunks(z_NQ: Tensor) -> Iterator[slice]:
    """Cut slices of rows whose data fill one panel at most (at least one row)."""
    rows = max(1, _panel_bytes(z_NQ) // (z_NQ.shape[1] * z_NQ.element_size()))
    for start in range(0, len(z_NQ), rows):
        yield slice(start, min(start + rows, len(z_NQ)))


def panels(
    rows: int, columns: int, like: Tensor, *, triangle: bool = False, lower: Mapping[str, int] = {}
) -> Iterator[slice]:
    """Cut slices of rows whose panel of the Gram matrix, with `columns`, has a good size to
    work on.

    On a CPU a few hundred rows keep the matrix products efficient; of a triangle, an eighth of the
    rows keeps its ragged edge small. On a GPU each panel costs the time to start its work, so a
    triangle has four, a square two.

    Args:
        rows: Rows of the Gram matrix.
        columns: Number of columns.
        like: A tensor of the panel's dtype and device.
        triangle: Whether only the columns from the panel's first row on are computed.
        lower: Factor, by device, that makes the panels lower for a caller who keeps more tensors of
            their size.
    """
    if planned_kind(like.device) == "cpu":
        height = max(128, -(-rows // 8)) if triangle else 512
    else:
        height = max(512, -(-rows // (4 if triangle else 2)))
    columns *= lower.get(planned_kind(like.device), 1)
    height = max(16, min(height, _panel_bytes(like) // max(1, columns * like.element_size())))
    for start in range(0, rows, height):
        yield slice(start, min(start + height, rows))


def blocks(shard: Shard, *local: Tensor) -> Iterator[tuple[bool, tuple[Tensor, ...]]]:
    """Yield this rank's tensors and then those of the other ranks, which travel meanwhile.

    The first value says whether they are this rank's own.
    """
    others = shard.others(*local)
    yield True, local
    for remote in others:
        yield False, remote


def energy(
    z_NQ: Tensor,
    inverse_N: Tensor,
    phi: PairFunction,
    gradient_NQ: Tensor,
    shard: Shard,
    *,
    diagonal: bool = False,
) -> Tensor:
    """Sum Σᵢ Σⱼ φ(uᵢ·uⱼ) over this rank's i and all ranks' j, in one pass with its gradient.

    Args:
        z_NQ: This rank's embeddings, shape (n_rank, q).
        inverse_N: The factors that make them u: `inverse_lengths(z)`, or ones.
        phi: φ and φ′ of inner products.
        gradient_NQ: Buffer to which Σⱼ φ′(uᵢ·uⱼ) uⱼ is added, shape (n_rank, q): half of the
            gradient of the whole batch's energy with respect to uᵢ.
        shard: The ranks.
        diagonal: Whether the pairs i = j count.

    Returns:
        This rank's addend, a float64 scalar. Time 3 n² q FLOP on one rank, scratch O(panel).
    """
    # Float32 would round what each panel adds by the size of the whole sum.
    total = torch.zeros((), dtype=torch.float64, device=z_NQ.device)
    n = len(z_NQ)
    others = shard.others(z_NQ, inverse_N)
    for rows in panels(n, n, z_NQ, triangle=True):
        width = rows.stop - rows.start
        u_PQ = z_NQ[rows] * inverse_N[rows, None]
        gram_PM = (u_PQ @ z_NQ[rows.start :].T).mul_(inverse_N[rows.start :])
        if not diagonal:
            # The slope of φ may be infinite at 1, and φ(0) need not be 0: hence zeros before φ and
            # after it.
            gram_PM.diagonal().zero_()
        value_PM, slope_PM = phi(gram_PM)
        del gram_PM
        if not diagonal:
            value_PM.diagonal().zero_()
            slope_PM.diagonal().zero_()
        # The square of the panel's own rows holds its pairs in both orders, the rest of the panel
        # in one.
        total += 2 * value_PM.sum() - value_PM[:, :width].sum()
        # Later rows need the slopes as they are; the line after this one scales them in place.
        gradient_NQ[rows.stop :].addmm_(slope_PM[:, width:].T, u_PQ)
        gradient_NQ[rows].addmm_(slope_PM.mul_(inverse_N[rows.start :]), z_NQ[rows.start :])
        # Without this they would live on beside the next panel.
        del value_PM, slope_PM
    for z_MQ, inverse_M in others:
        for rows in panels(n, len(z_MQ), z_NQ):
            gram_PM = ((z_NQ[rows] * inverse_N[rows, None]) @ z_MQ.T).mul_(inverse_M)
            value_PM, slope_PM = phi(gram_PM)
            del gram_PM
            total += value_PM.sum()
            gradient_NQ[rows].addmm_(slope_PM.mul_(inverse_M), z_MQ)
    return total


def cross_energy(
    views: Sequence[Tensor],
    factors: Sequence[Tensor],
    phi: PairFunction,
    gradients: Sequence[Tensor],
    shard: Shard,
) -> Tensor:
    """Sum Σᵢ Σ_{j≠i} φ(u1ᵢ·u2ⱼ) over this rank's i and all ranks' j, in one pass with the gradients
    of the whole sum.

    Args:
        views: This rank's embeddings of both views, shape (n_rank, q) each.
        factors: Factors that make the views u1 and u2, shape (n_rank,) each.
        phi: φ and φ′ of inner products.
        gradients: Buffers to which the gradients with respect to u1 and u2 are added.
        shard: The ranks.

    Returns:
        This rank's addend, a float64 scalar.
    """
    (z1_NQ, z2_NQ), (factor1_N, factor2_N), (gradient1_NQ, gradient2_NQ) = views, factors, gradients
    total = torch.zeros((), dtype=torch.float64, device=z1_NQ.device)
    n = len(z1_NQ)
    others = shard.others(*views, *factors)
    for rows in panels(n, n, z1_NQ):
        u_PQ = z1_NQ[rows] * factor1_N[rows, None]
        value_PM, slope_PM = phi((u_PQ @ z2_NQ.T).mul_(factor2_N))
        value_PM[:, rows].diagonal().zero_()
        slope_PM[:, rows].diagonal().zero_()
        total += value_PM.sum()
        gradient2_NQ.addmm_(slope_PM.T, u_PQ)
        gradient1_NQ[rows].addmm_(slope_PM.mul_(factor2_N), z2_NQ)
    for remote in others:
        for own, other in ((0, 1), (1, 0)):
            z_MQ, factor_M = remote[other], remote[2 + other]
            for rows in panels(n, len(z_MQ), z1_NQ):
                u_PQ = views[own][rows] * factors[own][rows, None]
                value_PM, slope_PM = phi((u_PQ @ z_MQ.T).mul_(factor_M))
                # The other order of the views is in the sum of the rank that has these first views.
                if own == 0:
                    total += value_PM.sum()
                gradients[own][rows].addmm_(slope_PM.mul_(factor_M), z_MQ)
    return total


def square(t: Tensor) -> tuple[Tensor, Tensor]:
    """Compute φ(t) = t² and φ′ = 2t."""
    return t.square(), 2 * t


def second_moment(
    z_NQ: Tensor, inverse_N: Tensor, shard: Shard, shift_Q: Tensor | None = None
) -> Tensor:
    """Sum Σᵢ uᵢ uᵢᵀ over all ranks, shape (q, q), for u = inverse · (z − shift)."""
    moment_QQ = z_NQ.new_zeros(z_NQ.shape[1], z_NQ.shape[1])
    for rows in chunks(z_NQ):
        u_PQ = (z_NQ[rows] if shift_Q is None else z_NQ[rows] - shift_Q) * inverse_N[rows, None]
        moment_QQ.addmm_(u_PQ.T, u_PQ)
    return shard.sum(moment_QQ)


def quadratic_energy(
    z_NQ: Tensor,
    inverse_N: Tensor,
    coefficients: tuple[float, float, float],
    gradient_NQ: Tensor,
    shard: Shard,
) -> Tensor:
    """Compute `energy` of φ(t) = c₀ + c₁ t + c₂ t² through the q × q second moment: 4 n q² FLOP and
    O(q²) scratch.

    The pairs i = j are taken off the value; to the gradient they add a multiple of uᵢ, which
    `to_embedding_gradient` removes.
    """
    constant, linear, quadratic = coefficients
    moment_QQ = second_moment(z_NQ, inverse_N, shard) if quadratic else None
    sum_Q = shard.sum(inverse_N @ z_NQ)
    constants = constant * len(z_NQ) * (shard.n - 1)
    total = torch.full((), constants, dtype=torch.float64, device=z_NQ.device)
    for rows in chunks(z_NQ):
        u_PQ = z_NQ[rows] * inverse_N[rows, None]
        squared_length_P = u_PQ.square().sum(dim=1)
        total += linear * (u_PQ @ sum_Q - squared_length_P).sum()
        if moment_QQ is not None:
            product_PQ = u_PQ @ moment_QQ
            total += quadratic * ((product_PQ * u_PQ).sum(dim=1) - squared_length_P.square()).sum()
            gradient_NQ[rows].add_(product_PQ, alpha=2 * quadratic)
        gradient_NQ[rows].add_(sum_Q, alpha=linear)
    return total


def to_embedding_gradient(gradient_NQ: Tensor, z_NQ: Tensor, inverse_N: Tensor) -> None:
    """Turn the gradient with respect to u = z/‖z‖ into the one with respect to z, in place."""
    for rows in chunks(z_NQ):
        u_PQ = z_NQ[rows] * inverse_N[rows, None]
        gradient_PQ = gradient_NQ[rows]
        radial_P = (gradient_PQ * u_PQ).sum(dim=1, keepdim=True)
        gradient_PQ.addcmul_(u_PQ, radial_P, value=-1).mul_(inverse_N[rows, None])
