"""Losses of covariances and spectra against their published formulas, evaluated here with NumPy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from regbench import methods
from regbench.instruments.conformance import value_and_gradients
from regbench.methods import w_mse as whitening
from regbench.methods.forms.pairwise import log_det_identity_plus, normalize
from regbench.processes import Place, Processes
from tests.methods.forms import as_an_engine_draws, evaluate, unit
from tests.methods.forms import terms_of as terms
from tests.methods.test_engine import joined
from tests.refusals import is_refused

Array = np.ndarray[Any, np.dtype[np.float64]]
Loss = Callable[[Tensor, Tensor], Tensor]

# n < q, n > q, n = 2, q = 2, n = q.
SHAPES = [(5, 9), (11, 3), (2, 4), (7, 2), (6, 6)]
every_shape = pytest.mark.parametrize(("n", "q"), SHAPES)


def draw(n: int, q: int, seed: int = 3) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    z1 = 0.2 + 0.7 * rng.standard_normal((n, q))
    return z1, z1 + 0.4 * rng.standard_normal((n, q))


def loss(name: str, z1: Array, z2: Array, **hyperparameters: Any) -> float:
    return evaluate(name, torch.from_numpy(z1), torch.from_numpy(z2), **hyperparameters)[0]


def covariance(z: Array, divisor: int) -> Array:
    """Σᵢ (zᵢ − z̄)(zᵢ − z̄)ᵀ / divisor, as a sum of outer products."""
    mean = z.sum(axis=0) / len(z)
    total = np.zeros((z.shape[1], z.shape[1]))
    for row in z:
        total += np.outer(row - mean, row - mean)
    return total / divisor


# Barlow Twins


def barlow_twins(z1: Array, z2: Array, weight: float, scale: float, eps: float) -> dict[str, float]:
    q = z1.shape[1]
    terms = {"alignment": 0.0, "redundancy": 0.0}
    for j, k in itertools.product(range(q), range(q)):
        a, b = z1[:, j], z2[:, k]
        c = np.mean((a - a.mean()) * (b - b.mean()))
        c /= math.sqrt((a.var() + eps) * (b.var() + eps))
        if j == k:
            terms["alignment"] += scale * (1 - c) ** 2
        else:
            terms["redundancy"] += scale * weight * c**2
    return terms


def test_barlow_twins_is_that_of_batch_normalisation() -> None:
    z1, z2 = (torch.from_numpy(z) for z in draw(12, 5))
    standard = torch.nn.BatchNorm1d(5, affine=False, dtype=torch.float64)
    c = (standard(z1).T @ standard(z2) / 12).numpy()
    expected = ((1 - np.diag(c)) ** 2).sum() + 0.0051 * (c[~np.eye(5, dtype=bool)] ** 2).sum()
    found = loss("barlow_twins", z1.numpy(), z2.numpy(), scale=1.0)
    assert found == pytest.approx(expected, rel=1e-10)


# VICReg-exp and VICReg-ctr


def vicreg_lse(
    z1: Array,
    z2: Array,
    tau: float,
    weights: tuple[float, ...],
    contrast: bool,
    of_rows: bool = False,
) -> float:
    n, q = z1.shape
    squares = [(x - y) ** 2 for x, y in zip(z1.ravel(), z2.ravel(), strict=True)]
    total = weights[0] * sum(squares) / (n * q)
    for z in (z1, z2):
        z = z - (z.mean(axis=1)[:, None] if of_rows else z.mean(axis=0))
        variables = z if contrast else z.T
        count, observations = variables.shape
        for i in range(count):
            deviation = math.sqrt(np.var(variables[i], ddof=1) + 1e-4)
            total += 0.5 * weights[1] * max(0.0, 1 - deviation) / count
            others = [variables[j] for j in range(count) if j != i]
            entries = [variables[i] @ other / (observations - 1) for other in others]
            total += weights[2] * math.log(sum(math.exp(c / tau) for c in entries)) / count
    return float(total)


def test_vicreg_exp_differs_from_vicreg_in_the_covariance_alone() -> None:
    z1, z2 = draw(8, 5)
    ours, vicreg = terms("vicreg_exp", z1, z2), terms("vicreg", z1, z2)
    for term in ("alignment", "variance"):
        assert ours[term] == pytest.approx(vicreg[term], rel=1e-12)
    assert ours["covariance"] != pytest.approx(vicreg["covariance"], rel=1e-3)


def test_vicreg_exp_at_a_low_temperature_is_the_largest_covariance() -> None:
    z, _ = draw(9, 4)
    c = covariance(z, 8)
    np.fill_diagonal(c, -math.inf)
    tau = 1e-4
    covariances = terms("vicreg_exp", z, z, temperature=tau)["covariance"]
    assert tau * covariances / 2 == pytest.approx(c.max(axis=1).mean(), abs=1e-3)


# FroSSL


def frossl(z1: Array, z2: Array, weight: float, centered: bool) -> float:
    views = [z - z.mean(axis=0) if centered else z for z in (z1, z2)]
    views = [z / np.sqrt((z**2).sum(axis=0)) for z in views]
    average = (views[0] + views[1]) / 2
    total = 0.0
    for z in views:
        eigenvalues = np.linalg.eigvalsh(z.T @ z / np.trace(z.T @ z))
        total += math.log((eigenvalues**2).sum())
        total += weight * 2 * ((z - average) ** 2).sum() / len(z)
    return total


# The log-determinants


@every_shape
def test_log_det_is_the_same_on_both_sides(n: int, q: int) -> None:
    z, _ = draw(n, q)
    for side in (np.eye(q) + 0.7 * z.T @ z, np.eye(n) + 0.7 * z @ z.T):
        found = log_det_identity_plus(torch.from_numpy(z), 0.7).item()
        assert found == pytest.approx(np.linalg.slogdet(side)[1], rel=1e-12)


def tcr(z1: Array, z2: Array, weight: float, distortion: float) -> float:
    n, q = z1.shape
    u1, u2 = unit(z1), unit(z2)
    total = 0.0
    for u in (u1, u2):
        rate = 0.5 * np.linalg.slogdet(np.eye(q) + q / (n * distortion) * u.T @ u)[1]
        cosines = [u[i] @ (u1[i] + u2[i]) / np.linalg.norm(u1[i] + u2[i]) for i in range(n)]
        total -= (weight * np.mean(cosines) + rate) / 2
    return total


def test_tcr_of_the_cosine_of_half_the_angle() -> None:
    z1, z2 = draw(7, 4)
    cosines = (unit(z1) * unit(z2)).sum(axis=1)
    expected = -200 * np.sqrt((1 + cosines) / 2).mean()
    assert terms("tcr", z1, z2)["alignment"] == pytest.approx(expected, rel=1e-12)


def corinfomax(z1: Array, z2: Array, weight: float, epsilon: float) -> float:
    n, q = z1.shape
    u1, u2 = unit(z1), unit(z2)
    total = weight * ((u1 - u2) ** 2).sum() / (n * q)
    for u in (u1, u2):
        total -= np.linalg.slogdet(covariance(u, n) + epsilon * np.eye(q))[1] / q
    return float(total)


@every_shape
def test_corinfomax_at_its_own_epsilon(n: int, q: int) -> None:
    """NumPy's determinant of a singular covariance plus 1e-8 is good to 1e-7 only, so from the
    singular values.
    """
    z1, z2 = draw(n, q)
    expected = 0.0
    for u in (unit(z1), unit(z2)):
        rank = min(n - 1, q)
        singular = np.sort(np.linalg.svd(u - u.mean(axis=0), compute_uv=False))[::-1]
        eigenvalues = singular[:rank] ** 2 / n
        expected -= (np.log(eigenvalues + 1e-8).sum() + (q - rank) * math.log(1e-8)) / q
    assert terms("corinfomax", z1, z2)["log-determinant"] == pytest.approx(expected, rel=1e-10)


def test_corinfomax_in_float32_with_more_dimensions_than_images() -> None:
    z1, z2 = (torch.from_numpy(z) for z in draw(16, 40))
    method = methods.build("corinfomax")
    exact = method.loss(z1, z2).item()
    assert method.loss(z1.float(), z2.float()).item() == pytest.approx(exact, rel=1e-5)


# I-VNE+


def ivne(z1: Array, z2: Array, weight1: float, weight2: float) -> float:
    n = len(z1)
    u1, u2 = unit(z1), unit(z2)
    total = -weight1 * sum(u1[i] @ u2[i] for i in range(n)) / n
    for u in (u1, u2):
        for s in np.linalg.svd(u, compute_uv=False):
            total += 0.5 * weight2 * s**2 / n * math.log(s**2 / n)
    return float(total)


@pytest.mark.parametrize(("z", "entropy"), [(np.eye(5), math.log(5)), (np.ones((5, 3)), 0.0)])
def test_ivne_entropy_of_orthonormal_and_of_collapsed_embeddings(z: Array, entropy: float) -> None:
    assert terms("ivne", z, z)["entropy"] == pytest.approx(-entropy, abs=1e-12)


# Matrix-SSL


def matrix_ssl(z1: Array, z2: Array, gamma: float, mu: float, shift: float, order: int) -> float:
    n, q = z1.shape
    centring = np.eye(n) - np.ones((n, n)) / n
    views = unit(z1), unit(z2)

    def log(m: Array) -> Array:
        x = m - np.eye(q)
        total = np.zeros_like(x)
        for k in range(1, order + 1):
            total += (-1) ** (k + 1) / k * np.linalg.matrix_power(x, k)
        return total

    def cov(a: int, b: int) -> Array:
        return np.asarray(views[a].T @ centring @ views[b] / n + shift * np.eye(q))

    total = 0.0
    for a, b in ((0, 1), (1, 0)):
        total -= 0.5 * np.trace(mu * np.eye(q) @ log(cov(a, b)))
        total -= 0.5 * gamma * np.trace(cov(a, a) @ log(cov(b, b)))
    return total


def test_matrix_ssl_of_a_high_order_is_the_log_determinant() -> None:
    z, _ = draw(8, 4)
    uniformity = terms("matrix_ssl", z, z, order=200)["uniformity"]
    expected = -np.linalg.slogdet(np.eye(4) + covariance(unit(z), 8))[1]
    assert uniformity == pytest.approx(expected, rel=1e-10)


# W-MSE and INTL


def w_mse(z1: Array, z2: Array, epsilon: float) -> float:
    whitened = []
    for z in (z1, z2):
        q = z.shape[1]
        factor = np.linalg.cholesky((1 - epsilon) * covariance(z, len(z) - 1) + epsilon * np.eye(q))
        white = [np.linalg.inv(factor) @ (row - z.mean(axis=0)) for row in z]
        whitened.append(unit(np.stack(white)))
    return float(((whitened[0] - whitened[1]) ** 2).sum() / len(z1))


def test_w_mse_of_more_dimensions_than_a_block_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whitening, "NARROW", 4)
    z1, z2 = draw(5, 23)
    for epsilon in (1.0, 0.3, 1e-3):
        found = loss("w_mse", z1, z2, epsilon=epsilon)
        assert found == pytest.approx(w_mse(z1, z2, epsilon), rel=1e-10)
    with pytest.raises(methods.NotComputable, match=r"W-MSE cannot be computed: linalg\.cholesky"):
        loss("w_mse", z1, z2, epsilon=0.0)


def test_w_mse_takes_all_pairs_of_views_alike() -> None:
    """Which are global does not matter: the authors' code has one kind of views."""
    (z1, z2), (z3, _) = draw(12, 3, seed=4), draw(12, 3, seed=5)
    expected = np.mean([w_mse(a, b, 0.01) for a, b in itertools.combinations((z1, z2, z3), 2)])
    method = methods.build("w_mse", epsilon=0.01)
    views = [torch.from_numpy(z) for z in (z1, z2, z3)]
    for global_views in (1, 2, 3):
        found = method.loss(*views, global_views=global_views).item()
        assert found == pytest.approx(expected, rel=1e-10)


