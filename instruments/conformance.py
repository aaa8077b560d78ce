"""Conformance: what every regularizer must do, whoever wrote it, in numbers.

The loss is held against its own derivative, symmetries, precision, streamed forms and ranks.
`regbench check` and the tests run all of it over every registered method, so a new method is tested
by being registered.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import json
import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regbench import methods
from regbench.benchmark.settings.architecture import needed_settings
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.sweep import load_run
from regbench.errors import RegbenchError
from regbench.instruments import loss_checks
from regbench.instruments.loss_checks import (
    TINY,
    Check,
    Outcome,
    Subject,
    Views,
    cast,
    change,
    corner_cases,
    draw_views,
    errors,
    failures,
    relative,
    seeded,
    worst,
)
from regbench.methods import Engine, NotComputable, Regularizer
from regbench.methods.base import Loss
from regbench.methods.forms.engine import LOCAL_ROWS
from regbench.processes import Place, Processes, WorkFailed, one_line
from regbench.spaces import Range, halton
from regbench.wording import shown

# Rows of each rank in the sharded checks: as uneven as a last batch can be.
SHARDS = {1: (11,), 2: (7, 4), 3: (6, 4, 1), 4: (5, 3, 2, 1)}
AUTO = Engine()
TEXTBOOK = Engine(form="textbook")


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check.

    Attributes:
        check: Name of the check.
        bound: Largest deviation that is allowed.
        error: The largest deviation, in the unit that the check's docstring names; infinite if
            something broke.
        where: Place of the largest deviation, or what broke.
    """

    check: str
    bound: float
    error: float
    where: str

    @property
    def ok(self) -> bool:
        """Whether the method passes."""
        return self.error <= self.bound  # not so for NaN


# Values and what they are compared with.


def _evaluate(method: Regularizer, views: Views, seed: int = 0, **options: Any) -> Loss:
    """Compute the loss with the same random numbers each time; for the options see a method."""
    with seeded(seed):
        return method(*views, **options)


def _total(method: Regularizer, views: Views, **options: Any) -> Tensor:
    return _evaluate(method, views, **options).total


def _size(loss: Loss) -> float:
    """Return the scale for deviations of a value, by its addends, because these may cancel."""
    return float(sum(abs(term.item()) for term in loss.terms.values()))


def value_and_gradients(
    method: Regularizer,
    views: Views,
    engine: Engine = AUTO,
    global_views: int | None = None,
    seed: int = 0,
) -> tuple[list[Tensor], float]:
    """Compute value and gradients, and the size that the value is measured against."""
    leaves = [z_NQ.detach().clone().requires_grad_() for z_NQ in views]
    loss = _evaluate(method, leaves, seed, engine=engine, global_views=global_views)
    return [loss.total.detach(), *torch.autograd.grad(loss.total, leaves)], _size(loss)


def _subject(method: Regularizer) -> Subject:
    """Describe a method to the checks that are asked of every loss.

    Raises:
        RegbenchError: If it computes in float32 whatever it is given, which would be measured as
            its error.
    """
    if _evaluate(method, draw_views(4, 3, 2), engine=TEXTBOOK).total.dtype != torch.float64:
        raise RegbenchError(
            "the value is of a lower precision than the embeddings: compute in theirs, and leave "
            "float32 to the training, which gives embeddings in it"
        )

    def size(views: Views, global_views: int | None = None) -> float:
        return max(_size(_evaluate(method, views, global_views=global_views)), TINY)

    return Subject(
        value=partial(_total, method),
        draw=lambda n, q, layout: draw_views(n, q, layout[0]),
        size=size,
        # More images than dimensions, fewer, the fewest, and views of which not all are global.
        places=((4, 3, (2, 2)), (3, 5, (2, 2)), (2, 2, (2, 2)), (4, 3, (3, 1))),
        step=3e-5,
        floor=1e-3,
    )


# The checks of our methods. Each returns the largest deviation and where it was.


def rotation(method: Regularizer) -> Outcome:
    """Return the relative change of the value when all embeddings are rotated."""
    views = draw_views(8, 5, 2)
    gaussian_QQ = torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    turn_QQ = torch.linalg.qr(gaussian_QQ)[0]
    return change(_subject(method), views, [z @ turn_QQ for z in views]), "n=8, q=5"


