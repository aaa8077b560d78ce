"""Losses for the audit: sound ones, and copies with one thing wrong each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.nn.functional import all_gather, all_reduce

from regbench import methods
from regbench.methods import Engine


class Ours:
    """One of our own methods through the black-box door, in textbook form, over all ranks."""

    def __init__(self, name: str, **settings: Any) -> None:
        self.method = methods.build(name, **settings)

    def __call__(self, *views: Tensor, global_views: int | None = None) -> Tensor:
        group = dist.group.WORLD if dist.is_initialized() else None
        engine = Engine(form="textbook", group=group)
        return self.method.loss(*views, engine=engine, global_views=global_views)


def world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def gathered(z: Tensor) -> Tensor:
    return torch.cat(all_gather(z)) if world() > 1 else z


def mask(z: Tensor) -> Tensor:
    return torch.eye(len(z), dtype=torch.bool)


def simclr(
    z1: Tensor, z2: Tensor, gather: Callable[[Tensor], Tensor] = gathered, keep: bool = False
) -> Tensor:
    """NT-Xent at temperature 0.5: each rank's anchors against all ranks' embeddings."""
    n, rank = len(z1), dist.get_rank() if world() > 1 else 0
    own = torch.cat([F.normalize(z1, dim=1), F.normalize(z2, dim=1)])
    logits = own @ gather(own).T / 0.5
    rows = torch.arange(2 * n)
    if not keep:
        itself = torch.arange(logits.shape[1]) == rows[:, None] + 2 * n * rank
        logits = logits.masked_fill(itself, -torch.inf)
    return F.cross_entropy(logits, (rows + n) % (2 * n) + 2 * n * rank)


def off_diagonal(c: Tensor) -> Tensor:
    return c[~mask(c)]


def vicreg(
    z1: Tensor,
    z2: Tensor,
    *,
    variance_weight: float = 25.0,
    covariance_weight: float = 1.0,
    correction: int = 1,
    diagonal: bool = False,
) -> Tensor:
    loss = 25 * F.mse_loss(z1, z2)
    for z in (z1, z2):
        z = z - z.mean(dim=0)
        std = (z.var(dim=0, correction=correction) + 1e-4).sqrt()
        c = z.T @ z / (len(z) - 1)
        squares = c.square() if diagonal else off_diagonal(c).square()
        loss = loss + variance_weight * F.relu(1 - std).mean() / 2
        loss = loss + covariance_weight * squares.sum() / z.shape[1]
    return loss


def published_vicreg(z1: Tensor, z2: Tensor, lambd: float, mu: float, nu: float) -> Tensor:
    """Eqs. (1) to (6) of the publication: distances are sums over the coordinates, and no term
    is halved.
    """
    loss = lambd * (z1 - z2).square().sum(dim=1).mean()
    for z in (z1, z2):
        hinge = F.relu(1 - (z.var(dim=0) + 1e-4).sqrt()).mean()
        loss = loss + mu * hinge + nu * off_diagonal(torch.cov(z.T)).square().sum() / z.shape[1]
    return loss


def rbf(z1: Tensor, z2: Tensor, diagonal: float = 1.0) -> Tensor:
    """The kernel exp(−2‖u − v‖²) and alignment with weight 100."""
    u1, u2 = (F.normalize(z, dim=1) for z in (z1, z2))
    energy = torch.stack([(4 * u @ u.T - 4).exp().mean() for u in (u1, u2)]).mean()
    return 100 * F.mse_loss(u1, u2) + energy + (diagonal - 1) / len(z1)


# With one thing wrong each.


def negative(z1: Tensor, z2: Tensor) -> Tensor:
    return -simclr(z1, z2)


def pools_the_views(z1: Tensor, z2: Tensor) -> Tensor:
    """The energy of both views' embeddings as one batch."""
    u1, u2 = (F.normalize(z, dim=1) for z in (z1, z2))
    both = torch.cat([u1, u2])
    return 100 * F.mse_loss(u1, u2) + (4 * both @ both.T - 4).exp().mean()


def raw_embeddings(z1: Tensor, z2: Tensor, temperature: float = 0.5) -> Tensor:
    z = torch.cat([z1, z2])
    logits = (z @ z.T / temperature).masked_fill(mask(z), -torch.inf)
    return F.cross_entropy(logits, torch.arange(2 * len(z1)).roll(len(z1)))


def no_covariance(z1: Tensor, z2: Tensor) -> Tensor:
    return vicreg(z1, z2, covariance_weight=0.0)


def something_else(z1: Tensor, z2: Tensor) -> Tensor:
    more: Tensor = (z1[:, 0] * z2[:, 1]).mean().tanh() * z1.square().sum().sqrt()
    return vicreg(z1, z2) + more


def detaches_a_part(z1: Tensor, z2: Tensor) -> Tensor:
    return simclr(z1, z2) + z1.square().mean() - z1.detach().square().mean()


