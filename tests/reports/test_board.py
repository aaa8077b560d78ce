"""The leaderboard of several bundles: its tables, its cells, and the pages in a real browser
without a network.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser, Page, expect

from regbench.benchmark.backbones.base import BACKBONES
from regbench.cli import main
from regbench.reports.board.by_task import new_slug, tasks_of
from regbench.reports.board.gather import gather
from regbench.reports.bundle.bundle import read_bundle
from tests.reports.conftest import PATIENCE_MS, STILL, later, score
from tests.reports.forging import Json, Parts, tuned_sweep
from tests.reports.reading import Drawn, cells_in, tables_in

EVIL = "</script><img src=x onerror=alert(1)>"
GIVEN = {"selected_on": "given", "score": None, "budget": None, "record": None, "sha256": None}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles of three labs: a tuning; one of its cells with another score; a forged one.

    And a copy of the first.
    """
    folder = tmp_path_factory.mktemp("board")
    tuned_sweep(folder / "runs")
    results = folder / "results"
    command = [
        "submit",
        "mine",
        "--runs-dir",
        str(folder / "runs"),
        "--out",
        str(results / "lab-a.tar.xz"),
    ]
    assert CliRunner().invoke(main, command).exit_code == 0
    shutil.copy(results / "lab-a.tar.xz", results / "copy.tar.xz")
    parts = Parts(results / "lab-a.tar.xz")
    record = next(record for record in parts.final if record["method"] == "vicreg")
    parts.records = [record]
    parts.choices.clear()
    record["choice"]["hyperparameters"] = GIVEN
    record["environment"]["hardware"] = EVIL
    parts.score(record, "linear_top1")["value"] -= 0.75
    (results / "other").mkdir()
    parts.write(results / "other" / "lab-b.tar.xz")
    parts.score(record)["value"] = 99.0
    parts.write(results / "forged.tar.xz")
    return results


def _several_sizes(parts: Parts, out: Path) -> None:
    """A bundle of one method with two dimensions and two batches, and of three learning rates
    of one of these.
    """
    template = next(record for record in parts.final if record["method"] == "vicreg")
    parts.records.clear()
    parts.choices.clear()
    for q, n, rate in (
        (64, 32, 0.4),
        (128, 32, 0.4),
        (64, 48, 0.4),
        (128, 32, 0.04),
        (128, 32, 4.0),
    ):
        record = parts.copy(template)
        record |= {
            "sweep": "sizes",
            "checkpoint": None,
            "seed": 7,
            "choice": {"hyperparameters": GIVEN},
        }
        record["cell"] |= {"embedding_dim": q, "batch_size": n, "seed": 7}
        record["cell"]["optimizer"]["base_lr"] = rate
        record["cost"] |= {"loss_ms": q * n / 1000, "loss_extra_bytes": q * n * 2**10}
        record["attempts"][-1]["finished"] = f"2026-11-{22 + q // 64}T07:30:00+00:00"
        for split in ("tuning", "test"):
            parts.score(record, split=split)["value"] = 60.0 + q / 64 - (rate != 0.4)
        rank = {
            "name": "rankme",
            "value": q / 4,
            "unit": "",
            "split": "tuning",
            "higher_is_better": None,
        }
        record["scores"].append({**record["scores"][0], **rank})
        parts.settle(record)
        parts.history(record, partial(_set_first, loss=q + n + rate, effective_rank=q / 2))
        parts.history(record, lambda rows: rows[-1].update(alignment=0.25))
    parts.write(out)


def _set_first(rows: list[Json], **numbers: float) -> None:
    rows[0].update(numbers)


