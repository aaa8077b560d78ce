"""The metrics of a batch in cases that have a closed form."""

from __future__ import annotations

import math

import pytest
import torch

from regbench.benchmark.training.embedding_metrics import COLLAPSED_SPREAD, spread_metrics


def test_orthonormal_embeddings() -> None:
    z = 3.0 * torch.eye(8)
    # All pairs are at distance √2; the variance is 1 − |mean|² = 1 − 1/8; the singular values are
    # equal.
    expected = {"alignment": 0.0, "uniformity": -4.0, "effective_rank": 8.0}
    expected["feature_spread"] = math.sqrt(7 / 8)
    assert spread_metrics(z, 5.0 * z) == pytest.approx(expected, abs=1e-5)


def test_collapsed_embeddings() -> None:
    z = torch.tensor([[0.3, -0.4, 1.2]]).repeat(6, 1)
    found = spread_metrics(z, z)
    expected = dict.fromkeys(("alignment", "uniformity", "feature_spread"), 0.0)
    assert found == pytest.approx({**expected, "effective_rank": 1.0}, abs=1e-3)
    assert found["feature_spread"] < COLLAPSED_SPREAD


def test_alignment_is_the_mean_squared_distance_of_unit_views() -> None:
    z1 = torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 1.0], [0.0, 5.0]])
    z2 = torch.tensor([[-4.0, 0.0], [0.5, 0.0], [7.0, 7.0], [0.0, 1.0]])
    assert spread_metrics(z1, z2)["alignment"] == pytest.approx((4 + 2 + 0 + 0) / 4, abs=1e-6)


def test_uniformity_is_over_distinct_pairs_of_the_first_view() -> None:
    z1 = torch.tensor([[1.0, 0.0], [-2.0, 0.0], [0.0, 1.0]])
    # Squared distances 4, 2, 2, each twice.
    expected = math.log((math.exp(-8) + 2 * math.exp(-4)) / 3)
    assert spread_metrics(z1, torch.ones(3, 2))["uniformity"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("shape", [(12, 5), (5, 12), (6, 6)])
def test_effective_rank_is_the_exponential_of_the_entropy(shape: tuple[int, int]) -> None:
    z = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    singular = torch.linalg.svdvals(z).tolist()
    p = [s / sum(singular) for s in singular]
    expected = math.exp(-sum(x * math.log(x) for x in p))
    assert spread_metrics(z, z)["effective_rank"] == pytest.approx(expected, rel=1e-6)


def test_spread_is_the_root_of_the_total_variance() -> None:
    z = torch.randn(40, 7, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    u = [[x / math.sqrt(sum(y * y for y in row)) for x in row] for row in z.tolist()]
    means = [sum(row[j] for row in u) / 40 for j in range(7)]
    variance = sum((row[j] - means[j]) ** 2 for row in u for j in range(7)) / 40
    assert spread_metrics(z, z)["feature_spread"] == pytest.approx(math.sqrt(variance), rel=1e-5)


def test_zero_and_half_precision_embeddings_give_finite_numbers() -> None:
    for z in (torch.zeros(4, 3), torch.randn(4, 3).bfloat16()):
        assert all(math.isfinite(value) for value in spread_metrics(z, z).values())
