"""Numbers typed from the paper's PDF tables, apart from published.csv, and ours beside them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from regbench.benchmark.settings.recipes import paper_numbers
from regbench.reports.tables.details import accuracy_table
from regbench.reports.tables.hyperparameters import hyperparameters_table
from regbench.reports.tables.leaderboard import leaderboard, leaderboard_frame
from regbench.reports.tables.paper import beside_paper
from tests.reports.conftest import backbone, dataset, score
from tests.reports.reading import Make, task, tasks, texts

TABLE_2: list[tuple[str, int, float | None]] = [
    ("SimCLR", 1024, 45.2),
    ("AUH", 2048, 45.9),
    ("VICReg", 1024, 40.6),
    ("VICReg", 4096, 44.9),
    ("SFRIK (L=2)", 4096, 46.9),
    ("SFRIK (L=1)", 8192, 27.7),
    ("SFRIK (L=3)", 8192, 47.5),
    ("SFRIK (L=3)", 1024, None),
    ("SFRIK (L=1)", 2048, None),
]
TABLE_4 = [
    ("SimSiam", None, 200, "linear_top1", 70.0),
    ("VICReg", 8192, 200, "labels1_top1", 49.4),
    ("VICReg", 8192, 200, "voc07_map_full", 84.9),
    ("SFRIK (L=2)", 8192, 400, "linear_top1", 70.8),
    ("SFRIK (L=2)", 8192, 200, "linear_top1", 70.1),
    ("SFRIK (L=2)", 16384, 200, "voc07_map_full", 85.2),
    ("SFRIK (L=3)", 32768, 200, "linear_top5", 89.7),
    ("SFRIK (L=3)", 8192, 200, "places205_top5", 83.9),
    ("SFRIK (L=3)", 8192, 200, "labels10_top5", 87.7),
]


def printed(table: int, label: str, metric: str, **where: int) -> float | None:
    """A number of published.csv; None where there is none."""
    places = {f"{name}={value}" for name, value in where.items()}
    found = []
    for number in paper_numbers():
        if number.setting.startswith(f"Table {table},") and (number.method, number.score) == (
            label,
            metric,
        ):
            found += [number.number] if places <= set(number.cell.split()) else []
    assert len(found) < 2
    return found[0] if found else None


def test_printed_numbers() -> None:
    places = {2: "embedding_dim", 13: "embedding_dim", 5: "batch_size"}
    expected: list[tuple[int, str, int, str, float | None]] = [
        *((2, label, q, "linear_top1", value) for label, q, value in TABLE_2),
        (13, "SFRIK (L=3)", 8192, "linear_top1", 47.6),
        (13, "SFRIK (L=2)", 1024, "linear_top1", 44.2),
    ]
    for batch, vicreg, sfrik in ((256, 22.5, 10.3), (512, 25.4, 13.1), (1024, 31.1, 18.8)):
        expected.append((5, "VICReg", batch, "peak_memory", vicreg))
        expected.append((5, "SFRIK", batch, "peak_memory", sfrik))
        expected.append((5, "VICReg / SFRIK", batch, "peak_memory_ratio", round(vicreg / sfrik, 1)))
    for table, label, size, metric, value in expected:
        assert printed(table, label, metric, **{places[table]: size}) == value, (table, label, size)
    for label, q, epochs, metric, value in TABLE_4:
        where = {"epochs": epochs} | ({"embedding_dim": q} if q else {})
        assert printed(4, label, metric, **where) == value, (label, q, metric)
    assert printed(14, "AUH", "places205_top1") == 42.3
    assert printed(14, "SFRIK (L=3)", "voc07_map_full") == 74.1


def test_each_table_is_whole() -> None:
    numbers = paper_numbers()
    # Cells of the printed tables that hold a number.
    counts = [18, 3, 66, 9, 12, 16, 16, 36, 30, 14, 28, 18, 9, 32]
    found = Counter(int(number.setting.split()[1].strip(",")) for number in numbers)
    assert found == dict(enumerate(counts, 2))
    assert len(
        {(number.setting, number.method, number.cell, number.score) for number in numbers}
    ) == len(numbers)
    orders = {number.method for number in numbers if number.method.startswith("SFRIK (")}
    assert orders == {f"SFRIK (L={i})" for i in (1, 2, 3)}


def in20(q: int, **more: Any) -> dict[str, Any]:
    """A cell of the paper's experiments on IN20 %."""
    place = {"dataset": dataset("in20"), "network": backbone("resnet18")}
    return {"embedding_dim": q, "batch_size": 2048, "epochs": 100, **place, **more}


