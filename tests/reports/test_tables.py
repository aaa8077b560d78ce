from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from regbench.reports import tables
from regbench.reports.records import read_records
from regbench.reports.summary import Summary, summarize

Make = Callable[..., Path]


@pytest.fixture
def summary(runs: Path) -> Callable[[], Summary]:
    def read() -> Summary:
        (one,) = summarize(read_records(runs).records)
        return one

    return read


def grid(table: tables.Table) -> dict[str, dict[str, str]]:
    """Row name -> column -> text, with ** around what is bold."""
    heads = [column.name for column in table.columns]
    texts = [[f"**{c.text}**" if c.bold else c.text for c in row] for row in table.rows]
    return {row[0]: dict(zip(heads, row, strict=True)) for row in texts}


KNN, LINEAR = "kNN top-1 (%)", "linear top-1 (%)"


def test_mean_and_spread_over_seeds(record: Make, summary: Callable[[], Summary]) -> None:
    knn, linear = [70.0, 71.5, 70.2], [75.0, 74.0, 76.6]
    for seed in range(3):
        record("VICReg", seed, knn=knn[seed], linear=linear[seed], cost={"train_s": 30.0 + 3 * seed})
    row = grid(tables.leaderboard(summary()))["VICReg"]
    assert row[KNN] == f"**{np.mean(knn):.2f} ± {np.std(knn, ddof=1):.2f}**"
    assert row[LINEAR] == f"**{np.mean(linear):.2f} ± {np.std(linear, ddof=1):.2f}**"
    assert row["n"] == "3"
    assert row["train time (s)"] == "33.0"
    assert row["loss (ms/step)"] == "4.00"
    assert row["images/s"] == "1,600"
    assert row["peak memory (MiB)"] == "800"
    assert row["paper: IN20 % linear top-1, q = 8192"] == "46.0"
    time = grid(tables.time_table(summary()))["VICReg"]
    assert time["training (s)"] == f"33.0 ± {np.std([30, 33, 36], ddof=1):.1f}"
    assert time["loss / step (%)"] == "2.5"


def test_one_seed_has_no_spread(record: Make, summary: Callable[[], Summary]) -> None:
    record("VICReg", knn=70.0)
    assert grid(tables.leaderboard(summary()))["VICReg"][KNN] == "**70.00**"


def test_best_is_bold_in_its_column_only(record: Make, summary: Callable[[], Summary]) -> None:
    record("AUH", knn=72.0, linear=74.0)
    record("VICReg", knn=70.0, linear=76.0)
    record("SimCLR", knn=72.001, linear=75.0)
    table = grid(tables.leaderboard(summary()))
    assert list(table) == ["VICReg", "SimCLR", "AUH"]  # by linear probing
    bold = {(row, column) for row, cells in table.items() for column, text in cells.items() if "**" in text}
    assert bold == {("VICReg", LINEAR), ("AUH", KNN), ("SimCLR", KNN)}  # 72.00 is printed twice


def test_the_untrained_row_is_last_and_the_base_of_the_gain(record: Make, summary: Callable[[], Summary]) -> None:
    record("untrained", knn=80.0, linear=73.5)
    record("VICReg", linear=75.0)
    record("SFRIK (L=1)", linear=70.0)
    table = grid(tables.leaderboard(summary()))
    assert list(table) == ["VICReg", "SFRIK (L=1)", "untrained"]
    assert [row["linear − untrained"] for row in table.values()] == ["+1.50", "−3.50", "–"]
    assert table["untrained"]["train time (s)"] == "–"
    assert table["untrained"]["peak memory (MiB)"] == "–"
    assert "untrained" not in grid(tables.time_table(summary()))


def test_untrained_cells_of_several_methods_are_one_row(record: Make, summary: Callable[[], Summary]) -> None:
    for q in (512, 1024):
        record("VICReg", cell={"embedding_dim": q})
        record("untrained", cell={"embedding_dim": q})
    record("untrained", seed=1)
    table = tables.leaderboard(summary())
    assert [row[0].text for row in table.rows].count("untrained") == 1
    assert [c.text for c in table.rows[-1][:2]] == ["untrained", "–"]
    assert grid(table)["untrained"]["n"] == "2"


