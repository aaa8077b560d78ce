"""Tables as CSV: no text is a formula in a spreadsheet, and reading gives back what was written."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import asdict, replace

import pyarrow as pa
import pytest

from regbench.csv_files import csv_text, read_csv, write_table
from regbench.instruments.cost.harness import to_csv
from tests.instruments.test_cost import EXAMPLE

FORMULAS = ["=1+1", "+1", "@SUM(A1)", "\t=1", "\r=1", "-x", "-", "'=1", "''-x"]
FORMULAS += ["-1+cmd|' /C calc'!A0", '=a,"b"\nc']
MACHINE = {"hardware": "@cpu", "threads": 1, "torch": "2.10", "dtype": "float32"}
PLAIN = ["", "a", "a=1", "-1", "-1.5e-3", "-.5", "'", "'a", "'-1", " =1", "–"]
PLAIN += ['a,"b"\nc', "SFRIK (L=3)"]


Rows = list[list[str]]


def as_arrow(heads: list[str], rows: Rows) -> str:
    file = io.BytesIO()
    columns = [list(column) for column in zip(*rows, strict=True)]
    write_table(pa.table(dict(zip(heads, columns, strict=True))), file)
    return file.getvalue().decode()


@pytest.mark.parametrize("write", [csv_text, as_arrow])
def test_no_text_is_a_formula_and_all_are_read_back(
    write: Callable[[list[str], Rows], str],
) -> None:
    heads = [*FORMULAS, *PLAIN]
    text = write(heads, [heads, heads[::-1]])
    expected = [*FORMULAS, *(cell[1:] for cell in PLAIN if cell.startswith("'"))]
    for row in csv.reader(io.StringIO(text, newline="")):
        guarded = [cell.removeprefix("'") for cell in row if cell.startswith("'")]
        assert sorted(guarded) == sorted(expected)
        assert not any(cell[:1] in ("=", "+", "@", "\t", "\r") for cell in row)
    for row_read, row in zip(read_csv(text), [heads, heads[::-1]], strict=True):
        assert row_read == dict(zip(heads, row, strict=True))


def test_numbers_stay_and_what_is_missing_is_empty() -> None:
    text = csv_text(
        ["a", "b", "c", "d"], [[-1, -0.5, None, float("nan")], [2, float("-inf"), True, "x"]]
    )
    assert text == "a,b,c,d\n-1,-0.5,,\n2,-inf,True,x\n"


def test_costs_are_guarded() -> None:
    text = to_csv(
        [asdict(replace(EXAMPLE, method="=m", median_ms=1.0, extra_bytes=n, n=n)) for n in (8, 16)],
        MACHINE,
    )
    assert "\n'=m," in text and "@cpu" not in text.replace("'@cpu", "")
    first, second = read_csv(text)
    found = (first["method"], first["hardware"], second["n"], second["note"])
    assert found == ("=m", "@cpu", "16", "")
