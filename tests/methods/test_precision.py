"""Losses in single and in double precision, where a dimension is constant or embeddings have
all but collapsed.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from regbench import methods
from regbench.methods import Engine


def value_and_gradient(
    name: str, views: list[Tensor], form: str = "auto", **hyperparameters: Any
) -> tuple[float, Tensor]:
    leaves = [z.clone().requires_grad_() for z in views]
    value = methods.build(name, **hyperparameters).loss(*leaves, engine=Engine(form=form))
    return value.item(), torch.cat(torch.autograd.grad(value, leaves)).double()


def draw(n: int, q: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(n, q, generator=generator)
    return [z, z + 0.5 * torch.randn(n, q, generator=generator)]


def assert_close(found: tuple[float, Tensor], wanted: tuple[float, Tensor], rtol: float) -> None:
    assert found[0] == pytest.approx(wanted[0], rel=rtol)
    assert (found[1] - wanted[1]).norm() <= rtol * wanted[1].norm()


scaled_by_deviations = pytest.mark.parametrize(
    ("name", "changes"), [("frossl", {}), ("vibcreg", {"variance_weight": 0.0})]
)


@pytest.mark.parametrize("constant", [0.7, 100.1])
@scaled_by_deviations
def test_a_constant_dimension_counts_as_zero(name: str, changes: Any, constant: float) -> None:
    """Its mean is rounded, and what is left of it must not be brought to unit length."""
    views = draw(64, 32)
    for z in views:
        z[:, 3] = constant
    zero = [z.double() for z in views]
    for z in zero:
        z[:, 3] = 0
    wanted = value_and_gradient(name, zero, **changes)
    assert_close(value_and_gradient(name, views, **changes), wanted, 2e-6)


@scaled_by_deviations
def test_a_dimension_that_varies_little_counts_in_full(name: str, changes: dict[str, Any]) -> None:
    views = draw(64, 32)
    for z in views:
        z[:, 3] = 100.1 + 0.01 * z[:, 3]
    wanted = value_and_gradient(name, [z.double() for z in views], **changes)
    assert_close(value_and_gradient(name, views, **changes), wanted, 1e-3)


DISTANCES = ["ssl_hsic", "hardest_contrastive"]
DISTANCES += [name for name in methods.names() if name.startswith("kerjepa")]


@pytest.mark.parametrize("name", DISTANCES)
@pytest.mark.parametrize(("spread", "offset"), [(1e-1, 1.0), (1e-3, 1.0), (1e-5, 1.0), (1.0, 1e3)])
def test_distances_keep_their_digits_near_a_point(name: str, spread: float, offset: float) -> None:
    point = offset * torch.randn(24, generator=torch.Generator().manual_seed(1))
    views = [point + spread * z for z in draw(48, 24)]
    for form in methods.build(name).forms:
        _, found = value_and_gradient(name, views, form)
        _, wanted = value_and_gradient(name, [z.double() for z in views], form)
        # The streamed MMD is a small difference of what it adds up of the pairs and of single
        # embeddings.
        assert (found - wanted).norm() <= 1e-4 * wanted.norm(), form


@pytest.mark.parametrize(
    ("name", "n", "q"),
    [("vicreg", 1100, 1024), ("barlow_twins", 1100, 1024), ("ssl_hsic", 512, 64)],
)
def test_norms_of_large_matrices_keep_the_digits_of_float32(name: str, n: int, q: int) -> None:
    views, method = draw(n, q), methods.build(name)
    found, wanted = method(*views).terms, method(*(z.double() for z in views)).terms
    for term, value in wanted.items():
        assert found[term].item() == pytest.approx(value.item(), rel=2e-6), term


@pytest.mark.parametrize("name", ["ivne", "koleo", "ur_jepa", "ur_jepa_derivative"])
def test_gradients_near_a_collapse_are_those_of_double_precision(name: str) -> None:
    point = torch.randn(32, generator=torch.Generator().manual_seed(1))
    views = [point + 1e-3 * z for z in draw(64, 32)]
    wanted = value_and_gradient(name, [z.double() for z in views])
    assert_close(value_and_gradient(name, views), wanted, 1e-4)


@pytest.mark.parametrize("name", ["kcl_gaussian", "kcl_log", "kcl_imq"])
def test_no_pair_loses_its_repulsion_by_rounding(name: str) -> None:
    """Squared distances are differences of products, and some come out negative."""
    point = torch.randn(32, generator=torch.Generator().manual_seed(1))
    views = [point + 2e-4 * z for z in draw(64, 32)]
    _, found = value_and_gradient(name, views)
    _, wanted = value_and_gradient(name, [z.double() for z in views])
    assert (found - wanted).norm() <= 0.05 * wanted.norm()


@pytest.mark.parametrize("form", ["auto", "textbook"])
@pytest.mark.parametrize(
    ("name", "changes"),
    [("ssl_hsic", {}), ("ur_jepa_derivative", {"dimension": 2})]
    + [(name, {"bandwidth": 0.03}) for name in ("kerjepa_mmd", "kerjepa_ksd_imq")],
)
def test_pairs_in_tight_clusters_keep_their_gradient(name: str, changes: Any, form: str) -> None:
    centers, _ = draw(8, 32)
    views = [centers.repeat(8, 1) + 2e-4 * z for z in draw(64, 32)]
    _, found = value_and_gradient(name, views, form, **changes)
    _, wanted = value_and_gradient(name, [z.double() for z in views], form, **changes)
    assert (found - wanted).norm() <= 1e-3 * wanted.norm()


@pytest.mark.parametrize("form", ["textbook", "gram"])
@pytest.mark.parametrize("name", ["sfrik", "spectral_contrastive"])
def test_a_length_beyond_the_range_is_not_taken_for_zero(name: str, form: str) -> None:
    views = draw(8, 4)
    views[0][3] *= 1e20
    value, _ = value_and_gradient(name, views, form)
    assert math.isnan(value)


def test_the_first_views_dtype_does_not_round_the_others_gradients() -> None:
    z1, z2 = draw(16, 8)
    views = [z1.bfloat16(), z2]
    _, found = value_and_gradient("simclr", views, "gram")
    _, wanted = value_and_gradient("simclr", views, "textbook")
    assert (found - wanted)[16:].norm() <= 1e-6 * wanted.norm()


@pytest.mark.parametrize("name", ["ur_jepa", "ur_jepa_derivative"])
def test_a_collapse_to_one_point_under_autocast(name: str) -> None:
    point = torch.randn(512, generator=torch.Generator().manual_seed(1)).bfloat16()
    views = [point.expand(256, -1)] * 2
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = value_and_gradient(name, views)
    wanted, _ = value_and_gradient(name, [z.double() for z in views])
    assert found[0] == pytest.approx(wanted, rel=1e-5)
    assert not found[1].any()
