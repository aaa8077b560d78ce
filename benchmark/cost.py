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

import contextlib
import csv
import gc
import io
import json
import math
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist
from tabulate import tabulate
from torch import Tensor
from torch._C._profiler import _EventType, _ExtraFields_Allocation
from tqdm import tqdm

from regbench import RegbenchError, methods
from regbench.benchmark.measure import Stopwatch, hardware
from regbench.files import write_text
from regbench.methods.engine import FORMS, Engine

MIB = 2**20
DTYPES = ("float32", "float64", "bfloat16")
DEVICES = ("auto", "cpu", "cuda")

# A probe does about this many multiplications for each view, a millisecond or so.
_PROBE_WORK = 2**23
# Short calls are repeated within a round until they take about so long.
_ROUND_S = 0.02
_START_TIMEOUT_S = 120.0


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
    ranks: Sequence[int] = (1, 2)
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


# Measuring, inside one process.


@dataclass(frozen=True)
class Rank:
    """A measuring process among those of its kind."""

    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The processes, or None for one."""
        return dist.group.WORLD if self.world > 1 else None

    def wait(self) -> None:
        """Until all ranks are here and their devices idle."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        if self.world > 1:
            dist.barrier()

    def largest(self, values: Sequence[float]) -> list[float]:
        """The maximum over ranks of each value."""
        if self.world == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        maxima: list[float] = tensor.tolist()
        return maxima


