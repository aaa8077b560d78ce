"""The regularizer interface and the registry.

Shapes: N = images in the batch (n), Q = embedding dimension (q). `views_NQ[v][i]` is the embedding
of view v of image i, as the projector gives it: a method that works on the sphere normalises it
itself. An image has V views, of which the first G are global: they show most of it. Two views, both
global, are the usual case.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from regbench.errors import RegbenchError
from regbench.methods.forms.engine import Engine, Shard, drawing, warn_of_local_rows
from regbench.methods.forms.gradients import WithGradients, differentiate, named
from regbench.methods.forms.pairwise import fusing
from regbench.methods.forms.views import pairs
from regbench.plugins import Registry
from regbench.spaces import Space

PrototypeWeights = Literal["uniform", "unit", "normal"]
"""How prototypes (K, q) are initialised and kept.

- `uniform`: numbers between −1/√q and 1/√q, as in torch's linear layer: a length of about 0.58.
- `unit`: the same, rescaled to length 1 at the start and after each step.
- `normal`: standard normal numbers, a length of about √q, as in cells from before there was a
  choice.

Except with `unit`, scores depend on directions alone. The longer a prototype is, the less a step of
AdamW or SGD turns it; LARS turns all alike.
"""


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """Facts that a reader of a table wants to know about a method.

    Attributes:
        title: Display name.
        reference: Authors, venue and year of the publication; or "unpublished", and what else there
            is to say.
        url: Address of the publication; may be empty if unpublished.
        formula: The loss in plain Unicode mathematics, for terminals.
        latex: The same in LaTeX, for pages; if empty, they show `formula`.
        time: Complexity of value and gradient in n and q.
        memory: Complexity of the memory beyond the embeddings and their gradient.
        published: The hyperparameters of the publication and what they were used on; the defaults
            are from there. If unpublished, where the defaults come from.
        views: Source of the loss of more than two views; empty if it is this benchmark's.
        limitation: Parts of the original that views and a projector cannot give; empty if none.
        scale_invariant: Whether the lengths of the embeddings do not matter (methods on the
            sphere).
        rotation_invariant: Whether one rotation of all embeddings leaves the value as it is.
        symmetric: Whether the views can be exchanged.
        exact_gradient: Whether the gradient is that of the value; false if the publication stops
            the gradient of a part.
        ordered: Whether, with aligned views, embeddings spread uniformly over the sphere cost less
            than a single point, and ones that fill half of its dimensions something in between.
    """

    title: str
    reference: str
    url: str
    formula: str
    time: str
    memory: str
    published: str
    latex: str = ""
    views: str = ""
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
        terms: Addends by name, detached scalars.
    """

    total: Tensor
    terms: dict[str, Tensor]


class NotComputable(RegbenchError):
    """The refusal of numbers that give no result: a matrix cannot be factorised, or a number is
    beyond the range of float32.
    """


@contextmanager
def numerical_failures(label: str) -> Iterator[None]:
    """Raise torch's errors about numbers that give no result as `NotComputable`, naming `label`."""
    try:
        yield
    except RuntimeError as error:
        failed = isinstance(error, torch.linalg.LinAlgError)  # type: ignore[attr-defined]
        if not failed and "without overflow" not in str(error):
            raise
        raise NotComputable(
            f"{label} cannot be computed: {str(error).splitlines()[0]}; look for NaN, infinite or "
            "very large values"
        ) from error


