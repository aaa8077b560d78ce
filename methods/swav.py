"""SwAV: predict the code of another view, an assignment to prototypes that uses all of them
equally.

Shapes: N = batch (n), Q = prototypes, whose scores stand in the place of embeddings here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from regbench.methods.base import Metadata, PrototypeWeights, Regularizer, register
from regbench.methods.forms.pairwise import infinite_as_nan
from regbench.settings import AtLeastOne, AtLeastTwo, Positive, settings
from regbench.spaces import Range, Space


@register("swav")
@settings
class SwAV(Regularizer):
    """−mean Σ_k code(z₂)ᵢ_k log softmax(z₁ᵢ/τ)_k of scores z (Caron et al., NeurIPS 2020, Eqs. (2)
    and (3)).

    The codes of a batch are exp(z₂/ε) after some iterations of Sinkhorn and Knopp: each prototype
    gets n/K images, then each image sums to 1. Codes are targets, so in training no gradient flows
    through them.

    Attributes:
        prototypes: K, the number of prototypes.
        temperature: τ > 0.
        epsilon: ε > 0; the smaller, the sharper are codes.
        iterations: Iterations of Sinkhorn and Knopp, at least 1.
        prototype_weights: How prototypes begin and are kept: `unit`, the authors', of length 1 and
            rescaled to it after each step; `uniform`, from numbers within ±1/√q, so a length of
            about 0.58; or `normal`, of a length of √q, as in cells without the setting.
    """

    prototypes: AtLeastTwo = 3000
    temperature: Positive = 0.1
    epsilon: Positive = 0.05
    iterations: AtLeastOne = 3
    prototype_weights: PrototypeWeights = "unit"

    metadata: ClassVar[Metadata] = Metadata(
        title="SwAV",
        reference="Caron, Misra, Mairal, Goyal, Bojanowski, Joulin, NeurIPS 2020",
        url="https://arxiv.org/abs/2006.09882",
        formula="−(1/n) Σᵢ Σ_k code(z₂)ᵢ_k log softmax(z₁ᵢ/τ)_k, mean over both orders "
        "of the views",
        latex=r"-\frac{1}{n} \sum_i \sum_k \mathrm{code}(z_2)_{ik} \log "
        r"\mathrm{softmax}\left(\frac{z_{1,i}}{\tau}\right)_k",
        time="O(n (q + k))",
        memory="O(n k)",
        published="3000 prototypes, τ = 0.1, ε = 0.05, 3 iterations, batch 4096, ResNet-50 on "
        "ImageNet",
        views="the same paper, Eq. (6)",
        limitation="the original keeps the prototypes as they are in the first steps; its queue, "
        "for batches of fewer images than prototypes, is left out: it holds earlier embeddings, "
        "and this loss sees their scores alone",
        symmetric=False,
        ordered=False,
    )
    needs: ClassVar[tuple[str, ...]] = ("stop_gradient",)
    absent: ClassVar[Mapping[str, Any]] = {"prototype_weights": "normal"}
    space: ClassVar[Space] = {"epsilon": Range(0.01, 0.3), "temperature": Range(0.02, 1)}

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """Compute the cross-entropy of scores z1 with the codes of scores z2."""
        found_NQ = (z1_NQ / self.temperature).log_softmax(dim=1)
        return {"cross_entropy": -(self._codes(z2_NQ) * found_NQ).sum(dim=1).mean()}

    def _codes(self, z_NQ: Tensor) -> Tensor:
        # Logarithms, because exp(1/ε) of a small ε is beyond float32.
        log_NQ = infinite_as_nan(z_NQ) / self.epsilon
        for _ in range(self.iterations):
            # Prototypes come first, so that codes sum to 1 after however few iterations.
            log_NQ = log_NQ - torch.logsumexp(log_NQ, dim=0)
            log_NQ = log_NQ - torch.logsumexp(log_NQ, dim=1, keepdim=True)
        return log_NQ.exp()
