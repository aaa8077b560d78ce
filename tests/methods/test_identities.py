"""Methods that are one loss, or one regularizer, up to a factor and a constant.

And what they become in a limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from regbench.methods import Engine, build
from regbench.methods.forms.labelled import supervised_contrastive

shapes = pytest.mark.parametrize(("n", "q"), [(2, 3), (7, 4), (5, 9)])
Loss = Callable[[Sequence[Tensor]], Tensor]


def drawn(n: int, q: int, views: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 * n + q)
    drawn_VNQ = torch.randn(views, n, q, generator=generator, dtype=torch.float64)
    return [z_NQ.requires_grad_() for z_NQ in drawn_VNQ.unbind()]


def assert_same(
    one: Loss, other: Loss, views: Sequence[Tensor], factor: float, constant: float = 0.0
) -> None:
    """Check that one loss is a factor times the other plus a constant, in value and gradient,
    to rounding.
    """
    found, expected = one(views), factor * other(views) + constant
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    own, wanted = torch.autograd.grad(found, views), torch.autograd.grad(expected, views)
    torch.testing.assert_close(own, wanted, rtol=1e-10, atol=1e-13)


def total(name: str, form: str = "auto", **settings: Any) -> Loss:
    return lambda views: build(name, **settings).loss(*views, engine=Engine(form=form))


def addend(name: str, term: str, **settings: Any) -> Loss:
    return lambda views: build(name, **settings).terms(*views)[term]


WHOLE: Mapping[str, tuple[str, dict[str, Any], str, dict[str, Any], float, float]] = {
    "moco_v3": ("moco_v3", {"temperature": 0.3}, "info_nce", {"temperature": 0.3}, 1.2, 0.0),
    "byol": ("byol", {}, "simsiam", {}, 4.0, 4.0),
    "mec": ("mec", {"order": 1}, "simsiam", {}, 1.0, 0.0),
    "tico": ("tico", {"covariance_weight": 0.0}, "simsiam", {}, 1.0, 1.0),
}


@pytest.mark.parametrize("views", [2, 3])
@pytest.mark.parametrize("name", WHOLE)
@shapes
def test_losses_that_are_one_up_to_a_factor_and_a_constant(
    name: str, n: int, q: int, views: int
) -> None:
    one, own, other, settings, factor, constant = WHOLE[name]
    for form in ("auto", *build(one).forms):
        first, second = total(one, form, **own), total(other, **settings)
        assert_same(first, second, drawn(n, q, views), factor, constant)


@pytest.mark.parametrize("statistic", ["mmd", "ksd"])
@pytest.mark.parametrize("order", [1, 2, 4])
@shapes
def test_band_limited_discrepancies_are_sfrik(statistic: str, order: int, n: int, q: int) -> None:
    """N(q, ℓ) by the polynomials of degree ℓ in q variables, less those that |x|² divides."""
    weights = []
    for degree in range(1, order + 1):
        lower = math.comb(q + degree - 3, q - 1) if degree > 1 else 0
        harmonics = math.comb(q + degree - 1, q - 1) - lower
        weights.append(harmonics * (degree * (degree + q - 2) if statistic == "ksd" else 1))
    settings: dict[str, Any] = {"weights": tuple(0.3 * weight / sum(weights) for weight in weights)}
    settings["alignment_weight"] = 0.7 * q / 4
    name = f"spherical_{statistic}_bandlimited"
    for form in ("gram", "textbook"):
        found = total(name, form, order=order, regularization_weight=0.3)
        assert_same(found, total("sfrik", "textbook", **settings), drawn(n, q), 1.0)


@shapes
def test_supcon_with_a_class_for_each_image_is_simclr(n: int, q: int) -> None:
    def supcon(views: Sequence[Tensor]) -> Tensor:
        return supervised_contrastive(views, torch.arange(n), Engine()).total

    assert_same(supcon, total("simclr", temperature=0.1), drawn(n, q), 1.0)


@shapes
def test_kernels_of_contrastive_learning_are_those_of_regularizers(n: int, q: int) -> None:
    """2γ n/(n − 1) times the same energy, as KCL adds the views up and takes the mean over
    pairs i ≠ j.
    """
    factor = 2 * 5.0 * n / (n - 1)
    gaussian = addend("kcl_gaussian", "energy", scale=1.5, energy_weight=5.0)
    assert_same(gaussian, addend("rbf", "uniformity", scale=1.5), drawn(n, q), factor)
    riesz = addend("kcl_riesz", "energy", scale=-0.8, energy_weight=5.0)
    distance = addend("generalized_distance", "uniformity", exponent=0.8)
    assert_same(riesz, distance, drawn(n, q), factor)


@shapes
def test_auh_is_the_logarithm_of_the_rbf_kernel_of_each_view(n: int, q: int) -> None:
    def logarithm(views: Sequence[Tensor]) -> Tensor:
        energy = addend("rbf", "uniformity", scale=1.5)
        of_views = [(n / (n - 1) * energy([z_NQ, z_NQ])).log() for z_NQ in views]
        return torch.stack(of_views).mean()

    assert_same(addend("auh", "uniformity", scale=1.5), logarithm, drawn(n, q), 1.0)


def assert_parallel(one: Loss, other: Loss, views: Sequence[Tensor], tolerance: float) -> None:
    """Check that the gradients of two losses point the same way, up to so much of 1 − cos."""
    a_NQ, b_NQ = (torch.cat(torch.autograd.grad(loss(views), views)) for loss in (one, other))
    assert 1 - torch.cosine_similarity(a_NQ.flatten(), b_NQ.flatten(), dim=0).item() < tolerance


LINEAR = addend("sfrik_l1", "uniformity")
WIDE: Mapping[str, Loss] = {
    "auh": addend("auh", "uniformity", scale=1e-5),
    "rbf": addend("rbf", "uniformity", scale=1e-5),
    "kcl_gaussian": addend("kcl_gaussian", "energy", scale=1e-5),
    "kcl_log": addend("kcl_log", "energy", scale=1e-5),
    "kcl_imq": addend("kcl_imq", "energy", scale=1e3),
    "dhel": addend("dhel", "uniformity", temperature=1e5),
    "spherical_mmd_heat": addend("spherical_mmd_heat", "uniformity", diffusion_time=14.0),
    "spherical_ksd_heat": addend("spherical_ksd_heat", "uniformity", diffusion_time=14.0),
}


@pytest.mark.parametrize("name", WIDE)
def test_a_wide_kernel_asks_for_no_more_than_a_zero_mean(name: str) -> None:
    assert_parallel(WIDE[name], LINEAR, drawn(7, 4), 1e-9)


def test_tcr_with_a_large_distortion_is_the_quadratic_kernel() -> None:
    coding_rate = addend("tcr", "coding rate", distortion=1e3)
    assert_parallel(coding_rate, addend("quadratic", "uniformity"), drawn(7, 4), 1e-6)


def products_of_others(views: Sequence[Tensor]) -> Tensor:
    """Σ_{i≠j} xᵢ·xⱼ of embeddings as they are, over both views."""
    of_views = [z_NQ.sum(dim=0).square().sum() - z_NQ.square().sum() for z_NQ in views]
    return torch.stack(of_views).sum()


@pytest.mark.parametrize(
    "name", ["kerjepa_ksd_gaussian", "kerjepa_ksd_imq", "kerjepa_mmd", "kerjepa_sliced_mmd"]
)
def test_a_wide_kerjepa_asks_for_no_more_than_a_zero_mean(name: str) -> None:
    method = build(name, bandwidth=1e5)
    terms = method.terms(*drawn(7, 4))
    (regularizer,) = terms.keys() - {"alignment"}
    assert_parallel(addend(name, regularizer, bandwidth=1e5), products_of_others, drawn(7, 4), 1e-6)
