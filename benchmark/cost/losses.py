"""What the losses cost: time and memory of value and gradient, form against form, over batch, dimension and ranks.

All forms of a method at one (n, q) are timed in one process, alternately and round by round, and ratios are taken
within a round: both sides see the same machine. The work is done by processes of their own, one for each rank, which
import regbench and nothing of the caller. With several ranks the side of one rank is measured at the same load: every
process computes the whole batch alone, at the same time.

Time is that of `method.loss(z1, z2, engine)` and backward to z1 and z2; of several ranks it is the slowest one's.

The GEMM floor is the time of the matrix products that a loss over all pairs needs at least. For each view these are
half of a Gram matrix and one product for the gradient: with n <= q and h = ⌈n/2⌉, `torch.mm` of (h × q)(q × n) and of
(n × n)(n × q), together about 3 n² q FLOP; with q < n the same with the covariance matrix, (h × n)(n × q) for
h = ⌈q/2⌉ and (n × q)(q × q), about 3 n q² FLOP. For P ranks it is that of the whole batch, divided by P.

Extra memory is the highest sum of live allocations during loss and backward beyond what was there before, z1.grad and
z2.grad not counted. On a CPU it is exact: the allocator's own events, in a pass that is not timed. On CUDA it is the
allocator's peak, less what was allocated before and less the gradients.
"""

from __future__ import annotations

import csv
import io
import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from tqdm import tqdm

from regbench import RegbenchError, methods
from regbench.benchmark.cost.ranks import Died, Ranks
from regbench.benchmark.machine import hardware
from regbench.files import write_text
from regbench.methods.engine import FORMS

