"""Matrix-SSL: matrix cross-entropies of covariances."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from regbench.methods.base import Metadata, Regularizer, register
from regbench.methods.forms.pairwise import normalize
from regbench.settings import AtLeastOne, NonNegative, Positive, settings
from regbench.spaces import Range, Space


@register("matrix_ssl")
@settings
class MatrixSSL(Regularizer):
    """U + γ A over unit embeddings, matrix uniformity and alignment (Zhang et al., ICML 2024), as
    in their code.

    With C_ab = (1/n) Z_aᵀ H Z_b, shape (q, q), and H = I − 11ᵀ/n:
    U = −λ tr log(μI + C₁₂), and A = −½ Σ_{a≠b} tr[(μI + C_aa) log(μI + C_bb)].
    These are the matrix cross-entropies −tr(P log Q) of the authors' code: of a multiple of the
    identity with the views' cross-covariance, and of the two autocovariances. Its two terms of U,
    one for each order of the views, are equal. log is its Taylor series about I up to `order`,
    log(I + X) ≈ X − X²/2 + …, so no guard is needed. With n < q the traces are computed of n × n
    matrices.

    Attributes:
        alignment_weight: γ.
        identity_weight: λ, the multiple of the identity whose cross-entropy with C₁₂ is taken.
        shift: μ, the multiple of the identity added to every covariance under the logarithm.
        order: Terms of the Taylor series.
    """

    alignment_weight: NonNegative = 1.0
    identity_weight: NonNegative = 1.0
    shift: Positive = 1.0
    order: AtLeastOne = 4

    revision: ClassVar[int] = 2
    metadata: ClassVar[Metadata] = Metadata(
        title="Matrix-SSL",
        reference="Zhang, Tan, Yang, Huang, Yuan, ICML 2024",
        url="https://arxiv.org/abs/2305.17326",
        formula="−λ tr log(μI + C₁₂) − ½γ Σ_{a≠b} tr[(μI + C_aa) log(μI + C_bb)], log to 4th order",
        latex=r"-\lambda \, \mathrm{tr} \log(\mu I + C_{12}) - \frac{\gamma}{2} \sum_{a \neq b} "
        r"\mathrm{tr} \left[ (\mu I + C_{aa}) \log(\mu I + C_{bb}) \right]",
        time="O(n q min(n, q))",
        memory="O(min(n, q)²)",
        published="γ = λ = μ = 1, order 4, q = 2048, batch 1024, ResNet-50 on ImageNet (released "
        "command)",
        limitation="the original compares a predictor's output with a momentum teacher's; here one "
        "network gives both, and the gradient flows through both",
        scale_invariant=True,
        rotation_invariant=True,
        # The series of the logarithm is far from converged for small eigenvalues: half-collapsed
        # can cost less.
        ordered=False,
    )
    space: ClassVar[Space] = {"alignment_weight": Range(0.01, 10, balances=True)}

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """Compute uniformity (which aligns the views too, by the cross-covariance) and
        alignment.
        """
        z1_NQ, z2_NQ = normalize(z1_NQ), normalize(z2_NQ)
        z1_NQ, z2_NQ = z1_NQ - z1_NQ.mean(dim=0), z2_NQ - z2_NQ.mean(dim=0)
        if z1_NQ.shape[0] < z1_NQ.shape[1]:
            return self._terms_of_grams(z1_NQ, z2_NQ)
        identity_QQ = torch.eye(z1_NQ.shape[1], dtype=z1_NQ.dtype, device=z1_NQ.device)

        def shifted(a_NQ: Tensor, b_NQ: Tensor) -> Tensor:
            return self.shift * identity_QQ + a_NQ.T @ b_NQ / len(a_NQ)

        def log(matrix_QQ: Tensor) -> Tensor:
            base_QQ = matrix_QQ - identity_QQ
            power_QQ = total_QQ = base_QQ
            for k in range(2, self.order + 1):
                power_QQ = power_QQ @ base_QQ
                total_QQ = total_QQ - (-1) ** k / k * power_QQ
            return total_QQ

        def cross_entropy(p_QQ: Tensor, q_QQ: Tensor) -> Tensor:
            # tr(P Q) is the sum of the products of Pᵀ and Q: one matrix product fewer.
            return -(p_QQ.T * log(q_QQ)).sum()

        own1_QQ, own2_QQ = shifted(z1_NQ, z1_NQ), shifted(z2_NQ, z2_NQ)
        alignment = 0.5 * (cross_entropy(own1_QQ, own2_QQ) + cross_entropy(own2_QQ, own1_QQ))
        return {
            "uniformity": self.identity_weight * cross_entropy(identity_QQ, shifted(z1_NQ, z2_NQ)),
            "alignment": self.alignment_weight * alignment,
        }

    def _terms_of_grams(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """Compute `terms` of centred unit embeddings by n × n matrices.

        With C = AᵀB/n, K = ABᵀ/n and the polynomial h(X) = (log(μI + X) − log(μ)I)/X, the series
        being meant by log: tr log(μI + C) = q log μ + tr K h(K), and log(μI + C) = log(μ)I +
        Aᵀh(Kᵀ)B/n.
        """
        n, q = z1_NQ.shape
        identity_NN = torch.eye(n, dtype=z1_NQ.dtype, device=z1_NQ.device)
        offset = self.shift - 1
        log_shift = -sum((-offset) ** k / k for k in range(1, self.order + 1))

        def quotient(gram_NN: Tensor) -> Tensor:
            base_NN = gram_NN + offset * identity_NN
            # power_NN is (baseᵏ − offsetᵏ)/gram, for k = 1 at first.
            power_NN = total_NN = identity_NN
            for k in range(2, self.order + 1):
                power_NN = power_NN @ base_NN + offset ** (k - 1) * identity_NN
                total_NN = total_NN - (-1) ** k / k * power_NN
            return total_NN

        def cross_entropy(gram1_NN: Tensor, cross_NN: Tensor, gram2_NN: Tensor) -> Tensor:
            weight_NN = self.shift * gram2_NN + cross_NN.T @ cross_NN
            constant = log_shift * (self.shift * q + gram1_NN.diagonal().sum())
            return -(weight_NN * quotient(gram2_NN)).sum() - constant

        gram1_NN, gram2_NN, cross_NN = z1_NQ @ z1_NQ.T / n, z2_NQ @ z2_NQ.T / n, z1_NQ @ z2_NQ.T / n
        uniformity = -(cross_NN.T * quotient(cross_NN)).sum() - q * log_shift
        alignment = cross_entropy(gram1_NN, cross_NN, gram2_NN) + cross_entropy(
            gram2_NN, cross_NN.T, gram1_NN
        )
        return {
            "uniformity": self.identity_weight * uniformity,
            "alignment": 0.5 * self.alignment_weight * alignment,
        }