def peak_extra_bytes(run: Callable[[], Sequence[Tensor]], device: torch.device) -> int:
    """The highest sum of live allocations that `run` makes on `device`, without the tensors that it returns.

    On a CPU these are left out from their allocation on; on CUDA their size is taken off the peak.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        kept = sum(tensor.untyped_storage().nbytes() for tensor in run())
        return max(0, torch.cuda.max_memory_allocated(device) - before - kept)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        kept_tensors = run()
    assert profile.profiler is not None and profile.profiler.kineto_results is not None
    # A dispatch mode that watches the outputs of operations would count 10 % too much for some textbook losses:
    # autograd does not accumulate gradients in place while one is active.
    events = sorted(_allocations(profile.profiler.kineto_results.experimental_event_tree()), key=lambda event: event[0])
    newest = {pointer: i for i, (_, pointer, size) in enumerate(events) if size > 0}
    left_out = {newest.get(tensor.untyped_storage().data_ptr()) for tensor in kept_tensors}
    live = peak = 0
    for i, (_, _, size) in enumerate(events):
        if i not in left_out:
            live += size
            peak = max(peak, live)
    return peak


def _allocations(tree: Iterable[Any]) -> Iterator[tuple[int, int, int]]:
    """(time, address, bytes) of all allocations and, with negative bytes, releases on the CPU."""
    pending = list(tree)
    while pending:
        event = pending.pop()
        pending.extend(event.children)
        if event.tag == _EventType.Allocation:
            extra: _ExtraFields_Allocation = event.extra_fields
            if extra.device.type == "cpu" and extra.ptr is not None:
                yield event.start_time_ns, extra.ptr, extra.alloc_size


def _embeddings(n: int, q: int, dtype: str, here: Rank) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    z1_NQ = torch.randn(n, q, generator=generator)
    z2_NQ = z1_NQ + 0.5 * torch.randn(n, q, generator=generator)
    kind: torch.dtype = getattr(torch, dtype)
    return z1_NQ.to(here.device, kind), z2_NQ.to(here.device, kind)


def _call(method: methods.Regularizer, views: Sequence[Tensor], engine: Engine) -> Callable[[], Sequence[Tensor]]:
    """Value and gradient of leaves with the data of `views`."""
    z1_NQ, z2_NQ = (view.detach().requires_grad_() for view in views)

    def run() -> Sequence[Tensor]:
        z1_NQ.grad = z2_NQ.grad = None
        method.loss(z1_NQ, z2_NQ, engine).backward()
        return [z_NQ.grad for z_NQ in (z1_NQ, z2_NQ) if z_NQ.grad is not None]

    return run


def gemm_floor(views: Sequence[Tensor]) -> tuple[Callable[[], Sequence[Tensor]], int]:
    """The matrix products that value and gradient need at least, see the module, and their FLOP."""
    n, q = views[0].shape
    dtype = torch.promote_types(views[0].dtype, torch.float32)
    views = [view.detach().to(dtype) for view in views]
    small = min(n, q)
    half = -(-small // 2)
    product = views[0].new_empty(half, small)
    square = views[0].new_full((small, small), 1e-3)
    gradient = torch.empty_like(views[0])

    def run() -> Sequence[Tensor]:
        for view in views:
            if n <= q:
                torch.mm(view[:half], view.T, out=product)
                torch.mm(square, view, out=gradient)
            else:
                torch.mm(view.T[:half], view, out=product)
                torch.mm(view, square, out=gradient)
        return []

    return run, len(views) * 2 * (half + small) * n * q


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or "no message"
    return text if isinstance(error, RegbenchError) else f"{type(error).__name__}: {text}"


def probe(here: Rank, *, method: str, form: str, n: int, q: int, dtype: str, memory_limit_bytes: int) -> dict[str, Any]:
    """Predicts seconds and extra bytes of a call from calls with n and q divided by one number.

    Time is taken to grow with the cube of that number, which holds for matrix products, and memory with its square;
    where that would be over the limit, as it grows between two probes.
    """
    regularizer = methods.build(method)
    scale = 1
    while (n // scale) * (q // scale) * (max(n, q) // scale) > _PROBE_WORK and min(n, q) // scale >= 16:
        scale *= 2

    def call(divisor: int) -> tuple[Callable[[], Sequence[Tensor]], float]:
        small_n, small_q = max(2, n // divisor), max(1, q // divisor)
        views = _embeddings(small_n, small_q, dtype, here)
        return _call(regularizer, views, Engine(form=form)), max(n / small_n, q / small_q)

    run, ratio = call(scale)
    run()
    clock = Stopwatch(here.device)
    times_ms = []
    for _ in range(2):
        here.wait()
        start = clock.mark()
        run()
        times_ms.append(clock.milliseconds(start, clock.mark()))
    measured = peak_extra_bytes(run, here.device)
    predicted = measured * ratio**2
    if ratio > 1 and predicted > memory_limit_bytes:
        smaller, smaller_ratio = call(2 * scale)
        growth = measured / max(1, peak_extra_bytes(smaller, here.device))
        exponent = min(2.0, max(0.0, math.log(growth, smaller_ratio / ratio)))
        predicted = measured * ratio**exponent
    return {"seconds": min(times_ms) / 1e3 * ratio**3, "bytes": int(predicted)}


def measure_forms(
    here: Rank, *, method: str, forms: Sequence[str], alone: Sequence[str], n: int, q: int, dtype: str, repeats: int
) -> dict[str, Any]:
    """Times and memory of a method's forms at one size.

    Args:
        here: This process.
        method: Name in the registry.
        forms: Forms to measure with the batch shared by the ranks.
        alone: Forms to time with every rank computing the whole batch; not used with one rank.
        n: Batch size over all ranks.
        q: Embedding dimension.
        dtype: Of the embeddings.
        repeats: Rounds; 0 for memory only.

    Returns:
        `shared` and `alone`: milliseconds of each round by form, the slowest rank's; `floor`: those of the GEMM floor;
        `bytes`: extra memory by form, of the rank that needs most; `failed`: errors by form.
    """
    regularizer = methods.build(method)
    views = _embeddings(n, q, dtype, here)
    local = [view.tensor_split(here.world)[here.rank] for view in views] if here.world > 1 else views
    calls: dict[tuple[str, str], Callable[[], Sequence[Tensor]]] = {}
    result: dict[str, Any] = {"shared": {}, "alone": {}, "floor": [], "bytes": {}, "failed": {}}
    for form in forms:
        run = _call(regularizer, local, Engine(form=form, group=here.group))
        try:
            result["bytes"][form] = int(here.largest([peak_extra_bytes(run, here.device)])[0])
        except Exception as error:
            if here.world > 1:  # the other ranks may be waiting for this one
                raise
            result["failed"][form] = _one_line(error)
            continue
        calls["shared", form] = run
    if here.world > 1:
        calls |= {("alone", form): _call(regularizer, views, Engine(form=form)) for form in alone}
    if not repeats or not calls:
        return result
    calls["floor", ""], _ = gemm_floor(views)

    clock = Stopwatch(here.device)

    def timed(run: Callable[[], Sequence[Tensor]], number: int) -> float:
        here.wait()
        start = clock.mark()
        for _ in range(number):
            run()
        return clock.milliseconds(start, clock.mark()) / number

    warm_ms = here.largest([timed(run, 1) for run in calls.values()])
    numbers = [max(1, min(50, int(_ROUND_S * 1e3 / max(ms, 1e-3)))) for ms in warm_ms]
    order = list(zip(calls.items(), numbers, strict=True))
    times_ms: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    for round_ in range(repeats):
        for (key, run), number in order if round_ % 2 == 0 else reversed(order):
            times_ms[key].append(timed(run, number))
    for (kind, form), own_ms in times_ms.items():
        slowest_ms = here.largest(own_ms)
        if kind == "floor":
            result["floor"] = slowest_ms
        else:
            result[kind][form] = slowest_ms
    return result


_JOBS: Mapping[str, Callable[..., dict[str, Any]]] = {"probe": probe, "measure": measure_forms}


def serve(rank: int, world: int, device: str, threads: int, store: str) -> None:
    """A measuring process: takes jobs from its standard input, one JSON object a line, and answers on its output."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a method prints is no answer
    torch.set_num_threads(threads)
    place = torch.device("cuda", rank) if device == "cuda" else torch.device("cpu")
    if place.type == "cuda":
        torch.cuda.set_device(place)
    here = Rank(rank, world, place)

    def answer(content: Mapping[str, Any]) -> None:
        print(json.dumps(content), file=answers, flush=True)

    try:
        if world > 1:
            backend = "nccl" if place.type == "cuda" else "gloo"
            dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=world)
        answer({"ready": True})
        for line in sys.stdin:
            job = json.loads(line)
            try:
                done = _JOBS[job.pop("do")](here, **job)
            except Exception as error:
                if world > 1:
                    raise
                done = {"error": _one_line(error)}
            if rank == 0:
                answer(done)
    except Exception as error:
        answer({"died": _one_line(error)})
        answers.close()
        os._exit(1)  # the other ranks may be inside a collective: no orderly end
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


