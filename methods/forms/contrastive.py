"""Contrastive losses: positive pairs against a log-sum-exp over the others.

Shapes: N = batch (n), Q = embedding dimension (q), P = rows of a panel, M = its columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from regbench.methods.base import Regularizer
from regbench.methods.forms.engine import Shard
from regbench.methods.forms.pairwise import (
    chunks,
    inverse_lengths,
    mask_diagonal,
    normalize,
    panels,
    to_embedding_gradient,
)
from regbench.settings import Positive, settings
from regbench.spaces import Range, Space


class Panel(NamedTuple):
    """The logits of some rows of this rank against columns.

    Attributes:
        a: View of the rows.
        b: View of the columns.
        rows: The rows among this rank's.
        u_PQ: Unit embeddings of the rows.
        logits_PM: Cosines over τ; −∞ where a pair is left out.
        z_MQ: Embeddings of the columns.
        inverse_M: Factors that make them unit ones.
        own: The columns among this rank's rows; None if they are another rank's.
        log_sums: Log-sums of another rank's anchors, of both views.
    """

    a: int
    b: int
    rows: slice
    u_PQ: Tensor
    logits_PM: Tensor
    z_MQ: Tensor
    inverse_M: Tensor
    own: slice | None
    log_sums: tuple[Tensor, ...] = ()


@settings
class Contrastive(Regularizer):
    """f(sim(zᵢ, z⁺ᵢ)) + mean over anchors of log Σ exp(sim/τ) over a set of pairs, on unit
    embeddings.

    Attributes:
        temperature: τ > 0.
    """

    temperature: Positive

    own_view: ClassVar[bool] = True
    """Whether pairs j ≠ i within the anchor's view are in the set."""
    cross_view: ClassVar[str] = "all"
    """Pairs with the other view that are in the set: `all`, the positive one too; `others`, without
    it; or `none`.
    """
    anchors: ClassVar[int] = 2
    """2: the embeddings of both views are anchors; 1: those of the first view only."""
    # `gram`: log-sums, then gradients, in two passes over one half of the Gram matrix.
    forms = ("textbook", "gram")
    space: ClassVar[Space] = {"temperature": Range(0.02, 2, balances=True)}
    uniformity_weight: ClassVar[float] = 1.0
    """Factor of the mean over anchors."""

    def alignment(self, similarity_N: Tensor) -> Tensor:
        """Compute the positives' addend from their cosines, shape (n,): −mean sim(zᵢ, z⁺ᵢ)/τ
        unless overridden.
        """
        return -similarity_N.mean() / self.temperature

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """Compute alignment (the positives) and uniformity (the log-sum-exp)."""
        z1_NQ, z2_NQ = normalize(z1_NQ), normalize(z2_NQ)
        uniformity = self._log_sums(z1_NQ, z2_NQ).mean()
        if self.anchors == 2:
            uniformity = 0.5 * (uniformity + self._log_sums(z2_NQ, z1_NQ).mean())
        alignment = self.alignment((z1_NQ * z2_NQ).sum(dim=1))
        return {"alignment": alignment, "uniformity": self.uniformity_weight * uniformity}

    def _log_sums(self, anchor_NQ: Tensor, other_NQ: Tensor) -> Tensor:
        """Compute log Σ exp(sim/τ) of each anchor, shape (n,)."""
        logits = []
        if self.own_view:
            logits.append(mask_diagonal(anchor_NQ @ anchor_NQ.T / self.temperature))
        if self.cross_view != "none":
            cross_NN = anchor_NQ @ other_NQ.T / self.temperature
            logits.append(cross_NN if self.cross_view == "all" else mask_diagonal(cross_NN))
        return torch.cat(logits, dim=1).logsumexp(dim=1)

    def pair_value_and_gradient(
        self, z1_NQ: Tensor, z2_NQ: Tensor, shard: Shard, form: str
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Compute it in 4 n² q FLOP for each set of pairs in a view, see
        `Regularizer.pair_value_and_gradient`.
        """
        views = [(z1_NQ, inverse_lengths(z1_NQ)), (z2_NQ, inverse_lengths(z2_NQ))]
        gradients = (torch.zeros_like(z1_NQ), torch.zeros_like(z2_NQ))
        log_sums = self._streamed_log_sums(views, shard)
        self._add_gradients(views, log_sums, gradients, shard)
        rows = self.anchors * shard.n
        for gradient_NQ in gradients:
            gradient_NQ.mul_(self.uniformity_weight / (self.temperature * rows))
        sums = [log_sums_N.double().sum() for log_sums_N in log_sums[: self.anchors]]
        uniformity = self.uniformity_weight * shard.sum(torch.stack(sums).sum()) / rows

        (z1_NQ, inverse1_N), (z2_NQ, inverse2_N) = views
        # A rank without rows has no chunk, and `cat` wants a tensor: hence the empty one before
        # them.
        dots = [(z1_NQ[part] * z2_NQ[part]).sum(dim=1) for part in chunks(z1_NQ)]
        # The weights of DCLW depend on all positive pairs, so those of the whole batch are
        # gathered.
        cosines_N = torch.cat([z1_NQ.new_zeros(0), *dots]) * inverse1_N * inverse2_N
        similarity_N = shard.gather(cosines_N).requires_grad_()
        with torch.enable_grad():
            alignment = self.alignment(similarity_N)
        (slope_N,) = torch.autograd.grad(alignment, similarity_N)
        slope_N = slope_N[shard.rows]
        for part in chunks(z1_NQ):
            gradients[0][part].addcmul_(z2_NQ[part], (inverse2_N * slope_N)[part, None])
            gradients[1][part].addcmul_(z1_NQ[part], (inverse1_N * slope_N)[part, None])
        for (z_NQ, inverse_N), gradient_NQ in zip(views, gradients, strict=True):
            to_embedding_gradient(gradient_NQ, z_NQ, inverse_N)
        return {"alignment": alignment.detach(), "uniformity": uniformity}, *gradients

    def _blocks(self) -> Iterator[tuple[int, int, bool]]:
        """Yield pairs of views (a, b) whose Gram block counts, a <= b, and whether its diagonal
        is left out.
        """
        if self.own_view:
            yield from ((view, view, True) for view in range(self.anchors))
        if self.cross_view != "none":
            yield 0, 1, self.cross_view == "others"

    def _panels(
        self, views: list[tuple[Tensor, Tensor]], shard: Shard, log_sums: Sequence[Tensor] = ()
    ) -> Iterator[Panel]:
        """Yield the panels of this rank's rows: first with its own columns, each pair once, then
        with other ranks' columns.

        Args:
            views: Embeddings and the factors that make them unit ones, of both views.
            shard: The ranks.
            log_sums: Log-sums of this rank's anchors, for the other ranks.
        """
        others = shard.others(*views[0], *views[1], *log_sums)
        for a, b, hollow in self._blocks():
            (za_NQ, inverse_a_N), (zb_NQ, inverse_b_N) = views[a], views[b]
            for rows in panels(len(za_NQ), len(zb_NQ), za_NQ, triangle=a == b):
                own = slice(rows.start if a == b else 0, len(zb_NQ))
                u_PQ = za_NQ[rows] * inverse_a_N[rows, None]
                logits_PM = (u_PQ @ zb_NQ[own].T).mul_(inverse_b_N[own] / self.temperature)
                if hollow:
                    # The pairs i = j begin at column 0 of a triangle's panel, and at the row's
                    # number in a whole one.
                    logits_PM[:, rows.start - own.start :].diagonal().fill_(-torch.inf)
                yield Panel(a, b, rows, u_PQ, logits_PM, zb_NQ[own], inverse_b_N[own], own)
        # Both orders count, since this rank's rows can be either end of a pair; they are the same
        # if a = b.
        orders: dict[tuple[int, int], None] = {}
        for a, b, _ in self._blocks():
            orders |= {(a, b): None, (b, a): None}
        for remote in others:
            for a, b in orders:
                za_NQ, inverse_a_N = views[a]
                zb_MQ, inverse_b_M = remote[2 * b : 2 * b + 2]
                for rows in panels(len(za_NQ), len(zb_MQ), za_NQ):
                    u_PQ = za_NQ[rows] * inverse_a_N[rows, None]
                    logits_PM = (u_PQ @ zb_MQ.T).mul_(inverse_b_M / self.temperature)
                    yield Panel(a, b, rows, u_PQ, logits_PM, zb_MQ, inverse_b_M, None, remote[4:])

    def _streamed_log_sums(self, views: list[tuple[Tensor, Tensor]], shard: Shard) -> list[Tensor]:
        """Compute the log-sums of this rank's anchors, of both views; −∞ where a view has no
        anchors.
        """
        log_sums = [torch.full_like(inverse_N, -torch.inf) for _, inverse_N in views]

        def add(view: int, rows: slice, more: Tensor) -> None:
            log_sums[view][rows] = torch.logaddexp(log_sums[view][rows], more)

        for panel in self._panels(views, shard):
            a, b, rows, own = panel.a, panel.b, panel.rows, panel.own
            if a < self.anchors:
                add(a, rows, panel.logits_PM.logsumexp(dim=1))
            if own is None:
                continue
            if a == b:
                # The panel's own square has its pairs in both orders already.
                width = rows.stop - rows.start
                later = slice(rows.stop, own.stop)
                add(b, later, panel.logits_PM[:, width:].logsumexp(dim=0))
            elif b < self.anchors:
                add(b, own, panel.logits_PM.logsumexp(dim=0))
        return log_sums

    def _add_gradients(
        self,
        views: list[tuple[Tensor, Tensor]],
        log_sums: list[Tensor],
        gradients: tuple[Tensor, Tensor],
        shard: Shard,
    ) -> None:
        """Add τ times the gradients of the sum of all ranks' log-sums with respect to this
        rank's unit embeddings.
        """
        for panel in self._panels(views, shard, log_sums):
            a, b, rows, own = panel.a, panel.b, panel.rows, panel.own
            # A pair is in the log-sum of each of its ends that is an anchor.
            if a < self.anchors:
                weight_PM = (panel.logits_PM - log_sums[a][rows, None]).exp_()
            else:
                weight_PM = torch.zeros_like(panel.logits_PM)
            if b < self.anchors:
                ends_M = panel.log_sums[b] if own is None else log_sums[b][own]
                weight_PM.add_(panel.logits_PM.sub_(ends_M).exp_())
            if own is not None and a == b:
                width = rows.stop - rows.start
                gradients[b][rows.stop :].addmm_(weight_PM[:, width:].T, panel.u_PQ)
            elif own is not None:
                gradients[b].addmm_(weight_PM.T, panel.u_PQ)
            # The gradient of a comes last because it scales the weights in place.
            gradients[a][rows].addmm_(weight_PM.mul_(panel.inverse_M), panel.z_MQ)
