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
import itertools
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field
from tqdm import tqdm

from regbench import methods
from regbench.errors import RegbenchError
from regbench.files import write_text
from regbench.instruments.cost.harness import MIB, Column, Machine, median, number, ratios, span, table, to_csv
from regbench.instruments.cost.ranks import Case, Measured, Prediction, Rank, Variant, measure_variants, predict
from regbench.methods.engine import FORMS
from regbench.processes import Processes, WorkFailed
from regbench.settings import AtLeastOne, AtLeastTwo, AtLeastZero, settings


@settings
class Grid:
    """What to measure, and with what.

    Attributes:
        methods: Names in the registry; empty for all.
        n: Batch sizes, over all ranks.
        q: Embedding dimensions.
        views: Numbers of views, of which two are global.
        ranks: Numbers of processes that share a batch.
        forms: Forms, `auto` among them or not; empty for all that a method has.
        device: `cpu`, `cuda`, or `auto` for CUDA where there is one.
        threads: Threads of each process.
        repeats: Rounds; 0 measures memory only.
        dtype: Of the embeddings.
        budget_s: Seconds that the whole measurement may take; what does not fit is left out, the costliest first.
        memory_limit_bytes: Cases predicted to need more in all their processes are left out; None for half of the
            memory of the machine or GPU.

    Raises:
        RegbenchError: If something is unknown or impossible.
    """

    methods: tuple[str, ...] = ()
    n: Annotated[tuple[AtLeastTwo, ...], Field(min_length=1)] = (256, 1024)
    q: Annotated[tuple[AtLeastOne, ...], Field(min_length=1)] = (512, 2048)
    views: Annotated[tuple[AtLeastTwo, ...], Field(min_length=1)] = (2,)
    ranks: Annotated[tuple[AtLeastOne, ...], Field(min_length=1)] = (1,)
    forms: tuple[str, ...] = ()
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: AtLeastOne = 1
    repeats: AtLeastZero = 5
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"
    budget_s: Annotated[float, Field(gt=0, allow_inf_nan=True)] = math.inf
    memory_limit_bytes: AtLeastOne | None = None

    def __post_init__(self) -> None:
        """Refuse what is unknown, and resolve `auto` and empty lists."""
        for name in self.methods:
            methods.build(name)
        for form in self.forms:
            if form not in FORMS:
                raise RegbenchError(f"unknown form {form!r}; choose {', '.join(FORMS)}")
        cuda = torch.cuda.is_available()
        if self.device == "cuda" and not cuda:
            raise RegbenchError("no CUDA device is here; give device cpu or auto")
        resolved = {
            "device": "cuda" if cuda and self.device != "cpu" else "cpu",
            "methods": tuple(dict.fromkeys(self.methods)) or tuple(methods.names()),
            **{what: tuple(sorted(set(getattr(self, what)))) for what in ("n", "q", "views", "ranks")},
        }
        for what, value in resolved.items():
            object.__setattr__(self, what, value)

    @property
    def machine(self) -> Machine:
        """This machine, as the grid uses it."""
        own = {what: getattr(self, what) for what in ("device", "threads", "dtype", "repeats")}
        return Machine.here(self.device, **own)

    @property
    def limit_bytes(self) -> int:
        """What a case may need in all its processes."""
        if self.memory_limit_bytes is not None:
            return self.memory_limit_bytes
        if self.device == "cuda":
            return torch.cuda.get_device_properties(0).total_memory // 2
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


@dataclass(frozen=True, kw_only=True)
class LossCost:
    """The cost of one method in one form at one size.

    Attributes:
        method: Name in the registry.
        form: Form, never `auto`.
        auto: Whether `auto` stands for this form here.
        n: Batch size over all ranks.
        q: Embedding dimension.
        views: Views of each image, of which two are global.
        ranks: Processes that shared the batch.
        median_ms: Median time over rounds; None if it was not measured.
        low_ms: Shortest round.
        high_ms: Longest round.
        vs_textbook: Median over rounds of the time divided by that of `textbook` on one rank, at the same load.
        vs_one_rank: Likewise by that of the same form on one rank; 1 for one rank.
        vs_two_views: Likewise by that of the same form with two views, on as many ranks.
        gemm_ms: Median of the GEMM floor.
        vs_gemm: Median over rounds of the time divided by the GEMM floor.
        extra_bytes: Peak memory of the rank that needs most, beyond embeddings and gradients.
        embedding_bytes: Size of the whole batch's embeddings, all views; their gradients have the same.
        note: Why something was not measured; empty if nothing.
    """

    method: str
    form: str
    auto: bool
    n: int
    q: int
    views: int
    ranks: int
    median_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    vs_textbook: float | None = None
    vs_one_rank: float | None = None
    vs_two_views: float | None = None
    gemm_ms: float | None = None
    vs_gemm: float | None = None
    extra_bytes: int | None = None
    embedding_bytes: int
    note: str = ""

    @property
    def variant(self) -> Variant:
        """What it is beside others of the same size."""
        return Variant(self.form, self.views)


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


def cases(grid: Grid) -> list[LossCost]:
    """List the cases in the order of the table; what cannot be measured has its note already."""
    rows = []
    itemsize = getattr(torch, grid.dtype).itemsize
    for name, n, q in itertools.product(grid.methods, grid.n, grid.q):
        method = methods.build(name)
        auto = method.form_at("auto", n, q)
        forms = dict.fromkeys(auto if form == "auto" else form for form in grid.forms or method.forms)
        for ranks, form, views in itertools.product(grid.ranks, forms, grid.views):
            row = LossCost(
                method=name,
                form=form,
                auto=form == auto,
                n=n,
                q=q,
                views=views,
                ranks=ranks,
                embedding_bytes=views * n * q * itemsize,
                note="" if form in method.forms else f"has no {form} form",
            )
            rows.append(replace(row, note=row.note or _impossible(row, grid)))
    return rows


def _impossible(row: LossCost, grid: Grid) -> str:
    """Say why so many ranks cannot share the batch, or nothing."""
    if row.n < row.ranks:
        return "fewer embeddings than ranks"
    if grid.device == "cuda" and row.ranks > torch.cuda.device_count():
        return f"needs {row.ranks} GPUs, {torch.cuda.device_count()} here"
    return ""


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
        if self._grid.device == "cpu":
            seconds *= max(1.0, row.ranks * self._grid.threads / len(os.sched_getaffinity(0)))
        return seconds

    def _over(self, row: LossCost, planned_s: float) -> str:
        """Say why a case is left out, or nothing."""
        prediction, limit = self._predict(row), self._grid.limit_bytes
        if prediction is None:
            return ""
        needed = prediction.bytes + 3 * row.embedding_bytes
        if self._grid.device == "cpu":
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
            except WorkFailed as error:
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