def test_w_mse_of_random_sub_batches() -> None:
    z1, z2 = draw(12, 3, seed=4)
    with as_an_engine_draws():
        parts = torch.randperm(12).reshape(3, 4).numpy()
    expected = sum(w_mse(z1[part], z2[part], 0.01) for part in parts) / 3
    found = loss("w_mse", z1, z2, epsilon=0.01, sub_batch_size=4)
    assert found == pytest.approx(expected, rel=1e-10)
    whole = loss("w_mse", z1, z2, epsilon=0.01)
    for size in (12, 13):
        found = loss("w_mse", z1, z2, epsilon=0.01, sub_batch_size=size)
        assert found == pytest.approx(whole, rel=1e-12)
    with is_refused(r"method\.sub_batch_size=5 must divide the batch of 12 images"):
        loss("w_mse", z1, z2, sub_batch_size=5)


def intl(z1: Array, z2: Array, weight: float, iterations: int) -> float:
    n, q = z1.shape
    total, views = 0.0, []
    for z in (z1, z2):
        x = np.stack([row - row.mean() for row in z])
        sigma = np.array([[a @ b / (q - 1) for b in x] for a in x])
        eigenvalues, vectors = np.linalg.eigh(sigma)
        # P is a function of Σ, so Newton's steps act on its eigenvalues.
        p = np.ones(n)
        for _ in range(iterations):
            p = (3 * p - p**3 * eigenvalues / np.trace(sigma)) / 2
        w = vectors @ np.diag(p) @ vectors.T @ x / math.sqrt(np.trace(sigma))
        views.append(w)
        total += weight * sum((np.var(row, ddof=1) - 1) ** 2 for row in w)
    return float(total + 2 - 2 * (unit(views[0]) * unit(views[1])).sum() / n)


