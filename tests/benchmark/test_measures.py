"""Measures without labels against closed forms and plain code."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from regbench.benchmark.evaluate.label_free import alignment, alpha_req, lidar, measures
from regbench.benchmark.training.embedding_metrics import feature_spread, spread_metrics, uniformity


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotation(d: int) -> Tensor:
    q: Tensor = torch.linalg.qr(gaussian(d, d, seed=5)).Q
    return q


def cloud(eigenvalues: Tensor, n: int) -> Tensor:
    """A centred cloud whose covariance has exactly these eigenvalues, in rotated axes."""
    x = gaussian(n, len(eigenvalues))
    white: Tensor = torch.linalg.qr(x - x.mean(dim=0)).Q * math.sqrt(n)
    return white * eigenvalues.sqrt() @ rotation(len(eigenvalues))


# ------------------------------------------------------------------ alignment and uniformity


@pytest.mark.parametrize("views", [2, 5])
def test_alignment_is_the_mean_over_pairs_of_views(views: int) -> None:
    x = gaussian(7, views, 4)
    total = []
    for image in (x / x.norm(dim=2, keepdim=True)).tolist():
        for a in range(views):
            for b in range(a):
                total.append(sum((p - q) ** 2 for p, q in zip(image[a], image[b], strict=True)))
    assert alignment(x) == pytest.approx(sum(total) / len(total))


@pytest.mark.parametrize("block", [1024, 5])
def test_uniformity_is_the_log_of_the_mean_over_pairs_of_images(block: int) -> None:
    x = gaussian(12, 3)
    u = (x / x.norm(dim=1, keepdim=True)).tolist()
    values = []
    for one, other in itertools.permutations(u, 2):
        values.append(math.exp(-2 * sum((p - q) ** 2 for p, q in zip(one, other, strict=True))))
    assert uniformity(x, block) == pytest.approx(math.log(sum(values) / len(values)), rel=1e-5)
    of_training = spread_metrics(x, x)["uniformity"]
    assert uniformity(x) == pytest.approx(of_training, rel=1e-5)


@pytest.mark.parametrize("dead", [0, 1, 30, 150, 300])
@pytest.mark.parametrize("block", [1024, 70])
def test_uniformity_takes_rows_of_zeros_for_one_point_as_the_authors(dead: int, block: int) -> None:
    x = gaussian(300, 8).relu().float()
    x[:dead] = 0
    # lunif of SsnL/align_uniform
    unit = torch.nn.functional.normalize(x.double())
    wanted = torch.pdist(unit).square().mul(-2).exp().mean().log().item()
    assert uniformity(x, block) == pytest.approx(wanted, abs=1e-5)
    assert spread_metrics(x, x)["uniformity"] == pytest.approx(wanted, abs=1e-5)


# ------------------------------------------------------------------ ranks


@pytest.mark.parametrize("alpha", [0.4, 1.0, 2.5])
@pytest.mark.parametrize("n", [300, 90])
def test_alpha_of_a_power_law(alpha: float, n: int) -> None:
    """In 40 dimensions, and with fewer images than dimensions too."""
    d = 40 if n == 300 else 130
    eigenvalues = torch.zeros(d, dtype=torch.float64)
    rank = min(d, n - 1)
    eigenvalues[:rank] = torch.arange(1, rank + 1, dtype=torch.float64) ** -alpha
    x = cloud(eigenvalues, n) if d < n else cloud(eigenvalues[:rank], n) @ rotation(d)[:rank]
    assert alpha_req(x + 3) == pytest.approx(alpha, rel=1e-6)  # the mean does not matter


def test_alpha_is_a_weighted_least_squares_fit_over_ranks_4_to_100() -> None:
    """The first three and the last twenty eigenvalues are off the law, and do not matter.

    Against numpy's fit.
    """
    law = torch.arange(1, 121, dtype=torch.float64) ** -1.3
    values = (law * (1 + 0.3 * gaussian(120).clamp(-2, 2))).sort(descending=True).values
    x = cloud(values, 500)
    ranks = np.arange(4, 101)
    # It squares the weights.
    slope, _ = np.polyfit(np.log(ranks), np.log(values[3:100].numpy()), 1, w=ranks**-0.5)
    assert alpha_req(x) == pytest.approx(-slope, rel=1e-6)
    values[:3] *= 50
    values[100:] *= 1e-3
    assert alpha_req(cloud(values, 500)) == pytest.approx(-slope, rel=1e-6)


def test_alpha_of_a_collapsed_representation_is_not_defined() -> None:
    assert alpha_req(torch.ones(50, 8)) is None
    assert alpha_req(gaussian(50, 4)) is None
    found = measures(torch.ones(50, 8), torch.ones(20, 3, 8))
    assert found.keys() == {"alignment", "uniformity", "rankme", "feature_spread"}
    assert found["rankme"] == pytest.approx(1)
    assert found["feature_spread"] == pytest.approx(0, abs=1e-6)


# ------------------------------------------------------------------ LiDAR


def test_lidar_by_its_formula() -> None:
    """With the square root of Σ_w and δ = 1e-4 as in the paper, in plain loops."""
    x = gaussian(30, 6, 5) * torch.tensor([1.0, 2.0, 0.5, 0.1, 0.0])
    x += 3 * gaussian(30, 1, 5, seed=1)
    mean = x.mean(dim=(0, 1))
    within = 1e-4 * torch.eye(5, dtype=torch.float64)
    between = torch.zeros_like(within)
    for views in x:
        centre = views.mean(dim=0)
        between += torch.outer(centre - mean, centre - mean) / 30
        for view in views:
            within += torch.outer(view - centre, view - centre) / 180
    values, vectors = torch.linalg.eigh(within)
    root = vectors @ torch.diag(values**-0.5) @ vectors.T
    p = torch.linalg.eigvalsh(root @ between @ root).clamp_min(1e-300)
    p = p / p.sum()
    assert lidar(x) == pytest.approx(math.exp(-(p * p.log()).sum().item()), rel=1e-9)


@pytest.mark.parametrize("size", [1e5, 1e7, 1e20])
def test_lidar_is_left_out_where_its_delta_is_lost_in_rounding(size: float) -> None:
    few, many = gaussian(6, 4, 60), gaussian(40, 4, 60)
    for views in (few + gaussian(6, 1, 60, seed=1), many):
        measure = lidar(size * views)
        lost = len(views) == 6 and size > 1e5
        assert (measure is None) == lost == ("lidar" not in measures(views[:, 0], size * views))


def test_lidar_with_fewer_images_than_dimensions() -> None:
    """The smaller of the two equal spectra is taken."""
    views = gaussian(6, 3, 20) + 4 * gaussian(6, 1, 20, seed=1)
    value = lidar(views)
    assert value is not None
    assert 1 < value <= 5
    padded = torch.cat([views, torch.zeros(6, 3, 4)], dim=2)
    assert lidar(padded) == pytest.approx(value)


def test_of_one_image_there_is_no_uniformity() -> None:
    assert "uniformity" not in measures(gaussian(1, 8), gaussian(1, 4, 8))


def test_all_measures_of_a_gaussian_cloud() -> None:
    x, views = gaussian(400, 16), gaussian(50, 4, 16) * 0.1 + gaussian(50, 1, 16, seed=1)
    found = measures(x, views)
    seen = list(found)
    assert seen == ["alignment", "uniformity", "rankme", "alpha_req", "lidar", "feature_spread"]
    assert found["feature_spread"] == feature_spread(x) == pytest.approx(1, abs=0.01)
    assert 15 < found["rankme"] <= 16
    assert found["alignment"] < 0.1
