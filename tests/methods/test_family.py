"""The newer members of the family against plain loops, and the identities between members."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from scipy.special import hyp0f1, hyp1f1

from regbench import methods
from tests.methods.forms import Array, draw, terms_of, unit

sizes = pytest.mark.parametrize(("n", "q"), [(2, 2), (7, 3), (4, 9)])


# Losses of released code, in loops.


@sizes
def test_vibcreg(n: int, q: int) -> None:
    """vibcreg/losses of ML4ITS/vibcreg."""
    z1, z2 = draw(n, q, seed=n)
    variance, covariance = 0.0, 0.0
    for z in (z1, z2):
        for j in range(q):
            variance += 25 * max(0.0, 1 - math.sqrt(np.var(z[:, j], ddof=1) + 1e-4)) / q
            for k in range(q):
                if j != k:
                    covariance += 200 * np.corrcoef(z[:, j], z[:, k])[0, 1] ** 2 / q**2
    assert terms_of("vibcreg", z1, z2) == {
        "alignment": pytest.approx(25 * ((z1 - z2) ** 2).mean(), rel=1e-10),
        "variance": pytest.approx(variance, rel=1e-10, abs=1e-12),
        "covariance": pytest.approx(covariance, rel=1e-9),
    }


@pytest.mark.parametrize("order", [1, 4, 5])
@sizes
def test_mec(n: int, q: int, order: int) -> None:
    """loss_func in main_pretrain.py of xinliu20/MEC, over the number of images and times its
    `lamda_inv`.
    """
    z1, z2 = draw(n, q, seed=10 + n)
    inverse = n * 3.0 / q
    c = unit(z1) @ unit(z2).T / inverse
    powers = [float(np.trace(np.linalg.matrix_power(c, k))) for k in range(1, order + 1)]
    series = [(-1) ** (k + 1) / k * power for k, power in enumerate(powers, 1)]
    terms = terms_of("mec", z1, z2, distortion=3.0, order=order)
    assert terms["alignment"] == pytest.approx(-inverse / n * series[0], rel=1e-10)
    rate = -inverse / n * sum(series[1:])
    assert terms["coding rate"] == pytest.approx(rate, rel=1e-9, abs=1e-12)


KERNELS = {  # k of pakoromilas/DHEL-KCL, of the distance; K is the same but for the logarithm
    "gaussian": (2.0, 1.0, lambda d: math.exp(-2 * d**2)),
    "log": (3.0, 0.5, lambda d: -math.log(3 * d**2 + 1)),
    "imq": (1.5, 1.0, lambda d: 1.5 / math.sqrt(1.5**2 + d**2)),
    "riesz": (-1.2, 1.0, lambda d: -(d**1.2)),
}


@sizes
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernel_contrastive_learning(kernel: str, n: int, q: int) -> None:
    scale, share, of_distance = KERNELS[kernel]
    u1, u2 = (unit(z) for z in draw(n, q, seed=20 + n))
    gaps = [[np.linalg.norm(u[i] - u[j]) for i in range(n) for j in range(i)] for u in (u1, u2)]
    energy = share * sum(float(np.mean([of_distance(d) for d in own])) for own in gaps)
    positives = [of_distance(float(np.linalg.norm(a - b))) for a, b in zip(u1, u2, strict=True)]
    terms = terms_of("kcl", 3 * u1, 0.2 * u2, kernel=kernel, scale=scale, energy_weight=5.0)
    assert terms == {
        "alignment": pytest.approx(-2 * float(np.mean(positives)), rel=1e-9),
        "energy": pytest.approx(5 * energy, rel=1e-9),
    }


@sizes
def test_weak_sigreg_without_a_sketch(n: int, q: int) -> None:
    """sigreg_weak_loss of kreasof-ai/sigreg, for fewer dimensions than its sketch has."""
    z1, z2 = draw(n, q, seed=60 + n)
    norms = [np.linalg.norm(np.cov(z.T) - np.eye(q)) for z in (z1, z2)]
    found = terms_of("weak_sigreg", z1, z2, regularization_weight=3.0)["normality"]
    assert found == pytest.approx(1.5 * sum(norms), rel=1e-10)


def test_weak_sigreg_sees_all_views_through_one_sketch() -> None:
    z1, z2 = draw(6, 9, seed=65)
    method = methods.build("weak_sigreg", sketch_dim=4)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        found = method.view_terms([torch.from_numpy(z) for z in (z1, z2)], 2)["normality"]
        torch.manual_seed(3)
        sketch = torch.randn(9, 4, dtype=torch.float64).numpy() / 3
    expected = [np.linalg.norm(np.cov((z @ sketch).T) - np.eye(4)) for z in (z1, z2)]
    assert found.item() == pytest.approx(sum(expected) / 2, rel=1e-10)


@pytest.mark.parametrize("statistic", ["cglt", "derivative"])
def test_ur_jepa(statistic: str) -> None:
    """ur_jepa/cglt.py of SPATIOLYX/UR-JEPA, in loops.

    Every embedding of either view is an anchor.
    """
    z1, z2 = draw(4, 3, seed=95)
    z = np.concatenate([z1, z2])
    largest = float(np.median([np.linalg.norm(x - z.mean(axis=0)) for x in z]))
    radii = [largest * 8 ** (-k / (5 * 2)) for k in range(6)]
    step = math.log(8) / (5 * 2)

    def log_density(x: Array, r: float) -> float:
        return math.log(sum(math.exp(-(((x - y) ** 2).sum()) / (2 * r * r)) for y in z) / 8 / r**2)

    def slope(x: Array, r: float) -> float:
        """Of the logarithm of the density against that of the radius."""
        gap = log_density(x, r * (1 + 1e-5)) - log_density(x, r * (1 - 1e-5))
        return gap / math.log((1 + 1e-5) / (1 - 1e-5))

    total, regularity = 0.0, 0.0
    for k, r in enumerate(radii):
        logs = [log_density(x, r) for x in z]
        regularity += float(np.var(logs)) / 6
        if statistic == "derivative":
            total += float(np.mean([slope(x, r) ** 2 for x in z]))
        elif k:
            wider = [log_density(x, radii[k - 1]) for x in z]
            total += float(np.mean((np.array(logs) - wider) ** 2))
    weights = {"regularization_weight": 0.1, "scale": 10.0}
    terms = terms_of("ur_jepa", z1, z2, statistic=statistic, dimension=2, **weights)
    assert terms == {
        "alignment": pytest.approx(0.9 * 0.25 * ((z1 - z2) ** 2).mean(), rel=1e-10),
        "rectifiability": pytest.approx(step * total, rel=1e-10 if statistic == "cglt" else 1e-8),
        "regularity": pytest.approx(0.1 * regularity, rel=1e-10),
    }


def heat_kernel(q: int, time: Decimal) -> Callable[[float], Decimal]:
    """The series of the heat kernel, in 160 digits, 1 at an inner product of 1."""
    orders, harmonics = range(1, 300), [Decimal(2 if q == 2 else q)]
    for k in orders:
        above, below = (2 * k + q) * (k + q - 2), (2 * k + q - 2) * (k + 1)
        harmonics.append(harmonics[-1] * above / below)
    weights = [(-time * k * (k + q - 2)).exp() * harmonics[k - 1] for k in orders]

    def kernel(t: float) -> Decimal:
        before, last, total = Decimal(1), Decimal(t), Decimal(1)
        for k, weight in zip(orders, weights, strict=True):
            total += weight * last
            before, last = last, ((2 * k + q - 2) * Decimal(t) * last - k * before) / (k + q - 2)
        return total

    one = kernel(1.0)
    return lambda t: kernel(t) / one


@pytest.mark.parametrize(("n", "q"), [(2, 2), (5, 3), (3, 256), (3, 512)])
def test_spherical_kl(n: int, q: int) -> None:
    """Eq. (13) in 160 digits, with embeddings that are nearly opposite too."""
    z1, z2 = draw(n, q, seed=90 + n)
    z1[0] = -z1[1] + 0.1 * z1[0]
    area = math.log(2) + q / 2 * math.log(math.pi) - math.lgamma(q / 2)
    with localcontext(prec=160):
        kernel = heat_kernel(q, Decimal(2) / q)
        logs = []
        for u in (unit(z1), unit(z2)):
            for i in range(n):
                others = [kernel(float(u[i] @ u[j])) for j in range(n) if j != i]
                logs.append(float((sum(others, Decimal(0)) / (n - 1)).ln()))
    terms = terms_of("spherical_kl", 3 * z1, 0.2 * z2)
    assert terms == {
        "alignment": pytest.approx(0.125 * ((unit(z1) - unit(z2)) ** 2).sum() / n, rel=1e-10),
        "entropy": pytest.approx(0.5 * float(np.mean(logs)) / abs(area), rel=1e-9),
        "constant": pytest.approx(0.5 if q > 18 else -0.5, rel=1e-12),
    }


def test_a_point_costs_1_by_the_kl_of_the_papers_size() -> None:
    point = np.ones((4, 256))
    terms = terms_of("spherical_kl", point, point, regularization_weight=1.0)
    assert sum(terms.values()) == pytest.approx(1, rel=1e-9)


def test_rdmreg_by_sorted_projections() -> None:
    """rdmreg_loss of YilunKuang/rectified-lp-jepa, of its own draws."""
    z1, z2 = draw(5, 3, seed=66)
    method = methods.build("rdmreg", directions=7, power=1.5, shift=0.2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        terms = method.view_terms([torch.from_numpy(z) for z in (z1, z2)], 2)
        torch.manual_seed(4)
        drawn = torch.randn(3, 7, dtype=torch.float64)
        directions = torch.nn.functional.normalize(drawn, dim=0).numpy()
        expected = 0.0
        sigma = math.gamma(1 / 1.5) ** 0.5 / (1.5 ** (1 / 1.5) * math.gamma(3 / 1.5) ** 0.5)
        gamma = torch.distributions.Gamma(torch.tensor(1 / 1.5, dtype=torch.float64), 1.0)
        for z in (z1, z2):
            magnitude = (1.5 * gamma.sample(torch.Size((5, 3)))) ** (1 / 1.5)
            sign = torch.randint(2, (5, 3)) * 2 - 1
            target = np.maximum(0, 0.2 + sigma * (sign * magnitude).numpy())
            for a in directions.T:
                gaps = np.sort(np.maximum(z, 0) @ a) - np.sort(target @ a)
                expected += float((gaps**2).mean()) / (2 * 7)
    assert terms["distribution"].item() == pytest.approx(125 * expected, rel=1e-10)
    gap = np.maximum(z1, 0) - np.maximum(z2, 0)
    assert terms["alignment"].item() == pytest.approx(25 * (gap**2).mean(), rel=1e-10)


@pytest.mark.parametrize(
    ("power", "shift", "second_moment"),
    [(1.0, 0.0, 0.5), (2.0, 0.0, 0.5), (1.0, -1.0, 0.5 * math.exp(-math.sqrt(2)))],
)
def test_rdmreg_of_zeros_is_the_second_moment_of_its_target(
    power: float, shift: float, second_moment: float
) -> None:
    """∫ max(0, m + g)² over a Laplace or a normal density of variance 1, by hand."""
    zeros = torch.zeros(2000, 8, dtype=torch.float64)
    target = {"power": power, "shift": shift, "regularization_weight": 1.0}
    method = methods.build("rdmreg", directions=64, **target)
    # The projections' squares have the mean of the coordinates' squares, plus what the mean vector
    # adds or takes.
    found = method(zeros, zeros).terms["distribution"].item()
    assert found == pytest.approx(second_moment, rel=0.15)


@pytest.mark.parametrize(("n", "q"), [(2, 2), (7, 3), (40, 2), (40, 30)])
def test_tregs(n: int, q: int) -> None:
    """By Kruskal's algorithm over all pairs."""
    z1, z2 = draw(n, q, seed=70 + n)
    lengths, off_sphere = 0.0, 0.0
    for z in (z1, z2):
        group = list(range(n))
        pairs = sorted(
            (float(np.linalg.norm(z[i] - z[j])), i, j) for i in range(n) for j in range(i)
        )
        for length, i, j in pairs:
            if group[i] != group[j]:
                lengths += length / n
                group = [group[i] if one == group[j] else one for one in group]
        off_sphere += float(((np.linalg.norm(z, axis=1) - 1) ** 2).mean())
    terms = terms_of("tregs", z1, z2, alignment_weight=2.0, length_weight=3.0, sphere_weight=5.0)
    assert terms == {
        "alignment": pytest.approx(2 * ((z1 - z2) ** 2).sum() / n, rel=1e-10),
        "length": pytest.approx(-3 * lengths, rel=1e-10),
        "sphere": pytest.approx(5 * off_sphere, rel=1e-10),
    }