def test_without_linear_probing_knn_leads(record: Make, summary: Callable[[], Summary]) -> None:
    record("AUH", knn=70.0, linear=None)
    record("VICReg", knn=71.0, linear=None)
    record("untrained", knn=60.0, linear=None)
    table = grid(tables.leaderboard(summary()))
    assert list(table) == ["VICReg", "AUH", "untrained"]
    assert table["AUH"][LINEAR] == "–"
    assert table["AUH"]["knn − untrained"] == "+10.00"


def test_a_seed_without_the_score_shows_in_its_n(record: Make, summary: Callable[[], Summary]) -> None:
    record("VICReg", 0, linear=75.0)
    record("VICReg", 1, linear=None)
    row = grid(tables.leaderboard(summary()))["VICReg"]
    assert row["n"] == "2"
    assert row[LINEAR] == "**75.00 (n=1)**"


def test_diverged_cells_are_marked_and_counted(record: Make, summary: Callable[[], Summary]) -> None:
    gone = {"status": "diverged", "knn": None, "linear": None, "tuning": None}
    record("VICReg", 0, knn=70.0)
    record("VICReg", 1, **gone)
    record("AUH")
    record("SimCLR", **gone)
    table = tables.leaderboard(summary())
    assert "70.00" in grid(table)["VICReg †"][KNN]
    assert grid(table)["VICReg †"]["n"] == "2"
    assert grid(table)["SimCLR †"][KNN] == "–"
    assert any("VICReg (1 of 2 cells), SimCLR (1 of 1 cells)" in note for note in table.notes)


def test_a_configuration_that_diverged_is_not_chosen(record: Make, summary: Callable[[], Summary]) -> None:
    record("VICReg", tuning=60.0, linear=61.0, cell={"method": {"alignment_weight": 1.0}})
    record("VICReg", tuning=65.0, linear=66.0, cell={"method": {"alignment_weight": 2.0}})
    gone = {"status": "diverged", "knn": None, "linear": None, "tuning": None}
    record("VICReg", **gone, cell={"method": {"alignment_weight": 9.0}})
    assert "66.00" in grid(tables.leaderboard(summary()))["VICReg"][LINEAR]


def test_columns_without_a_number_are_left_out(record: Make, summary: Callable[[], Summary]) -> None:
    record("quadratic")
    heads = {column.name for column in tables.leaderboard(summary()).columns}
    assert not any("untrained" in head or "paper" in head for head in heads)
    record("untrained")
    record("VICReg")
    table = grid(tables.leaderboard(summary()))
    assert table["quadratic"]["paper: IN20 % linear top-1, q = 8192"] == "–"
    assert table["quadratic"]["linear − untrained"] == "+0.00"


def test_settings_that_vary_become_columns(record: Make, summary: Callable[[], Summary]) -> None:
    for q in (1024, 2048):
        record(
            "VICReg",
            linear=70 + q / 1024,
            cell={"embedding_dim": q, "network": {"backbone": "r", "hidden_dim": q}},
        )
    table = tables.leaderboard(summary())
    assert [c.name for c in table.columns[:3]] == ["method", "q", KNN]  # hidden_dim says the same as q
    assert [[c.text for c in row[:2]] for row in table.rows] == [["VICReg", "2048"], ["VICReg", "1024"]]


def test_the_tuning_split_chooses_not_the_test_split(record: Make, summary: Callable[[], Summary]) -> None:
    def weight(value: float) -> dict[str, object]:
        return {"method": {"name": "vicreg", "alignment_weight": value}}

    for seed in (0, 1):
        record("VICReg", seed, cell=weight(1.0), tuning=60.0, linear=99.0)
        record("VICReg", seed, cell=weight(2.0), tuning=65.0 + seed, linear=75.0 + seed)
    table = tables.leaderboard(summary())
    assert len(table.rows) == 1
    row = grid(table)["VICReg"]
    assert row[LINEAR].startswith("**75.50 ±")
    assert row["n"] == "2"
    assert any("tuning split" in note for note in table.notes)
    tried = tables.hyperparameters_table(summary())
    chosen = {row[4].text: row[-1].text for row in tried.rows}
    assert chosen == {"alignment_weight=1.0": "no", "alignment_weight=2.0": "yes"}


