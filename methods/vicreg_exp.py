"""VICReg-exp and VICReg-ctr: VICReg with a log-sum-exp, over the dimensions or over the samples."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from torch import Tensor

from regbench.methods.base import Metadata, register
from regbench.methods.forms.decomposed import Addends
from regbench.methods.forms.pairwise import mask_diagonal
from regbench.methods.vicreg import VarianceCovariance
from regbench.settings import Positive, settings


@register("vicreg_exp")
@settings
class VICRegExp(VarianceCovariance):
    """λ mse(Z₁, Z₂) + μ ½ (v(Z₁) + v(Z₂)) + ν (c_exp(Z₁) + c_exp(Z₂)), Eqs. (11), (12) of Garrido
    et al. (ICLR 2023).

    VICReg with c_exp = (1/q) Σ_j log Σ_{k≠j} exp(C_jk / τ) for its covariance term: C is the (q, q)
    covariance with the true n − 1, v the hinge on the standard deviation of each dimension, and mse
    and the ½ are the conventions of `VICReg`, to whose official code the paper refers (its
    equations print a sum over the images and no ½).

    Attributes:
        alignment_weight: λ.
        variance_weight: μ.
        covariance_weight: ν.
        temperature: τ.
        epsilon: ε, added to the variance under the root.
    """

    temperature: Positive = 0.15
    least_dim: ClassVar[int] = 2

    metadata: ClassVar[Metadata] = Metadata(
        title="VICReg-exp",
        reference="Garrido, Chen, Bardes, Najman, LeCun, ICLR 2023",
        url="https://arxiv.org/abs/2206.02574",
        formula="λ ‖Z₁ − Z₂‖²/(nq) + Σ_v [ ½μ mean_j max(0, 1 − √(var_j + ε)) + ν mean_j log "
        "Σ_{k≠j} exp(C_jk/τ) ]",
        latex=r"\frac{\lambda}{nq} \Vert Z_1 - Z_2 \Vert_F^2 + \sum_v \left[ \frac{\mu}{2q} "
        r"\sum_j \max(0, 1 - \sqrt{\mathrm{var}_j + \epsilon}) + \frac{\nu}{q} \sum_j \log "
        r"\sum_{k \neq j} \exp \frac{C_{jk}}{\tau} \right]",
        time="O(n q²)",
        memory="O(q²)",
        published="the weights are in the paper's Table S6 (ImageNet, ResNet-50, 100 epochs), "
        "which the defaults do not claim to be: VICReg's (25, 25, 1), and the τ = 0.15 that the "
        "paper's main text tunes for SimCLR",
    )

    def regularizer(self, u_NQ: Tensor) -> Addends:
        """Compute μ v and 2 ν c_exp of one view."""
        return self._of_rows((u_NQ - u_NQ.mean(dim=0)).T)

    def _of_rows(self, x: Tensor) -> Addends:
        """Compute them with the rows of x as variables, shape (variables, observations)."""
        observations = x.shape[1]
        hinge = self.hinge(x.var(dim=1))
        logits = x @ x.T / (self.temperature * (observations - 1))
        # The diagonal holds variances, which are left to the hinge.
        covariance = mask_diagonal(logits).logsumexp(dim=1).mean()
        return self.weighted(hinge, covariance)


@register("vicreg_ctr")
@settings
class VICRegCtr(VICRegExp):
    """VICReg-exp with v and c_exp of the transposed embeddings, Eq. (13) of Garrido et al. (ICLR
    2023).

    λ mse(Z₁, Z₂) + μ ½ (v(Z̄₁ᵀ) + v(Z̄₂ᵀ)) + ν (c_exp(Z̄₁ᵀ) + c_exp(Z̄₂ᵀ)): v is the hinge on the
    standard deviation over the coordinates of each centred embedding, and c_exp = (1/n) Σᵢ log
    Σ_{j≠i} exp(Gᵢⱼ / τ) with the (n, n) matrix G = Z̄ Z̄ᵀ/(q − 1). Eq. (13) can be read in two ways,
    which `centering` names:

    - `batch`: Z̄ is Z centred over the images. The paper's Table 1 lists the dimensions as centred,
      and its text calls G the Gram matrix, so G is not centred over the coordinates once more (v, a
      variance, is).
    - `coordinates`: Z̄ is Z with each embedding centred over its coordinates, which makes G the
      covariance C of Eq. (11) of the transposed embeddings, as Eq. (13) prints it.

    Attributes:
        alignment_weight: λ.
        variance_weight: μ.
        covariance_weight: ν.
        temperature: τ.
        epsilon: ε, added to the variance under the root.
        centering: Axis that G is centred over: `batch` or `coordinates`.
    """

    centering: Literal["batch", "coordinates"] = "batch"

    metadata: ClassVar[Metadata] = replace(
        VICRegExp.metadata,
        title="VICReg-ctr",
        formula="λ ‖Z₁ − Z₂‖²/(nq) + Σ_v [ ½μ mean_i max(0, 1 − √(var(z̄ᵢ) + ε)) + ν mean_i log "
        "Σ_{j≠i} exp(G_ij/τ) ],  Z̄ centred, G = Z̄Z̄ᵀ/(q−1)",
        latex=r"\frac{\lambda}{nq} \Vert Z_1 - Z_2 \Vert_F^2 + \sum_v \left[ \frac{\mu}{2n} \sum_i "
        r"\max(0, 1 - \sqrt{\mathrm{var}(\bar z_{v,i}) + \epsilon}) + \frac{\nu}{n} \sum_i \log "
        r"\sum_{j \neq i} \exp \frac{G_{v,ij}}{\tau} \right], \quad G_v = \bar Z_v \bar "
        r"Z_v^\top / (q - 1)",
        time="O(n² q)",
        memory="O(n²)",
    )

    def regularizer(self, u_NQ: Tensor) -> Addends:
        """Compute μ v and 2 ν c_exp of the transposed view."""
        mean = u_NQ.mean(dim=0) if self.centering == "batch" else u_NQ.mean(dim=1, keepdim=True)
        # Not transposed: here the images take the place of the variables.
        return self._of_rows(u_NQ - mean)
