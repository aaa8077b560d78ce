"""The newer members of the family against plain loops, and the identities between members."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch

from regbench import RegbenchError, methods
from tests.methods.forms import evaluate

Array = npt.NDArray[np.float64]
sizes = pytest.mark.parametrize(("n", "q"), [(2, 2), (7, 3), (4, 9)])


def draw(n: int, q: int, seed: int = 0) -> tuple[Array, Array]:
    source = np.random.default_rng(seed)
    z1 = source.normal(size=(n, q))
    return z1, z1 + 0.5 * source.normal(size=(n, q))


def unit(z: Array) -> Array:
    return np.stack([row / np.linalg.norm(row) for row in z])


def terms_of(name: str, z1: Array, z2: Array, **hyperparameters: object) -> dict[str, float]:
    return evaluate(name, torch.from_numpy(z1), torch.from_numpy(z2), **hyperparameters)[1]


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
    """loss_func in main_pretrain.py of xinliu20/MEC, over the number of images and times its `lamda_inv`."""
    z1, z2 = draw(n, q, seed=10 + n)
    inverse = n * 3.0 / q
    c = unit(z1) @ unit(z2).T / inverse
    series = [(-1) ** (k + 1) / k * float(np.trace(np.linalg.matrix_power(c, k))) for k in range(1, order + 1)]
    terms = terms_of("mec", z1, z2, distortion=3.0, order=order)
    assert terms["alignment"] == pytest.approx(-inverse / n * series[0], rel=1e-10)
    assert terms["coding rate"] == pytest.approx(-inverse / n * sum(series[1:]), rel=1e-9, abs=1e-12)


KERNELS = {  # (K, k) of pakoromilas/DHEL-KCL, of the distance
    "gaussian": (2.0, lambda d: math.exp(-2 * d**2), lambda d: math.exp(-2 * d**2)),
    "log": (3.0, lambda d: -0.5 * math.log(3 * d**2 + 1), lambda d: -math.log(3 * d**2 + 1)),
    "imq": (1.5, lambda d: 1.5 / math.sqrt(1.5**2 + d**2), lambda d: 1.5 / math.sqrt(1.5**2 + d**2)),
    "riesz": (-1.2, lambda d: -(d**1.2), lambda d: -(d**1.2)),
}


@sizes
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernel_contrastive_learning(kernel: str, n: int, q: int) -> None:
    scale, of_negatives, of_positives = KERNELS[kernel]
    u1, u2 = (unit(z) for z in draw(n, q, seed=20 + n))
    distances = [[np.linalg.norm(u[i] - u[j]) for i in range(n) for j in range(i)] for u in (u1, u2)]
    energy = sum(float(np.mean([of_negatives(d) for d in own])) for own in distances)
    positives = [of_positives(float(np.linalg.norm(a - b))) for a, b in zip(u1, u2, strict=True)]
    terms = terms_of("kcl", 3 * u1, 0.2 * u2, kernel=kernel, scale=scale, energy_weight=5.0)
    assert terms == {
        "alignment": pytest.approx(-2 * float(np.mean(positives)), rel=1e-9),
        "energy": pytest.approx(5 * energy, rel=1e-9),
    }


# Identities.


def test_mec_of_many_terms_is_the_log_determinant() -> None:
    z1, z2 = draw(6, 4, seed=31)
    scale = 4 / (6 * 5.0)
    log_determinant = np.linalg.slogdet(np.eye(6) + scale * unit(z1) @ unit(z2).T)[1]
    terms = terms_of("mec", z1, z2, distortion=5.0, order=60)
    assert sum(terms.values()) == pytest.approx(-log_determinant / (6 * scale), rel=1e-10)


@sizes
def test_tico_has_the_value_of_the_quadratic_kernel_and_half_of_its_gradient(n: int, q: int) -> None:
    pair = [torch.from_numpy(z).requires_grad_() for z in draw(n, q, seed=40 + n)]
    tico, quadratic = methods.build("tico", covariance_weight=1.0), methods.build("quadratic", alignment_weight=0.0)
    found, expected = tico(*pair), quadratic(*pair)
    for name in ("uniformity", "diagonal"):
        assert found.terms[name].item() == pytest.approx(expected.terms[name].item(), rel=1e-12)
    cosine = torch.nn.functional.cosine_similarity(pair[0], pair[1]).mean()
    assert found.terms["alignment"].item() == pytest.approx(1 - cosine.item(), rel=1e-12)
    gradients = torch.autograd.grad(found.total + cosine, pair), torch.autograd.grad(expected.total, pair)
    for own, other in zip(*gradients, strict=True):
        torch.testing.assert_close(own, 0.5 * other, rtol=1e-9, atol=1e-12)


def test_spectral_contrastive_of_equal_unit_views_is_the_quadratic_kernel() -> None:
    u = unit(draw(7, 4, seed=50)[0])
    repulsion = terms_of("spectral_contrastive", u, u, mu=1.0)["repulsion"]
    assert repulsion == pytest.approx(7 / 6 * terms_of("quadratic", u, u)["uniformity"], rel=1e-12)


@pytest.mark.parametrize(
    ("name", "hyperparameters", "what"),
    [
        ("vibcreg", {"epsilon": 0.0}, "epsilon > 0"),
        ("tico", {"covariance_weight": -1.0}, "covariance_weight must be >= 0"),
        ("mec", {"order": 0}, "order >= 1"),
        ("kcl", {"kernel": "cauchy"}, "kernel must be gaussian, log, imq or riesz"),
        ("kcl_riesz", {"scale": 1.0}, "scale of riesz must be between -2 and 0"),
        ("kcl_imq", {"scale": -1.0}, "scale must be > 0"),
    ],
)
def test_impossible_hyperparameters_are_refused(name: str, hyperparameters: dict[str, object], what: str) -> None:
    with pytest.raises(RegbenchError, match=what):
        methods.build(name, **hyperparameters)