def test_without_a_tuning_score_nothing_is_chosen(record: Make, summary: Callable[[], Summary]) -> None:
    record("AUH")
    record("VICReg", cell={"optimizer": {"base_lr": 1.0}}, tuning=60.0)
    record("VICReg", cell={"optimizer": {"base_lr": 2.0}})
    table = tables.leaderboard(summary())
    assert list(grid(table)) == ["AUH"]
    assert any("VICReg (2)" in note for note in table.notes)


def test_sweeps_of_one_task_share_a_leaderboard(runs: Path, record: Make) -> None:
    record("VICReg", sweep="quickstart")
    record("VICReg", sweep="mine")  # the same cell
    record("quadratic", sweep="mine")
    record("AUH", sweep="mine", cell={"dataset": {"name": "stl10"}})
    first, second = summarize(read_records(runs).records)
    names = {s.name: [row.label for row in s.rows] for s in (first, second)}
    assert names == {"mine": ["AUH"], "mine + quickstart": ["VICReg", "quadratic"]}
    assert len(second.records) == 2


def test_tasks_of_one_sweep_are_told_apart(runs: Path, record: Make) -> None:
    record("VICReg")
    record("VICReg", cell={"dataset": {"name": "stl10"}})
    record("VICReg", cell={"dataset": {"name": "stl10"}, "evaluation": {"knn": {"k": 200}}})
    names = {s.name for s in summarize(read_records(runs).records)}
    assert names == {
        "quickstart: fashion_mnist, resnet_tiny",
        "quickstart: stl10, resnet_tiny",
        "quickstart: stl10, resnet_tiny (another evaluation or image size)",
    }


def test_unequal_machines_are_told(record: Make, summary: Callable[[], Summary]) -> None:
    record("VICReg", environment={"hardware": "GPU A"})
    record("AUH", environment={"hardware": "GPU B", "git": None}, cost={"peak_memory_kind": "CUDA allocated"})
    notes = " ".join(tables.leaderboard(summary()).notes)
    assert "GPU A" in notes
    assert "GPU B" in notes
    assert "abc1234, unknown" in notes
    assert "CUDA allocated, process RSS" in notes


def test_units_grow_with_the_values(record: Make, summary: Callable[[], Summary]) -> None:
    record(cost={"train_s": 7200.0, "peak_memory_bytes": 10 * 2**30})
    row = grid(tables.leaderboard(summary()))["VICReg"]
    assert row["train time (min)"] == "120.0"
    assert row["peak memory (GiB)"] == "10.00"


def test_leaderboard_frame_holds_the_numbers(record: Make, summary: Callable[[], Summary]) -> None:
    for seed, value in enumerate((74.0, 77.0)):
        record("SFRIK (L=3)", seed, linear=value)
    record("untrained", linear=70.0)
    frame = tables.leaderboard_frame(summary()).set_index("label")
    row = frame.loc["SFRIK (L=3)"]
    assert row["linear_top1_percent"] == 75.5
    assert row["linear_top1_percent_std"] == pytest.approx(np.std([74, 77], ddof=1))
    assert row["linear_top1_minus_untrained"] == 5.5
    assert row["paper_in20_linear_top1_percent"] == 47.5
    assert frame["train_s"].isna().to_dict() == {"SFRIK (L=3)": False, "untrained": True}


def _in20(q: int, **more: object) -> dict[str, object]:
    return {"embedding_dim": q, "batch_size": 2048, "epochs": 100, **more}


