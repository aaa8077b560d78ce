"""Predict what a run needs, without a GPU and without memory: a training step on tensors with a
shape but no data.

The step is the real one (`Step`, `SiameseNetwork`, optimizer, the method in its form) on PyTorch's
fake tensors, for rank 0 of as many ranks as asked for, whose collectives do nothing. Every
allocation is counted while it lives, rounded up to the 512 bytes of PyTorch's CUDA allocator; the
peak is that of the second step, when the optimizer has its state. What is assumed:

- The views are on the device, in bf16 if that is the precision; the uint8 crops that they were made
  of are free again.
- DistributedDataParallel cannot run on fake tensors. Under it the gradients stay between steps,
  because `Step` only sets them to zero: they are there from the beginning, and autograd adds to
  them. They are views of DDP's buckets (`gradient_as_bucket_view`).
- SyncBatchNorm keeps what BatchNorm keeps.
- A teacher's passes count as forward, its activations only while its layers work.
- Workspaces of cuBLAS and cuDNN, the CUDA context (about 0.5 GB, outside the allocator) and what
  the allocator loses to fragmentation are not counted. Leave some 10 % free.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed import fake_pg
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.training.assembly import build_teacher, new_network, views_dtype
from regbench.benchmark.training.step import Step
from regbench.errors import RegbenchError
from regbench.methods import Engine
from regbench.methods.forms.pairwise import as_on

_ALLOCATION_BYTES = 512  # what the CUDA allocator rounds up to


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Memory and operations of one step of a run.

    Attributes:
        peak_bytes: Highest sum of live allocations on one GPU.
        parameters: Number of trained parameters.
        flop_per_step: FLOP of matrix products and convolutions, all ranks; one multiplication and
            addition is 2.
        sent_bytes_per_step: Bytes that one GPU sends to others, collectives as rings.
        checkpoint_bytes: Weights, buffers and the optimizer's state on disk.
    """

    peak_bytes: int
    parameters: int
    flop_per_step: int
    sent_bytes_per_step: int
    checkpoint_bytes: int


def predict(cell: Cell, *, world_size: int = 1, loss_form: str = "auto") -> Needs:
    """Predict what a training step of `cell` needs on each of `world_size` GPUs.

    Args:
        cell: The run; nothing of it is computed.
        world_size: GPUs that share the batch.
        loss_form: See `Engine`.

    Raises:
        RegbenchError: If the ranks cannot have equal parts of the batch, or the process is already
            one of several.
    """
    if world_size < 1 or cell.batch_size % world_size:
        raise RegbenchError(
            f"batch_size={cell.batch_size} cannot be shared equally by {world_size} GPUs; choose a "
            "multiple"
        )
    with (
        _ranks(world_size) as group,
        as_on("cuda"),
        FakeTensorMode(),
        Accounts(world_size) as accounts,
    ):
        network = new_network(cell)
        layers = list(network.modules())
        teacher = build_teacher(cell, network)
        if teacher is not None:
            layers += teacher.modules()
        for layer in layers:
            if group is not None and isinstance(layer, nn.modules.batchnorm._BatchNorm):
                layer.register_forward_hook(accounts.synchronize_statistics)
        parameters = list(network.parameters())
        optimizer = cell.optimizer.build_clipping(parameters)
        step = Step(
            network=network,
            optimizer=optimizer,
            method=cell.method,
            engine=Engine(form=loss_form, group=group, even=True),
            precision=cell.precision,
            global_views=cell.augmentation.global_views,
            micro_batch_size=cell.micro_batch_size and cell.micro_batch_size // world_size,
            labelled=cell.baseline if cell.is_supervised else None,
            is_asymmetric=cell.network.is_asymmetric,
            teacher=teacher,
        )
        images, channels = cell.batch_size // world_size, cell.dataset.input_channels
        sides_px = cell.augmentation.sizes_px(cell.dataset.image_size)
        dtype = views_dtype(cell)
        views = [torch.empty(images, channels, px, px, dtype=dtype) for px in sides_px]
        labels = [torch.empty(images, dtype=torch.int64)] if cell.is_supervised else []
        ddp_gradients = list(map(torch.zeros_like, parameters)) if group is not None else []
        # The first step makes the optimizer's state.
        for _ in range(2):
            for p, gradient in zip(parameters, ddp_gradients, strict=False):
                p.grad = gradient
            accounts.begin()
            step(*views, *labels)
        # The all-reduce of the gradients, which DDP would do in backward.
        accounts.all_reduce(_bytes(ddp_gradients))
        kept = [*network.state_dict().values(), *_tensors(optimizer.state)]
        if teacher is not None:
            kept += teacher.state_dict().values()
        return Needs(
            peak_bytes=accounts.peak_bytes,
            parameters=sum(p.numel() for p in parameters),
            flop_per_step=accounts.flop * world_size,
            sent_bytes_per_step=round(accounts.sent_bytes),
            checkpoint_bytes=_bytes(kept),
        )


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


