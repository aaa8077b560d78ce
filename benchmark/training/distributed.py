"""Several processes that train one network: who they are, how they talk, and BN over all of them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.rendezvous import rendezvous

from regbench.benchmark.training.sync_batch_norm import Kernels, SyncBatchNorm
from regbench.errors import RegbenchError

_TIMEOUT = timedelta(minutes=30)
# The first rank may have to wait for another run's process before it can tell the others to begin.
_CONTROL_TIMEOUT = timedelta(days=7)
# Where the processes tell each other of an error, and how long one that is about to end waits for an answer.
_ERROR_KEY = "regbench/error"
_ERROR_TIMEOUT = timedelta(seconds=10)
# How often a process looks whether another has told of an error, and how long it may then take to notice by itself: it
# may be writing a checkpoint.
_WATCH_S = 2.0
_GRACE_S = 20.0


class PeerLost(RegbenchError):
    """Another process of the run is gone and did not say why: it was killed."""


@dataclass(frozen=True)
class World:
    """The processes of one run, as torchrun or a Slurm job started them.

    Attributes:
        rank: This process.
        size: How many there are.
        local_rank: This process among those of its machine.
        local_size: How many those are.
        group: For tensors on the training device; None for a single process.
        control: For numbers that steer the loop: over the CPU, so that asking does not stall a GPU.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    group: dist.ProcessGroup | None = None
    control: dist.ProcessGroup | None = None

    def maximum(self, *values: float) -> list[float]:
        """The largest over all ranks of each of the values."""
        if self.control is None:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self.control)
        return tensor.tolist()

    def sum(self, value: float) -> float:
        """The sum over all ranks."""
        if self.control is None:
            return value
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(tensor, group=self.control)
        return tensor.item()

    def from_first(self, value: Any) -> Any:
        """The value that the first rank gave."""
        if self.control is None:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]


class Agreement:
    """What any of the ranks asks for, found out while they compute: each call gives the answer to the one before.

    Ranks that had to answer in every step would all wait in every step for the slowest.
    """

    def __init__(self, world: World) -> None:
        """Between the ranks of a world."""
        self._world = world
        self._asked: tuple[torch.Tensor, Any] | None = None

    def __call__(self, *values: float, now: bool) -> list[float]:
        """Ask for the largest over all ranks of each of the values; every rank gets the same answer in the same call.

        An answer that has a number other than 0 ends what was asked: what every rank now does is not asked for twice.

        Args:
            *values: This rank's, 0 or more; what it wants it asks for in each call until it is done.
            now: Whether to wait for the answer to this very call.

        Returns:
            The answer to the call before, zeros if there is none; of one rank, and with `now`, to this one.
        """
        if self._world.control is None:
            return list(values)
        answer = self._answer() or [0.0] * len(values)
        if not any(answer):
            asked = torch.tensor(values, dtype=torch.float64)
            self._asked = asked, dist.all_reduce(asked, dist.ReduceOp.MAX, group=self._world.control, async_op=True)
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
    """Rank, size, local rank and local size that the launcher (torchrun, a Slurm job) put into the environment.

    Raises:
        RegbenchError: If it did so only in part.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return 0, 1, 0, 1
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    missing = [name for name in (*names, "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise RegbenchError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']} but {', '.join(missing)} not set; start the processes with "
            "torchrun, or unset WORLD_SIZE"
        )
    rank, size, local_rank, local_size = (int(os.environ[name]) for name in names)
    return rank, size, local_rank, local_size


@contextlib.contextmanager
def connect(device: torch.device) -> Iterator[World]:
    """Join the processes that the launcher started; a world of one without a launcher.

    The first error of a process ends all of them. The others notice no more than that a connection is closed, so they
    ask for the error that it told them before. NCCL does not notice even that: a thread looks for the error and ends
    what the process waits for.

    Args:
        device: That this process trains on: NCCL connects GPUs, gloo CPUs.

    Raises:
        RegbenchError: If another process failed; with its error.
        PeerLost: If another process is gone and told nothing.
    """
    rank, size, local_rank, local_size = environment_ranks()
    if size == 1:
        yield World()
        return
    backend, device_id = ("nccl", device) if device.type == "cuda" else ("gloo", None)
    over, failed = threading.Event(), False
    store, _, _ = next(rendezvous("env://", timeout=_TIMEOUT))
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_TIMEOUT, device_id=device_id)
    try:
        group, control = dist.group.WORLD, dist.new_group(backend="gloo", timeout=_CONTROL_TIMEOUT)
        assert isinstance(group, dist.ProcessGroup)  # of which this process is a member
        assert isinstance(control, dist.ProcessGroup)
        watch = threading.Thread(target=_watch, args=(store, group, over, threading.get_ident()), daemon=True)
        watch.start()
        yield World(rank, size, local_rank, local_size, group, control)
    except Exception as error:
        over.set()
        failed = True
        store.set_timeout(_ERROR_TIMEOUT)
        if not _is_of_a_connection(error):
            with contextlib.suppress(RuntimeError):  # the process that keeps the store is gone
                store.compare_set(_ERROR_KEY, "", f"rank {rank}: {type(error).__name__}: {error}")
        if backend == "nccl" and dist.group.WORLD is not None:
            dist.group.WORLD.abort()  # to destroy it is to wait for what the others have not begun
        if not _is_of_a_connection(error):
            raise
        told = ""
        with contextlib.suppress(RuntimeError):
            told = store.get(_ERROR_KEY).decode() if store.check([_ERROR_KEY]) else ""
        if told:
            raise RegbenchError(told) from error
        raise PeerLost(
            f"another process of the run is gone ({(str(error) or 'its store too').splitlines()[0]})"
        ) from error
    finally:
        over.set()
        with contextlib.suppress(RuntimeError) if failed else contextlib.nullcontext():
            dist.destroy_process_group()


def _watch(store: Any, group: dist.ProcessGroup, over: threading.Event, thread: int) -> None:
    """Raise PeerLost in a thread that still waits for others some time after one has told of an error, or is gone.

    Args:
        store: Where errors are told.
        group: Of the exchanges that the thread may wait in.
        over: Set when the thread no longer does.
        thread: Its number.
    """
    told = False
    while not told and not over.wait(_WATCH_S):
        try:
            told = store.check([_ERROR_KEY])
        except RuntimeError:  # the process that keeps it is gone
            told = True
    if told and not over.wait(_GRACE_S):
        # It comes when the thread returns from where it waits, and before it looks at numbers that are not whole.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(PeerLost))
        group.abort()


def _is_of_a_connection(error: Exception) -> bool:
    """Whether an error says no more than that another process does not answer; gloo has no type for it."""
    return isinstance(error, dist.DistError | PeerLost) or (isinstance(error, RuntimeError) and "/gloo/" in str(error))


def synchronize_batch_norm(network: nn.Module, world: World, device: torch.device) -> None:
    """Make every BN layer of `network` take its statistics over the batches of all ranks.

    Do nothing for a world of one. The layers are changed in place and keep the names of their weights.

    Raises:
        RegbenchError: If a layer does more than BN, which would be lost.
    """
    if world.group is None:
        return
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                if type(child) not in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
                    raise RegbenchError(
                        f"{type(child).__name__} of the network cannot take its statistics over several processes; "
                        "train it in one, or choose another network"
                    )
                kernels = torch if device.type == "cuda" else Kernels
                new = SyncBatchNorm(child, world.group, kernels)
                setattr(parent, name, new)
