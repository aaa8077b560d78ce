"""The tables of a study's page, from its runs."""

from __future__ import annotations

import re
import runpy
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "results" / "tables.py"

Tables = Callable[..., list[list[str]]]


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tables:
    """The script on some arguments: the cells of all lines of its tables."""

    def run(*arguments: Path) -> list[list[str]]:
        monkeypatch.setattr(sys, "argv", [SCRIPT.name, *map(str, arguments)])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        found = re.findall(r"^\| (.*) \|$", capsys.readouterr().out, re.MULTILINE)
        return [[cell.strip() for cell in line.split("|")] for line in found]

    return run


def test_the_tables_of_a_study(tables: Tables, runs: Path, record: Callable[..., Path], tmp_path: Path) -> None:
    means = {"VICReg": 70.0, "AUH": 80.0, "SimCLR": 80.5, "untrained": 90.0}
    noise = {label: (0.1 + i, -0.3, 0.2 - i / 2) for i, label in enumerate(means)}
    for label, mean in means.items():
        for seed, more in enumerate(noise[label]):
            record(label, seed, knn=mean + more, linear=mean + 2)
    out, again = tmp_path / "study.csv", tmp_path / "again.csv"
    rows = {line[0]: line for line in tables(runs / "quickstart", out)[1:5]}
    assert list(rows) == ["SimCLR", "AUH", "VICReg", "untrained"]  # best first, but for the network as initialized
    both = [70 + more / 2 + 1 for more in noise["VICReg"]]
    told = f"{statistics.fmean(both):.2f} ± {statistics.stdev(both):.2f}"
    assert rows["VICReg"] == ["VICReg", "3", told, "70.00 ± 0.26", "72.00 ± 0.00", "–", "45.0", "0.30"]
    assert [label for label, row in rows.items() if row[2].startswith("**")] == ["untrained"]
    ranked = tables(runs / "quickstart", again, out)
    assert again.read_text() == out.read_text()
    places = [line[:2] for line in ranked if line[0].isdigit()]
    assert places == [["1", "SimCLR"], ["2", "AUH"], ["3", "VICReg"]]
