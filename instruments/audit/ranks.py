"""The probe of a loss on 1 to 4 gloo processes, with equal and unequal shares of the batch.

DistributedDataParallel takes the mean of the ranks' gradients. Differences of all ranks' values
with respect to one rank's rows show what that mean should be, whatever the loss is; a single
process on the whole batch shows what the value should be.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

# imported before any group is made: its functions keep the default group of that moment
import torch.distributed.nn
from torch import Tensor

from regbench.instruments.audit.finding import Finding
from regbench.instruments.audit.target import Target
from regbench.instruments.loss_checks import Views, evaluate, slope
from regbench.processes import Place, Processes, WorkFailed, one_line

# Rows of each rank, for each number of ranks; more than the dimensions, so that covariances have
# full rank.
EVEN = {1: (16,), 2: (8, 8), 3: (8, 8, 8), 4: (8, 8, 8, 8)}
UNEVEN = {2: (10, 8), 3: (12, 10, 8), 4: (12, 10, 9, 8)}
_Q = 4
Array = npt.NDArray[np.float64]
Numbers = float | Array
_PATIENCE_S = 60.0  # a rank waits no longer for one that failed


@dataclass(frozen=True)
class Answer:
    """The value and gradient that one rank saw.

    Attributes:
        value: The loss.
        drawn: The loss when each rank draws numbers of its own.
        gradient: Derivative of its value along a direction in its own rows, as autograd gives it.
        slopes: Derivatives of its value along the same direction in the rows of each rank, by
            differences.
        refused: Error that it raised; empty if none.
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
        self._groups = itertools.count()

    def look(self, target: Target, rows: Sequence[int]) -> list[Answer]:
        """Evaluate a loss with `rows` on each rank.

        Raises:
            WorkFailed: If a process ended, or all took too long.
        """
        assert target.dtype  # found out here, where no rank waits for another
        return self.ask(_evaluate, target, tuple(rows), next(self._groups))[: len(rows)]


def _start(place: Place) -> Place:
    warnings.simplefilter("ignore")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return place


def _evaluate(here: Place, target: Target, rows: Sequence[int], group: int) -> Answer:
    """Make the default group, which a loss asks, of as many ranks as `rows` has entries, and
    evaluate in it.

    The number `group` distinguishes it from groups that were made before.
    """
    rank = here.rank
    if rank >= len(rows):
        return Answer()
    store = f"file://{here.store}-{group}"
    patience = datetime.timedelta(seconds=_PATIENCE_S)
    # gloo would end the process at unequal shapes; with DETAIL, torch compares them first.
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL" if len(set(rows)) > 1 else "OFF"
    # torch does not list this function
    torch.distributed.set_debug_level_from_env()  # type: ignore[attr-defined]
    dist.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=len(rows), timeout=patience
    )
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
    directions = [d[mine] for d in directions_of(target, views)]

    def loss(views: Views, *, seed: int = 0) -> Tensor:
        return target.value(views, seed=seed, first=first)

    value, gradients = evaluate(loss, shares)
    gradient = (torch.stack(gradients) * torch.stack(directions)).sum().item()
    slopes = []
    for other in range(len(rows)):
        # Every rank evaluates as often, or the others would wait.
        moving = directions if other == rank else list(map(torch.zeros_like, directions))
        slopes.append(slope(loss, shares, moving, step_of(target)))
    drawn = loss(shares, seed=1 + rank)
    return Answer(value.item(), drawn.item(), gradient, tuple(slopes))


def step_of(target: Target) -> float:
    """Choose the step of differences: a smaller one would measure the dtype's rounding."""
    return target.tolerance(1e-3, 3e-2)


def whole_batch(target: Target, rows: Sequence[int]) -> list[Tensor]:
    """Draw the batch of all ranks, as many views as the loss takes; the same on every rank."""
    return target.draw(max(target.views), seed=5, size=(sum(rows), _Q))


