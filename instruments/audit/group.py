"""Gloo processes that evaluate a loss together, and what each of them sees."""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.distributed.nn  # before any group is made: its functions keep the default group that there is then
from torch import Tensor

from regbench.instruments.audit.target import Target
from regbench.instruments.loss_checks import Views, evaluate, slope
from regbench.processes import Place, Processes, one_line

# Rows of each rank, for each number of ranks; more than the dimensions, so that covariances have full rank.
EVEN = {1: (16,), 2: (8, 8), 3: (8, 8, 8), 4: (8, 8, 8, 8)}
UNEVEN = {2: (10, 8), 3: (12, 10, 8), 4: (12, 10, 9, 8)}
_Q = 4
_PATIENCE_S = 60.0  # a rank waits no longer for one that failed


@dataclass(frozen=True)
class Answer:
    """What one rank saw.

    Attributes:
        value: The loss.
        drawn: The loss when each rank draws numbers of its own.
        gradient: Derivative of its value along a direction in its own rows, as autograd gives it.
        slopes: Derivatives of its value along the same direction in the rows of each rank, by differences.
        refused: What it raised; empty if nothing.
    """

    value: float = math.nan
    drawn: float = math.nan
    gradient: float = math.nan
    slopes: tuple[float, ...] = ()
    refused: str = ""


class Ranks(Processes):
    """Processes that evaluate losses together, as many at a time as asked."""

    def __init__(self) -> None:
        """Start none yet."""
        super().__init__(max(EVEN), _start)

    def look(self, target: Target, rows: Sequence[int]) -> list[Answer]:
        """Evaluate a loss with so many rows on each rank.

        Raises:
            WorkFailed: If a process ended, or all took too long.
        """
        assert target.dtype  # found out here, where no rank waits for another
        return self.ask(_evaluate, target, tuple(rows))[: len(rows)]


@dataclass
class _Here:
    """One of the processes; `round` counts the groups that were made."""

    place: Place
    round: int = 0


def _start(place: Place) -> _Here:
    warnings.simplefilter("ignore")
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return _Here(place)


def _evaluate(here: _Here, target: Target, rows: Sequence[int]) -> Answer:
    """Make the default group of as many ranks as there are rows, since a loss asks that one, and evaluate in it."""
    here.round += 1
    rank = here.place.rank
    if rank >= len(rows):
        return Answer()
    store = f"file://{here.place.store}-{here.round}"
    patience = datetime.timedelta(seconds=_PATIENCE_S)
    # Of unequal shapes gloo would end the process; in detail, torch compares them first.
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL" if len(set(rows)) > 1 else "OFF"
    torch.distributed.set_debug_level_from_env()  # type: ignore[attr-defined]  # which torch does not list
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=len(rows), timeout=patience)
    try:
        dist.barrier()  # nobody leaves while others are still coming
        answer = _look(target, rows, rank)
        with contextlib.suppress(RuntimeError):  # of a rank that failed, and says so itself
            dist.barrier()
        return answer
    except Exception as error:
        return Answer(refused=one_line(error))
    finally:
        dist.destroy_process_group()  # so that the others do not wait for one that failed


def _look(target: Target, rows: Sequence[int], rank: int) -> Answer:
    views = whole_batch(target, rows)
    first = sum(rows[:rank])
    mine = slice(first, first + rows[rank])
    shares = [z[mine] for z in views]
    directions = [d[mine] for d in directions_of(views)]

    def loss(views: Views, *, seed: int = 0) -> Tensor:
        return target.value(views, seed=seed, first=first)

    value, gradients = evaluate(loss, shares)
    gradient = sum((g * d).sum().item() for g, d in zip(gradients, directions, strict=True))
    slopes = []
    for other in range(len(rows)):
        # Every rank evaluates as often, or the others would wait.
        moving = directions if other == rank else [torch.zeros_like(d) for d in directions]
        slopes.append(slope(loss, shares, moving, step_of(target)))
    drawn = loss(shares, seed=1 + rank)
    return Answer(value.item(), drawn.item(), gradient, tuple(slopes))


def step_of(target: Target) -> float:
    """Choose the step of differences: at one too small the dtype's rounding would be measured."""
    return 3e-2 if target.single else 1e-3


def whole_batch(target: Target, rows: Sequence[int]) -> list[Tensor]:
    """Draw the batch of all ranks, as many views as the loss takes; the same on every rank."""
    return target.draw(max(target.views), seed=5, size=(sum(rows), _Q))


def directions_of(views: Views) -> list[Tensor]:
    """Draw the direction along which slopes are taken, of the whole batch."""
    generator = torch.Generator().manual_seed(11)
    return [torch.randn(z.shape, generator=generator, dtype=torch.float64).to(z.dtype) for z in views]
