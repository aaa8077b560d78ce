"""A method that stands in for the loss of a file: the file itself runs only in processes of its
own.

What such a process returns is checked here: names, settings, scores. See
`regbench.processes.apart` for what a file can do about it.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from regbench import settings
from regbench.benchmark.rundir.record import Record
from regbench.errors import RegbenchError
from regbench.files import Name
from regbench.instruments.audit.target import scalar
from regbench.instruments.loss_checks import KEEPS_STATE, cast, draw_views, seeded
from regbench.methods import METHODS
from regbench.methods.base import Regularizer, register
from regbench.processes import FORKED, CodeFailed, apart, one_line
from regbench.reports.bundle.recompute import Recomputed, recompute
from regbench.settings import AtLeastZero
from regbench.spaces import Choice, Range
from regbench.tracks.own_loss import LossFile, Plain
from regbench.wording import bounds, hints

LIMIT_S = 600.0
"""Time in which a file has to be loaded and to answer a question, such as whether it keeps the
rules of losses.
"""

RECOMPUTE_LIMIT_S = 2 * 3600.0
"""Time in which a cell of a file's loss has to be computed again: by its record, its training took
ten minutes at most.
"""


def ask(
    file: LossFile,
    folder: Path,
    function: Callable[..., Any],
    *arguments: Any,
    limit_s: float | None = None,
) -> Any:
    """Call a function with a file's method in a process of its own, and return its result as JSON
    data.

    Args:
        file: The file.
        folder: Folder for the copy of the file.
        function: Function that takes the method, with its defaults, and the arguments.
        *arguments: The arguments.
        limit_s: Time after which the process is ended; None: `LIMIT_S`.

    Raises:
        RegbenchError: If the file holds no loss, or the function refuses.
        CodeFailed: If the code of the file fails in any other way.
    """
    # Jobs are forked from the same server.
    FORKED.set_forkserver_preload(["regbench.sweeps.preload"])
    return apart(
        str(file.path), limit_s or LIMIT_S, _with_loaded, file, folder, function, arguments
    )


def _with_loaded(
    file: LossFile, folder: Path, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> Any:
    copy = folder.resolve() / f"{file.module}.py"
    # The caller may have it on the path for its jobs, which would make the loss an entry point.
    sys.path[:] = [path for path in sys.path if path != str(copy.parent)]
    try:
        with file.loaded(folder) as method:
            return function(method, *arguments)
    except RegbenchError:
        raise
    except BaseException as error:  # an exit, too
        # The copy has the file's line numbers.
        raise CodeFailed(
            f"{file.path}: {one_line(error, str(copy))}".replace(copy.name, file.path.name)
        ) from error


def compute_once(method: Regularizer, n: int, q: int) -> None:
    """Compute a method and its gradient once, so that a failure is seen before a training is begun.

    Args:
        method: The method.
        n: Batch size.
        q: Embedding dimension.

    Raises:
        RegbenchError: If it cannot be trained, or a second call gives another value.
    """
    if method.target_transform(q) is not None:
        raise RegbenchError(f"{method.label}: a challenge has no teacher for its target_transform")
    views = [z_NQ.requires_grad_() for z_NQ in cast(draw_views(n, q, 2), torch.float32)]
    loss = method(*views)
    for name, term in loss.terms.items():
        if term.ndim:
            raise RegbenchError(
                f"{method.label}: {name} must be a scalar, not a tensor of shape "
                f"{tuple(term.shape)}"
            )
    numbers = [loss.total, *torch.autograd.grad(loss.total, views)]
    if not all(number.isfinite().all() for number in numbers):
        what = f"{method.label}: the value or the gradient of ordinary embeddings is not finite"
        raise RegbenchError(f"{what}; look for a root, a logarithm or a division")
    call = method.made(views[0]) if isinstance(method, Plain) else method
    values = []
    # A state that begins with the first batch changes with another one.
    for seed in (0, 1, 0):
        with seeded(0):
            values.append(scalar(call(*cast(draw_views(n, q, 2, seed), torch.float32))))
    if not torch.allclose(values[0], values[2], rtol=1e-6, equal_nan=True):
        raise RegbenchError(f"{method.label}: {KEEPS_STATE}")


_Value = bool | int | float | str | None


def recompute_apart(
    file: LossFile, record: Record, folder: Path, *, weights: bool, overrides: Sequence[str]
) -> Recomputed:
    """Compute the scores of a cell of a file's loss again, in a process of its own.

    Args:
        file: The file.
        record: Record of the cell; the other arguments, too, are those of
            `regbench.reports.bundle.recompute.recompute`.
        folder: Folder to compute in.
        weights: Whether there are weights.
        overrides: Settings of the runtime.
    """
    arguments = record, folder, weights, tuple(overrides)
    answer = ask(file, folder / "plug_in", _recomputed, *arguments, limit_s=RECOMPUTE_LIMIT_S)
    return settings.from_plain(Recomputed, answer, f"{file.path}: ")


def _recomputed(
    _: Regularizer, record: Record, folder: Path, weights: bool, overrides: Sequence[str]
) -> dict[str, Any]:
    return dataclasses.asdict(recompute(record, folder, weights=weights, overrides=overrides))


@settings.settings
class Facts:
    """What a file says of its method.

    Attributes:
        name: Name that the method is registered under.
        label: Name in tables.
        settings: Its settings, as plain data.
        needs: Parts of a network that it needs.
        of_training: Settings that only act in a training with a teacher.
        prototypes: Number of prototypes.
        space: Search space; what is left out of a `Range` is at its default.
        absent: Settings that older cells lack, with the values that those have.
        bounds: Bounds of each setting, see `wording.bounds`.
    """

    name: Name
    label: str
    settings: dict[str, _Value | tuple[_Value, ...]]
    needs: tuple[str, ...]
    of_training: tuple[str, ...]
    prototypes: AtLeastZero
    space: dict[str, Range | Choice] | None
    absent: dict[str, _Value | tuple[_Value, ...]]
    bounds: dict[str, dict[Literal["gt", "ge", "lt", "le"], float]]


def _facts(method: Regularizer, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Collect the facts of a method with its defaults, or with settings that are given."""
    if given is not None:
        method = METHODS.from_plain({**given, "name": METHODS.name(method)}, "method.")
    space: dict[str, dict[str, Any]] = {}
    known = settings.plain(method)
    for name, each in (method.space or {}).items():
        if name not in known or not isinstance(each, Range | Choice):
            what = f"{method.label}: space: {name} must be a hyperparameter with a Range or Choice"
            raise RegbenchError(f"{what}; there are {', '.join(known) or 'none'}")
        space[name] = {}
        for field in dataclasses.fields(each):
            value = getattr(each, field.name)
            if value != field.default:  # defaults may be infinite, which JSON cannot hold
                space[name][field.name] = value
    return {
        "name": METHODS.name(method),
        "label": method.label,
        "settings": known,
        "needs": method.needs,
        "of_training": method.of_training,
        "prototypes": method.prototypes,
        "space": None if method.space is None else space,
        "absent": settings.plain(method.absent),
        "bounds": {name: bounds(hints(type(method))[name]) for name in known},
    }


