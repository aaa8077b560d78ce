"""Several processes that train one network: who they are, how they talk, and BN over all of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from regbench import RegbenchError

_TIMEOUT = timedelta(minutes=30)


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
            f"WORLD_SIZE={os.environ['WORLD_SIZE']} but {', '.join(missing)} not set; start the processes with torchrun, "
            "or unset WORLD_SIZE"
        )
    rank, size, local_rank, local_size = (int(os.environ[name]) for name in names)
    return rank, size, local_rank, local_size


@contextlib.contextmanager
def connect(device: torch.device) -> Iterator[World]:
    """Joins the processes that the launcher started; a world of one without a launcher.

    Args:
        device: That this process trains on: NCCL connects GPUs, gloo CPUs.
    """
    rank, size, local_rank, local_size = environment_ranks()
    if size == 1:
        yield World()
        return
    backend, device_id = ("nccl", device) if device.type == "cuda" else ("gloo", None)
    dist.init_process_group(backend, timeout=_TIMEOUT, device_id=device_id)
    try:
        control = dist.new_group(backend="gloo", timeout=_TIMEOUT)
        yield World(rank, size, local_rank, local_size, dist.group.WORLD, control)
    finally:
        dist.destroy_process_group()


def synchronize_batch_norm(network: nn.Module, world: World, device: torch.device) -> None:
    """Makes every BN layer of `network` take its statistics over the batches of all ranks.

    Does nothing for a world of one. The layers are changed in place and keep the names of their weights.
    """
    if world.group is None:
        return
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                if device.type == "cuda":
                    new = nn.SyncBatchNorm.convert_sync_batchnorm(child, world.group)
                else:
                    new = _CpuSyncBatchNorm(child, world)
                setattr(parent, name, new)


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        total = tensor.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _SumOverRanks.apply(gradient.contiguous(), ctx.group), None


class _CpuSyncBatchNorm(nn.Module):
    """What torch's SyncBatchNorm is on GPUs, for CPUs, which it refuses; in float32 within."""

    def __init__(self, replaced: nn.modules.batchnorm._BatchNorm, world: World) -> None:
        super().__init__()
        assert world.group is not None
        self.weight, self.bias = replaced.weight, replaced.bias
        self.momentum, self.eps = replaced.momentum, replaced.eps
        self.group: dist.ProcessGroup = world.group
        for name, buffer in replaced.named_buffers():
            self.register_buffer(name, buffer)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        axes = [axis for axis in range(x.ndim) if axis != 1]
        shape = [-1 if axis == 1 else 1 for axis in range(x.ndim)]
        values = x.float()
        count = _SumOverRanks.apply(values.new_tensor(values.numel() / values.shape[1]), self.group)
        mean = _SumOverRanks.apply(values.sum(axes), self.group) / count
        centred = values - mean.view(shape)
        variance = _SumOverRanks.apply(centred.square().sum(axes), self.group) / count
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * count / (count - 1), self.momentum)
        scale = self.weight * (variance + self.eps).rsqrt()
        return (centred * scale.view(shape) + self.bias.view(shape)).to(x.dtype)