def test_intl_with_six_steps_whitens_few_images() -> None:
    z, _ = draw(4, 200)
    assert loss("intl", z, z, iterations=6) == pytest.approx(0, abs=1e-12)  # all variances are 1
    assert loss("intl", z, z, iterations=1) > 1e-2
    many, _ = draw(40, 12)
    assert loss("intl", many, many, iterations=6) > 1  # of rank 11, they cannot be white


def test_all_steps_of_intl_keep_the_digits_of_float32_near_a_point() -> None:
    z1, z2 = (torch.from_numpy(1 + 1e-2 * z).float() for z in draw(40, 12))
    exact = loss("intl", z1.double().numpy(), z2.double().numpy(), iterations=6)
    assert methods.build("intl", iterations=6).loss(z1, z2).item() == pytest.approx(exact, rel=1e-5)


# MMCR


def nuclear_norm(m: Array) -> float:
    """From the eigenvalues of the Gram matrix, not the singular values."""
    return float(np.sqrt(np.linalg.eigvalsh(m @ m.T if len(m) < m.shape[1] else m.T @ m)).sum())


@every_shape
def test_mmcr(n: int, q: int) -> None:
    z1, z2 = draw(n, q)
    u1, u2 = unit(z1), unit(z2)
    centroids = nuclear_norm((u1 + u2) / 2)
    assert loss("mmcr", z1, z2) == pytest.approx(-centroids, rel=1e-10)
    local = np.mean([math.sqrt(1 + c) + math.sqrt(1 - c) for c in (u1 * u2).sum(axis=1)])
    found = loss("mmcr", z1, z2, local_weight=0.3)
    assert found == pytest.approx(0.3 * local - centroids, rel=1e-9)


