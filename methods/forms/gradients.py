"""Gradients of a loss: by autograd over the whole batch, or computed with the value and kept
until backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from regbench.errors import RegbenchError
from regbench.methods.forms.engine import Engine, Shard, drawing
from regbench.methods.forms.pairwise import fusing


class StreamedLoss(Protocol):
    """What is asked of a regularizer here, see `regbench.methods.base.Regularizer`."""

    random: ClassVar[bool]

    @property
    def label(self) -> str:
        """The name in tables."""

    def form_at(self, form: str, n: int, q: int) -> str:
        """Return what a form stands for at a batch of n and q dimensions."""

    def value_and_gradient(
        self, views_NQ: Sequence[Tensor], global_views: int, shard: Shard, form: str
    ) -> tuple[dict[str, Tensor], list[Tensor]]:
        """Compute the addends and their sum's gradients, without a graph."""


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
    # torch records no graph by itself in the forward of an autograd function, where this runs.
    with torch.enable_grad():
        terms = terms_of(whole_NQ)
        total = torch.stack(list(terms.values())).sum()
    gradients_NQ: list[Tensor] = []
    for gradient_NQ in torch.autograd.grad(total, whole_NQ, materialize_grads=True):
        # Callers write over them. Autograd gives one tensor twice where views are only added up,
        # and of a plain sum a tensor whose rows share their memory.
        shared = any(
            gradient_NQ.untyped_storage() is other_NQ.untyped_storage() for other_NQ in gradients_NQ
        )
        own_NQ = gradient_NQ.clone() if shared else gradient_NQ.contiguous()
        gradients_NQ.append(own_NQ)
    return {name: term.detach() for name, term in terms.items()}, [
        g_NQ[shard.rows] for g_NQ in gradients_NQ
    ]


class ValueWithGradient(torch.autograd.Function):
    """A loss whose gradient is computed with its value."""

    @staticmethod
    def forward(
        ctx: Any,
        method: StreamedLoss,
        engine: Engine,
        global_views: int,
        dtype: torch.dtype,
        out: dict[str, Tensor],
        *views_NQ: Tensor,
    ) -> Tensor:
        """Compute the loss, keep its gradients for backward and fill `out` with the addends.

        Raises:
            RegbenchError: If n < 2 over all ranks.
        """
        shard = Shard.of_loss(views_NQ[0], engine, method.label)
        form = method.form_at(engine.form, shard.n, views_NQ[0].shape[1])
        own_NQ = [z_NQ.detach().to(dtype) for z_NQ in views_NQ]
        with drawing(method.random, shard, engine, views_NQ[0].device), fusing(engine.compile):
            terms, gradients_NQ = method.value_and_gradient(own_NQ, global_views, shard, form)
        out.update({name: term.to(dtype) for name, term in terms.items()})
        if shard.world > 1:
            for gradient_NQ in gradients_NQ:
                gradient_NQ.mul_(shard.world)  # DistributedDataParallel takes the mean over ranks
        ctx.save_for_backward(*gradients_NQ)
        ctx.dtype, ctx.label = views_NQ[0].dtype, method.label
        return torch.stack(list(terms.values())).sum().to(dtype)

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
        # largest scratch.
        keep = torch._C._autograd._get_current_graph_task_keep_graph()
        gradients_NQ = [g_NQ * scale if keep else g_NQ.mul_(scale) for g_NQ in ctx.saved_tensors]
        return (
            None,
            None,
            None,
            None,
            None,
            *(gradient_NQ.to(ctx.dtype) for gradient_NQ in gradients_NQ),
        )