# Identities.


def test_mec_of_many_terms_is_the_log_determinant() -> None:
    z1, z2 = draw(6, 4, seed=31)
    scale = 4 / (6 * 5.0)
    log_determinant = np.linalg.slogdet(np.eye(6) + scale * unit(z1) @ unit(z2).T)[1]
    terms = terms_of("mec", z1, z2, distortion=5.0, order=60)
    assert sum(terms.values()) == pytest.approx(-log_determinant / (6 * scale), rel=1e-10)


@sizes
def test_tico_has_the_value_of_the_quadratic_kernel_and_half_of_its_gradient(
    n: int, q: int
) -> None:
    pair = [torch.from_numpy(z).requires_grad_() for z in draw(n, q, seed=40 + n)]
    tico = methods.build("tico", covariance_weight=1.0)
    quadratic = methods.build("quadratic", alignment_weight=0.0)
    found, expected = tico(*pair), quadratic(*pair)
    for name in ("uniformity", "diagonal"):
        assert found.terms[name].item() == pytest.approx(expected.terms[name].item(), rel=1e-12)
    cosine = torch.nn.functional.cosine_similarity(pair[0], pair[1]).mean()
    assert found.terms["alignment"].item() == pytest.approx(1 - cosine.item(), rel=1e-12)
    own = torch.autograd.grad(found.total + cosine, pair)
    other = torch.autograd.grad(0.5 * expected.total, pair)
    torch.testing.assert_close(own, other, rtol=1e-9, atol=1e-12)


