"""The page in a real browser, without a network, and what of it needs none."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from regbench.reports import write_report
from regbench.reports.page import figures
from regbench.reports.page.drawing import styles
from regbench.reports.page.page import cells_of, section
from regbench.reports.tables.details import tables_of
from tests.records import attempted, plan, search, tuning_choice
from tests.reports.conftest import GIVEN, of_each, score, settings
from tests.reports.reading import Drawn, Make, cells_in, task

Open = Callable[..., Page]

LABELS = ("SFRIK (L=1)", "SFRIK (L=2)", "SFRIK (L=3)", "VICReg", "AUH")
ODD: dict[str, Any] = {"a": {"b": [1, "x", 0.5], "rate": 1e-7, "empty": {}}, "no": "no"}
ODD |= {"text": "a: b # c", "none": None, "t": True}
NOTHING: Any = pytest.approx(0, abs=1e-3)
EVIL = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="session")
def site(recorder: Callable[[Path], Make], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of five methods with two dimensions, a hostile label, one that the test set
    tuned, and a failed cell.
    """
    folder = tmp_path_factory.mktemp("page")
    record = recorder(folder / "runs")
    for i, label in enumerate(LABELS):
        for q in (512, 2048):
            for seed in (0, 1):
                knn, linear = 70.0 + i + 0.3 * seed, 75.0 + (7 * i) % 10 - 0.2 * seed + (q == 2048)
                cost = {"img_per_s": 3000.0 * (i + 1) ** 2, "train_s": 30.0 + i}
                cost["energy_gpu_joules"] = (250 + 10 * seed + 10 * i) * 3.6e3
                spectrum = (1.0, 40.0, 20.0, 0.0) if "SFRIK" in label else None
                more = {"cell": {"embedding_dim": q}, "cost": cost, "spectrum": spectrum}
                record(label, seed, knn=knn, linear=linear, **more)
    record("untrained", 0, knn=65.0, linear=68.0)
    record(EVIL, 0, environment={"hardware": EVIL}, cell={"method": {"name": "evil", "odd": ODD}})
    tuned: dict[str, Any] = {"selected_on": "test", "score": "linear_top1", "budget": 4}
    tuned |= {"record": "tuning_choice.json", "sha256": "ef" * 32}
    tuned["edges"] = {"method.local_weight": "largest"}
    record("MMCR", 0, knn=None, linear=99.0, choice={"hyperparameters": tuned}, history=[])
    attempted(folder / "runs" / "quickstart" / ("f" * 12), "failed", "out of memory")
    return write_report(folder / "runs", folder / "report").page


@pytest.fixture
def visit(new_page: Open, site: Path) -> Iterator[Open]:
    """Opens the page without a network.

    Any error, message, dialog or failed request fails the test.
    """
    wrong: list[str] = []

    def go(address: str = "", **settings: Any) -> Page:
        page = new_page(**{"viewport": {"width": 1280, "height": 800}, **settings})
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("requestfailed", lambda request: wrong.append(request.url))
        page.on(
            "request",
            lambda request: None if request.url.startswith("file:") else wrong.append(request.url),
        )
        page.goto(site.as_uri() + address)
        if settings.get("java_script_enabled", True):
            # the script has run, and moves nothing
            expect(page.locator("#s1-cells tbody tr").first).to_be_visible()
        return page

    yield go
    assert wrong == []


def column(page: Page, table: str, head: str) -> list[str]:
    """The texts of a column, top to bottom, of the rows that are shown."""
    heads = page.locator(f"{table} thead th").all_inner_texts()
    place = heads.index(head) + 1
    return page.locator(f"{table} tbody tr:not([hidden]) > :nth-child({place})").all_inner_texts()


