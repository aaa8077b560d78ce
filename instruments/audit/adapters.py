"""Losses of other libraries by name, from adapters.yaml, and the calls that only they need."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from torch import Tensor

from regbench.errors import RegbenchError
from regbench.instruments.audit.target import Batch, Call, Target
from regbench.settings import read_yaml


def _global_and_local(loss: Any, batch: Batch) -> Any:
    stacked = torch.stack(batch.views_NQ)
    seen = batch.global_views
    # Without local views all count as both, which leaves means as they are.
    local = stacked[seen:] if seen < len(stacked) else stacked
    return loss(global_proj=stacked[:seen], local_proj=local)


def _halves(loss: Any, batch: Batch) -> Any:
    """Call a loss of online embeddings (n, k, q) and as many momentum embeddings."""
    return loss(*torch.stack(batch.views_NQ, dim=1).chunk(2, dim=1))


def _both_orders(loss: Any, batch: Batch) -> Any:
    """Call a loss that keeps a state: only once, with both orders of two views."""
    return loss(torch.cat(batch.views_NQ), torch.cat(batch.targets_NQ[::-1]))


def _with_teacher(loss: Any, batch: Batch) -> Any:
    """Call a loss of the teacher's distributions, which it makes itself, and update its center."""
    scores = torch.stack(batch.targets_NQ)
    value = loss(torch.stack(batch.views_NQ), loss.softmax_center_teacher(scores, 0.07))
    loss.update_center(scores)
    return value


def _drawing(loss: Any, views: Tensor) -> Any:
    """Call a loss that draws directions of the default dtype by a counter of steps."""
    # With the generator's seed for the step, it draws what the textbook draws.
    loss.global_step.fill_(torch.initial_seed())
    usual = torch.get_default_dtype()
    torch.set_default_dtype(views.dtype)
    try:
        return loss(views)
    finally:
        torch.set_default_dtype(usual)


_CALLS: dict[str, Call] = {
    "global_and_local": _global_and_local,
    "halves": _halves,
    "both_orders": _both_orders,
    "teacher_first": lambda loss, batch: loss(batch.targets_NQ, batch.views_NQ),
    "both_orders_of_output": lambda loss, batch: _both_orders(loss, batch).loss,
    "with_teacher": _with_teacher,
    "global_then_local": lambda loss, batch: loss(
        batch.views_NQ[: batch.global_views], batch.views_NQ[batch.global_views :]
    ),
    "reference": lambda loss, batch: loss(batch.views_NQ[0], ref_emb=batch.views_NQ[1]),
    "stacked_at_a_step": lambda loss, batch: _drawing(loss, torch.stack(batch.views_NQ)),
    "concatenated_at_a_step": lambda loss, batch: _drawing(loss, torch.cat(batch.views_NQ)),
}


@functools.cache
def libraries() -> dict[str, dict[str, Target]]:
    """Read the losses that have adapters, by library and name."""
    found: dict[str, dict[str, Target]] = {}
    for library, losses in read_yaml(Path(__file__).with_name("adapters.yaml")).items():
        found[library] = {}
        for loss, given in losses.items():
            call = given.get("call", "arguments")
            how = {**given, "call": _CALLS.get(call, call), "views": tuple(given.get("views", [2]))}
            found[library][loss] = Target(name=f"{library}:{loss}", **how)
    return found


def find_losses(
    names: Sequence[str],
    claims: str = "",
    call: str | Call = "arguments",
    gathers: bool = False,
    views: int = 2,
) -> tuple[list[Target], str]:
    """Find the losses that names stand for, and the options of the command that audits them.

    Args:
        names: Names as `regbench.audit.audit` takes them. The other arguments are for losses
            without an adapter.
        claims: The regularizer that they say they are.
        call: Way that the losses take views.
        gathers: Whether they say that several processes share one batch.
        views: The largest number of views that they take.

    Raises:
        RegbenchError: If a name stands for no target, or the claim for no regularizer.
    """
    losses: list[Target] = []
    counts = tuple(range(2, views + 1))
    for name in names:
        library, _, loss = name.partition(":")
        known = libraries().get(library, {})
        if name == library and known:
            losses += known.values()
        elif loss in known:
            losses.append(known[loss])
        elif name == library:
            listed = ", ".join(libraries())
            raise RegbenchError(
                f"no adapters of {name!r}; there are some of {listed}; or "
                "package.module:Class(args)"
            )
        else:
            own = Target(
                name=name, expression=name, claims=claims, call=call, gathers=gathers, views=counts
            )
            losses.append(own)
    options = [
        f"--claims {quote(claims)}" if claims else "",
        f"--call {call}" if call != "arguments" else "",
        "--gathers" if gathers else "",
        f"--views {views}" if views > 2 else "",
    ]
    return losses, " ".join(filter(None, options))
