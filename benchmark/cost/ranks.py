"""The processes that measure what a loss costs, one for each rank: what they do, and how they are started and asked.

They import regbench and nothing of the caller, so a script needs no guard, and take jobs over a pipe: a process that is
killed, for want of memory say, costs one job. See `regbench.benchmark.cost.losses` for what is measured.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import queue
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._profiler import _EventType, _ExtraFields_Allocation

from regbench import RegbenchError, methods
from regbench.benchmark.machine import Stopwatch
from regbench.methods.base import LOCAL_ROWS
from regbench.methods.engine import Engine

# n q max(n, q) of a probe at most: some milliseconds of a core, well above the fixed costs of a call.
_PROBE_WORK = 2**26
# Short calls are repeated within a round for so long: a tenth of the longest case, within these bounds.
_ROUND_MS = (20.0, 500.0)
_START_TIMEOUT_S = 120.0


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
    # What was there before may be released meanwhile; that makes no room for what is measured.
    alive: dict[int, int] = {}
    live = peak = 0
    for i, (_, pointer, size) in enumerate(events):
        if size < 0:
            live -= alive.pop(pointer, 0)
        elif i not in left_out:
            alive[pointer] = size
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
    where that would be over the limit, as it grows between two probes. A size at which 32 matrices of its longer side
    are within the limit is not probed for memory: the answer is 0 bytes.
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
    seconds = min(times_ms) / 1e3 * ratio**3
    if 32 * max(n, q) ** 2 * 4 <= memory_limit_bytes:
        return {"seconds": seconds, "bytes": 0}
    measured = peak_extra_bytes(run, here.device)
    predicted = measured * ratio**2
    if ratio > 1 and predicted > memory_limit_bytes:
        smaller, smaller_ratio = call(2 * scale)
        growth = measured / max(1, peak_extra_bytes(smaller, here.device))
        exponent = min(2.0, max(0.0, math.log(growth, smaller_ratio / ratio)))
        predicted = measured * ratio**exponent
    return {"seconds": seconds, "bytes": int(predicted)}


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
    round_ms = max(_ROUND_MS[0], min(_ROUND_MS[1], 0.1 * max(warm_ms)))
    numbers = [max(1, min(50, int(round_ms / max(ms, 1e-3)))) for ms in warm_ms]
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
            warnings.filterwarnings("ignore", LOCAL_ROWS)  # one process alone is what several are compared with
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


# From outside.


class Died(Exception):
    """A measuring process ended before its time; the message is one line."""


class Ranks:
    """Processes that measure together; started on the first job, ended by `close`."""

    def __init__(self, world: int, device: str, threads: int) -> None:
        """For `world` processes of so many threads on `device`, `cpu` or `cuda`."""
        self.world, self._device, self._threads = world, device, threads
        self._processes: list[subprocess.Popen[str]] = []
        self._lines: queue.SimpleQueue[tuple[int, str | None]] = queue.SimpleQueue()
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def ask(self, **job: Any) -> dict[str, Any]:
        """The first rank's answer to a job that all ranks do.

        Raises:
            Died: If a process ends instead; the others are ended too, and the next job starts new ones.
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
                f"from regbench.benchmark.cost.ranks import serve; serve(*{arguments!r})"
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
            raise Died(f"not all of {self.world} processes started within {timeout_s:.0f} s") from None
        if line is None:
            code = self._processes[rank].wait()
            said = self._errors(rank).read_text(errors="replace").strip().splitlines()
            how = f"was ended by signal {-code}" if code < 0 else f"left with exit code {code}"
            raise Died(f"rank {rank} {how}" + (f": {said[-1].strip()}" if said else ""))
        answer: dict[str, Any] = json.loads(line)
        if "died" in answer:
            raise Died(f"rank {rank}: {answer['died']}" if self.world > 1 else answer["died"])
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
