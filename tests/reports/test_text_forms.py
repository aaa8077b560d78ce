"""Tables as Markdown, LaTeX and a terminal's text; text of others stays text in all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from regbench.reports import write_report
from regbench.reports.tables.details import cost_table
from regbench.reports.tables.hyperparameters import hyperparameters_table
from regbench.reports.tables.leaderboard import leaderboard
from regbench.reports.tables.table import (
    Column,
    Line,
    Table,
    entries,
    to_latex,
    to_markdown,
    to_terminal,
)
from tests.records import attempted, plan
from tests.reports.reading import Make, task


def test_latex_is_balanced_booktabs(runs: Path, record: Make) -> None:
    record("50 % & $x_1$ #{~^\\}", 0, knn=70.0)
    record("AUH", 0, knn=60.0, status="diverged")
    text = to_latex(leaderboard(task(runs)))
    rules = [text.index(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")]
    assert rules == sorted(rules)
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
    body = re.sub(r"(?m)^%.*$", "", text)
    assert r"50 \% \& \$x\_1\$ \#\{\textasciitilde{}\textasciicircum{}\textbackslash{}\}" in body
    assert r"\textbf{70.00}" in body
    plain = re.sub(r"\\[{}$&%#_]", "", body)
    assert plain.count("{") == plain.count("}")
    assert plain.count("$") % 2 == 0
    columns = re.search(r"\\begin\{tabular\}\{([lr]+)\}", plain)
    assert columns is not None
    lines = [line for line in plain.splitlines() if line.endswith(r"\\")]
    assert len(lines) == 3
    assert {line.count("&") + 1 for line in lines} == {len(columns[1])}
    assert body.isascii()


FOREIGN = {
    "<script>alert(1)</script>": "&lt;script&gt;alert(1)&lt;/script&gt;",
    "a|b\nc": "a\\|b c",
    "`x` **y** _z_ [u](v) ~~w~~ $m$": "\\`x\\` \\*\\*y\\*\\* \\_z\\_ "
    "[u\\](v) \\~\\~w\\~\\~ \\$m\\$",
    "back\\|slash &lt; snake_case": "back\\\\\\|slash &amp;lt; snake_case",
    "\x1b[31mred\x00": "\\\\x1b[31mred\\\\x00",
}


@pytest.mark.parametrize(("foreign", "shown"), FOREIGN.items())
def test_markdown_escapes_foreign_text(runs: Path, record: Make, foreign: str, shown: str) -> None:
    method = {"name": foreign, "detail": foreign}
    record(foreign, knn=70.0, cell={"method": method}, cost={"peak_memory_kind": foreign})
    record("AUH", status="diverged", environment={"git": foreign})
    record("VICReg", 1, status="diverged", knn=None)
    plan(runs / "quickstart", {"id": "f" * 12, "label": "DCL"})
    attempted(runs / "quickstart" / ("f" * 12), "failed", foreign)
    one = task(runs)
    made = [leaderboard(one), cost_table(one), hyperparameters_table(one)]
    for table in made:
        text = to_markdown(table)
        assert f"| {shown}" in text or f"| **{shown}" in text
        assert text.replace(shown, "").count(foreign) == 0
        lines = [line for line in text.splitlines() if line.startswith("|")]
        assert len(lines) == 2 + len(table.lines)
        bars = {len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in lines}
        assert bars == {len(table.columns) + 1}
    notes = [line for line in to_markdown(made[0]).splitlines() if line.startswith("- ")]
    assert any(f"DCL, 1 cell ({shown})" in note for note in notes)
    assert any(f"states of the code ({shown}; " in note or f"; {shown})" in note for note in notes)
    text = to_markdown(Table("x", foreign, [], [], [], warning=foreign))
    assert text.startswith(f"### {shown}\n\n{shown}\n")


def test_a_note_is_no_heading() -> None:
    text = to_markdown(Table("x", "# title", [Column("a")], [], ["# note", "no # 1"]))
    lines = [line for line in text.splitlines() if "#" in line]
    assert lines == ["### \\# title", "- \\# note", "- no # 1"]


def test_latex_takes_no_text_for_an_argument() -> None:
    """After a row's end or a rule, LaTeX takes [ and * for its own, wherever the next line
    begins.
    """
    columns = [Column("[2pt]", numeric=False)]
    set_lines = [Line(entries("[x]")), Line(entries("*y `z`\x1b|"))]
    text = to_latex(Table("x", "a\nb", columns, set_lines, ["n\nm"]))
    assert text.splitlines() == [
        "% a b",
        "% n m",
        "\\begin{tabular}{l}",
        "\\toprule",
        "{[}2pt] \\\\",
        "\\midrule",
        "{[}x] \\\\",
        "{*}y \\textasciigrave{}z\\textasciigrave{}\\textbackslash{}x1b\\textbar{} \\\\",
        "\\bottomrule",
        "\\end{tabular}",
    ]


def test_terminal_text_fits(runs: Path, record: Make) -> None:
    for label in ("SFRIK (L=3)", "generalized distance", "a method with quite a long name"):
        for seed in (0, 1):
            record(label, seed, knn=70.0 + seed)
    record("a\x1b[31mb\nc\td")
    text = to_terminal(leaderboard(task(runs)))
    assert max(map(len, text.splitlines())) <= 120
    for word in ("70.50 ± 0.71*", "30.0", "800", "generalized distance", "| a\\x1b[31mb c d "):
        assert word in text


def test_notes_and_answer_reach_a_terminal_as_escapes(
    runs: Path, record: Make, tmp_path: Path
) -> None:
    for seed in range(3):
        record("a\x1b[31mb\u2028", seed, knn=40.0, linear=40.0)
        record("untrained", seed, knn=50.0, linear=50.0)
    record("VICReg", 3)
    folder = runs / "a\x1b[2J"
    folder.mkdir()
    plan(folder, {"id": "f" * 12, "label": "DCL"})
    text = write_report(runs, tmp_path / "report").leaderboard
    assert text.replace("\n", "").isprintable()
    # Twice in the warning, in the table and in the answer.
    assert text.count(r"a\x1b[31mb") == 4
    assert text.endswith(r"not finished yet: 1 of a\x1b[2J")