class StandIn(Regularizer):
    """A method of which this process has the facts and not the code.

    Attributes:
        facts_of: Returns the facts of settings.
    """

    facts_of: ClassVar[Callable[[Mapping[str, Any]], Facts]]
    has_code = False

    def __post_init__(self) -> None:
        """Refuse the settings that the file refuses.

        The others get the types that they have there.
        """
        for name, value in self._facts.settings.items():
            object.__setattr__(self, name, value)

    @property
    def _facts(self) -> Facts:
        return type(self).facts_of(settings.plain(self))

    @property
    def label(self) -> str:
        """The name in tables."""
        return self._facts.label

    @property
    def prototypes(self) -> int:
        """Number of the network's prototypes."""
        return self._facts.prototypes

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """Refuse to compute the loss."""
        raise RegbenchError(f"{self.label} is computed in processes of its own alone")


@contextmanager
def entered(file: LossFile, folder: Path) -> Iterator[StandIn]:
    """Register a stand-in for the loss of a file as a method while the context lasts.

    Args:
        file: The file.
        folder: Folder for its copy.

    Yields:
        The stand-in with the defaults of the loss.

    Raises:
        RegbenchError: If the file holds no loss, or several, or does not give the facts of it.
        CodeFailed: If the code of the file fails in any other way.
    """
    known: dict[str, Facts] = {}

    def facts_of(given: Mapping[str, Any] | None) -> Facts:
        key = json.dumps(given)
        if key not in known:
            answer = ask(file, folder, _facts, given)
            known[key] = settings.from_plain(Facts, answer, f"{file.path}: ")
            known[json.dumps(known[key].settings)] = known[key]
        return known[key]

    facts = facts_of(None)
    fields = []
    for name, value in facts.settings.items():
        fields.append((name, Annotated[Any, Field(**facts.bounds.get(name, {}))], value))  # type: ignore[call-overload]
    made = dataclasses.make_dataclass(
        "StandIn",
        fields,
        bases=(StandIn,),
        frozen=True,
        kw_only=True,
        namespace={
            "__module__": __name__,
            "facts_of": staticmethod(facts_of),
            "needs": facts.needs,
            "of_training": facts.of_training,
            "space": facts.space,
            "absent": facts.absent,
        },
    )
    register(facts.name)(made)
    try:
        yield METHODS.build(facts.name)  # type: ignore[misc]
    finally:
        METHODS.unregister(facts.name)
