"""Legendre expansions: recurrences, closed forms of the paper, and the spherical discrepancies
made of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np
import pytest
import torch

from regbench import methods
from regbench.methods.forms.kernel import KernelEnergy, legendre, legendre_series
from regbench.methods.forms.spectrum import expand, kernel_spectrum, log_harmonics, quadrature
from tests.methods.forms import Array


def harmonics(q: int, order: int) -> int:
    """N(q, ℓ) of the paper's appendix, in integers."""
    if order == 0:
        return 1
    if q == 2:
        return 2
    below = math.factorial(order) * math.factorial(q - 2)
    return (2 * order + q - 2) * math.factorial(order + q - 3) // below


def exact_legendre(order: int, t: Fraction, q: int) -> Fraction:
    """P_ℓ(q; t) by the recurrence in rational numbers."""
    before, last = Fraction(1), t
    if order == 0:
        return before
    for degree in range(1, order):
        following = (2 * degree + q - 2) * t * last - degree * before
        before, last = last, following / Fraction(degree + q - 2)
    return last


@pytest.mark.parametrize("q", [2, 3, 17, 65_536])
@pytest.mark.parametrize("order", [0, 1, 2, 3, 10, 40])
def test_legendre_is_stable_at_any_dimension(q: int, order: int) -> None:
    points = [Fraction(k, 8) for k in range(-8, 9)]
    t = torch.tensor([float(x) for x in points], dtype=torch.float64)
    unit = [0.0] * order + [1.0]
    for found in (legendre(order, t, q)[-1], legendre_series(unit, t, q)):
        exact = [float(exact_legendre(order, x, q)) for x in points]
        assert found.tolist() == pytest.approx(exact, rel=1e-11, abs=1e-13)
        assert found.abs().max() <= 1 + 1e-12
        assert found[-1].item() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("q", [2, 3, 64])
def test_series_is_differentiable_twice(q: int) -> None:
    t = torch.linspace(-0.9, 0.9, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: legendre_series([1.0, 2.0, -1.0, 0.5], x, q), t)
    assert torch.autograd.gradgradcheck(lambda x: legendre_series([1.0, 2.0, -1.0, 0.5], x, q), t)


