"""The registry: names, presets, hyperparameters, and methods of other distributions."""

from __future__ import annotations

import dataclasses
import os
import pickle
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from regbench import methods
from regbench.methods import Regularizer
from regbench.spaces import Range
from tests.command import python
from tests.plugin import install
from tests.refusals import is_refused

FOLDER = Path(__file__).parent
every_name = pytest.mark.parametrize("name", methods.names())


DEFAULTS: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "defaults.yaml").read_text())


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_the_published_ones(name: str) -> None:
    found = methods.defaults(name)
    for key, value in found.items():
        found[key] = list(value) if isinstance(value, tuple) else value
    assert found == DEFAULTS[name]


def test_a_list_is_as_good_as_a_tuple() -> None:
    of_list = methods.build("sfrik", weights=[1.0, 40.0])
    assert of_list == methods.build("sfrik", weights=(1.0, 40.0))


COMMANDS = "alpha beta gamma delta epsilon theta lambda mu nu rho sigma tau varphi psi"
GREEK = dict(zip(COMMANDS.split(), "αβγδεθλμνρστφψ", strict=True))


def test_the_typeset_formulas_are_balanced_and_use_the_letters_of_the_plain_ones() -> None:
    for data in {type(methods.build(name)).metadata for name in methods.names()}:
        for opening, closing in (("{", "}"), ("(", ")"), (r"\left", r"\right")):
            assert data.latex.count(opening) == data.latex.count(closing), (data.title, opening)
        commands = GREEK.keys() & set(re.findall(r"\\([a-z]+)", data.latex))
        letters = set(re.findall("[α-ω]", data.formula))
        assert {GREEK[command] for command in commands} == letters, data.title


@every_name
def test_every_method_states_a_space_around_its_defaults(name: str) -> None:
    method = methods.build(name)
    assert method.space is not None
    assert sum(isinstance(each, Range) and each.balances for each in method.space.values()) <= 1
    for key, each in method.space.items():
        assert isinstance(each, Range)
        # Published at one of these sizes.
        sizes = (each.at(64, 128), each.at(2048, 8192))
        assert any(0 <= size.position(getattr(method, key)) <= 1 for size in sizes), key


@every_name
def test_defaults_build_the_same_method(name: str) -> None:
    assert methods.build(name, **methods.defaults(name)) == methods.build(name)


@every_name
def test_methods_are_frozen_and_can_be_sent_to_another_process(name: str) -> None:
    method = methods.build(name)
    assert pickle.loads(pickle.dumps(method)) == method
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.anything = 1.0  # type: ignore[attr-defined]


PRESETS = {
    "kcl": "kcl_gaussian kcl_imq kcl_log kcl_riesz",
    "kerjepa": "kerjepa_ksd_gaussian kerjepa_ksd_imq kerjepa_mmd kerjepa_sliced_mmd",
    "sfrik": "sfrik_l1 sfrik_l2 sfrik_l3",
    "spherical_mmd": "spherical_ksd_bandlimited spherical_ksd_heat spherical_mmd_bandlimited "
    "spherical_mmd_heat susreg_mmd",
    "ur_jepa": "ur_jepa_derivative",
}


def test_registry_names_are_those_of_the_classes() -> None:
    assert methods.names() == sorted(methods.names())
    presets: dict[str, list[str]] = {}
    for name in methods.names():
        method = methods.build(name)
        found = methods.registry_name(method)
        assert type(methods.build(found)) is type(method)
        if found != name:
            presets.setdefault(found, []).append(name)
    assert {found: " ".join(names) for found, names in presets.items()} == PRESETS


@pytest.mark.parametrize(
    ("weights", "label"),
    [
        ((1.0, 40.0, 40.0), "SFRIK (L=3)"),
        ((1.0, 20.0, 0.0), "SFRIK (L=2)"),
        ((0.0, 0.0, 0.0, 2.0), "SFRIK (L=4)"),
    ],
)
def test_the_label_of_sfrik_tells_its_order(weights: tuple[float, ...], label: str) -> None:
    assert methods.build("sfrik", weights=weights).label == label


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with is_refused("unknown method 'vicregg'; did you mean vicreg"):
        methods.build("vicregg")
    with is_refused("sfrik_l2"):
        methods.build("sfrik_l22")
    with is_refused(r"auh.*vicreg"):
        methods.build("123456789")


def test_an_unknown_hyperparameter_is_refused_with_those_there_are() -> None:
    with is_refused(r"^vicreg: this method has no setting 'scale'; .*variance_weight"):
        methods.build("vicreg", scale=1.0)


@pytest.mark.parametrize(
    ("name", "key", "value", "words"), yaml.safe_load((FOLDER / "refused.yaml").read_text())
)
def test_wrong_hyperparameters_are_refused(name: str, key: str, value: Any, words: str) -> None:
    value = tuple(value) if isinstance(value, list) else value
    with is_refused(re.escape(words)) as caught:
        methods.build(name, **{key: value})
    assert re.match(f"{name}: .*{key}=", str(caught.value))


def new_class(**presets: Any) -> Callable[[str], Any]:
    def make(name: str) -> Any:
        return methods.register(name, **presets)(type("Intruder", (Regularizer,), {}))

    return make


def test_a_taken_name_is_refused_and_nothing_is_registered() -> None:
    before, sfrik = methods.names(), methods.build("sfrik")
    with is_refused(r"'sfrik'.*taken by regbench\.methods\.sfrik"):
        new_class()("sfrik")
    with is_refused("'sfrik_l2'"):
        new_class(sfrik_l2={})("a_new_name")
    with is_refused("'sfrik_l3'"):
        new_class()("sfrik_l3")
    assert methods.names() == before
    assert methods.build("sfrik") == sfrik


def test_a_method_of_another_distribution_is_found(tmp_path: Path) -> None:
    source = textwrap.dedent(
        '''
        from dataclasses import dataclass
        from typing import ClassVar
        from regbench.methods.base import Metadata, register
        from regbench.methods.forms.kernel import KernelRegularizer

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
        from regbench.benchmark.settings.cell import Cell
        from regbench.benchmark.settings.sweep import load_run
        assert {"elsewhere_kernel", "elsewhere_kernel_strong", "sfrik"} <= set(methods.names())
        cell, _ = load_run(["method=elsewhere_kernel_strong", "embedding_dim=8"])
        assert cell.plain()["method"] == {"name": "elsewhere_kernel", "alignment_weight": 99.0}
        assert Cell.stored(cell.plain()) == cell
        print(methods.build("elsewhere_kernel", alignment_weight=0.0).loss(torch.eye(4), torch.eye(4)).item())
        """
    )
    environment = {**os.environ, "PYTHONPATH": install(tmp_path, "elsewhere_kernel", source)}
    done = python(program, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(0.25)


def test_the_page_of_comparisons_has_a_row_for_every_method_and_names_tests_that_exist() -> None:
    text = (FOLDER.parents[1] / "docs" / "results" / "family.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|.*`test_\w+` \|$", text, re.MULTILINE)
    assert rows == sorted({methods.registry_name(methods.build(name)) for name in methods.names()})
    tests = "".join(path.read_text() for path in FOLDER.glob("test_*.py"))
    missing = {name for name in re.findall(r"`(test_\w+)`", text) if f"def {name}(" not in tests}
    assert not missing
