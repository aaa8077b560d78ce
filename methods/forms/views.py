"""Parts that losses of many views share: the pairs of views that count, and the alignment over all
of them.

Shapes: N = batch (n), Q = embedding dimension (q). An image has V views, of which the first G are
global. A pair is a global view g and any other view v.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regbench.methods.forms.pairwise import chunks, frobenius_norm


def pairs(count: int, global_views: int) -> Iterator[tuple[int, int, float]]:
    """List the pairs of views, each once, with the share that it has in the mean over all pairs.

    The mean is over the G (V − 1) ordered pairs (g, v) with g global and v ≠ g. Two global views
    are in it in both orders, so the one order that is listed, g < v, counts twice.

    Args:
        count: V.
        global_views: G.

    Yields:
        g, v and the share; the shares add up to 1.
    """
    share = 1 / (global_views * (count - 1))
    for g in range(global_views):
        for v in range(g + 1, count):
            yield g, v, 2 * share if v < global_views else share


def spread_weights(count: int, global_views: int, *, to_center: bool) -> tuple[float, float]:
    """Return the weights a and b that make a Σ_g ‖u_g − c‖² + b Σ_v ‖u_v − c‖² an alignment, c
    being the mean of the global views.

    Since the u_g − c add up to zero, Σ_g Σ_v ‖u_g − u_v‖² = V Σ_g ‖u_g − c‖² + G Σ_v ‖u_v − c‖²:
    the alignment of all pairs costs no more than that of V views with their center, and nothing
    cancels.

    Args:
        count: V.
        global_views: G.
        to_center: Whether the alignment is the mean over views of ‖u_v − c‖²; else it is the mean
            over pairs of ‖u_g − u_v‖².
    """
    if to_center:
        return 0.0, 1 / count
    ordered = global_views * (count - 1)
    return count / ordered, global_views / ordered


def mean_squared_spread(
    views_NQ: Sequence[Tensor], global_views: int, *, to_center: bool = False
) -> Tensor:
    """Compute the alignment over n **and** q, a differentiable scalar.

    Args:
        views_NQ: u, shape (n, q) each.
        global_views: G.
        to_center: See `spread_weights`.
    """
    of_global, of_all = spread_weights(len(views_NQ), global_views, to_center=to_center)
    center_NQ = torch.stack(list(views_NQ[:global_views])).mean(dim=0)
    squares = torch.stack([(view_NQ - center_NQ).square().mean() for view_NQ in views_NQ])
    total: Tensor = of_global * squares[:global_views].sum() + of_all * squares.sum()
    return total


def add_alignment(
    views_NQ: Sequence[Tensor],
    inverses_N: Sequence[Tensor] | None,
    gradients_NQ: Sequence[Tensor],
    scale: float,
    global_views: int,
    *,
    to_center: bool = False,
) -> Tensor:
    """Sum the alignment over this rank's images and over q, and add its gradients, in time O(V n
    q).

    Args:
        views_NQ: Embeddings of each view, shape (n_rank, q).
        inverses_N: Factors that make them u, shape (n_rank,); None for u = z.
        gradients_NQ: Buffers to which `scale` times the gradients with respect to u are added.
        scale: See `gradients_NQ`.
        global_views: G.
        to_center: See `spread_weights`.

    Returns:
        A float64 scalar.
    """
    of_global, of_all = spread_weights(len(views_NQ), global_views, to_center=to_center)
    weights = [of_all + of_global] * global_views + [of_all] * (len(views_NQ) - global_views)
    # A rank without rows has no chunk, and `stack` wants a tensor.
    lengths = [[views_NQ[0].new_zeros(())] for _ in views_NQ]
    for rows in chunks(views_NQ[0]):

        def u(view: int, rows: slice = rows) -> Tensor:
            z_PQ = views_NQ[view][rows]
            return z_PQ if inverses_N is None else z_PQ * inverses_N[view][rows, None]

        center_PQ = torch.zeros_like(views_NQ[0][rows])
        for view in range(global_views):
            center_PQ.add_(u(view), alpha=1 / global_views)
        sum_PQ = torch.zeros_like(center_PQ)
        for view, gradient_NQ in enumerate(gradients_NQ):
            deviation_PQ = u(view) - center_PQ
            lengths[view].append(frobenius_norm(deviation_PQ))
            gradient_NQ[rows].add_(deviation_PQ, alpha=2 * scale * weights[view])
            sum_PQ += deviation_PQ
        # The center moves with the global views. That matters only to the sum over all views, as
        # deviations of the global ones add up to zero.
        for gradient_NQ in gradients_NQ[:global_views]:
            gradient_NQ[rows].sub_(sum_PQ, alpha=2 * scale * of_all / global_views)
    total = torch.zeros((), dtype=torch.float64, device=views_NQ[0].device)
    for weight, own in zip(weights, lengths, strict=True):
        total += weight * torch.stack(own).double().square().sum()
    return total
