"""Rows that are one loss under two names: what is said of them, and that they are one loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regbench import methods
from regbench.reports.rows.same_loss import common_terms
from regbench.settings import plain

LINEAR = {"name": "sfrik", "weights": [1.0], "alignment_weight": 600.0, "regularize_local": True}
DISTANCE = {"name": "generalized_distance", "exponent": 2.0, "alignment_weight": 1200.0}
QUADRATIC = {"name": "quadratic", "alignment_weight": 64.0}
TICO = {"name": "tico", "covariance_weight": 8.0}
SIMSIAM = {"name": "simsiam"}
MMD: dict[str, Any] = {"name": "spherical_mmd", "spectrum": "bandlimited", "statistic": "mmd"}
MMD |= {"regularization_weight": 0.2, "order": 3}


def written(method: Any, q: int = 12, views: int = 2) -> Any:
    kinds = {"view1": {"count": 1}, "view2": {"count": views - 1}}
    return common_terms({"method": method, "embedding_dim": q, "augmentation": {"views": kinds}})


def bandlimited(order: int, *, ksd: bool = False, q: int = 12) -> dict[str, Any]:
    """SFRIK with the weights of a band-limited spectrum: dimensions of spaces of harmonics,
    times eigenvalues.
    """
    sizes = [1.0, 12.0, 77.0, 352.0][1 : order + 1]
    weights = [size * (k * (k + q - 2) if ksd else 1) for k, size in enumerate(sizes, 1)]
    weights = [0.2 * weight / sum(weights) for weight in weights]
    return LINEAR | {"weights": weights, "alignment_weight": 0.8 * q / 4}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (LINEAR, DISTANCE),
        (LINEAR | {"weights": [3.0], "alignment_weight": 1800.0}, DISTANCE),
        (QUADRATIC, TICO | {"covariance_weight": 12 / 64}),
        (QUADRATIC, LINEAR | {"weights": [0.0, 11.0], "alignment_weight": 64.0 * 12}),
        (SIMSIAM, {"name": "byol"}),
        (SIMSIAM, {"name": "mec", "order": 1}),
        (SIMSIAM, TICO | {"covariance_weight": 0.0}),
        ({"name": "info_nce", "temperature": 0.3}, {"name": "moco_v3", "temperature": 0.3}),
        (MMD, bandlimited(3)),
        (MMD | {"statistic": "ksd"}, bandlimited(3, ksd=True)),
        (MMD | {"order": 1, "regularization_weight": 0.5}, LINEAR | {"alignment_weight": 3.0}),
        (MMD | {"order": 1, "statistic": "ksd"}, LINEAR | {"alignment_weight": 12.0}),
    ],
)
def test_what_is_called_the_same_loss_has_the_same_gradient(one: Any, other: Any) -> None:
    """The table of common terms against the losses themselves, at q = 12."""
    draw = torch.Generator().manual_seed(1)
    drawn = torch.randn(2, 9, 12, generator=draw, dtype=torch.float64)
    views = [view.requires_grad_() for view in drawn]
    scaled, terms = [], []
    for choice in (one, other):
        arguments = dict(choice)
        name = arguments.pop("name")
        method = methods.build(name, **arguments)
        found = written({"name": name, **plain(method)})
        assert found is not None
        terms.append(found)
        gradients = torch.autograd.grad(method(*views).total, views)
        scaled.append(torch.cat([gradient / found.factor for gradient in gradients]))
    assert terms[0].kernel == terms[1].kernel
    assert terms[0].alignment_weight == pytest.approx(terms[1].alignment_weight, rel=1e-12)
    torch.testing.assert_close(*scaled, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "method",
    [
        DISTANCE | {"exponent": 1.0},
        LINEAR | {"regularize_local": False},
        {"name": "vicreg"},
        {"name": "quadratic", "alignment_weight": "odd"},
        {"name": "mec", "order": 4},
        {"name": "moco_v3", "temperature": 0.0},
        MMD | {"spectrum": "heat"},
        MMD | {"order": 10**9},
        MMD | {"order": -1},
        MMD | {"regularization_weight": 0.0},
        TICO | {"covariance_momentum": 0.9},
        {"name": "sfrik"},
        {"name": ["sfrik"]},
        None,
    ],
)
def test_what_is_no_other_loss_is_not_called_so(method: Any) -> None:
    assert written(method, 512) is None


def test_other_weights_of_a_series_are_another_kernel() -> None:
    series = ([1.0, 40.0], [1.0, 41.0], [0.0, 1.0])
    assert len({written(LINEAR | {"weights": weights}).kernel for weights in series}) == 3


def test_of_more_than_two_views_the_spherical_discrepancies_are_another_loss() -> None:
    assert written(MMD, views=3) is None
    assert written(bandlimited(3), views=3) is not None
    odd = {"method": MMD, "embedding_dim": 12, "augmentation": {"views": [1]}}
    assert common_terms(odd) is None
    assert written(MMD, q=-5) is None  # a stranger's