class Regularizer(ABC):
    """A loss on the embeddings of an image's views: alignment plus what keeps the network from
    collapsing.

    A subclass is made a frozen dataclass of its hyperparameters by `regbench.settings.settings`,
    which refuses what their annotations do not allow, and is decorated by `register`.
    It states `metadata` and implements `terms` for two views; everything else (more views, fp32,
    checks, many ranks, configuration, tests, cost, table rows) is done for it. With more views the
    loss is the mean of the two-view loss over the pairs of a global view and another one. A method
    that is alignment plus a regularizer of each view is a `Decomposed`; one with a formula of its
    own for V views is a `Native`.

    A method with a cheaper way to the same numbers also implements `pair_value_and_gradient` and
    names the forms that it has.
    """

    metadata: ClassVar[Metadata]
    kind: ClassVar[str] = "pairwise"
    """Way of handling more than two views: `pairwise`, `decomposed` or `native`."""
    random: ClassVar[bool] = False
    """Whether `terms` draws from torch's generator of the embeddings' device.

    All ranks then draw the same numbers, if their GPUs are of one model.
    """
    needs: ClassVar[tuple[str, ...]] = ()
    """Parts that keep the network from collapsing if the loss does not: `predictor`,
    `stop_gradient` or `ema`.
    """
    of_training: ClassVar[tuple[str, ...]] = ()
    """Settings that only act in a training with a teacher, see `target_transform`, and not at
    their default, 0.
    """
    absent: ClassVar[Mapping[str, Any]] = {}
    """Settings that were added later, with the value that older cells have.

    Cells leave out a setting at this value, so that older cells keep their ids. A stored cell
    without the setting has this value, not the default.
    """
    has_code: ClassVar[bool] = True
    """Whether this process can compute it.

    False for a stand-in for the loss of an untrusted file.
    """
    revision: ClassVar[int] = 1
    """Number that rises when last digits of a value or a gradient change. Records state it."""
    least_dim: ClassVar[int] = 1
    """Smallest dimension of embeddings for which the formula has a value."""
    space: ClassVar[Space | None] = None
    """The hyperparameters that a tuning searches, with their ranges; if empty, there are none.

    None means that nobody stated it.
    """

    @abstractmethod
    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """Compute the weighted addends of the loss of two views: the published formula, in plain
        differentiable torch.

        Args:
            z1_NQ: Embeddings of the first views of the whole batch, shape (n, q), float32 or
                float64.
            z2_NQ: Embeddings of the second views, same shape and dtype.

        Returns:
            Scalars by name, whose sum is the loss. A constant (such as a Gram matrix's diagonal) is
            an addend of its own, so that curves show what moves.
        """

    def view_terms(self, views_NQ: Sequence[Tensor], global_views: int) -> dict[str, Tensor]:
        """Compute the addends of the loss of V views, in plain differentiable torch.

        Args:
            views_NQ: Embeddings of each view, shape (n, q), the global ones first.
            global_views: G.
        """
        total: dict[str, Tensor] = {}
        for g, v, share in pairs(len(views_NQ), global_views):
            _add(total, self.terms(views_NQ[g], views_NQ[v]), share)
        return total

    @property
    def prototypes(self) -> int:
        """Number of the network's prototypes.

        Their scores, (n, prototypes), take the place of the embeddings. 0: there are none.
        """
        return 0

    @property
    def prototype_weights(self) -> PrototypeWeights:
        """How the network's prototypes are initialised and kept."""
        return "uniform"

    def target_transform(self, q: int) -> nn.Module | None:
        """Make the module that has a state or follows the training, such as DINO's `Centering`;
        None if there is none.

        It acts beside a teacher only: a method that always has one names a teacher in `needs`. The
        module maps the teacher's embeddings of this rank, the predictions, the share of the
        training that is done, and the ranks to the loss of this step and its targets.

        Args:
            q: Width of the embeddings.
        """
        return None

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms that the loss can be computed in, see `Engine`."""
        return ("textbook",)

    def value_and_gradient(
        self, views_NQ: Sequence[Tensor], global_views: int, shard: Shard, form: str
    ) -> tuple[dict[str, Tensor], list[Tensor]]:
        """Compute the addends and their sum's gradients, without a graph, a pair of views at a
        time.

        Args:
            views_NQ: This rank's embeddings of each view, shape (n_rank, q), float32 or float64.
            global_views: G.
            shard: The ranks that share the batch.
            form: One of `forms`.

        Returns:
            The addends over the whole batch, and the gradients of their sum with respect to this
            rank's rows.
        """
        total: dict[str, Tensor] = {}
        gradients_NQ: dict[int, Tensor] = {}
        for g, v, share in pairs(len(views_NQ), global_views):
            terms, *pair_NQ = self.pair_value_and_gradient(views_NQ[g], views_NQ[v], shard, form)
            _add(total, terms, share)
            for view, gradient_NQ in zip((g, v), pair_NQ, strict=True):
                if view in gradients_NQ:
                    gradients_NQ[view].add_(gradient_NQ, alpha=share)
                else:
                    # The first pair's gradient serves as the buffer, so that no zeros have to be
                    # made.
                    gradients_NQ[view] = gradient_NQ.mul_(share)
        return total, [gradients_NQ[view] for view in range(len(views_NQ))]

    def pair_value_and_gradient(
        self, z1_NQ: Tensor, z2_NQ: Tensor, shard: Shard, form: str
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Compute what `value_and_gradient` returns for two views; here in the textbook form, by
        autograd.

        A method with other forms overrides this, which is then called for those only.

        Args:
            z1_NQ: This rank's embeddings of the first views, shape (n_rank, q), float32 or float64.
            z2_NQ: The second views, same shape and dtype.
            shard: The ranks that share the batch.
            form: One of `forms`.
        """
        terms, (gradient1_NQ, gradient2_NQ) = differentiate(
            lambda views: self.terms(*views), (z1_NQ, z2_NQ), shard
        )
        return terms, gradient1_NQ, gradient2_NQ

    def __post_init__(self) -> None:  # noqa: B027  # methods call it, and few override it
        """Refuse settings that do not fit together; here none.

        A method that has such settings overrides this and calls it.
        """

    @property
    def label(self) -> str:
        """The name in tables and figures.

        The hyperparameters are not in it unless they make another method.
        """
        return self.metadata.title

    def __call__(
        self,
        *views_NQ: Tensor,
        engine: Engine = Engine(),  # noqa: B008  # frozen
        global_views: int | None = None,
    ) -> Loss:
        """Compute the loss in at least float32, whatever the autocast.

        Unscaled half-precision Gram matrices cost up to 12 % of the gradient, so none are made.
        Except in the form `textbook`, the gradient is computed with the value and kept until
        backward, which only scales it.

        Args:
            *views_NQ: Embeddings of each view, two at least, the global ones first: shape (n, q),
                any floating dtype; with several ranks this rank's rows.
            engine: Form and ranks.
            global_views: Number of global views; by default all.

        Returns:
            Total and addends: scalars, float64 if the embeddings are, else float32.

        Raises:
            RegbenchError: If the embeddings are no floating-point tensors, fewer than two, the
                shapes differ, are not (n, q), q < `least_dim`, or n < 2 over all ranks; if there
                are fewer than `global_views`; if the method lacks the form; in backward, if a
                second derivative is asked of a streamed form.
            NotComputable: If a matrix cannot be factorised, as with embeddings that are not finite.
                Most losses are then NaN or infinite.
        """
        count = len(views_NQ)
        global_views = count if global_views is None else global_views
        self._check(views_NQ, engine, global_views)
        if engine.group is None and _several_processes():
            warn_of_local_rows()
        dtype = torch.float64 if views_NQ[0].dtype == torch.float64 else torch.float32
        kind = views_NQ[0].device.type
        # A cast of the inputs would not do: autocast would still round the factors of every matrix
        # product.
        has_autocast = torch.amp.is_autocast_available(kind)
        autocast = torch.autocast(kind, enabled=False) if has_autocast else nullcontext()
        with autocast, numerical_failures(self.label):
            if engine.form == "textbook":
                shard = Shard.of_loss(views_NQ[0], engine, self.label)
                gathered_NQ = [shard.gather_with_gradient(z_NQ.to(dtype)) for z_NQ in views_NQ]
                with drawing(self.random, shard, engine, views_NQ[0].device):
                    terms = named(self.view_terms(gathered_NQ, global_views))
                total = torch.stack(list(terms.values())).sum()
                return Loss(total, {name: term.detach() for name, term in terms.items()})
            eager = self._eager
            if torch.compiler.is_compiling():
                # The streamed loops are made of few large operations: nothing to compile, and
                # unrolling takes minutes. A decorator would import the compiler into every process.
                eager = torch.compiler.disable(eager)
            return eager(views_NQ, engine, global_views, dtype)

    def _check(self, views_NQ: Sequence[Tensor], engine: Engine, global_views: int) -> None:
        for z_NQ in views_NQ:
            if not isinstance(z_NQ, Tensor) or not z_NQ.is_floating_point():
                what = z_NQ.dtype if isinstance(z_NQ, Tensor) else type(z_NQ).__name__
                raise RegbenchError(
                    f"{self.label}: embeddings must be tensors of real numbers, not {what}"
                )
        shapes = {tuple(z_NQ.shape) for z_NQ in views_NQ}
        # A rank among several may have a single row; `Shard.of_loss` refuses n < 2 once it knows
        # their sum.
        lone = engine.group is None and any(shape[0] < 2 for shape in shapes if shape)
        wrong = len(views_NQ) < 2 or len(shapes) > 1 or views_NQ[0].ndim != 2
        if wrong or lone or views_NQ[0].shape[1] < self.least_dim:
            raise RegbenchError(
                f"{self.label}: embeddings must be two or more (n, q) tensors of one shape with n "
                f">= 2 and q >= {self.least_dim}, not "
                f"{' and '.join(str(tuple(z_NQ.shape)) for z_NQ in views_NQ) or 'none'}"
            )
        if not 1 <= global_views <= len(views_NQ):
            raise RegbenchError(
                f"{self.label}: global_views={global_views} of {len(views_NQ)} views; give 1 or "
                "more"
            )
        if engine.form not in ("auto", *self.forms):
            raise RegbenchError(
                f"{self.label} has no {engine.form} form; it has {', '.join(self.forms)}"
            )

    def loss(
        self,
        *views_NQ: Tensor,
        engine: Engine = Engine(),  # noqa: B008  # frozen
        global_views: int | None = None,
    ) -> Tensor:
        """Compute the total alone: a differentiable scalar; arguments as for a call."""
        return self(*views_NQ, engine=engine, global_views=global_views).total

    def module(self, *, form: str = "auto") -> LossModule:
        """Make a `torch.nn.Module` of the loss, see `LossModule`.

        Raises:
            RegbenchError: If there is no such form.
        """
        return LossModule(self, form=form)

    def _eager(
        self, views_NQ: Sequence[Tensor], engine: Engine, global_views: int, dtype: torch.dtype
    ) -> Loss:
        if torch.is_inference_mode_enabled() or any(z_NQ.is_inference() for z_NQ in views_NQ):
            # Streamed forms compute the gradient with the value, which tensors of inference mode do
            # not allow.
            with torch.inference_mode(False), torch.no_grad():
                return self._eager([z_NQ.clone() for z_NQ in views_NQ], engine, global_views, dtype)
        shard = Shard.of_loss(views_NQ[0], engine, self.label)
        form = self.form_at(engine.form, shard.n, views_NQ[0].shape[1])
        own_NQ = [z_NQ.detach().to(dtype) for z_NQ in views_NQ]
        draws = drawing(self.random, shard, engine, views_NQ[0].device)
        with torch.no_grad(), draws, fusing(engine.compile):
            terms, gradients_NQ = self.value_and_gradient(own_NQ, global_views, shard, form)
        if shard.world > 1:
            for gradient_NQ in gradients_NQ:
                gradient_NQ.mul_(shard.world)  # DistributedDataParallel takes the mean over ranks
        total = torch.stack(list(terms.values())).sum().to(dtype)
        kept: Tensor = WithGradients.apply(total, gradients_NQ, self.label, *views_NQ)
        return Loss(kept, {name: term.to(dtype) for name, term in terms.items()})

    def form_at(self, form: str, n: int, q: int) -> str:
        """Return the form to compute with, at a batch of n and q dimensions: for `auto` the
        cheapest there is.
        """
        if form != "auto":
            return form
        streamed = [form for form in self.forms if form != "textbook"]
        # The forms take about 4 n q² and 3 n² q FLOP (`quadratic_energy`, `energy`), so the smaller
        # side decides.
        if len(streamed) == 2:
            return "covariance" if q < n else "gram"
        return streamed[0] if streamed else "textbook"

    def require(self, condition: bool, what: str) -> None:
        """Refuse hyperparameters that do not fit together; `__post_init__` calls this.

        Raises:
            RegbenchError: Unless `condition` holds; it names the method and `what` must hold.
        """
        if not condition:
            raise RegbenchError(f"{self.metadata.title}: {what} (got {self})")


