"""Which losses are measured at which sizes, and what is known of each case."""

from __future__ import annotations

import itertools
import math
import os
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Field

from regbench import methods
from regbench.errors import RegbenchError
from regbench.instruments.cost.harness import Machine
from regbench.instruments.cost.ranks import Variant
from regbench.methods.engine import FORMS
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
        dtype: Dtype of the embeddings.
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
        # The class is frozen; what is resolved here is what the table names.
        object.__setattr__(self, "device", "cuda" if cuda and self.device != "cpu" else "cpu")
        object.__setattr__(self, "methods", tuple(dict.fromkeys(self.methods)) or tuple(methods.names()))
        for what in ("n", "q", "views", "ranks"):
            object.__setattr__(self, what, tuple(sorted(set(getattr(self, what)))))

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
        vs_one_rank: The same ratio to the same form on one rank; 1 for one rank.
        vs_two_views: The same ratio to the same form with two views, on as many ranks.
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
