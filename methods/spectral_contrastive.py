"""The spectral contrastive loss."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from regbench.methods.base import Metadata, Regularizer, register
from regbench.methods.forms.engine import Shard
from regbench.methods.forms.pairwise import chunks, cross_energy, off_diagonal_mask, square
from regbench.settings import Positive, settings
from regbench.spaces import Range, Space


@register("spectral_contrastive")
@settings
class SpectralContrastive(Regularizer):
    """(1/μ) [ −2/n Σᵢ uᵢ·vᵢ + 1/(n(n − 1)) Σ_{i≠j} (uᵢ·vⱼ)² ] (HaoChen et al., NeurIPS 2021).

    The batch estimate of −2 E[f(x)·f(x⁺)] + E[(f(x)·f(x⁻))²], whose minimum over f is a spectral
    decomposition of the graph of augmentations. uᵢ and vᵢ are the embeddings of the two views
    projected onto the ball of radius √μ: longer ones are scaled down to √μ, shorter ones stay as
    they are. The negatives are views of two different images, one of each kind, n(n − 1) ordered
    pairs. The projection and the division by μ are those of the official code; without them (μ → ∞,
    times μ) it is the loss as the theory states it.

    Attributes:
        mu: μ, the squared radius of the ball: 10 on ImageNet and 1 on CIFAR-10 in the official
            configurations.
    """

    mu: Positive = 10.0

    metadata: ClassVar[Metadata] = Metadata(
        title="spectral contrastive",
        reference="HaoChen, Wei, Gaidon, Ma, NeurIPS 2021",
        url="https://arxiv.org/abs/2106.04156",
        formula="(1/μ) [ −2/n Σᵢ z₁ᵢ·z₂ᵢ + 1/(n(n − 1)) Σ_{i≠j} (z₁ᵢ·z₂ⱼ)² ],  ‖z‖ clipped to √μ",
        latex=r"\frac{1}{\mu} \left[ -\frac{2}{n} \sum_i z_{1,i} \cdot z_{2,i} + \frac{1}{n(n-1)} "
        r"\sum_{i \neq j} (z_{1,i} \cdot z_{2,j})^2 \right], \quad \Vert z \Vert \leq \sqrt{\mu}",
        time="O(n² q)",
        memory="O(1)",
        published="μ = 10 on ImageNet, ResNet-50, q = 8192, batch 384; μ = 1 on CIFAR-10, q = "
        "1000, batch 512",
        limitation="the original trains with SGD and a projector without a last ReLU; only the "
        "loss is here",
        rotation_invariant=True,
    )
    # `gram`, streamed over panels of the Gram matrix of the two views.
    forms = ("textbook", "gram")
    revision: ClassVar[int] = 2  # 1 took embeddings within the ball for clipped ones, for some mu
    space: ClassVar[Space] = {"mu": Range(0.3, 300, balances=True)}

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """Compute the attraction of the two views of an image, and the repulsion of the views
        of different images.
        """
        n = len(z1_NQ)
        z1_NQ, z2_NQ = self._clip(z1_NQ), self._clip(z2_NQ)
        squares_NN = (z1_NQ @ z2_NQ.T).square().where(off_diagonal_mask(n, z1_NQ), 0.0)
        return {
            "attraction": -2 / self.mu * (z1_NQ * z2_NQ).sum() / n,
            "repulsion": squares_NN.sum() / (self.mu * n * (n - 1)),
        }

    def _clip(self, z_NQ: Tensor) -> Tensor:
        return z_NQ * self._factors(z_NQ)[:, None]

    def _factors(self, z_NQ: Tensor) -> Tensor:
        radius = self.mu**0.5
        # Embeddings within the ball keep their length: their factor is 1, and not a rounding below.
        length_N = torch.linalg.vector_norm(z_NQ, dim=1)
        factor_N: Tensor = (length_N / radius).clamp_min(1).reciprocal()
        return factor_N.masked_fill(length_N.isinf(), torch.nan)

    def pair_value_and_gradient(
        self, z1_NQ: Tensor, z2_NQ: Tensor, shard: Shard, form: str
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Compute it in Gram form, see `Regularizer.pair_value_and_gradient`."""
        n = shard.n
        views, factors = (z1_NQ, z2_NQ), (self._factors(z1_NQ), self._factors(z2_NQ))
        gradients = (torch.zeros_like(z1_NQ), torch.zeros_like(z2_NQ))
        squares = cross_energy(views, factors, square, gradients, shard)
        attraction = torch.zeros_like(squares)
        for part in chunks(z1_NQ):
            u1_PQ = z1_NQ[part] * factors[0][part, None]
            u2_PQ = z2_NQ[part] * factors[1][part, None]
            attraction += torch.linalg.vecdot(u1_PQ, u2_PQ).sum()
            for gradient_NQ, factor_N, u_PQ, other_PQ in zip(
                gradients, factors, (u1_PQ, u2_PQ), (u2_PQ, u1_PQ), strict=True
            ):
                gradient_PQ = gradient_NQ[part].mul_(1 / (self.mu * n * (n - 1)))
                gradient_PQ.sub_(other_PQ, alpha=2 / (self.mu * n))
                # A clipped row moves on the sphere of radius √μ only.
                # The division is by μ, the squared length of such a row.
                clipped_P = (factor_N[part] < 1).to(factor_N) / self.mu
                radial_P = torch.linalg.vecdot(gradient_PQ, u_PQ) * clipped_P
                gradient_PQ.addcmul_(u_PQ, radial_P[:, None], value=-1).mul_(factor_N[part, None])
        attraction, squares = shard.sum(torch.stack([attraction, squares]))
        terms = {
            "attraction": -2 / (self.mu * n) * attraction,
            "repulsion": squares / (self.mu * n * (n - 1)),
        }
        return terms, *gradients