class Native(Regularizer):
    """A method whose publication gives the loss of V views; two views are a case of it.

    A subclass implements `view_terms`.
    """

    kind = "native"

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """Compute the addends of the loss of two global views, see `view_terms`."""
        return self.view_terms((z1_NQ, z2_NQ), 2)

    @abstractmethod
    def view_terms(self, views_NQ: Sequence[Tensor], global_views: int) -> dict[str, Tensor]:
        """Compute the addends of the loss of V views: the published formula, in plain
        differentiable torch.
        """

    def value_and_gradient(
        self, views_NQ: Sequence[Tensor], global_views: int, shard: Shard, form: str
    ) -> tuple[dict[str, Tensor], list[Tensor]]:
        """Compute the textbook form by autograd, see `Regularizer.value_and_gradient`."""
        return differentiate(lambda views: self.view_terms(views, global_views), views_NQ, shard)


class LossModule(nn.Module):
    """The total of a regularizer's loss: `loss = methods.build("vicreg").module()`, then `loss(z1,
    z2).backward()`.

    It has neither parameters nor a state: its `state_dict` is empty, and it can be copied, pickled
    and moved. Its addends by name, for a log, are `loss.method(z1, z2).terms`.

    Where torch.distributed has several processes, they share the batch: all of them call it, each
    with its own images, and the gradient is right for the mean that DistributedDataParallel takes.
    For the loss of one process's images alone, call the regularizer itself.

    Attributes:
        method: The regularizer, with its hyperparameters.
        form: See `Engine`.
    """

    def __init__(self, method: Regularizer, *, form: str = "auto") -> None:
        """See the class for the arguments.

        Raises:
            RegbenchError: If there is no such form.
        """
        super().__init__()
        self.method, self.form = method, Engine(form=form).form

    def forward(self, *views_NQ: Tensor, global_views: int | None = None) -> Tensor:
        """Compute the loss, a scalar; arguments as for a call of the regularizer."""
        several = _several_processes()
        # A group can be neither copied nor pickled, so each call looks it up.
        engine = Engine(form=self.form, group=dist.group.WORLD if several else None)
        return self.method.loss(*views_NQ, engine=engine, global_views=global_views)

    def extra_repr(self) -> str:
        """Show the regularizer with its hyperparameters, and the form."""
        return f"{self.method}, form={self.form!r}"


def _several_processes() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _add(total: dict[str, Tensor], terms: dict[str, Tensor], share: float) -> None:
    for name, term in named(terms).items():
        total[name] = share * term + total.get(name, 0.0)


METHODS: Registry[Regularizer] = Registry("method")
"""The registered regularizers, presets included."""

register = METHODS.register
