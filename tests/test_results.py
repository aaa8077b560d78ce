"""The bundles of results that come with the project fit this version of it, and their pages what they hold."""

from __future__ import annotations

import re
import runpy
import statistics
from pathlib import Path

import pytest
from click.testing import CliRunner

from regbench.cli import main

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGES = ROOT / "results", ROOT / "docs" / "results"
BUNDLES = sorted(path.name for path in RESULTS.glob("*.zip"))


def test_the_list_names_each_bundle() -> None:
    lines = (RESULTS / "README.md").read_text().splitlines()
    assert [line.split("`")[1] for line in lines if line.startswith("| `")] == BUNDLES


@pytest.mark.slow
@pytest.mark.parametrize("name", BUNDLES)
def test_bundles_check_out(name: str) -> None:
    done = CliRunner().invoke(main, ["verify", str(RESULTS / name)])
    assert (done.exit_code, "check out" in done.output) == (0, True), done.output


def test_the_pages_have_the_ranks_over_all_studies() -> None:
    made = runpy.run_path(str(RESULTS / "tables.py"))["over_tasks"]
    lines = [
        [cell.strip() for cell in line.split("|")[1:4]]
        for line in made([PAGES / "fashion_mnist.csv", PAGES / "digits.csv"]).splitlines()
    ]
    text = (PAGES / "digits.md").read_text()
    shown = [
        [cell.strip() for cell in line] for line in re.findall(r"^\| (\d+) \| (.+) \| (.+) \|$", text, re.MULTILINE)
    ]
    assert len(shown) >= 12
    assert [line for line in shown if line not in lines] == []


@pytest.mark.parametrize("name", ["digits", "fashion_mnist"])
def test_the_page_of_a_study_has_the_means_of_its_scores(name: str) -> None:
    script = runpy.run_path(str(RESULTS / "tables.py"))
    scores = script["scores_of"](PAGES / f"{name}.csv")
    text = (PAGES / f"{name}.md").read_text()
    shown = re.findall(r"^\| ([^|]+?)(?: ‡)? \| (\d) \| \**([\d.]+) ± ([\d.]+)\** \|", text, re.MULTILINE)
    assert len(shown) == len(scores) == 55
    for label, seeds, mean, deviation in shown:
        both = list(script["mean_of_both"](scores[label]).values())
        expected = (len(both), f"{statistics.fmean(both):.2f}", f"{statistics.stdev(both):.2f}")
        assert (int(seeds), mean, deviation) == expected, label
