"""SSL-HSIC: dependence on the image's identity, by the Hilbert-Schmidt independence criterion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from regbench.methods.base import Metadata, Regularizer, register


@register("ssl_hsic")
@dataclass(frozen=True, kw_only=True)
class SSLHSIC(Regularizer):
    """−HSIC(Z, Y) + γ √HSIC(Z, Z) (Li et al., NeurIPS 2021; appendix of Zheng et al., ICLR 2023).

    With the kernel k(u, v) = c/√(c² + ‖u − v‖²) and its 2n × 2n matrix K over both views: HSIC(Z, Y) = (1/n) Σᵢ
    k(z1ᵢ, z2ᵢ) − mean K, up to a constant, and HSIC(Z, Z) = tr(KHKH)/(2n)², H centring. The authors approximate both
    by random Fourier features of this kernel; here they are exact. HSIC(Z, Z) is clamped below at the dtype's epsilon
    squared, where its root has no derivative.

    Attributes:
        regularization_weight: γ >= 0.
        kernel_scale: c > 0.
    """

    regularization_weight: float = 3.0
    kernel_scale: float = 1.0

    metadata: ClassVar[Metadata] = Metadata(
        title="SSL-HSIC",
        reference="Li, Pogodin, Sutherland, Gretton, NeurIPS 2021",
        url="https://arxiv.org/abs/2106.08320",
        formula="−(1/n) Σᵢ k(z1ᵢ, z2ᵢ) + mean K + γ √(tr(KHKH)/(2n)²)",
        time="O(n² q)",
        memory="O(n²)",
        published="γ = 3, c learnt from 1 on, 512 Fourier features, ImageNet, batch 4096",
        limitation="the original has a predictor, an averaged target network and a learnt kernel scale",
        rotation_invariant=True,
    )

    def __post_init__(self) -> None:
        """Refuses a negative weight and a scale that is not positive."""
        self.require(self.regularization_weight >= 0, "regularization_weight must be >= 0")
        self.require(self.kernel_scale > 0, "kernel_scale must be > 0")

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """Alignment, uniformity (the mean of the kernel) and HSIC(Z, Z)."""
        n = len(z1_NQ)
        z_MQ = torch.cat([z1_NQ, z2_NQ])
        squared_M = z_MQ.square().sum(dim=1)
        squared_MM = (squared_M[:, None] + squared_M - 2 * (z_MQ @ z_MQ.T)).clamp_min(0.0)
        kernel_MM = (1 + squared_MM / self.kernel_scale**2).rsqrt()
        centred_MM = kernel_MM - kernel_MM.mean(dim=0) - kernel_MM.mean(dim=1, keepdim=True) + kernel_MM.mean()
        positives_N = (1 + (z1_NQ - z2_NQ).square().sum(dim=1) / self.kernel_scale**2).rsqrt()
        dependence = centred_MM.square().sum() / (2 * n) ** 2
        floor = torch.finfo(z1_NQ.dtype).eps ** 2
        return {
            "alignment": -positives_N.mean(),
            "uniformity": kernel_MM.mean(),
            "dependence": self.regularization_weight * dependence.clamp_min(floor).sqrt(),
        }
