"""`regbench reproduce`: its lists, refusals and plans, and a recipe that is run by it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from regbench.benchmark.settings.recipes import numbers_of, recipes
from regbench.benchmark.settings.sweep import load_sweep
from regbench.cli import main
from regbench.datasets.stored.prepare import prepare
from regbench.methods import registry_name
from regbench.reports.tables.reproduced import reproduced
from tests.benchmark.test_recipes import SHRUNK, write_cifar10
from tests.records import knn_top1, made


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["reproduce", *arguments], prog_name="regbench")


def words(text: str) -> str:
    return " ".join(text.split())


def test_recipes_are_listed_with_their_data_sets() -> None:
    output = call().output
    for name in recipes():
        (line,) = [line for line in output.splitlines() if line.startswith(f"{name} ")]
        assert load_sweep(name).cells[0].dataset.name in line
    assert "quickstart" not in output


def test_what_is_not_run_is_said_beside_the_published_number(tmp_path: Path) -> None:
    output = call("lightly_cifar10", "--show", "--runs-dir", str(tmp_path)).output
    lines = [line for line in output.splitlines() if "not run" in line]
    assert [re.findall(r"\d+\.\d+\*", line) for line in lines] == [
        ["84.80*"],
        ["84.00*"],
        ["82.40*"],
        ["81.90*"],
    ]
    assert "* chosen on the test set" in output and "Ours is not the recipe" not in output
    for line in load_sweep("lightly_cifar10").deviations:
        assert line in words(output)
    assert not list(tmp_path.iterdir())


def test_the_difference_is_ours_minus_the_published_number(tmp_path: Path) -> None:
    ours = {"simclr": 85.3, "dcl": 83.0}
    for cell in load_sweep("lightly_cifar10").cells:
        if (name := registry_name(cell.method)) in ours:
            folder = tmp_path / "lightly_cifar10" / cell.id
            folder.mkdir(parents=True)
            (folder / "record.json").write_text(
                made(cell.plain(), scores=(knn_top1(ours[name], "test"),)).text()
            )
    lines = call("lightly_cifar10", "--show", "--runs-dir", str(tmp_path)).output.splitlines()
    shown = [
        re.findall(r"\d+\.\d+ \(n = 1\)|\d+\.\d+\*|[+−]\d+\.\d+", line)
        for line in lines
        if "(n = 1)" in line
    ]
    assert shown == [["85.30 (n = 1)", "84.80*", "+0.50"], ["83.00 (n = 1)", "84.00*", "−1.00"]]


def test_all_that_is_published_of_a_cell_stands_beside_ours() -> None:
    """What diverged is an answer; what is not said to be chosen on the test set has no mark.

    And 0 is a number.
    """
    stated: dict[str, Any] = {
        "cell": "seed=0",
        "number": 84.0,
        "deviation": 0.25,
        "on_test": "not stated",
    }
    number = replace(numbers_of("lightly_cifar10")[0], **stated)
    numbers = [
        number,
        replace(number, number=None, deviation=None),
        replace(number, number=0.0, deviation=None),
    ]
    cell = load_sweep("lightly_cifar10").cells[0].plain()
    done = [made(cell, scores=(knn_top1(value, "test"),)) for value in (84.0, 86.0)]
    diverged = made(cell, status="diverged")
    shown = [tuple(row.values())[4:7] for row in reproduced(numbers, [*done, diverged])]
    ours = "85.00 ± 1.41 (n = 2)"
    assert shown == [(ours, "84.00 ± 0.25", "+1.00"), (ours, "–", "–"), (ours, "0.00", "+85.00")]
    rows = [*reproduced(numbers[:1], [diverged]), *reproduced(numbers[:1], [])]
    assert [(row["ours"], row["difference"]) for row in rows] == [
        ("diverged", "–"),
        ("not run", "–"),
    ]


def test_another_setting_is_said() -> None:
    elsewhere = ("seed=1", "runtime.threads=2", "cluster=slurm", "cluster.gpus=2")
    output = call("lightly_cifar10", "--show", "epochs=3", *elsewhere).output
    assert "Ours is not the recipe, but with epochs=3." in output


@pytest.mark.parametrize(
    ("name", "message"),
    [("lightly_cifar", "did you mean lightly_cifar10"), ("quickstart", "known:")],
)
def test_what_is_no_recipe_is_refused(name: str, message: str) -> None:
    result = call(name)
    assert result.exit_code == 2
    assert message in result.output and "regbench sweep" in result.output
    assert len(result.output.strip().splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", recipes())
def test_each_recipe_is_planned(name: str) -> None:
    result = call(name, "--plan")
    assert result.exit_code == 0, result.output
    assert f"{len(load_sweep(name).cells)} cells" in result.output


@pytest.mark.slow
def test_a_recipe_is_run_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    write_cifar10(tmp_path / "source")
    small = (
        "batch_size=16",
        "dataset.train_per_class=2",
        "dataset.source.published=false",
        "network=resnet_tiny",
    )
    overrides = (
        *SHRUNK,
        *small,
        f"runtime.data_dir={tmp_path / 'data'}",
        f"runtime.runs_dir={tmp_path / 'runs'}",
    )
    sweep = load_sweep("lightly_cifar10", overrides)
    prepare(sweep.cells[0].dataset, tmp_path / "data", source_dir=tmp_path / "source")
    first = call("lightly_cifar10", *overrides)
    assert first.exit_code == 0, first.output
    assert "not run" not in first.output and first.output.count("(n = 1)") == len(
        numbers_of("lightly_cifar10")
    )
    # Another seed is run beside the first one's records, which count for the mean.
    records = {path: path.read_bytes() for path in (tmp_path / "runs").glob("*/*/record.json")}
    both = call("lightly_cifar10", *overrides, "seed=0,1")
    assert both.exit_code == 0 and both.output.count("(n = 2)") == len(
        numbers_of("lightly_cifar10")
    )
    assert all(path.read_bytes() == content for path, content in records.items())
