"""The factors of weights that the audit gives; those of losses are in planted.txt."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from regbench import methods
from regbench.instruments.audit.textbook import textbook
from regbench.instruments.audit.weights import PUBLISHED
from regbench.instruments.loss_checks import draw_views, evaluate, seeded


def test_lejepas_published_distance_is_a_sum_over_coordinates() -> None:
    """Its loss is (1 − λ) mean ‖z − c‖² + λ SIGReg.

    What the weight is there gives the same direction.
    """
    method = methods.build("sigreg", directions=16, regularization_weight=0.05)
    views = draw_views(8, 5, 2)
    weight = PUBLISHED[type(method), "regularization_weight"](0.05, 8, 5)

    def published(views: Sequence[torch.Tensor], seed: int = 0) -> torch.Tensor:
        distance = (views[0] - views[1]).square().sum(dim=1).mean() / 4
        whole = methods.build("sigreg", directions=16, regularization_weight=1.0)
        with seeded(seed):
            statistic = whole.terms(*views)["normality"]
        return (1 - weight) * distance + weight * statistic

    ours, our_slopes = evaluate(partial(textbook, method, global_views=2), views)
    theirs, slopes = evaluate(published, views)
    for slope, ours_NQ in zip(slopes, our_slopes, strict=True):
        torch.testing.assert_close(slope / theirs, ours_NQ / ours)
