"""The regularizer interface and the registry.

Shapes: N = images in the batch (n), Q = embedding dimension (q). `z1_NQ[i]` and `z2_NQ[i]` are the embeddings of
the two views of image i, as the projector gives them: a method that works on the sphere normalises them itself.
"""

from __future__ import annotations

import dataclasses
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from regbench import RegbenchError
from regbench.methods.engine import Engine, Shard
from regbench.plugins import Registry

LOCAL_ROWS = "torch.distributed is initialised and the loss was given no group"
"""How the warning begins that a loss sees this process's rows only."""


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """What a reader of a table wants to know of a method.

    Attributes:
        title: Display name.
        reference: Authors, venue and year of the publication; or "unpublished", and what else there is to say.
        url: Where to read it; may be empty if unpublished.
        formula: The loss in plain Unicode mathematics.
        time: Complexity of value and gradient in n and q.
        memory: Complexity of the memory beyond the embeddings and their gradient.
        published: The hyperparameters of the publication and what they were used on; the defaults are from there. If
            unpublished, where the defaults come from.
        limitation: What the original has that two views and a projector cannot give; empty if nothing.
        scale_invariant: Whether the lengths of the embeddings do not matter (methods on the sphere).
        rotation_invariant: Whether one rotation of all embeddings leaves the value as it is.
        symmetric: Whether the views can be exchanged.
        exact_gradient: Whether the gradient is the value's; not so where the publication stops it at a part.
        ordered: Whether, with aligned views, embeddings spread uniformly over the sphere cost less than a single point,
            and ones that fill half of its dimensions something in between.
    """

    title: str
    reference: str
    url: str
    formula: str
    time: str
    memory: str
    published: str
    limitation: str = ""
    scale_invariant: bool = False
    rotation_invariant: bool = False
    symmetric: bool = True
    exact_gradient: bool = True
    ordered: bool = True


class Loss(NamedTuple):
    """A loss and what it is made of.

    Attributes:
        total: The loss, a differentiable scalar.
        terms: Its addends by name, detached scalars.
    """

    total: Tensor
    terms: dict[str, Tensor]


