"""bf16 on processors that multiply it faster or more slowly than float32."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from regbench.benchmark.machine.bf16 import ProductsInFloat32, fast_bf16
from regbench.benchmark.run import run_cell
from regbench.benchmark.settings.sweep import load_run

CPU = torch.device("cpu")
PRODUCTS = {"convolution", "convolution_backward", "mm", "addmm", "bmm"}


class Watch(TorchDispatchMode):
    """Notes the dtype of the first operand of each product."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: dict[str, set[torch.dtype]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in PRODUCTS:
            self.dtypes.setdefault(name, set()).add(args[0].dtype)
        return func(*args, **(kwargs or {}))


def pretend(monkeypatch: pytest.MonkeyPatch, *, vendor: str, avx512_bf16: bool, amx: bool) -> None:
    """Let the machine be one with another processor."""
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    processor = "regbench.benchmark.machine.description.processor"
    monkeypatch.setattr(processor, {"vendor_id": vendor}.get)


@pytest.fixture(params=[True, False], ids=["fast", "slow"])
def is_fast(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    vendor = "AuthenticAMD" if request.param else "GenuineIntel"
    pretend(monkeypatch, vendor=vendor, avx512_bf16=True, amx=False)
    return bool(request.param)


@pytest.mark.parametrize(
    ("vendor", "avx512_bf16", "amx", "fast"),
    [
        ("GenuineIntel", True, True, True),  # Sapphire Rapids
        # The same under a hypervisor that hides AMX, and Cooper Lake.
        ("GenuineIntel", True, False, False),
        ("GenuineIntel", False, False, False),
        ("AuthenticAMD", True, False, True),  # Zen 4
        ("AuthenticAMD", False, False, False),
    ],
)
def test_which_processors_multiply_bf16_themselves(
    monkeypatch: pytest.MonkeyPatch, vendor: str, avx512_bf16: bool, amx: bool, fast: bool
) -> None:
    pretend(monkeypatch, vendor=vendor, avx512_bf16=avx512_bf16, amx=amx)
    assert isinstance(fast_bf16(CPU, "bf16"), ProductsInFloat32) != fast


def test_training_and_evaluation_multiply_in_float32_where_bf16_is_slow(
    tiny: Sequence[str], is_fast: bool
) -> None:
    changes = ["precision=bf16", "evaluation.precision=bf16", "evaluation.protocols=[knn]"]
    with Watch() as watch:
        run_cell(*load_run([*tiny, *changes]), "test")
    expected = torch.bfloat16 if is_fast else torch.float32
    assert watch.dtypes["convolution"] == watch.dtypes["convolution_backward"] == {expected}
    # Measures are computed in float32 anywhere, and so are losses.
    assert (torch.bfloat16 in watch.dtypes["mm"]) == is_fast


def test_nothing_changes_in_float32_or_on_a_gpu(is_fast: bool) -> None:
    assert not isinstance(fast_bf16(CPU, "fp32"), ProductsInFloat32)
    assert not isinstance(fast_bf16(torch.device("cuda"), "bf16"), ProductsInFloat32)
    assert isinstance(fast_bf16(CPU, "bf16"), ProductsInFloat32) != is_fast


class Products(nn.Module):
    """A convolution, a linear layer with and without bias, and a product of batches."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.Flatten(2), nn.Linear(49, 40))
        self.last = nn.Linear(40, 40, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.layers(x))
        return y @ y.transpose(1, 2)


def gradients(context: contextlib.AbstractContextManager[Any]) -> list[Tensor]:
    """The products, and their gradients with respect to images and weights."""
    torch.manual_seed(0)
    network, x = Products(), torch.randn(4, 3, 16, 16, requires_grad=True)
    with context:
        with torch.autocast("cpu", torch.bfloat16):
            out = network(x)
        torch.autograd.backward(out, torch.randn(out.shape).bfloat16())
    return [out.detach(), x.grad, *(p.grad for p in network.parameters())]


def test_numbers_are_those_of_torchs_own_products_but_for_the_order_of_sums() -> None:
    with Watch() as watch:
        fast = gradients(ProductsInFloat32())
    assert watch.dtypes == {name: {torch.float32} for name in PRODUCTS}
    for ours, torchs in zip(fast, gradients(contextlib.nullcontext()), strict=True):
        assert ours.dtype == torchs.dtype
        error = (ours.float() - torchs.float()).norm() / torchs.float().norm()
        # Another order of a sum may round its result to the next number, 2⁻⁸ away.
        assert error < 2**-8
