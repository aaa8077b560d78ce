"""Several processes that train one network: how they meet, agree and end together, and BN over all
of them.

They meet by torch's own rendezvous, as torchrun or a Slurm job sets it up in the environment. What
torch lacks is here: the first error of a process ends all of them, with its message.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves, tree_map_only

from regbench.benchmark.training.sync_batch_norm import Kernels, SyncBatchNorm
from regbench.errors import RegbenchError

# torch renamed the setting, and warns of the old name where there is the new one.
_BUFFERS = "forward_sync_buffers"
if _BUFFERS not in inspect.signature(DistributedDataParallel.__init__).parameters:
    _BUFFERS = "broadcast_buffers"

_TIMEOUT = timedelta(minutes=30)
# The first rank may wait for another process at work in the run directory before it lets the others
# begin.
_CONTROL_TIMEOUT = timedelta(days=7)
# The entry of torch's store where the first process that fails leaves its error.
_ERROR_KEY = "regbench/error"
# The store may be gone with its process; one that is about to end does not wait for it longer than
# this.
_ERROR_TIMEOUT = timedelta(seconds=10)
# How often a process looks for an error of others.
_WATCH_S = 2.0
# How long it may then take to notice by itself: it may be writing a checkpoint.
_GRACE_S = 20.0


class PeerLost(RegbenchError):
    """Another process of the run is gone and left no error: it was killed."""


@dataclass(frozen=True)
class World:
    """The processes of one run, as torchrun or a Slurm job started them.

    Attributes:
        rank: The number of this process.
        size: The number of processes.
        local_rank: The number of this process on its machine.
        group: Process group for tensors on the training device; None for a single process.
        control: Process group for numbers that steer the loop, over the CPU, so that a GPU does not
            wait.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    group: dist.ProcessGroup | None = None
    control: dist.ProcessGroup | None = None

    def maximum(self, *values: float) -> list[float]:
        """Return the largest of each value over all ranks."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def sum(self, value: float) -> float:
        """Return the sum over all ranks."""
        return self._reduced((value,), dist.ReduceOp.SUM)[0]

    def _reduced(self, values: Sequence[float], operation: Any) -> list[float]:
        if self.control is None:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, operation, group=self.control)
        return tensor.tolist()

    def from_first(self, value: Any) -> Any:
        """Return the value that the first rank gives."""
        if self.control is None:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]

    def state_from_first(self, state: Any, device: torch.device) -> Any:
        """Return the state, on the CPU, that the first rank gives.

        Its tensors pass through the device one by one.
        """
        if self.group is None:
            return state
        # To pickle the tensors themselves would take several times their memory on every rank.
        outline = self.from_first(tree_map_only(Tensor, lambda tensor: tensor.to("meta"), state))
        if self.rank > 0:
            on_cpu = functools.partial(torch.empty_like, device="cpu")
            state = tree_map_only(Tensor, on_cpu, outline)
        for tensor in tree_leaves(state):
            if isinstance(tensor, Tensor):
                on_device = tensor.to(device)
                dist.broadcast(on_device, src=0, group=self.group)
                tensor.copy_(on_device)
        return state


class Agreement:
    """Finds out what any rank asks for while all of them compute: each call gives the answer to the
    call before.

    Ranks that waited for the answer in every step would all be as slow as the slowest in that step.
    """

    def __init__(self, world: World) -> None:
        """Agree between the ranks of a world."""
        self._world = world
        self._asked: tuple[torch.Tensor, Any] | None = None

    def __call__(self, *values: float, now: bool) -> list[float]:
        """Ask for the largest of each value over all ranks; every rank gets the same answer in the
        same call.

        Args:
            *values: Values of this rank, 0 or more each. It repeats them in each call until the
                answer is there.
            now: Whether to wait for the answer to this very call.

        Returns:
            The answer to the call before, zeros if there is none; with `now` or a single rank, the
            answer to this call.
        """
        if self._world.control is None:
            return list(values)
        answer = self._answer() or [0.0] * len(values)
        if any(answer):
            # All ranks now do what was asked for; to ask again would make them do it twice.
            return answer
        asked, group = torch.tensor(values, dtype=torch.float64), self._world.control
        self._asked = asked, dist.all_reduce(asked, dist.ReduceOp.MAX, group=group, async_op=True)
        if now:
            answer = self._answer() or answer
        return answer

    def _answer(self) -> list[float] | None:
        if self._asked is None:
            return None
        (answer, work), self._asked = self._asked, None
        work.wait()
        return answer.tolist()


def environment_ranks() -> tuple[int, int, int, int]:
    """Read rank, size, local rank and local size, as torchrun or a Slurm job sets them in the
    environment.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return 0, 1, 0, 1
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    missing = [name for name in (*names, "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        what = f"WORLD_SIZE={os.environ['WORLD_SIZE']} but {', '.join(missing)} not set"
        raise RegbenchError(f"{what}; start the processes with torchrun, or unset WORLD_SIZE")
    rank, size, local_rank, local_size = (int(os.environ[name]) for name in names)
    return rank, size, local_rank, local_size


@contextlib.contextmanager
def connect(device: torch.device) -> Iterator[World]:
    """Join the processes that the launcher started, GPUs by NCCL and CPUs by gloo; without a
    launcher a world of one.

    Raises:
        RegbenchError: If another process failed; with its error.
        PeerLost: If another process is gone and left no error.
    """
    # The first error of a process ends all of them. It leaves its message in torch's store, because
    # the others notice only that a connection is closed. With NCCL they do not notice even that, so
    # a thread watches for the message.
    rank, size, local_rank, _ = environment_ranks()
    if size == 1:
        yield World()
        return
    backend, device_id = ("nccl", device) if device.type == "cuda" else ("gloo", None)
    is_over, failed = threading.Event(), False
    watcher: threading.Thread | None = None
    store, _, _ = next(rendezvous("env://", timeout=_TIMEOUT))
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=size, timeout=_TIMEOUT, device_id=device_id
    )
    try:
        group, control = dist.group.WORLD, dist.new_group(backend="gloo", timeout=_CONTROL_TIMEOUT)
        assert isinstance(group, dist.ProcessGroup)
        assert isinstance(control, dist.ProcessGroup)
        watched = (store, group, is_over, threading.get_ident())
        watcher = threading.Thread(target=_watch, args=watched, daemon=True)
        watcher.start()
        yield World(rank, size, local_rank, group, control)
    except Exception as error:
        is_over.set()
        failed = True
        # gloo has no class for its errors, only the path of its source in the message.
        is_of_gloo = isinstance(error, RuntimeError) and "/gloo/" in str(error)
        is_own = not is_of_gloo and not isinstance(error, dist.DistError | PeerLost)
        store.set_timeout(_ERROR_TIMEOUT)
        if is_own:
            with contextlib.suppress(RuntimeError):  # the process that keeps the store is gone
                store.compare_set(_ERROR_KEY, "", f"rank {rank}: {type(error).__name__}: {error}")
        if backend == "nccl" and dist.group.WORLD is not None:
            # to destroy it would wait for exchanges that the others never begin
            dist.group.WORLD.abort()
        if is_own:
            raise
        message = ""
        with contextlib.suppress(RuntimeError):
            message = store.get(_ERROR_KEY).decode() if store.check([_ERROR_KEY]) else ""
        if message:
            raise RegbenchError(message) from error
        why = (str(error) or "its store too").splitlines()[0]
        raise PeerLost(f"another process of the run is gone ({why})") from error
    finally:
        is_over.set()
        if watcher is not None:
            # A thread that is still within the store when the interpreter ends aborts the process.
            watcher.join(_ERROR_TIMEOUT.total_seconds())
        with contextlib.suppress(RuntimeError) if failed else contextlib.nullcontext():
            dist.destroy_process_group()


def _watch(store: Any, group: dist.ProcessGroup, is_over: threading.Event, thread: int) -> None:
    """Raise PeerLost in a thread that still waits in exchanges of the group some time after a
    process has failed.
    """
    has_failed = False
    while not has_failed and not is_over.wait(_WATCH_S):
        try:
            has_failed = store.check([_ERROR_KEY])
        except RuntimeError:  # the process that keeps the store is gone
            has_failed = True
    if has_failed and not is_over.wait(_GRACE_S):
        # PeerLost comes when the thread returns from its wait, before it can use numbers of an
        # exchange that broke off.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread), ctypes.py_object(PeerLost)
        )
        group.abort()


def synchronize_batch_norm(network: nn.Module, world: World, device: torch.device) -> None:
    """Replace every BN layer of `network` by one that takes its statistics over the batches of
    all ranks.
    """
    # The weights keep their names. A world of one process is left alone.
    if world.group is None:
        return
    kernels = torch if device.type == "cuda" else Kernels
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                plain = type(child) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
                if not plain or child.momentum is None or child.running_mean is None:
                    raise RegbenchError(
                        f"{type(child).__name__} of the network cannot take its statistics over "
                        "several processes; train it in one, or choose another network"
                    )
                setattr(parent, name, SyncBatchNorm(child, world.group, kernels))


def distributed_network(
    network: nn.Module, group: dist.ProcessGroup, device: torch.device, *, is_static: bool
) -> DistributedDataParallel:
    """Return the network in DistributedDataParallel; `is_static`: its graph never changes."""
    # Synchronised BN gives every rank the same buffers, so they need not be sent.
    options: dict[str, Any] = {_BUFFERS: False}
    if device.type == "cuda":
        options["device_ids"] = [device]
    return DistributedDataParallel(
        network,
        process_group=group,
        gradient_as_bucket_view=True,
        static_graph=is_static,
        **options,
    )