def directions_of(target: Target, views: Views) -> list[Tensor]:
    """Draw the direction along which slopes are taken, of the whole batch.

    Targets stay where they are.
    """
    # The same on all ranks, like the batch: each takes its own rows of it.
    generator = torch.Generator().manual_seed(11)
    directions = [
        torch.randn(z.shape, generator=generator, dtype=torch.float64).to(z.dtype) for z in views
    ]
    if target.has_targets:
        directions[len(views) // 2 :] = list(map(torch.zeros_like, views[len(views) // 2 :]))
    return directions


def ranks(target: Target, group: Ranks) -> list[Finding]:
    """Compare 1 to 4 processes with one, first with equal shares, then with unequal ones."""
    findings: dict[str, Finding] = {}
    for shares in (EVEN, UNEVEN):
        for rows in shares.values():
            try:
                answers = group.look(target, rows)
            except WorkFailed as error:
                answers = [Answer(refused=str(error))]
            refusal = _refusal(rows, answers)
            if refusal:
                findings.setdefault(refusal.name, refusal)
                break
            for finding in _Split(target, rows, answers).judge():
                findings.setdefault(finding.name, finding)
    return list(findings.values())


def _where(rows: Sequence[int]) -> str:
    return f"{len(rows)} processes with {', '.join(map(str, rows))} rows"


def _refusal(rows: Sequence[int], answers: Sequence[Answer]) -> Finding | None:
    refusals = [answer.refused for answer in answers if answer.refused]
    if not refusals:
        return None
    # The others only miss the rank that failed first.
    refused = min(refusals, key=lambda line: "Connection" in line)[:160]
    if "mismatch between collectives" in refused:
        refused = "its collectives need equal shapes"
    text = f"on {_where(rows)}: {refused}"
    if len(set(rows)) == 1:
        return Finding("fails on ranks", "defect", math.nan, text)
    return Finding("equal shares only", "convention", math.nan, text)


class _Split:
    """The answers of ranks that share a batch, beside that of one process with the whole batch."""

    def __init__(self, target: Target, rows: Sequence[int], answers: Sequence[Answer]) -> None:
        self.target, self.rows = target, rows
        self.world, self.where = len(rows), f"on {_where(rows)}"
        self.tolerance = target.tolerance(1e-6, 2e-2)
        self.views = whole_batch(target, rows)
        ends = list(itertools.accumulate(rows, initial=0))
        self.parts = list(map(slice, ends, ends[1:]))
        self.whole = target.value(self.views).item()
        self.values = np.array([answer.value for answer in answers])
        self.drawn = np.array([answer.drawn for answer in answers])
        self.gradients = np.array([answer.gradient for answer in answers])
        self.slopes = np.array([answer.slopes for answer in answers])
        self.mean = float(self.values.mean())
        self.error = abs(self.mean - self.whole) / max(abs(self.whole), 1e-12)
        self.floor = max(abs(self.whole), *abs(self.values).tolist(), 1e-12)
        self.slope = float(abs(self.slopes).max()) or 1.0

    def same(self, one: Numbers, other: Numbers) -> bool:
        """Return True if values are the same up to rounding."""
        return bool(np.all(abs(one - other) <= self.tolerance * self.floor))

    def judge(self) -> list[Finding]:
        """Find what is wrong with values, gradients and draws."""
        # No rank's value depends on another's rows.
        others = self.slopes[~np.eye(self.world, dtype=bool)]
        alone = self.world > 1 and bool(np.all(abs(others) <= self.tolerance * self.slope))
        # Slopes along predictions do not show that other ranks' targets count, now or in a state.
        if alone and (not self.target.has_targets or self.same(self.values, self._own_values())):
            return self._judge_alone()
        findings = self._judge_value()
        if self.world > 1:
            findings += self._judge_gradient()
        one_value = len({*(self.values / self.floor).round(9)}) == 1
        if one_value and not self.same(self.drawn, self.drawn[0]):
            spread = float(np.ptp(self.drawn)) / self.floor
            text = (
                f"{self.where} each rank draws numbers of its own, and their values differ by "
                f"{spread:.2g}"
            )
            findings.append(Finding("ranks draw differently", "convention", spread, text))
        return findings

    def _own_values(self) -> Array:
        """Compute the value of each rank's rows on a single process."""
        values = []
        for part in self.parts:
            share = [z[part] for z in self.views]
            values.append(self.target.value(share, first=part.start).item())
        return np.array(values)

    def _judge_alone(self) -> list[Finding]:
        for value, own in zip(self.values, self._own_values(), strict=True):
            if not self.same(value, own):
                text = (
                    f"{self.where} no rank's value depends on another's rows, although it changes "
                    "with the number of ranks"
                )
                return [Finding("dropped collective result", "defect", float(value / own), text)]
        if self.target.gathers:
            values = f"({self.mean:.4g} in the mean, {self.whole:.4g} of the batch)"
            text = f"{self.where} each value is that of the rank's own rows {values}"
            return [Finding("does not gather", "defect", self.error, text)]
        if self.same(self.mean, self.whole) or len(set(self.rows)) > 1:
            return []
        text = (
            f"each rank's loss is that of its own rows: {self.mean:.4g} in the mean {self.where}, "
            f"{self.whole:.4g} of the whole batch"
        )
        return [Finding("own rows", "convention", self.error, text)]

    def _judge_value(self) -> list[Finding]:
        # If only the mean is right, each rank has its share of it.
        if self.same(self.values, self.whole) or self.same(self.mean, self.whole):
            return []
        values = ", ".join(f"{value:.4g}" for value in self.values)
        text = f"{self.where} the ranks' values are {values}, and {self.whole:.4g} of one"
        if len(set(self.rows)) > 1:
            if self.same(np.average(self.values, weights=self.rows), self.whole):
                text += ": ranks count equally, whatever their rows"
            return [Finding("unequal shares change the value", "convention", self.error, text)]
        for factor, words in ((self.world, "times"), (1 / self.world, "divided by")):
            if self.world > 1 and self.same(self.mean, factor * self.whole):
                text += f": {words} the number of ranks"
                return [Finding("value's factor", "defect", factor, text)]
        text += ": some statistics are each rank's own"
        return [Finding("statistics of own rows", "convention", self.error, text)]

    def _needed_gradients(self) -> Array | None:
        """Find each rank's gradient along the direction, for DistributedDataParallel's mean to be
        right.

        It is the sum of the slopes of all ranks' values. If a loss detaches something, so that its
        gradient is not that of its value, it is the gradient of the single process; None if the
        value is not that of the single process either.
        """
        directions = directions_of(self.target, self.views)
        _, gradients = evaluate(self.target.value, self.views)
        along_N = (torch.stack(gradients) * torch.stack(directions)).sum(dim=(0, 2))
        found = along_N.sum().item()
        wanted = slope(self.target.value, self.views, directions, step_of(self.target))
        if abs(wanted - found) <= 10 * self.tolerance * max(abs(wanted), abs(found)):
            total: Array = self.slopes.sum(axis=0)
            return total
        if abs(self.mean - self.whole) > self.tolerance * abs(self.whole):
            return None
        shares = [along_N[part].sum().item() for part in self.parts]
        return self.world * np.array(shares)

    def _judge_gradient(self) -> list[Finding]:
        needed = self._needed_gradients()
        if needed is None:
            return []
        scale = max(*abs(needed).tolist(), self.slope)
        # Differences are exact to about 1e-6, so gradients are never held to less.
        loose = max(self.tolerance, 1e-5) * scale

        def are(wanted: Array, allowed: float = loose) -> bool:
            return bool(np.all(abs(self.gradients - wanted) <= allowed))  # not so for NaN

        if are(needed):
            return []
        ddp = f"{self.where} the mean that DistributedDataParallel takes is"
        ratio = float(self.gradients @ needed / max(float(needed @ needed), 1e-300))
        if are(ratio * needed, 10 * loose):
            words, name = f"{ratio:.4g} times", "gradient's factor on ranks"
            if math.isclose(ratio, 1 / self.world, rel_tol=1e-3):
                words, name = f"1/{self.world} of", "gradient short by the ranks"
            elif math.isclose(ratio, self.world, rel_tol=1e-3):
                words, name = f"{self.world} times", "gradient large by the ranks"
            return [Finding(name, "defect", ratio, f"{ddp} {words} the gradient of the value")]
        error = math.dist(self.gradients, needed) / max(math.hypot(*needed.tolist()), 1e-300)
        if are(self.slopes.diagonal()):
            text = (
                f"{self.where} rows reach other ranks' values, but no gradient comes back: "
                f"{error:.2g} of it is missing"
            )
            return [Finding("not differentiated through the gather", "defect", error, text)]
        text = f"{ddp} off the value's gradient by {error:.2g}"
        return [Finding("gradient off on ranks", "defect", error, text)]
