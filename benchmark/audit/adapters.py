"""Adapters of other libraries' losses. Settings that a library leaves open are those of its defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regbench import RegbenchError
from regbench.benchmark.audit.target import Adapter, Target, split_target


def _views_and_none(loss: Any, views_NQ: Sequence[Tensor], first: int) -> Any:
    """Call a loss of global and local views with the same ones as both: means over them are those of two views."""
    stacked = torch.stack(list(views_NQ))
    return loss(local_proj=stacked, global_proj=stacked)


def _images_views(loss: Any, views_NQ: Sequence[Tensor], first: int) -> Any:
    """Call a loss of (n, 1, q) online and momentum embeddings."""
    return loss(views_NQ[0][:, None], views_NQ[1][:, None])


def _at_a_step(loss: Any, views_NQ: Sequence[Tensor], first: int) -> Any:
    """Call a loss whose directions follow from a counter of steps; here the generator chooses the step."""
    loss.global_step.fill_(int(torch.randint(2**31, ())))
    return loss(torch.stack(list(views_NQ)))


def _both_orders(loss: Any, views_NQ: Sequence[Tensor], first: int) -> Any:
    """Call a loss that regularizes its first view only with either view first: the mean is that of both."""
    z1_NQ, z2_NQ = views_NQ
    return (loss(z1_NQ, z2_NQ) + loss(z2_NQ, z1_NQ)) / 2


def _reference(loss: Any, views_NQ: Sequence[Tensor], first: int) -> Any:
    return loss(views_NQ[0], ref_emb=views_NQ[1])


def _indexed(loss: Any, views_NQ: Sequence[Tensor], first: int) -> Any:
    return loss(torch.cat(list(views_NQ)), torch.arange(first, first + len(views_NQ[0])).repeat(2))


LIGHTLY = {
    "NTXentLoss": Adapter(
        target="lightly.loss:NTXentLoss(gather_distributed=True)", claims="simclr(temperature=0.5)", gathers=True
    ),
    "DCLLoss": Adapter(
        target="lightly.loss:DCLLoss(gather_distributed=True)", claims="dcl(temperature=0.1)", gathers=True
    ),
    "DCLWLoss": Adapter(
        target="lightly.loss:DCLWLoss(gather_distributed=True)",
        claims="dclw(temperature=0.1, sigma=0.5)",
        detaches="the weights are detached",
        gathers=True,
    ),
    "BarlowTwinsLoss": Adapter(
        target="lightly.loss:BarlowTwinsLoss(gather_distributed=True)",
        claims="barlow_twins(redundancy_weight=0.005, scale=1.0)",
        gathers=True,
    ),
    "VICRegLoss": Adapter(target="lightly.loss:VICRegLoss(gather_distributed=True)", claims="vicreg", gathers=True),
    "KoLeoLoss": Adapter(
        target="lightly.loss:KoLeoLoss", call="each", claims="koleo(alignment_weight=0.0, uniformity_weight=1.0)"
    ),
    "EMPSSLLoss": Adapter(
        target="lightly.loss:EMPSSLLoss", call="list", claims="tcr(alignment_weight=200.0, distortion=0.2)"
    ),
    "MMCRLoss": Adapter(target="lightly.loss:MMCRLoss(lmda=0.0)", call=_images_views, claims="mmcr"),
    "FroSSLLoss": Adapter(
        target="lightly.loss:FroSSLLoss", call="list", claims="frossl(alignment_weight=1.0, centered=False)"
    ),
    "WMSELoss": Adapter(
        target="lightly.loss:WMSELoss(embedding_dim=q, w_size=n, eps=1e-4)",
        call="concatenated",
        claims="w_mse(epsilon=1e-4)",
    ),
    # Without its memory of earlier batches, which the textbook lacks.
    "TiCoLoss": Adapter(
        target="lightly.loss:TiCoLoss(beta=0.0, gather_distributed=True)",
        call=_both_orders,
        claims="tico",
        gathers=True,
    ),
    "LeJEPALoss": Adapter(
        target="lightly.loss:LeJEPALoss(gather_distributed=True, sigreg_num_vectors=64)",
        call=_views_and_none,
        claims="sigreg(regularization_weight=0.05, directions=64)",
        gathers=True,
    ),
    "VISRegLoss": Adapter(
        target="lightly.loss:VISRegLoss(gather_distributed=True, num_slices=64)",
        call=_views_and_none,
        claims="visreg(directions=64)",
        gathers=True,
    ),
}

PYTORCH_METRIC_LEARNING = {
    "NTXentLoss": Adapter(
        target="pytorch_metric_learning.losses:NTXentLoss(temperature=0.5)",
        call="labelled",
        claims="simclr(temperature=0.5)",
    ),
    "VICRegLoss": Adapter(
        target="pytorch_metric_learning.losses:VICRegLoss()", call=_reference, claims="vicreg(variance_weight=25.0)"
    ),
}

STABLE_PRETRAINING = {
    "NTXEntLoss": Adapter(
        target="stable_pretraining.losses:NTXEntLoss()", claims="simclr(temperature=0.5)", gathers=True
    ),
    "BarlowTwinsLoss": Adapter(
        target="stable_pretraining.losses:BarlowTwinsLoss()",
        claims="barlow_twins(redundancy_weight=0.005, scale=1.0)",
        gathers=True,
    ),
    "VICRegLoss": Adapter(target="stable_pretraining.losses:VICRegLoss()", claims="vicreg", gathers=True),
}

SOLO_LEARN = {
    "simclr_loss_func": Adapter(
        target="solo.losses.simclr:simclr_loss_func", call=_indexed, claims="simclr(temperature=0.1)", gathers=True
    ),
    "barlow_loss_func": Adapter(
        target="solo.losses.barlow:barlow_loss_func",
        claims="barlow_twins(redundancy_weight=0.005, scale=0.025)",
        gathers=True,
    ),
    "vicreg_loss_func": Adapter(target="solo.losses.vicreg:vicreg_loss_func", claims="vicreg", gathers=True),
    "vibcreg_loss_func": Adapter(target="solo.losses.vibcreg:vibcreg_loss_func", claims="vibcreg", gathers=True),
}

LEJEPA = {
    "SlicingUnivariateTest": Adapter(
        target="lejepa:multivariate.SlicingUnivariateTest(univariate.EppsPulley(), num_slices=64)",
        call=_at_a_step,
        claims="sigreg(regularization_weight=1.0, directions=64)",
        gathers=True,
    ),
}

LIBRARIES: dict[str, dict[str, Adapter]] = {
    "lightly": LIGHTLY,
    "pytorch-metric-learning": PYTORCH_METRIC_LEARNING,
    "stable-pretraining": STABLE_PRETRAINING,
    "solo-learn": SOLO_LEARN,
    "lejepa": LEJEPA,
}


def find_losses(names: Sequence[str], claims: str, call: str, gathers: bool) -> tuple[list[Target], str]:
    """Find what names stand for, see `targets`, and the options of the command that audits them so.

    Raises:
        RegbenchError: If a name is none of a target, or the claim none of a regularizer.
    """
    losses = [
        loss
        for name in names
        for loss in targets(name, Adapter(target=name, claims=claims, call=call, gathers=gathers))
    ]
    options = [f"--claims '{claims}'"] * bool(claims) + [f"--call {call}"] * (call != "arguments")
    return losses, " ".join([*options, *["--gathers"] * gathers])


def targets(name: str, adapter: Adapter | None = None) -> list[Target]:
    """Find what a name stands for: a library, one of its losses, or a target of one's own.

    Args:
        name: `lightly`, `lightly:NTXentLoss`, `package.module:Class(args)` or `path/file.py:Class(args)`.
        adapter: How a target of one's own is called; its `target` is replaced by `name`.

    Raises:
        RegbenchError: If it is none of these.
    """
    if name in LIBRARIES:
        return [Target(f"{name}:{loss}", each) for loss, each in LIBRARIES[name].items()]
    where, expression = split_target(name) if ":" in name else (name, "")
    if where in LIBRARIES and expression in LIBRARIES[where]:
        return [Target(name, LIBRARIES[where][expression])]
    if not expression:
        known = ", ".join(LIBRARIES)
        raise RegbenchError(f"no adapters of {name!r}; there are some of {known}; or package.module:Class(args)")
    given = adapter or Adapter(target=name)
    return [Target(name, given)]
