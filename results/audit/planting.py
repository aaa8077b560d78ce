"""Mistakes that are made by program, and what the audit finds of them:
`python results/audit/planting.py [METHODS]`.

A mutant is a method's published formula with one line of it wrong: while the formula runs, each
torch call is looked at, and those that one line of `methods/` makes are replaced. The audit gets
the mutant as a black box with the claim to be the method. Mutants that cannot run are dropped, and
so are those whose values and gradients are the original's.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from regbench import methods
from regbench.instruments.audit.probes import PROBES, run_probe
from regbench.instruments.audit.target import Batch, Target
from regbench.instruments.audit.textbook import has_targets, textbook
from regbench.instruments.loss_checks import draw_views, evaluate, relative, seeded

FOLDER = Path(methods.__file__).parent

ORIGINAL, TWIN = -1, -2
"""In place of a mistake's number: the method as it is, and three times that plus one.

Neither is a defect.
"""

SAME = 1e-9
"""Relative difference of values and gradients in float64 up to which a mutant counts as the
original.
"""

Arguments = tuple[Any, ...]
Replacement = Callable[[Any, Arguments, dict[str, Any]], Any]


def _other_axis(call: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if isinstance(kwargs.get("dim"), int):
        return call(*args, **{**kwargs, "dim": _other(kwargs["dim"])})
    if len(args) > 1 and isinstance(args[1], int):
        return call(args[0], _other(args[1]), *args[2:], **kwargs)
    return call(*args, **kwargs)


def _other(dim: int) -> int:
    """Return the other axis of a matrix."""
    return -1 - dim if dim < 0 else 1 - dim


def _other_correction(call: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    biased = kwargs.get("correction") == 0 or kwargs.get("unbiased") is False
    kept = {key: value for key, value in kwargs.items() if key not in ("correction", "unbiased")}
    return call(*args, **kept, correction=1 if biased else 0)


def _other_divisor(call: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if len(args) == 2 and isinstance(args[1], int):
        return call(args[0], args[1] + 1, **kwargs)
    return call(*args, **kwargs)


def _without(kind: type, call: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Leave out the second operand, if it is of a kind."""
    return (
        args[0].clone() if len(args) == 2 and isinstance(args[1], kind) else call(*args, **kwargs)
    )