# The measuring processes, from outside.


class _Died(Exception):
    """A measuring process ended before its time; the message is one line."""


class _Ranks:
    """Processes that measure together; started on the first job, ended by `close`."""

    def __init__(self, world: int, device: str, threads: int) -> None:
        self.world, self._device, self._threads = world, device, threads
        self._processes: list[subprocess.Popen[str]] = []
        self._lines: queue.SimpleQueue[tuple[int, str | None]] = queue.SimpleQueue()
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def ask(self, **job: Any) -> dict[str, Any]:
        """The first rank's answer to a job that all ranks do.

        Raises:
            _Died: If a process ends instead; the others are ended too, and the next job starts new ones.
        """
        try:
            if not self._processes:
                self._start()
            for process in self._processes:
                assert process.stdin is not None
                with contextlib.suppress(BrokenPipeError):  # its end is told below
                    print(json.dumps(job), file=process.stdin, flush=True)
            while True:
                rank, answer = self._next()
                if rank == 0:
                    return answer
        except BaseException:
            self._kill()
            raise

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="regbench-cost-")
        self._lines = queue.SimpleQueue()
        environment = {
            **os.environ,
            **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(self._threads)),
            "KINETO_LOG_LEVEL": "99",
        }
        if sys.platform == "linux":
            environment.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the host's name need not resolve
        for rank in range(self.world):
            arguments = (rank, self.world, self._device, self._threads, str(Path(self._folder.name) / "store"))
            program = (
                f"import sys; sys.path[:] = {sys.path!r}; "
                f"from regbench.benchmark.cost import serve; serve(*{arguments!r})"
            )
            with self._errors(rank).open("w") as errors:
                process = subprocess.Popen(
                    [sys.executable, "-c", program],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    env=environment,
                )
            self._processes.append(process)
            assert process.stdout is not None
            threading.Thread(target=self._read, args=(rank, process.stdout, self._lines), daemon=True).start()
        for _ in self._processes:
            self._next(_START_TIMEOUT_S)

    def _errors(self, rank: int) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / f"rank{rank}.txt"

    @staticmethod
    def _read(rank: int, stream: IO[str], lines: queue.SimpleQueue[tuple[int, str | None]]) -> None:
        with stream:
            for line in stream:
                lines.put((rank, line))
        lines.put((rank, None))

    def _next(self, timeout_s: float | None = None) -> tuple[int, dict[str, Any]]:
        try:
            rank, line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise _Died(f"not all of {self.world} processes started within {timeout_s:.0f} s") from None
        if line is None:
            code = self._processes[rank].wait()
            said = self._errors(rank).read_text(errors="replace").strip().splitlines()
            how = f"was ended by signal {-code}" if code < 0 else f"left with exit code {code}"
            raise _Died(f"rank {rank} {how}" + (f": {said[-1].strip()}" if said else ""))
        answer: dict[str, Any] = json.loads(line)
        if "died" in answer:
            raise _Died(f"rank {rank}: {answer['died']}" if self.world > 1 else answer["died"])
        return rank, answer

    def close(self) -> None:
        """Lets the processes end."""
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
        self._kill()

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
        self._processes = []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


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
        self._pools: dict[int, _Ranks] = {}
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

    def _pool(self, ranks: int) -> _Ranks:
        if ranks not in self._pools:
            self._pools[ranks] = _Ranks(ranks, self._grid.device, self._grid.threads)
        return self._pools[ranks]

    def _predict(self, row: Row) -> _Prediction | None:
        """Of one process with the whole batch; None if the method failed, which is noted."""
        case = (row.method, row.form, row.n, row.q)
        known: dict[tuple[str, str, int, int], _Prediction | None] = self.__dict__.setdefault("_known", {})
        if case not in known:
            limit = self._grid.memory_limit_bytes
            size = {"n": row.n, "q": row.q, "dtype": self._grid.dtype, "memory_limit_bytes": limit}
            try:
                answer = self._pool(1).ask(do="probe", method=row.method, form=row.form, **size)
            except _Died as error:
                answer = {"error": str(error)}
            # A method may have reasons to refuse a probe's small sizes: unknown, so it is tried.
            known[case] = None if "error" in answer else _Prediction(answer["seconds"], answer["bytes"])
        return known[case]

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
            except _Died as error:
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
vs GEMM: to the time of the matrix products needed at least: for each view half of a Gram matrix (n² q FLOP) and the
gradient (2 n² q FLOP); for q < n with n and q exchanged; divided by the ranks.
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