MIB = 2**20
DTYPES = ("float32", "float64", "bfloat16")
DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What to measure, and with what.

    Attributes:
        methods: Names in the registry; empty for all.
        n: Batch sizes, over all ranks.
        q: Embedding dimensions.
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

    methods: Sequence[str] = ()
    n: Sequence[int] = (256, 1024)
    q: Sequence[int] = (512, 2048)
    ranks: Sequence[int] = (1,)
    forms: Sequence[str] = ()
    device: str = "auto"
    threads: int = 1
    repeats: int = 5
    dtype: str = "float32"
    budget_s: float = math.inf
    memory_limit_bytes: int | None = None

    def __post_init__(self) -> None:
        """Refuses what is unknown or impossible, and resolves `auto` and empty lists."""
        for name in self.methods:
            methods.build(name)
        for form in self.forms:
            if form not in FORMS:
                raise RegbenchError(f"unknown form {form!r}; choose {', '.join(FORMS)}")
        for what, values, least in (("n", self.n, 2), ("q", self.q, 1), ("ranks", self.ranks, 1)):
            if not values or min(values) < least:
                raise RegbenchError(f"{what} must be one or more numbers >= {least}, not {list(values)}")
        for what, value, least in (("threads", self.threads, 1), ("repeats", self.repeats, 0)):
            if value < least:
                raise RegbenchError(f"{what} must be >= {least}, not {value}")
        if not self.budget_s > 0:
            raise RegbenchError(f"budget must be > 0 seconds, not {self.budget_s:g}")
        if self.memory_limit_bytes is not None and self.memory_limit_bytes <= 0:
            raise RegbenchError(f"memory limit must be > 0 bytes, not {self.memory_limit_bytes}")
        for what, known in (("dtype", DTYPES), ("device", DEVICES)):
            if getattr(self, what) not in known:
                raise RegbenchError(f"unknown {what} {getattr(self, what)!r}; choose {', '.join(known)}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise RegbenchError("no CUDA device is here; give device cpu or auto")
        device = "cuda" if self.device == "auto" and torch.cuda.is_available() else self.device
        object.__setattr__(self, "device", "cpu" if device == "auto" else device)
        object.__setattr__(self, "methods", tuple(dict.fromkeys(self.methods)) or tuple(methods.names()))
        for what in ("n", "q", "ranks"):
            object.__setattr__(self, what, tuple(sorted(set(getattr(self, what)))))
        if self.memory_limit_bytes is None:
            object.__setattr__(self, "memory_limit_bytes", _memory_bytes(self.device) // 2)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method in one form at one size.

    Attributes:
        method: Name in the registry.
        form: Form, never `auto`.
        auto: Whether `auto` stands for this form here.
        n: Batch size over all ranks.
        q: Embedding dimension.
        ranks: Processes that shared the batch.
        median_ms: Median time over rounds; None if it was not measured.
        low_ms: Shortest round.
        high_ms: Longest round.
        vs_textbook: Median over rounds of the time divided by that of `textbook` on one rank, at the same load.
        vs_one_rank: Likewise by that of the same form on one rank; 1 for one rank.
        gemm_ms: Median of the GEMM floor.
        vs_gemm: Median over rounds of the time divided by the GEMM floor.
        extra_bytes: Peak memory of the rank that needs most, beyond embeddings and gradients.
        embedding_bytes: Size of the whole batch's embeddings, both views; their gradients have the same.
        note: Why something was not measured; empty if nothing.
    """

    method: str
    form: str
    auto: bool
    n: int
    q: int
    ranks: int
    median_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    vs_textbook: float | None = None
    vs_one_rank: float | None = None
    gemm_ms: float | None = None
    vs_gemm: float | None = None
    extra_bytes: int | None = None
    embedding_bytes: int
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where it was measured.

    Attributes:
        device: `cpu` or `cuda`.
        hardware: Name of the GPU, or number and name of the CPU's cores.
        threads: Threads of each process.
        torch: PyTorch's version.
        dtype: Of the embeddings.
        repeats: Rounds.
    """

    device: str
    hardware: str
    threads: int
    torch: str
    dtype: str
    repeats: int

    @staticmethod
    def of(grid: Grid) -> Machine:
        """This machine, as `grid` uses it."""
        name = hardware(torch.device(grid.device))
        return Machine(
            device=grid.device,
            hardware=name,
            threads=grid.threads,
            torch=torch.__version__,
            dtype=grid.dtype,
            repeats=grid.repeats,
        )

    def __str__(self) -> str:
        """One line."""
        threads = f"{self.threads} thread{'s' * (self.threads > 1)} per rank"
        return f"{self.hardware}, {threads}, torch {self.torch}, {self.dtype}, {self.repeats} rounds"


def _memory_bytes(device: str) -> int:
    if device == "cuda":
        return torch.cuda.get_device_properties(0).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# The grid.


def measure(grid: Grid) -> list[Row]:
    """Measures the grid; a row for each case, those left out too, with the reason.

    Cases are measured from the cheapest to the costliest, as predicted by small probes.
    """
    return _Session(grid).run(_plan(grid))


def _plan(grid: Grid) -> list[Row]:
    """The cases in the order of the table; what cannot be measured has its note already."""
    rows = []
    itemsize = getattr(torch, grid.dtype).itemsize
    for name in grid.methods:
        method = methods.build(name)
        for n in grid.n:
            for q in grid.q:
                auto = method._form("auto", n, q)
                forms = dict.fromkeys(auto if form == "auto" else form for form in grid.forms or method.forms)
                for ranks in grid.ranks:
                    for form in forms:
                        row = Row(
                            method=name,
                            form=form,
                            auto=form == auto,
                            n=n,
                            q=q,
                            ranks=ranks,
                            embedding_bytes=2 * n * q * itemsize,
                        )
                        rows.append(replace(row, note=_impossible(row, method, grid)))
    return rows


def _impossible(row: Row, method: methods.Regularizer, grid: Grid) -> str:
    if row.form not in method.forms:
        return f"has no {row.form} form"
    if row.n < row.ranks:
        return "fewer embeddings than ranks"
    if grid.device == "cuda" and row.ranks > torch.cuda.device_count():
        return f"needs {row.ranks} GPUs, {torch.cuda.device_count()} here"
    return ""


_Key = tuple[str, int, int, int]


@dataclass(frozen=True)
class _Prediction:
    seconds: float
    bytes: int


class _Session:
    """One measurement of a grid."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._start_s = time.perf_counter()
        self._pools: dict[int, Ranks] = {}
        self._predictions: dict[tuple[str, str, int, int], _Prediction | None] = {}
        self._failed: dict[tuple[str, str, int, int], str] = {}

    def run(self, rows: list[Row]) -> list[Row]:
        groups: dict[_Key, list[int]] = {}
        for i, row in enumerate(rows):
            if not row.note:
                groups.setdefault((row.method, row.n, row.q, row.ranks), []).append(i)
        total = sum(len(group) for group in groups.values())
        # tqdm is silent where the standard error is no terminal.
        bar = tqdm(total=total, unit="case", disable=None, leave=False)
        try:
            bar.set_description("predicting")
            predictions = {i: self._predict(rows[i]) for group in groups.values() for i in group}
            costs = {key: sum(self._seconds(predictions[i], key[3]) for i in group) for key, group in groups.items()}
            for key in sorted(costs, key=lambda key: costs[key]):
                bar.set_description(f"{key[0]} n={key[1]} q={key[2]} ranks={key[3]}")
                for i, row in zip(groups[key], self._measure(key, groups[key], rows, predictions), strict=True):
                    rows[i] = row
                bar.update(len(groups[key]))
        finally:
            bar.close()
            for pool in self._pools.values():
                pool.close()
        return rows

    def _pool(self, ranks: int) -> Ranks:
        if ranks not in self._pools:
            self._pools[ranks] = Ranks(ranks, self._grid.device, self._grid.threads)
        return self._pools[ranks]

    def _predict(self, row: Row) -> _Prediction | None:
        """Of one process with the whole batch; None if the method failed, which is noted."""
        case = (row.method, row.form, row.n, row.q)
        if case not in self._predictions:
            limit = self._grid.memory_limit_bytes
            size = {"n": row.n, "q": row.q, "dtype": self._grid.dtype, "memory_limit_bytes": limit}
            try:
                answer = self._pool(1).ask(do="probe", method=row.method, form=row.form, **size)
            except Died as error:
                answer = {"error": str(error)}
            # A method may have reasons to refuse a probe's small sizes: unknown, so it is tried.
            self._predictions[case] = None if "error" in answer else _Prediction(answer["seconds"], answer["bytes"])
        return self._predictions[case]

    def _seconds(self, prediction: _Prediction | None, ranks: int) -> float:
        """Of all rounds of a case."""
        if prediction is None:
            return 0.0
        cores = torch.cuda.device_count() if self._grid.device == "cuda" else len(os.sched_getaffinity(0))
        crowd = max(1.0, ranks * self._grid.threads / cores) if self._grid.device == "cpu" else 1.0
        # Two more: the pass for the memory, and the warm-up. With several ranks shared and alone.
        rounds = self._grid.repeats + 2 if self._grid.repeats else 1
        return prediction.seconds * rounds * crowd * (1 if ranks == 1 else 2)

    def _over(self, row: Row, prediction: _Prediction | None, planned_s: float) -> str:
        """Why a case is left out, or nothing."""
        if prediction is None:
            return ""
        limit = self._grid.memory_limit_bytes
        assert limit is not None
        needed = (prediction.bytes + 3 * row.embedding_bytes) * (row.ranks if self._grid.device == "cpu" else 1)
        if needed > limit:
            return f"left out: about {_size(needed)} of memory, over the limit of {_size(limit)}"
        seconds = self._seconds(prediction, row.ranks)
        if time.perf_counter() - self._start_s + planned_s + seconds > self._grid.budget_s:
            return f"left out: about {seconds:.2g} s, over what is left of the budget of {self._grid.budget_s:g} s"
        return ""

    def _measure(
        self, key: _Key, group: Sequence[int], rows: Sequence[Row], predictions: Mapping[int, _Prediction | None]
    ) -> list[Row]:
        """The rows of one method at one size, measured."""
        method, n, q, ranks = key
        notes: dict[str, str] = {}
        planned_s = 0.0
        for i in sorted(group, key=lambda i: prediction.seconds if (prediction := predictions[i]) else 0.0):
            form = rows[i].form
            note = self._failed.get((method, form, n, q)) or self._over(rows[i], predictions[i], planned_s)
            if note:
                notes[form] = note
            else:
                planned_s += self._seconds(predictions[i], ranks)
        forms = [rows[i].form for i in group if rows[i].form not in notes]
        result: dict[str, Any] = {}
        if forms:
            size = {"n": n, "q": q, "dtype": self._grid.dtype, "repeats": self._grid.repeats}
            try:
                result = self._pool(ranks).ask(do="measure", method=method, forms=forms, alone=forms, **size)
            except Died as error:
                result = {"error": str(error)}
            failed = dict.fromkeys(forms, result["error"]) if "error" in result else result["failed"]
            for form, line in failed.items():
                notes[form] = f"failed: {line}"
                if ranks == 1:
                    self._failed[method, form, n, q] = notes[form]
        return [
            replace(rows[i], note=notes[form]) if (form := rows[i].form) in notes else filled(rows[i], result)
            for i in group
        ]


def filled(row: Row, result: Mapping[str, Any]) -> Row:
    """The row with what `measure_forms` gave for it."""
    row = replace(row, extra_bytes=result["bytes"][row.form])
    times_ms = result["shared"].get(row.form)
    if not times_ms:
        return row
    alone = result["shared"] if row.ranks == 1 else result["alone"]
    floor_ms = [ms / row.ranks for ms in result["floor"]]
    return replace(
        row,
        median_ms=statistics.median(times_ms),
        low_ms=min(times_ms),
        high_ms=max(times_ms),
        vs_textbook=_ratio(times_ms, alone.get("textbook")),
        vs_one_rank=_ratio(times_ms, alone.get(row.form)),
        gemm_ms=statistics.median(floor_ms),
        vs_gemm=_ratio(times_ms, floor_ms),
    )


def _ratio(times_ms: Sequence[float], other_ms: Sequence[float] | None) -> float | None:
    """Median of the ratios within rounds."""
    if not other_ms:
        return None
    return statistics.median(own / other for own, other in zip(times_ms, other_ms, strict=True))


# Targets.


@dataclass(frozen=True)
class Target:
    """A cost that is to be reached.

    Attributes:
        what: In words.
        column: The column of `Row` that is measured.
        value: What it should be at most.
        n: Batch size.
        q: Embedding dimension.
        method: Name in the registry; empty for the largest over all methods with a streamed form, in `auto`.
        ranks: Processes that share the batch.
    """

    what: str
    column: str
    value: float
    n: int
    q: int
    method: str = ""
    ranks: int = 1


TARGETS = (
    Target("time of sfrik_l3, auto / textbook", "vs_textbook", 0.75, 2048, 8192, "sfrik_l3"),
    Target("time of vicreg, auto / textbook", "vs_textbook", 0.02, 256, 8192, "vicreg"),
    Target("time of vicreg, auto / textbook", "vs_textbook", 0.17, 2048, 8192, "vicreg"),
    Target("time of barlow_twins, auto / textbook", "vs_textbook", 0.05, 256, 8192, "barlow_twins"),
    Target("extra bytes of any streamed method, auto", "extra_bytes", 64 * MIB, 8192, 2048),
    Target("time per rank of sfrik_l3, two ranks / one", "vs_one_rank", 0.6, 2048, 8192, "sfrik_l3", ranks=2),
)


@dataclass(frozen=True)
class Outcome:
    """A target beside what was measured.

    Attributes:
        target: The target.
        measured: In the same unit; None if nothing was.
        note: What it was measured of, or why it was not.
    """

    target: Target
    measured: float | None
    note: str


def measure_targets(grid: Grid, targets: Sequence[Target] = TARGETS) -> tuple[list[Outcome], list[Row]]:
    """Measures what the targets need and no more.

    Args:
        grid: Device, threads, repeats, dtype and limits, and the methods whose targets are asked for.
        targets: What to measure; targets of methods that are not in the grid are left out.

    Returns:
        Targets beside what was measured, and all rows.
    """
    known = methods.names()
    targets = [t for t in targets if t.method in ("", *grid.methods) or t.method not in known]
    plans = {t: _target_rows(t, grid) for t in targets if t.method in ("", *known)}
    # Memory alone takes one call instead of all rounds.
    timed = [row for t, rows in plans.items() if t.column != "extra_bytes" for row in rows]
    untimed = [row for t, rows in plans.items() if t.column == "extra_bytes" for row in rows]
    rows = _Session(grid).run(timed) + _Session(replace(grid, repeats=0)).run(untimed)
    measured = {(row.method, row.form, row.n, row.q, row.ranks): row for row in rows}
    outcomes = []
    for target in targets:
        own = [measured[row.method, row.form, row.n, row.q, row.ranks] for row in plans.get(target, ())]
        outcomes.append(_outcome(target, own))
    return outcomes, rows


def _target_rows(target: Target, grid: Grid) -> list[Row]:
    size = replace(grid, n=(target.n,), q=(target.q,), ranks=(target.ranks,))
    if not target.method:
        return [row for row in _plan(replace(size, forms=("auto",))) if row.form != "textbook"]
    forms = ("textbook", "auto") if target.column == "vs_textbook" else ("auto",)
    return _plan(replace(size, methods=(target.method,), forms=forms))


def _outcome(target: Target, rows: Sequence[Row]) -> Outcome:
    if not rows:
        return Outcome(
            target, None, f"no method {target.method} is registered" if target.method else "no streamed form"
        )
    values = [(value, row) for row in rows if row.auto or not target.method if (value := getattr(row, target.column))]
    notes = [f"{row.method} {row.form} {row.note}" for row in rows if row.note]
    if not values:
        return Outcome(target, None, "; ".join(notes) or "was not timed")
    value, row = max(values, key=lambda pair: pair[0])
    return Outcome(target, value, "; ".join([f"{row.method} {row.form}", *notes]))


def targets_table(outcomes: Sequence[Outcome], style: str = "simple") -> str:
    """Targets beside what was measured, for people."""
    cells = []
    for outcome in outcomes:
        target = outcome.target
        unit, name = (MIB, " MiB") if target.column == "extra_bytes" else (1, "")
        measured = outcome.measured
        reached = "–" if measured is None else "yes" if measured <= target.value else "no"
        value = "–" if measured is None else _number(measured / unit) + name
        size = (str(target.n), str(target.q), str(target.ranks))
        cells.append((target.what, *size, f"{target.value / unit:g}{name}", value, reached, outcome.note))
    headers = ("", "n", "q", "ranks", "target", "measured", "reached", "of")
    align = ("left", *("right",) * 5, "left", "left")
    return tabulate(cells, headers=headers, tablefmt=style, disable_numparse=True, colalign=align)


# What is written.

HEADERS = (
    "method",
    "form",
    "n",
    "q",
    "ranks",
    "median ms",
    "min–max",
    "vs textbook",
    "vs 1 rank",
    "vs GEMM",
    "extra MiB",
)


def table(rows: Sequence[Row], style: str = "simple") -> str:
    """The rows for people, in a format of `tabulate`."""
    cells = [
        (
            row.method,
            row.form + "*" * row.auto,
            str(row.n),
            str(row.q),
            str(row.ranks),
            _number(row.median_ms),
            f"{_number(row.low_ms)}–{_number(row.high_ms)}" if row.low_ms is not None else "–",
            _number(row.vs_textbook),
            _number(row.vs_one_rank),
            _number(row.vs_gemm),
            _number(None if row.extra_bytes is None else row.extra_bytes / MIB),
            row.note,
        )
        for row in rows
    ]
    align = ("left", "left", *("right",) * (len(HEADERS) - 2), "left")
    return tabulate(cells, headers=[*HEADERS, ""], tablefmt=style, disable_numparse=True, colalign=align)


def _number(value: float | None) -> str:
    """Three digits, more only before the point."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def _size(count: float) -> str:
    return f"{count / 2**30:.2g} GiB" if count >= 2**30 else f"{count / MIB:.2g} MiB"


LEGEND = """\
Time of value and gradient: median over rounds and range; of several ranks the slowest one's. `*`: what `auto` is.
vs textbook, vs 1 rank: median of the ratios within rounds to the textbook form and to the same form on one rank, where
every process computes the whole batch alone at the same time.
vs GEMM: to the time of the matrix products that a loss over all pairs needs at least: for each view half of a Gram
matrix (n² q FLOP) and the gradient (2 n² q FLOP); for q < n with n and q exchanged; divided by the ranks.
extra MiB: peak beyond embeddings and gradients, of the rank that needs most."""


def to_csv(rows: Sequence[Row], machine: Machine) -> str:
    """The rows as CSV; the machine is in columns of its own."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, [f.name for kind in (Row, Machine) for f in fields(kind)], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({**asdict(row), **asdict(machine)})
    return buffer.getvalue()


def from_csv(text: str) -> list[Row]:
    """The rows that `to_csv` wrote."""
    rows = []
    for line in csv.DictReader(io.StringIO(text)):
        values: dict[str, Any] = {}
        for f in fields(Row):
            value, kind = line[f.name], str(f.type)
            if kind == "str":
                values[f.name] = value
            elif kind == "bool":
                values[f.name] = value == "True"
            elif value:
                values[f.name] = int(value) if kind.startswith("int") else float(value)
            else:
                values[f.name] = None
        rows.append(Row(**values))
    return rows


def to_markdown(rows: Sequence[Row], machine: Machine, targets: str = "") -> str:
    """The rows as a Markdown page."""
    sizes = dict.fromkeys((row.n, row.q, row.embedding_bytes) for row in rows)
    data = ", ".join(f"{_number(size / MIB)} MiB at n = {n}, q = {q}" for n, q, size in sizes)
    parts = [
        "# Cost of value and gradient",
        str(machine),
        f"Embeddings of both views, and as much again for their gradients: {data}.",
        targets,
        table(rows, "github"),
        LEGEND,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def write(rows: Sequence[Row], machine: Machine, out: Path, targets: str = "") -> None:
    """Writes cost.csv and cost.md into the folder `out`."""
    write_text(out / "cost.csv", to_csv(rows, machine))
    write_text(out / "cost.md", to_markdown(rows, machine, targets))
