"""What the losses cost: time and memory of value and gradient, over forms, batch, dimension, views and ranks.

All forms of a method at one (n, q), with each number of views, take turns in processes of their own, one for each rank.
Ratios are taken within a round, so both sides see the same machine. With several ranks the side of one rank is measured
at the same load: every process computes the whole batch alone, at the same time.

The GEMM floor is the time of the matrix products that a loss over all pairs needs at least. For each view these are
half of a Gram matrix and one product for the gradient: with n <= q and h = ⌈n/2⌉, `torch.mm` of (h × q)(q × n) and of
(n × n)(n × q), together about 3 n² q FLOP; with q < n the same with n and q exchanged. For P ranks it is that of the
whole batch, divided by P.

Extra memory is the highest sum of live allocations during loss and backward beyond what was there before, gradients not
counted. On a CPU it is exact: the allocator's own events, in a pass that is not timed. On CUDA it is the allocator's
peak.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from tqdm import tqdm

from regbench.files import write_text
from regbench.instruments.cost.grid import Grid, LossCost, cases
from regbench.instruments.cost.harness import MIB, Column, Machine, median, number, ratios, span, table, to_csv
from regbench.instruments.cost.ranks import Case, Measured, Prediction, Rank, Variant, measure_variants, predict
from regbench.processes import Processes, WorkFailed


def measure(grid: Grid) -> list[LossCost]:
    """Measure the grid, from the cheapest to the costliest case as predicted by small probes.

    Returns:
        A row for each case, those left out too, with the reason.
    """
    rows = cases(grid)
    with contextlib.ExitStack() as stack:
        pools = {
            ranks: stack.enter_context(Processes(ranks, Rank.at, grid.device, threads=grid.threads))
            for ranks in {1, *grid.ranks}
        }
        return _Session(grid, pools).run(rows)


class _Session:
    """One measurement of a grid."""

    def __init__(self, grid: Grid, pools: Mapping[int, Processes]) -> None:
        self._grid, self._pools = grid, pools
        self._start_s = time.perf_counter()
        self._predictions: dict[tuple[str, Variant, int, int], Prediction | None] = {}

    def run(self, rows: list[LossCost]) -> list[LossCost]:
        """Measure what has no note, a method at one size at a time, the cheapest first."""
        groups: dict[tuple[str, int, int, int], list[int]] = {}
        for i, row in enumerate(rows):
            if not row.note:
                groups.setdefault((row.method, row.n, row.q, row.ranks), []).append(i)
        total = sum(len(group) for group in groups.values())
        # tqdm is silent where the standard error is no terminal.
        with tqdm(total=total, desc="predicting", unit="case", disable=None, leave=False) as bar:
            seconds = {key: sum(self._seconds(rows[i]) for i in group) for key, group in groups.items()}
            for key in sorted(groups, key=seconds.__getitem__):
                bar.set_description("{} n={} q={} ranks={}".format(*key))
                measured = self._measure([rows[i] for i in groups[key]])
                for i, row in zip(groups[key], measured, strict=True):
                    rows[i] = row
                bar.update(len(measured))
        return rows

    def _case(self, row: LossCost) -> Case:
        return Case(method=row.method, n=row.n, q=row.q, dtype=self._grid.dtype)

    def _predict(self, row: LossCost) -> Prediction | None:
        """Predict for one process with the whole batch; None if that failed."""
        key = (row.method, row.variant, row.n, row.q)
        if key not in self._predictions:
            try:
                limit = self._grid.limit_bytes
                (self._predictions[key],) = self._pools[1].ask(predict, self._case(row), row.variant, limit)
            except WorkFailed:
                # A method may have reasons to refuse a probe's small sizes: unknown, so it is tried.
                self._predictions[key] = None
        return self._predictions[key]

    def _seconds(self, row: LossCost) -> float:
        """Predict the time of all rounds of a case."""
        prediction = self._predict(row)
        if prediction is None:
            return 0.0
        # Two more: the pass for the memory, and the warm-up.
        seconds = prediction.seconds * (self._grid.repeats + 2 if self._grid.repeats else 1)
        if row.ranks > 1:  # shared and alone
            seconds *= 2
        if self._grid.device == "cpu":  # more threads than cores take turns
            seconds *= max(1.0, row.ranks * self._grid.threads / len(os.sched_getaffinity(0)))
        return seconds

    def _over(self, row: LossCost, planned_s: float) -> str:
        """Say why a case is left out, or nothing."""
        prediction, limit = self._predict(row), self._grid.limit_bytes
        if prediction is None:
            return ""
        needed = prediction.bytes + 3 * row.embedding_bytes
        if self._grid.device == "cpu":  # whose ranks share one memory
            needed *= row.ranks
        if needed > limit:
            return f"left out: about {_size(needed)} of memory, over the limit of {_size(limit)}"
        seconds, budget_s = self._seconds(row), self._grid.budget_s
        if time.perf_counter() - self._start_s + planned_s + seconds > budget_s:
            return f"left out: about {seconds:.2g} s, over what is left of the budget of {budget_s:g} s"
        return ""

    def _measure(self, rows: Sequence[LossCost]) -> list[LossCost]:
        """Measure one method at one size."""
        notes: dict[Variant, str] = {}
        planned_s = 0.0
        # What is cheap comes first: it is the costliest that a budget leaves out.
        for row in sorted(rows, key=self._seconds):
            notes[row.variant] = self._over(row, planned_s)
            if not notes[row.variant]:
                planned_s += self._seconds(row)
        variants = [row.variant for row in rows if not notes[row.variant]]
        result = Measured()
        if variants:
            try:
                pool = self._pools[rows[0].ranks]
                result = pool.ask(measure_variants, self._case(rows[0]), variants, self._grid.repeats)[0]
                failed = result.failed
            except WorkFailed as error:  # the process ended, for want of memory say, and took the others' results along
                failed = dict.fromkeys(variants, str(error))
            for variant, line in failed.items():
                notes[variant] = f"failed: {line}"
        return [_filled(replace(row, note=notes[row.variant]), result) for row in rows]


def _filled(row: LossCost, result: Measured) -> LossCost:
    """Enter what was measured, unless a note says why it was not."""
    if row.note:
        return row
    row = replace(row, extra_bytes=result.extra_bytes[row.variant])
    times_ms = result.shared_ms.get(row.variant)
    if not times_ms:
        return row
    alone_ms = result.shared_ms if row.ranks == 1 else result.alone_ms
    floor_ms = [ms * row.views / 2 / row.ranks for ms in result.floor_ms]
    return replace(
        row,
        median_ms=median(times_ms),
        low_ms=min(times_ms),
        high_ms=max(times_ms),
        vs_textbook=median(ratios(times_ms, alone_ms.get(Variant("textbook", row.views)))),
        vs_one_rank=median(ratios(times_ms, alone_ms.get(row.variant))),
        vs_two_views=median(ratios(times_ms, result.shared_ms.get(Variant(row.form, 2)))),
        gemm_ms=median(floor_ms),
        vs_gemm=median(ratios(times_ms, floor_ms)),
    )


def _mib(size: float | None) -> str:
    return number(None if size is None else size / MIB)


def _size(count: float) -> str:
    return f"{count / 2**30:.2g} GiB" if count >= 2**30 else f"{count / MIB:.2g} MiB"


COLUMNS: tuple[Column[LossCost], ...] = (
    Column("method", lambda row: row.method, "left"),
    Column("form", lambda row: row.form + "*" * row.auto, "left"),
    Column("n", lambda row: str(row.n)),
    Column("q", lambda row: str(row.q)),
    Column("views", lambda row: str(row.views)),
    Column("ranks", lambda row: str(row.ranks)),
    Column("median ms", lambda row: number(row.median_ms)),
    Column("min–max", lambda row: span(None if row.low_ms is None else (row.low_ms, row.high_ms or 0.0))),
    Column("vs textbook", lambda row: number(row.vs_textbook)),
    Column("vs 1 rank", lambda row: number(row.vs_one_rank)),
    Column("vs 2 views", lambda row: number(row.vs_two_views)),
    Column("vs GEMM", lambda row: number(row.vs_gemm)),
    Column("extra MiB", lambda row: _mib(row.extra_bytes)),
    Column("", lambda row: row.note, "left"),
)

LEGEND = """\
Time of value and gradient: median over rounds and range; of several ranks the slowest one's. `*`: what `auto` is.
vs textbook, vs 1 rank: median of the ratios within rounds to the textbook form and to the same form on one rank, where
every process computes the whole batch alone at the same time. vs 2 views: to the same form with two views.
vs GEMM: to the time of the matrix products that a loss over all pairs needs at least: for each view half of a Gram
matrix (n² q FLOP) and the gradient (2 n² q FLOP); for q < n with n and q exchanged; divided by the ranks.
extra MiB: peak beyond embeddings and gradients, of the rank that needs most."""


def write(rows: Sequence[LossCost], machine: Machine, out: Path) -> None:
    """Write cost.csv and cost.md into the folder `out`."""
    sizes = dict.fromkeys((row.n, row.q, row.views, row.embedding_bytes) for row in rows)
    data = ", ".join(f"{_mib(size)} MiB at n = {n}, q = {q}, {views} views" for n, q, views, size in sizes)
    page = f"""\
# Cost of value and gradient

{machine}

Embeddings of all views, and as much again for their gradients: {data}.

{table(rows, COLUMNS, "github")}

{LEGEND}
"""
    write_text(out / "cost.csv", to_csv([asdict(row) for row in rows], machine))
    write_text(out / "cost.md", page)
