"""The cost of losses: time and memory of value and gradient, over forms, batch, dimension, views
and ranks.

All forms of a method at one (n, q), with each number of views, take turns in processes of their
own, one for each rank. Ratios are taken within a round, so both sides see the same machine. With
several ranks the side of one rank is measured at the same load: every process computes the whole
batch alone, at the same time.

Extra memory is the highest sum of live allocations during loss and backward beyond what was there
before, gradients not counted. On a CPU it is exact: the allocator's own events, in a pass that is
not timed. On CUDA it is the allocator's peak.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from tabulate import tabulate
from tqdm import tqdm

from regbench import methods
from regbench.errors import RegbenchError
from regbench.instruments.cost.harness import machine, number, span
from regbench.instruments.cost.timing import LossCost, join, measure_rows
from regbench.methods.forms.engine import Engine
from regbench.processes import Processes, WorkFailed
from regbench.settings import AtLeastOne, AtLeastTwo, AtLeastZero, settings

_MIB = 2**20


@settings
class Grid:
    """The cases to measure.

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
        dtype: Dtype of the embeddings.
        budget_s: Seconds that the whole measurement may take, but for the call that is under way;
            what does not fit is left out, the costliest first.
        memory_limit_bytes: A case that needs more in all its processes fails; None for half of the
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
            Engine(form=form)
        cuda = torch.cuda.is_available()
        if self.device == "cuda" and not cuda:
            raise RegbenchError("no CUDA device is here; give device cpu or auto")
        # The class is frozen; what is resolved here is what the table names.
        object.__setattr__(self, "device", "cuda" if cuda and self.device != "cpu" else "cpu")
        names = tuple(dict.fromkeys(self.methods)) or tuple(methods.names())
        object.__setattr__(self, "methods", names)
        for what in ("n", "q", "views", "ranks"):
            object.__setattr__(self, what, tuple(sorted(set(getattr(self, what)))))

    @property
    def machine(self) -> dict[str, Any]:
        """This machine, as the grid uses it."""
        own = {"threads": self.threads, "dtype": self.dtype, "repeats": self.repeats}
        return machine(self.device, device=self.device, **own)

    @property
    def limit_bytes(self) -> int:
        """Memory that a case may need in all its processes."""
        if self.memory_limit_bytes is not None:
            return self.memory_limit_bytes
        # Half leaves room for the system and for other work on the machine.
        if self.device == "cuda":
            return torch.cuda.get_device_properties(0).total_memory // 2
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def cases(grid: Grid) -> list[LossCost]:
    """List the cases in the order of the table; what cannot be measured has its note already."""
    rows = []
    for name, n, q in itertools.product(grid.methods, grid.n, grid.q):
        method = methods.build(name)
        auto = method.form_at("auto", n, q)
        asked = grid.forms or method.forms
        forms = dict.fromkeys(auto if form == "auto" else form for form in asked)
        for ranks, form, views in itertools.product(grid.ranks, forms, grid.views):
            row = LossCost(
                method=name, form=form, auto=form == auto, n=n, q=q, views=views, ranks=ranks
            )
            if form not in method.forms:
                row = replace(row, note=f"has no {form} form")
            elif n < ranks:
                row = replace(row, note="fewer embeddings than ranks")
            elif grid.device == "cuda" and ranks > torch.cuda.device_count():
                row = replace(row, note=f"needs {ranks} GPUs, {torch.cuda.device_count()} here")
            rows.append(row)
    return rows


def measure(grid: Grid) -> list[LossCost]:
    """Measure the grid, size by size from the smallest, with all methods at each.

    Returns:
        A row for each case; one that is left out has the reason.
    """
    end_s = time.perf_counter() + grid.budget_s
    rows = cases(grid)
    groups: dict[tuple[str, int, int, int], list[LossCost]] = {}
    for row in rows:
        if not row.note:
            groups.setdefault((row.method, row.n, row.q, row.ranks), []).append(row)
    done: dict[LossCost, LossCost] = {}
    with contextlib.ExitStack() as stack:
        pools = {}
        # A process group has a fixed size, so each number of ranks has processes of its own.
        for ranks in grid.ranks:
            pool = Processes(ranks, join, grid.device, grid.limit_bytes, threads=grid.threads)
            pools[ranks] = stack.enter_context(pool)
        # tqdm is silent where the standard error is no terminal.
        bar = tqdm(total=len(groups), unit="method and size", disable=None, leave=False)
        stack.enter_context(bar)
        for key in sorted(groups, key=_work):
            bar.set_description("{} n={} q={} ranks={}".format(*key))
            group, left_s = groups[key], end_s - time.perf_counter()
            if left_s > 0:
                pool, dtype = pools[group[0].ranks], getattr(torch, grid.dtype)
                try:
                    measured = pool.ask(measure_rows, group, dtype, grid.repeats, left_s)[0]
                except WorkFailed as error:
                    # The process ended, for want of memory say, and took the others' results along.
                    measured = [replace(row, note=f"failed: {error}") for row in group]
            else:
                note = f"left out: the budget of {grid.budget_s:g} s is spent"
                measured = [replace(row, note=note) for row in group]
            done.update(zip(group, measured, strict=True))
            bar.update()
    return [done.get(row, row) for row in rows]


def _work(key: tuple[str, int, int, int]) -> tuple[int, int]:
    """Order sizes by the work of a loss over all pairs."""
    _, n, q, ranks = key
    # Textbooks take more than streams, but sizes have the same order for both.
    return n * q * min(n, q), ranks


LEGEND = """\
Time of value and gradient: median over rounds and range; of several ranks the slowest one's.
`*`: what `auto` is. vs textbook, vs 1 rank: median of the ratios within rounds to the textbook form
and to the same form on one rank, where every process computes the whole batch alone at the same
time. vs 2 views: to the same form with two views.
extra MiB: peak beyond embeddings and gradients, of the rank that needs most."""

_HEADS = (
    *("method", "form", "n", "q", "views", "ranks", "median ms", "min–max"),
    *("vs textbook", "vs 1 rank", "vs 2 views", "extra MiB", ""),
)
_ALIGN = ("left", "left", *["right"] * 10, "left")


def table(rows: Sequence[LossCost]) -> str:
    """Set the rows as a table."""
    cells = []
    for row in rows:
        sizes = (row.n, row.q, row.views, row.ranks)
        range_ms = None if row.low_ms is None or row.high_ms is None else (row.low_ms, row.high_ms)
        compared = (row.vs_textbook, row.vs_one_rank, row.vs_two_views)
        times = number(row.median_ms), span(range_ms), *map(number, compared)
        extra_mib = None if row.extra_bytes is None else row.extra_bytes / _MIB
        form = row.form + "*" * row.auto
        cells.append([row.method, form, *sizes, *times, number(extra_mib), row.note])
    return tabulate(cells, _HEADS, disable_numparse=True, colalign=_ALIGN if rows else None)
