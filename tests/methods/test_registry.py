"""The registry: names, presets, hyperparameters, and methods of other distributions."""

from __future__ import annotations

import dataclasses
import math
import os
import pickle
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regbench import RegbenchError, methods
from regbench.methods import Regularizer
from regbench.spaces import Range
from tests.plugin import install

every_name = pytest.mark.parametrize("name", methods.names())


def test_the_papers_methods_are_there() -> None:
    expected = {
        "auh",
        "generalized_distance",
        "rbf",
        "sfrik",
        "sfrik_l1",
        "sfrik_l2",
        "sfrik_l3",
        "simclr",
        "vicreg",
    }
    assert expected <= set(methods.names())
    assert methods.names() == sorted(methods.names())


# By hand from the publications, or from their authors' code; "ours" where neither has one.
VICREG = {
    "alignment_weight": 25.0,
    "variance_weight": 25.0,
    "covariance_weight": 1.0,
    "epsilon": 1e-4,
}
SPHERICAL = {
    "statistic": "mmd",
    "spectrum": "heat",
    "diffusion_time": 5.0,
    "order": 2,
    "regularization_weight": 0.05,
}
KCL = {"kernel": "gaussian", "scale": 2.0, "energy_weight": 16.0}
UR_JEPA = {
    **{
        "statistic": "cglt",
        "regularization_weight": 0.02,
        "scale": 1000.0,
        "dimension": 7,
        "scales": 5,
    },
    "regularity_weight": 0.1,
}
KERJEPA = {
    "statistic": "ksd",
    "kernel": "imq",
    "regularization_weight": 10.0,
    "bandwidth": 1.0,
}  # all ours
DEFAULTS: dict[str, dict[str, Any]] = {
    # Zheng et al. (ICLR 2023), appendix, at q = 8192 on IN20 %.
    "sfrik": {"weights": (1.0, 40.0, 40.0), "alignment_weight": 4000.0, "regularize_local": True},
    "sfrik_l1": {"weights": (1.0,), "alignment_weight": 10000.0, "regularize_local": True},
    "sfrik_l2": {"weights": (1.0, 20.0), "alignment_weight": 2000.0, "regularize_local": True},
    "sfrik_l3": {
        "weights": (1.0, 40.0, 40.0),
        "alignment_weight": 4000.0,
        "regularize_local": True,
    },
    "rbf": {"scale": 2.0, "alignment_weight": 100.0},
    "generalized_distance": {"exponent": 2.0, "alignment_weight": 10000.0},
    "auh": {"scale": 2.5, "alignment_weight": 3000.0},
    "simclr": {"temperature": 0.15},
    "quadratic": {"alignment_weight": 2000.0},  # ours: that of SFRIK, L = 2
    # Bardes et al. (ICLR 2022), Section 4.2; epsilon in Eq. (1).
    "vicreg": VICREG,
    # Garrido et al. (ICLR 2023): weights ours (VICReg's), the temperature of the main text.
    "vicreg_exp": VICREG | {"temperature": 0.15},
    "vicreg_ctr": VICREG | {"temperature": 0.15, "centering": "batch"},
    # Zbontar et al. (ICML 2021), Section 2.2, and the released command; torch's epsilon of
    # BatchNorm1d.
    "barlow_twins": {"redundancy_weight": 0.0051, "scale": 0.024, "epsilon": 1e-5},
    # Ozsoy et al. (NeurIPS 2022), on ImageNet-100; epsilon of the code.
    "corinfomax": {"alignment_weight": 500.0, "epsilon": 1e-8},
    # Caron et al. (ICCV 2021), of 300 epochs.
    "dino": {
        **{"prototypes": 65536, "student_temperature": 0.1, "teacher_temperature": 0.07},
        **{"first_teacher_temperature": 0.04, "warmup": 0.1, "center_momentum": 0.9},
        "prototype_weights": "uniform",
    },
    # Caron et al. (NeurIPS 2020), the code.
    "swav": {
        "prototypes": 3000,
        "temperature": 0.1,
        "epsilon": 0.05,
        "iterations": 3,
        "prototype_weights": "unit",
    },
    # Chen et al. (ICCV 2021), the code's for ResNets.
    "moco_v3": {"temperature": 1.0},
    # Yeh et al. (ECCV 2022).
    "dcl": {"temperature": 0.1},
    "dclw": {"temperature": 0.1, "sigma": 0.5},
    # Koromilas et al. (ICML 2024), the code.
    "dhel": {"temperature": 0.3},
    # Skean et al. (ECCV 2024).
    "frossl": {"alignment_weight": 1.0, "centered": True},
    # Xie et al. (ECCV 2020), the training scripts.
    "hardest_contrastive": {"positive_margin": 0.1, "negative_margin": 1.4, "negative_weight": 1.0},
    "info_nce": {"temperature": 0.4},
    # Weng et al. (ICLR 2024): 0.01 (log2(256) - 3), and four steps.
    "intl": {"trace_weight": 0.05, "iterations": 4},
    # Kim et al. (CVPR 2023), the released script.
    "ivne": {"alignment_weight": 4.16, "entropy_weight": 1.0},
    "kerjepa": KERJEPA,
    "kerjepa_ksd_imq": KERJEPA,
    "kerjepa_ksd_gaussian": KERJEPA | {"kernel": "gaussian"},
    "kerjepa_sliced_mmd": KERJEPA | {"statistic": "sliced_mmd", "kernel": "gaussian"},
    "kerjepa_mmd": KERJEPA | {"statistic": "mmd", "kernel": "gaussian"},
    # Oquab et al. (TMLR 2024), 0.1 for the sum over two crops; the alignment is ours.
    "koleo": {"alignment_weight": 1000.0, "uniformity_weight": 0.2, "epsilon": 1e-8},
    # Koromilas et al. (ICML 2024), the code; the scale of `riesz` is ours.
    "kcl": KCL,
    "kcl_gaussian": KCL,
    "kcl_log": KCL | {"kernel": "log"},
    "kcl_imq": KCL | {"kernel": "imq"},
    "kcl_riesz": KCL | {"kernel": "riesz", "scale": -1.0},
    # Liu et al. (NeurIPS 2022), the released command.
    "mec": {"distortion": 64.0, "order": 4, "warmup": 0.0},
    # Kuang et al. (2026), on ImageNet-100.
    "rdmreg": {
        **{"alignment_weight": 25.0, "regularization_weight": 125.0, "directions": 8192},
        **{"power": 1.0, "shift": 0.0},
    },
    # Nicollier et al. (2026), SPHERE-JEPA; the quadrature is ours.
    "susreg": {
        "regularization_weight": 0.05,
        "directions": 1024,
        "knots": 17,
        "largest_frequency": 5.0,
    },
    # Mordacq et al. (NeurIPS 2025), Section 5.1.
    "tregs": {"alignment_weight": 10.0, "length_weight": 0.2, "sphere_weight": 8e-4},
    # Le (2026), the release.
    "ur_jepa": UR_JEPA,
    "ur_jepa_derivative": UR_JEPA | {"statistic": "derivative"},
    # Akbar (2026); the weight is ours.
    "weak_sigreg": {"regularization_weight": 1.0, "sketch_dim": 64},
    # Zhu et al. (2022).
    "tico": {"covariance_weight": 8.0, "covariance_momentum": 0.0},
    # Lee and Aune (2021), the code.
    "vibcreg": VICREG | {"covariance_weight": 200.0},
    # Zhang et al. (ICML 2024), the released command.
    "matrix_ssl": {"alignment_weight": 1.0, "identity_weight": 1.0, "shift": 1.0, "order": 4},
    # Yerxa et al. (NeurIPS 2023).
    "mmcr": {"local_weight": 0.0},
    # Balestriero and LeCun (2025), the README and the launch scripts.
    "sigreg": {
        "regularization_weight": 0.05,
        "directions": 1024,
        "knots": 17,
        "largest_frequency": 3.0,
        "scale": 1.0,
    },
    # HaoChen et al. (NeurIPS 2021), on ImageNet.
    "spectral_contrastive": {"mu": 10.0},
    # Nicollier et al. (2026).
    "spherical_kl": {"regularization_weight": 0.5, "diffusion_time": 2.0},
    "spherical_mmd": SPHERICAL,
    "spherical_mmd_heat": SPHERICAL,
    "spherical_mmd_bandlimited": SPHERICAL | {"spectrum": "bandlimited"},
    "susreg_mmd": SPHERICAL | {"spectrum": "susreg"},
    "spherical_ksd_heat": SPHERICAL | {"statistic": "ksd"},
    "spherical_ksd_bandlimited": SPHERICAL | {"statistic": "ksd", "spectrum": "bandlimited"},
    # Li et al. (NeurIPS 2021).
    "ssl_hsic": {"gamma": 3.0, "scale": 1.0},
    # Tong et al. (2023).
    "tcr": {"alignment_weight": 200.0, "distortion": 0.2},
    # Wu et al. (2026), on ImageNet; epsilon of the code.
    "visreg": {
        **{"regularization_weight": 0.9, "directions": 4096, "epsilon": 1e-6},
        **{"center_weight": 1.0, "scale_weight": 1.0, "shape_weight": 1.0},
    },
    # Ours: Ermolov et al. (ICML 2021) have 0, which fails for q >= n.
    "w_mse": {"epsilon": 1e-4, "sub_batch_size": 0},
    # Fang et al. (ICLR 2024) beside MoCo v2; the alignment is ours.
    "wasserstein_uniformity": {"alignment_weight": 1000.0, "uniformity_weight": 1.0},
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_the_published_ones(name: str) -> None:
    assert methods.defaults(name) == DEFAULTS[name]


GREEK = {
    **{
        "alpha": "α",
        "beta": "β",
        "gamma": "γ",
        "epsilon": "ε",
        "lambda": "λ",
        "mu": "μ",
        "nu": "ν",
        "rho": "ρ",
    },
    **{"delta": "δ", "theta": "θ", "sigma": "σ", "tau": "τ", "varphi": "φ", "psi": "ψ"},
}


def test_the_typeset_formulas_are_balanced_and_use_the_letters_of_the_plain_ones() -> None:
    for data in {type(methods.build(name)).metadata for name in methods.names()}:
        for opening, closing in (("{", "}"), ("(", ")"), (r"\left", r"\right")):
            assert data.latex.count(opening) == data.latex.count(closing), (data.title, opening)
        letters = {
            GREEK[command] for command in re.findall(r"\\([a-z]+)", data.latex) if command in GREEK
        }
        assert letters == set(re.findall("[α-ω]", data.formula)), data.title


@every_name
def test_every_method_states_a_space_around_its_defaults(name: str) -> None:
    method = methods.build(name)
    assert method.space is not None
    assert sum(isinstance(each, Range) and each.balances for each in method.space.values()) <= 1
    for key, each in method.space.items():
        assert isinstance(each, Range)
        # Published at one of these sizes.
        assert any(
            0 <= each.at(n, q).position(getattr(method, key)) <= 1
            for n, q in ((64, 128), (2048, 8192))
        ), key


@every_name
def test_defaults_build_the_same_method(name: str) -> None:
    assert methods.build(name, **methods.defaults(name)) == methods.build(name)


@every_name
def test_methods_are_frozen_and_can_be_sent_to_another_process(name: str) -> None:
    method = methods.build(name)
    assert pickle.loads(pickle.dumps(method)) == method
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.anything = 1.0  # type: ignore[attr-defined]


PRESETS = (
    {
        ("kerjepa", name)
        for name in ("kerjepa_mmd", "kerjepa_sliced_mmd", "kerjepa_ksd_gaussian", "kerjepa_ksd_imq")
    }
    | {("ur_jepa", "ur_jepa_derivative")}
    | {("kcl", name) for name in ("kcl_gaussian", "kcl_log", "kcl_imq", "kcl_riesz")}
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
    [
        ((1.0, 40.0, 40.0), "SFRIK (L=3)"),
        ((1.0, 20.0, 0.0), "SFRIK (L=2)"),
        ((0.0, 0.0, 0.0, 2.0), "SFRIK (L=4)"),
    ],
)
def test_the_label_of_sfrik_tells_its_order(weights: tuple[float, ...], label: str) -> None:
    assert methods.build("sfrik", weights=weights).label == label


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(RegbenchError, match="unknown method 'vicregg'; did you mean vicreg"):
        methods.build("vicregg")
    with pytest.raises(RegbenchError, match="sfrik_l2"):
        methods.build("sfrik_l22")
    with pytest.raises(RegbenchError, match=r"auh.*vicreg"):
        methods.build("123456789")


def test_an_unknown_hyperparameter_is_refused_with_those_there_are() -> None:
    with pytest.raises(RegbenchError, match=r"'vicreg' has no setting 'scale'.*variance_weight"):
        methods.build("vicreg", scale=1.0)


@pytest.mark.parametrize(
    ("name", "values", "what"),
    [
        ("sfrik", {"weights": (1.0, -1.0)}, "weights must be >= 0 and not all zero"),
        ("sfrik", {"weights": (0.0, 0.0)}, "weights must be >= 0 and not all zero"),
        ("sfrik", {"weights": ()}, "weights must be >= 0 and not all zero"),
        ("rbf", {"scale": 0.0}, "scale must be > 0"),
        ("rbf", {"scale": float("nan")}, "scale must be > 0"),
        ("generalized_distance", {"exponent": 0.0}, r"exponent must be in \(0, 2\]"),
        ("generalized_distance", {"exponent": 2.1}, r"exponent must be in \(0, 2\]"),
        ("simclr", {"temperature": 0.0}, "temperature must be > 0"),
        ("vicreg", {"epsilon": 0.0}, "weights must be >= 0 and epsilon > 0"),
        ("barlow_twins", {"redundancy_weight": -1.0}, "redundancy_weight must be >= 0"),
        ("barlow_twins", {"epsilon": 0.0}, "epsilon must be > 0"),
        ("barlow_twins", {"scale": 0.0}, "scale and epsilon must be > 0"),
        ("vicreg_exp", {"variance_weight": -1.0}, "weights must be >= 0"),
        ("vicreg_exp", {"temperature": 0.0}, "temperature must be > 0"),
        ("vicreg_ctr", {"temperature": -0.1}, "temperature must be > 0"),
        ("vicreg_ctr", {"epsilon": 0.0}, "epsilon > 0"),
        ("vicreg_ctr", {"centering": "both"}, "centering must be batch or coordinates"),
        ("frossl", {"alignment_weight": -1.0}, "alignment_weight must be >= 0"),
        ("tcr", {"alignment_weight": -1.0}, "alignment_weight must be >= 0"),
        ("tcr", {"distortion": 0.0}, "distortion must be > 0"),
        ("corinfomax", {"alignment_weight": -1.0}, "alignment_weight must be >= 0"),
        ("corinfomax", {"epsilon": 1e-13}, "epsilon must be >= 1e-12"),
        ("ivne", {"entropy_weight": -1.0}, "weights must be >= 0"),
        ("matrix_ssl", {"identity_weight": -1.0}, "weights must be >= 0"),
        ("matrix_ssl", {"order": 0}, "order must be >= 1"),
        ("matrix_ssl", {"shift": 0.0}, "shift > 0"),
        ("w_mse", {"epsilon": -0.1}, "epsilon must be in"),
        ("w_mse", {"epsilon": 1.1}, "epsilon must be in"),
        ("w_mse", {"sub_batch_size": 1}, "sub_batch_size must be >= 2"),
        ("intl", {"trace_weight": -1.0}, "trace_weight must be >= 0"),
        ("intl", {"iterations": -1}, "iterations must be from 0 to 6"),
        ("intl", {"iterations": 7}, "iterations must be from 0 to 6"),
        ("mmcr", {"local_weight": -1.0}, "local_weight must be >= 0"),
        ("vibcreg", {"epsilon": 0.0}, "epsilon > 0"),
        ("tico", {"covariance_weight": -1.0}, "covariance_weight must be >= 0"),
        ("mec", {"order": 0}, "order >= 1"),
        ("kcl", {"kernel": "cauchy"}, "kernel must be gaussian, log, imq or riesz"),
        ("kcl_riesz", {"scale": 1.0}, "scale of riesz must be between -2 and 0"),
        ("weak_sigreg", {"sketch_dim": 0}, "sketch_dim must be >= 1"),
        ("rdmreg", {"power": 0.0}, "power > 0"),
        ("tregs", {"length_weight": -1.0}, "weights must be >= 0"),
        ("susreg", {"knots": 1}, "knots >= 2"),
        ("ur_jepa", {"statistic": "beta"}, "statistic must be cglt or derivative"),
        ("ur_jepa", {"dimension": 0}, "dimension and scales must be >= 1"),
        ("spherical_kl", {"diffusion_time": 0.5}, r"diffusion_time must be in \[1, 1000\]"),
        (
            "spherical_kl",
            {"regularization_weight": 2.0},
            r"regularization_weight must be in \[0, 1\]",
        ),
        (
            "kerjepa_sliced_mmd",
            {"kernel": "imq"},
            "statistic sliced_mmd goes with kernel gaussian only",
        ),
        ("kcl_imq", {"scale": -1.0}, "scale must be > 0"),
        ("dclw", {"sigma": 0.0}, "sigma must be > 0"),
        ("dclw", {"temperature": 0.0}, "temperature must be > 0"),
        ("hardest_contrastive", {"negative_margin": 0.0}, "negative_margin > 0"),
        ("spectral_contrastive", {"mu": 0.0}, "mu must be > 0 and finite"),
        ("koleo", {"epsilon": 0.0}, "epsilon must be > 0"),
        ("ssl_hsic", {"scale": 0.0}, "gamma must be >= 0 and scale > 0"),
        ("sigreg", {"directions": 0}, "directions must be >= 1 and knots >= 2"),
        ("sigreg", {"largest_frequency": 0.0}, "largest_frequency and scale must be > 0"),
        ("sigreg", {"scale": 0.0}, "largest_frequency and scale must be > 0"),
        ("sigreg", {"regularization_weight": 1.1}, r"regularization_weight must be in \[0, 1\]"),
        ("visreg", {"directions": 0}, "directions must be >= 1 and epsilon > 0"),
        ("spherical_mmd", {"statistic": "kl"}, "statistic must be mmd or ksd"),
        ("spherical_mmd", {"spectrum": "cold"}, "spectrum must be heat, bandlimited or susreg"),
        ("spherical_mmd", {"order": 0}, "order must be >= 1"),
        ("spherical_mmd", {"diffusion_time": 0.0}, r"diffusion_time must be in \(0, 1000\]"),
        ("spherical_mmd", {"diffusion_time": math.inf}, r"diffusion_time must be in \(0, 1000\]"),
        ("spherical_kl", {"diffusion_time": 1001.0}, r"diffusion_time must be in \[1, 1000\]"),
        (
            "spherical_ksd_heat",
            {"spectrum": "susreg"},
            "spectrum susreg goes with statistic mmd only",
        ),
        ("auh", {"scale": 21.0}, r"scale must be in \(0, 20\]"),
        ("kerjepa", {"statistic": "kl"}, "statistic must be mmd, sliced_mmd or ksd"),
        ("kerjepa", {"kernel": "cauchy"}, "kernel must be gaussian or imq"),
        ("kerjepa", {"bandwidth": 0.0}, "bandwidth must be > 0"),
        ("kerjepa_ksd_imq", {"statistic": "mmd"}, "statistic mmd goes with kernel gaussian only"),
        ("dcl", {"temperature": 0.0}, "temperature must be > 0"),
        ("dhel", {"temperature": 0.0}, "temperature must be > 0"),
        ("info_nce", {"temperature": 0.0}, "temperature must be > 0"),
    ],
)
def test_impossible_hyperparameters_are_refused(
    name: str, values: dict[str, Any], what: str
) -> None:
    with pytest.raises(RegbenchError, match=what) as caught:
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
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(0.25)


def test_the_page_of_comparisons_has_a_row_for_every_method_and_names_tests_that_exist() -> None:
    folder = Path(__file__).parent
    text = (folder.parents[1] / "docs" / "results" / "family.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|.*`test_\w+` \|$", text, re.MULTILINE)
    assert rows == sorted({methods.registry_name(methods.build(name)) for name in methods.names()})
    tests = "".join(path.read_text() for path in folder.glob("test_*.py"))
    missing = {name for name in re.findall(r"`(test_\w+)`", text) if f"def {name}(" not in tests}
    assert not missing
