"""Conformance: what every regularizer must do, whoever wrote it, in numbers.

The loss is held against its own derivative, symmetries, precision, streamed forms and ranks. `regbench check` and the
tests run all of it over every registered method, so a new method is tested by being registered.
"""

from __future__ import annotations

import inspect
import itertools
import json
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regbench import methods
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.sweep import load_run
from regbench.errors import RegbenchError
from regbench.methods import Engine, Regularizer
from regbench.methods.base import LOCAL_ROWS, Loss
from regbench.processes import Place, Processes, WorkFailed, one_line
from regbench.spaces import Range, spread

# Rows of each rank in the sharded checks: as uneven as a last batch can be.
SHARDS = {1: (11,), 2: (7, 4), 3: (6, 4, 1), 4: (5, 3, 2, 1)}
# Numbers of views, and how many of them are global.
VIEWS = ((2, 2), (3, 3), (8, 2))
_TINY = 1e-300
_DIRECTIONS = 6  # in which gradients are compared with differences


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    Attributes:
        check: Its name.
        bound: What is allowed.
        error: The largest deviation, in the unit that the check's docstring names; infinite if something broke.
        where: Where the largest deviation was, or what broke.
    """

    check: str
    bound: float
    error: float
    where: str

    @property
    def ok(self) -> bool:
        """Whether the method passes."""
        return self.error <= self.bound  # not so for NaN


Outcome = tuple[float, str] | None
_checks: dict[str, tuple[Callable[[Regularizer], Outcome], float]] = {}


def _check(bound: float) -> Callable[[Callable[[Regularizer], Outcome]], Callable[[Regularizer], Outcome]]:
    def register(function: Callable[[Regularizer], Outcome]) -> Callable[[Regularizer], Outcome]:
        _checks[function.__name__.replace("_", " ")] = function, bound
        return function

    return register


def check_names() -> list[str]:
    """List all checks but the sharded one, which runs several methods at once (`check_sharded`)."""
    return list(_checks)


def run_check(method: Regularizer, check: str) -> Finding | None:
    """Run one check of one method; None if it claims nothing that the check is about."""
    function, bound = _checks[check]
    try:
        outcome = function(method)
    except Exception as error:  # whatever a method raises is a finding
        outcome = (math.inf, f"{type(error).__name__}: {error}")
    return outcome and Finding(check, bound, *outcome)


# What methods are given.


def _draw(n: int, q: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    z1, z2 = draw_views(n, q, 2, seed)
    return z1, z2


def draw_views(n: int, q: int, count: int, seed: int = 0) -> list[Tensor]:
    """Draw embeddings of several views of the same images, float64, shape (n, q) each."""
    generator = torch.Generator().manual_seed(seed)
    first = 0.6 * torch.randn(n, q, dtype=torch.float64, generator=generator)
    others = (0.3 * torch.randn(n, q, dtype=torch.float64, generator=generator) for _ in range(count - 1))
    return [first, *(first + other for other in others)]


def _rotation(q: int) -> Tensor:
    gaussian = torch.randn(q, q, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    rotation: Tensor = torch.linalg.qr(gaussian)[0]
    return rotation


def _evaluate(
    method: Regularizer, views: Sequence[Tensor], engine: Engine, global_views: int | None = None, seed: int = 0
) -> Loss:
    """Compute the loss with the same random numbers each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return method(*views, engine=engine, global_views=global_views)


def _value(method: Regularizer, *views: Tensor) -> Tensor:
    return _evaluate(method, views, Engine()).total


def value_and_gradients(
    method: Regularizer,
    views: Sequence[Tensor],
    engine: Engine = Engine(),  # noqa: B008  # frozen
    global_views: int | None = None,
    seed: int = 0,
) -> tuple[list[Tensor], float]:
    """Compute value and gradients, and what a value is measured against: its addends may cancel."""
    leaves = [z.detach().clone().requires_grad_() for z in views]
    loss = _evaluate(method, leaves, engine, global_views, seed)
    return [loss.total.detach(), *torch.autograd.grad(loss.total, leaves)], _size(loss)


