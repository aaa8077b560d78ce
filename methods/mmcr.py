"""MMCR: maximum manifold capacity representations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from regbench.methods.base import Metadata, Native, register
from regbench.methods.forms.engine import Shard
from regbench.methods.forms.gradients import differentiate
from regbench.methods.forms.pairwise import normalize
from regbench.settings import NonNegative, settings
from regbench.spaces import Range, Space


@register("mmcr")
@settings
class MMCR(Native):
    """λ (1/n) Σᵢ ‖[z₁ᵢ, …, z_{V,i}]‖_* − ‖C‖_* (Yerxa et al., NeurIPS 2023), ‖·‖_* the nuclear
    norm.

    The embeddings are unit vectors, C has the centroids (1/V) Σ_v z_{v,i} as rows, shape (n, q),
    and [z₁ᵢ, …, z_{V,i}] has shape (q, V). Which views are global does not matter. Aligned views
    make the centroids long, so one term serves both ends; the paper's experiments have λ = 0, where
    the first term is not computed.

    Duplicates and a low rank make singular values of 0, where the nuclear norm has subgradients but
    no gradient. The form `covariance` takes the one that leaves out the directions of these values,
    equal images having equal gradients; in the textbook form rounding chooses. So two forms, or two
    precisions of the textbook's, can have quite different gradients there.

    The form `covariance` takes the roots of the eigenvalues of the smaller of Cᵀ C and C Cᵀ, in
    double precision, in which they are as exact as singular values in single precision, which a GPU
    is slow to find.

    Attributes:
        local_weight: λ.
    """

    local_weight: NonNegative = 0.0

    metadata: ClassVar[Metadata] = Metadata(
        title="MMCR",
        reference="Yerxa, Kuang, Simoncelli, Chung, NeurIPS 2023",
        url="https://arxiv.org/abs/2303.03307",
        formula="λ mean_i ‖[z₁ᵢ, …, z_{V,i}]‖_* − ‖(1/V) Σ_v Z_v‖_*",
        latex=r"\frac{\lambda}{n} \sum_i \Vert [z_{1,i}, \ldots, z_{V,i}] \Vert_* - \Vert "
        r"\frac{1}{V} \sum_v Z_v \Vert_*",
        time="O(n q min(n, q))",
        memory="O(n q)",
        published="λ = 0; several views of an image (4 in the released ImageNet command)",
        views="the authors' code: the centroids of all views",
        limitation="no momentum encoder, one of its ImageNet variants",
        scale_invariant=True,
        rotation_invariant=True,
    )
    forms = ("textbook", "covariance")
    # The range holds the 0 of the paper's experiments, which no logarithmic one could.
    space: ClassVar[Space] = {"local_weight": Range(0, 0.2, "linear", balances=True, least=0)}

    def view_terms(self, views_NQ: Sequence[Tensor], global_views: int) -> dict[str, Tensor]:
        """Compute the nuclear norm of the centroids, and with λ > 0 the mean one of the views
        of each image.
        """
        return self._terms(views_NQ, 2, lambda matrices: torch.linalg.svdvals(matrices).sum())

    def value_and_gradient(
        self, views_NQ: Sequence[Tensor], global_views: int, shard: Shard, form: str
    ) -> tuple[dict[str, Tensor], list[Tensor]]:
        """Compute both terms by eigenvalues, see `Regularizer.value_and_gradient`."""
        return differentiate(
            lambda views_NQ: self._terms(views_NQ, 1, _NuclearNorm.apply), views_NQ, shard
        )

    def _terms(
        self, views_NQ: Sequence[Tensor], axis: int, nuclear_norm: Callable[[Tensor], Tensor]
    ) -> dict[str, Tensor]:
        """Compute `view_terms` of embeddings that are stacked along an axis, with a function that
        sums the nuclear norms of matrices.
        """
        stacked = torch.stack([normalize(z_NQ) for z_NQ in views_NQ], dim=axis)
        terms = {"centroids": -nuclear_norm(stacked.mean(dim=axis))}
        if self.local_weight:
            terms["views"] = self.local_weight * nuclear_norm(stacked) / len(stacked)
        return terms


class _NuclearNorm(torch.autograd.Function):
    """The sum of the nuclear norms of matrices (…, r, c), by the eigenvalues of a aᵀ, a (…, r,
    c) or its transpose.
    """

    @staticmethod
    def forward(ctx: Any, matrices: Tensor) -> Tensor:
        flip = matrices.shape[-2] > matrices.shape[-1]
        wide = (matrices.mT if flip else matrices).double()
        eigenvalues, vectors = torch.linalg.eigh(wide @ wide.mT)
        # Rounding would turn an eigenvalue of 0 into a singular value of some 10⁻⁸ of the largest.
        rounding = wide.shape[-2] * torch.finfo(torch.float64).eps * eigenvalues[..., -1:]
        singular = eigenvalues.where(eigenvalues > rounding, 0.0).sqrt()
        inverse = torch.where(singular > 0, 1 / singular, 0.0)
        # (A Aᵀ)^{−½} A is the gradient of ‖A‖_*; directions of a singular value of 0 are left out.
        gradient = (vectors * inverse[..., None, :]) @ (vectors.mT @ wide)
        ctx.save_for_backward((gradient.mT if flip else gradient).to(matrices.dtype))
        total: Tensor = singular.sum().to(matrices.dtype)
        return total

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> Tensor:
        gradient: Tensor = outputs[0] * ctx.saved_tensors[0]
        return gradient