def test_the_gradient_of_mmcr_is_alike_for_images_that_are_alike() -> None:
    """Twins leave eigenvalues of 0, of which rounding makes small ones that must not be divided
    by.
    """
    z1, z2 = (torch.from_numpy(np.concatenate([z, z])) for z in draw(20, 60))
    leaf = z1.clone().requires_grad_()
    methods.build("mmcr").loss(leaf, z2, engine=methods.Engine(form="covariance")).backward()
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad[:20], leaf.grad[20:], rtol=1e-7, atol=1e-9)


# All of them

UNIT_WEIGHTS = {"alignment_weight": 2.0, "variance_weight": 3.0, "covariance_weight": 5.0}
OTHER_BARLOW_TWINS = {"redundancy_weight": 0.3, "scale": 1.0, "epsilon": 0.1}
OTHER_MATRIX_SSL = {"alignment_weight": 0.6, "identity_weight": 2.0, "shift": 0.5, "order": 3}
PUBLISHED: list[tuple[str, dict[str, Any], Callable[..., Any], tuple[Any, ...]]] = [
    ("barlow_twins", {}, barlow_twins, (0.0051, 0.024, 1e-5)),
    ("barlow_twins", OTHER_BARLOW_TWINS, barlow_twins, (0.3, 1.0, 0.1)),
    ("vicreg_exp", {}, vicreg_lse, (0.15, (25, 25, 1), False)),
    ("vicreg_exp", {"temperature": 0.7, **UNIT_WEIGHTS}, vicreg_lse, (0.7, (2, 3, 5), False)),
    ("vicreg_ctr", {}, vicreg_lse, (0.15, (25, 25, 1), True)),
    ("vicreg_ctr", {"temperature": 0.7, **UNIT_WEIGHTS}, vicreg_lse, (0.7, (2, 3, 5), True)),
    ("vicreg_ctr", {"centering": "coordinates"}, vicreg_lse, (0.15, (25, 25, 1), True, True)),
    ("frossl", {}, frossl, (1.0, True)),
    ("frossl", {"alignment_weight": 0.3, "centered": False}, frossl, (0.3, False)),
    ("tcr", {}, tcr, (200, 0.2)),
    ("tcr", {"alignment_weight": 3.0, "distortion": 0.05}, tcr, (3, 0.05)),
    ("corinfomax", {"epsilon": 1e-2}, corinfomax, (500, 1e-2)),
    ("corinfomax", {"alignment_weight": 3.0, "epsilon": 1e-4}, corinfomax, (3, 1e-4)),
    ("ivne", {}, ivne, (4.16, 1)),
    ("ivne", {"alignment_weight": 0.7, "entropy_weight": 3.0}, ivne, (0.7, 3)),
    ("matrix_ssl", {}, matrix_ssl, (1, 1, 1, 4)),
    ("matrix_ssl", {"order": 1}, matrix_ssl, (1, 1, 1, 1)),
    ("matrix_ssl", OTHER_MATRIX_SSL, matrix_ssl, (0.6, 2, 0.5, 3)),
    ("w_mse", {"epsilon": 0.3}, w_mse, (0.3,)),
    ("w_mse", {"epsilon": 1e-3}, w_mse, (1e-3,)),
    ("intl", {}, intl, (0.05, 4)),
    ("intl", {"trace_weight": 2.0, "iterations": 6}, intl, (2, 6)),
]


