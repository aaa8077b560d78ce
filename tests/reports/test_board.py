"""The leaderboard of several bundles: its tables, its cells, and the pages in a real browser without a network."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser, Page, expect

from regbench.cli import main
from tests.reports.conftest import PATIENCE_MS, STILL, later, score
from tests.reports.forging import Json, Parts, tuned_sweep
from tests.reports.reading import Drawn

EVIL = "</script><img src=x onerror=alert(1)>"
GIVEN = {"selected_on": "given", "score": None, "budget": None, "record": None, "sha256": None}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles of three labs: a tuning; one of its cells with another score; a forged one; and a copy of the first."""
    folder = tmp_path_factory.mktemp("board")
    tuned_sweep(folder / "runs")
    results = folder / "results"
    command = ["submit", "mine", "--runs-dir", str(folder / "runs"), "--out", str(results / "lab-a.zip")]
    assert CliRunner().invoke(main, command).exit_code == 0
    shutil.copy(results / "lab-a.zip", results / "copy.zip")
    parts = Parts(results / "lab-a.zip")
    record = next(record for record in parts.final if record["method"] == "vicreg")
    parts.records = [record]
    parts.choices.clear()
    record["choice"]["hyperparameters"] = GIVEN
    record["environment"]["hardware"] = EVIL
    parts.score(record, "linear_top1")["value"] -= 0.75
    (results / "other").mkdir()
    parts.write(results / "other" / "lab-b.zip")
    parts.score(record)["value"] = 99.0
    parts.write(results / "forged.zip")
    return results


def _several_sizes(parts: Parts, out: Path) -> None:
    """A bundle of one method with two dimensions and two batches, and of three learning rates of one of these."""
    template = next(record for record in parts.final if record["method"] == "vicreg")
    parts.records.clear()
    parts.choices.clear()
    for q, n, rate in ((64, 32, 0.4), (128, 32, 0.4), (64, 48, 0.4), (128, 32, 0.04), (128, 32, 4.0)):
        record = parts.copy(template)
        record |= {"sweep": "sizes", "checkpoint": None, "seed": 7, "choice": {"hyperparameters": GIVEN}}
        record["cell"] |= {"embedding_dim": q, "batch_size": n, "seed": 7}
        record["cell"]["optimizer"]["base_lr"] = rate
        record["searched"] = {"optimizer.base_lr": {"scale": "log", "balances": False}}
        record["cost"] |= {"loss_ms": q * n / 1000, "loss_extra_bytes": q * n * 2**10}
        for split in ("tuning", "test"):
            parts.score(record, split=split)["value"] = 60.0 + q / 64 - (rate != 0.4)
        rank = {"name": "rankme", "value": q / 4, "unit": "", "split": "tuning", "higher_is_better": None}
        record["scores"].append({**record["scores"][0], **rank})
        parts.settle(record)
        parts.history(record, partial(_set_first, loss=q + n + rate, effective_rank=q / 2))
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


def tables(page: Path) -> dict[str, list[Json]]:
    """The tables of a page by their titles: a row is column -> value."""
    found = {}
    text = page.read_text()
    for title, data in re.findall(
        r'data-title="([^"]*)">.*?<script type="application/json">(.*?)</script>', text, re.S
    ):
        table = json.loads(data)
        names = [column["name"] for column in table["columns"]]
        found[title] = [dict(zip(names, row, strict=True)) for row in table["rows"]]
    return found


def pages(results: Path, kind: str) -> list[Path]:
    """The pages of one kind of a leaderboard of the bundles in a folder, none of which is refused."""
    done = CliRunner().invoke(main, ["leaderboard", str(results), "--out", str(results / "site")])
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    return sorted((results / "site" / kind).iterdir())


def script(site: Path, name: str) -> Any:
    """The data of a script with cells."""
    (path,) = site.glob(f"data/*/{name}.js")
    stated, data = re.fullmatch(r'receive\("([^"]*)",(.*)\);\n', path.read_text(), re.S).groups()  # type: ignore[union-attr]
    assert stated == name
    return json.loads(data)


def test_the_start_page(site: Path) -> None:
    found = tables(site / "index.html")
    (task,) = found["Tasks"]
    assert task["task"] == ["fashion_mnist, resnet_tiny", "tasks/fashion-mnist-resnet-tiny.html"]
    assert (task["cells"], task["methods"], task["its score"]) == (6, 2, [65.0, 0.0, False])
    assert [(row["method"][0], row["cells in rows"]) for row in found["Methods"]] == [("AUH", 2), ("VICReg", 2)]
    assert [(row["bundle"], row["cells"]) for row in found["Bundles"]] == [
        ("copy", 6),
        ("lab-a", 6),
        ("other/lab-b", 1),
    ]
    text = (site / "index.html").read_text()
    assert "1 cell was run by more than one lab. The largest difference of a leading score is 0.75 points" in text
    assert '<span class="id">forged</span>' in text


