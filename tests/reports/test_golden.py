"""Whole reports of made sweeps against files that somebody has read.

Each file of `golden/` holds the text of a terminal and every Markdown and CSV file of one report.
After a change that is meant: `pytest tests/reports/test_golden.py --update-golden`, and read the
difference.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from regbench.benchmark.settings.sweep import load_run
from regbench.reports import write_report
from tests.conftest import pytest_configure
from tests.records import chosen, ranked, tuning_choice
from tests.reports.conftest import GIVEN, METHODS, backbone, dataset, score, settings
from tests.reports.reading import Make

GOLDEN = Path(__file__).parent / "golden"
RUNS = Path("runs")
DIVERGED: dict[str, Any] = {"status": "diverged", "knn": None, "linear": None}
TUNED: dict[str, Any] = {"status": "tuned", "knn": None, "linear": None}
# Sums of rows and of columns are 0.
LUCK = ((1.0, -1.0, 0.0), (-1.0, 0.0, 1.0), (0.0, 1.0, -1.0))


def plan(sweep: str, *cells: dict[str, Any]) -> None:
    content = json.dumps({"cells": [{"epochs": 3, **cell} for cell in cells]})
    (RUNS / sweep / "sweep.json").write_text(content)


def fail(sweep: str, name: str, error: str) -> None:
    attempt = RUNS / sweep / name / "attempts" / "0001.json"
    attempt.parent.mkdir(parents=True)
    attempt.write_text(json.dumps({"ended": "failed", "error": error}))
    (attempt.parents[1] / "config.yaml").touch()


def method(label: str, weight: float) -> dict[str, Any]:
    return {"method": {"name": METHODS.get(label, label.lower()), "alignment_weight": weight}}


def tuned_among(budget: int, **more: Any) -> dict[str, Any]:
    how = {"selected_on": "tuning", "score": "knn_top1", "budget": budget, **more}
    return {"choice": {"hyperparameters": how}}


def halfway(record: Make) -> None:
    """A sweep half-way: no two numbers are the same, so that none can stand in for another."""
    for seed in range(3):
        for k, label in enumerate(("VICReg", "AUH")):
            number = seed + 10 * k
            values = {
                ("knn_top1", "test"): 70.0 + seed - 8 * k,
                ("linear_top1", "test"): 77.0 + 2 * seed - 9 * k * (seed + 1) / 2,
                ("linear_top5", "test"): 91.0 + seed / 2 - k,
                ("alignment", "test"): 1.5 + seed / 10 + k,
                ("voc07_map", "test"): 55.0 + seed / 4 - k,
                ("knn_top1", "tuning"): 61.0 + seed / 5 - 3 * k,
                ("linear_top1", "tuning"): 66.0 + seed / 8 - 4 * k,
            }
            scores = []
            for (name, split), value in values.items():
                scores.append(score(name, value, split, "" if name == "alignment" else "%"))
            cost = {
                "train_s": 3600.0 * (11 + number),
                "evaluate_s": 60.0 * (21 + 2 * number),
                "img_per_s": 1500.0 + 100 * number,
                "step_ms": 150.0 + 10 * number,
                "loss_ms": 4.0 + number / 4,
                "peak_memory_bytes": (5 + number / 8) * 2**30,
                "peak_memory_kind": "CUDA allocated",
                "loss_extra_bytes": (2 + number / 8) * 2**20,
                "energy_gpu_joules": 3.6e6 * (13 + 3 * number),
                "energy_cpu_joules": 3600.0 * (31 + 4 * number),
            }
            history = [
                {"epoch": 1, "effective_rank": 400.0, "alignment": 3.0},
                {"epoch": 2, "effective_rank": 50.0 + 2 * number, "alignment": 0.2 + number / 50},
            ]
            how = tuned_among(16 + k)
            record(label, seed, scores=tuple(scores), cost=cost, history=history, **how)
        luck = LUCK[seed]
        linear = {"SFRIK (L=1)": (600.0, 58.5), "generalized distance": (1200.0, 59.0)}
        for place, (label, (weight, mean)) in enumerate(linear.items()):
            cell = method(label, weight)
            if place == 0:
                cell["method"] = {"name": "sfrik", "weights": [1.0], "alignment_weight": weight}
                cell["method"]["regularize_local"] = True
            else:
                cell["method"]["exponent"] = 2.0
            record(label, seed, linear=mean + luck[place], knn=50.0 + luck[place], cell=cell)
        edge = {"edges": {"method.alignment_weight": "largest"}}
        record("SimCLR", seed, linear=78.0 + luck[2], **tuned_among(16, **edge))
        # What is no method has no times to compare, and neither has what diverged.
        elsewhere = {"environment": {"hardware": "another CPU"}}
        record("untrained", seed, knn=49.0, linear=59.5 + seed, **elsewhere)
        labels = {"baseline": "supervised"}
        record("supervised", seed, knn=90.0, linear=91.0 + seed, cell=labels, **elsewhere)
        record("SupCon", seed, knn=95.0, linear=96.0 + seed, cell={"baseline": "supcon"})
    memory = {"peak_memory_kind": "CUDA allocated"}
    record("RBF kernel", 0, knn=66.0, linear=68.0, environment={"git": None}, cost=memory)
    ended = [{"epoch": 1, "effective_rank": 1.0, "alignment": 0.0}]
    record("RBF kernel", 1, **DIVERGED, **elsewhere, history=ended)
    record("W-MSE", **DIVERGED)
    record("raw pixels", knn=41.0, linear=61.0, cell={"epochs": 0, "baseline": "raw_pixels"})
    record("DCL", tuning=50.0, **TUNED)
    for weight in (1.0, 2.0):
        record("TCR", cell=method("TCR", weight))
    cost = {"energy_gpu_joules": 36.0, "train_s": 0.0}
    record("KoLeo", linear=70.0, environment={"hardware": "1 x GPU", "threads": 2}, cost=cost)
    failed = [f"{i:012x}" for i in range(7)]
    cells = [{"id": name, "label": "MMCR", "seed": i} for i, name in enumerate(failed)]
    cells += [{"id": "e" * 12, "label": "VICReg", "seed": 3}]
    # The seed is finished, so another cell of it is not missing.
    plan("quickstart", *cells, {"id": "f" * 12, "label": "VICReg", "seed": 1})
    for i, name in enumerate(failed):
        fail("quickstart", name, f"reason {min(i, 5)}")


def tuning(record: Make) -> None:
    """A tuning in two dimensions of which one method has two choices, by kNN alone, of one seed."""
    entries = []
    for label, q in itertools.product(("VICReg", "AUH"), (512, 1024)):
        ranking = []
        for weight, tuning in ((1.0, 60.0), (2.0, 65.0), (3.0, 62.0)):
            cell = {"embedding_dim": q, **method(label, weight)}
            final = {"knn": 66.0 + q / 512 - len(label) / 4, "linear": None, **tuned_among(3)}
            how = final if weight == 2.0 else TUNED
            path = record(label, tuning=tuning, cell=cell, **how)
            ranking.append(ranked(path.parent.name, tuning))
        record(label, cell={"embedding_dim": q, **method(label, 9.0)}, **DIVERGED)
        setting = {"dataset": "fashion_mnist", "backbone": "resnet_tiny", "embedding_dim": q}
        setting |= {"batch_size": 256, "epochs": 3, "searched": 2}
        entry = chosen(label, ranking[1], ranking[0], ranking[2], setting=setting)
        entries.append(replace(entry, images=3000))
    optimizer = settings("SimCLR")["optimizer"] | {"base_lr": 0.7}
    record("SimCLR", knn=60.0, linear=None, cell={"optimizer": optimizer})
    adamw = load_run(["optimizer=adamw"])[0].plain()["optimizer"]
    record("SimCLR", knn=61.0, linear=None, cell={"optimizer": adamw})
    nothing: dict[str, Any] = dict.fromkeys(("embedding_dim", "batch_size", "epochs"))
    external = nothing | {"external": {"source": "torchvision:resnet50", "sha256": "0" * 64}}
    elsewhere = {"cell": external, "cost": {"train_s": None}}
    record("torchvision", method="external", knn=79.0, linear=None, **elsewhere)
    for q in (512, 1024):  # several cells, one row
        record("untrained", knn=61.0, linear=None, cell={"embedding_dim": q})
    tuning_choice(RUNS / "quickstart", *entries)


def tasks(record: Make) -> None:
    """Tasks of all kinds: recipes, the paper's, factors, errors, and what the test set chose."""
    for label, below in (("VICReg", 0.0), ("AUH", 1.0), ("SimCLR", 3.0)):
        for q in (512, 1024):
            # All dimensions count alike: here others are further below VICReg in the larger one.
            linear = 80.0 - below - 2.0 * (q == 1024 and label != "VICReg")
            for name in ("fashion_mnist", "digits"):
                place = {"embedding_dim": q, "dataset": dataset(name)}
                record(label, linear=linear, cell=place, history=[])
        error = replace(score("error", 1.0 + below, unit="nats"), higher_is_better=False)
        record(label, scores=(error,), cell={"dataset": dataset("stl10")}, history=[])
    # Equal to the best, which so is no better.
    error = replace(error, value=1.0)
    record("untrained", scores=(error,), cell={"dataset": dataset("stl10"), "epochs": 0})
    record("MMCR", linear=90.0, cell={"dataset": dataset("digits")}, history=[])
    pixels = {"epochs": 0, "baseline": "raw_pixels", "dataset": dataset("digits")}
    record("raw pixels", linear=90.0, cell=pixels)
    for seed, tilt in enumerate((0.7, 0.9)):
        values = {"tilt_deg_representation": tilt, "kind_representation": 40.0}
        values["tilt_deg_embedding"] = -0.001  # what rounds to zero is not negative
        scores = [score("knn_top1", 60.0)]
        for name, value in values.items():
            scores.append(score(f"factor_{name}", value, unit="%" if "kind" in name else ""))
        record("VICReg", seed, scores=tuple(scores), cell={"dataset": dataset("scenes")})
    record("AUH", knn=50.0, linear=None, cell={"dataset": dataset("scenes")})
    sizes = {"batch_size": 512, "epochs": 200, "dataset": dataset("cifar10_full")}
    for seed, knn in enumerate((84.0, 86.0)):
        record("SimCLR", seed, knn=knn, linear=None, sweep="lightly_cifar10", cell=sizes)
    shorter = {**sizes, "epochs": 100}
    record("SimCLR", 0, knn=80.0, linear=None, sweep="lightly_cifar10", cell=shorter)
    record("VICReg", 0, knn=83.0, linear=None, sweep="lightly_cifar10", cell=sizes)
    in20 = {"dataset": dataset("in20"), "network": backbone("resnet18"), "embedding_dim": 8192}
    in20 |= {"batch_size": 2048, "epochs": 100}
    for seed, linear in enumerate((46.0, 47.0)):
        record("SFRIK (L=3)", seed, linear=linear, cell=in20, history=[])
    on_test = in20 | {"evaluation": settings("VICReg")["evaluation"] | {"select_on": "test"}}
    record("SFRIK (L=3)", linear=48.0, sweep="test", cell=on_test, history=[])


