"""The textbook: the published value of what a loss claims to be, of views' embeddings or of
predictions and targets.

Where a method compares predictions with a teacher's outputs, those stand in the embeddings' place:
predictions of V views, then targets, the outputs for the G global views.

Shapes: N = batch (n), Q = embedding dimension, or prototypes whose scores take its place (q).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from regbench.instruments.loss_checks import Views, draw_views, seeded
from regbench.methods import Engine, Regularizer
from regbench.methods.base import Loss
from regbench.methods.forms.targets import loss_of_targets

_ROWS = 128  # more than any probe's batch has


def has_targets(method: Regularizer) -> bool:
    """Return True if targets are given beside the views: a teacher's outputs, or embeddings
    beside predictions.
    """
    of_training = any(getattr(method, name) for name in method.of_training)
    return of_training or "predictor" in method.needs or "ema" in method.needs


def is_own_target(method: Regularizer) -> bool:
    """Return True if the views are also the targets, without a gradient, like SwAV's scores."""
    return "stop_gradient" in method.needs and not has_targets(method)


def keeps_state(method: Regularizer) -> bool:
    """Return True if earlier batches matter, as for DINO's center."""
    return has_targets(method) and method.target_transform(1) is not None


def earlier_batches(like: Views, first: int = 0) -> list[list[Tensor]]:
    """Draw two earlier batches of the same shapes as one; `first` is the number of its first row in
    the batch of all ranks.
    """
    n, q = like[0].shape
    batches = []
    for seed in (31, 32):
        drawn = draw_views(_ROWS, q, len(like), seed)
        batches.append([z_NQ[first : first + n].to(like[0]) for z_NQ in drawn])
    return batches


def published(method: Regularizer, views_NQ: Views, global_views: int = 2) -> Loss:
    """Compute a method's published formula; one that keeps a state has seen `earlier_batches`."""
    if has_targets(method) or is_own_target(method):
        step, predictions, targets = step_of(method, views_NQ, global_views)
        return loss_of_targets(step, predictions, targets, Engine(form="textbook"))
    terms = method.view_terms(list(views_NQ), global_views)
    return Loss(torch.stack(list(terms.values())).sum(), terms)


def step_of(
    method: Regularizer, views_NQ: Views, global_views: int
) -> tuple[Regularizer, Sequence[Tensor], Sequence[Tensor]]:
    """Return the loss of one step at the end of a training, its predictions and its targets."""
    count, q = len(views_NQ), views_NQ[0].shape[1]
    if method.prototypes:
        method = replace(method, prototypes=q)  # type: ignore[type-var]
    if has_targets(method):
        count -= global_views
        targets, transform = views_NQ[count:], method.target_transform(q)
    else:
        targets, transform = views_NQ[:global_views], None
    predictions = views_NQ[:count]
    if transform is None:
        return method, predictions, [t_NQ.detach() for t_NQ in targets]
    transform = transform.to(views_NQ[0])
    step = method
    for batch_NQ in (*earlier_batches(views_NQ), [z_NQ.detach() for z_NQ in views_NQ]):
        step, targets = transform(batch_NQ[count:], batch_NQ[:count], 1.0, None)
    return step, predictions, targets


def textbook(method: Regularizer, views: Views, global_views: int, *, seed: int = 0) -> Tensor:
    """Compute the total of `published`; what it draws follows from the seed."""
    with seeded(seed):
        return published(method, views, global_views).total
