"""A factory of run directories as finished runs leave them: real settings, written by the real
writer.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from regbench import methods
from regbench.benchmark.rundir.record import LaterEvaluation, Score
from regbench.benchmark.rundir.record_parts import Cost, ImageSource, NamedFile, PastAttempt, Saved
from regbench.benchmark.rundir.tuning_choice import TUNING_CHOICE
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.identity import cell_id
from regbench.benchmark.settings.sweep import load_run
from regbench.files import signed
from regbench.reports.bundle.pack import submit
from tests.records import chosen, made, ranked, tuning_choice
from tests.waiting import PATIENCE_S

METHODS = {
    "RBF kernel": "rbf",
    "generalized distance": "generalized_distance",
    "AUH": "auh",
    "SimCLR": "simclr",
    "VICReg": "vicreg",
    "untrained": "sfrik",
}
TITLES = {
    "knn_top1": "kNN top-1",
    "linear_top1": "linear top-1",
    "linear_top5": "linear top-5",
    "voc07_map": "VOC07 mAP, 11-point",
}
GIVEN = {"selected_on": "given", "score": None, "budget": None, "record": None, "sha256": None}
RATE = {"selected_on": "tuning", "chosen": 0.5, "candidates": {"0.02": 70.1, "0.5": 72.0}}

DATA = ("dataset=fashion_mnist", "augmentation=small_grey", "network=resnet_tiny")
STEPS = 3  # of an epoch of a run in a bundle

PATIENCE_MS = 1000 * PATIENCE_S

STILL: Any = {"offline": True, "reduced_motion": "reduce"}
"""How tests open a page: without a network and without smooth scrolling, where clicks on a busy
machine go astray.
"""

Make = Callable[..., Path]


@functools.cache
def _settings() -> dict[str, Any]:
    sizes = ["embedding_dim=512", "batch_size=256", "epochs=3", "optimizer.warmup_epochs=1"]
    return load_run([*DATA, *sizes, "method=vicreg", "dataset.train_per_class=1000"])[0].plain()


def of_each(found: Locator, what: str) -> Any:
    """The value of an expression of JavaScript for `each` of the elements."""
    return found.evaluate_all(f"(found) => found.map((each) => {what})")


def settings(label: str, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """The plain data of a cell.

    A group among the changes takes the place of the whole one, but for its name.
    """
    plain = copy.deepcopy(_settings())
    order = label.removeprefix("SFRIK (L=").removesuffix(")")
    weights = {"weights": [1.0] * int(order)} if order.isdigit() else {}
    name = "sfrik" if weights else METHODS.get(label, label)
    plain |= {"method": {"name": name, "alignment_weight": 10.0, **weights}, "seed": seed}
    plain |= {"epochs": 0} if label == "untrained" else {}
    return plain | changes


def backbone(name: str, **more: Any) -> dict[str, Any]:
    """The group of settings of a network with another backbone."""
    network: dict[str, Any] = _settings()["network"]
    return network | {"backbone": {"name": name}, **more}


def dataset(name: str) -> dict[str, Any]:
    """The group of settings of another data set."""
    group: dict[str, Any] = _settings()["dataset"]
    return group | {"name": name}


def score(name: str, value: float, split: str = "test", unit: str = "%") -> Score:
    """A score as an evaluation gives it; without a unit it has no best."""
    title = TITLES.get(name, name)
    return Score(name, value, split, f"how {name} is measured", title, unit, True if unit else None)


def probed(**values: float) -> dict[str, Any]:
    """Scores of the factors of no data set that there is, as evaluations write them."""
    scores = [score("knn_top1", 60.0)]
    for name, value in values.items():
        scores.append(score(f"factor_{name}", value, unit="%" if "kind" in name else ""))
    return {"scores": tuple(scores)}


def resign(path: Path, **changes: Any) -> None:
    """Changes a record and takes its digest anew, as somebody who means it would."""
    data = json.loads(path.read_text())
    data.pop("sha256")
    path.write_text(signed(data | changes))


def later(record: Path, *scores: Score, **changes: Any) -> Path:
    """Writes a later evaluation beside a record."""
    fields: dict[str, Any] = {"cell_id": record.parent.name, "protocol": "voc07"}
    fields |= {"scores": scores, "seconds": 1.0, "finished": "2026-11-23T05:30:00+00:00"}
    fields |= {"choice": {}, "environment": {}, "command": ""}
    path = record.parent / "evaluations" / "voc07.json"
    path.parent.mkdir()
    path.write_text(LaterEvaluation(**fields | changes).text())
    return path


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def record(runs: Path) -> Make:
    """Writes the run directory of one cell.

    Keywords override its record's fields, `cost` and the like are merged.
    """
    return _recorder(runs)


@pytest.fixture
def record_here(record: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """`record` where `runs` is a folder of the working directory."""
    monkeypatch.chdir(tmp_path)
    return record


@pytest.fixture(scope="session")
def recorder() -> Callable[[Path], Make]:
    """`record` for any folder of runs, for what several tests share."""
    return _recorder


def _logged(epoch: int, seed: int) -> dict[str, Any]:
    """What a training tells of an epoch."""
    line = {"epoch": epoch, "loss": 5.0 / epoch + seed, "alignment": 0.1 * epoch}
    line |= {"uniformity": -2.0 - epoch, "effective_rank": 30.0 + 5 * epoch}
    line |= {"feature_spread": 0.5, "learning_rate": 0.1, "epoch_s": 10.0}
    return {**line, "terms": {}}


def _recorder(runs: Path) -> Make:
    def write(
        label: str = "VICReg",
        seed: int = 0,
        *,
        knn: float | None = 70.0,
        linear: float | None = 75.0,
        tuning: float | None = None,
        sweep: str = "quickstart",
        cell: dict[str, Any] | None = None,
        cost: dict[str, Any] | None = None,
        environment: dict[str, Any] | None = None,
        history: list[dict[str, Any]] | None = None,
        **fields: Any,
    ) -> Path:
        plain = settings(label, seed, **cell or {})
        identity = cell_id(plain)
        values = [("knn_top1", knn, "test"), ("linear_top1", linear, "test")]
        values.append(("knn_top1", tuning, "tuning"))
        scores = [score(name, value, of) for name, value, of in values if value is not None]
        if history is None:
            history = [_logged(e, seed) for e in range(1, (plain["epochs"] or 0) + 1)]
        metrics = "".join(json.dumps(row) + "\n" for row in history)
        costs: dict[str, Any] = {"train_s": 30.0, "evaluate_s": 8.0}
        if label != "untrained":
            costs |= {"img_per_s": 1600.0, "step_ms": 160.0, "loss_ms": 4.0}
            costs |= {"peak_memory_bytes": 800 * 2**20, "peak_memory_kind": "process RSS"}
        made_by = {"regbench": "0.1.0", "python": "3.11.7", "torch": "2.14.1", "git": "abc1234"}
        made_by |= {"hostname": "node1", "hardware": "1 x Example CPU", "loader": "ffcv"}
        began, ended = "2026-11-21T04:00:00+00:00", "2026-11-22T05:30:00+00:00"
        attempt = PastAttempt(number=1, started=began, finished=ended, hostname="node1")
        given: dict[str, Any] = {"scores": tuple(scores), "label": label}
        given |= {"attempts": (attempt,), "seed": seed}
        given |= {"method": plain["method"]["name"], "cost": Cost(**costs | (cost or {}))}
        given["environment"] = {**made_by, "threads": 1, **(environment or {})}
        given["data"] = ImageSource("made up", {"train": "ab" * 32, "test": "cd" * 32})
        given["command"] = f"regbench train --config runs/{sweep}/{identity}/config.yaml"
        if fields.get("status", "done") == "done":
            given["choice"] = {"hyperparameters": GIVEN, "probe_learning_rate": RATE}
        given["regularizer"] = {"reference": "somebody, 2021", "formula": "a + b"}
        given["regularizer"]["url"] = "https://example.org"
        if metrics:
            digest = hashlib.sha256(metrics.encode()).hexdigest()
            given["metrics"] = NamedFile("metrics-0001.jsonl", digest)
        record = made(plain, sweep=sweep, **given | fields)
        path = runs / sweep / identity / record.file_name
        path.parent.mkdir(parents=True)
        path.write_text(record.text())
        if metrics:
            path.with_name("metrics-0001.jsonl").write_text(metrics)
        config = yaml.dump(plain, Dumper=yaml.CSafeDumper, sort_keys=False)
        path.with_name("config.yaml").write_text(config)
        return path

    return write


def tuned_sweep(runs: Path, name: str = "mine", *overrides: str) -> Path:
    """Writes a finished tuning of two methods with two configurations each, and two final seeds,
    as runs leave it.
    """
    sizes = ["embedding_dim=64", "batch_size=32", "epochs=2", "optimizer.warmup_epochs=1"]
    rates = "evaluation.probe.learning_rates=[0.1,0.5]"
    base = load_run([*DATA, *sizes, rates, *overrides])[0]
    split = base.evaluation.select_on
    cells: dict[str, Cell] = {}
    entries = []
    for place, method in enumerate(("vicreg", "auh")):
        ranking = []
        for rate, value in ((0.5, 70.0 + place), (0.3, 66.0)):
            optimizer = replace(base.optimizer, base_lr=rate)
            cell = replace(base, method=methods.build(method), optimizer=optimizer)
            one = ranked(cell.id, value, **{"optimizer.base_lr": rate})
            ranking.append(replace(one, epochs=base.epochs))
            cells.setdefault(method, cell)
        _leave(runs, name, cell, 66.0, 1, {})
        setting = {"dataset": "fashion_mnist", "backbone": "resnet_tiny", "embedding_dim": 64}
        setting |= {"batch_size": 32, "epochs": base.epochs}
        images = 2 * STEPS * base.epochs * 32
        entries.append(chosen(cell.label, *ranking, setting=setting, images=images))
    created = "2026-11-22T06:00:00+00:00"
    sha256 = tuning_choice(runs / name, *entries, selected_on=split, created=created)
    how: dict[str, Any] = {"selected_on": split, "score": "knn_top1", "budget": 2, "edges": {}}
    how |= {"sha256": sha256, "record": f"{name}/{TUNING_CHOICE}"}
    probe = {"selected_on": split, "chosen": 0.5, "candidates": {"0.1": 60.0, "0.5": 65.0}}
    for place, cell in enumerate(cells.values()):
        for seed in (0, 1):
            choice = {"hyperparameters": dict(how), "probe_learning_rate": probe}
            _leave(runs, name, replace(cell, seed=seed), 70.0 + place, 3 + seed, choice)
    return runs / name


def _leave(runs: Path, sweep: str, cell: Cell, knn: float, hour: int, choice: Any) -> None:
    """Leaves a run with its weights: a final one if something chose it, or else one of a tuning."""
    draw = int(cell.id, 16)  # no two runs take equally long
    epoch_s = [10.0 + draw % 997 / 1e3, 11.0 + draw % 991 / 1e3, 12.0][: cell.epochs]
    history = []
    for epoch, seconds in enumerate(epoch_s, 1):
        line = {"epoch": epoch, "loss": 5.0 / epoch, "effective_rank": 30.0}
        history.append({**line, "epoch_s": seconds, "images": STEPS * 32})
    values, splits = {"knn_top1": knn, "knn_top5": 90.0}, {cell.evaluation.select_on: None}
    day = "2026-11-22T0{}:{:02}:00+00:00"
    attempts = [PastAttempt(number=1, started=day.format(hour, 0), finished=day.format(hour, 30))]
    if choice:
        values["linear_top1"] = 65.0
        splits["test"] = None
        attempts.append(PastAttempt(number=2, started=day.format(7, 0), finished=day.format(7, 30)))
    scores = []
    for name, value in values.items():
        scores += [Score(name, value, of, f"how {name} is measured", name) for of in splits]
    weights, steps = f"weights of {cell.id}".encode(), STEPS * cell.epochs
    sha256 = hashlib.sha256(weights).hexdigest()
    saved = Saved(f"checkpoint-0001-{steps:09d}-{sha256[:16]}.pt", sha256, steps)
    images = {"train": "ab" * 32, "tuning": "ef" * 32, "test": "cd" * 32}
    plain = cell.plain()
    plain.pop("seed")
    fields: dict[str, Any] = {"sweep": sweep, "cell": plain, "choice": choice}
    fields |= {"status": "done" if choice else "tuned", "history": history, "checkpoint": saved}
    fields |= {"scores": tuple(scores), "attempts": tuple(attempts)}
    fields |= {"cost": {"train_s": sum(epoch_s)}, "data": ImageSource("fashion_mnist", images)}
    path = _recorder(runs)(cell.label, cell.seed, **fields)
    path.with_name(saved.file).write_bytes(weights)


@pytest.fixture(scope="session")
def submitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the bundle `lab.tar.xz` of a tuning."""
    folder = tmp_path_factory.mktemp("submitted")
    submit([tuned_sweep(folder / "runs")], folder / "results" / "lab.tar.xz")
    return folder / "results"


@pytest.fixture(scope="session")
def lab(submitted: Path) -> Path:
    """The bundle of a tuning."""
    return submitted / "lab.tar.xz"


@pytest.fixture(scope="session")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a tuning, with weights and a later evaluation."""
    folder = tmp_path_factory.mktemp("honest")
    sweep = tuned_sweep(folder / "runs")
    later(next(sweep.glob("*/record.json")), score("voc07_map", 50.0))
    submit([sweep], folder / "lab.tar.xz", weights=True)
    return folder / "lab.tar.xz"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The system's Chromium."""
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), "")
    if not program:
        if os.environ.get("CI"):
            pytest.fail("no Chromium: CI has to test the page in one (apt-get install chromium)")
        pytest.skip("no Chromium to open the page with (apt-get install chromium)")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox"], timeout=PATIENCE_MS
        )
        yield browser
        browser.close()


@pytest.fixture
def new_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens an empty page without a network; keywords are of its context."""
    contexts = []

    def go(**how: Any) -> Page:
        contexts.append(browser.new_context(**STILL, **how))
        page = contexts[-1].new_page()
        page.set_default_timeout(PATIENCE_MS)
        return page

    yield go
    for context in contexts:
        context.close()
