"""The shipped rows that a sweep begins with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from regbench.benchmark.settings.sweep import load_sweep
from regbench.errors import RegbenchError
from regbench.files import write_text
from regbench.reports.bundle.bundle import read_bundle
from regbench.sweeps.status import CellStatus
from regbench.tracks.expected import SHIPPED, ExpectedTable
from tests.command import run

STATUS = CellStatus("0123456789ab", "VICReg", 7, "done", 15, 15, None, None, "", "", Path())


def here(text: str) -> dict[str, list[str]]:
    """The methods of a table, and the numbers in its rows without those that are shipped."""
    rows = {}
    for line in text.splitlines():
        label, _, numbers = line.partition("  ")
        if " ± " in numbers:
            rows[label] = [word for word in numbers.replace(" ± ", "±").split() if "±" not in word]
    return rows


def test_all_rows_of_the_quickstart_are_expected() -> None:
    labels = {cell.label for cell in load_sweep("quickstart").cells}
    assert labels <= here(ExpectedTable(SHIPPED["quickstart"]).text()).keys()


def test_the_table_comes_first_and_a_log_has_a_line_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    announces = []

    def run_sweep(_: object, __: object, announce: object) -> None:
        announces.append(announce)
        raise RegbenchError("nothing is run")

    monkeypatch.setattr("regbench.sweeps.local.run_sweep", run_sweep)
    monkeypatch.setattr("regbench.sweeps.run.prepare_all", lambda *_: None)
    done = run("sweep", "quickstart")
    assert done.output.startswith("What to expect:\n")
    assert "3 searches on 2 cores of AMD EPYC" in done.output
    assert announces == [None]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["quickstart", "seed=3,4", "runtime.parallel=1"], True),
        (["quickstart", "epochs=2", "optimizer.warmup_epochs=0"], False),
        (["minute"], False),
    ],
)
def test_only_cells_of_the_shipped_settings_are_compared_with_them(
    arguments: list[str], shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_grid(*_: object, **__: object) -> None:
        raise RegbenchError("nothing is run")

    monkeypatch.setattr("regbench.sweeps.run.run_grid", run_grid)
    done = run("sweep", *arguments)
    assert ("What to expect" in done.output, "nothing is run" in done.output) == (shown, True)


def test_cells_that_end_fill_a_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = ExpectedTable(SHIPPED["quickstart"])
    shipped = read_bundle(SHIPPED["quickstart"]).records
    records = [record for record in shipped if record.status == "done"]
    (vicreg,) = (record for record in records if record.label == "VICReg" and record.seed == 0)
    write_text(tmp_path / vicreg.file_name, vicreg.text())

    table.announce(replace(STATUS, directory=tmp_path), 1, 11)
    first = capsys.readouterr().err
    shown = here(first)
    numbers = [vicreg.score(name, "test") for name in ("linear_top1", "knn_top1")]
    assert shown.pop("VICReg") == [f"{number:.2f}" for number in numbers]
    assert set(map(tuple, shown.values())) == {()}

    failed = replace(STATUS, label="AUH", state="failed", detail="no memory", directory=tmp_path)
    table.announce(failed, 2, 11)
    second = capsys.readouterr().err
    # The cursor goes up to the first line of the table before.
    lines = len(first.strip("\n").splitlines())
    assert second.startswith(f"\x1b[{lines}F\x1b[J")
    assert "AUH seed 7 (0123456789ab) FAILED: no memory" in second
    assert second.endswith("2 of 11 cells have ended\n")
