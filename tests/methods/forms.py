"""Every method, and a loss in all its forms."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from regbench import methods
from regbench.methods import Engine, Regularizer

Array = npt.NDArray[np.float64]


def _quick(name: str) -> Regularizer:
    """Build a method, along few directions where it draws some: the properties are the same
    along any number.
    """
    directions = methods.defaults(name).get("directions", 0)
    return methods.build(name, directions=256) if directions > 256 else methods.build(name)


VARIANTS: dict[str, Regularizer] = {name: _quick(name) for name in methods.names()} | {
    "generalized_distance, p=1": methods.build("generalized_distance", exponent=1.0),
    "generalized_distance, p=0.5": methods.build("generalized_distance", exponent=0.5),
    "frossl, not centred": methods.build("frossl", centered=False),
    "sfrik, L=5": methods.build("sfrik", weights=(1.0, 2.0, 3.0, 4.0, 5.0)),
    "sfrik, without the first order": methods.build("sfrik", weights=(0.0, 1.0)),
}
every_method = pytest.mark.parametrize("method", VARIANTS.values(), ids=VARIANTS.keys())


def evaluate(
    name: str, z1_NQ: Tensor, z2_NQ: Tensor, **hyperparameters: object
) -> tuple[float, dict[str, float]]:
    """The loss of the default form and its addends, which must be those of every other form."""
    method = methods.build(name, **hyperparameters)
    found = {}
    for form in ("auto", *method.forms):
        torch.manual_seed(0)  # random methods draw the same in every form
        loss = method(z1_NQ, z2_NQ, engine=Engine(form=form))
        found[form] = loss.total.item(), {term: value.item() for term, value in loss.terms.items()}
    total, terms = found["auto"]
    for form, (other, addends) in found.items():
        size = sum(map(abs, addends.values()))
        assert other == pytest.approx(total, abs=1e-10 * size), form
        assert addends == pytest.approx(terms, abs=1e-10 * size), form
    return total, terms


class Operations(TorchDispatchMode):
    """Lists the operations of torch: name, elements of the result and of its memory, and the
    device that is asked for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, int, int, str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            stored = out.untyped_storage().nbytes() // out.element_size()
            device = str((kwargs or {}).get("device"))
            self.made.append((func.overloadpacket.__name__, out.numel(), stored, device))
        return out

    @property
    def largest(self) -> int:
        """Elements of the largest tensor's memory."""
        return max(stored for _, _, stored, _ in self.made)


def draw(n: int, q: int, seed: int = 0) -> tuple[Array, Array]:
    """Embeddings of two views for evaluations in NumPy."""
    source = np.random.default_rng(seed)
    z1 = source.normal(size=(n, q))
    return z1, z1 + 0.5 * source.normal(size=(n, q))


@contextmanager
def as_an_engine_draws() -> Iterator[None]:
    """What is drawn within is what the engine draws in the first call after it."""
    torch.manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, ())))
        yield


def unit(z: Array) -> Array:
    return np.stack([row / np.linalg.norm(row) for row in z])


def terms_of(name: str, z1: Array, z2: Array, **hyperparameters: object) -> dict[str, float]:
    """The addends of such embeddings' loss."""
    return evaluate(name, torch.from_numpy(z1), torch.from_numpy(z2), **hyperparameters)[1]