def repeated(record: Make) -> None:
    """Three searches of each of two rows, on two models of processors."""
    for k, (label, search, seed) in enumerate(
        itertools.product(("VICReg", "AUH"), range(3), range(2))
    ):
        how = {"hyperparameters": GIVEN | {"sha256": label, "search": search}}
        hardware = f"{seed + 1} cores of {'slow' if seed else 'fast'} CPU"
        linear = 70.0 + 3 * search + 2 * seed + 0.1 * (k % 5) - 2 * (label == "AUH")
        more = {"choice": how, "environment": {"hardware": hardware}, "tuning": 60.0}
        record(label, 1000 * search + seed, linear=linear, cell=method(label, 10 + search), **more)


CASES: dict[str, Callable[[Make], None]] = {
    case.__name__: case for case in (halfway, tuning, tasks, repeated)
}


def shortened(found: re.Match[str]) -> str:
    """A number with nine digits: the last ones differ between processors."""
    return f"{float(found[0]):.9g}"


def whole_text(out: Path, terminal: str) -> str:
    """The text of a terminal, and of all Markdown and CSV files but the tidy one, whose digests
    and times are of the runs.
    """
    parts = [f"==== terminal\n{terminal}\n"]
    for path in sorted(out.iterdir()):
        if path.suffix in (".md", ".csv") and path.stem != "tidy":
            parts.append(f"==== {path.name}\n{path.read_text()}")
    return re.sub(r"\d+\.\d{9,}(e-?\d+)?", shortened, "\n".join(parts))


@pytest.mark.parametrize("name", CASES)
def test_a_report_is_the_one_that_was_read(
    name: str,
    recorder: Callable[[Path], Make],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    CASES[name](recorder(RUNS))
    written = write_report(RUNS, Path("report"))
    text, path = whole_text(Path("report"), written.leaderboard), GOLDEN / f"{name}.txt"
    if request.config.getoption("--update-golden"):
        path.write_text(text)
    assert text == path.read_text()


def test_golden_files_are_those_of_the_cases() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(CASES)


def test_nothing_is_accepted_where_nobody_reads_it(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytestconfig.option, "update_golden", True)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.UsageError):
        pytest_configure(pytestconfig)