def relative(found: Tensor, wanted: Tensor, floor: float = _TINY) -> float:
    """Return the norm of the difference over that of what is wanted, or over `floor` if that is larger.

    Where something is not a number it is infinite, which max() does not lose as it does NaN.
    """
    difference, size = (float(x.norm()) for x in (found.double() - wanted.double(), wanted.double()))
    error = difference / max(size, floor)
    return math.inf if math.isnan(error) else error


def _size(loss: Loss) -> float:
    return float(sum(abs(term.item()) for term in loss.terms.values()))


def _difference(method: Regularizer, pair: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> float:
    wanted = _evaluate(method, pair, Engine())
    return abs(wanted.total.item() - _value(method, *other).item()) / max(_size(wanted), _TINY)


def _worst(outcomes: Sequence[tuple[float, str]]) -> tuple[float, str]:
    # NaN is the worst of all, and would get lost in max().
    return max(outcomes, key=lambda outcome: math.inf if math.isnan(outcome[0]) else outcome[0])


# The checks. Each returns the largest deviation and where it was.


@_check(1e-6)
def gradient(method: Regularizer) -> Outcome:
    """Return the largest difference from central differences in float64, relative to the largest derivative.

    Derivatives are taken along some random directions: a gradient that is wrong anywhere is wrong along them.
    """
    if not method.metadata.exact_gradient:
        return None
    outcomes = []
    step = 3e-5
    for n, q, count, global_views in ((4, 3, 2, 2), (3, 5, 2, 2), (2, 2, 2, 2), (4, 3, 3, 1)):
        z = torch.stack(draw_views(n, q, count))

        def value(z: Tensor, global_views: int = global_views) -> Tensor:
            return _evaluate(method, [*z], Engine(), global_views).total

        (_, *found), size = value_and_gradients(method, [*z], global_views=global_views)
        directions = _rotation(z.numel())[:_DIRECTIONS].view(-1, *z.shape)
        numeric = torch.zeros(len(directions), dtype=z.dtype)
        for i, direction in enumerate(directions):
            # Fourth order, so that the step need not be tiny.
            shifts = step * direction, 2 * step * direction
            near, far = (value(z + shift) - value(z - shift) for shift in shifts)
            numeric[i] = (8 * near - far) / (12 * step)
        analytic = (directions * torch.stack(found)).sum(dim=(1, 2, 3))
        # Below it the differences' own rounding would be measured; a loss may be 0 whatever two images it has.
        floor = max(1e-3 * size, 1e-15)
        error = (analytic - numeric).abs().max().item() / max(numeric.abs().max().item(), floor)
        outcomes.append((error, f"n={n}, q={q}, {count} views, {global_views} global"))
    return _worst(outcomes)


@_check(1e-10)
def order_of_images(method: Regularizer) -> Outcome:
    """Return the relative change of the value when the images are permuted."""
    z1, z2 = _draw(9, 5)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    return _difference(method, (z1, z2), (z1[order], z2[order])), "n=9, q=5"


@_check(1e-10)
def order_of_views(method: Regularizer) -> Outcome:
    """Return the relative change of the value when the views are exchanged, if it is claimed not to matter."""
    if not method.metadata.symmetric:
        return None
    z1, z2 = _draw(7, 4)
    return _difference(method, (z1, z2), (z2, z1)), "n=7, q=4"


@_check(1e-10)
def rotation(method: Regularizer) -> Outcome:
    """Return the relative change of the value when all embeddings are rotated, if it is claimed not to matter."""
    if not method.metadata.rotation_invariant:
        return None
    (z1, z2), turn = _draw(8, 5), _rotation(5)
    return _difference(method, (z1, z2), (z1 @ turn, z2 @ turn)), "n=8, q=5"


@_check(1e-10)
def lengths(method: Regularizer) -> Outcome:
    """Return the relative change of the value when each embedding is scaled, if it is claimed not to matter."""
    if not method.metadata.scale_invariant:
        return None
    z1, z2 = _draw(8, 5)
    factors = torch.linspace(0.1, 7, 8, dtype=torch.float64)[:, None]
    return _difference(method, (z1, z2), (factors * z1, z2 / factors)), "factors 0.1 to 7"


@_check(1e-9)
def minimum(method: Regularizer) -> Outcome:
    """Return how far a single point is from costing more than uniform embeddings, with half-collapsed ones between.

    All views are aligned. Uniform: orthonormal frames and their opposites; half-collapsed: the same within half of
    the dimensions. Kernels of order one cannot tell these two. Relative to the spread of the three values.
    """
    if not method.metadata.ordered:
        return None
    q = 8
    frames = [torch.linalg.qr(_draw(q, q, seed)[0])[0] for seed in range(4)]
    uniform = math.sqrt(q) * torch.cat([sign * frame for frame in frames for sign in (1, -1)])
    half = uniform.clone()
    half[:, q // 2 :] = 0
    half *= math.sqrt(q) / half.norm(dim=1, keepdim=True)
    constant = uniform[:1].expand_as(uniform)
    low, middle, high = (_value(method, z, z).item() for z in (uniform, half, constant))
    spread = max(abs(high - low), abs(middle - low), _TINY)
    gaps = [low - high + spread / 2, low - middle, middle - high]
    where = f"uniform {low:.6g} <= half-collapsed {middle:.6g} <= constant {high:.6g}, uniform < constant"
    return max(max(gaps) / spread, 0.0) if math.isfinite(sum(gaps)) else math.inf, where


@_check(0.0)
def views_matter(method: Regularizer) -> Outcome:
    """Return how much less views of different images cost than views of the same, relative to the value."""
    z1, z2 = _draw(9, 5)
    same, other = _value(method, z1, z2).item(), _value(method, z1, z2.roll(1, dims=0)).item()
    return max(same - other, 0.0) / max(abs(same), _TINY) if same != other else math.inf, f"{same:.6g} < {other:.6g}"


@_check(1e-4)
def float32(method: Regularizer) -> Outcome:
    """Return the relative difference of float32 from float64, in value and gradients."""
    outcomes = []
    for n, q in ((64, 32), (32, 64)):
        z1, z2 = _draw(n, q)
        (exact, size), (single, _) = (
            value_and_gradients(method, [z1, z2]),
            value_and_gradients(method, [z1.float(), z2.float()]),
        )
        outcomes.append((relative(single[0], exact[0], size), f"value at n={n}, q={q}"))
        outcomes += [(relative(a, b), f"gradient at n={n}, q={q}") for a, b in zip(single[1:], exact[1:], strict=True)]
    return _worst(outcomes)


@_check(0.01)
def half_precision(method: Regularizer) -> Outcome:
    """Return the relative difference of 16-bit embeddings under autocast from the same numbers in float32."""
    outcomes = []
    for dtype in (torch.bfloat16, torch.float16):
        z1, z2 = (z.to(dtype) for z in _draw(16, 8))
        wanted, _ = value_and_gradients(method, [z1.float(), z2.float()])
        with torch.autocast("cpu", torch.bfloat16):
            found, _ = value_and_gradients(method, [z1, z2])
        if found[0].dtype != torch.float32 or found[1].dtype != dtype:
            return math.inf, f"{dtype} gives a {found[0].dtype} value and {found[1].dtype} gradients"
        outcomes += [(relative(a, b), str(dtype)) for a, b in zip(found, wanted, strict=True)]
    return _worst(outcomes)


def corner_cases() -> dict[str, tuple[Tensor, Tensor]]:
    """Make embeddings that training can meet and formulas forget, float32."""
    z1, z2 = (z.float() for z in _draw(6, 4))
    zero_row = z1.clone()
    zero_row[2] = 0
    duplicates = z1[[0, 0, 0, 3, 4, 4]]
    axis = torch.eye(6, 4)[[0] * 6]  # inner products of exactly 1
    return {
        "collapsed": (z1[:1].repeat(6, 1), z1[:1].repeat(6, 1)),
        "collapsed on an axis": (axis, axis.clone()),
        "duplicates": (duplicates, duplicates.clone()),
        "equal views": (z1, z1.clone()),
        "opposite views": (z1, -z1),
        "two images": (z1[:2], z2[:2]),
        "two equal images": (z1[:1].repeat(2, 1), z2[:1].repeat(2, 1)),
        "a zero row": (zero_row, z2),
        "all zero": (torch.zeros_like(z1), torch.zeros_like(z1)),
        "large": (1e4 * z1, 1e4 * z2),
        "small": (1e-6 * z1, 1e-6 * z2),
    }


@_check(0.0)
def finite(method: Regularizer) -> Outcome:
    """Return the number of corner cases in which the value or a gradient is not finite."""
    broken = [
        f"{name} ({form})"
        for name, pair in corner_cases().items()
        for form in ("auto", *method.forms)
        if not all(x.isfinite().all() for x in value_and_gradients(method, pair, Engine(form=form))[0])
    ]
    return len(broken), ", ".join(broken)


@_check(0.0)
def search_space(method: Regularizer) -> Outcome:
    """Return the number of times that the value or a gradient is not finite in the search space.

    At its corners for every corner case of the embeddings, at some points within for ordinary ones. A tuning may go on
    beyond a range, so the method must also take what lies a whole range further, up to the limits that the range names.
    """
    if method.space is None:
        return None
    space = {name: each.at(n=6, q=4) for name, each in method.space.items()}
    for name, each in space.items():
        for position in (-1.0, 2.0) if isinstance(each, Range) else ():
            replace(method, **{name: each.value(position)})  # type: ignore[type-var]
    ordinary = dict.fromkeys(["ordinary"], _draw(6, 4))
    tried = [(positions, corner_cases()) for positions in itertools.product((0.0, 1.0), repeat=len(space))]
    tried += [(tuple(spread(index, len(space))), ordinary) for index in range(3)]
    broken = []
    for positions, cases in tried:
        values = {name: each.value(at) for (name, each), at in zip(space.items(), positions, strict=True)}
        there = replace(method, **values)  # type: ignore[type-var]
        broken += [
            f"{case} at {', '.join(f'{name}={value}' for name, value in values.items())}"
            for case, pair in cases.items()
            if not all(x.isfinite().all() for x in value_and_gradients(there, pair)[0])
        ]
    return len(broken), "; ".join(broken)


@_check(1e-10)
def forms(method: Regularizer) -> Outcome:
    """Return the relative difference of each form from the textbook's: value, addends, gradients; 2, 3 and 8 views."""
    outcomes = []
    sizes = [(n, q, *views) for n, q in ((300, 20), (20, 300)) for views in VIEWS[:1]]
    for n, q, count, global_views in (*sizes, *((5, 3, *views) for views in VIEWS)):
        views = draw_views(n, q, count)
        textbook = Engine(form="textbook")
        wanted, size = value_and_gradients(method, views, textbook, global_views)
        addends = _evaluate(method, views, textbook, global_views).terms
        for form in method.forms[1:] or ("auto",):
            found, _ = value_and_gradients(method, views, Engine(form=form), global_views)
            where = f"{form} at n={n}, q={q}, {count} views, {global_views} global"
            floor = max(gradient.norm().item() for gradient in wanted[1:])
            outcomes.append((relative(found[0], wanted[0], size), f"value, {where}"))
            outcomes += [
                (relative(a, b, floor), f"gradient, {where}") for a, b in zip(found[1:], wanted[1:], strict=True)
            ]
            own = _evaluate(method, views, Engine(form=form), global_views).terms
            outcomes += [(relative(own[name], term, size), f"{name}, {where}") for name, term in addends.items()]
    return _worst(outcomes)


@_check(0.0)
def configuration(method: Regularizer) -> Outcome:
    """Return the number of hyperparameters that do not come back from Hydra overrides and from a cell's JSON."""
    values = asdict(method)  # type: ignore[call-overload]
    name = methods.registry_name(method)
    overrides = [f"method.{key}={_hydra(value)}" for key, value in values.items()]
    cell, _ = load_run([f"method={name}", *overrides])
    again = Cell.stored(json.loads(json.dumps(cell.plain())))
    lost = [
        f"{key}={value!r} came back as {getattr(back.method, key)!r}"
        for back in (cell, again)
        for key, value in values.items()
        if getattr(back.method, key) != value
    ]
    return len(lost), ", ".join(lost)


def _hydra(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{','.join(_hydra(item) for item in value)}]"
    return json.dumps(value) if isinstance(value, bool) else str(value)


@_check(0.0)
def documentation(method: Regularizer) -> Outcome:
    """Return the number of things that the docstring and the metadata leave out."""
    cls, data = type(method), method.metadata
    text = cls.__doc__ or ""
    missing = [
        f"metadata.{name}"
        for name in ("title", "reference", "formula", "time", "memory", "published")
        if not getattr(data, name)
    ]
    if "unpublished" not in data.reference.lower():
        missing += ["metadata.url with https://"] * (not data.url.startswith("https://"))
        year = re.compile(r"\b(19|20)\d\d\b")
        missing += ['a year, or "unpublished", in metadata.reference'] * (not year.search(data.reference))
        missing += ["the source with its year in the docstring"] * (not year.search(text))
    fields = asdict(method)  # type: ignore[call-overload]
    inherited = "\n".join(base.__doc__ or "" for base in cls.__mro__)
    missing += [
        f"{name} under Attributes" for name in fields if not re.search(rf"^\s+{name}: ", inherited, re.MULTILINE)
    ]
    parameters = list(inspect.signature(method.terms).parameters)
    shapes = all(name.endswith("_NQ") for name in parameters) or "(n, q)" in (method.terms.__doc__ or "")
    missing += ["the shapes in terms"] * (not shapes)
    return len(missing), ", ".join(missing)


# Over ranks.


def check_sharded(many: Mapping[str, Regularizer]) -> dict[str, Finding]:
    """Check whether 1, 2, 3 and 4 processes with uneven shares give the value and gradients of one, in every form.

    Args:
        many: Methods by any name.

    Returns:
        For each name the largest relative difference: of a rank's value from the single process's, and of its
        gradients divided by the number of ranks (the mean that DistributedDataParallel takes).
    """
    with Processes(max(SHARDS), _join) as ranks:
        return {name: _check_sharded(method, ranks) for name, method in many.items()}


def _check_sharded(method: Regularizer, ranks: Processes) -> Finding:
    try:
        outcome = _worst(ranks.ask(_compare_with_one, method))
    except WorkFailed as error:
        outcome = (math.inf, str(error))
    return Finding("sharded", 1e-9, *outcome)


def _join(here: Place) -> dict[int, Any]:
    """Make the groups; a process outside of one gets a placeholder that it never uses."""
    warnings.filterwarnings("ignore", LOCAL_ROWS)  # one process's value is what the others are compared with
    here.join("gloo")
    return {size: dist.new_group(list(range(size))) for size in SHARDS}


def _compare_with_one(groups: Mapping[int, Any], method: Regularizer) -> tuple[float, str]:
    rank = dist.get_rank()
    outcomes = [(0.0, "")]
    for form, (size, rows) in itertools.product(method.forms, SHARDS.items()):
        if rank >= size:
            continue
        views = draw_views(11, 6, 3 if size == 3 else 2)
        mine = slice(sum(rows[:rank]), sum(rows[: rank + 1]))
        where = f"{form}, rank {rank} of {size}, {len(views)} views"
        try:
            wanted, total = value_and_gradients(method, views, Engine(form=form), 2)
            # What the other ranks would draw by themselves must not matter.
            shares = [z[mine] for z in views]
            found, _ = value_and_gradients(method, shares, Engine(form=form, group=groups[size]), 2, seed=rank)
        except Exception as error:
            raise RegbenchError(f"{form} form over {size} ranks: {one_line(error)}") from error
        outcomes.append((relative(found[0], wanted[0], total), f"value, {where}"))
        floor = wanted[1].norm().item()
        for a, b in zip(found[1:], wanted[1:], strict=True):
            outcomes.append((relative(a / size, b[mine], floor), f"gradient, {where}"))
    return _worst(outcomes)