@every_shape
@pytest.mark.parametrize("published", PUBLISHED, ids=lambda published: published[0])
def test_published_formulas(published: tuple[Any, ...], n: int, q: int) -> None:
    name, settings, formula, numbers = published
    z1, z2 = draw(n, q)
    total, addends = evaluate(name, torch.from_numpy(z1), torch.from_numpy(z2), **settings)
    expected = formula(z1, z2, *numbers)
    found: Any = addends if isinstance(expected, dict) else total
    assert found == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(("n", "q"), [(11, 3), (7, 2)])
@pytest.mark.parametrize("epsilon", [1e-6, 0.0])
def test_w_mse_with_little_shrinkage(epsilon: float, n: int, q: int) -> None:
    z1, z2 = draw(n, q)
    expected = w_mse(z1, z2, epsilon)
    assert loss("w_mse", z1, z2, epsilon=epsilon) == pytest.approx(expected, rel=1e-10)


# Both sides of n = q


def matrix_ssl_of_covariances(z1: Tensor, z2: Tensor) -> Tensor:
    """The loss of μ = 0.5 and order 3 as it is published, by q × q matrices."""
    u1, u2 = (normalize(z) - normalize(z).mean(dim=0) for z in (z1, z2))
    identity = torch.eye(z1.shape[1], dtype=z1.dtype)

    def shifted(a: Tensor, b: Tensor) -> Tensor:
        return a.T @ b / len(a) + 0.5 * identity

    def log(m: Tensor) -> Tensor:
        x = m - identity
        return x - x @ x / 2 + x @ x @ x / 3

    of_first, of_second = shifted(u1, u1), shifted(u2, u2)
    total = torch.trace(of_first @ log(of_second)) + torch.trace(of_second @ log(of_first))
    return -torch.trace(log(shifted(u1, u2))) - total / 2