def test_numbers_sort_as_numbers_and_dashes_come_last(visit: Open) -> None:
    page = visit()
    head = page.locator("#s1-leaderboard thead th", has_text="images/s")
    why = of_each(page.locator("#s1-leaderboard tbody td[title]"), "each.title")
    assert "the best mean of this column, supervised rows aside" in why
    before = column(page, "#s1-leaderboard", "images/s")

    def numbers() -> list[int | None]:
        texts = column(page, "#s1-leaderboard", "images/s")
        assert sorted(texts) == sorted(before)
        return [None if text == "–" else int(text.replace(",", "")) for text in texts]

    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "descending")
    assert numbers()[0] == 75_000
    assert numbers()[-1] is None
    down = [n for n in numbers() if n is not None]
    assert down == sorted(down, reverse=True)
    page.keyboard.press("Enter")
    expect(head).to_have_attribute("aria-sort", "ascending")
    assert numbers() == [*reversed(down), None]
    page.locator("#s1-leaderboard thead th", has_text="method").get_by_role("button").click()
    names = [name for name in column(page, "#s1-leaderboard", "method") if name != EVIL]
    assert names == sorted(names, key=str.casefold)
    assert page.locator("#s1-leaderboard [aria-sort]").count() == 1
    # The whole cell of a column's head sorts.
    assert head.evaluate("(head) => getComputedStyle(head).cursor") == "pointer"
    box = head.bounding_box()
    assert box is not None
    orders = []
    right, low = box["width"] - 2, box["height"] - 2
    for x, y in ((1, 1), (right, 1), (1, low), (right, low)):
        head.click(position={"x": x, "y": y})
        orders.append(head.get_attribute("aria-sort"))
    head.get_by_role("button").click()
    orders.append(head.get_attribute("aria-sort"))
    head.get_by_role("button").press("Space")
    orders.append(head.get_attribute("aria-sort"))
    assert orders == ["descending", "ascending"] * 3
    cells = page.locator("#s1-cells thead th", has_text="seed")
    cells.click(position={"x": 1, "y": 1})
    expect(cells).to_have_attribute("aria-sort", "descending")


def test_words_of_a_setting_sort_as_words(
    new_page: Open, runs: Path, record: Make, tmp_path: Path
) -> None:
    for name in ("lars", "adamw", "sgd"):
        record(cell={"optimizer": settings("VICReg")["optimizer"] | {"name": name}})
    page = new_page()
    page.goto(write_report(runs, tmp_path / "report").page.as_uri())
    expect(page.locator("#s1-cells tbody tr").first).to_be_visible()
    page.locator("#s1-leaderboard thead th", has_text="optimizer").click()
    assert column(page, "#s1-leaderboard", "optimizer") == ["sgd", "lars", "adamw"]


def test_filters(visit: Open) -> None:
    page = visit()
    box = page.locator("#s1-leaderboard input")
    box.fill("sfrik 512, vicreg")
    assert sorted(column(page, "#s1-leaderboard", "method")) == [*LABELS[:3], "VICReg", "VICReg"]
    expect(page.locator("#s1-leaderboard output")).to_have_text("5 of 12 rows")
    box.fill("")
    form = page.locator("#s1 .filters")
    form.locator("select[name=q]").select_option("2048")
    assert set(column(page, "#s1-leaderboard", "q")) == {"2048", "–"}
    assert set(column(page, "#s1-hyperparameters", "q")) == {"2048"}
    assert set(column(page, "#s1-cells", "q")) == {"2048"}
    form.locator("select[name=method]").select_option("AUH")
    assert column(page, "#s1-leaderboard", "method") == ["AUH"]
    bright = page.locator("#s1 .figures").first.locator(".mark:not(.off)")
    keys = of_each(bright, "each.dataset.m")
    assert set(keys) == {page.locator("#s1 .legend li", has_text="AUH").get_attribute("data-m")}
    form.get_by_role("button").click()
    expect(page.locator("#s1-leaderboard tbody tr:not([hidden])")).to_have_count(12)
    expect(page.locator(".mark.off")).to_have_count(0)


def test_light_and_dark(visit: Open) -> None:
    def brightness(page: Page) -> int:
        red = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]")
        return int(red)

    page = visit(color_scheme="dark")
    assert brightness(page) < 50
    page.locator("#theme").click()
    assert brightness(page) > 200
    page.reload()
    assert brightness(page) > 200
    page.emulate_media(media="print")
    assert brightness(page) > 200
    assert brightness(visit(color_scheme="light")) > 200


