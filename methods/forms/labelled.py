"""Losses of labels, for references above the methods: what the network could learn if it knew the
classes.

They are not registered: they are neither methods nor regularizers.
Shapes: N = images of this rank, M = embeddings of all views of all ranks, Q = width of the
network's output (q).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from regbench.methods.base import Loss
from regbench.methods.forms.engine import Engine, Shard, mean_over_ranks
from regbench.methods.forms.pairwise import mask_diagonal, normalize

TEMPERATURE = 0.1
"""τ of `supervised_contrastive`: that of the paper's ImageNet models."""


def cross_entropy(views_NQ: Sequence[Tensor], labels_N: Tensor, engine: Engine) -> Loss:
    """Compute the mean over views of the cross-entropy of their logits, or of their squared errors.

    Args:
        views_NQ: This rank's logits of each view, shape (n, classes), or predictions (n, values).
        labels_N: This rank's classes, int64, or values (n, values) of a floating type.
        engine: The ranks, which have equally many images.

    Returns:
        This rank's total, whose gradients DistributedDataParallel averages, and the addend of the
        whole batch.
    """
    name = "cross_entropy"
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
    if labels_N.is_floating_point():
        name, loss = "squared_error", F.mse_loss
    total = torch.stack([loss(view_NQ, labels_N) for view_NQ in views_NQ]).mean()
    # A copy, as the all-reduce would write into the total of this rank.
    mean = mean_over_ranks(total.detach().clone(), engine.group)
    return Loss(total, {name: mean})


def supervised_contrastive(views_NQ: Sequence[Tensor], labels_N: Tensor, engine: Engine) -> Loss:
    """Compute L_out^sup of Khosla et al. (NeurIPS 2020, Eq. (2)) over unit embeddings, as a mean
    over all anchors.

    L = −(1/M) Σᵢ (1/|P(i)|) Σ_{p ∈ P(i)} log [exp(zᵢ·z_p/τ) / Σ_{a≠i} exp(zᵢ·z_a/τ)], P(i) being
    the other embeddings of i's class. The authors' code (HobbitLong/SupContrast) multiplies it by
    τ/0.07.

    Args:
        views_NQ: This rank's embeddings of each view, shape (n, q), two at least.
        labels_N: This rank's classes, int64.
        engine: The ranks.

    Returns:
        Total and addends of the whole batch; gradients as those of `Regularizer.__call__`.
    """
    shard = Shard.of(views_NQ[0], engine)
    u_MQ = normalize(torch.cat([shard.gather_with_gradient(view_NQ) for view_NQ in views_NQ]))
    labels_M = shard.gather(labels_N).repeat(len(views_NQ))
    positive_MM = (labels_M[:, None] == labels_M).to(u_MQ.dtype)
    positive_MM.fill_diagonal_(0)
    logits_MM = u_MQ @ u_MQ.T / TEMPERATURE
    # No row is divided by 0: another view of the image is of its class.
    alignment = -((positive_MM * logits_MM).sum(dim=1) / positive_MM.sum(dim=1)).mean()
    uniformity = mask_diagonal(logits_MM).logsumexp(dim=1).mean()
    terms = {"alignment": alignment.detach(), "uniformity": uniformity.detach()}
    return Loss(alignment + uniformity, terms)


LOSSES_OF_LABELS: Mapping[str, Callable[[Sequence[Tensor], Tensor, Engine], Loss]] = {
    "supervised": cross_entropy,
    "supcon": supervised_contrastive,
}
"""The losses by the name of the baseline that they train."""