class Regularizer(ABC):
    """A loss on the embeddings of two views: alignment plus what keeps the network from collapsing.

    A subclass is a frozen keyword-only dataclass of its hyperparameters, decorated by `register`. It states
    `metadata` and implements `terms`; everything else (fp32, checks, many ranks, configuration, tests, cost, table
    rows) is done for it. One with a cheaper way to the same numbers also implements `value_and_gradient` and names
    the forms that it has.
    """

    metadata: ClassVar[Metadata]
    random: ClassVar[bool] = False
    """Whether `terms` draws from torch's CPU generator. All ranks draw the same then, those of the first rank."""

    @abstractmethod
    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """The weighted addends of the loss, by name: the published formula, in plain differentiable PyTorch.

        Args:
            z1_NQ: Embeddings of the first views of the whole batch, shape (n, q), float32 or float64.
            z2_NQ: Embeddings of the second views, same shape and dtype.

        Returns:
            Scalars whose sum is the loss. A constant (such as a Gram matrix's diagonal) is an addend of its own,
            so that curves show what moves.
        """

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms that the loss can be computed in, see `Engine`."""
        return ("textbook",)

    def value_and_gradient(
        self, z1_NQ: Tensor, z2_NQ: Tensor, shard: Shard, form: str
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """The addends and their sum's gradients, without a graph; here the textbook form by autograd.

        A method with other forms overrides this and is asked for those only.

        Args:
            z1_NQ: This rank's embeddings of the first views, shape (n_rank, q), float32 or float64.
            z2_NQ: The second views, same shape and dtype.
            shard: The ranks that share the batch.
            form: One of `forms`.

        Returns:
            The addends over the whole batch, and the gradients of their sum with respect to this rank's rows.
        """
        z1_NQ, z2_NQ = (shard.gather(z_NQ).requires_grad_() for z_NQ in (z1_NQ.detach(), z2_NQ.detach()))
        with torch.enable_grad():
            terms = self.terms(z1_NQ, z2_NQ)
            total = torch.stack(list(terms.values())).sum()
        gradients = torch.autograd.grad(total, [z1_NQ, z2_NQ], materialize_grads=True)
        gradient1_NQ, gradient2_NQ = (gradient_NQ[shard.rows] for gradient_NQ in gradients)
        return {name: term.detach() for name, term in terms.items()}, gradient1_NQ, gradient2_NQ

    @property
    def label(self) -> str:
        """The name in tables and figures; the hyperparameters are not in it unless they make another method."""
        return self.metadata.title

    def __call__(self, z1_NQ: Tensor, z2_NQ: Tensor, engine: Engine = Engine()) -> Loss:  # noqa: B008  # frozen
        """The loss in at least float32, whatever the autocast.

        Unscaled half-precision Gram matrices cost up to 12 % of the gradient, so none are made. Except in the form
        `textbook`, the gradient is computed with the value and kept until backward, which only scales it.

        Args:
            z1_NQ: Embeddings of the first views, shape (n, q), any floating dtype; with several ranks this rank's rows.
            z2_NQ: Embeddings of the second views, shape (n, q).
            engine: Form and ranks.

        Returns:
            Total and addends: scalars, float64 if the embeddings are, else float32.

        Raises:
            RegbenchError: If the embeddings are no floating-point tensors, the shapes differ, are not (n, q), or n < 2
                over all ranks; if the method lacks the form;
                in backward, if a second derivative is asked of a streamed form.
        """
        for z_NQ in (z1_NQ, z2_NQ):
            if not isinstance(z_NQ, Tensor) or not z_NQ.is_floating_point():
                what = z_NQ.dtype if isinstance(z_NQ, Tensor) else type(z_NQ).__name__
                raise RegbenchError(f"{self.label}: embeddings must be tensors of real numbers, not {what}")
        if z1_NQ.shape != z2_NQ.shape or z1_NQ.ndim != 2 or (engine.group is None and len(z1_NQ) < 2):
            raise RegbenchError(
                f"{self.label}: embeddings must be two (n, q) tensors of one shape with n >= 2, "
                f"not {tuple(z1_NQ.shape)} and {tuple(z2_NQ.shape)}"
            )
        if engine.form not in ("auto", *self.forms):
            raise RegbenchError(f"{self.label} has no {engine.form} form; it has {', '.join(self.forms)}")
        if engine.group is None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            _warn_of_local_rows()
        dtype = torch.float64 if z1_NQ.dtype == torch.float64 else torch.float32
        with torch.autocast(z1_NQ.device.type, enabled=False):
            if engine.form == "textbook":
                shard = Shard.of(z1_NQ, engine)
                z1_NQ, z2_NQ = (shard.gather_with_gradient(z_NQ.to(dtype)) for z_NQ in (z1_NQ, z2_NQ))
                with self._drawing(shard):
                    terms = self.terms(z1_NQ, z2_NQ)
                total = torch.stack(list(terms.values())).sum()
                return Loss(total, {name: term.detach() for name, term in terms.items()})
            eager = self._eager
            if torch.compiler.is_compiling():
                # The streamed loops are made of few large operations: nothing to compile, and unrolling takes minutes.
                # A decorator would import the compiler into every process.
                eager = torch.compiler.disable(eager)
            return eager(z1_NQ, z2_NQ, engine, dtype)

    def loss(self, z1_NQ: Tensor, z2_NQ: Tensor, engine: Engine = Engine()) -> Tensor:  # noqa: B008  # frozen
        """The total alone: a differentiable scalar."""
        return self(z1_NQ, z2_NQ, engine).total

    def _eager(self, z1_NQ: Tensor, z2_NQ: Tensor, engine: Engine, dtype: torch.dtype) -> Loss:
        terms: dict[str, Tensor] = {}
        total: Tensor = _Eager.apply(z1_NQ, z2_NQ, self, engine, dtype, terms)
        return Loss(total, terms)

    def form_at(self, form: str, n: int, q: int) -> str:
        """Tell what a form stands for at a batch of n and q dimensions: `auto` for the cheapest there is."""
        if form != "auto":
            return form
        streamed = [form for form in self.forms if form != "textbook"]
        if len(streamed) == 2:
            return "covariance" if q < n else "gram"
        return streamed[0] if streamed else "textbook"

    @contextmanager
    def _drawing(self, shard: Shard) -> Iterator[None]:
        """Lets a random method draw the same numbers on every rank, and takes one number of the caller's stream."""
        if not self.random:
            yield
            return
        seed = torch.randint(2**62, ())
        if shard.group is not None:
            on_device = seed.to("cuda") if dist.get_backend(shard.group) == "nccl" else seed
            dist.broadcast(on_device, dist.get_global_rank(shard.group, 0), group=shard.group)
            seed = on_device.cpu()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(seed))
            yield

    def require(self, condition: bool, what: str) -> None:
        """Refuses a hyperparameter.

        Raises:
            RegbenchError: Unless `condition` holds, naming the method and `what` must hold.
        """
        if not condition:
            values = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self))  # type: ignore[arg-type]
            raise RegbenchError(f"{self.metadata.title}: {what} (got {values})")