def divides_by_distances(z1: Tensor, z2: Tensor) -> Tensor:
    u = F.normalize(z1, dim=1)
    distances = torch.cdist(u, u) + 10 * mask(u)
    return simclr(z1, z2) + 0 * distances.min(dim=1).values.log().mean()


def rounds(z1: Tensor, z2: Tensor) -> Tensor:
    low1, low2 = (z.bfloat16().to(z.dtype) if z.dtype == torch.float32 else z for z in (z1, z2))
    return simclr(low1, low2)


def has_kinks(z1: Tensor, z2: Tensor) -> Tensor:
    """Continuous, and a step of 1e-3 meets a kink."""
    return simclr(z1, z2) + (1e3 * z1).sin().abs().mean()


def reverses_the_gradient_of_a_view(z1: Tensor, z2: Tensor) -> Tensor:
    """Adversarial learning's reversal of a gradient, in the wrong place."""
    reversed2: Tensor = 2 * z2.detach() - z2
    return simclr(z1, z2.detach() + reversed2 - reversed2.detach())


def overflows(z1: Tensor, z2: Tensor) -> Tensor:
    """A sum of exponentials that single precision cannot hold: its gradient is NaN there."""
    return (F.normalize(z1, dim=1) @ F.normalize(z2, dim=1).T / 0.005).exp().sum().log()


class Follows:
    """Its loss has a mean that begins at the first batch's and follows the later ones."""

    mean: Tensor | None = None

    def __call__(self, z1: Tensor, z2: Tensor) -> Tensor:
        mean = z1.detach().mean()
        self.mean = mean if self.mean is None else (self.mean + mean) / 2
        return simclr(z1, z2) + self.mean


# Of more than two views, with one thing wrong each.


def all_pairs(views: Sequence[Tensor]) -> list[tuple[int, int]]:
    return list(itertools.combinations(range(len(views)), 2))


def rbf_of_views(
    *views: Tensor,
    pairs: Sequence[tuple[int, int]] | None = None,
    regularized: slice = slice(None),
    scale: float = 1.0,
) -> Tensor:
    """The mean over pairs of the alignment, and over views of the energy."""
    units = [F.normalize(z, dim=1) for z in views]
    pairs = all_pairs(views) if pairs is None else pairs
    alignments = [F.mse_loss(units[i], units[j]) for i, j in pairs]
    alignment = torch.stack(alignments).sum() / len(all_pairs(views))
    energies = torch.stack([(4 * u @ u.T - 4).exp().mean() for u in units[regularized]])
    return 100 * scale * alignment + energies.sum() / len(units[regularized])


def leaves_out_a_view(*views: Tensor) -> Tensor:
    return rbf_of_views(*views[:3])


def divides_by_the_views(*views: Tensor) -> Tensor:
    """The sum over V(V − 1)/2 pairs over V."""
    return torch.stack([simclr(views[i], views[j]) for i, j in all_pairs(views)]).sum() / len(views)


def prefers_the_first_view(*views: Tensor) -> Tensor:
    times = 3 if len(views) > 2 else 1
    pairs = [(i, j) for i, j in all_pairs(views) for _ in range(times if i == 0 else 1)]
    return rbf_of_views(*views, pairs=pairs)


def draws_for_each_view(*views: Tensor) -> Tensor:
    """The alignment, and the spread of each view along directions of its own, as many as each
    other view has.
    """
    spreads = [(z @ torch.randn(z.shape[1], 4, dtype=z.dtype)).square().mean() for z in views]
    return rbf_of_views(*views) + torch.stack(spreads).mean()


def weighs_by_global_views(*views: Tensor, global_views: int) -> Tensor:
    terms = methods.build("rbf").view_terms(views, global_views)
    return terms["alignment"] * global_views / len(views) + terms["uniformity"] + terms["diagonal"]


def simclr_with_all_positives(*views: Tensor) -> Tensor:
    """Another continuation to more views: all other views of an image share a numerator."""
    units = torch.cat([F.normalize(z, dim=1) for z in views])
    logits = (units @ units.T / 0.5).masked_fill(mask(units), -torch.inf)
    images = torch.arange(len(views[0])).repeat(len(views))
    positives = logits.masked_fill(images != images[:, None], -torch.inf)
    return (logits.logsumexp(dim=1) - positives.logsumexp(dim=1)).mean()


# Of predictions and targets, and with one thing wrong each.


def byol(p: Tensor, t: Tensor, stop: bool = True) -> Tensor:
    target = t.detach() if stop else t
    return 4 - 4 * F.cosine_similarity(p, target, dim=1).mean()