def _detached(call: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    found = call(*args, **kwargs)
    return found.detach() if isinstance(found, Tensor) else found


def _in_half(call: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    found = call(*args, **kwargs)
    return found.half().to(found.dtype)


def _first(call: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    return args[0].clone()


@dataclass(frozen=True)
class Mistake:
    """A kind of mistake.

    Attributes:
        name: Name of the mistake in the table.
        calls: Names of the torch functions that it may befall.
        instead: Code in their place.
    """

    name: str
    calls: tuple[str, ...]
    instead: Replacement


MINUS = ("sub", "__sub__", "rsub", "__rsub__")
DIVIDE = ("div", "__truediv__", "true_divide")
MISTAKES = (
    Mistake("a wrong sign", MINUS, lambda call, args, kwargs: args[0] + args[1]),
    Mistake("a missing minus", ("neg", "__neg__"), _first),
    Mistake(
        "a wrong axis",
        ("mean", "sum", "var", "std", "logsumexp", "softmax", "log_softmax", "norm"),
        _other_axis,
    ),
    Mistake("n for n − 1", ("var", "std"), _other_correction),
    Mistake("n for n − 1", DIVIDE, _other_divisor),
    Mistake(
        "a missing factor or temperature",
        ("mul", "__mul__", "__rmul__", *DIVIDE),
        partial(_without, float),
    ),
    Mistake("a missing normalisation", ("normalize",), _first),
    Mistake("a missing normalisation", DIVIDE, partial(_without, Tensor)),
    Mistake("a missing centring", MINUS, _first),
    Mistake(
        "a detached part",
        ("matmul", "__matmul__", "exp", "normalize", "mean", "square", "var"),
        _detached,
    ),
    Mistake(
        "a kept diagonal",
        ("fill_diagonal_", "masked_fill", "masked_fill_", "masked_select"),
        _first,
    ),
    Mistake(
        "a missing root, square or hinge", ("sqrt", "square", "relu", "clamp", "log", "abs"), _first
    ),
    Mistake("a part in half precision", ("matmul", "__matmul__", "exp", "mean"), _in_half),
)


class _Line(TorchFunctionMode):
    """Lists which torch calls each line of `methods/` makes, and replaces those of one line."""

    def __init__(self, mistake: Mistake | None = None, place: str = "") -> None:
        super().__init__()
        self.mistake = mistake
        self.place = place
        self.seen: dict[tuple[str, str], None] = {}  # in the order of the first call

    def __torch_function__(
        self, func: Any, types: Any, args: Arguments = (), kwargs: Any = None
    ) -> Any:
        name, place = str(getattr(func, "__name__", "")), _caller()
        self.seen[name, place] = None
        if self.mistake is not None and place == self.place and name in self.mistake.calls:
            return self.mistake.instead(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def _caller() -> str:
    """Name the line of `methods/` that calls torch now; empty if none does."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("regbench.methods."):
            file = Path(frame.f_code.co_filename).relative_to(FOLDER)
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


@dataclass(frozen=True)
class Mutant:
    """A method's formula with a mistake in one line, as a loss of two views, and of their targets
    if it has any.

    Attributes:
        method: Name of the method.
        mistake: Index into `MISTAKES`; `ORIGINAL` or `TWIN` for none.
        place: File and line in `methods/`.
    """

    method: str
    mistake: int = ORIGINAL
    place: str = ""

    def __call__(self, *views_NQ: Tensor) -> Tensor:
        """Compute the loss, a scalar."""
        with _Line(MISTAKES[self.mistake] if self.mistake >= 0 else None, self.place):
            # The seed is the one that the audit has just set.
            value = textbook(methods.build(self.method), views_NQ, 2, seed=torch.initial_seed())
        return 3 * value + 1 if self.mistake == TWIN else value


def mutants(method: str, most: int) -> Iterator[tuple[int, str]]:
    """List mistakes and lines that give another loss than the method.

    At most as many as asked, drawn evenly from those that its formula allows.
    """
    original = Mutant(method)
    tensors = 4 if has_targets(methods.build(method)) else 2
    line = _Line()
    with line:
        original(*draw_views(12, 8, tensors))
    possible = []
    for number, mistake in enumerate(MISTAKES):
        for name, place in line.seen:
            if place and name in mistake.calls and (number, place) not in possible:
                possible.append((number, place))
    draws = [draw_views(n, q, tensors, seed=n) for n, q in ((12, 8), (8, 12))]
    wanted = [_looked_at(original, draw) for draw in draws]
    different = []
    for number, place in possible:
        try:
            found = [_looked_at(Mutant(method, number, place), draw) for draw in draws]
        except Exception:  # a mistake that cannot run is noticed by whoever makes it
            continue
        if max(map(relative, found, wanted)) > SAME:
            different.append((number, place))
    step = max(1.0, len(different) / most)
    for index in range(min(most, len(different))):
        yield different[int(step * index)]


def _looked_at(loss: Mutant, views_NQ: Sequence[Tensor]) -> Tensor:
    """Put value and gradients into one vector."""
    with seeded(0):
        value, gradients = evaluate(lambda views, seed=0: loss(*views), views_NQ)
    return torch.cat([value.reshape(1), *(gradient_NQ.flatten() for gradient_NQ in gradients)])


@dataclass(frozen=True)
class Examined:
    """What the audit found of a method as it is, of its twin or of a mutant.

    Attributes:
        method: Name of the method.
        mistake: Name of the mistake; empty for the method and its twin.
        line: The line of code that is wrong.
        found: Severities and names of what was found, that of the method itself left out.
    """

    method: str
    mistake: str
    line: str
    found: Sequence[str]

    def __str__(self) -> str:
        """Describe it in a line."""
        what = f"{self.mistake} in {self.line}" if self.mistake else "nothing"
        return f"{self.method}, {what}: {', '.join(self.found) or 'nothing'}"


def examine(method: str, probes: Sequence[str], most: int = 20) -> Iterator[Examined]:
    """Audit a method as it is, its twin and its mutants."""
    known: set[str] = set()
    for number, place in [(ORIGINAL, ""), (TWIN, ""), *mutants(method, most)]:
        expression = f"planting:Mutant({method!r}, {number}, {place!r})"
        target = Target(name=method, expression=expression, call=_at_once, claims=method)
        found: dict[str, None] = {}  # each once, in the order of the probes
        for probe in probes:
            for each in run_probe(target, probe):
                # Another factor than the method's is a convention, and rightly found of the twin.
                expected = number == TWIN and each.severity != "defect"
                if each.severity != "note" and each.name not in known and not expected:
                    found[f"{each.severity} {each.name!r}"] = None
                if number == ORIGINAL:
                    known.add(each.name)
        mistake = MISTAKES[number].name if number >= 0 else ""
        file, _, line = place.partition(":")
        text = linecache.getline(str(FOLDER / file), int(line or 0)).strip()
        yield Examined(method, mistake, text, list(found))


def _at_once(loss: Any, batch: Batch) -> Any:
    return loss(*batch.views_NQ, *batch.targets_NQ)


def main() -> None:
    """Print mistakes of which nothing was found, sound losses of which something was, and counts."""
    examined = missed = 0
    for method in sys.argv[1:] or methods.names():
        for entry in examine(method, tuple(PROBES)):
            examined += 1
            if bool(entry.mistake) != bool(entry.found):
                missed += 1
                print(entry)
    print(f"{examined} losses, {missed} misjudged")


if __name__ == "__main__":
    main()
