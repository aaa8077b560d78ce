"""Losses to audit: a loss of any library, and the few lines that say how it is called and what it
claims.

Shapes: N = rows of a view (n), Q = embedding dimension (q), V = views.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from regbench import methods, wording
from regbench.errors import RegbenchError
from regbench.files import file_sha256
from regbench.instruments.audit.textbook import earlier_batches, has_targets, keeps_state
from regbench.instruments.loss_checks import Views, cast, draw_views, seeded
from regbench.methods import Regularizer
from regbench.processes import CodeFailed, one_line

# More images than dimensions, so that covariances have full rank; few enough for losses that
# take n³.
SIZE = (12, 4)
"""n and q of what most probes draw."""


@dataclass(frozen=True)
class Batch:
    """The arguments that a loss is called with.

    Attributes:
        views_NQ: This rank's embeddings or predictions of each view, shape (n, q), the global views
            first.
        targets_NQ: The targets of the global views, same shape; none if the loss compares views
            with each other.
        global_views: Number of global views.
        first: Number of the first row in the batch of all ranks.
    """

    views_NQ: list[Tensor]
    targets_NQ: list[Tensor]
    global_views: int
    first: int

    @property
    def sides(self) -> list[list[Tensor]]:
        """The views, and the targets if there are any."""
        return [self.views_NQ, self.targets_NQ] if self.targets_NQ else [self.views_NQ]


Call = Callable[[Any, Batch], Any]
"""Function that calls a loss with a batch."""


def _arguments(loss: Any, batch: Batch) -> Any:
    if not batch.targets_NQ:
        return loss(*batch.views_NQ)
    values = []
    for g, target_NQ in enumerate(batch.targets_NQ):
        for v, view_NQ in enumerate(batch.views_NQ):
            if v != g:
                values.append(scalar(loss(view_NQ, target_NQ)))
    return torch.stack(values).mean()


def _labelled(loss: Any, batch: Batch) -> Any:
    images_N = torch.arange(batch.first, batch.first + len(batch.views_NQ[0]))
    return loss(torch.cat(batch.views_NQ), images_N.repeat(len(batch.views_NQ)))


CALLS: dict[str, Call] = {
    "arguments": _arguments,
    "list": lambda loss, batch: loss(*batch.sides),
    "stacked": lambda loss, batch: loss(*map(torch.stack, batch.sides)),
    "concatenated": lambda loss, batch: loss(*map(torch.cat, batch.sides)),
    "labelled": _labelled,
    "each": lambda loss, batch: torch.stack(
        [scalar(loss(view_NQ)) for view_NQ in batch.views_NQ]
    ).mean(),
}
"""loss(z1, z2, …); loss([z1, z2, …]); loss of one tensor (V, n, q); of one (V n, q); of one (V n,
q) with the images' numbers as labels; the mean over views of loss(z).

