"""Losses by distances and distributions against evaluations in NumPy, written from the papers."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from regbench import methods
from regbench.instruments import conformance
from regbench.methods import Engine
from regbench.methods.forms.slicing import random_directions, standard_normal
from tests.methods.forms import Array, Operations, as_an_engine_draws, draw, terms_of, unit

SIZES = [(2, 2), (7, 3), (4, 9)]
sizes = pytest.mark.parametrize(("n", "q"), SIZES)


@sizes
@pytest.mark.parametrize("mu", [0.5, 100.0])
def test_spectral_contrastive(n: int, q: int, mu: float) -> None:
    z1, z2 = draw(n, q, seed=n)
    a, b = ([row * min(1.0, math.sqrt(mu) / np.linalg.norm(row)) for row in z] for z in (z1, z2))
    positive = sum(float(a[i] @ b[i]) for i in range(n)) / n
    squares = [float(a[i] @ b[j]) ** 2 for i in range(n) for j in range(n) if i != j]
    negative = sum(squares) / (n * (n - 1))
    terms = terms_of("spectral_contrastive", z1, z2, mu=mu)
    assert terms == {
        "attraction": pytest.approx(-2 * positive / mu, rel=1e-10),
        "repulsion": pytest.approx(negative / mu, rel=1e-10),
    }


@pytest.mark.parametrize("mu", [15.0, 30.0, 60.0, 300.0])
def test_embeddings_within_the_ball_are_not_clipped_in_any_form(mu: float) -> None:
    """With these radii, the radius divided by itself is less than 1 in torch."""
    error, where = conformance.forms(methods.build("spectral_contrastive", mu=mu))
    assert error < 1e-10, where


@sizes
def test_quadratic_is_the_second_order_of_sfrik(n: int, q: int) -> None:
    z1, z2 = draw(n, q, seed=20 + n)
    u1, u2 = unit(z1), unit(z2)
    pairs = [(i, j) for i in range(n) for j in range(n)]
    energies = [sum(float(u[i] @ u[j]) ** 2 for i, j in pairs) / n**2 for u in (u1, u2)]
    terms = terms_of("quadratic", z1, z2)
    assert terms["uniformity"] + terms["diagonal"] == pytest.approx(sum(energies) / 2, rel=1e-10)
    sfrik = terms_of("sfrik", z1, z2, weights=(0.0, 1.0))
    linked = (q * (terms["uniformity"] + terms["diagonal"]) - 1) / (q - 1)
    assert sfrik["uniformity"] + sfrik["diagonal"] == pytest.approx(linked, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("n", "q"), [*SIZES, (1100, 5)])  # more rows than are compared at a time
def test_koleo(n: int, q: int) -> None:
    z1, z2 = draw(n, q, seed=30 + n)
    logarithms = []
    for u in (unit(z1), unit(z2)):
        for i in range(n):
            nearest = np.linalg.norm(np.delete(u, i, axis=0) - u[i], axis=1).min()
            logarithms.append(math.log(nearest + 1e-8))
    terms = terms_of("koleo", z1, z2, uniformity_weight=0.3)
    assert terms["uniformity"] == pytest.approx(-0.3 * sum(logarithms) / (2 * n), rel=1e-10)
    expected = 1000 * ((unit(z1) - unit(z2)) ** 2).mean()
    assert terms["alignment"] == pytest.approx(expected, rel=1e-10)


def test_koleo_weighs_two_crops_as_dinov2() -> None:
    """DINOv2 adds 0.1 times the loss of each of its two crops."""
    z1, z2 = draw(6, 4, seed=33)
    crops = 0.0
    for u in (unit(z1), unit(z2)):
        similarity = u @ u.T - 3 * np.eye(6)
        nearest = similarity.argmax(axis=1)
        crops += 0.1 * -np.log(np.linalg.norm(u - u[nearest], axis=1) + 1e-8).mean()
    assert terms_of("koleo", z1, z2)["uniformity"] == pytest.approx(crops, rel=1e-7)


@sizes
def test_wasserstein_uniformity_is_the_distance_of_two_gaussians(n: int, q: int) -> None:
    """By the general formula tr(A + B − 2 (A^½ B A^½)^½) with eigenvalues, not by singular
    values.
    """
    z1, z2 = draw(n, q, seed=40 + n)
    u = np.concatenate([unit(z1), unit(z2)])
    covariance = np.cov(u.T, bias=True).reshape(q, q)
    values, vectors = np.linalg.eigh(covariance)
    root = vectors @ np.diag(np.sqrt(np.clip(values, 0, None))) @ vectors.T
    cross = np.linalg.eigvalsh(root @ (np.eye(q) / q) @ root)
    shared = np.sqrt(np.clip(cross, 0, None)).sum()
    squared = (u.mean(axis=0) ** 2).sum() + np.trace(covariance) + 1 - 2 * shared
    found = terms_of("wasserstein_uniformity", z1, z2, uniformity_weight=2.0)["uniformity"]
    assert found == pytest.approx(2 * math.sqrt(squared), rel=1e-7)


@sizes
def test_ssl_hsic(n: int, q: int) -> None:
    z1, z2 = draw(n, q, seed=50 + n)
    z = unit(np.concatenate([z1, z2]))

    def kernel(u: Array, v: Array) -> float:
        return 1.5 / math.sqrt(1.5**2 + float(((u - v) ** 2).sum()))

    gram = np.array([[kernel(u, v) for v in z] for u in z])
    centring = np.eye(2 * n) - 1 / (2 * n)
    dependence = np.trace(gram @ centring @ gram @ centring) / (2 * n) ** 2
    terms = terms_of("ssl_hsic", z1, z2, scale=1.5)
    positive = sum(kernel(z[i], z[n + i]) for i in range(n)) / n
    assert terms == {
        "positive pairs": pytest.approx(-positive, rel=1e-10),
        "all pairs": pytest.approx(gram.mean(), rel=1e-10),
        "self-dependence": pytest.approx(3 * math.sqrt(dependence), rel=1e-9),
    }


def test_sigreg_is_the_epps_pulley_statistic() -> None:
    """In one dimension there is one direction, and the double sum of the statistic has a closed
    form.
    """
    rng = np.random.default_rng(5)
    x1, x2 = rng.normal(size=(2, 12, 1))
    n = len(x1)
    expected = []
    for x in (x1[:, 0], x2[:, 0]):
        # ∫ |φ̂ − e^{−s²/2}|² e^{−s²/2} ds over the real line
        pairs = sum(math.exp(-((a - b) ** 2) / 2) for a in x for b in x) / n**2
        singles = sum(math.exp(-(a**2) / 4) for a in x) * math.sqrt(2) / n
        expected.append(n * math.sqrt(2 * math.pi) * (pairs - singles + 1 / math.sqrt(3)))
    z1, z2 = (np.concatenate([x, np.zeros_like(x)], axis=1)[:, :1] for x in (x1, x2))
    terms = terms_of("sigreg", z1, z2, knots=401, largest_frequency=12.0, regularization_weight=1.0)
    assert terms["normality"] == pytest.approx(sum(expected) / 2, rel=1e-6)
    assert terms["alignment"] == 0


def test_sigreg_by_its_quadrature() -> None:
    z1, z2 = draw(6, 4, seed=6)
    with as_an_engine_draws():
        directions = torch.randn(4, 1024, dtype=torch.float64).numpy()
    directions /= np.sqrt((directions**2).sum(axis=0))
    frequencies = [3 * k / 16 for k in range(17)]
    total = 0.0
    for z in (z1, z2):
        for a in directions.T:
            for k, s in enumerate(frequencies):
                error = abs(np.exp(1j * s * (z @ a)).mean() - math.exp(-(s**2) / 2)) ** 2
                total += 6 * (3 / 16) * (1 if k in (0, 16) else 2) * math.exp(-(s**2) / 2) * error
    terms = terms_of("sigreg", z1, z2)
    assert terms["normality"] == pytest.approx(0.05 * total / (2 * 1024), rel=1e-10)
    assert terms["alignment"] == pytest.approx(0.95 * ((z1 - (z1 + z2) / 2) ** 2).mean(), rel=1e-10)


def test_sigreg_in_the_weights_of_other_codes() -> None:
    """The mean of (Z₁ − Z₂)² + w ½ Σ_v EP(Z_v a), as of eb_jepa, is one of λ and s."""
    z1, z2 = draw(6, 1, seed=8)
    n, weight = len(z1), 10.0
    share = weight / (4 * n + weight)
    settings = {"knots": 401, "largest_frequency": 12.0}
    plain = terms_of("sigreg", z1, z2, regularization_weight=1.0, **settings)
    scaled = settings | {"regularization_weight": share, "scale": 4 / (1 - share)}
    terms = terms_of("sigreg", z1, z2, **scaled)
    assert terms["alignment"] == pytest.approx(((z1 - z2) ** 2).mean(), rel=1e-10)
    assert terms["normality"] == pytest.approx(weight * plain["normality"] / n, rel=1e-10)


@pytest.mark.parametrize("name", ["sigreg", "susreg"])
def test_a_sliced_test_takes_one_wave_of_each_projection_and_keeps_no_others(name: str) -> None:
    views = [torch.from_numpy(z).float().requires_grad_() for z in draw(40, 8, seed=11)]
    projections = 2 * 40 * 1024
    for form, waves in (("textbook", 16 * 2), ("auto", 1)):
        with Operations() as operations:
            methods.build(name).loss(*views, engine=Engine(form=form))
        counted = 0
        for operation, elements, _, _ in operations.made:
            if operation in ("sin", "cos", "polar"):
                counted += elements
        # Box and Muller's draw has some too.
        assert waves * projections <= counted <= waves * projections + 8 * 1024
        assert operations.largest <= 40 * 1024


@pytest.mark.parametrize("name", ["sigreg", "susreg"])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
def test_powers_of_waves_are_as_exact_as_the_textbook_in_float32(name: str, scale: float) -> None:
    """In the gradient and the statistic, where waves of the last frequency turn up to fifty
    times.
    """
    method = methods.build(name, regularization_weight=1.0)
    exact = [torch.from_numpy(scale * z) for z in draw(64, 32, seed=12)]

    def value_and_gradients(dtype: torch.dtype, form: str) -> list[torch.Tensor]:
        leaves = [z.to(dtype).requires_grad_() for z in exact]
        torch.manual_seed(0)
        value = method.loss(*leaves, engine=Engine(form=form))
        return [value.detach(), *torch.autograd.grad(value, leaves)]

    wanted = value_and_gradients(torch.float64, "textbook")
    ours, textbook = (value_and_gradients(torch.float32, form) for form in ("auto", "textbook"))
    for found, rounded, right in zip(ours, textbook, wanted, strict=True):
        assert (found - right).norm() <= 2 * (rounded - right).norm() + 5e-7 * right.norm()


@pytest.mark.parametrize("shape", [(16, 3), (8, 3), (5, 7), (512, 4)])
def test_normal_numbers_are_those_of_torch(shape: tuple[int, int]) -> None:
    torch.manual_seed(3)
    wanted = torch.randn(*shape, dtype=torch.float64)
    torch.manual_seed(3)
    found = standard_normal(*shape, torch.device("cpu"))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_visreg() -> None:
    z1, z2 = draw(5, 3, seed=7)
    with as_an_engine_draws():
        directions = torch.randn(3, 40, dtype=torch.float64).numpy()
    directions /= np.sqrt((directions**2).sum(axis=0))
    # The normal quantiles at i/6, from tables.
    far, near = 0.9674215661017014, 0.4307272992954576
    quantiles = [-far, -near, 0.0, near, far]
    center, scale, shape = 0.0, 0.0, 0.0
    for z in (z1, z2):
        mean, deviation = z.mean(axis=0), z.std(axis=0) + 1e-6
        center += (mean**2).mean() / 2
        scale += ((1 - deviation) ** 2).mean() / 2
        for a in directions.T:
            projections = sorted(((z - mean) / deviation) @ a)
            gaps = [(x - y) ** 2 for x, y in zip(projections, quantiles, strict=True)]
            shape += sum(gaps) / (5 * 40 * 2)
    weights = {"center_weight": 2.0, "scale_weight": 3.0, "shape_weight": 5.0}
    terms = terms_of("visreg", z1, z2, directions=40, **weights)
    assert terms == {
        "alignment": pytest.approx(0.1 * ((z1 - z2) ** 2).mean() / 4, rel=1e-10),
        "center": pytest.approx(0.9 * 2 * center, rel=1e-10),
        "scale": pytest.approx(0.9 * 3 * scale, rel=1e-10),
        "shape": pytest.approx(0.9 * 5 * shape, rel=1e-8),
    }


def test_no_gradient_of_visregs_shape_flows_through_the_deviation() -> None:
    """As if the deviations were numbers; those of the whole form, by differences, are others."""
    z1, z2 = (torch.from_numpy(z) for z in draw(6, 3, seed=9))
    weights = {"center_weight": 0.0, "scale_weight": 0.0, "regularization_weight": 1.0}
    method = methods.build("visreg", directions=40, **weights)
    with as_an_engine_draws():
        directions = torch.nn.functional.normalize(torch.randn(3, 40, dtype=torch.float64), dim=0)
    quantiles = torch.special.ndtri(torch.arange(1, 7, dtype=torch.float64) / 7)[:, None]

    def shape(z: torch.Tensor, deviation: torch.Tensor) -> torch.Tensor:
        projections = ((z - z.mean(dim=0)) / (deviation + 1e-6)) @ directions
        value: torch.Tensor = (projections.sort(dim=0).values - quantiles).square().mean() / 2
        return value

    leaf = z1.clone().requires_grad_()
    (fixed,) = torch.autograd.grad(shape(leaf, z1.std(dim=0, correction=0)), leaf)
    (flowing,) = torch.autograd.grad(shape(leaf, leaf.std(dim=0, correction=0)), leaf)
    torch.manual_seed(0)
    (found,) = torch.autograd.grad(method.loss(leaf, z2), leaf)
    torch.testing.assert_close(found, fixed)
    assert (found - flowing).norm() > 0.1 * found.norm()


def test_directions_are_drawn_where_the_embeddings_are() -> None:
    """A draw on a CPU takes longer than all else of a step on a GPU.

    Here one of tensors without data.
    """
    with FakeTensorMode(), Operations() as operations:
        directions = random_directions(8, 3, torch.empty(5, 8, device="cuda:0"))
    assert (str(directions.device), directions.shape) == ("cuda:0", (8, 3))
    draws = [device for name, *_, device in operations.made if name.startswith("randn")]
    assert draws == ["cuda:0"]


@pytest.mark.parametrize("name", ["sigreg", "visreg"])
@pytest.mark.parametrize("form", ["auto", "textbook"])
def test_the_engines_seed_alone_decides_the_directions(name: str, form: str) -> None:
    z1, z2 = (torch.from_numpy(z) for z in draw(6, 4, seed=8))
    method = methods.build(name, directions=3)
    found = []
    for seed, number in ((1, 7), (2, 7), (2, 8)):
        torch.manual_seed(seed)
        engine = Engine(form=form, draw_seed=partial(int, number))
        found.append(method.loss(z1, z2, engine=engine).item())
        after = torch.rand(())
        torch.manual_seed(seed)
        assert torch.equal(after, torch.rand(()))  # the caller's stream is left alone
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("name", ["sigreg", "visreg"])
def test_directions_are_drawn_anew_and_follow_the_seed(name: str) -> None:
    z1, z2 = (torch.from_numpy(z) for z in draw(6, 4, seed=8))
    method = methods.build(name, directions=3)
    torch.manual_seed(1)
    first, second = method.loss(z1, z2).item(), method.loss(z1, z2).item()
    torch.manual_seed(1)
    assert method.loss(z1, z2).item() == first
    assert second != first


def kernel(name: str, x: torch.Tensor, y: torch.Tensor, square: float) -> torch.Tensor:
    squared = (x - y).square().sum()
    return (-squared / (2 * square)).exp() if name == "gaussian" else (1 + squared / square) ** -0.5


@sizes
@pytest.mark.parametrize("name", ["gaussian", "imq"])
def test_kerjepa_ksd_is_the_mean_of_the_stein_kernel(name: str, n: int, q: int) -> None:
    """By its definition: s(x)·s(y) k + s(x)·∇_y k + s(y)·∇_x k + tr ∇_x ∇_y k with the score
    s(x) = −x.
    """
    z1, z2 = draw(n, q, seed=70 + n)
    total = 0.0
    for z in (torch.from_numpy(z1), torch.from_numpy(z2)):
        for i, a in enumerate(z):
            for j, b in enumerate(z):
                if i == j:
                    continue
                x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
                k = kernel(name, x, y, 0.7 * q)
                along_x, along_y = torch.autograd.grad(k, (x, y), create_graph=True)
                mixed = [torch.autograd.grad(each, y, retain_graph=True)[0] for each in along_x]
                stein = (x @ y) * k - x @ along_y - y @ along_x + torch.stack(mixed).trace()
                total += stein.item() / (2 * n * (n - 1))
    terms = terms_of("kerjepa", z1, z2, kernel=name, bandwidth=0.7, regularization_weight=3.0)
    assert terms["normality"] == pytest.approx(3 * total, rel=1e-9)
    assert terms["alignment"] == pytest.approx(((z1 - z2) ** 2).mean(), rel=1e-10)


@pytest.mark.parametrize("name", ["kerjepa_ksd_imq", "kerjepa_ksd_gaussian", "kerjepa_mmd"])
def test_kerjepa_prefers_normal_embeddings_to_the_origin(name: str) -> None:
    """With more dimensions than images too, where the pairs of an image and itself would
    outweigh all others.
    """
    z, _ = draw(8, 64, seed=81)
    normal, origin = (terms_of(name, x, x)["normality"] for x in (z, 0 * z))
    assert normal < 0.2 * origin


def test_kerjepa_mmd_by_quadrature() -> None:
    """The expectations over N(0, I) in two dimensions by Gauss-Hermite quadrature."""
    z1, z2 = draw(5, 2, seed=80)
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    weights = weights / weights.sum()
    points = np.array([(a, b) for a in nodes for b in nodes])
    mass = np.array([u * v for u in weights for v in weights])
    square = 0.6 * 2

    def gram(x: Array, y: Array) -> Array:
        values: Array = np.exp(-((x[:, None] - y) ** 2).sum(axis=2) / (2 * square))
        return values

    prior = mass @ gram(points, points) @ mass
    off = ~np.eye(5, dtype=bool)
    within = [gram(z, z)[off].mean() for z in (z1, z2)]
    crossed = [(gram(z, points) @ mass).mean() for z in (z1, z2)]
    terms = terms_of("kerjepa_mmd", z1, z2, bandwidth=0.6, regularization_weight=1.0)
    assert terms["normality"] == pytest.approx(sum(within) / 2 - sum(crossed) + prior, rel=1e-9)
