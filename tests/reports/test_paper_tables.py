"""The paper's tables with ours beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regbench.reports.tables.hyperparameters import hyperparameters_table
from regbench.reports.tables.leaderboard import leaderboard, leaderboard_frame
from regbench.reports.tables.paper_tables import paper_tables
from regbench.reports.tables.table import Table
from tests.reports.conftest import backbone, dataset
from tests.reports.reading import Make, grid, task, tasks

LINEAR = "linear top-1 (%)"


def in20(q: int, **more: Any) -> dict[str, Any]:
    """A cell of the paper's experiments on IN20 %."""
    place = {"dataset": dataset("in20"), "network": backbone("resnet18")}
    return {"embedding_dim": q, "batch_size": 2048, "epochs": 100, **place, **more}


def in100(q: int, **more: Any) -> dict[str, Any]:
    """A cell of the paper's experiments on IN100 %."""
    return in20(q, dataset=dataset("in100"), network=backbone("resnet50"), **{"epochs": 200, **more})


def of_paper(runs: Path) -> dict[str, Table]:
    """Those of the paper's tables that have a number of ours, by their slugs."""
    return {table.slug: table for table, _ in paper_tables(tasks(runs))}


def test_table_2_of_the_paper(runs: Path, record: Make) -> None:
    for seed, value in enumerate((46.0, 47.0)):
        record("SFRIK (L=3)", seed, sweep="in20_table2", linear=value, cell=in20(8192))
    record("VICReg", sweep="in20_table2", linear=41.0, cell=in20(1024))
    record("AUH", sweep="in20_table2", linear=41.0, cell=in20(1024, epochs=2))  # not the paper's epochs
    (table, frame) = paper_tables(tasks(runs))[0]
    assert table.slug == "paper_table2"
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


def test_tables_3_and_4_of_the_paper(runs: Path, record: Make) -> None:
    record("RBF kernel", sweep="mine", linear=40.3, cell=in20(8192))
    record("SFRIK (L=2)", sweep="mine", linear=71.0, cell=in100(8192, epochs=400))
    found = of_paper(runs)
    assert set(found) == {"paper_table3", "paper_table4", "paper_table10", "paper_table11"}
    table3, table4 = found["paper_table3"], found["paper_table4"]
    assert [row[1].text for row in table3.rows] == ["40.30 / 41.3 / −1.00", "– / 27.8 / –", "– / 47.5 / –"]
    cells = grid(table4)
    assert len(cells) == 10
    assert cells["SFRIK (L=2), q = 8192, 400 epochs"][LINEAR] == "71.00 / 70.8 / +0.20"
    assert cells["SFRIK (L=2), q = 8192, 200 epochs"][LINEAR] == "– / 70.1 / –"
    assert cells["SwAV, 200 epochs"][LINEAR] == "– / 69.1 / –"
    assert cells["SwAV, 200 epochs"]["VOC07 mAP (%)"] == "–"


def test_table_5_of_the_paper(runs: Path, record: Make) -> None:
    eight = {"world_size": 8}
    for label, gigabytes in (("VICReg", 22.0), ("SFRIK (L=2)", 10.0), ("SFRIK (L=3)", 9.9)):
        cost = {"peak_memory_bytes": int(gigabytes * 1e9), "peak_memory_kind": "CUDA allocated"}
        cell = in100(32768, batch_size=256, epochs=3)
        record(label, cell=cell, cost=cost, environment=eight)
        record(label, cell=cell | {"batch_size": 512}, cost=cost, environment={"world_size": 1})
    found = of_paper(runs)
    assert set(found) == {"paper_table5"}
    cells = grid(found["paper_table5"])
    assert cells["batch 256"]["VICReg (GB)"] == "22.00 / 22.5 / −0.50"
    assert cells["batch 256"]["SFRIK (GB)"] == "10.00 / 10.3 / −0.30"
    assert cells["batch 256"]["VICReg / SFRIK"] == "2.20 / 2.2 / +0.00"
    assert cells["batch 512"]["VICReg (GB)"] == "– / 25.4 / –"