def lengths(method: Regularizer) -> Outcome:
    """Return the relative change of the value when each embedding is scaled."""
    z1, z2 = draw_views(8, 5, 2)
    factors = torch.linspace(0.1, 7, 8, dtype=torch.float64)[:, None]
    scaled = [factors * z1, z2 / factors]
    return change(_subject(method), [z1, z2], scaled), "factors 0.1 to 7"


def minimum(method: Regularizer) -> Outcome:
    """Return how far a single point is from costing more than uniform embeddings, with
    half-collapsed ones between.

    All views are aligned. Uniform: orthonormal frames and their opposites; half-collapsed: the same
    within half of the dimensions. Kernels of order one cannot distinguish these two. The result is
    relative to the spread of the three values.
    """
    q = 8
    frames = [torch.linalg.qr(draw_views(q, q, 1, seed)[0])[0] for seed in range(4)]
    uniform = math.sqrt(q) * torch.cat([*frames, *(-frame for frame in frames)])
    half = uniform.clone()
    half[:, q // 2 :] = 0
    half *= math.sqrt(q) / half.norm(dim=1, keepdim=True)
    constant = uniform[:1].expand_as(uniform)
    low, middle, high = (_total(method, [z, z]).item() for z in (uniform, half, constant))
    spread = max(abs(high - low), abs(middle - low), TINY)
    gaps = [low - high + spread / 2, low - middle, middle - high]
    where = (
        f"uniform {low:.6g} <= half-collapsed {middle:.6g} <= constant {high:.6g}, uniform < "
        "constant"
    )
    return max(max(gaps) / spread, 0.0) if math.isfinite(sum(gaps)) else math.inf, where


def views_matter(method: Regularizer) -> Outcome:
    """Return how much less views of different images cost than views of the same, relative to
    the value.
    """
    z1, z2 = draw_views(9, 5, 2)
    same, other = _total(method, [z1, z2]).item(), _total(method, [z1, z2.roll(1, dims=0)]).item()
    error = max(same - other, 0.0) / max(abs(same), TINY) if same != other else math.inf
    return error, f"{same:.6g} < {other:.6g}"


def float32(method: Regularizer) -> Outcome:
    """Return the relative difference of float32 from float64, in value and gradients."""
    outcomes: list[Outcome] = []
    for n, q in ((64, 32), (32, 64)):
        views = draw_views(n, q, 2)
        wanted, size = value_and_gradients(method, views)
        found, _ = value_and_gradients(method, cast(views, torch.float32))
        outcomes += errors(found, wanted, f" at n={n}, q={q}", size)
    error, where = worst(outcomes)
    if method.random and error > CHECKS["float32"].bound:
        where += "; if it draws, then in float32: torch.randn(..., device=z.device).to(z)"
    return error, where


def half_precision(method: Regularizer) -> Outcome:
    """Return the relative difference of 16-bit embeddings under autocast from the same numbers
    in float32.
    """
    outcomes: list[Outcome] = []
    for dtype in (torch.bfloat16, torch.float16):
        views = cast(draw_views(16, 8, 2), dtype)
        wanted, _ = value_and_gradients(method, cast(views, torch.float32))
        with torch.autocast("cpu", torch.bfloat16):
            found, _ = value_and_gradients(method, views)
        if found[0].dtype != torch.float32 or found[1].dtype != dtype:
            what = f"{dtype} gives a {found[0].dtype} value and {found[1].dtype} gradients"
            return math.inf, what
        outcomes += errors(found, wanted, f" in {dtype}")
    return worst(outcomes)


def finite(method: Regularizer) -> Outcome:
    """Return the number of corner cases in which the value or a gradient is not finite."""
    broken = []
    for form in ("auto", *method.forms):
        loss = partial(_total, method, engine=Engine(form=form))
        for case, what in failures(loss, corner_cases()).items():
            broken.append(f"{case} ({form}): {what}")
    return len(broken), ", ".join(broken)


def broken_embeddings(method: Regularizer) -> Outcome:
    """Return the number of cases in which the value hides a NaN or an infinity among the
    embeddings.
    """
    hidden = []
    numbers, where = (math.nan, math.inf, -math.inf), ((0, 1, 2), (1, 1, 2), (slice(None),))
    for form, number, place in itertools.product(("auto", *method.forms), numbers, where):
        views_VNQ = torch.stack(cast(draw_views(6, 4, 2), torch.float32))
        views_VNQ[place] = number
        with contextlib.suppress(NotComputable):
            if _total(method, list(views_VNQ), engine=Engine(form=form)).isfinite():
                hidden.append(f"{number} at {place} ({form})")
    return len(hidden), ", ".join(hidden)


def search_space(method: Regularizer) -> Outcome | None:
    """Return the number of times that the value or a gradient is not finite in the search space.

    Its corners are tried with every corner case of the embeddings, some points within with ordinary
    ones.
    A tuning may go on beyond a range, so the method must also take what lies a whole range further,
    up to the limits that the range names.
    """
    if method.space is None:
        return None
    space = {name: each.at(n=6, q=4) for name, each in method.space.items()}
    for name, each in space.items():
        if isinstance(each, Range):
            for position in (-1.0, 2.0):
                replace(method, **{name: each.value(position)})  # type: ignore[type-var]
    ordinary = {"ordinary": draw_views(6, 4, 2)}
    corners = itertools.product((0.0, 1.0), repeat=len(space))
    tried = [(list(corner), corner_cases()) for corner in corners]
    tried += [(halton(index, len(space)), ordinary) for index in range(3)]
    broken = []
    for positions, cases in tried:
        places = zip(space.items(), positions, strict=True)
        values = {name: each.value(position) for (name, each), position in places}
        there = replace(method, **values)  # type: ignore[type-var]
        for case, what in failures(partial(_total, there), cases).items():
            broken.append(f"{case} at {values}: {what}")
    return len(broken), "; ".join(broken)


def forms(method: Regularizer) -> Outcome:
    """Return the relative difference of each form from the textbook's: value, addends,
    gradients; 2, 3 and 8 views.
    """
    outcomes: list[Outcome] = []
    for n, q, count, global_views in (
        (300, 20, 2, 2),
        (20, 300, 2, 2),
        (5, 3, 2, 2),
        (5, 3, 3, 3),
        (5, 3, 8, 2),
    ):
        views = draw_views(n, q, count)
        wanted, size = value_and_gradients(method, views, TEXTBOOK, global_views)
        addends = _evaluate(method, views, engine=TEXTBOOK, global_views=global_views).terms
        floor = max(gradient.norm().item() for gradient in wanted[1:])
        for form in method.forms[1:] or ("auto",):
            engine = Engine(form=form)
            where = f", {form} at n={n}, q={q}, {count} views, {global_views} global"
            found, _ = value_and_gradients(method, views, engine, global_views)
            outcomes += errors(found, wanted, where, size, floor)
            own = _evaluate(method, views, engine=engine, global_views=global_views).terms
            for name, term in addends.items():
                outcomes.append((relative(own[name], term, size), name + where))
    return worst(outcomes)


# What a method declares.


def configuration(method: Regularizer) -> Outcome:
    """Return the number of hyperparameters that do not come back unchanged from Hydra overrides and
    from a cell's JSON.
    """
    values = asdict(method)  # type: ignore[call-overload]
    overrides = [f"method.{key}={shown(value)}" for key, value in values.items()]
    choice = f"method={methods.registry_name(method)}"
    cell, _ = load_run([choice, *overrides, *needed_settings(method)])
    # Through text and back, since a cell's file has JSON's types: a tuple comes back as a list.
    again = Cell.stored(json.loads(json.dumps(cell.plain())))
    lost = []
    for back in (cell.method, again.method):
        for key, value in values.items():
            if getattr(back, key) != value:
                lost.append(f"{key}={value!r} came back as {getattr(back, key)!r}")
    return len(lost), ", ".join(lost)


def documentation(method: Regularizer) -> Outcome:
    """Return the number of things that the docstring and the metadata leave out."""
    data, text = method.metadata, type(method).__doc__ or ""
    year = re.compile(r"\b(19|20)\d\d\b")
    published = "unpublished" not in data.reference.lower()
    # A setting that a base class brings is documented there.
    inherited = "\n".join(base.__doc__ or "" for base in type(method).__mro__)
    shapes = all(name.endswith("_NQ") for name in inspect.signature(method.terms).parameters)
    required = ("title", "reference", "formula", "time", "memory", "published")
    wanted = {f"metadata.{name}": getattr(data, name) for name in required}
    wanted["metadata.url with https://"] = data.url.startswith("https://") or not published
    wanted['a year, or "unpublished", in metadata.reference'] = (
        year.search(data.reference) or not published
    )
    wanted["the source with its year in the docstring"] = year.search(text) or not published
    for name in asdict(method):  # type: ignore[call-overload]
        wanted[f"{name} under Attributes"] = re.search(rf"^\s+{name}: ", inherited, re.MULTILINE)
    wanted["the shapes in terms"] = shapes or "(n, q)" in (method.terms.__doc__ or "")
    missing = [name for name, there in wanted.items() if not there]
    return len(missing), ", ".join(missing)


CHECKS = {
    **loss_checks.CHECKS,
    "rotation": Check(rotation, 1e-10, "rotation_invariant"),
    "lengths": Check(lengths, 1e-10, "scale_invariant"),
    "minimum": Check(minimum, 1e-9, "ordered"),
    "views matter": Check(views_matter, 0.0),
    "float32": Check(float32, 1e-4),
    "half precision": Check(half_precision, 0.01),
    "finite": Check(finite, 0.0),
    "broken embeddings": Check(broken_embeddings, 0.0),
    "search space": Check(search_space, 0.0),
    "forms": Check(forms, 1e-10),
    "configuration": Check(configuration, 0.0),
    "documentation": Check(documentation, 0.0),
}
"""The checks of our methods: those of every loss, and those of what only our methods have.

The sharded check is apart, as it runs several methods at once (`check_sharded`).
"""


def run_check(method: Regularizer, name: str) -> CheckResult | None:
    """Run one check of one method; None if the check does not apply to it."""
    check = CHECKS[name]
    if name in left_out(method):
        return None
    try:
        outcome = check.measure(_subject(method) if name in loss_checks.CHECKS else method)
    except Exception as error:  # whatever a method raises is a finding
        outcome = math.inf, f"{type(error).__name__}: {error}"
    return CheckResult(name, check.bound, *outcome) if outcome else None


def left_out(method: Regularizer) -> dict[str, str]:
    """Return the checks that do not apply to a method, with the claim that it does not make."""
    found = {}
    for name, check in CHECKS.items():
        if check.claim and not getattr(method.metadata, check.claim):
            found[name] = check.claim
    return found


# Over ranks.


def check_sharded(many: Mapping[str, Regularizer]) -> dict[str, CheckResult]:
    """Check whether 1, 2, 3 and 4 processes with uneven shares give the value and gradients of one,
    in every form.

    Args:
        many: Methods by any name.

    Returns:
        For each name the largest relative difference: of a rank's value from the single process's,
        and of its gradients divided by the number of ranks (the mean that DistributedDataParallel
        takes).
    """
    found = {}
    with Processes(max(SHARDS), _join) as ranks:
        for name, method in many.items():
            try:
                outcome = worst(ranks.ask(_compare_with_one, method))
            except WorkFailed as error:
                outcome = math.inf, str(error)
            found[name] = CheckResult("sharded", 1e-9, *outcome)
    return found


def _join(here: Place) -> dict[int, Any]:
    """Make the groups; a process outside of one gets a placeholder that it never uses."""
    # Each process also computes the loss alone, as the reference: no warning is needed.
    warnings.filterwarnings("ignore", LOCAL_ROWS)
    here.join("gloo")
    return {size: dist.new_group(list(range(size))) for size in SHARDS}


def _compare_with_one(groups: Mapping[int, Any], method: Regularizer) -> Outcome:
    rank = dist.get_rank()
    outcomes = [(0.0, "")]
    for form, (size, rows) in itertools.product(method.forms, SHARDS.items()):
        if rank >= size:
            continue
        views = draw_views(11, 6, 3 if size == 3 else 2)
        mine = slice(sum(rows[:rank]), sum(rows[: rank + 1]))
        try:
            (value, *gradients), total = value_and_gradients(method, views, Engine(form=form), 2)
            # Draws of the other ranks must not matter, hence a seed of each rank's own.
            engine, shares = Engine(form=form, group=groups[size]), [z[mine] for z in views]
            found, _ = value_and_gradients(method, shares, engine, 2, seed=rank)
        except Exception as error:
            raise RegbenchError(f"{form} form over {size} ranks: {one_line(error)}") from error
        wanted = [value, *(size * gradient[mine] for gradient in gradients)]
        where = f", {form}, rank {rank} of {size}, {len(views)} views"
        outcomes += errors(found, wanted, where, total, size * gradients[0].norm().item())
    return worst(outcomes)