def w_mse_of_a_factor(z1: Tensor, z2: Tensor) -> Tensor:
    """The loss of ε = 0.01 as it is published, by q × q matrices."""
    whitened = []
    for z in (z1, z2):
        shrunk = 0.99 * torch.cov(z.T) + 0.01 * torch.eye(z.shape[1], dtype=z.dtype)
        factor = torch.linalg.cholesky(shrunk)
        whitened.append(normalize(torch.linalg.solve(factor, (z - z.mean(dim=0)).T).T))
    return (whitened[0] - whitened[1]).square().sum() / len(z1)


@pytest.mark.parametrize(("n", "q"), [(21, 20), (20, 20), (19, 20), (9, 60)])
@pytest.mark.parametrize(
    ("method", "published"),
    [
        (methods.build("matrix_ssl", shift=0.5, order=3), matrix_ssl_of_covariances),
        (methods.build("w_mse", epsilon=0.01), w_mse_of_a_factor),
    ],
)
def test_value_and_gradient_are_those_of_covariances(
    method: methods.Regularizer, published: Loss, n: int, q: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whitening, "NARROW", 4)
    leaves = [torch.from_numpy(z).requires_grad_() for z in draw(n, q)]
    wanted, found = published(*leaves), method.loss(*leaves)
    assert found.item() == pytest.approx(wanted.item(), rel=1e-10)
    gradients = torch.autograd.grad(found, leaves), torch.autograd.grad(wanted, leaves)
    for ours, theirs in zip(*gradients, strict=True):
        assert (ours - theirs).norm() <= 1e-10 * theirs.norm()


def of_half_the_rows(here: Place) -> list[list[Tensor]]:
    """Value and gradients of both methods on a rank that has one half of the images."""
    rows, engine = slice(4 * here.rank, 4 * here.rank + 4), methods.Engine(group=dist.group.WORLD)
    views = [torch.from_numpy(z)[rows] for z in draw(8, 1100)]
    both = methods.build("matrix_ssl"), methods.build("w_mse")
    return [value_and_gradients(method, views, engine)[0] for method in both]


def test_two_ranks_with_fewer_images_than_dimensions_give_the_same_as_one() -> None:
    views = [torch.from_numpy(z) for z in draw(8, 1100)]
    with Processes(2, joined) as ranks:
        answers = ranks.ask(of_half_the_rows)
    for number, name in enumerate(("matrix_ssl", "w_mse")):
        value, *gradients = value_and_gradients(methods.build(name), views)[0]
        for rank, answer in enumerate(answers):
            found, *parts = answer[number]
            assert found.item() == pytest.approx(value.item(), rel=1e-12)
            for part, whole in zip(parts, gradients, strict=True):
                # The mean over ranks, which DistributedDataParallel takes, is the gradient of the
                # whole batch.
                rows = whole[4 * rank : 4 * rank + 4]
                torch.testing.assert_close(part / 2, rows, rtol=1e-9, atol=1e-12)


# At the edges

NAMES = sorted({name for name, *_ in PUBLISHED} | {"mmcr"})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "case", ["more dimensions", "one coordinate", "a dead coordinate", "opposite", "zero"]
)
def test_gradient_is_finite_at_the_edges(name: str, case: str) -> None:
    z1, z2 = (torch.from_numpy(z).float() for z in draw(6, 15))
    if case == "one coordinate":
        z1, z2 = z1 * torch.eye(15)[0], z2 * torch.eye(15)[0]
    elif case == "a dead coordinate":
        z1[:, 3], z2[:, 3] = 0, 0
    elif case == "opposite":
        z2 = -z1
    elif case == "zero":
        z1, z2 = 0 * z1, 0 * z2
    for factor in (1e-4, 1.0, 1e3):
        leaf1, leaf2 = ((factor * z).requires_grad_() for z in (z1, z2))
        value = methods.build(name).loss(leaf1, leaf2)
        found = (value, *torch.autograd.grad(value, (leaf1, leaf2)))
        assert all(torch.isfinite(x).all() for x in found)
