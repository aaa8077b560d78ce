"""Adapters of other libraries' losses. Settings that a library leaves open are those of its defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regbench.errors import RegbenchError
from regbench.instruments.audit.target import Adapter, Batch, Call, Target, split_target

MANY = (2, 3, 4)


def _global_and_local(loss: Any, batch: Batch) -> Any:
    """Call a loss of global and local views; without local ones all count as both, which leaves means as they are."""
    stacked = torch.stack(batch.views_NQ)
    seen = batch.global_views
    return loss(global_proj=stacked[:seen], local_proj=stacked[seen:] if seen < len(stacked) else stacked)


def _halves(loss: Any, batch: Batch) -> Any:
    """Call a loss of (n, k, q) online and as many momentum embeddings."""
    return loss(*torch.stack(batch.views_NQ, dim=1).chunk(2, dim=1))


def _drawing(loss: Any, views: Tensor) -> Any:
    """Call a loss that draws directions of the default dtype by a counter of steps; here the generator's seed is that.

    So it draws what the textbook draws.
    """
    loss.global_step.fill_(torch.initial_seed())
    usual = torch.get_default_dtype()
    torch.set_default_dtype(views.dtype)
    try:
        return loss(views)
    finally:
        torch.set_default_dtype(usual)


def _stacked_at_a_step(loss: Any, batch: Batch) -> Any:
    return _drawing(loss, torch.stack(batch.views_NQ))


def _concatenated_at_a_step(loss: Any, batch: Batch) -> Any:
    return _drawing(loss, torch.cat(batch.views_NQ))


def _both_orders(loss: Any, batch: Batch) -> Any:
    """Call a loss that regularizes its first view only with either view first: the mean is that of both."""
    z1_NQ, z2_NQ = batch.views_NQ
    return (loss(z1_NQ, z2_NQ) + loss(z2_NQ, z1_NQ)) / 2


def _reference(loss: Any, batch: Batch) -> Any:
    return loss(batch.views_NQ[0], ref_emb=batch.views_NQ[1])


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
        target="lightly.loss:KoLeoLoss",
        call="each",
        views=MANY,
        claims="koleo(alignment_weight=0.0, uniformity_weight=1.0)",
    ),
    "EMPSSLLoss": Adapter(
        target="lightly.loss:EMPSSLLoss", call="list", views=MANY, claims="tcr(alignment_weight=200.0, distortion=0.2)"
    ),
    "MMCRLoss": Adapter(target="lightly.loss:MMCRLoss(lmda=0.0)", call=_halves, views=(2, 4), claims="mmcr"),
    "FroSSLLoss": Adapter(
        target="lightly.loss:FroSSLLoss", call="list", views=MANY, claims="frossl(alignment_weight=1.0, centered=False)"
    ),
    "WMSELoss": Adapter(
        target="lightly.loss:WMSELoss(embedding_dim=q, w_size=n, eps=1e-4, num_samples=views)",
        call="concatenated",
        views=MANY,
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
        call=_global_and_local,
        views=MANY,
        local_views=True,
        claims="sigreg(regularization_weight=0.05, directions=64)",
        gathers=True,
    ),
    "VISRegLoss": Adapter(
        target="lightly.loss:VISRegLoss(gather_distributed=True, num_slices=64)",
        call=_global_and_local,
        views=MANY,
        local_views=True,
        claims="visreg(directions=64)",
        gathers=True,
    ),
}

PYTORCH_METRIC_LEARNING = {
    "NTXentLoss": Adapter(
        target="pytorch_metric_learning.losses:NTXentLoss(temperature=0.5)",
        call="labelled",
        views=MANY,
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
    # As its LeJEPA calls it.
    "SlicedEppsPulley": Adapter(
        target="stable_pretraining.methods.lejepa:SlicedEppsPulley(num_slices=64)",
        call=_concatenated_at_a_step,
        views=MANY,
        claims="sigreg(regularization_weight=1.0, directions=64)",
        gathers=True,
    ),
}

SOLO_LEARN = {
    "simclr_loss_func": Adapter(
        target="solo.losses.simclr:simclr_loss_func",
        call="labelled",
        views=MANY,
        claims="simclr(temperature=0.1)",
        gathers=True,
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
        call=_stacked_at_a_step,
        views=MANY,
        claims="sigreg(regularization_weight=1.0, directions=64)",
        gathers=True,
    ),
}

JEPA_SCIENCE = {
    "SIGReg": Adapter(
        target="jepa_science:SIGReg(num_slices=64)",
        call="stacked",
        views=MANY,
        claims="sigreg(regularization_weight=1.0, directions=64)",
    ),
}

INFO_NCE_PYTORCH = {
    "InfoNCE": Adapter(target="info_nce:InfoNCE()", claims="info_nce(temperature=0.1)"),
}

EMP_SSL_PYTORCH = {
    # What its model maximises.
    "total_coding_rate": Adapter(
        target="emp_ssl_pytorch.emp_ssl_pytorch:lambda z: -total_coding_rate(F.normalize(z, dim=1))",
        call="each",
        views=MANY,
        claims="tcr(alignment_weight=0.0, distortion=0.2)",
    ),
}

LIBRARIES: dict[str, dict[str, Adapter]] = {
    "lightly": LIGHTLY,
    "pytorch-metric-learning": PYTORCH_METRIC_LEARNING,
    "stable-pretraining": STABLE_PRETRAINING,
    "solo-learn": SOLO_LEARN,
    "lejepa": LEJEPA,
    "jepa-science": JEPA_SCIENCE,
    "info-nce-pytorch": INFO_NCE_PYTORCH,
    "emp-ssl-pytorch": EMP_SSL_PYTORCH,
}


def find_losses(
    names: Sequence[str], claims: str = "", call: str | Call = "arguments", gathers: bool = False, views: int = 2
) -> tuple[list[Target], str]:
    """Find what names stand for, and the options of the command that audits them so.

    Args:
        names: Libraries (`lightly`), losses of theirs (`lightly:NTXentLoss`), or losses of one's own:
            `package.module:Class(args)`, `path/file.py:Class(args)`.
        claims: The regularizer that losses of one's own say they are; like the rest, adapters state it of theirs.
        call: How they take views, see `Adapter`.
        gathers: Whether they say that several processes share one batch.
        views: The largest number of views that they take.

    Raises:
        RegbenchError: If a name is none of a target, or the claim none of a regularizer.
    """
    losses = []
    for name in names:
        own = Adapter(target=name, claims=claims, call=call, gathers=gathers, views=tuple(range(2, views + 1)))
        losses += _targets(name, own)
    options = [f"--claims '{claims}'"] * bool(claims) + [f"--call {call}"] * (call != "arguments")
    return losses, " ".join([*options, *["--gathers"] * gathers, *[f"--views {views}"] * (views > 2)])


def _targets(name: str, own: Adapter) -> list[Target]:
    if name in LIBRARIES:
        return [Target(f"{name}:{loss}", adapter) for loss, adapter in LIBRARIES[name].items()]
    library, _, loss = name.partition(":")
    if loss in LIBRARIES.get(library, ()):
        return [Target(name, LIBRARIES[library][loss])]
    if ":" not in name:
        known = ", ".join(LIBRARIES)
        raise RegbenchError(f"no adapters of {name!r}; there are some of {known}; or package.module:Class(args)")
    split_target(name)
    return [Target(name, own)]