def test_from_a_row_to_its_cells_and_what_made_them(visit: Open, site: Path) -> None:
    page = visit()
    page.locator("#s1-leaderboard tbody tr", has_text="VICReg").first.locator("td").nth(2).click()
    expect(page.locator("#s1-cells tbody tr")).to_have_count(2)
    assert set(column(page, "#s1-cells", "method")) == {"VICReg"}
    page.locator("#s1-cells tbody tr").first.click()
    dialog = page.locator("dialog[open]")
    expect(dialog).to_be_visible()
    cell_id = page.url.partition("#cell-")[2]
    path = next(site.parent.parent.glob(f"runs/*/{cell_id}/record.json"))
    made = json.loads(path.read_text())
    text = dialog.inner_text()
    of_files = (made["command"], str(path), made["sha256"], "ab" * 32)
    for wanted in (*of_files, "abc1234", "how linear_top1 is measured", "node1"):
        assert wanted in text
    assert "0.5, chosen on the tuning split; candidates 0.02 (70.1), 0.5 (72)" in text
    assert '"embedding_dim": ' + str(made["cell"]["embedding_dim"]) in text
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    # the button says so for a second and a half, which a test may miss
    page.evaluate("window.setTimeout = () => 0")
    dialog.get_by_role("button", name="Copy").first.click()
    expect(dialog.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == made["command"]
    dialog.get_by_role("link", name="1", exact=True).click()  # the other seed
    expect(dialog).to_contain_text("seed 1, done")
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).not_to_be_visible()
    expect(visit(f"#cell-{cell_id}").locator("dialog")).to_contain_text(made["command"])


def test_every_record_is_in_the_page_as_it_is(site: Path) -> None:
    shown = {cell["id"]: cell for cell in cells_in(site)}
    paths = list(site.parent.parent.glob("runs/*/*/record.json"))
    assert len(shown) == len(paths) == 23
    for path in paths:
        record, cell = json.loads(path.read_text()), shown[path.parent.name]
        assert cell["config"] == record["cell"]
        made = ("environment", "data", "attempts", "command", "choice")
        for key in ("label", "seed", "status", "scores", *made):
            assert cell[key] == record[key]
    # Its place is that of a row in its section's leaderboard.
    assert {cell["row"] for cell in shown.values() if cell["section"] == 1} == set(range(12))


def test_what_was_selected_on_the_test_set_stands_apart(visit: Open) -> None:
    page = visit()
    section = page.locator("section.task", has=page.locator(".badge"))
    assert section.locator("figure.table.on-test tbody th").all_inner_texts() == ["MMCR ‡"]
    expect(section.locator(".badge")).to_have_text("selected on the test set")
    assert "MMCR" not in column(page, "#s1-leaderboard", "method")
    section.locator("figure[data-section] tbody tr").click()
    dialog = page.locator("dialog")
    expect(dialog.locator(".warn")).to_contain_text("optimistic")
    expect(dialog).to_contain_text("at the edge of what was tried: largest method.local_weight")