With targets t beside predictions p: the mean of loss(p_v, t_g) over v ≠ g; loss([p1, p2, …], [t1,
t2]); and likewise of two tensors."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A loss to audit: how it is made and called, and what it claims.

    Attributes:
        name: Name that the user wrote, such as `lightly:NTXentLoss`.
        expression: `package.module:Expression` or `path/file.py:Expression`. It is evaluated in the
            module and gives the loss, its class, or a function. It may use n (rows of this
            process), q, views (how many) and weights.
        call: A name of `CALLS`, or a function.
        claims: The regularizer that the loss says it is, with settings, such as
            `simclr(temperature=0.5)`; empty if there is none to compare with.
        gathers: Whether it says that several processes share one batch; otherwise each sees its own
            rows only.
        views: The numbers of views that it takes.
        local_views: Whether it is told how many of the views are global; `call` has to be a
            function then.
        detaches: Parts that it says it detaches, so that its gradient is not that of its value;
            empty if none.
        weights: Arguments that are weights, with their values and the settings of the claimed
            regularizer that they correspond to. The expression takes them as `**weights`; the name
            `loss` is a factor of the whole loss.
    """

    name: str
    expression: str
    call: str | Call = "arguments"
    claims: str = ""
    gathers: bool = False
    views: tuple[int, ...] = (2,)
    local_views: bool = False
    detaches: str = ""
    weights: Mapping[str, tuple[float, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse an unknown way to call, an unknown regularizer, and views without two."""
        if isinstance(self.call, str) and self.call not in CALLS:
            raise RegbenchError(wording.unknown("call", self.call, CALLS))
        if self.claims:
            build_claim(self.claims)
        if min(self.views, default=0) < 2 or 2 not in self.views:
            raise RegbenchError(
                f"views={self.views}: a loss is audited with two views first; give (2,) or more"
            )

    @property
    def layouts(self) -> list[tuple[int, int]]:
        """The layouts of more than two views: their number, and that of global ones among them."""
        many = [count for count in self.views if count > 2]
        layouts = [(count, count) for count in many]
        if many and self.local_views:
            layouts += [(max(many), 1), (max(many), 2)]
        return layouts

    @property
    def has_targets(self) -> bool:
        """Whether it gets targets beside the views, see `textbook.has_targets`."""
        return self.claimed is not None and has_targets(self.claimed)

    def make(self, n: int, q: int, dtype: torch.dtype, views: int = 2) -> Any:
        """Make the loss anew, so that nothing is left of earlier calls."""
        module, expression = _load(self.expression)
        weights = {
            argument: value for argument, (value, _) in self.weights.items() if argument != "loss"
        }
        names = {**vars(module), "n": n, "q": q, "views": views, "weights": weights}
        try:
            loss = eval(expression, names)
            if inspect.isclass(loss):
                loss = loss()
        except Exception as error:
            what = f"{expression} cannot be made ({type(error).__name__}: {error})"
            raise RegbenchError(f"{self.name}: {what}; check its name and arguments") from error
        if not callable(loss):
            raise RegbenchError(
                f"{self.name}: {expression} is no loss that can be called, but "
                f"{type(loss).__name__}"
            )
        return loss.to(dtype) if isinstance(loss, nn.Module) else loss

    def value(
        self,
        views_NQ: Views,
        *,
        seed: int = 0,
        first: int = 0,
        global_views: int | None = None,
        loss: Any = None,
    ) -> Tensor:
        """Compute the loss, a scalar, of this rank's rows; after earlier batches if it is to keep a
        state.

        The targets, if there are any, come after the views. `first` is the number of the first row
        in the batch of all ranks, `loss` one that was made already.
        """
        count, (n, q) = len(views_NQ), views_NQ[0].shape
        if self.has_targets:
            global_views = global_views or count // 2
            count -= global_views
        call = self.call
        if isinstance(call, str):
            call = CALLS[call]
        batches = [views_NQ]
        if loss is None:
            loss = self.make(n, q, views_NQ[0].dtype, count)
            if self.claimed is not None and keeps_state(self.claimed):
                batches = [*earlier_batches(views_NQ, first), views_NQ]
        factor, _ = self.weights.get("loss", (1.0, ""))
        with seeded(seed):
            for each_NQ in batches:
                # Copies, which a loss may change in place, as it may what a network gives.
                own_NQ = [z_NQ.clone() for z_NQ in each_NQ]
                batch = Batch(own_NQ[:count], own_NQ[count:], global_views or count, first)
                value = scalar(call(loss, batch), self.name if self.is_own else "")
        return factor * value

    @functools.cached_property
    def dtype(self) -> torch.dtype:
        """float64; float32 if the loss refuses that, or computes in float32 all the same.

        Raises:
            NotScalar: If a loss without an adapter returns no scalar.
        """
        try:
            value = self.value(draw_views(*SIZE, 4 if self.has_targets else 2))
        except NotScalar:
            raise
        except Exception:
            return torch.float32
        return torch.float64 if value.dtype == torch.float64 else torch.float32

    @property
    def single(self) -> bool:
        """Whether the loss computes in float32 only, so that tolerances have to be wider."""
        return self.dtype == torch.float32

    def tolerance(self, double: float, single: float) -> float:
        """Return `double` for a loss that takes float64, `single` for one of float32 only."""
        return single if self.single else double

    def draw(
        self,
        count: int = 2,
        seed: int = 7,
        size: tuple[int, int] = SIZE,
        global_views: int | None = None,
    ) -> list[Tensor]:
        """Draw `count` views in the loss's dtype, and the targets of the global ones if it gets
        any.
        """
        if self.has_targets:
            count += global_views or count
        return cast(draw_views(*size, count, seed), self.dtype)

    @functools.cached_property
    def claimed(self) -> Regularizer | None:
        """The regularizer that it claims to be."""
        return build_claim(self.claims) if self.claims else None

    @property
    def is_own(self) -> bool:
        """Whether the user names the loss by its file or module, not by an adapter."""
        return self.name == self.expression

    @property
    def file(self) -> Path:
        """The file of the loss, or of the module that has it."""
        module, _ = _load(self.expression)
        return Path(str(module.__file__))

    @property
    def version(self) -> str:
        """The version of the installed package, or the digest of a file that belongs to none."""
        module, _ = _load(self.expression)
        file = self.file
        for name in importlib.metadata.packages_distributions().get(
            module.__name__.split(".")[0], []
        ):
            package = importlib.metadata.distribution(name)
            # A checkout given by --source hides the package of the same name.
            if file.is_relative_to(str(package.locate_file(""))):
                return package.version
        return f"sha256 {file_sha256(file)[:12]}"


