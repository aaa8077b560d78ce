"""Choose how a regularizer is computed: in which form, and over which ranks.

Shapes: N = rows of the batch (n over all ranks, fewer on each), Q = embedding dimension (q).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regbench.errors import RegbenchError

# torch renamed it; the old name warns in the releases that have the new one.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

FORMS = ("auto", "gram", "covariance", "powers", "textbook")

LOCAL_ROWS = "torch.distributed is initialised and the loss was given no group"
"""Beginning of the warning that a loss sees this process's rows only."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """The way to compute a loss.

    Values and gradients are the same for every choice, up to rounding.

    Attributes:
        form: `textbook` is the published formula under plain autograd, with every n × n or q × q
            tensor it makes; `gram` streams over blocks of the Gram matrix, O(n² q); `covariance`
            goes through a q × q matrix, O(n q²); `powers` computes e^{itx} of projections x at all
            frequencies t as powers of that at the first; `auto` takes the cheaper of the streamed
            forms that the method has.
        group: The processes that share the batch, each holding its own rows; None for a single
            process (where there are several, a warning says that each one's loss is that of its own
            rows). The value is that of the whole batch on every rank, and gradients are multiplied
            by the number of ranks, so that the mean that DistributedDataParallel takes is the
            gradient of the whole batch.
        even: Whether all ranks are known to hold equally many rows. Then they need not ask each
            other, which would make a GPU wait.
        draw_seed: Function that gives the seed of a random method's draws: the same on all ranks,
            another in each step. None: the seed is a number from torch's CPU generator on the first
            rank, which makes a GPU wait if there are several ranks.
        compile: Whether torch.compile builds functions of single pairs, such as a kernel with its
            derivative: one pass over a panel of the Gram matrix in place of many. The first call
            then takes some ten seconds.

    Raises:
        RegbenchError: If `form` is none of these.
    """

    form: str = "auto"
    group: dist.ProcessGroup | None = None
    even: bool = False
    draw_seed: Callable[[], int] | None = None
    compile: bool = False

    def __post_init__(self) -> None:
        """Refuse unknown forms."""
        if self.form not in FORMS:
            raise RegbenchError(f"unknown form {self.form!r}; choose {', '.join(FORMS)}")


@dataclass(frozen=True)
class Shard:
    """One rank's rows of a batch, and what it has to know of the others.

    Attributes:
        sizes: Rows on each rank.
        rank: This rank.
        group: The processes, or None for one.
        n: Rows of all ranks.
    """

    sizes: Sequence[int]
    rank: int = 0
    group: dist.ProcessGroup | None = None
    n: int = field(init=False)

    def __post_init__(self) -> None:
        """Sum the rows of all ranks."""
        object.__setattr__(self, "n", sum(self.sizes))

    @staticmethod
    def of_loss(z_NQ: Tensor, engine: Engine, label: str) -> Shard:
        """Find the share of this rank, see `of`, for the loss called `label`.

        Raises:
            RegbenchError: If n < 2 over all ranks.
        """
        shard = Shard.of(z_NQ, engine)
        if shard.n < 2:
            raise RegbenchError(
                f"{label}: embeddings must have n >= 2 rows over all ranks, not {shard.n}"
            )
        return shard

    @staticmethod
    def of(z_NQ: Tensor, engine: Engine) -> Shard:
        """Find the share of this rank, whose rows are `z_NQ`.

        Ranks may have different numbers of rows.
        """
        group = engine.group
        if group is None or dist.get_world_size(group) == 1:
            return Shard([len(z_NQ)])
        sizes = [len(z_NQ)] * dist.get_world_size(group)
        if not engine.even:
            size = torch.tensor([len(z_NQ)], device=z_NQ.device)
            gathered = size.new_empty(len(sizes))
            all_gather(gathered, size, group=group)
            sizes = gathered.tolist()
        return Shard(sizes, dist.get_rank(group), group)

    @property
    def world(self) -> int:
        """The number of ranks."""
        return len(self.sizes)

    @property
    def rows(self) -> slice:
        """Slice of the whole batch that holds this rank's rows."""
        start = sum(self.sizes[: self.rank])
        return slice(start, start + self.sizes[self.rank])

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum over ranks, in place."""
        if self.group is not None:
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def gather(self, local: Tensor) -> Tensor:
        """Gather the rows of all ranks in order, shape (n, …), without a gradient."""
        return local.detach() if self.group is None else self._start_gather(local)()

    def _start_gather(self, local: Tensor) -> Callable[[], Tensor]:
        """Start to gather.

        The function that is returned waits for the end and gives the rows of all ranks.
        """
        # Every backend gathers equal shapes; only batches of uneven length pay for copies.
        longest = max(self.sizes)
        if len(local) == longest:
            padded = local.detach().contiguous()
        else:
            padded = local.new_zeros(longest, *local.shape[1:])
            padded[: len(local)] = local
        gathered = padded.new_empty(self.world * longest, *local.shape[1:])
        work: Any = all_gather(gathered, padded, group=self.group, async_op=True)

        def finish() -> Tensor:
            work.wait()
            if min(self.sizes) == longest:
                return gathered
            of_ranks = zip(gathered.split(longest), self.sizes, strict=True)
            return torch.cat([rows[:size] for rows, size in of_ranks])

        return finish

    def others(self, *local: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Start to gather the tensors `local`; the iterator gives those of the ranks after this
        one, then before it.

        They travel while the caller works on its own rows.
        """
        if self.group is None:
            return iter(())
        return self._gathered([self._start_gather(tensor) for tensor in local])

    def _gathered(self, pending: Sequence[Callable[[], Tensor]]) -> Iterator[tuple[Tensor, ...]]:
        gathered = [finish() for finish in pending]
        # Two slices share the gathered memory. One tensor of all others would be a copy of nearly
        # the whole batch.
        for rows in (slice(self.rows.stop, self.n), slice(0, self.rows.start)):
            if rows.start < rows.stop:
                yield tuple(tensor[rows] for tensor in gathered)

    def gather_with_gradient(self, local_NQ: Tensor) -> Tensor:
        """Gather the rows of all ranks; backward hands this rank its own rows' gradient, times the
        number of ranks.

        Nothing is communicated backward: every rank computes the whole loss, so its gradient for
        its own rows is complete. Letting gradients of the gather be summed or dropped instead gives
        results off by the number of ranks.
        """
        if self.group is None:
            return local_NQ
        gathered: Tensor = _Gather.apply(local_NQ, self)
        return gathered


