"""Measures of a representation that need neither labels nor training, to stand beside its accuracy.

All but alignment and LiDAR look at centre crops. None of them is a score to choose by: several can
be raised without any gain in accuracy (a random rotation-invariant cloud has the best possible
uniformity and rank).

Shapes: N = images, V = augmented views of an image, D = representation, U = unit representation.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regbench.benchmark.evaluate.base import Evaluation, Interpolation, Scores, register
from regbench.benchmark.evaluate.subject import Subject
from regbench.benchmark.rundir.record import Score
from regbench.benchmark.training.embedding_metrics import effective_rank, feature_spread, uniformity
from regbench.datasets.loading.splits import evenly
from regbench.datasets.stored.manifest import Manifest
from regbench.settings import AtLeastTwo, settings

ALPHA_RANKS = (4, 100)
"""First and last rank of the eigenvalues that α-ReQ's line is fitted to, as in the authors'
code.
"""

LIDAR_DELTA = 1e-4
"""δ, what LiDAR adds to the within-class variance of each direction."""


@register("measures")
@settings
class LabelFreeMeasures(Evaluation):
    """Measures of the representation that need no labels and no training.

    They take about 3 % of a quickstart cell's time.

    Attributes:
        images: Number of images of the split that are looked at, as centre crops; fewer if it has
            fewer.
        view_images: Images whose augmented views alignment and LiDAR look at; LiDAR wants more than
            the representation has dimensions.
        views: Augmented views of each of them.
        interpolation: Filter of the resize before the centre crop.
    """

    images: AtLeastTwo = 5000
    view_images: AtLeastTwo = 500
    views: AtLeastTwo = 10
    interpolation: Interpolation = "bicubic"

    title = "measures without labels"
    needs_labels = False
    reference = (
        "Wang and Isola, ICML 2020; RankMe, ICML 2023; α-ReQ, NeurIPS 2022; LiDAR, ICLR 2024"
    )

    def run(self, name: str, subject: Subject) -> Scores:
        """Return the measures on the selection split (the test split if there is none)."""
        task = subject.task
        # Images without labels have a tuning split too.
        there = Manifest.load(task.data_dir, task.dataset).splits
        split = task.select_on if task.select_on in there else "test"
        x_ND = subject.features(split, self.interpolation).x_ND
        views_NVD = subject.views(split, images=self.view_images, views=self.views)
        x_ND = x_ND[torch.from_numpy(evenly(np.arange(len(x_ND)), self.images)).to(x_ND.device)]
        crops = f"representation of {len(x_ND):,} centre crops"
        views = f"representation of {len(views_NVD):,} images in {self.views} views"
        first, last = ALPHA_RANKS
        how = {
            "alignment": (f"{views}, normalised, squared distance", "alignment"),
            "uniformity": (f"{crops}, normalised, t = 2", "uniformity"),
            "rankme": (f"{crops}, effective rank", "RankMe"),
            "alpha_req": (f"{crops}, power law fitted to eigenvalues {first} to {last}", "α-ReQ"),
            "lidar": (f"{views}, δ = {LIDAR_DELTA:g}", "LiDAR"),
            "feature_spread": (f"{crops}, normalised", "feature spread"),
        }
        neutral: dict[str, Any] = {"unit": "", "higher_is_better": None}
        found = measures(x_ND, views_NVD).items()
        return [Score(each, value, split, *how[each], **neutral) for each, value in found]


def measures(x_ND: Tensor, views_NVD: Tensor) -> dict[str, float]:
    """Return all measures by name; one that is not defined for such a representation is left out.

    Args:
        x_ND: Representations of images without augmentation, (n, d).
        views_NVD: Representations of views of images, (n, v, d).
    """
    found = {
        "alignment": alignment(views_NVD),
        "uniformity": uniformity(x_ND) if len(x_ND) > 1 else None,
        "rankme": effective_rank(x_ND),
        "alpha_req": alpha_req(x_ND),
        "lidar": lidar(views_NVD),
        "feature_spread": feature_spread(x_ND),
    }
    return {
        name: value for name, value in found.items() if value is not None and math.isfinite(value)
    }


@torch.no_grad()
def alignment(views_NVD: Tensor) -> float:
    """Return E ‖u − u′‖² over pairs of views of one image, 0 (same) to 4.

    ℓ_align with α = 2 of Wang and Isola (ICML 2020, Section 4.1), on unit representations, over all
    v(v − 1)/2 pairs of an image: with the sum s of its v unit vectors they sum up to v² − ‖s‖².

    Args:
        views_NVD: Representations of views, (n, v, d), v ≥ 2.
    """
    u_NVD = F.normalize(views_NVD.double(), dim=2)
    views = u_NVD.shape[1]
    total_N = u_NVD.square().sum(dim=(1, 2)) * views - u_NVD.sum(dim=1).square().sum(dim=1)
    return total_N.mean().item() / (views * (views - 1) / 2)


@torch.no_grad()
def alpha_req(x_ND: Tensor) -> float | None:
    """Fit α of the power law λᵣ ∝ r^(−α) of the covariance's eigenvalues λ₁ ≥ λ₂ ≥ …; the authors
    find 1 best.

    α-ReQ (Agrawal et al., NeurIPS 2022). The paper names no range; as in the authors' code a line
    is fitted to log λᵣ over log r by least squares with weights 1/r, over the ranks `ALPHA_RANKS`
    or as many of them as there are eigenvalues above rounding.

    Args:
        x_ND: Representations, (n, d).

    Returns:
        α; None where there are fewer than two eigenvalues to fit.
    """
    x = x_ND.double()
    x = x - x.mean(dim=0)
    n, d = x.shape
    # Both products have the same positive eigenvalues.
    eigenvalues = torch.linalg.eigvalsh(x.T @ x if d <= n else x @ x.T).flip(0)
    first, last = ALPHA_RANKS
    # Smaller eigenvalues are rounding errors.
    positive = int((eigenvalues > 1e-10 * eigenvalues[0]).sum())
    if positive <= first:
        return None
    ranks = torch.arange(first, min(last, positive) + 1, dtype=torch.float64, device=x.device)
    log_rank = ranks.log()
    log_value = eigenvalues[first - 1 : first - 1 + len(ranks)].log()
    weight = 1 / ranks / (1 / ranks).sum()
    log_rank = log_rank - weight @ log_rank
    slope: float = ((weight * log_rank) @ log_value / (weight @ log_rank.square())).item()
    return -slope


@torch.no_grad()
def lidar(views_NVD: Tensor) -> float | None:
    """Return the effective rank of the variation between images, from 1 to min(n − 1, d).

    LiDAR (Thilak et al., ICLR 2024, Section 4): each image is a class, its views are the samples.
    exp of the entropy of the normalised eigenvalues of Σ_w^(−½) Σ_b Σ_w^(−½), with Σ_b the
    covariance of the classes' means and Σ_w that of the views around their means, plus δ I with δ =
    `LIDAR_DELTA`. (The paper's ε within the logarithm is 0 here.)

    Args:
        views_NVD: Representations of views, (n, v, d), not normalised.

    Returns:
        The rank; None if all images have the same mean, or if δ is lost in the rounding of a
        singular Σ_w: with features of a size of 1e6, and fewer views than dimensions.
    """
    x = views_NVD.double()
    mean_ND = x.mean(dim=1)
    within = (x - mean_ND[:, None]).flatten(0, 1)
    between_ND = mean_ND - mean_ND.mean(dim=0)
    within_DD = within.T @ within / len(within)
    within_DD.diagonal().add_(LIDAR_DELTA)
    factor_DD, failed = torch.linalg.cholesky_ex(within_DD)
    if failed:
        return None
    # With Σ_w = L Lᵀ the matrix L⁻¹ Σ_b L⁻ᵀ has the eigenvalues of Σ_w^(−½) Σ_b Σ_w^(−½).
    white_DN = torch.linalg.solve_triangular(factor_DD, between_ND.T, upper=False)
    n, d = between_ND.shape
    # Both products have the same positive eigenvalues; the smaller is cheaper.
    product = white_DN @ white_DN.T if d <= n else white_DN.T @ white_DN
    eigenvalues = torch.linalg.eigvalsh(product).clamp_min(0)
    total = eigenvalues.sum()
    if total <= 0:
        return None
    rank: float = torch.special.entr(eigenvalues / total).sum().exp().item()
    return rank