def test_table_2_of_the_paper(record: Make, summary: Callable[[], Summary]) -> None:
    for seed, value in enumerate((46.0, 47.0)):
        record("SFRIK (L=3)", seed, sweep="in20_table2", linear=value, cell=_in20(8192))
    record("VICReg", sweep="in20_table2", linear=41.0, cell=_in20(1024))
    record("AUH", sweep="in20_table2", linear=41.0, cell=_in20(1024, epochs=2))  # not the paper's epochs
    ((table, frame),) = tables.paper_tables(summary())
    methods = ["SimCLR", "AUH", "VICReg", "SFRIK (L=1)", "SFRIK (L=2)", "SFRIK (L=3)"]
    assert [c.name for c in table.columns] == ["", *methods]
    cells = grid(table)
    assert list(cells) == ["q = 1024", "q = 2048", "q = 4096", "q = 8192"]
    assert cells["q = 8192"]["SFRIK (L=3)"] == "46.50 ± 0.71 / 47.5 / −1.00"
    assert cells["q = 1024"]["VICReg"] == "41.00 / 40.6 / +0.40"
    assert cells["q = 1024"]["AUH"] == "– / 45.3 / –"
    assert cells["q = 1024"]["SFRIK (L=3)"] == "–"
    assert any("1 of our rows" in note for note in table.notes)
    assert frame["difference"].notna().sum() == 2
    assert not any("paper" in column.name for column in tables.leaderboard(summary()).columns)


def test_tables_3_and_4_of_the_paper(runs: Path, record: Make) -> None:
    record("RBF kernel", sweep="in20_table3", linear=40.3, cell=_in20(8192, dataset={"name": "in20"}))
    cell = {**_in20(8192, dataset={"name": "in100"}), "epochs": 400}
    record("SFRIK (L=2)", sweep="in100_table4", linear=71.0, cell=cell)
    fourth, third = summarize(read_records(runs).records)
    ((table3, _),) = tables.paper_tables(third)
    assert [row[1].text for row in table3.rows] == ["40.30 / 41.3 / −1.00", "– / 27.8 / –", "– / 47.5 / –"]
    ((table4, _),) = tables.paper_tables(fourth)
    cells = grid(table4)
    assert len(cells) == 10
    assert cells["SFRIK (L=2), q = 8192, 400 epochs"][LINEAR] == "71.00 / 70.8 / +0.20"
    assert cells["SFRIK (L=2), q = 8192, 200 epochs"][LINEAR] == "– / 70.1 / –"
    assert cells["SwAV, 200 epochs"][LINEAR] == "– / 69.1 / –"
    assert cells["SwAV, 200 epochs"]["VOC07 mAP (%)"] == "–"


def test_other_sweeps_have_no_table_of_the_paper(record: Make, summary: Callable[[], Summary]) -> None:
    record("VICReg")
    assert tables.paper_tables(summary()) == []


def test_latex_is_balanced_booktabs(record: Make, summary: Callable[[], Summary]) -> None:
    record("50 % & $x_1$ #{~^\\}", 0, knn=70.0)
    record("AUH", 0, knn=60.0, status="diverged")
    text = tables.to_latex(tables.leaderboard(summary()))
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


def test_markdown(record: Make, summary: Callable[[], Summary]) -> None:
    record("a|b", knn=70.0)
    table = tables.leaderboard(summary())
    lines = tables.to_markdown(table).splitlines()
    assert lines[0] == "### Leaderboard"
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 3
    assert "a\\|b" in rows[2]
    assert "**70.00**" in rows[2]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {len(table.columns) + 1}


def test_terminal_text_fits(record: Make, summary: Callable[[], Summary]) -> None:
    for label in ("SFRIK (L=3)", "generalized distance", "a method with quite a long name"):
        for seed in (0, 1):
            record(label, seed, knn=70.0 + seed)
    text = tables.to_terminal(tables.leaderboard(summary()))
    assert max(map(len, text.splitlines())) <= 120
    for word in ("70.50 ± 0.71*", "30.0", "800", "generalized distance"):
        assert word in text