def test_a_task(site: Path) -> None:
    found = tables(site / "tasks" / "fashion-mnist-resnet-tiny.html")
    rows = {row["method"][0]: row for row in found["Leaderboard"]}
    assert rows["VICReg"]["knn_top1 (%)"] == [70.0, 0.0, False]
    assert rows["AUH"]["knn_top1 (%)"][0] == 71.0
    assert rows["AUH"]["seeds"] == rows["AUH"]["tuned among"] == 2
    assert sorted(row["bundles"] for row in rows.values()) == [2, 3]
    assert rows["AUH"]["method"][1] == "../methods/auh.html"
    tried = {row["method"][0]: row for row in found["What was tried"]}
    shown = ("trained to the end", "best", "worst", "within a point")
    assert [tried["AUH"][name] for name in shown] == [2, 71.0, 66.0, 1]


def test_a_method(site: Path) -> None:
    page = site / "methods" / "auh.html"
    results = tables(page)["Results"]
    assert [(row["score"], row["mean"][0], row["of"]) for row in results] == [
        ("linear_top1 (%)", 65.0, 2),
        ("knn_top1 (%)", 71.0, 2),
    ]
    assert results[0]["task"][1].startswith("../tasks/fashion-mnist-resnet-tiny.html#row-")
    assert [row["hyperparameters"] for row in tables(page)["What was tried"]] == [
        "optimizer.base_lr=0.5",
        "optimizer.base_lr=0.3",
    ]
    assert '<p class="formula">a + b</p>' in page.read_text()