class Dino:
    """The cross-entropy of all pairs of views, with a center that follows the teacher's scores."""

    def __init__(
        self,
        student: float = 0.1,
        teacher: float = 0.07,
        momentum: float = 0.9,
        first: bool = False,
        reduced: bool = True,
        pairs: Callable[[int, int], bool] = lambda v, g: v != g,
    ) -> None:
        self.student, self.teacher, self.momentum, self.first = student, teacher, momentum, first
        self.reduced, self.pairs = reduced, pairs
        self.center: Tensor | None = None

    def __call__(self, students: Sequence[Tensor], teachers: Sequence[Tensor]) -> Tensor:
        mean = torch.stack(list(teachers)).detach().mean(dim=(0, 1))
        if self.center is None:
            self.center = torch.zeros_like(mean)
            momentum = 0.0 if self.first else self.momentum
        else:
            momentum = self.momentum
        losses = []
        for g, t in enumerate(teachers):
            wanted = ((t.detach() - self.center) / self.teacher).softmax(dim=1)
            for v, s in enumerate(students):
                if self.pairs(v, g):
                    losses.append(F.cross_entropy(s / self.student, wanted))
        if world() > 1 and self.reduced:
            dist.all_reduce(mean)
            mean /= world()
        self.center = momentum * self.center + (1 - momentum) * mean
        return torch.stack(losses).mean()


def moco_v3(p: Tensor, t: Tensor, gather: Callable[[Tensor], Tensor] = gathered) -> Tensor:
    """At temperature 1: each rank's predictions among the targets of all ranks."""
    keys = gather(F.normalize(t.detach(), dim=1))
    first = dist.get_rank() * len(p) if world() > 1 else 0
    return 4 * F.cross_entropy(F.normalize(p, dim=1) @ keys.T, torch.arange(first, first + len(p)))


def moco_v3_of_own_rows(p: Tensor, t: Tensor) -> Tensor:
    logits = F.normalize(p, dim=1) @ F.normalize(t, dim=1).T
    return 4 * F.cross_entropy(logits, torch.arange(len(p)))


def codes(z: Tensor) -> Tensor:
    q = (z / 0.05).exp()
    for _ in range(3):
        q = q / q.sum(dim=0)
        q = q / q.sum(dim=1, keepdim=True)
    return q


def swav(*views: Tensor, global_views: int = 2, stop: bool = True) -> Tensor:
    losses = []
    for g in range(global_views):
        code = codes(views[g])
        for v, z in enumerate(views):
            if v != g:
                losses.append(F.cross_entropy(z / 0.1, code.detach() if stop else code))
    return torch.stack(losses).mean()


# On ranks.


def _gather_without_gradient(z: Tensor) -> Tensor:
    if world() == 1:
        return z
    parts = [torch.empty_like(z) for _ in range(world())]
    dist.all_gather(parts, z)
    parts[dist.get_rank()] = z
    return torch.cat(parts)


def not_differentiated(z1: Tensor, z2: Tensor) -> Tensor:
    return simclr(z1, z2, _gather_without_gradient)


def _covariance(z1: Tensor, z2: Tensor) -> Tensor:
    """A sum over the rows of all ranks, of which a loss is made: the loss is the same on every
    rank.
    """
    return torch.cat([z1, z2]).T @ torch.cat([z1, z2]) / len(z1)


def shared(z1: Tensor, z2: Tensor) -> Tensor:
    c = _covariance(z1, z2)
    return (all_reduce(c) / world() if world() > 1 else c).square().sum()


def short_gradient(z1: Tensor, z2: Tensor) -> Tensor:
    c = _covariance(z1, z2)
    if world() > 1:
        total = c.detach().clone()
        dist.all_reduce(total)
        c = (total + c - c.detach()) / world()
    return c.square().sum()


def drops_the_reduction(z1: Tensor, z2: Tensor) -> Tensor:
    c = _covariance(z1, z2)
    if world() > 1:
        all_reduce(c)
        c = c / world()
    return c.square().sum()


def sums_over_ranks(z1: Tensor, z2: Tensor) -> Tensor:
    loss = shared(z1, z2)
    return all_reduce(loss) if world() > 1 else loss


def gathers_two_views(*views: Tensor) -> Tensor:
    """The covariance of the first two views is of all ranks, that of the others of the rank's
    own rows.
    """
    return shared(views[0], views[1]) + sum(own_rows(z, z) for z in views[2:])


def own_rows(z1: Tensor, z2: Tensor) -> Tensor:
    return _covariance(z1, z2).square().sum()


def own_directions(z1: Tensor, z2: Tensor) -> Tensor:
    """The same on all ranks only if they draw the same."""
    c = _covariance(z1, z2)
    c = all_reduce(c) / world() if world() > 1 else c
    return (c @ torch.randn(len(c), 1, dtype=c.dtype)).square().sum()


class _Pull(torch.autograd.Function):
    """Keeps what backward needs as an attribute, where no hook sees it."""

    @staticmethod
    def forward(ctx: Any, z1_NQ: Tensor, z2_NQ: Tensor) -> Tensor:
        ctx.difference_NQ = (z1_NQ - z2_NQ) / len(z1_NQ)
        total: Tensor = len(z1_NQ) * ctx.difference_NQ.square().sum()
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return 2 * gradient * ctx.difference_NQ, -2 * gradient * ctx.difference_NQ


def pulls_by_a_function_of_its_own(z1_NQ: Tensor, z2_NQ: Tensor) -> Tensor:
    pulled = _Pull.apply(z1_NQ, z2_NQ)
    assert isinstance(pulled, Tensor)
    return pulled