def in100(q: int, **more: Any) -> dict[str, Any]:
    """A cell of the paper's experiments on IN100 %."""
    return in20(
        q, dataset=dataset("in100"), network=backbone("resnet50"), **{"epochs": 200, **more}
    )


def beside(runs: Path) -> list[tuple[str, ...]]:
    """Table, method, score, ours, paper and difference of each line."""
    made = beside_paper(tasks(runs))
    assert made is not None
    return [(*line[:2], *line[3:]) for line in texts(made[0])[1:]]


def test_ours_stand_beside_the_papers(runs: Path, record: Make) -> None:
    for seed, value in enumerate((46.0, 47.0)):
        record("SFRIK (L=3)", seed, sweep="in20_table2", linear=value, cell=in20(8192))
    record("VICReg", linear=41.0, cell=in20(1024))
    record("AUH", linear=41.0, cell=in20(1024, epochs=2))  # not the paper's epochs
    record("RBF kernel", linear=40.3, cell=in20(8192))
    record(
        "SimSiam", linear=70.0, cell=in100(2048)
    )  # the paper cites it, without an embedding dimension
    more = score("labels1_top1", 50.0)
    record("SFRIK (L=2)", scores=(score("linear_top1", 71.0), more), cell=in100(8192, epochs=400))
    record("SFRIK (L=2)", scores=(more,), cell=in100(8192))
    linear = "linear top-1 (%)"
    assert beside(runs) == [
        ("2", "VICReg", linear, "41.00", "40.6", "+0.40"),
        ("2", "SFRIK (L=3)", linear, "46.50 ± 0.71", "47.5", "−1.00"),
        ("3", "RBF kernel", linear, "40.30", "41.3", "−1.00"),
        ("3", "SFRIK (L=3)", linear, "46.50 ± 0.71", "47.5", "−1.00"),
        ("4", "SFRIK (L=2)", "1 % labels top-1 (%)", "50.00", "46.6*", "+3.40"),
        ("4", "SFRIK (L=2)", linear, "71.00", "70.8*", "+0.20"),
        ("4", "SFRIK (L=2)", "1 % labels top-1 (%)", "50.00", "47.8*", "+2.20"),
    ]
    made = beside_paper(tasks(runs))
    assert made is not None
    line = made[1].iloc[1].to_dict()
    assert line.pop("ours_std") == pytest.approx(0.5**0.5)
    assert line == {
        **{
            "table": 2,
            "label": "SFRIK (L=3)",
            "score": "linear_top1",
            "paper": 47.5,
            "ours": 46.5,
            "n": 2,
        },
        **{"difference": -1.0, "ours_on_test": False},
        "cell": "dataset=in20 embedding_dim=8192 batch_size=2048 epochs=100",
    }


def test_memory_is_that_of_eight_gpus(runs: Path, record: Make) -> None:
    for label, gigabytes in (("VICReg", 22.0), ("SFRIK (L=2)", 10.0)):
        cost = {"peak_memory_bytes": int(gigabytes * 1e9), "peak_memory_kind": "CUDA allocated"}
        cell = in100(32768, batch_size=256, epochs=3)
        record(label, cell=cell, cost=cost, environment={"world_size": 8})
        more = cost | {"peak_memory_bytes": int((gigabytes + 0.2) * 1e9)}
        record(label, 1, cell=cell, cost=more, environment={"world_size": 8})
        record(label, cell=cell | {"batch_size": 512}, cost=cost, environment={"world_size": 1})
        of_process = cost | {"peak_memory_kind": "process RSS"}
        record(
            label, cell=cell | {"batch_size": 1024}, cost=of_process, environment={"world_size": 8}
        )
    assert beside(runs) == [
        ("5", "VICReg", "memory per GPU (GB)", "22.10 ± 0.14", "22.5", "−0.40"),
        ("5", "SFRIK (L=2)", "memory per GPU (GB)", "10.10 ± 0.14", "10.3", "−0.20"),
    ]