@functools.cache
def _load(target: str) -> tuple[ModuleType, str]:
    """Import the module or file of a target; return the expression, too."""
    where, _, expression = target.partition(":")
    if not (where and expression):
        raise RegbenchError(
            f"{target!r} is no target; give package.module:Class(args) or path/file.py:Class(args)"
        )
    file = Path(where).absolute()
    try:
        if where.endswith(".py"):
            return _import_file(file.resolve()), expression
        return importlib.import_module(where), expression
    except RegbenchError:
        raise
    except (Exception, SystemExit) as error:  # whatever a file of somebody else raises
        hint = ""
        if isinstance(error, ImportError):
            hint = "; install it, or give its folder: --source DIR"
            if not where.endswith(".py"):
                raise RegbenchError(f"{where} cannot be imported ({error}){hint}") from error
        raise CodeFailed(f"{where} cannot be loaded: {one_line(error, str(file))}{hint}") from error


@functools.cache
def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise RegbenchError(f"there is no file {path}; give path/file.py:Class(args)")
    # With a name of its own, as `types.py` must not stand in for Python's module.
    spec = importlib.util.spec_from_file_location(f"audited_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses in the file look themselves up there
    spec.loader.exec_module(module)
    return module


class NotScalar(RegbenchError):
    """A loss returned many numbers, or none."""


def scalar(output: Any, only: str = "") -> Tensor:
    """Take the loss out of an output: the first of a tuple, the entry `loss` or `total`; the mean
    of many numbers.

    With the name of a loss as `only`, many numbers are refused.
    """
    if isinstance(output, Tensor):
        if only and output.numel() != 1:
            raise NotScalar(
                f"{only} must return a scalar, not a tensor of shape {tuple(output.shape)}"
            )
        # Some return the loss of each image or view, and leave the mean to the caller.
        return output.reshape(()) if output.numel() == 1 else output.mean()
    if isinstance(output, tuple | list) and output:
        return scalar(output[0], only)
    if isinstance(output, Mapping):
        for name in ("loss", "total"):
            if name in output:
                return scalar(output[name], only)
        if len(output) == 1:
            return scalar(next(iter(output.values())), only)
    what = f"{only or 'a loss'} must return a tensor, not {type(output).__name__}"
    raise NotScalar(f"{what}; return a scalar tensor, without .item(), or write an audit's adapter")


def build_claim(claim: str) -> Regularizer:
    """Build the regularizer that `claim` names, such as `simclr` or `simclr(temperature=0.5)`.

    Raises:
        RegbenchError: If it names none.
    """
    try:
        tree = ast.parse(claim, mode="eval").body
        if isinstance(tree, ast.Name):
            return methods.build(tree.id)
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and not tree.args:
            given = {str(word.arg): ast.literal_eval(word.value) for word in tree.keywords}
            return methods.build(tree.func.id, **given)
    except (SyntaxError, ValueError):
        pass
    raise RegbenchError(
        f"{claim!r} is no regularizer; write it like simclr or simclr(temperature=0.5)"
    )
