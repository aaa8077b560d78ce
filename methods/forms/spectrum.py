"""The orders that a rotation-invariant kernel weighs: its Legendre expansion φ(t) = Σ_ℓ b_ℓ P_ℓ(q;
t).

b_ℓ is what the squared MMD to the uniform distribution pays for harmonics of order ℓ (Theorem 1 and
Table 1 of Zheng et al., ICLR 2023): SFRIK sets a few of them, every other kernel has all of them
set by its formula.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from regbench import methods
from regbench.methods.forms.kernel import KernelEnergy

Array = npt.NDArray[np.float64]


def log_harmonics(q: int, order: int) -> Array:
    """Compute the logarithm of N(q, ℓ), the number of independent spherical harmonics, for ℓ = 0 …
    order.

    N(q, ℓ) = (2ℓ + q − 2)/(ℓ + q − 2) · C(ℓ + q − 2, ℓ), so N(q, ℓ)/N(q, ℓ−1) is a short product; N
    itself overflows at the dimensions that projectors have.
    """
    orders = np.arange(1, order + 1, dtype=np.float64)
    if q == 2:
        return np.concatenate([[0.0], np.full(order, np.log(2.0))])
    ratios = (2 * orders + q - 2) / (2 * orders + q - 4) * (orders + q - 3) / orders
    return np.concatenate([[0.0], np.cumsum(np.log(ratios))])


def log_heat_weights(q: int, diffusion_time: float, order: int) -> Array:
    """Compute the logarithm of exp(−s λ_ℓ/q) N(q, ℓ), λ_ℓ = ℓ (ℓ + q − 2), the weights of the heat
    kernel at the time s/q, for ℓ = 0 … order.
    """
    orders = np.arange(order + 1)
    return log_harmonics(q, order) - diffusion_time / q * orders * (orders + q - 2)


def quadrature(q: int, nodes: int) -> tuple[Array, Array]:
    """Return nodes t and weights w of a Gauss quadrature: E f(u·v) ≈ Σ w f(t) for u, v uniform on
    the sphere.

    It is exact to degree 2·nodes − 1. The density of t is proportional to (1 − t²)^{(q−3)/2}. Nodes
    are eigenvalues of the Jacobi matrix of its orthonormal polynomials (Golub and Welsch, 1969),
    which are well scaled at every q.
    """
    # This takes a tenth of a second to import, and few losses need it.
    from scipy.linalg import eigh_tridiagonal

    beside = np.sqrt(_recurrence(q, nodes - 1))
    points, vectors = eigh_tridiagonal(np.zeros(nodes), beside)
    # The mass of the density, by which the squares would be multiplied, is 1.
    return points, vectors[0] ** 2


def _recurrence(q: int, count: int) -> Array:
    """Compute a_k², k = 1 … count, of t p_{k−1} = a_k p_k + a_{k−1} p_{k−2} for the orthonormal
    polynomials p.
    """
    k = np.arange(1, count + 1, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        squared: Array = k * (k + q - 3) / ((2 * k + q - 2) * (2 * k + q - 4))
    if q == 2:
        squared[:1] = 0.5  # the limit of 0/0
    return squared


def expand(phi: Callable[[Array], Array], q: int, order: int, nodes: int | None = None) -> Array:
    """Compute b_0 … b_order of φ(t) = Σ_ℓ b_ℓ P_ℓ(q; t), shape (order + 1,).

    b_ℓ = N(q, ℓ) E[φ(t) P_ℓ(q; t)] = √N(q, ℓ) E[φ(t) p_ℓ(t)] with the orthonormal p_ℓ = √N P_ℓ.
    Both factors are computed as such, so nothing overflows. The accuracy is limited by the rounding
    of φ, which is √N(q, ℓ) times as large in b_ℓ (about 1e-16 √(q^ℓ/ℓ!): six digits of b_4 at q =
    1000).

    Args:
        phi: The kernel as a function of inner products, any shape.
        q: Dimension, >= 2.
        order: Highest order, >= 0.
        nodes: Quadrature nodes; the default integrates polynomials of degree order + 80 exactly.
    """
    points, weights = quadrature(q, nodes or order + 41)
    values = phi(points) * weights
    squared = _recurrence(q, order)
    previous, last = np.zeros_like(points), np.ones_like(points)
    moments = [values.sum()]
    for degree in range(order):
        below = np.sqrt(squared[degree - 1]) if degree else 0.0
        previous, last = last, (points * last - below * previous) / np.sqrt(squared[degree])
        moments.append((values * last).sum())
    coefficients: Array = np.exp(0.5 * log_harmonics(q, order)) * np.array(moments)
    return coefficients


def kernel_spectrum(method: methods.Regularizer, q: int, order: int) -> tuple[float, ...] | None:
    """Expand a method's kernel: b_0 … b_order, see `expand`; None if it has no kernel of inner
    products.
    """
    if not isinstance(method, KernelEnergy):
        return None
    return tuple(expand(lambda t: method.kernel(torch.from_numpy(t), q).numpy(), q, order).tolist())