def test_rows_chosen_on_the_test_set_stand_apart(runs: Path, record: Make) -> None:
    on_test = {"hyperparameters": {"selected_on": "test", "budget": 4}}
    record("SFRIK (L=3)", linear=47.0, cell=in20(8192))
    # Of two that the test split chose among, it is the test split that prefers the first.
    for rate, linear, knn, tuning in ((2.0, 48.0, 39.0, 31.0), (1.0, 46.5, 38.0, 32.0)):
        cell = in20(8192, optimizer={"base_lr": rate})
        record("SFRIK (L=3)", linear=linear, knn=knn, tuning=tuning, cell=cell, choice=on_test)
    first, second = tasks(runs)
    assert [s.on_test for s in (first, second)] == [False, True]
    assert [len(s.rows) for s in (first, second)] == [1, 1]
    assert "chosen on the test set" in second.name
    table = leaderboard(second)
    assert "chosen on the test set" in table.title
    assert any("optimistic" in note for note in table.notes)
    told = (
        "Equal tuning budget: 4 configurations for each row, chosen by kNN top-1 on the test split."
    )
    assert told in table.notes
    assert "kNN top-1 (%), test" in [
        column.name for column in hyperparameters_table(second).columns
    ]
    found = [(line[0], line[3], line[4]) for line in beside(runs)]
    assert found == [("2", "47.00", "47.5"), ("3", "47.00", "47.5"), ("13", "48.00", "47.6*")]
    made = beside_paper([first, second])
    assert made is not None and made[1]["ours_on_test"].tolist() == [False, False, True]


@pytest.mark.parametrize(
    "cell",
    [
        {"dataset": dataset("imagefolder")},
        {"network": backbone("resnet50")},
        {"epochs": 101},
        {"batch_size": 256},
        {"embedding_dim": 512},
    ],
)
def test_the_papers_number_stands_beside_nothing_else(
    runs: Path, record: Make, cell: dict[str, Any]
) -> None:
    record("VICReg", cell=in20(8192) | cell)
    record("Barlow Twins", cell=in20(8192) | cell)
    table = leaderboard(task(runs))
    assert "ublished" not in " ".join((*(column.name for column in table.columns), *table.notes))
    assert leaderboard_frame(task(runs))["linear_top1_published"].isna().all()
    assert beside_paper(tasks(runs)) is None


def test_the_papers_number_stands_beside_the_same_experiment(runs: Path, record: Make) -> None:
    record("VICReg", cell=in20(8192), linear=45.0)
    record("AUH", cell=in20(2048), linear=44.0)
    record("AUH", cell=in20(512), linear=43.0)  # the paper has no such q
    table = leaderboard(task(runs))
    column = "linear top-1 (%), published"
    place = [each.name for each in table.columns].index(column)
    assert [line.entries[place].text for line in table.lines] == ["46", "45.9", "–"]
    assert leaderboard_frame(task(runs))["linear_top1_published"].tolist()[:2] == [46.0, 45.9]


def test_a_recipes_numbers_stand_beside_its_rows(runs: Path, record: Make) -> None:
    """Not beside those of another length, of another sweep or of another method."""
    sizes = {"batch_size": 512, "epochs": 200}
    for seed, knn in enumerate((84.0, 86.0)):
        record("SimCLR", seed, knn=knn, linear=None, sweep="lightly_cifar10", cell=sizes)
    record("VICReg", knn=80.0, linear=None, sweep="lightly_cifar10", cell=sizes)
    shorter = {"batch_size": 512, "epochs": 100}
    record("SimCLR", knn=70.0, linear=None, sweep="lightly_cifar10", cell=shorter)
    record("Barlow Twins", knn=60.0, linear=None, sweep="mine", cell=sizes)
    summary = task(runs)
    shown = [row[1:3] + row[-1:] for row in texts(leaderboard(summary))[1:]]
    assert shown == [
        ["200", "**85.00 ± 1.41**", "84.8*"],
        ["200", "80.00", "–"],
        ["100", "70.00", "–"],
        ["200", "60.00", "–"],
    ]
    (note,) = (note for note in leaderboard(summary).notes if note.startswith("Published"))
    assert "best epoch on the test set; one seed (github.com/lightly-ai/lightly@e8d317f" in note
    assert accuracy_table(summary).columns[-1].name == "kNN top-1 (%), published"
