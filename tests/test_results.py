"""The bundles of results that come with the project fit this version of it, and their pages
what they hold.
"""

from __future__ import annotations

import re
import statistics
from itertools import combinations
from pathlib import Path

import pandas as pd
import pytest

from regbench.reports.bundle.bundle import read_bundle
from regbench.reports.rows.grouping import summarize
from regbench.reports.rows.significance import LEVEL, Tukey
from regbench.reports.rows.tasks import compare_over
from tests.command import run

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGES = ROOT / "results", ROOT / "docs" / "results"
BUNDLES = sorted(path.name for path in RESULTS.glob("*.tar.xz"))


def test_the_list_names_each_bundle() -> None:
    lines = (RESULTS / "README.md").read_text().splitlines()
    assert [line.split("`")[1] for line in lines if line.startswith("| `")] == BUNDLES


@pytest.mark.slow
@pytest.mark.parametrize("name", BUNDLES)
def test_bundles_check_out_and_the_list_has_their_digests(name: str) -> None:
    done = run("verify", RESULTS / name)
    found = re.search(r"cells check out; sha256 (\w{64})$", done.output.strip())
    assert done.exit_code == 0 and found, done.output
    assert f"| `{found[1]}` |" in (RESULTS / "README.md").read_text()


def means_of_both(name: str) -> dict[str, dict[int, float]]:
    """Method -> seed -> mean of kNN and linear probing, of a study's CSV file."""
    lines = pd.read_csv(PAGES / f"{name}.csv")
    both = lines[lines.score.isin(["knn_top1", "linear_top1"])]
    means = both.groupby(["label", "seed"]).value.mean()
    return {str(label): means[label].to_dict() for label in means.index.unique("label")}


def test_the_pages_have_the_ranks_over_all_studies() -> None:
    tasks = {name: means_of_both(name) for name in ("fashion_mnist", "digits")}
    for scores in tasks.values():
        scores.pop("untrained")
    comparison = compare_over(tasks)
    assert comparison is not None
    lines = []
    for place, one in enumerate(comparison.standings, 1):
        lines.append((str(place), one.label, f"{one.mean_rank:.1f}"))
    text = (PAGES / "digits.md").read_text()
    found = re.findall(r"^\| (\d+) \| (.+) \| (.+) \|$", text, re.MULTILINE)
    shown = [tuple(cell.strip() for cell in line) for line in found]
    assert len(shown) >= 12
    assert [line for line in shown if line not in lines] == []


def test_the_page_of_many_views_says_what_tukeys_test_tells() -> None:
    lines = pd.read_csv(PAGES / "many_views.csv")
    text = " ".join((PAGES / "many_views.md").read_text().split())
    above, close = [], {}
    for views, score in ((2, "knn_top1"), (8, "knn_top1"), (2, "linear_top1"), (8, "linear_top1")):
        column = lines[lines.views.isin([0, views]) & (lines.score == score)]  # 0: untrained
        rows = {
            label: dict(zip(row.seed, row.value, strict=True))
            for label, row in column.groupby("label")
        }
        test, at = Tukey(list(rows.values())), list(rows).index
        assert test.rows == 9
        above += test.compare(at("SFRIK (L=1)"), [at("SFRIK (L=2)"), at("SFRIK (L=3)")])
        for one, other in combinations(("SFRIK (L=2)", "SFRIK (L=3)", "VICReg"), 2):
            (close[one, other, views, score],) = test.compare(at(one), [at(other)])
    assert len(above) == 8
    *told, missed = sorted(above, key=lambda found: found.p)
    differences = (
        f"(p ≤ {told[-1].p:.2g}), the {-missed.difference:.1f} points are not (p = {missed.p:.2g})"
    )
    assert f"Seven of these eight differences are significant {differences}" in text
    assert told[-1].p <= LEVEL < missed.p
    assert (
        f"lie within {max(abs(found.difference) for found in close.values()):.1f} points of each "
        "other" in text
    )
    assert "None of their twelve differences is significant" in text
    assert min(found.p for found in close.values()) > LEVEL
    second, third = (close[f"SFRIK (L={order})", "VICReg", 8, "linear_top1"].p for order in (2, 3))
    assert f"(p = {second:.2g} and {third:.2g})" in text


@pytest.mark.parametrize("name", ["digits", "fashion_mnist"])
def test_the_page_of_a_study_has_the_means_of_its_scores(name: str) -> None:
    scores = means_of_both(name)
    text = (PAGES / f"{name}.md").read_text()
    shown = re.findall(
        r"^\| ([^|]+?)(?: ‡)? \| (\d) \| \**([\d.]+) ± ([\d.]+)\** \|", text, re.MULTILINE
    )
    assert len(shown) == len(scores) == 55
    for label, seeds, mean, deviation in shown:
        both = list(scores[label].values())
        expected = (len(both), f"{statistics.fmean(both):.2f}", f"{statistics.stdev(both):.2f}")
        assert (int(seeds), mean, deviation) == expected, label


def test_the_page_of_heuristics_has_the_means_of_its_rows() -> None:
    parts = ("", "teacher=stop_gradient", "teacher=stop_gradient, predictor depth=2", "teacher=ema")
    columns = (*parts, "teacher=ema, predictor depth=2")
    linear = {}
    (summary,) = summarize(read_bundle(RESULTS / "heuristics.tar.xz").records)
    for row in summary.methods:
        label, *settings = row.name.split(", ")
        settings = [each for each in settings if not each.startswith("projector")]
        values = [record.score("linear_top1", "test") or 0.0 for record in row.records]
        linear[label, ", ".join(settings)] = values

    text = (PAGES / "heuristics.md").read_text()
    number = re.compile(r"([\d.]+) ± ([\d.]+)(?: ‡)?(?: \(\**([+−][\d.]+)\**\))?")
    regularizers = 0
    for label in sorted({label for label, _ in linear}):
        (line,) = re.findall(rf"^\| {re.escape(label)} \|.* ± .*$", text, re.MULTILINE)
        shown = number.findall(line)
        rows = [linear[label, column] for column in columns if (label, column) in linear]
        assert len(shown) == len(rows)
        regularizers += len(rows) == len(columns)
        for (mean, deviation, gain), values in zip(shown, rows, strict=True):
            found = f"{statistics.fmean(values):.2f}", f"{statistics.stdev(values):.2f}"
            assert (mean, deviation) == found, line
            if gain:
                expected = statistics.fmean(values) - statistics.fmean(rows[0])
                assert float(gain.replace("−", "-")) == pytest.approx(expected, abs=0.051), line
    assert regularizers == 5


@pytest.mark.parametrize(
    ("file", "least"), [("mechanisms/tables", 40), ("pitch/tables", 15), ("pitch/heuristics", 4)]
)
def test_a_page_has_what_its_script_printed(file: str, least: int) -> None:
    name = file.removesuffix("/tables").split("/")[-1]
    page = (PAGES / f"{name}.md").read_text()
    printed = (RESULTS / f"{file}.txt").read_text().splitlines()
    lines = [line for line in printed if line.startswith("|")]
    assert len(lines) > least
    assert [line for line in lines if line not in page.splitlines()] == []
    figures = set(re.findall(rf"\(({name}_\w+\.png)\)", page))
    assert figures == {path.name for path in PAGES.glob(f"{name}_*.png")}
