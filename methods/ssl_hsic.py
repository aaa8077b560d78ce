"""SSL-HSIC: kernel dependence on the identity of the image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from regbench.methods.base import Metadata, Native, register
from regbench.methods.forms.pairwise import centred_units, frobenius_norm, squared_distances
from regbench.settings import NonNegative, Positive, settings
from regbench.spaces import Range, Space


@register("ssl_hsic")
@settings
class SSLHSIC(Native):
    """−HSIC(Z, Y) + γ √HSIC(Z, Z) (Li et al., NeurIPS 2021), with the inverse multiquadric kernel
    on the sphere.

    k(u, v) = c / √(c² + ‖u − v‖²). Let K be its Gram matrix over all N = Vn unit embeddings of all
    views, and H = I − 11ᵀ/N. With the identity Y of the image as a one-hot label, the official
    code's estimates are

        HSIC(Z, Y) = (1/n) Σᵢ mean_{v≠w} k(z_vᵢ, z_wᵢ) − N⁻² Σ_{ab} K_ab,
        HSIC(Z, Z) = N⁻² tr(K H K H) = ‖H K H‖²_F / N².

    There they are approximated by random Fourier features, 512 for each kernel and drawn anew at
    every step (two independent draws for the two kernels of HSIC(Z, Z)); here is what these
    features have as their mean, the kernels themselves, so that the loss is deterministic. The
    code's HSIC(Z, Y) also counts the pairs of an embedding and itself as pairs of views, which adds
    the constant 1/(views − 1); it is left out here. The root has the gradient zero at HSIC(Z, Z) =
    0, a collapsed batch.

    Attributes:
        gamma: γ >= 0, the weight of the root of HSIC(Z, Z).
        scale: c > 0 of the kernel. The original starts at 1 and adapts it while it trains.
    """

    gamma: NonNegative = 3.0
    scale: Positive = 1.0

    metadata: ClassVar[Metadata] = Metadata(
        title="SSL-HSIC",
        reference="Li, Pogodin, Sutherland, Gretton, NeurIPS 2021",
        url="https://arxiv.org/abs/2106.08320",
        formula="−(1/n) Σᵢ mean_{v≠w} k(z_vᵢ, z_wᵢ) + N⁻² Σ_{ab} K_ab + γ ‖HKH‖_F / N,  k = c/√(c² "
        "+ ‖u − v‖²), N = Vn",
        latex=r"-\frac{1}{n} \sum_i \mathrm{mean}_{v \neq w} \, k(z_{v,i}, z_{w,i}) + "
        r"\frac{1}{N^2} \sum_{a,b} K_{ab} + \frac{\gamma}{N} \Vert H K H \Vert_F, \quad k(u, v) "
        r"= \frac{c}{\sqrt{c^2 + \Vert u - v \Vert^2}}, \quad N = Vn",
        time="O(n² q)",
        memory="O(n²)",
        published="γ = 3, c from 1, 512 random features, on ImageNet, ResNet-50, q = 256, batch "
        "4096",
        views="the authors' code: all pairs of different views, the kernel of all embeddings",
        limitation=(
            "the original also has a predictor, two more embeddings of each image from a momentum "
            "network, and learns c by Adam so that the kernel's gradient is large; here c is fixed"
        ),
        scale_invariant=True,
        rotation_invariant=True,
    )
    revision: ClassVar[int] = 3
    space: ClassVar[Space] = {"gamma": Range(0.03, 30, balances=True)}

    def view_terms(self, views_NQ: Sequence[Tensor], global_views: int) -> dict[str, Tensor]:
        """Compute the two parts of −HSIC(Z, Y), and the regularizer; M = Vn embeddings."""
        count, n = len(views_NQ), len(views_NQ[0])
        z_MQ = centred_units(torch.cat(list(views_NQ)))
        squared_distance_MM = squared_distances(z_MQ)
        itself_MM = torch.eye(len(z_MQ), dtype=torch.bool, device=z_MQ.device)
        # The distance of an embedding to itself is 0; rounding would leave some, with a gradient.
        squared_distance_MM = squared_distance_MM.where(~itself_MM, 0.0)
        root_MM = (self.scale**2 + squared_distance_MM).sqrt()
        # This is 1 − k: near a point, its digits would be lost beside the 1 in k. H takes any
        # constant away.
        below_MM = squared_distance_MM / (root_MM * (root_MM + self.scale))
        row_mean_M = below_MM.mean(dim=0)
        mean = row_mean_M.mean()
        centred_MM = below_MM - row_mean_M[:, None] - row_mean_M + mean
        # Offsets of whole views: the diagonals of the blocks of two different views.
        diagonals = [below_MM.diagonal(offset * n).sum() for offset in range(1, count)]
        positive = torch.stack(diagonals).sum()
        return {
            # The factor is 2 because only pairs of a view and a later one were added up.
            "positive pairs": 2 * positive / (n * count * (count - 1)) - 1,
            "all pairs": 1 - mean,
            "self-dependence": self.gamma / len(z_MQ) * frobenius_norm(centred_MM),
        }