def test_spectral_contrastive_of_equal_unit_views_is_the_quadratic_kernel() -> None:
    u = unit(draw(7, 4, seed=50)[0])
    repulsion = terms_of("spectral_contrastive", u, u, mu=1.0)["repulsion"]
    assert repulsion == pytest.approx(7 / 6 * terms_of("quadratic", u, u)["uniformity"], rel=1e-12)


def slices(
    name: str, term: str, z1: Array, z2: Array, directions: int, seed: int, **more: float
) -> float:
    """A sliced statistic without its weight."""
    method = methods.build(name, directions=directions, regularization_weight=1.0, **more)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return method.view_terms([torch.from_numpy(z) for z in (z1, z2)], 2)[term].item()


def test_susreg_tends_to_its_mmd_as_the_root_of_its_slices() -> None:
    z1, z2 = draw(6, 4, seed=80)
    terms = terms_of("susreg_mmd", z1, z2, regularization_weight=1.0)
    # What a single point costs: the paper's statistic counts images, its successor's is 1 there.
    t, step = np.linspace(0, 9, 2001, retstep=True)
    point = 6 * 2 * step * ((1 - hyp0f1(2, -(t**2) / 4) ** 2) * np.exp(-(t**2) / 2)).sum()
    limit = point * (terms["uniformity"] + terms["diagonal"])
    assert slices("susreg", "uniformity", z1, z2, 30_000, 0) == pytest.approx(limit, rel=0.03)
    errors = [
        np.std([slices("susreg", "uniformity", z1, z2, count, seed) - limit for seed in range(30)])
        for count in (16, 1024)
    ]
    assert 5 < errors[0] / errors[1] < 13  # 8