def test_a_phone(visit: Open) -> None:
    page = visit(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    sizes_px = page.evaluate(
        """[...document.querySelectorAll(".draw svg text")].map((text) => {
            const { a, b } = text.getScreenCTM();
            return parseFloat(getComputedStyle(text).fontSize) * Math.hypot(a, b);
        })"""
    )
    assert len(sizes_px) > 100
    assert min(sizes_px) > 10.9
    page.locator("#s1-cells tbody tr a").first.tap()
    dialog = page.locator("dialog[open]")
    fits = "d.scrollWidth <= d.clientWidth && d.getBoundingClientRect().right <= 390"
    assert dialog.evaluate(f"(d) => {fits}")


def test_without_javascript(visit: Open) -> None:
    page = visit(java_script_enabled=False)
    expect(page.locator("#s1-leaderboard tbody tr")).to_have_count(12)
    expect(page.locator("#s1-cells noscript p")).to_be_visible()
    expect(page.locator("#theme")).not_to_be_visible()
    expect(page.locator("#s1 svg").first).to_be_visible()


def test_text_of_records_stays_text(visit: Open) -> None:
    page = visit()
    expect(page.locator("img")).to_have_count(0)
    page.locator("#s1-cells tbody tr", has_text="onerror").click()
    expect(page.locator("dialog h2")).to_have_text(EVIL)
    expect(page.locator("img")).to_have_count(0)
    shown = page.locator("dialog h3", has_text="Settings").locator("+ div pre").inner_text()
    assert json.loads(shown)["method"] == {"name": "evil", "odd": ODD}


def test_a_method_lights_up_in_all_figures(visit: Open) -> None:
    page = visit()
    entry = page.locator("#s1 .legend li", has_text="SFRIK (L=2)")
    entry.hover()
    expect(page.locator("#s1 .pictures")).to_have_class("pictures light")
    keys = of_each(page.locator("#s1 .mark.on"), "each.dataset.m")
    assert set(keys) == {entry.get_attribute("data-m")}
    titles = page.locator("#s1 .mark.on title").all_text_contents()
    told = "SFRIK (L=2), q=512: 81.90 ± 0.14 %, 31.0 ± 0.0 s, n = 2"
    assert any(title.startswith(told) for title in titles)
    assert any("b₁ = 40, b₂ = 20, b₃ = 0" in title for title in titles)
    page.mouse.move(0, 0)
    expect(page.locator("#s1 .pictures")).to_have_class("pictures")


def test_figures_and_methods(site: Path) -> None:
    text = site.read_text()
    assert text.count('class="front"') == 2 + 2  # two costs of each task
    energy = Drawn(text, "Linear top-1 against energy of the GPUs")
    assert energy.heads == ["energy of the GPUs (Wh)", "linear top-1 (%)"]
    assert energy.markers("SFRIK (L=2), q=512") == [[265.0, 81.9]]
    # twice the standard deviations of 10 and 0.2
    assert energy.spreads("SFRIK (L=2), q=512") == [14.0, 0.28]
    time = Drawn(text, "Linear top-1 against training time")
    assert time.heads == ["training time (s)", "linear top-1 (%)"]
    assert time.markers("SFRIK (L=3), q=2048") == [[32.0, 79.9]]
    rank = Drawn(text, "Linear top-1 against effective rank", log="x")
    assert 'class="front"' not in rank.svg  # a higher rank is no cost
    told = "SFRIK (L=2), q=512: 81.90 ± 0.14 %, 45.0 ± 0.0 effective rank, n = 2"
    assert f"<title>{told}</title>" in rank.svg
    assert rank.heads == ["effective rank", "linear top-1 (%)"]
    assert rank.markers("SFRIK (L=2), q=512") == [[45.0, 81.9]]
    dimension = Drawn(text, "Linear top-1 against the embedding dimension", log="x")
    assert dimension.heads == ["embedding dimension q", "linear top-1 (%)"]
    assert dimension.markers("SFRIK (L=2)") == [[512.0, 81.9], [2050.0, 82.9]]
    assert dimension.spreads("SFRIK (L=2)")[1] == 1.3  # from 81.9 − 0.14 to 82.9 + 0.14
    curve = Drawn(text, "Alignment")
    assert curve.heads == ["epoch", "alignment"]
    assert curve.markers("SFRIK (L=2), q=512") == [[1.0, 0.1], [2.0, 0.2], [3.0, 0.3]]
    loss = Drawn(text, "Training loss, scaled")
    assert loss.markers("SFRIK (L=2), q=512") == [[1.0, 1.0], [2.0, 0.25], [3.0, NOTHING]]
    # of a loss from 13/6 to 11/2, and √½ more on either side
    assert loss.spreads("SFRIK (L=2), q=2048")[1] == 1.4
    assert '<a href="https://example.org" rel="noopener">somebody, 2021</a>' in text


def test_a_cost_of_nothing_is_drawn(runs: Path, record: Make, tmp_path: Path) -> None:
    """On a linear axis: a logarithmic one has no place for it."""
    for label, memory_bytes in (("VICReg", 0), ("AUH", 2**20)):
        record(label, knn=None, cost={"loss_extra_bytes": memory_bytes}, history=[])
    text = write_report(runs, tmp_path / "report").page.read_text()
    drawn = Drawn(text, "Linear top-1 against memory of the loss")
    assert drawn.markers("VICReg") == [[NOTHING, 75.0]]
    assert drawn.markers("AUH") == [[1.0, 75.0]]


@pytest.mark.parametrize(
    ("points", "front"),
    [
        ([(1.0, 5.0), (2.0, 4.0), (3.0, 6.0)], [0, 2]),
        ([(3.0, 6.0), (1.0, 5.0), (1.0, 5.5)], [2, 0]),
        ([(2.0, 5.0), (2.0, 5.0)], [0]),
        ([], []),
    ],
)
def test_pareto_front(points: list[tuple[float, float]], front: list[int]) -> None:
    assert figures.pareto(points) == front


def test_text_of_figures_is_left_as_it_is(runs: Path, record: Make, tmp_path: Path) -> None:
    label = 'lr=0.00125 id="a" url(#b) xlink:href #010203 xmlns="c" $x_1$ $\\nothing{$'
    history = [{"epoch": e, "alignment": 0.001 * e, "effective_rank": 5.0} for e in (1, 2, 3)]
    record(label, history=history)
    text = write_report(runs, tmp_path / "report").page.read_text()
    assert text.count(f">{label}</text>") >= 4
    assert Drawn(text, "Alignment").markers(label) == [[1.0, 0.001], [2.0, 0.002], [3.0, 0.003]]


def test_signs_behind_a_name_leave_the_row_its_method_and_its_cells(
    runs: Path, record: Make, tmp_path: Path
) -> None:
    record(choice={"hyperparameters": GIVEN | {"edges": {"method.alignment_weight": "largest"}}})
    record(seed=1, status="diverged", knn=None, linear=None)
    text = write_report(runs, tmp_path / "report").page.read_text()
    head = r'<th scope="row"><a href="#s1-cells"[^>]*>VICReg † ‡</a>'
    assert re.search(rf'<tr data-label="VICReg" data-m="\w+" data-r="0">\s*{head}', text)


@pytest.mark.parametrize("is_error", [False, True])
def test_of_more_methods_than_labels_the_pareto_front_is_labelled(
    is_error: bool, runs: Path, record: Make, tmp_path: Path
) -> None:
    """The scores of a plug-in may be errors, without a unit, of which less is better."""
    for i in range(figures.LABELLED + 1):
        found = score("linear_top1", 60.0 + i)
        if is_error:
            error = score("error", 1.0 - i / 100, unit="")
            found = replace(error, higher_is_better=False)
        record(f"method {i:02}", scores=(found,), cost={"train_s": 10.0 + i % 3}, history=[])
    title = "Error" if is_error else "Linear top-1"
    text = write_report(runs, tmp_path / "report").page.read_text()
    scatter = Drawn(text, f"{title} against training time").svg
    drawn = [f"method {i:02}" for i in range(15) if f">method {i:02}</text>" in scatter]
    assert drawn == ["method 12", "method 13", "method 14"]
    assert all(f"<title>method {i:02}: " in scatter for i in range(15))
    value = "0.86" if is_error else "74.00 %"
    assert f"<title>method 14: {value}, 12.0 s" in scatter


def test_costs_within_a_tenth_are_not_drawn(runs: Path, record: Make, tmp_path: Path) -> None:
    for label, train_s in (("AUH", 100.0), ("VICReg", 109.0)):
        record(label, cost={"train_s": train_s, "loss_extra_bytes": int(10 * train_s**2)})
    text = write_report(runs, tmp_path / "report").page.read_text()
    assert "within 10 %: training time, peak memory." in text
    assert "Linear top-1 against memory of the loss" in text


def test_a_page_of_a_running_sweep_loads_itself_again_and_stays_as_it_was_left(
    new_page: Open, runs: Path, record: Make, tmp_path: Path
) -> None:
    for label, seed in (("VICReg", 0), ("AUH", 0), ("AUH", 1)):
        cell = {"embedding_dim": 64 if seed else 32}
        folder = record(label, seed, sweep="quick", cell=cell).parent.parent
    cells = [{"id": path.name, "label": "VICReg"} for path in folder.iterdir() if path.is_dir()]
    plan(folder, *cells, {"id": "f" * 12, "label": "SimCLR"})
    file = write_report(folder, tmp_path / "report").page
    page = new_page(viewport={"width": 600, "height": 500})
    page.clock.install(time=0)
    page.clock.pause_at(20_000)  # its clock stands still, however long what follows takes
    page.goto(file.as_uri())
    page.locator(".filters select[name=method]").select_option("AUH")
    head = page.locator("#s1-cells thead th", has_text="seed")
    head.get_by_role("button").click()
    page.locator("#s1-cells input").fill("done")
    page.locator("#s1-leaderboard .scroll").evaluate("(table) => table.scrollTo(40, 0)")
    page.evaluate("scrollTo({ top: 700, behavior: 'instant' })")
    file.write_text(file.read_text().replace("<h1>", "<h1>Anew: "))
    page.clock.run_for(30_000)  # nothing happens while somebody types
    assert page.evaluate("window.here = 'first'") == "first"
    page.locator("#s1-cells input").blur()
    places = "[scrollY, document.querySelector('#s1-leaderboard .scroll').scrollLeft]"
    assert page.evaluate(places) == [700, 40]
    page.clock.run_for(30_000)
    expect(page.locator("h1")).to_contain_text("Anew")
    expect(head).to_have_attribute("aria-sort", "descending")
    assert column(page, "#s1-cells", "seed") == ["1", "0"]
    assert page.locator("#s1-cells input").input_value() == "done"
    assert set(column(page, "#s1-leaderboard", "method")) == {"AUH"}
    assert page.evaluate(places) == [700, 40]
    page = new_page()
    page.clock.install(time=time.time() + 2 * 86_400)  # nobody has written it for two days
    page.goto(file.as_uri())
    expect(page.locator("#s1-cells tbody tr").first).to_be_visible()
    page.clock.run_for(300_000)
    assert page.evaluate("sessionStorage.length") == 0


def test_a_page_of_cells_that_finished_or_failed_loads_once(new_page: Open, site: Path) -> None:
    page = new_page()
    page.clock.install()
    page.goto(site.as_uri())
    expect(page.locator("#unfinished")).to_contain_text("1 cell of quickstart")
    expect(page.locator("#s1-cells tbody tr").first).to_be_visible()  # the script has run
    page.evaluate("window.here = 'first'")
    page.clock.run_for(300_000)
    # what is to be kept is there before
    assert page.evaluate("[window.here, sessionStorage.length]") == ["first", 0]


def test_a_task_says_what_can_be_chosen_of_it_and_what_all_trained_cells_share(
    runs: Path, record: Make
) -> None:
    rows = (("AUH", 512, 0.5), ("VICReg", 512, 0.5), ("VICReg", 2048, 0.5), ("VICReg", 64, 0.25))
    for label, q, rate in rows:
        optimizer = {**settings(label)["optimizer"], "base_lr": rate}
        record(label, cell={"embedding_dim": q, "optimizer": optimizer})
    record("untrained")
    summary = task(runs)
    shown = section(summary, tables_of(summary), 1, styles(["AUH", "VICReg"]))
    assert shown["filters"] == {"method": ["AUH", "VICReg"], "q": ["64", "512", "2048"]}
    shared = dict(shown["shared"])
    trained = [one for one in summary.records if not one.is_reference]
    assert shared == dict(set.intersection(*(set(one.settings.items()) for one in trained)))
    assert "optimizer.base_lr" not in shared
    assert (shared["epochs"], shared["batch_size"]) == ("3", "256")


def test_cells_say_of_which_row_and_configuration_they_are(runs: Path, record: Make) -> None:
    """Of two seeds, two configurations that were only tuned, and one of a search's short
    trainings.
    """
    for seed in (0, 1):
        record("VICReg", seed, tuning=60.0)
    for rate in (0.25, 0.125, 0.1):
        optimizer = {**settings("VICReg")["optimizer"], "base_lr": rate}
        tuned = {"status": "tuned", "knn": None, "linear": None, "tuning": 50.0}
        path = record("VICReg", cell={"optimizer": optimizer}, **tuned)
    tuning_choice(runs / "quickstart")
    search(runs / "quickstart", path.parent.name)
    record("untrained")
    summary = task(runs)
    cells = cells_of(summary, 2, styles(["VICReg"]))
    # there is one row to see
    assert section(summary, tables_of(summary), 2, styles(["VICReg"]))["filters"] == {}
    assert {cell["section"] for cell in cells} == {2}
    rows = {row.label: place for place, row in enumerate(summary.rows)}
    final = [cell for cell in cells if cell["status"] == "done"]
    assert [cell["row"] for cell in final] == [rows[cell["label"]] for cell in final]
    assert [cell["row"] for cell in cells if cell["status"] == "tuned"] == 3 * [-1]
    groups = {(one["label"], one["config"]["optimizer"]["base_lr"]): one["group"] for one in cells}
    assert sorted(groups.values()) == [0, 1, 2, 3, 4]
    assert {cell["group"] for cell in final if cell["label"] == "VICReg"} < set(groups.values())
    assert (cells[-1]["id"], cells[-1]["group"]) == (path.parent.name, 4)


def test_a_long_training_is_drawn_to_its_end_by_what_was_logged(
    runs: Path, record: Make, tmp_path: Path
) -> None:
    """Of one seed the last loss is no number."""
    for seed in (0, 1):
        rows = [{"epoch": e, "loss": 500.0 - e, "alignment": 0.5} for e in range(1, 401)]
        rows[-1]["loss"] = float("nan") if seed else 100.0
        record("VICReg", seed, history=rows)
    text = write_report(runs, tmp_path / "report").page.read_text()
    assert "<title>VICReg: 100 in epoch 400, n = 1</title>" in text
    assert re.search(r"<title>VICReg: 0\.50* ± 0\.?0* in epoch 400, n = 2</title>", text)