def test_a_method_of_several_sizes(bundles: Path, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    _several_sizes(Parts(bundles / "lab-a.zip"), tmp_path / "results" / "sizes.zip")
    done = CliRunner().invoke(main, ["leaderboard", str(tmp_path / "results"), "--out", str(tmp_path / "site")])
    assert "cells: 5, bundles: 1, tasks: 1;" in done.output
    page = tmp_path / "site" / "methods" / "vicreg.html"
    found = tables(page)
    costs = {row["setting"]: row for row in found["Embeddings and cost"]}
    assert costs["q=128, batch=32"]["loss (ms/step)"] == [4.096, None, False]
    assert costs["q=128, batch=32"]["loss memory (MiB)"][0] == 4.0
    assert costs["q=128, batch=32"]["effective rank, embedding"] == [30.0, None, False]
    assert costs["q=128, batch=32"]["effective rank, representation"] == [32.0, None, False]
    (task,) = (tmp_path / "site" / "tasks").iterdir()
    (tried,) = tables(task)["What was tried"]
    assert (tried["best"], tried["worst"], tried["within a point"]) == (62.0, 61.0, 3)
    ranks = [row["effective rank, representation"][0] for row in tables(task)["Leaderboard"]]
    assert sorted(ranks) == [16.0, 16.0, 32.0]
    titles = re.findall("<figcaption>([^<]*)</figcaption>", page.read_text())
    of_costs = ("Training time", "Time of the loss", "Memory of the loss")
    assert titles == [
        *(f"{cost} against {size}" for size in ("the embedding dimension", "the batch") for cost in of_costs),
        "Accuracy against the learning rate",
    ]
    drawn = Drawn(page.read_text(), "Time of the loss against the embedding dimension", log="x")
    assert drawn.markers("VICReg, batch=32") == [[64, 2.05], [128, 4.1]]
    (range_,) = found["Sensitivity"]
    assert (range_["hyperparameter"], range_["chosen"], range_["values"]) == ("optimizer.base_lr", 0.4, 3)


def test_the_same_cell_from_two_labs(site: Path) -> None:
    rows = tables(site / "repeated.html")["Cells that several labs ran"]
    shown = [(row["score"], row["first in"], row["also in"], row["difference"]) for row in rows]
    assert sorted(row[0] for row in shown) == ["knn_top1 (%)", "linear_top1 (%)"]
    by_score = {row[0]: row[1:] for row in shown}
    assert {by_score["linear_top1 (%)"][2], by_score["knn_top1 (%)"][2]} <= {0.75, -0.75, 0.0}
    assert {*by_score["linear_top1 (%)"][:2]} == {"copy, lab-a", "other/lab-b"}


def test_a_cell_has_all_its_runs(site: Path) -> None:
    cells = script(site, "cells-")
    shared = script(site, "shared")["values"]
    assert len(cells) == len(script(site, "cells")["rows"]) == 6
    (twice,) = (runs for runs in cells.values() if len(runs) == 2)
    assert sorted(run["bundles"] for run in twice) == [["copy", "lab-a"], ["other/lab-b"]]
    assert {shared[run["environment"]["$"]]["hardware"] for run in twice} == {"1 x Example", EVIL}
    assert all(re.fullmatch("[0-9a-f]{64}", run["sha256"]) for run in twice)


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text()
        assert not re.search(r"""(?:src|<link[^>]*href)=["']?(?:https?:)?//""", text)
        assert "<img" not in text


def test_other_images_are_another_task(bundles: Path, tmp_path: Path) -> None:
    parts = Parts(bundles / "other" / "lab-b.zip")
    parts.records[0]["data"]["content_sha256"]["test"] = "99" * 32
    results = tmp_path / "results"
    results.mkdir()
    parts.write(results / "lab-c.zip")
    shutil.copy(bundles / "copy.zip", results)
    done = CliRunner().invoke(main, ["leaderboard", str(results), "--out", str(tmp_path / "site")])
    assert done.exit_code == 0, done.output
    assert len(list((tmp_path / "site" / "tasks").iterdir())) == 2


def test_short_trainings_of_a_search_are_in_no_row(bundles: Path, tmp_path: Path) -> None:
    parts = Parts(bundles / "lab-a.zip")
    template = next(r for r in parts.records if (r["status"], r["method"]) == ("tuned", "vicreg"))
    parts.score(parts.shorten(template), split="tuning")["value"] = 89.0
    parts.write(tmp_path / "search.zip")
    done = CliRunner().invoke(main, ["leaderboard", str(tmp_path), "--out", str(tmp_path / "site")])
    assert "cells: 7, bundles: 1, tasks: 1;" in done.output
    (page,) = (tmp_path / "site" / "tasks").iterdir()
    found = tables(page)
    assert all("epochs" not in row for row in found["Leaderboard"])
    tried = {row["method"][0]: (row["trained to the end"], row["best"]) for row in found["What was tried"]}
    assert tried == {"VICReg": (2, 70.0), "AUH": (2, 71.0)}
    columns = [column["name"] for column in script(tmp_path / "site", "cells")["columns"]]
    rows = script(tmp_path / "site", "cells")["rows"]
    assert sorted(row[columns.index("epochs")] for row in rows) == [1, 2, 2, 2, 2, 2, 2]


def test_tunings_of_two_lengths_are_no_steps_of_a_search(tmp_path: Path) -> None:
    tuned_sweep(tmp_path / "runs", "long")
    tuned_sweep(tmp_path / "runs", "brief", "epochs=1", "optimizer.warmup_epochs=0")
    out = tmp_path / "results" / "both.zip"
    command = ["submit", "long", "brief", "--runs-dir", str(tmp_path / "runs"), "--out", str(out)]
    assert CliRunner().invoke(main, command).exit_code == 0
    (page,) = pages(out.parent, "tasks")
    tried = [(row["method"][0], row["epochs"], row["trained to the end"]) for row in tables(page)["What was tried"]]
    assert sorted(tried) == [(name, epochs, 2) for name in ("AUH", "VICReg") for epochs in ("1", "2")]


def test_the_first_final_run_stands_for_a_cell_though_its_tuning_was_finished_before(
    bundles: Path, tmp_path: Path
) -> None:
    """Of three bundles one is of the time before the final training, and one has other runs of later on."""
    parts = Parts(bundles / "lab-a.zip")
    parts.records = [record for record in parts.records if record["seed"] == 0]
    for record in parts.final:
        record |= {"status": "tuned", "choice": {}}
        record["scores"] = [each for each in record["scores"] if each["split"] == "tuning"]
        record["attempts"].pop()
    parts.write(tmp_path / "before.zip")
    parts = Parts(bundles / "lab-a.zip")
    for record in parts.final:
        record["attempts"][-1]["finished"] = "2026-11-23T09:00:00+00:00"
        parts.score(record, "linear_top1")["value"] += 2.0
    parts.write(tmp_path / "afterwards.zip")
    shutil.copy(bundles / "lab-a.zip", tmp_path)
    (page,) = pages(tmp_path, "tasks")
    rows = {row["method"][0]: (row["seeds"], row["linear_top1 (%)"][:2]) for row in tables(page)["Leaderboard"]}
    assert rows == dict.fromkeys(("AUH", "VICReg"), (2, [65.0, 0.0]))


def test_later_evaluations_count_from_whichever_bundle_has_them(bundles: Path, tmp_path: Path) -> None:
    shutil.copytree(bundles.parent / "runs", tmp_path / "runs")
    later(next((tmp_path / "runs").glob("*/*/record.json")), score("voc07_map", 50.0))
    results = tmp_path / "results"
    command = ["submit", "mine", "--runs-dir", str(tmp_path / "runs"), "--out", str(results / "b.zip")]
    assert CliRunner().invoke(main, command).exit_code == 0
    for name in ("a.zip", "c.zip"):
        shutil.copy(bundles / "lab-a.zip", results / name)
    (page,) = pages(results, "tasks")
    cells = script(page.parents[1], "cells-")
    shared = script(page.parents[1], "shared")["values"]
    heads = [shared[head["$"]] for (run,) in cells.values() for head, *_ in run["scores"]]
    assert [head for head in heads if "VOC07" in head] == ["VOC07 mAP, 11-point (%)"]


def test_places_in_a_score_of_which_less_is_better(bundles: Path, tmp_path: Path) -> None:
    parts = Parts(bundles / "lab-a.zip")
    for record in parts.final:
        tuned = [each for each in record["scores"] if each["split"] == "tuning"]
        error = 30.0 if record["method"] == "vicreg" else 20.0
        how = {"name": "error", "title": "error", "unit": "nats", "higher_is_better": False}
        record["scores"] = [*tuned, {**parts.score(record), **how, "value": error}]
    parts.write(tmp_path / "errors.zip")
    places = {page.stem: tables(page)["Results"][0]["place"] for page in pages(tmp_path, "methods")}
    assert places == {"auh": 1, "vicreg": 2}


def test_tasks_of_one_name_have_pages_of_their_own(bundles: Path, tmp_path: Path) -> None:
    parts = Parts(bundles / "other" / "lab-b.zip")
    (first,) = parts.records
    first["cell"]["dataset"]["name"] = "plants (v2)"
    parts.settle(first)
    second = parts.copy(first)
    second["checkpoint"] = None
    second["cell"]["evaluation"]["knn"]["k"] = 7
    parts.settle(second)
    parts.history(second, lambda rows: _set_first(rows, loss=1.0))
    parts.write(tmp_path / "plants.zip")
    done = CliRunner().invoke(main, ["leaderboard", str(tmp_path), "--out", str(tmp_path / "site")])
    assert "cells: 2, bundles: 1, tasks: 2;" in done.output
    assert len(list((tmp_path / "site" / "tasks").iterdir())) == 2


def test_a_cost_whose_square_is_no_number_is_refused(bundles: Path, tmp_path: Path) -> None:
    parts = Parts(bundles / "lab-a.zip")
    for record in parts.final:
        record["cost"]["loss_ms"] = 1e200
    parts.write(tmp_path / "large.zip")
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
    leaderboard = page.locator("#leaderboard tbody tr")
    expect(leaderboard).to_have_count(2)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.locator("#leaderboard thead th", has_text="seeds").get_by_role("button").press("Enter")
    expect(page.locator("#leaderboard thead th", has_text="seeds")).to_have_attribute("aria-sort", "descending")
    leaderboard.filter(has_text="AUH").get_by_role("link", name="2 cells").click()
    expect(page.locator("#cells tbody tr")).to_have_count(2)
    page.locator("#cells tbody a").first.click()
    expect(page.locator("dialog h2").first).to_have_text("AUH")
    expect(page.locator("dialog")).to_contain_text("regbench train --config")
    page.keyboard.press("Escape")
    page.locator("#cells .tools button").click()
    expect(page.locator("#cells tbody tr")).to_have_count(6)


def test_a_cell_of_two_labs_shows_both(visit: Callable[[str], Page], site: Path) -> None:
    cell_id = next(cell_id for cell_id, runs in script(site, "cells-").items() if len(runs) == 2)
    page = visit(f"tasks/fashion-mnist-resnet-tiny.html#cell-{cell_id}")
    expect(page.locator("dialog")).to_contain_text("There are 2 runs of this cell.")
    expect(page.locator("dialog .warn tbody tr", has_text="linear_top1 (%), test")).to_contain_text("0.75")
    expect(page.locator("dialog")).to_contain_text(EVIL)
