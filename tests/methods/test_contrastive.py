"""Contrastive losses against loops in plain Python, written from the papers."""

from __future__ import annotations

import math

import pytest
import torch

from regbench import methods
from tests.methods.test_formulas import dot, draw, loss_of, unit


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


SIZES = [(2, 2), (5, 3), (4, 7)]


@pytest.mark.parametrize(("n", "q"), SIZES)
@pytest.mark.parametrize("temperature", [0.1, 0.7])
def test_dcl(n: int, q: int, temperature: float) -> None:
    z1, z2 = draw(n, q, seed=n)
    u = {1: unit(z1), 2: unit(z2)}
    losses = []
    for i in range(n):
        for view in (1, 2):
            others = [dot(u[view][i], u[other][j]) for j in range(n) if j != i for other in (1, 2)]
            positive = dot(u[1][i], u[2][i]) / temperature
            negatives = math.fsum(math.exp(t / temperature) for t in others)
            losses.append(math.log(negatives) - positive)
    assert loss_of("dcl", z1, z2, temperature=temperature) == pytest.approx(mean(losses), rel=1e-10)


@pytest.mark.parametrize(("n", "q"), SIZES)
def test_dclw_weighs_the_positive_pairs_of_dcl(n: int, q: int) -> None:
    z1, z2 = draw(n, q, seed=10 + n)
    positives = [dot(a, b) for a, b in zip(unit(z1), unit(z2), strict=True)]
    total = math.fsum(math.exp(t / 0.3) for t in positives)
    weights = [2 - math.exp(t / 0.3) / (total / n) for t in positives]
    assert mean(weights) == pytest.approx(1)
    difference = mean([t - w * t for w, t in zip(weights, positives, strict=True)]) / 0.2
    weighted = loss_of("dclw", z1, z2, temperature=0.2, sigma=0.3)
    plain = loss_of("dcl", z1, z2, temperature=0.2)
    assert weighted - plain == pytest.approx(difference, abs=1e-10)


@pytest.mark.parametrize(("n", "q"), SIZES)
def test_dhel(n: int, q: int) -> None:
    z1, z2 = draw(n, q, seed=20 + n)
    u1, u2 = unit(z1), unit(z2)
    losses = []
    for i in range(n):
        others = [j for j in range(n) if j != i]
        energies = [math.fsum(math.exp(dot(u[i], u[j]) / 0.3) for j in others) for u in (u1, u2)]
        losses.append(-math.log(math.exp(dot(u1[i], u2[i]) / 0.3) / (energies[0] * energies[1])))
    assert loss_of("dhel", z1, z2) == pytest.approx(mean(losses), rel=1e-10)


@pytest.mark.parametrize(("n", "q"), SIZES)
def test_info_nce_is_a_cross_entropy(n: int, q: int) -> None:
    z1, z2 = draw(n, q, seed=30 + n)
    u1, u2 = unit(z1), unit(z2)
    losses = []
    for i in range(n):
        candidates = [math.exp(dot(u1[i], u2[j]) / 0.4) for j in range(n)]
        losses.append(-math.log(candidates[i] / math.fsum(candidates)))
    assert loss_of("info_nce", z1, z2) == pytest.approx(mean(losses), rel=1e-10)


@pytest.mark.parametrize(("n", "q"), SIZES)
def test_hardest_contrastive(n: int, q: int) -> None:
    z1, z2 = draw(n, q, seed=40 + n)
    u1, u2 = unit(z1), unit(z2)
    positive = mean([max(0, math.dist(a, b) ** 2 - 0.1) for a, b in zip(u1, u2, strict=True)])
    nearest1 = [min(math.dist(u1[i], u2[j]) for j in range(n) if j != i) for i in range(n)]
    nearest2 = [min(math.dist(u2[i], u1[j]) for j in range(n) if j != i) for i in range(n)]
    negatives = [max(0, 1.4 - distance) ** 2 for distance in (*nearest1, *nearest2)]
    expected = positive + 3.0 * mean(negatives)
    found = loss_of("hardest_contrastive", z1, z2, negative_weight=3.0)
    assert found == pytest.approx(expected, rel=1e-10)


def test_hardest_contrastive_is_zero_within_its_margins() -> None:
    u1 = torch.eye(3, dtype=torch.float64)  # at distances of √2 > 1.4
    u2 = torch.nn.functional.normalize(u1 + 0.1 * u1.roll(1, dims=1), dim=1)
    losses = []
    strict = {"negative_margin": 1.3, "positive_margin": 0.0}
    for margins in ({"negative_margin": 1.3}, {"negative_margin": 1.4}, strict):
        method = methods.build("hardest_contrastive", **margins)
        losses.append(method.loss(u1, u2).item())
    assert losses[0] == 0 < min(losses[1:])


def test_simclr_is_dcl_with_the_positive_pair_in_the_sum() -> None:
    """Where the positive pairs are orthogonal their share of the sum is known: 1."""
    u1 = torch.eye(4, dtype=torch.float64)
    u2 = u1.roll(1, dims=1)
    # of another image: five orthogonal ones and one that is equal
    others = 2 * 3 - 1 + math.exp(1 / 0.2)
    both = [methods.build(name, temperature=0.2) for name in ("simclr", "dcl")]
    simclr, dcl = (method.loss(u1, u2).item() for method in both)
    assert dcl == pytest.approx(math.log(others), rel=1e-12)
    assert simclr == pytest.approx(math.log(others + 1), rel=1e-12)


@pytest.mark.parametrize("name", ["simclr", "dcl", "dhel", "info_nce"])
def test_small_temperatures_stay_finite_in_float32(name: str) -> None:
    z1, z2 = (torch.tensor(z) for z in draw(6, 4, seed=50))
    method = methods.build(name, temperature=0.004)  # exp(1/τ) is beyond float32
    loss, _ = method(z1.requires_grad_(), z2.requires_grad_())
    gradients = torch.autograd.grad(loss, [z1, z2])
    assert loss.isfinite()
    assert all(gradient.isfinite().all() for gradient in gradients)
    exact = method.loss(z1.double(), z2.double()).item()
    assert loss.item() == pytest.approx(exact, rel=1e-4)