@contextlib.contextmanager
def _ranks(world_size: int) -> Iterator[dist.ProcessGroup | None]:
    """Make this process rank 0 of `world_size` ranks; the others do not exist."""
    if world_size == 1:
        yield None
        return
    if dist.is_initialized():
        raise RegbenchError("this process is one of several already; plan in a process of its own")
    excepthook = sys.excepthook  # each init_process_group puts another "[rank0]: " before errors
    dist.init_process_group("fake", store=fake_pg.FakeStore(), rank=0, world_size=world_size)
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()
        sys.excepthook = excepthook


class Accounts(TorchDispatchMode):
    """Counts live storages, FLOP and bytes sent, of all that runs under it."""

    def __init__(self, world_size: int) -> None:
        """Count for one of `world_size` ranks."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._world_size = world_size
        self._sizes: dict[int, int] = {}
        self._live_bytes = 0
        self.begin()

    def begin(self) -> None:
        """Begin a step: forget all counts but those of live storages."""
        self.peak_bytes, self.flop, self.sent_bytes = 0, 0, 0.0

    def _free(self, key: int) -> None:
        self._live_bytes -= self._sizes.pop(key)

    def all_reduce(self, size: float) -> None:
        """Count an all-reduce of `size` bytes: in a ring, every rank sends 2 (P − 1)/P of them."""
        self.sent_bytes += 2 * (self._world_size - 1) / self._world_size * size

    def synchronize_statistics(
        self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor
    ) -> None:
        """Count what SyncBatchNorm sends, as a forward hook: mean, inverse deviation, count.

        In backward it sends two sums.
        """
        features = inputs[0].shape[1]
        # An all-gather: every rank sends its two vectors and the count, in float32, to each of the
        # others.
        self.sent_bytes += (self._world_size - 1) * 4 * (2 * features + 1)
        if torch.is_grad_enabled():
            self.all_reduce(4 * 2 * features)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count an operation and what it makes."""
        if func is torch.ops.aten._local_scalar_dense.default:
            # There are no data; any number will do, such as for a seed, and 0 drops no path.
            return 0
        out = func(*args, **(kwargs or {}))
        self._count_work(func, args, kwargs or {}, out)
        for tensor in _tensors(out):
            storage = tensor.untyped_storage()
            # A fake tensor has no address; its storage object identifies the allocation.
            key = id(storage)
            if key not in self._sizes:
                size = -(-storage.nbytes() // _ALLOCATION_BYTES) * _ALLOCATION_BYTES
                self._sizes[key] = size
                self._live_bytes += size
                # At the interpreter's end nobody asks any more what lives.
                weakref.finalize(storage, self._free, key).atexit = False
        self.peak_bytes = max(self.peak_bytes, self._live_bytes)
        return out

    def _count_work(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        name = func.overloadpacket.__name__
        if func.namespace == "c10d":
            size = _bytes(_tensors(args[0]))
            if name == "allreduce_":
                self.all_reduce(size)
            # In a ring each rank passes on all parts but one.
            elif name == "_allgather_base_":
                self.sent_bytes += (self._world_size - 1) / self._world_size * size
            elif name == "broadcast_":
                self.sent_bytes += size
        elif func.namespace == "aten":
            # An operation in place (addmm_) costs what the other (addmm) does; a CPU's attention
            # what a GPU's does.
            other = name.rstrip("_").replace("_for_cpu", "")
            formula = flop_registry.get(getattr(torch.ops.aten, other, None))
            if formula is not None:
                self.flop += formula(*args, **kwargs, out_val=out)
