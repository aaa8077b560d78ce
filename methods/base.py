"""The regularizer interface and the registry.

Shapes: N = images in the batch (n), Q = embedding dimension (q). `z1_NQ[i]` and `z2_NQ[i]` are the embeddings of
the two views of image i, as the projector gives them: a method that works on the sphere normalises them itself.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.metadata
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from regbench import RegbenchError


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """What a reader of a table wants to know of a method.

    Attributes:
        title: Display name.
        reference: Authors, venue and year of the publication.
        url: Where to read it.
        formula: The loss in plain Unicode mathematics.
        time: Complexity of value and gradient in n and q.
        memory: Complexity of the memory beyond the embeddings and their gradient.
        published: The hyperparameters of the publication and what they were used on; the defaults are from there.
        limitation: What the original has that two views and a projector cannot give; empty if nothing.
        scale_invariant: Whether the lengths of the embeddings do not matter (methods on the sphere).
        rotation_invariant: Whether one rotation of all embeddings leaves the value as it is.
        symmetric: Whether the views can be exchanged.
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


class Regularizer(ABC):
    """A loss on the embeddings of two views: alignment plus what keeps the network from collapsing.

    A subclass is a frozen keyword-only dataclass of its hyperparameters, decorated by `register`. It states
    `metadata` and implements `terms`; everything else (fp32, checks, configuration, tests, table rows) is done for it.
    """

    metadata: ClassVar[Metadata]

    @abstractmethod
    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """The weighted addends of the loss, by name.

        Args:
            z1_NQ: Embeddings of the first views, shape (n, q), float32 or float64.
            z2_NQ: Embeddings of the second views, same shape and dtype.

        Returns:
            Scalars whose sum is the loss. A constant (such as a Gram matrix's diagonal) is an addend of its own,
            so that curves show what moves.
        """

    @property
    def label(self) -> str:
        """The name in tables and figures; the hyperparameters are not in it unless they make another method."""
        return self.metadata.title

    def __call__(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """Checks the embeddings and computes `terms` in at least float32, whatever the autocast.

        Unscaled half-precision Gram matrices cost up to 12 % of the gradient, so none are made.

        Args:
            z1_NQ: Embeddings of the first views, shape (n, q), any floating dtype.
            z2_NQ: Embeddings of the second views, shape (n, q).

        Returns:
            The addends of the loss: scalars, float64 if the embeddings are, else float32.

        Raises:
            RegbenchError: If the shapes differ, are not (n, q), or n < 2.
        """
        if z1_NQ.shape != z2_NQ.shape or z1_NQ.ndim != 2 or len(z1_NQ) < 2:
            raise RegbenchError(
                f"{self.label}: embeddings must be two (n, q) tensors of one shape with n >= 2, "
                f"not {tuple(z1_NQ.shape)} and {tuple(z2_NQ.shape)}"
            )
        dtype = torch.float64 if z1_NQ.dtype == torch.float64 else torch.float32
        with torch.autocast(z1_NQ.device.type, enabled=False):
            return self.terms(z1_NQ.to(dtype), z2_NQ.to(dtype))

    def loss(self, z1_NQ: Tensor, z2_NQ: Tensor) -> Tensor:
        """The sum of the addends: a scalar."""
        return torch.stack(list(self(z1_NQ, z2_NQ).values())).sum()

    def require(self, condition: bool, what: str) -> None:
        """Refuses a hyperparameter.

        Raises:
            RegbenchError: Unless `condition` holds, naming the method and `what` must hold.
        """
        if not condition:
            values = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in _fields(type(self)))
            raise RegbenchError(f"{self.metadata.title}: {what} (got {values})")


R = TypeVar("R", bound=type[Regularizer])
_classes: dict[str, type[Regularizer]] = {}
_presets: dict[str, tuple[type[Regularizer], Mapping[str, Any]]] = {}


def register(name: str, **presets: Mapping[str, Any]) -> Callable[[R], R]:
    """Registers a regularizer under `name`, and each preset (name -> hyperparameters) under its own.

    Args:
        name: What users write after `method=`.
        **presets: Names of variants, with the hyperparameters that differ from the defaults.

    Returns:
        The class decorator.

    Raises:
        RegbenchError: If a name is taken.
    """

    def decorate(cls: R) -> R:
        for new in (name, *presets):
            if new in _presets:
                raise RegbenchError(
                    f"method name {new!r} of {cls.__module__} is taken by {_presets[new][0].__module__}; choose another"
                )
        _classes[name] = cls
        _presets[name] = (cls, {})
        _presets.update({preset: (cls, values) for preset, values in presets.items()})
        return cls

    return decorate


@cache
def _discover() -> None:
    """Imports every module of this package and every entry point of the group `regbench.methods`."""
    package = importlib.import_module("regbench.methods")
    for module in pkgutil.iter_modules(package.__path__, "regbench.methods."):
        importlib.import_module(module.name)
    for entry_point in importlib.metadata.entry_points(group="regbench.methods"):
        entry_point.load()


def names() -> list[str]:
    """All method names, presets included, sorted."""
    _discover()
    return sorted(_presets)


def _lookup(name: str) -> tuple[type[Regularizer], Mapping[str, Any]]:
    _discover()
    if name not in _presets:
        near = difflib.get_close_matches(name, _presets, n=3, cutoff=0.5) or sorted(_presets)
        raise RegbenchError(f"unknown method {name!r}; did you mean {', '.join(near)}? (see: regbench methods)")
    return _presets[name]


def _fields(cls: type[Regularizer]) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(cls)  # type: ignore[arg-type]  # every registered class is a dataclass


def build(name: str, **hyperparameters: Any) -> Regularizer:
    """The regularizer `name` with some hyperparameters changed.

    Raises:
        RegbenchError: If the name or a hyperparameter is unknown, or a value is refused.
    """
    cls, preset = _lookup(name)
    known = [f.name for f in _fields(cls)]
    for key in hyperparameters:
        if key not in known:
            raise RegbenchError(f"method {name!r} has no hyperparameter {key!r}; it has {', '.join(known)}")
    return cls(**{**preset, **hyperparameters})


def registry_name(regularizer: Regularizer) -> str:
    """The name that `regularizer`'s class is registered under (not that of a preset)."""
    return next(name for name, cls in _classes.items() if cls is type(regularizer))


def defaults(name: str) -> dict[str, Any]:
    """The hyperparameters of `name`, by name, as `build(name)` would set them."""
    regularizer = build(name)
    return {f.name: getattr(regularizer, f.name) for f in _fields(type(regularizer))}