@cache
def _warn_of_local_rows() -> None:
    warnings.warn(
        f"{LOCAL_ROWS}: of each process's own rows, not of the batch that the {dist.get_world_size()} processes share. "
        "Give the group, loss(z1, z2, methods.Engine(group=torch.distributed.group.WORLD)), or ignore this warning if "
        "that is what you want",
        stacklevel=4,
    )


class _Eager(torch.autograd.Function):
    """A loss whose gradient is computed with its value."""

    @staticmethod
    def forward(
        ctx: Any,
        z1_NQ: Tensor,
        z2_NQ: Tensor,
        method: Regularizer,
        engine: Engine,
        dtype: torch.dtype,
        out: dict[str, Tensor],
    ) -> Tensor:
        shard = Shard.of(z1_NQ, engine)
        if shard.n < 2:
            raise RegbenchError(f"{method.label}: embeddings must have n >= 2 rows over all ranks, not {shard.n}")
        form = method.form_at(engine.form, shard.n, z1_NQ.shape[1])
        with method._drawing(shard):
            owner = Regularizer if form == "textbook" else type(method)
            terms, *gradients_NQ = owner.value_and_gradient(method, z1_NQ.to(dtype), z2_NQ.to(dtype), shard, form)
        out.update({name: term.to(dtype) for name, term in terms.items()})
        if shard.world > 1:
            for gradient_NQ in gradients_NQ:
                gradient_NQ.mul_(shard.world)  # DistributedDataParallel takes the mean over ranks
        ctx.save_for_backward(*gradients_NQ)
        ctx.dtype, ctx.label = z1_NQ.dtype, method.label
        return torch.stack(list(terms.values())).sum().to(dtype)

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RegbenchError(
                f"{ctx.label}: the streamed loss has no second derivative; "
                'give engine=Engine(form="textbook") to differentiate twice'
            )
        (scale,) = outputs
        # In place unless backward may come again: the scaled copy would be the largest scratch of all.
        keep = torch._C._autograd._get_current_graph_task_keep_graph()
        gradients_NQ = [g_NQ * scale if keep else g_NQ.mul_(scale) for g_NQ in ctx.saved_tensors]
        return *(gradient_NQ.to(ctx.dtype) for gradient_NQ in gradients_NQ), None, None, None, None


METHODS: Registry[Regularizer] = Registry("method", "regbench.methods", "regbench.methods")
"""The regularizers there are, presets included."""

register = METHODS.register