def test_hyperparameter_tables_of_the_paper(runs: Path, record: Make) -> None:
    method = {"name": "sfrik", "alignment_weight": 4000.0, "weights": [1.0, 20.0]}
    record("SFRIK (L=2)", cell=in20(8192, method=method, optimizer={"base_lr": 1.2}))
    ninth = of_paper(runs)["paper_table9"]
    assert grid(ninth)["SFRIK (L=2), q = 8192"] == {
        "": "SFRIK (L=2), q = 8192",
        "alignment weight λ": "4000 / 2000 / +2000",
        "b1": "1 / 1 / 0",
        "b2": "20 / 20 / 0",
        "b3": "0 / 0 / 0",
        "base_lr": "1.2 / 1 / +0.2",
        "lr_head": "0.5 / 10 / −9.5",
    }


def test_rows_chosen_on_the_test_set_stand_apart(runs: Path, record: Make) -> None:
    on_test = {"hyperparameters": {"selected_on": "test", "budget": 4}}
    record("SFRIK (L=3)", linear=47.0, cell=in20(8192))
    # Of two that the test split chose among, it is the test split that prefers the first.
    for rate, linear, knn, tuning in ((2.0, 48.0, 39.0, 31.0), (1.0, 46.5, 38.0, 32.0)):
        cell = in20(8192, optimizer={"base_lr": rate})
        record("SFRIK (L=3)", linear=linear, knn=knn, tuning=tuning, cell=cell, choice=on_test)
    record("SFRIK (L=2)", linear=44.5, cell=in20(1024), choice=on_test)
    first, second = tasks(runs)
    assert [s.on_test for s in (first, second)] == [False, True]
    assert [len(s.rows) for s in (first, second)] == [1, 2]
    assert "chosen on the test set" in second.name
    table = leaderboard(second)
    assert "chosen on the test set" in table.title
    assert any("optimistic" in note for note in table.notes)
    assert any("highest kNN top-1 on the test split" in note for note in table.notes)
    assert "kNN top-1 (%), test" in [column.name for column in hyperparameters_table(second).columns]
    found = {table.slug: grid(table) for table, _ in paper_tables([first, second])}
    assert found["paper_table2"]["q = 8192"]["SFRIK (L=3)"] == "47.00 / 47.5 / −0.50"
    assert found["paper_table2"]["q = 1024"]["SFRIK (L=2)"].startswith("– / ")
    assert found["paper_table13"]["q = 8192"]["SFRIK (L=3)"] == "48.00 / 47.6 / +0.40"
    assert found["paper_table13"]["q = 1024"]["SFRIK (L=2)"] == "44.50 / 44.2 / +0.30"


def test_other_sweeps_have_no_table_of_the_paper(runs: Path, record: Make) -> None:
    record("VICReg")
    record("AUH", cell=in20(8192, network=backbone("resnet50")))
    assert paper_tables(tasks(runs)) == []


@pytest.mark.parametrize("name", ["fashion_mnist", "imagefolder"])
def test_the_papers_number_stands_beside_nothing_else(runs: Path, record: Make, name: str) -> None:
    record("VICReg", cell=in20(8192, dataset=dataset(name)))
    assert not any("paper" in column.name for column in leaderboard(task(runs)).columns)
    assert leaderboard_frame(task(runs))["paper_linear_top1_percent"].isna().all()


def test_the_papers_number_stands_beside_the_same_experiment(runs: Path, record: Make) -> None:
    record("VICReg", cell=in20(8192), linear=45.0)
    record("AUH", cell=in20(2048), linear=44.0)
    record("AUH", cell=in20(512), linear=43.0)  # the paper has no such q
    table = leaderboard(task(runs))
    place = [column.name for column in table.columns].index("paper: linear top-1 (%)")
    assert [row[place].text for row in table.rows] == ["46.0", "45.9", "–"]
    assert leaderboard_frame(task(runs))["paper_linear_top1_percent"].tolist()[:2] == [46.0, 45.9]