def test_sigreg_tends_to_the_sliced_mmd_of_kerjepa() -> None:
    """SIGReg counts the pairs of an image and itself, of which the kernel is 1, and multiplies
    by √(2π) n.
    """
    z1, z2 = draw(6, 4, seed=81)
    n = 6
    found = slices("sigreg", "normality", z1, z2, 30_000, 0, knots=33, largest_frequency=8.0)
    found /= math.sqrt(2 * math.pi) * n
    own, others = 0.0, 0.0
    for z in (z1, z2):
        kernel = [
            [hyp1f1(0.5, 2, -((z[i] - z[j]) ** 2).sum() / 2) for j in range(n) if j != i]
            for i in range(n)
        ]
        crossed = np.mean([hyp1f1(0.5, 2, -(x**2).sum() / 4) for x in z]) / math.sqrt(2)
        rest = -2 * crossed + 1 / math.sqrt(3)
        own += ((n - 1) * np.mean(kernel) + 1) / (2 * n) + rest / 2
        others += np.mean(kernel) / 2 + rest / 2
    assert found == pytest.approx(own, rel=0.03)
    terms = terms_of("kerjepa_sliced_mmd", z1, z2, regularization_weight=1.0)
    assert terms["normality"] == pytest.approx(others, rel=1e-8)


def test_duplicates_have_finite_energy_at_any_scale() -> None:
    """By rounding, the square of their distance is below 0."""
    z = torch.randn(4, 16, generator=torch.Generator().manual_seed(0)).repeat(2, 1)
    method = methods.build("kcl_imq", scale=1e-4)
    assert math.isfinite(method.loss(z, z.clone()).item())


@pytest.mark.parametrize(("q", "digits"), [(1, 10), (2, 7), (3, 9), (8, 10), (512, 10), (8192, 10)])
def test_sliced_gaussian_kernel_by_quadrature(q: int, digits: int) -> None:
    """E exp(−x a²), the density of a coordinate a being ∝ (1 − a²)^{(q − 3)/2}: from near pairs
    to far ones.
    """
    theta = np.linspace(0, np.pi / 2, 100_001) if q > 1 else np.zeros(1)  # there are two directions
    density = np.sin(theta) ** (q - 2) if q > 1 else np.ones(1)
    density[[0, -1]] /= 2  # the trapezoid rule
    for distance in (0.0, 0.1, 1.0, 3.0):  # in units of the usual one, √(2q)
        z = torch.zeros(2, q, dtype=torch.float64)
        z[1, 0] = distance * math.sqrt(2 * q)
        weights = density / density.sum()
        square = distance**2 * q
        means = [(weights * np.exp(-x * np.cos(theta) ** 2)).sum() for x in (square, square / 2)]
        expected = means[0] - math.sqrt(2) / 2 * (1 + means[1]) + 1 / math.sqrt(3)
        terms = methods.build("kerjepa_sliced_mmd", regularization_weight=1.0)(z, z).terms
        assert terms["normality"].item() == pytest.approx(expected, abs=10.0**-digits)
