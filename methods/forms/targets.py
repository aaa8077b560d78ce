"""The loss of predictions and targets: what a regularizer becomes beside a predictor or a teacher.

Shapes: N = rows of this rank, Q = embedding dimension (q).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regbench.methods.base import Loss, Regularizer
from regbench.methods.forms.engine import Engine


def loss_of_targets(
    method: Regularizer,
    predictions_NQ: Sequence[Tensor],
    targets_NQ: Sequence[Tensor],
    engine: Engine,
) -> Loss:
    """Compute (1/(G (V − 1))) Σ_g Σ_{v≠g} L(p_v, t_g), L being the two-view loss of a method.

    Of two views it is ½ [L(p₂, t₁) + L(p₁, t₂)], as in BYOL (Grill et al., NeurIPS 2020, Section
    3.1), SimSiam and MoCo v3; of more it is DINO's (Caron et al., ICCV 2021, Eq. (3)).

    Args:
        method: The loss L, of a prediction and a target.
        predictions_NQ: p of each of the V views, shape (n, q), the global ones first.
        targets_NQ: t of each of the G global views; no gradient flows to those that need none.
        engine: Form and ranks.

    Returns:
        Total and addends, see `Regularizer.__call__`.
    """
    share = 1 / (len(targets_NQ) * (len(predictions_NQ) - 1))
    totals: list[Tensor] = []
    terms: dict[str, Tensor] = {}
    for g, target_NQ in enumerate(targets_NQ):
        for v, prediction_NQ in enumerate(predictions_NQ):
            if v == g:
                continue
            loss = method(prediction_NQ, target_NQ, engine=engine)
            totals.append(share * loss.total)
            for name, term in loss.terms.items():
                terms[name] = share * term + terms.get(name, 0.0)
    return Loss(torch.stack(totals).sum(), terms)
