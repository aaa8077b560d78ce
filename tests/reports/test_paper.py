"""Numbers typed from the paper's PDF tables, apart from published.csv."""

from __future__ import annotations

from typing import Any

from regbench.reports.tables.paper import linear_top1, load_paper, paper_value

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
        assert paper_value(label, metric, table, **{places[table]: size}) == value, (table, label, size)
    for label, q, epochs, metric, value in TABLE_4:
        where = {"epochs": epochs} | ({"embedding_dim": q} if q else {})
        assert paper_value(label, metric, 4, **where) == value, (label, q, metric)
    assert paper_value("AUH", "places205_top1", 14) == 42.3
    assert paper_value("SFRIK (L=3)", "voc07_map_full", 14) == 74.1


def test_the_leaderboards_column() -> None:
    place = {"embedding_dim": 8192, "batch_size": 2048, "epochs": 100}

    def ours(label: str, dataset: str = "in20", backbone: str = "resnet18", **more: Any) -> float | None:
        return linear_top1(label, dataset, backbone, **{"on_test": False, **place, **more})

    assert ours("SFRIK (L=2)") == 47.0
    assert ours("RBF kernel") == 41.3
    assert ours("generalized distance") == 27.8
    assert ours("Barlow Twins") is None
    assert ours("SFRIK (L=2)", embedding_dim=4096) == 46.9
    assert ours("SFRIK (L=3)", on_test=True) == 47.6
    assert ours("SFRIK (L=2)", "in100", "resnet50", epochs=400) == 70.8
    other: list[dict[str, Any]] = [
        {"dataset": "imagefolder"},
        {"backbone": "resnet50"},
        {"epochs": 101},
        {"batch_size": 256},
    ]
    assert [ours("SFRIK (L=2)", **one) for one in other] == [None] * 4


def test_each_table_is_whole() -> None:
    frame = load_paper()
    # Cells of the printed tables that hold a number.
    counts = [18, 3, 66, 9, 12, 16, 16, 36, 30, 14, 28, 18, 9, 32]
    assert frame.groupby("table").size().to_dict() == dict(enumerate(counts, 2))
    keys = ["table", "label", "embedding_dim", "batch_size", "epochs", "metric"]
    assert not frame.duplicated(keys).any()
    orders = set(frame["label"][frame["label"].str.startswith("SFRIK (")])
    assert orders == {f"SFRIK (L={i})" for i in (1, 2, 3)}