def mean_over_ranks(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Take the mean over ranks, in place."""
    if group is not None:
        dist.all_reduce(tensor, group=group)
        tensor /= dist.get_world_size(group)
    return tensor


@contextmanager
def drawing(random: bool, shard: Shard, engine: Engine, device: torch.device) -> Iterator[None]:
    """Let a random method draw the same numbers on every rank; the caller's generators stay as they
    are.

    Unless the engine gives the seed, one number of the caller's stream is taken for it.

    Args:
        random: Whether the method draws; else nothing changes.
        shard: The ranks that share the batch.
        engine: Engine that may give the seed.
        device: The device whose generator the method draws from.
    """
    if not random:
        yield
        return
    seed = engine.draw_seed() if engine.draw_seed else _first_ranks_seed(shard, device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        # torch.manual_seed would also seed GPUs of others, whose generators are not put back.
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.default_generators[device.index].manual_seed(seed)
        yield


def _first_ranks_seed(shard: Shard, device: torch.device) -> int:
    seed = torch.randint(2**62, ())
    if shard.group is not None:
        # NCCL sends what lies on a GPU only.
        on_device = seed.to(device) if dist.get_backend(shard.group) == "nccl" else seed
        dist.broadcast(on_device, dist.get_global_rank(shard.group, 0), group=shard.group)
        seed = on_device.cpu()
    return int(seed)


@cache  # once per process, not once per step
def warn_of_local_rows() -> None:
    """Warn that a loss is that of this process's rows, though several processes run."""
    warnings.warn(
        f"{LOCAL_ROWS}: of each process's own rows, not of the batch that the "
        f"{dist.get_world_size()} processes share. Give the group, loss(z1, z2, "
        "engine=methods.Engine(group=torch.distributed.group.WORLD)), or ignore this warning if "
        "that is what you want",
        stacklevel=4,  # the line of the user, who called `loss`
    )


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local_NQ: Tensor, shard: Shard) -> Tensor:
        ctx.shard = shard
        return shard.gather(local_NQ)

    @staticmethod
    def backward(ctx: Any, gradient_NQ: Tensor) -> tuple[Tensor, None]:
        shard: Shard = ctx.shard
        return gradient_NQ[shard.rows] * shard.world, None