@pytest.mark.parametrize("q", [2, 3, 4, 11, 300])
def test_number_of_harmonics(q: int) -> None:
    exact = [math.log(harmonics(q, order)) for order in range(9)]
    assert log_harmonics(q, 8).tolist() == pytest.approx(exact, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("q", [2, 3, 10, 1000, 65_536])
def test_quadrature_has_the_moments_of_a_coordinate(q: int) -> None:
    points, weights = quadrature(q, 6)
    moment = 1.0
    for degree in range(0, 12, 2):
        assert (weights * points**degree).sum() == pytest.approx(moment, rel=1e-10)
        assert (weights * points ** (degree + 1)).sum() == pytest.approx(0, abs=1e-14)
        moment *= (degree + 1) / (q + degree)


def expansion(name: str, q: int, order: int, **hyperparameters: object) -> Array:
    method = methods.build(name, **hyperparameters)
    assert isinstance(method, KernelEnergy)
    return expand(lambda t: method.kernel(torch.from_numpy(t), q).numpy(), q, order)


@pytest.mark.parametrize("q", [2, 3, 50, 8192, 65_536])
def test_sfrik_has_the_weights_it_is_given(q: int) -> None:
    found = expansion("sfrik", q, 5, weights=(1.0, 40.0, 40.0, 7.0))
    precision = 1e-15 * 88 * math.exp(0.5 * log_harmonics(q, 5)[-1])
    assert found == pytest.approx([0, 1, 40, 40, 7, 0], abs=10 * precision + 1e-12)


@pytest.mark.parametrize("q", [3, 5, 24])
@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_rbf_by_modified_bessel_functions(q: int, scale: float) -> None:
    """b_ℓ = N(q, ℓ) e^{−2t} Γ(q/2) t^{1−q/2} I_{ℓ+q/2−1}(2t), with the power series of I."""

    def bessel(nu: float, x: float) -> float:
        below = [math.factorial(k) * math.gamma(k + nu + 1) for k in range(60)]
        return math.fsum((x / 2) ** (2 * k + nu) / each for k, each in enumerate(below))

    front = math.exp(-2 * scale) * math.gamma(q / 2) * scale ** (1 - q / 2)
    exact = [harmonics(q, k) * front * bessel(k + q / 2 - 1, 2 * scale) for k in range(7)]
    assert expansion("rbf", q, 6, scale=scale) == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize("q", [3, 10, 100])
def test_rbf_is_within_the_papers_bound(q: int) -> None:
    """b_ℓ <= N(q, ℓ) |S^{q−2}|/|S^{q−1}| Γ((q−1)/2)/(2^ℓ Γ(ℓ+(q−1)/2)) · 2 (2σ)^ℓ (appendix on
    the expansion).
    """
    sigma = 2.0
    # |S^{q−2}|/|S^{q−1}|
    ratio = math.exp(math.lgamma(q / 2) - math.lgamma((q - 1) / 2)) / math.sqrt(math.pi)
    for order, b in enumerate(expansion("rbf", q, 6, scale=sigma)):
        front = math.exp(math.lgamma((q - 1) / 2) - math.lgamma(order + (q - 1) / 2)) / 2**order
        bound = harmonics(q, order) * ratio * front * 2 * (2 * sigma) ** order
        assert 0 < b <= bound


@pytest.mark.parametrize(("q", "p"), [(3, 1.0), (6, 0.5), (40, 1.5)])
def test_generalized_distance_by_gamma_functions(q: int, p: float) -> None:
    """The expansion of −(2 − 2t)^{p/2}: moments of 1 − t against P_ℓ, by Rodrigues' formula and
    a beta integral.
    """
    exact = []
    for order in range(1, 5):
        # E[(1 − t)^s P_ℓ] = (−s)_ℓ / (ℓ + …): from ∫ (1−t)^{s+ν} (1+t)^{ν+…}, ν = (q − 3)/2
        s, nu = p / 2, (q - 3) / 2
        falling = math.prod(s - k for k in range(order))
        logarithm = (
            math.lgamma(nu + 1)
            - math.lgamma(order + nu + 1)
            - order * math.log(2)
            + (s + nu + 1 + order + nu) * math.log(2)
            + math.lgamma(s + nu + 1)
            + math.lgamma(order + nu + 1)
            - math.lgamma(s + order + 2 * nu + 2)
            - (2 * nu + 1) * math.log(2)
            - 2 * math.lgamma(nu + 1)
            + math.lgamma(2 * nu + 2)
        )
        moment = (-1) ** order * falling * math.exp(logarithm)
        exact.append(-(2**s) * harmonics(q, order) * moment)
    method = methods.build("generalized_distance", exponent=p)
    assert isinstance(method, KernelEnergy)
    kernel = method.kernel
    # (1 − t)^{p/2} is no polynomial: the quadrature needs many nodes near t = 1, the more the
    # smaller q is.
    found = expand(lambda t: kernel(torch.from_numpy(t), q).numpy(), q, 4, nodes=1500)
    assert found[1:] == pytest.approx(exact, rel=2e-4)
    assert (found[1:] > 0).all()


def test_sfrik_weighs_the_orders_that_it_sets() -> None:
    found = kernel_spectrum(methods.build("sfrik"), 512, 4)
    assert found is not None
    assert found[1:] == pytest.approx([1, 40, 40, 0], abs=1e-6)
    assert kernel_spectrum(methods.build("vicreg"), 512, 4) is None


# Spherical MMD and KSD.


def directions(n: int, q: int, generator: torch.Generator) -> torch.Tensor:
    """Unit vectors."""
    drawn = torch.randn(n, q, dtype=torch.float64, generator=generator)
    return torch.nn.functional.normalize(drawn)


def weighted_mean(weights: Sequence[float], polynomials: Iterable[torch.Tensor]) -> float:
    """The mean over pairs and, by these weights, over polynomials."""
    terms = [w * p.mean().item() for w, p in zip(weights, polynomials, strict=True)]
    return sum(terms) / sum(weights)


def value_of(name: str, u: torch.Tensor, **hyperparameters: object) -> float:
    terms = methods.build(name, regularization_weight=1.0, **hyperparameters)(u, u).terms
    return (terms["uniformity"] + terms["diagonal"]).item()


PRESETS = ["mmd_heat", "mmd_bandlimited", "ksd_heat", "ksd_bandlimited"]


@pytest.mark.parametrize("name", ["susreg_mmd", *(f"spherical_{preset}" for preset in PRESETS)])
@pytest.mark.parametrize("q", [2, 5, 256, 8192])
def test_a_point_has_discrepancy_one_and_the_uniform_distribution_zero(name: str, q: int) -> None:
    point = torch.ones(3, q, dtype=torch.float64)
    assert value_of(name, point) == pytest.approx(1, rel=1e-9)
    method = methods.build(name, regularization_weight=1.0)
    assert isinstance(method, KernelEnergy)
    nodes, weights = quadrature(q, 200)
    uniform = (weights * method.kernel(torch.from_numpy(nodes), q).numpy()).sum()
    assert uniform == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("q", [3, 8])
def test_heat_kernel_on_the_sphere(q: int) -> None:
    """Eqs. (10) and (11): φ = Σ e^{−tλ} N P / Z from the sum as it stands, and MMD = (mean φ −
    b_0)/(1 − b_0).
    """
    t, orders = 0.7 / q, range(60)
    u = directions(6, q, torch.Generator().manual_seed(1))
    weights = [math.exp(-t * k * (k + q - 2)) * harmonics(q, k) for k in orders]
    gram = (u @ u.T).clamp(-1, 1)
    mean_phi = weighted_mean(weights, legendre(59, gram, q))
    bias = weights[0] / sum(weights)
    found = value_of("spherical_mmd", u, diffusion_time=0.7)
    assert found == pytest.approx((mean_phi - bias) / (1 - bias), rel=1e-10)


@pytest.mark.parametrize("name", ["spherical_mmd_heat", "spherical_ksd_heat"])
@pytest.mark.parametrize("time", [5.0, 18.0, 40.0, 100.0, 1000.0])
@pytest.mark.parametrize("q", [3, 64, 512])
def test_heat_kernels_keep_their_digits_at_any_time(name: str, time: float, q: int) -> None:
    """With the orders' shares as the equations have them, relative to the first, in which
    nothing can cancel.
    """
    u = directions(8, q, torch.Generator().manual_seed(0))
    orders = range(1, 40)
    shares = [math.exp(-time / q * (k - 1) * (k + q - 1)) * harmonics(q, k) / q for k in orders]
    if name == "spherical_ksd_heat":
        shares = [share * k * (k + q - 2) for share, k in zip(shares, orders, strict=True)]
    wanted = weighted_mean(shares, legendre(39, u @ u.T, q)[1:])
    assert value_of(name, u, diffusion_time=time) == pytest.approx(wanted, rel=1e-9)
    assert value_of(name, u.float(), diffusion_time=time) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("q", [3, 12])
def test_kernel_stein_discrepancy_by_derivatives(q: int) -> None:
    """Eq. (12): ½ ((c² − 1) φ″ + (q − 1) c φ′), divided by (q − 1) φ′(1)/2, with φ the
    band-limited kernel.
    """
    u = directions(5, q, torch.Generator().manual_seed(2))
    numbers = [float(harmonics(q, k)) for k in range(4)]

    def phi(c: torch.Tensor) -> torch.Tensor:
        terms = [n * p for n, p in zip(numbers, legendre(3, c, q), strict=True)]
        return torch.stack(terms).sum(dim=0)

    c = (u @ u.T).requires_grad_()
    (first,) = torch.autograd.grad(phi(c).sum(), c, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), c)
    stein = 0.5 * ((c**2 - 1) * second + (q - 1) * c * first)
    one = torch.ones((), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(phi(one), one)
    expected = (stein.mean() / ((q - 1) / 2 * slope)).item()
    assert value_of("spherical_ksd_bandlimited", u, order=3) == pytest.approx(expected, rel=1e-9)


def test_susreg_kernel_is_the_mean_over_slices() -> None:
    """Eq. (4): φ(t) = E exp(−(a·(x − y))²/2) over uniform directions a, here with many of them."""
    q = 4
    generator = torch.Generator().manual_seed(3)
    u = directions(4, q, generator)
    projections = u @ directions(400_000, q, generator).T
    gaps = (projections[:, None] - projections) ** 2 / 2
    mean = (-gaps).exp().mean().item()
    nodes, weights = quadrature(q, 100)
    bias = weights @ np.exp(-np.outer(1 - nodes, nodes**2)) @ weights
    assert value_of("susreg_mmd", u) == pytest.approx((mean - bias) / (1 - bias), rel=0.02)


def test_alignment_is_the_distance_to_the_mean_of_the_views() -> None:
    z = torch.randn(2, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    u1, u2 = torch.nn.functional.normalize(z, dim=2)
    centre = (u1 + u2) / 2
    expected = 0.5 * sum((u - centre).square().sum(dim=1).mean().item() for u in (u1, u2))
    terms = methods.build("spherical_mmd", regularization_weight=0.25)(*z).terms
    assert terms["alignment"].item() == pytest.approx(0.75 * expected, rel=1e-12)
