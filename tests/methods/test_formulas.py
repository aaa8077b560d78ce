"""The paper's losses, in every form, against their formulas, evaluated here with loops over
Python floats.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.methods.forms import evaluate

Rows = list[list[float]]

# n < q, n > q, n = 2, q = 2, n = q.
SHAPES = [(5, 9), (11, 3), (2, 4), (7, 2), (6, 6)]


def draw(n: int, q: int, seed: int) -> tuple[Rows, Rows]:
    """Two views of a batch: the second is the first with noise."""
    rng = random.Random(seed)
    z1 = [[rng.gauss(0.2, 0.7) for _ in range(q)] for _ in range(n)]
    z2 = [[x + rng.gauss(0.0, 0.4) for x in row] for row in z1]
    return z1, z2


def tensors(z1: Rows, z2: Rows) -> tuple[Tensor, Tensor]:
    return torch.tensor(z1, dtype=torch.float64), torch.tensor(z2, dtype=torch.float64)


def unit(z: Rows) -> Rows:
    return [[x / math.sqrt(sum(y * y for y in row)) for x in row] for row in z]


def dot(u: Sequence[float], v: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(u, v, strict=True))


def squared_distance(u: Sequence[float], v: Sequence[float]) -> float:
    return math.fsum((a - b) ** 2 for a, b in zip(u, v, strict=True))


def alignment_loss(z1: Rows, z2: Rows) -> float:
    """ℓ_a, Eq. (3): the sum over the coordinates, the mean over the images."""
    return math.fsum(squared_distance(u, v) for u, v in zip(z1, z2, strict=True)) / len(z1)


def uniformity_loss(z: Rows, kernel: Callable[[Sequence[float], Sequence[float]], float]) -> float:
    """ℓ_u, Eq. (7): all n² pairs, the diagonal too."""
    return math.fsum(kernel(u, v) for u in z for v in z) / len(z) ** 2


def kernel_loss(
    z1: Rows,
    z2: Rows,
    table_weight: float,
    kernel: Callable[[Sequence[float], Sequence[float]], float],
) -> float:
    """Eq. (2) of the paper, where the λ of its tables is q times that of the equation."""
    z1, z2 = unit(z1), unit(z2)
    weight = table_weight / len(z1[0])
    uniformity = uniformity_loss(z1, kernel) + uniformity_loss(z2, kernel)
    return weight * alignment_loss(z1, z2) + 0.5 * uniformity


def loss_of(name: str, z1: Rows, z2: Rows, **hyperparameters: object) -> float:
    z1_NQ, z2_NQ = tensors(z1, z2)
    return evaluate(name, z1_NQ, z2_NQ, **hyperparameters)[0]


def close(expected: float) -> object:
    return pytest.approx(expected, rel=1e-10, abs=1e-13)


def sfrik(weights: Sequence[float], u: Sequence[float], v: Sequence[float]) -> float:
    """Eq. (9)."""
    q, t = len(u), dot(u, v)
    b1, b2, b3 = (*weights, 0.0, 0.0)[:3]
    return b1 * t + b2 * (q * t**2 - 1) / (q - 1) + b3 * ((q + 2) * t**3 - 3 * t) / (q - 1)


def legendre_by_theorem_1(degree: int, q: int, t: float) -> float:
    total = 0.0
    for k in range(degree // 2 + 1):
        rest = degree - 2 * k
        below = math.factorial(k) * math.factorial(rest) * math.gamma(k + (q - 1) / 2)
        total += (-0.25) ** k * (1 - t * t) ** k * t**rest / below
    return math.factorial(degree) * math.gamma((q - 1) / 2) * total


def of_any_order(weights: Sequence[float], u: Sequence[float], v: Sequence[float]) -> float:
    t = dot(u, v)
    return sum(b * legendre_by_theorem_1(order, len(u), t) for order, b in enumerate(weights, 1))


def rbf(scale: float, u: Sequence[float], v: Sequence[float]) -> float:
    return math.exp(-scale * squared_distance(u, v))


def distance(exponent: float, u: Sequence[float], v: Sequence[float]) -> float:
    return -math.pow(math.sqrt(squared_distance(u, v)), exponent)


@pytest.mark.parametrize(("n", "q"), SHAPES)
@pytest.mark.parametrize(
    ("name", "setting", "value", "kernel"),
    [
        ("sfrik", "weights", (1.0, 40.0, 40.0), sfrik),
        ("sfrik", "weights", (1.0, 20.0), sfrik),
        ("sfrik", "weights", (0.7,), sfrik),
        ("sfrik", "weights", (0.0, 0.0, 3.0), sfrik),
        ("sfrik", "weights", (0.5, 0.0, 2.0, 1.5, 0.25, 3.0), of_any_order),
        ("rbf", "scale", 0.3, rbf),
        ("rbf", "scale", 2.0, rbf),
        *(("generalized_distance", "exponent", p, distance) for p in (0.5, 1.0, 1.7, 2.0)),
    ],
)
def test_kernels(n: int, q: int, name: str, setting: str, value: Any, kernel: Any) -> None:
    z1, z2 = draw(n, q, seed=1)
    found = loss_of(name, z1, z2, **{setting: value}, alignment_weight=17.0)
    assert found == close(kernel_loss(z1, z2, 17.0, partial(kernel, value)))


@pytest.mark.parametrize(("n", "q"), SHAPES)
@pytest.mark.parametrize("scale", [0.5, 2.5])
def test_auh(n: int, q: int, scale: float) -> None:
    z1, z2 = draw(n, q, seed=5)

    def log_mean(z: Rows) -> float:
        pairs = [(z[i], z[j]) for i in range(n) for j in range(n) if i != j]
        return math.log(sum(rbf(scale, u, v) for u, v in pairs) / len(pairs))

    u1, u2 = unit(z1), unit(z2)
    expected = 30.0 / q * alignment_loss(u1, u2) + 0.5 * (log_mean(u1) + log_mean(u2))
    assert loss_of("auh", z1, z2, scale=scale, alignment_weight=30.0) == close(expected)


def test_auh_is_the_pdist_form_of_wang_and_isola() -> None:
    z1, z2 = (F.normalize(z, dim=1) for z in tensors(*draw(8, 5, seed=6)))

    def uniformity(z: Tensor) -> Tensor:
        return torch.pdist(z).square().mul(-2.5).exp().mean().log()

    found = evaluate("auh", z1, z2, scale=2.5)[1]["uniformity"]
    assert found == close(((uniformity(z1) + uniformity(z2)) / 2).item())


@pytest.mark.parametrize(("n", "q"), SHAPES)
@pytest.mark.parametrize("temperature", [0.15, 1.3])
def test_simclr(n: int, q: int, temperature: float) -> None:
    z1, z2 = draw(n, q, seed=7)
    z = unit(z1) + unit(z2)
    losses = []
    for i in range(2 * n):
        denominator = sum(math.exp(dot(z[i], z[j]) / temperature) for j in range(2 * n) if j != i)
        positive = math.exp(dot(z[i], z[(i + n) % (2 * n)]) / temperature)
        losses.append(-math.log(positive / denominator))
    assert loss_of("simclr", z1, z2, temperature=temperature) == close(math.fsum(losses) / (2 * n))


def test_simclr_is_the_papers_form_for_half_its_lambda_up_to_a_constant() -> None:
    n, q, temperature = 6, 4, 0.2
    for seed in (9, 10):
        z1, z2 = draw(n, q, seed)
        u1, u2 = unit(z1), unit(z2)
        everyone = u1 + u2
        logs = []
        for i, u in enumerate(everyone):
            similar = [math.exp(dot(u, v) / temperature) for j, v in enumerate(everyone) if j != i]
            logs.append(math.log(sum(similar)))
        paper = alignment_loss(u1, u2) / (2 * temperature) + sum(logs) / (2 * n)
        assert loss_of("simclr", z1, z2, temperature=temperature) == close(paper - 1 / temperature)


def variance_and_covariance(z: Rows, epsilon: float) -> tuple[float, float]:
    """v and c of Eq. (9) of the paper, γ = 1."""
    n, q = len(z), len(z[0])
    mean = [math.fsum(row[j] for row in z) / n for j in range(q)]

    def covariance(j: int, k: int) -> float:
        return math.fsum((row[j] - mean[j]) * (row[k] - mean[k]) for row in z) / (n - 1)

    v = sum(max(0.0, 1 - math.sqrt(covariance(j, j) + epsilon)) for j in range(q)) / q
    c = math.fsum(covariance(j, k) ** 2 for j in range(q) for k in range(q) if j != k) / q
    return v, c


@pytest.mark.parametrize(("n", "q"), SHAPES)
def test_vicreg_is_twice_the_papers_equation(n: int, q: int) -> None:
    """With λ' = λ/(2q) and μ' = μ/2 in Eq. (2) of the paper; the embeddings are not normalised."""
    z1, z2 = draw(n, q, seed=11)
    sim, std, epsilon = 25.0, 10.0, 1e-4
    (v1, c1), (v2, c2) = variance_and_covariance(z1, epsilon), variance_and_covariance(z2, epsilon)
    paper = sim / (2 * q) * alignment_loss(z1, z2) + std / 2 * 0.5 * (v1 + v2) + 0.5 * (c1 + c2)
    weights = {"alignment_weight": sim, "variance_weight": std, "covariance_weight": 1.0}
    found = loss_of("vicreg", z1, z2, **weights)
    assert found == close(2 * paper)


def test_vicreg_weighs_each_term_alone() -> None:
    z1, z2 = draw(6, 4, seed=12)
    (v1, c1), (v2, c2) = variance_and_covariance(z1, 0.01), variance_and_covariance(z2, 0.01)
    z1_NQ, z2_NQ = tensors(z1, z2)
    weights = {"alignment_weight": 2.0, "variance_weight": 3.0, "covariance_weight": 5.0}
    assert evaluate("vicreg", z1_NQ, z2_NQ, epsilon=0.01, **weights)[1] == {
        "alignment": close(2.0 * alignment_loss(z1, z2) / 4),
        "variance": close(3.0 * 0.5 * (v1 + v2)),
        "covariance": close(5.0 * (c1 + c2)),
    }


def test_vicreg_asks_nothing_of_coordinates_that_vary_enough() -> None:
    z1, z2 = draw(20, 3, seed=13)
    wide1, wide2 = ([[10 * x for x in row] for row in z] for z in (z1, z2))
    assert evaluate("vicreg", *tensors(wide1, wide2))[1]["variance"] == 0


def test_the_diagonal_of_sfrik_is_the_sum_of_the_weights_over_n() -> None:
    z1, z2 = tensors(*draw(9, 5, seed=15))
    _, terms = evaluate("sfrik", z1, z2, weights=(1.0, 40.0, 40.0))
    assert terms["diagonal"] == close(81 / 9)
    rest = terms["uniformity"]
    u = [F.normalize(z, dim=1) for z in (z1, z2)]
    mask = ~torch.eye(9, dtype=torch.bool)
    t = torch.stack([(z @ z.T)[mask] for z in u])
    phi = t + 40 * (5 * t**2 - 1) / 4 + 40 * (7 * t**3 - 3 * t) / 4
    assert rest == close(phi.sum().item() / 2 / 81)


def test_the_generalized_distance_of_exponent_2_is_the_linear_kernel() -> None:
    """−‖u − v‖² = 2 u·v − 2: twice SFRIK with L = 1, less the constant."""
    z1, z2 = draw(7, 5, seed=16)
    distance = loss_of("generalized_distance", z1, z2, exponent=2.0, alignment_weight=20.0)
    linear = loss_of("sfrik_l1", z1, z2, alignment_weight=10.0)
    assert distance == close(2 * linear - 2)


def test_an_order_one_kernel_asks_for_no_more_than_a_zero_mean() -> None:
    """SFRIK with L = 1 is ‖mean of the unit embeddings‖², half from each view."""
    z1, z2 = draw(6, 3, seed=17)
    means = [[sum(row[j] for row in z) / 6 for j in range(3)] for z in (unit(z1), unit(z2))]
    found = loss_of("sfrik_l1", z1, z2, alignment_weight=0.0)
    assert found == close(0.5 * sum(dot(m, m) for m in means))