@pytest.fixture(scope="module")
def site(bundles: Path) -> Path:
    """The leaderboard of these."""
    out = bundles.parent / "site"
    done = CliRunner().invoke(main, ["leaderboard", str(bundles), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "cells: 6, bundles: 3, tasks: 1;" in done.stdout
    assert re.match(r"left out: forged: .* more than its top-5", done.stderr)
    return out


def pages(results: Path, kind: str) -> list[Path]:
    """The pages of one kind of a leaderboard of the bundles in a folder, none of which is
    refused.
    """
    done = CliRunner().invoke(main, ["leaderboard", str(results), "--out", str(results / "site")])
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    return sorted((results / "site" / kind).iterdir())


def cells_of_site(site: Path) -> dict[str, list[Json]]:
    """The runs of each cell of a site with one task, by the cell's id."""
    (page,) = (site / "tasks").iterdir()
    runs: dict[str, list[Json]] = {}
    for run in cells_in(page):
        runs.setdefault(run["id"], []).append(run)
    return runs


def test_the_start_page(site: Path, bundles: Path) -> None:
    found = tables_in(site / "index.html")
    task = {"task": "fashion_mnist, resnet_tiny", "cells": "6", "methods": "2", "best row": "AUH"}
    assert found["Tasks"] == [
        {**task, "its score": "65.00 ± 0.00", "score": "linear_top1 (%)", "newest": "2026-11-22"}
    ]
    both = {"published": "somebody, 2021", "tasks": "1", "cells in rows": "2"}
    assert found["Methods"] == [
        {"method": "AUH", "first in": "1", **both},
        {"method": "VICReg", "first in": "0", **both},
    ]
    assert found["Bundles"] == [
        {
            **{"bundle": name, "cells": cells, "hardware": hardware, "finished": "2026-11-22"},
            "sha256": read_bundle(bundles / f"{name}.tar.xz").sha256,
        }
        for name, cells, hardware in (
            *(("copy", "6", "1 x Example"), ("lab-a", "6", "1 x Example")),
            ("other/lab-b", "1", EVIL),
        )
    ]
    text = (site / "index.html").read_text()
    assert 'href="tasks/fashion-mnist-resnet-tiny.html"' in text
    assert 'href="methods/auh.html"' in text
    assert (
        "1 cell was run by more than one lab. The largest difference of a leading score is 0.75 "
        "points" in text
    )
    assert '<span class="id">forged</span>' in text
    assert "6 cells of 3 bundles." in text
    numbers = ["cells", "methods", "its score", "tasks", "first in", "cells in rows", "cells"]
    assert re.findall('<th scope="col" class="n">([^<]*)', text) == numbers


def test_a_task(site: Path) -> None:
    page = site / "tasks" / "fashion-mnist-resnet-tiny.html"
    found = tables_in(page)
    rows = {row["method"]: row for row in found["Leaderboard"]}
    assert rows["VICReg"]["knn_top1 (%)"] == "70.00 ± 0.00"
    assert rows["AUH"]["knn_top1 (%)"] == "**71.00 ± 0.00**"
    assert rows["AUH"]["n"] == "2"
    assert '<a href="../methods/auh.html">AUH</a>' in page.read_text()
    tried = [row for row in found["Hyperparameters"] if row["method"] == "AUH"]
    assert [(row["in the leaderboard"], row["tried"]) for row in tried] == [
        ("yes", "2"),
        ("no", "–"),
    ]
    assert [row["knn_top1 (%), tuning"] for row in tried] == ["71.00 ± 0.00", "66.00"]


def test_a_method(site: Path) -> None:
    page = site / "methods" / "auh.html"
    (row,) = tables_in(page)["Results"]
    shown = {
        **{
            "task": "fashion_mnist, resnet_tiny",
            "setting": "–",
            "linear_top1 (%)": "**65.00 ± 0.00**",
        },
        **{"knn_top1 (%)": "**71.00 ± 0.00**", "place": "1 of 2", "n": "2", "tuned among": "2"},
        **{"effective rank": "30.0 ± 0.0", "training (s)": "21.9 ± 0.3", "step (ms)": "9.0 ± 0.0"},
        "peak memory (MiB)": "1,024 ± 0",
    }
    assert list(row.items()) == list(shown.items())
    numbers = re.findall('<th scope="col" class="n">([^<]*)', page.read_text())
    assert numbers == [name for name in shown if name not in ("task", "setting")]
    assert re.search(r'href="../tasks/fashion-mnist-resnet-tiny.html#s1-row0"', page.read_text())
    assert '<p class="formula">a + b</p>' in page.read_text()


def test_a_method_of_several_sizes(bundles: Path, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    _several_sizes(Parts(bundles / "lab-a.tar.xz"), tmp_path / "results" / "sizes.tar.xz")
    done = CliRunner().invoke(
        main, ["leaderboard", str(tmp_path / "results"), "--out", str(tmp_path / "site")]
    )
    assert "cells: 5, bundles: 1, tasks: 1;" in done.output
    found = tables_in(tmp_path / "site" / "methods" / "vicreg.html")
    common = {
        "task": "fashion_mnist, resnet_tiny",
        "linear_top1 (%)": "**65.00**",
        "n": "1",
        "effective rank": "30.0",
    }
    common |= {
        "alignment": "0.25",
        "training (s)": "22.3",
        "step (ms)": "9.0",
        "peak memory (MiB)": "1,024",
    }
    rows = (
        ("q=64, batch=32", "61.00", "1 of 3", "–", "2.05", "2.00"),
        ("q=128, batch=32", "**62.00**", "2 of 3", "3", "4.10", "4.00"),
        ("q=64, batch=48", "61.00", "3 of 3", "–", "3.07", "3.00"),
    )
    heads = (
        "setting",
        "knn_top1 (%)",
        "place",
        "tuned among",
        "loss (ms/step)",
        "loss memory (MiB)",
    )
    assert found["Results"] == [common | dict(zip(heads, row, strict=True)) for row in rows]
    start = tables_in(tmp_path / "site" / "index.html")
    assert [(row["methods"], row["newest"]) for row in start["Tasks"]] == [("1", "2026-11-24")]
    assert [tuple(row.values())[2:] for row in start["Methods"]] == [
        ("1", "1", "3")
    ]  # tasks, firsts, cells
    (task,) = (tmp_path / "site" / "tasks").iterdir()
    tables = tables_in(task)
    ranks = [row["knn_top1, tuning"] for row in tables["Accuracy"]]
    assert sorted(ranks) == ["16.00", "16.00", "32.00"]
    assert len(tables["Hyperparameters"]) == 5
    text = task.read_text()
    titles = re.findall("<figcaption>([^<]*)</figcaption>", text)
    for size in ("the embedding dimension", "the batch"):
        for quantity in ("Time of a step", "Time of the loss", "Memory of the loss"):
            assert f"{quantity} against {size}" in titles
    drawn = Drawn(text, "Time of the loss against the embedding dimension", log="x")
    assert drawn.markers("VICReg, batch=32") == [[64, 2.05], [128, 4.1]]


def test_the_same_cell_from_two_labs(site: Path) -> None:
    differences = [runs[0]["differs"] for runs in cells_of_site(site).values()]
    assert sorted(differences, key=str) == [0.75, *[None] * 5]


def test_runs_of_a_cell_differ_by_as_much_as_the_score_that_differs_most(
    bundles: Path, tmp_path: Path
) -> None:
    """Here kNN's by 2 points, where linear probing's differs by 0.75.

    Those of another cell differ by a point.
    """
    shutil.copy(bundles / "lab-a.tar.xz", tmp_path)
    parts = Parts(bundles / "other" / "lab-b.tar.xz")
    parts.score(parts.records[0])["value"] -= 2.0
    parts.write(tmp_path / "lab-b.tar.xz")
    parts = Parts(bundles / "lab-a.tar.xz")
    for record in parts.final:
        parts.score(record, "linear_top1")["value"] += record["method"] == "auh"
    parts.write(tmp_path / "lab-c.tar.xz")
    (page,) = pages(tmp_path, "tasks")
    differences = [runs[0]["differs"] for runs in cells_of_site(page.parents[1]).values()]
    assert sorted(differences, key=str) == [1.0, 1.0, 2.0, None, None, None]
    assert (
        "The largest difference of a leading score is 2.00 points"
        in (page.parents[1] / "index.html").read_text()
    )


def test_a_cell_has_all_its_runs(site: Path) -> None:
    cells = cells_of_site(site)
    assert len(cells) == 6
    (twice,) = (runs for runs in cells.values() if len(runs) == 2)
    assert sorted(run["bundles"] for run in twice) == [["copy", "lab-a"], ["other/lab-b"]]
    assert [run.get("again", False) for run in twice] == [False, True]
    assert {run["environment"]["hardware"] for run in twice} == {"1 x Example", EVIL}
    assert all(re.fullmatch("[0-9a-f]{64}", run["sha256"]) for run in twice)


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text()
        assert not re.search(r"""(?:src|<link[^>]*href)=["']?(?:https?:)?//""", text)
        assert "<img" not in text


def test_other_images_are_another_task(bundles: Path, tmp_path: Path) -> None:
    parts = Parts(bundles / "other" / "lab-b.tar.xz")
    parts.records[0]["data"]["content_sha256"]["test"] = "99" * 32
    results = tmp_path / "results"
    results.mkdir()
    parts.write(results / "lab-c.tar.xz")
    shutil.copy(bundles / "copy.tar.xz", results)
    done = CliRunner().invoke(main, ["leaderboard", str(results), "--out", str(tmp_path / "site")])
    assert done.exit_code == 0, done.output
    names = [row["task"] for row in tables_in(tmp_path / "site" / "index.html")["Tasks"]]
    assert names == [
        f"fashion_mnist, resnet_tiny, test split {2 * digits}" for digits in ("9999", "cdcd")
    ]


def test_short_trainings_of_a_search_are_in_no_row(bundles: Path, tmp_path: Path) -> None:
    parts = Parts(bundles / "lab-a.tar.xz")
    template = next(r for r in parts.records if (r["status"], r["method"]) == ("tuned", "vicreg"))
    parts.score(parts.shorten(template), split="tuning")["value"] = 89.0
    parts.write(tmp_path / "search.tar.xz")
    shutil.copy(bundles / "other" / "lab-b.tar.xz", tmp_path / "without_a_search.tar.xz")
    done = CliRunner().invoke(main, ["leaderboard", str(tmp_path), "--out", str(tmp_path / "site")])
    assert "cells: 7, bundles: 2, tasks: 1;" in done.output
    (page,) = (tmp_path / "site" / "tasks").iterdir()
    found = tables_in(page)
    assert all("epochs" not in row for row in found["Leaderboard"])
    assert Counter(row["method"] for row in found["Hyperparameters"]) == {"VICReg": 2, "AUH": 2}
    assert all("89.00" not in row["knn_top1 (%), tuning"] for row in found["Hyperparameters"])
    epochs = [run["config"]["epochs"] for run, *_ in cells_of_site(tmp_path / "site").values()]
    assert sorted(epochs) == [1, 2, 2, 2, 2, 2, 2]


def test_tunings_of_two_lengths_are_no_steps_of_a_search_and_what_is_between_is_one(
    tmp_path: Path,
) -> None:
    tuned_sweep(tmp_path / "runs", "long", "epochs=3")
    tuned_sweep(tmp_path / "runs", "brief", "epochs=1", "optimizer.warmup_epochs=0")
    out = tmp_path / "results" / "both.tar.xz"
    command = ["submit", "long", "brief", "--runs-dir", str(tmp_path / "runs"), "--out", str(out)]
    assert CliRunner().invoke(main, command).exit_code == 0
    parts = Parts(out)
    parts.shorten(
        next(
            each
            for each in parts.records
            if (each["status"], each["cell"]["epochs"]) == ("tuned", 3)
        )
    )
    parts.write(out)
    (page,) = pages(out.parent, "tasks")
    tried = Counter((row["method"], row["epochs"]) for row in tables_in(page)["Hyperparameters"])
    assert tried == {(name, epochs): 2 for name in ("AUH", "VICReg") for epochs in ("1", "3")}


def test_a_shorter_final_run_of_another_sweep_is_no_step_of_a_search(
    bundles: Path, tmp_path: Path
) -> None:
    parts = Parts(bundles / "lab-a.tar.xz")
    brief = parts.shorten(next(record for record in parts.final if record["method"] == "vicreg"))
    brief |= {"sweep": "brief", "choice": {"hyperparameters": GIVEN}}
    parts.write(tmp_path / "both.tar.xz")
    (page,) = pages(tmp_path, "tasks")
    found = Counter((row["method"], row["epochs"]) for row in tables_in(page)["Leaderboard"])
    assert found == {("AUH", "2"): 1, ("VICReg", "2"): 1, ("VICReg", "1"): 1}


def test_runs_of_a_cell_are_together_in_the_order_of_their_ends(
    bundles: Path, tmp_path: Path
) -> None:
    """A run that was only tuned comes last.

    One that diverged keeps its place: better luck elsewhere does not take it.

    What several bundles hold is one run, from the order of their names.
    """
    for name, hour, status in (
        ("b", 11, "done"),
        ("c", 10, "done"),
        ("a", 9, "tuned"),
        ("d", 8, "diverged"),
    ):
        parts = Parts(bundles / "other" / "lab-b.tar.xz")
        (record,) = parts.records
        record["attempts"][-1]["finished"] = f"2026-11-22T{hour:02}:00:00+00:00"
        if status != "done":
            record |= {"status": status, "choice": {}}
            record["scores"] = [
                each for each in record["scores"] if (status, each["split"]) == ("tuned", "tuning")
            ]
        parts.write(tmp_path / f"{name}.tar.xz")
    shutil.copy(tmp_path / "b.tar.xz", tmp_path / "a-copy.tar.xz")
    found = gather(tmp_path)
    assert [bundle.name for bundle in found.bundles] == ["a-copy", "a", "b", "c", "d"]
    (runs,) = found.cells.values()
    assert [run.bundles for run in runs] == [("d",), ("c",), ("a-copy", "b"), ("a",)]
    (task,) = tasks_of(found).values()
    assert task.records == (runs[0].record,)
    assert vars(runs[0].record)["at_end"] == {"effective_rank": 30.0}


def test_the_names_of_bundles_order_neither_runs_of_the_same_second_nor_rows_of_the_same_score(
    bundles: Path, tmp_path: Path
) -> None:
    orders = []
    for names in ("abc", "cba"):
        for name, method, points in zip(
            names, ("vicreg", "vicreg", "auh"), (0.0, 1.0, 0.0), strict=True
        ):
            parts = Parts(bundles / "lab-a.tar.xz")
            parts.records = [next(record for record in parts.final if record["method"] == method)]
            parts.choices.clear()
            parts.records[0]["choice"]["hyperparameters"] = GIVEN
            parts.score(parts.records[0])["value"] -= points
            parts.write(tmp_path / f"{name}.tar.xz")
        found = gather(tmp_path)
        runs = {key: [run.record.sha256 for run in of_cell] for key, of_cell in found.cells.items()}
        (task,) = tasks_of(found).values()
        orders.append((runs, [row.label for row in task.rows]))
    assert orders[0] == orders[1]


def test_the_first_final_run_stands_for_a_cell_though_its_tuning_was_finished_before(
    bundles: Path, tmp_path: Path
) -> None:
    """Of three bundles one is of the time before the final training, and one has other runs of
    later on.
    """
    parts = Parts(bundles / "lab-a.tar.xz")
    parts.records = [record for record in parts.records if record["seed"] == 0]
    for record in parts.final:
        record |= {"status": "tuned", "choice": {}}
        record["scores"] = [each for each in record["scores"] if each["split"] == "tuning"]
        record["attempts"].pop()
    parts.write(tmp_path / "before.tar.xz")
    parts = Parts(bundles / "lab-a.tar.xz")
    for record in parts.final:
        record["attempts"][-1]["finished"] = "2026-11-23T09:00:00+00:00"
        parts.score(record, "linear_top1")["value"] += 2.0
    parts.write(tmp_path / "afterwards.tar.xz")
    shutil.copy(bundles / "lab-a.tar.xz", tmp_path)
    (page,) = pages(tmp_path, "tasks")
    rows = {
        row["method"]: (row["n"], row["linear_top1 (%)"]) for row in tables_in(page)["Leaderboard"]
    }
    assert rows == dict.fromkeys(("AUH", "VICReg"), ("2", "**65.00 ± 0.00**"))
    days = {
        row["bundle"]: row["finished"]
        for row in tables_in(page.parents[1] / "index.html")["Bundles"]
    }
    assert days == {"afterwards": "2026-11-23", "before": "2026-11-22", "lab-a": "2026-11-22"}


def test_later_evaluations_count_from_whichever_bundle_has_them(
    bundles: Path, tmp_path: Path
) -> None:
    shutil.copytree(bundles.parent / "runs", tmp_path / "runs")
    later(next((tmp_path / "runs").glob("*/*/record.json")), score("voc07_map", 50.0))
    results = tmp_path / "results"
    command = [
        "submit",
        "mine",
        "--runs-dir",
        str(tmp_path / "runs"),
        "--out",
        str(results / "b.tar.xz"),
    ]
    assert CliRunner().invoke(main, command).exit_code == 0
    for name in ("a.tar.xz", "c.tar.xz"):
        shutil.copy(bundles / "lab-a.tar.xz", results / name)
    (page,) = pages(results, "tasks")
    names = [
        score["name"]
        for (run,) in cells_of_site(page.parents[1]).values()
        for score in run["scores"]
    ]
    assert names.count("voc07_map") == 1
    assert "VOC07 mAP, 11-point (%)" in page.read_text()


def test_the_untrained_network_takes_no_place(bundles: Path, tmp_path: Path) -> None:
    parts = Parts(bundles / "other" / "lab-b.tar.xz")
    untrained = parts.copy(parts.records[0])
    untrained |= {"label": "untrained", "metrics": None, "checkpoint": None}
    untrained["cell"]["epochs"] = 0
    untrained["cell"]["optimizer"]["warmup_epochs"] = 0
    parts.settle(untrained)
    parts.write(tmp_path / "lab.tar.xz")
    (page,) = pages(tmp_path, "methods")
    assert [row["place"] for row in tables_in(page)["Results"]] == ["1 of 1"]
    parts.records = [untrained]
    parts.write(tmp_path / "lab.tar.xz")
    pages(tmp_path, "tasks")
    (row,) = tables_in(tmp_path / "site" / "index.html")["Tasks"]
    assert (row["methods"], row["best row"], row["its score"]) == ("0", "–", "–")


def test_places_in_a_score_of_which_less_is_better(bundles: Path, tmp_path: Path) -> None:
    parts = Parts(bundles / "lab-a.tar.xz")
    for record in parts.final:
        tuned = [each for each in record["scores"] if each["split"] == "tuning"]
        error = 20.0 if record["method"] == "vicreg" else 30.0
        how = {"name": "error", "title": "error", "unit": "nats", "higher_is_better": False}
        record["scores"] = [*tuned, {**parts.score(record), **how, "value": error}]
    parts.write(tmp_path / "errors.tar.xz")
    places = {
        page.stem: tables_in(page)["Results"][0]["place"] for page in pages(tmp_path, "methods")
    }
    assert places == {"auh": "2 of 2", "vicreg": "1 of 2"}
    start = tables_in(tmp_path / "site" / "index.html")
    assert [row["best row"] for row in start["Tasks"]] == ["VICReg"]
    assert [(row["method"], row["first in"]) for row in start["Methods"]] == [
        ("AUH", "0"),
        ("VICReg", "1"),
    ]


def test_tasks_of_one_name_have_pages_of_their_own(bundles: Path, tmp_path: Path) -> None:
    parts = Parts(bundles / "other" / "lab-b.tar.xz")
    (first,) = parts.records
    first["cell"]["dataset"]["name"] = "plants_v2"
    parts.settle(first)
    second = parts.copy(first)
    second["checkpoint"] = None
    second["cell"]["evaluation"]["knn"]["k"] = 7
    parts.settle(second)
    parts.history(second, lambda rows: _set_first(rows, loss=1.0))
    parts.write(tmp_path / "plants.tar.xz")
    done = CliRunner().invoke(main, ["leaderboard", str(tmp_path), "--out", str(tmp_path / "site")])
    assert "cells: 2, bundles: 1, tasks: 2;" in done.output
    names = [row["task"] for row in tables_in(tmp_path / "site" / "index.html")["Tasks"]]
    assert names == [
        "plants_v2, resnet_tiny",
        "plants_v2, resnet_tiny (evaluated in another way: 2)",
    ]
    pages = ["plants-v2-resnet-tiny-evaluated-in-another-way-2.html", "plants-v2-resnet-tiny.html"]
    assert sorted(page.name for page in (tmp_path / "site" / "tasks").iterdir()) == pages


def test_names_of_pages_are_plain_and_different() -> None:
    taken: set[str] = set()
    titles = ("SFRIK (L=3)", "SFRIK_L=3", "sfrik l 3", "Ünal²", "???", 79 * "a" + " bc", "--")
    slugs = ["sfrik-l-3", "sfrik-l-3-2", "sfrik-l-3-3", "nal", "unnamed", 79 * "a", "unnamed-2"]
    assert [new_slug(title, taken) for title in titles] == slugs
    assert taken == set(slugs)


def test_a_choice_on_the_test_split_is_a_task_of_its_own(tmp_path: Path) -> None:
    tuned_sweep(tmp_path / "runs", "mine", "evaluation.select_on=test")
    out = tmp_path / "results" / "lab.tar.xz"
    command = ["submit", "mine", "--runs-dir", str(tmp_path / "runs"), "--out", str(out)]
    assert CliRunner().invoke(main, command).exit_code == 0
    (task,) = tasks_of(gather(out.parent)).values()
    assert task.name == "fashion_mnist, resnet_tiny, chosen on the test set"


def test_what_is_refused_is_counted(bundles: Path, tmp_path: Path) -> None:
    """The start page names twenty, and for each the first of its misfits."""
    parts = Parts(bundles / "lab-a.tar.xz")
    for record in parts.final:
        parts.score(record)["value"] = 99.0
    for number in range(22):
        parts.write(tmp_path / f"{number:02}.tar.xz")
    command = ["leaderboard", str(tmp_path), "--out", str(tmp_path / "site")]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 2
    assert "the first of 22 was refused: mine/" in done.stderr
    assert "(and 3 more)" in done.stderr
    shutil.copy(bundles / "lab-a.tar.xz", tmp_path)
    (tmp_path / "a_folder.tar.xz").mkdir()
    (tmp_path / "00.tar.xz").rename(tmp_path / "00\x1b[2J.tar.xz")
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0
    assert len(done.stderr.splitlines()) == 22
    assert gather(tmp_path).refused[0][0] == r"00\x1b[2J"  # which a terminal would obey
    (tmp_path / "00\x1b[2J.tar.xz").rename(tmp_path / "00.tar.xz")
    assert CliRunner().invoke(main, command).exit_code == 0
    text = (tmp_path / "site" / "index.html").read_text()
    assert re.findall('<span class="id">([0-9]*)</span>: mine/', text) == [
        f"{number:02}" for number in range(20)
    ]
    assert "22 bundles do not check out" in text


def test_a_site_that_cannot_be_written_is_refused(bundles: Path, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "tasks").touch()
    done = CliRunner().invoke(
        main, ["leaderboard", str(bundles / "other"), "--out", str(tmp_path / "site")]
    )
    assert done.exit_code == 2
    assert re.search(f"cannot write to {tmp_path}/site: .*; give another --out", done.stderr)


def test_a_longer_training_than_was_chosen_is_no_step_of_a_search(
    bundles: Path, tmp_path: Path
) -> None:
    parts = Parts(bundles / "lab-a.tar.xz")
    longer = parts.copy(
        next(r for r in parts.records if (r["status"], r["method"]) == ("tuned", "vicreg"))
    )
    longer["cell"]["epochs"] = 3
    parts.settle(longer)
    longer |= {"checkpoint": None, "sweep": "longer"}
    parts.history(longer, lambda rows: rows.append({**rows[0], "epoch": 3}))
    rows = [json.loads(line) for line in parts.histories[longer["metrics"]["sha256"]].splitlines()]
    longer["cost"]["train_s"] = sum(row["epoch_s"] for row in rows)
    parts.write(tmp_path / "lab.tar.xz")
    (bundle,) = gather(tmp_path).bundles
    assert (len(bundle.records), len(bundle.short)) == (7, 0)


def test_a_task_of_a_long_name_has_a_page(bundles: Path, tmp_path: Path) -> None:
    """A name of a file has 255 letters at most."""
    parts = Parts(bundles / "other" / "lab-b.tar.xz")
    (record,) = parts.records
    record["cell"]["network"]["backbone"] = BACKBONES.plain(
        BACKBONES.build("timm", model="plants" * 50)
    )
    parts.settle(record)
    parts.write(tmp_path / "plants.tar.xz")
    (page,) = pages(tmp_path, "tasks")
    assert "plants" * 50 in page.read_text()


def test_a_cost_whose_square_is_no_number_is_refused(bundles: Path, tmp_path: Path) -> None:
    parts = Parts(bundles / "lab-a.tar.xz")
    for record in parts.final:
        record["cost"]["loss_ms"] = 1e200
    parts.write(tmp_path / "large.tar.xz")
    done = CliRunner().invoke(main, ["leaderboard", str(tmp_path), "--out", str(tmp_path / "site")])
    assert done.exit_code == 2
    assert "cost.loss_ms is 1e+200: input should be at most 1e+100" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_no_bundle(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["leaderboard", str(tmp_path), "--out", str(tmp_path / "site")])
    assert done.exit_code == 2
    assert "no bundle in" in done.stderr
    assert not (tmp_path / "site").exists()


@pytest.fixture
def visit(browser: Browser, site: Path) -> Any:
    """Opens a page without a network; any error, message or failed request fails the test."""
    context = browser.new_context(**STILL, viewport={"width": 390, "height": 800})
    wrong: list[str] = []

    def go(address: str) -> Page:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("requestfailed", lambda request: wrong.append(request.url))
        page.goto(f"{site.as_uri()}/{address}")
        return page

    yield go
    context.close()
    assert wrong == []


def test_from_the_start_page_to_a_cell(visit: Callable[[str], Page]) -> None:
    page = visit("index.html")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.get_by_role("link", name="fashion_mnist, resnet_tiny").click()
    leaderboard = page.locator("#s1-leaderboard tbody tr")
    expect(leaderboard).to_have_count(2)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    head = page.locator("#s1-leaderboard thead th", has_text="knn_top1")
    head.get_by_role("button").press("Enter")
    expect(head).to_have_attribute("aria-sort", "descending")
    leaderboard.filter(has_text="AUH").get_by_role("link").click()
    expect(page.locator("#s1-cells tbody tr")).to_have_count(2)
    page.locator("#s1-cells tbody a").first.click()
    expect(page.locator("dialog h2").first).to_have_text("AUH")
    expect(page.locator("dialog")).to_contain_text("regbench train --config")
    page.keyboard.press("Escape")
    page.locator("#s1-cells .tools button").click()
    expect(page.locator("#s1-cells tbody tr")).to_have_count(6)


def test_a_cell_of_two_labs_shows_both(visit: Callable[[str], Page], site: Path) -> None:
    cell_id = next(cell_id for cell_id, runs in cells_of_site(site).items() if len(runs) == 2)
    page = visit(f"tasks/fashion-mnist-resnet-tiny.html#cell-{cell_id}")
    expect(page.locator("dialog")).to_contain_text("There are 2 runs of this cell.")
    expect(page.locator("dialog .warn tbody tr", has_text="linear_top1 (%), test")).to_contain_text(
        "0.75"
    )
    expect(page.locator("dialog")).to_contain_text(EVIL)
