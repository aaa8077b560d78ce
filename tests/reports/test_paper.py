"""Numbers typed from the paper's PDF tables, apart from published.csv, and ours beside them."""

from __future__ import annotations

from collections import Counter

from regbench.benchmark.settings.recipes import paper_numbers

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
        is_named = (number.method, number.score) == (label, metric)
        if is_named and number.setting.startswith(f"Table {table},"):
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
    names = {(number.setting, number.method, number.cell, number.score) for number in numbers}
    assert len(names) == len(numbers)
    orders = {number.method for number in numbers if number.method.startswith("SFRIK (")}
    assert orders == {f"SFRIK (L={i})" for i in (1, 2, 3)}
