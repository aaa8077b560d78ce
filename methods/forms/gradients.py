"""Gradients of a loss: by autograd over the whole batch, or computed with the value and kept
until backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from regbench.errors import RegbenchError
from regbench.methods.forms.engine import Shard


def differentiate(
    terms_of: Callable[[Sequence[Tensor]], dict[str, Tensor]],
    views_NQ: Sequence[Tensor],
    shard: Shard,
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Compute addends of the whole batch and their sum's gradients by autograd.

    Args:
        terms_of: Function from the embeddings of the whole batch, by view, to the addends.
        views_NQ: This rank's embeddings of each view, shape (n_rank, q).
        shard: The ranks that share the batch.

    Returns:
        The addends, detached, and the gradients with respect to this rank's rows.
    """
    # Autograd stops at these leaves of the gathered batch, so no gradient travels between ranks.
    whole_NQ = [shard.gather(z_NQ.detach()).requires_grad_() for z_NQ in views_NQ]
    # The caller records no graph: it wants these gradients at once.
    with torch.enable_grad():
        terms = named(terms_of(whole_NQ))
        total = torch.stack(list(terms.values())).sum()
    if not total.requires_grad:
        raise RegbenchError("the loss has no gradient: all that depends on embeddings is detached")
    gradients_NQ: list[Tensor] = []
    for gradient_NQ in torch.autograd.grad(total, whole_NQ, materialize_grads=True):
        # Callers overwrite them. Autograd gives one tensor twice if views are only added up, and
        # for a plain sum a tensor whose rows share their memory.
        shared = any(
            gradient_NQ.untyped_storage() is other_NQ.untyped_storage() for other_NQ in gradients_NQ
        )
        own_NQ = gradient_NQ.clone() if shared else gradient_NQ.contiguous()
        gradients_NQ.append(own_NQ)
    detached = {name: term.detach() for name, term in terms.items()}
    return detached, [gradient_NQ[shard.rows] for gradient_NQ in gradients_NQ]


def named(terms: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the addends that a method gives, unless they have no names."""
    if not isinstance(terms, dict):
        raise RegbenchError("terms must return a dictionary of scalars, such as {'loss': loss}")
    return terms


def with_slopes(function: Callable[..., Tensor], *arguments: Tensor) -> tuple[Tensor, ...]:
    """Compute an elementwise function and its derivatives with respect to each argument."""
    with torch.enable_grad():
        leaves = [argument.detach().requires_grad_() for argument in arguments]
        value = function(*leaves)
        slopes = torch.autograd.grad(value.sum(), leaves, materialize_grads=True)
    return value.detach(), *slopes


class WithGradients(torch.autograd.Function):
    """A value whose gradients are known."""

    @staticmethod
    def forward(
        ctx: Any, total: Tensor, gradients_NQ: Sequence[Tensor], label: str, *views_NQ: Tensor
    ) -> Tensor:
        """Return the value, and keep its gradients with respect to the views for backward."""
        ctx.save_for_backward(*gradients_NQ)
        ctx.label = label
        return total.clone()

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        """Scale the gradients that were kept.

        Raises:
            RegbenchError: If a second derivative is asked for.
        """
        # Gradients are recorded in a backward only if it is to be differentiated itself
        # (`create_graph=True`).
        if torch.is_grad_enabled():
            raise RegbenchError(
                f"{ctx.label}: the streamed loss has no second derivative; "
                'give engine=Engine(form="textbook") to differentiate twice'
            )
        (scale,) = outputs
        # Gradients are scaled in place unless backward may come again: a scaled copy would be the
        # largest scratch. Autograd casts each to the dtype of its view.
        keep = torch._C._autograd._get_current_graph_task_keep_graph()
        scaled_NQ = [z_NQ * scale if keep else z_NQ.mul_(scale) for z_NQ in ctx.saved_tensors]
        return None, None, None, *scaled_NQ
