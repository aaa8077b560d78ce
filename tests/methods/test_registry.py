"""The registry: names, presets, hyperparameters, and methods of other distributions."""

from __future__ import annotations

import dataclasses
import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regbench import RegbenchError, methods
from regbench.methods import Regularizer
from tests.plugin import install

every_name = pytest.mark.parametrize("name", methods.names())


def test_the_papers_methods_are_there() -> None:
    expected = {"auh", "generalized_distance", "rbf", "sfrik", "sfrik_l1", "sfrik_l2", "sfrik_l3", "simclr", "vicreg"}
    assert expected <= set(methods.names())
    assert methods.names() == sorted(methods.names())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sfrik", {"weights": (1.0, 40.0, 40.0), "alignment_weight": 4000.0}),
        ("sfrik_l1", {"weights": (1.0,), "alignment_weight": 10000.0}),
        ("sfrik_l2", {"weights": (1.0, 20.0), "alignment_weight": 2000.0}),
        ("sfrik_l3", {"weights": (1.0, 40.0, 40.0), "alignment_weight": 4000.0}),
        ("rbf", {"scale": 2.0, "alignment_weight": 100.0}),
        ("generalized_distance", {"exponent": 2.0, "alignment_weight": 10000.0}),
        ("auh", {"scale": 2.5, "alignment_weight": 3000.0}),
        ("simclr", {"temperature": 0.15}),
        (
            "vicreg",
            {"alignment_weight": 25.0, "variance_weight": 25.0, "covariance_weight": 1.0, "epsilon": 1e-4},
        ),
    ],
)
def test_defaults_are_the_published_ones(name: str, expected: dict[str, Any]) -> None:
    assert methods.defaults(name) == expected


@every_name
def test_defaults_build_the_same_method(name: str) -> None:
    assert methods.build(name, **methods.defaults(name)) == methods.build(name)


@every_name
def test_methods_are_frozen_and_can_be_sent_to_another_process(name: str) -> None:
    method = methods.build(name)
    assert pickle.loads(pickle.dumps(method)) == method
    field = next(iter(methods.defaults(name)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(method, field, 1.0)


PRESETS = (
    {("kerjepa", name) for name in ("kerjepa_mmd", "kerjepa_ksd_gaussian", "kerjepa_ksd_imq")}
    | {("sfrik", name) for name in ("sfrik_l1", "sfrik_l2", "sfrik_l3")}
    | {
        ("spherical_mmd", name)
        for name in methods.names()
        if name == "susreg_mmd" or name.startswith(("spherical_mmd_", "spherical_ksd_"))
    }
)


@every_name
def test_registry_name_is_that_of_the_class(name: str) -> None:
    method = methods.build(name)
    found = methods.registry_name(method)
    assert type(methods.build(found)) is type(method)
    assert found == name or (found, name) in PRESETS


@pytest.mark.parametrize(
    ("weights", "label"),
    [((1.0, 40.0, 40.0), "SFRIK (L=3)"), ((1.0, 20.0, 0.0), "SFRIK (L=2)"), ((0.0, 0.0, 0.0, 2.0), "SFRIK (L=4)")],
)
def test_the_label_of_sfrik_tells_its_order(weights: tuple[float, ...], label: str) -> None:
    assert methods.build("sfrik", weights=weights).label == label


def test_trailing_zero_weights_do_not_change_the_order() -> None:
    assert methods.build("sfrik", weights=(1.0, 0.0, 0.0)).label == methods.build("sfrik_l1").label


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(RegbenchError, match="unknown method 'vicregg'; did you mean vicreg"):
        methods.build("vicregg")
    with pytest.raises(RegbenchError, match="sfrik_l2"):
        methods.build("sfrik_l22")
    with pytest.raises(RegbenchError, match=r"auh.*vicreg"):
        methods.build("123456789")


def test_an_unknown_hyperparameter_is_refused_with_those_there_are() -> None:
    with pytest.raises(RegbenchError, match=r"'vicreg' has no hyperparameter 'scale'.*variance_weight"):
        methods.build("vicreg", scale=1.0)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("sfrik", {"weights": (1.0, -1.0)}),
        ("sfrik", {"weights": (0.0, 0.0)}),
        ("sfrik", {"weights": ()}),
        ("sfrik", {"alignment_weight": -1.0}),
        ("rbf", {"scale": 0.0}),
        ("rbf", {"alignment_weight": -1.0}),
        ("auh", {"scale": -2.0}),
        ("auh", {"alignment_weight": -2.0}),
        ("generalized_distance", {"exponent": 0.0}),
        ("generalized_distance", {"exponent": 2.1}),
        ("simclr", {"temperature": 0.0}),
        ("vicreg", {"covariance_weight": -1.0}),
        ("vicreg", {"epsilon": 0.0}),
        ("rbf", {"scale": float("nan")}),
    ],
)
def test_impossible_hyperparameters_are_refused(name: str, values: dict[str, Any]) -> None:
    with pytest.raises(RegbenchError) as caught:
        methods.build(name, **values)
    key = next(iter(values))
    assert f"{key}=" in str(caught.value)
    assert "\n" not in str(caught.value)


def new_class(**presets: Any) -> Callable[[str], Any]:
    def make(name: str) -> Any:
        return methods.register(name, **presets)(type("Intruder", (Regularizer,), {}))

    return make


def test_a_taken_name_is_refused_and_nothing_is_registered() -> None:
    before, sfrik = methods.names(), methods.build("sfrik")
    with pytest.raises(RegbenchError, match=r"'sfrik'.*taken by regbench\.methods\.sfrik"):
        new_class()("sfrik")
    with pytest.raises(RegbenchError, match="'sfrik_l2'"):
        new_class(sfrik_l2={})("a_new_name")
    with pytest.raises(RegbenchError, match="'sfrik_l3'"):
        new_class()("sfrik_l3")
    assert methods.names() == before
    assert methods.build("sfrik") == sfrik


def test_a_method_of_another_distribution_is_found(tmp_path: Path) -> None:
    source = textwrap.dedent(
        '''
        from dataclasses import dataclass
        from typing import ClassVar
        from regbench.methods.base import Metadata, register
        from regbench.methods.kernel import KernelRegularizer

        @register("elsewhere_kernel", elsewhere_kernel_strong={"alignment_weight": 99.0})
        @dataclass(frozen=True, kw_only=True)
        class Quadratic(KernelRegularizer):
            """phi(t) = t^2 (2023)."""
            alignment_weight: float = 4.0
            metadata: ClassVar[Metadata] = Metadata(
                title="elsewhere_kernel", reference="X 2023", url="https://x", formula="t^2", time="n",
                memory="n", published="x")

            def kernel(self, t, q):
                return t.square()
        '''
    )
    program = textwrap.dedent(
        """
        import torch
        from regbench import methods
        from regbench.benchmark.config import Cell, load_run
        assert {"elsewhere_kernel", "elsewhere_kernel_strong", "sfrik"} <= set(methods.names())
        cell, _ = load_run(["method=elsewhere_kernel_strong", "embedding_dim=8"])
        assert cell.to_dict()["method"] == {"name": "elsewhere_kernel", "alignment_weight": 99.0}
        assert Cell.from_dict(cell.to_dict()) == cell
        print(methods.build("elsewhere_kernel", alignment_weight=0.0).loss(torch.eye(4), torch.eye(4)).item())
        """
    )
    environment = {**os.environ, "PYTHONPATH": install(tmp_path, "elsewhere_kernel", source)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(0.25)
