"""Challenges on a tiny track: a copy of a row and a plain function, from the file to the
verified bundle.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sys
import tarfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from types import ModuleType

import pytest
import torch
import yaml

import regbench
from regbench.benchmark.rundir.record import Record, Score
from regbench.benchmark.rundir.record_parts import NamedFile
from regbench.benchmark.rundir.tuning_choice import APART
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.sweep import Sweep, read_rows
from regbench.errors import RegbenchError
from regbench.files import write_text
from regbench.instruments.conformance import run_check
from regbench.methods import METHODS, Regularizer
from regbench.reports.bundle.bundle import read_bundle
from regbench.reports.bundle.pack import submit
from regbench.reports.find.records import read_records
from regbench.spaces import Choice, Range
from regbench.sweeps.local import run_sweep
from regbench.sweeps.search_spaces import searches_of
from regbench.sweeps.status import CellStatus
from regbench.text import is_name
from regbench.tracks.challenge import Challenge, prepared, tasks_of
from regbench.tracks.own_loss import LossFile
from regbench.tracks.placing import Placing
from regbench.tracks.smoke import RULES, Smoke
from regbench.tracks.stand_in import compute_once, entered
from regbench.tracks.track import TRACKS, Track, searched, write_sweep
from tests.command import run
from tests.conftest import TINY
from tests.records import knn_top1, made
from tests.refusals import is_refused
from tests.test_documentation import ROOT, blocks
from tests.tracks.test_placing import PLACING

TWIN = """
from dataclasses import dataclass, replace
from typing import ClassVar

from regbench.methods.base import register
from regbench.methods.vicreg import VICReg

@register("twin")
@dataclass(frozen=True, kw_only=True)
class Twin(VICReg):
    metadata = replace(VICReg.metadata, title="Twin")
    space: ClassVar = VICReg.space
"""

PULL = """
import torch


def _normal(z):
    return torch.nn.functional.normalize(z, dim=1)


def pull(z1, z2, weight=10.0, power: int = 2, hard=False):
    z1, z2 = _normal(z1), _normal(z2)
    return {"loss": weight * (z1 - z2).norm(dim=1).pow(power).mean() - (z1 - z1.mean(dim=0)).square().mean()}
"""


def refusals(kind: str) -> list[tuple[str, str]]:
    """Texts of files of losses that are refused, with a pattern of the refusal."""
    found = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text())[kind]
    return [(each["loss"].replace("<TWIN>\n", TWIN), each["told"]) for each in found]


MODULE = """
import torch
from torch import nn


class Far(nn.Module):
    def __init__(self, margin=2.0):
        super().__init__()
        self.margin = margin
        self.register_buffer("axes", torch.eye(3))

    def forward(self, z1, z2):
        return (self.margin - ((z1 - z2) @ self.axes).norm(dim=1)).relu().mean()
"""


def written(folder: Path, text: str, name: str = "my_loss.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_plain_function_is_a_method_of_this_process_and_of_others_for_as_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, paths = METHODS.names(), "somewhere"
    monkeypatch.setenv("PYTHONPATH", paths)
    file = LossFile.of(written(tmp_path, PULL))
    with file.loaded(tmp_path / "plug_in") as method:
        own = {"weight": 10.0, "power": 2, "hard": False}
        assert METHODS.plain(method) == {"name": "my_loss", **own}
        assert METHODS.build("my_loss", weight=3.0) == replace(method, weight=3.0)  # type: ignore[type-var]
        z1, z2 = torch.randn(2, 6, 4, dtype=torch.float64, requires_grad=True)
        loss = method(z1, z2)
        scope: dict[str, object] = {}
        exec(PULL, scope)
        assert loss.total == scope["pull"](z1, z2)["loss"]  # type: ignore[operator]
        # nothing is known of it
        assert method.random and not (method.metadata.symmetric or method.metadata.ordered)
        assert os.environ["PYTHONPATH"].split(os.pathsep) == [str(tmp_path / "plug_in"), paths]
    assert METHODS.names() == before
    assert os.environ.get("PYTHONPATH") == paths and str(tmp_path / "plug_in") not in sys.path


def test_the_name_of_any_file_gives_one_of_a_folder(tmp_path: Path) -> None:
    module = LossFile.of(written(tmp_path, PULL, f"gr\xf6\xdfe {200 * 'x'}.py")).module
    assert is_name(f"scenes_{module}") and module.startswith("gr__e_xxx")


@pytest.mark.parametrize("chosen", ["", ":Far"])
def test_a_module_is_made_with_its_hyperparameters(chosen: str, tmp_path: Path) -> None:
    """The function beside it is a helper of its.

    Its buffer is of the dtype that the embeddings have.
    """
    file = f"{written(tmp_path, PULL + MODULE, 'losses.py')}{chosen}"
    with LossFile.of(file).loaded(tmp_path / "plug_in") as method:
        for dtype in (torch.float32, torch.float64):
            z1, z2 = torch.zeros(2, 4, 3, dtype=dtype)
            assert method(z1, z2).total == 2.0
            assert replace(method, margin=5.0)(z1, z2).total == 5.0  # type: ignore[type-var]
        assert searched(method) == ["method.margin=tag(log,interval(0.125,32.0))"]


@pytest.mark.parametrize(
    "head",
    [
        "import torch\nclass Own(torch.nn.Module):\n  def forward(self, z1, z2)",
        "def own(z1, z2, *others, **more)",
    ],
)
def test_a_loss_need_not_name_hyperparameters_and_may_work_in_place(
    head: str, tmp_path: Path
) -> None:
    """A module without `__init__` has that of torch, which takes any arguments."""
    file = written(tmp_path, f"{head}: return z1.sub_(2 * z2).square().mean()", "own.py")
    with LossFile.of(file).loaded(tmp_path / "plug_in") as method:
        assert METHODS.plain(method) == {"name": "own"}
        compute_once(method, 4, 3)
        z1 = torch.ones(4, 3)
        assert method(z1, torch.ones(4, 3)).total == 1.0 and z1.equal(torch.ones(4, 3))


@pytest.mark.parametrize(
    ("parameter", "values", "kind"),
    [
        ("k=64", {}, int),
        ("k=64", {"k": 16}, int),
        ("k: float = 64", {}, float),
        ("k: float = 64", {"k": 0.25}, float),
        ("k: int = 64", {}, int),
        ("k: 'int | None' = 64", {}, int),
        ("k=64.0", {}, float),
        ("k=True", {}, bool),
    ],
)
def test_a_whole_default_is_whole_and_not_searched_unless_its_annotation_says_otherwise(
    parameter: str, values: dict[str, float], kind: type, tmp_path: Path
) -> None:
    text = f"def own(z1, z2, {parameter}):\n    own.got = k\n    return (z1 - z2).square().mean()"
    with LossFile.of(written(tmp_path, text, "own.py")).loaded(tmp_path / "plug_in") as method:
        changed = METHODS.from_plain({"name": "own", **values}, "method.")
        changed(torch.ones(4, 3), torch.zeros(4, 3))
        got = method.loss_of.got  # type: ignore[attr-defined]
        assert any("tag(" in each for each in searched(method)) == (kind is float)
    assert (type(got), got) == (kind, values.get("k", 64 if kind is not bool else True))


def test_a_loss_with_parameters_is_refused(tmp_path: Path) -> None:
    text = MODULE.replace("= margin", "= nn.Parameter(torch.tensor(margin))")
    with (
        LossFile.of(written(tmp_path, text)).loaded(tmp_path / "plug_in") as method,
        is_refused("Far has parameters, which nobody would train"),
    ):
        method(torch.zeros(4, 3), torch.zeros(4, 3))


def test_the_loss_of_the_page_keeps_the_rules(tmp_path: Path) -> None:
    (text,) = blocks("docs/challenge.md", "python")
    with LossFile.of(written(tmp_path, text)).loaded(tmp_path / "plug_in") as method:
        for rule in RULES:
            result = run_check(method, rule)
            assert result is not None and result.ok, result


def test_an_edited_file_is_another_challenge(tmp_path: Path) -> None:
    first = LossFile.of(written(tmp_path, PULL)).module
    assert LossFile.of(written(tmp_path, PULL)).module == first
    assert LossFile.of(written(tmp_path, PULL + "\n")).module != first
    assert LossFile.of(written(tmp_path, PULL, "My-own.loss.py")).name == "my_own_loss"
    assert LossFile.of(f"{written(tmp_path, MODULE, 'losses.py')}:Far").name == "far"


def test_a_loss_comes_from_its_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = LossFile.of(Regularizer)
    assert (own.chosen, own.path.name) == ("Regularizer", "base.py")
    for place in (written(tmp_path, PULL, "loss.txt"), "none.py"):
        with is_refused(f"there is no file {place}; give my_loss.py"):
            LossFile.of(place)
    # as of an interactive Python
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    for other in (3, int, type("Typed", (), {"__module__": "__main__"})):
        with is_refused("is in no file; save it in one"):
            LossFile.of(other)


def test_a_file_that_begins_a_challenge_begins_no_other(tmp_path: Path) -> None:
    """The process that loads it would begin one more, and so on."""
    path = written(tmp_path, f"import regbench\n{PULL}\nregbench.challenge(pull)")
    line = "it begins a challenge; put that under if __name__"
    with is_refused(f"{path}: {line}"), LossFile.of(path).loaded(tmp_path / "plug_in"):
        pass
    path.write_text(PULL)
    with LossFile.of(path).loaded(tmp_path / "plug_in"):
        pass


def test_a_regularizer_may_be_named_and_a_function_may_state_its_space(tmp_path: Path) -> None:
    twin = f"{written(tmp_path, TWIN, 'twin.py')}:Twin"
    with LossFile.of(twin).loaded(tmp_path / "plug_in") as method:
        assert method.label == "Twin"
    text = "from regbench.spaces import Choice\ndef own(z1, z2, a=1.0): ...\n"
    text += "own.space = {'a': Choice((5.0, 6.0))}"
    with LossFile.of(written(tmp_path, text, "own.py")).loaded(tmp_path / "plug_in") as method:
        assert method.space == {"a": Choice((5.0, 6.0))}


def test_a_challengers_search_is_that_of_the_rows(tmp_path: Path) -> None:
    """Its own space, and the budget, the settings and the range of rates of the track."""
    (track,) = TRACKS["scenes"]
    rows = read_rows(track.sweep, ())
    written = write_sweep(track, METHODS.build("auh"), tmp_path / "own.yaml")
    assert (written.trials, written.final_seeds) == (rows.trials, rows.final_seeds)
    (own,), (other,) = (searches_of(file, file.rows[-1]) for file in (written, rows))
    assert replace(own.cell, method=other.cell.method) == other.cell
    assert own.space["optimizer.base_lr"] == other.space["optimizer.base_lr"]
    assert set(own.space) == {"method.alignment_weight", "method.scale", "optimizer.base_lr"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", []),
        (", offset=-1.0, power: int = 3", []),
        (", zero=0.0, power: 'int' = 3", []),
        (", offset=-1.0, power: int = 3, weight=2.0, other=5.0", [("weight", 0.125, 32.0)]),
    ],
)
def test_what_states_no_space_is_tried_around_its_first_weight(
    arguments: str, expected: list[tuple[str, float, float]], tmp_path: Path
) -> None:
    text = f"def own(z1, z2{arguments}): ..."
    (track,) = TRACKS["scenes"]
    with LossFile.of(written(tmp_path, text, "own.py")).loaded(tmp_path / "plug_in") as method:
        file = write_sweep(track, method, tmp_path / "own.yaml")
        (search,) = searches_of(file, file.rows[0])
    *own, rate = search.space.items()
    assert rate[0] == "optimizer.base_lr"
    assert own == [(f"method.{name}", Range(low, high, "log")) for name, low, high in expected]


MIXES = """
from dataclasses import replace
from typing import Annotated
from pydantic import Field
from regbench.methods.simclr import *
from regbench.settings import Fraction, settings


@register("mixes")
@settings
class Mixes(SimCLR):
    temperature: Annotated[float, Field(gt=0, lt=1)] = 0.5
    share: Fraction = 0.5
    metadata = replace(SimCLR.metadata, title="Mixes")
    space = None
"""


def test_a_range_around_a_weight_ends_where_its_values_do(tmp_path: Path) -> None:
    """Below a bound there is no last number, so that a weight which has one is left as it is."""
    file, folder = LossFile.of(written(tmp_path, MIXES)), tmp_path / "plug_in"
    with file.on_path(folder), entered(file, folder) as method:
        assert searched(method) == ["method.share=tag(log,interval(0.03125,1.0))"]


TASKS = [
    pytest.param(task, id=task.name, marks=[pytest.mark.slow] if number else [])
    for tasks in TRACKS.values()
    for number, task in enumerate(tasks)
]


@pytest.mark.parametrize("task", TASKS)
def test_a_challenge_begins_with_the_rows_of_its_track_and_the_best_of_them_to_train_again(
    task: Track, tmp_path: Path
) -> None:
    """The settings are those of the rows: a preset that changes would compare the challenger
    with another task.
    """
    runs = tmp_path / "runs"
    with tarfile.open(task.bundle) as archive:
        names = set(archive.getnames())
    with prepared(written(tmp_path, PULL), task, [f"runtime.runs_dir={runs}"]) as begun:
        assert isinstance(begun, Challenge)
        shipped = begun.folder / "track" / "shipped"
        files = {str(p.relative_to(shipped)) for p in shipped.rglob("*") if p.is_file()}
        assert files == names
        shown = read_records(shipped)
        assert (shown.skipped, shown.missing) == ((), ())
        (own,) = begun.tuning.cells
        assert own.label == "pull"
        expected = own.plain()
    alike = {k: v for k, v in expected.items() if k not in ("method", "optimizer", "seed")}
    # Search k of a repeated tuning has the seeds of the first one plus 1000 k.
    seeds: dict[str, dict[int, None]] = {}
    for record in shown.records:
        cell = Cell.stored(record.cell)
        if record.status == "done" and cell.is_method and cell.baseline is None:
            seeds.setdefault(record.label, {})[cell.seed % APART] = None
            plain = cell.plain()
            if cell.network.is_asymmetric:
                plain["network"] = expected["network"]
            # The method alone is another, and its learning rate is searched.
            assert {key: value for key, value in plain.items() if key in alike} == alike
    assert {tuple(sorted(each)) for each in seeds.values()} == {begun.tuning.final_seeds}
    score = "content_r2" if task.sweep == "latents_tuning" else "linear_top1"
    found: dict[str, dict[int, float]] = {}
    for record in shown.records:
        value = record.score(score, "test")
        if value is not None and record.untrained is False and not record.is_reference:
            found.setdefault(record.label, {})[record.seed] = value
    best = sorted(found, key=lambda label: -fmean(found[label].values()))[:2]
    firsts = [(label, min(found[label])) for label in best]
    assert [(record.label, record.seed) for record in begun.shipped] == firsts
    ids = [record.cell_id for record in begun.shipped]
    assert [cell.id for cell in begun.repeated.cells] == ids
    assert (begun.label, begun.repeated.name) == ("pull", "repeated")
    assert begun.folder.parent == runs and runs < Path(begun.repeated.runtime.runs_dir)
    assert begun.repeated.runtime.runs_dir != begun.tuning.runtime.runs_dir == str(runs)


@pytest.fixture(scope="module")
def track(tiny_data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Track:
    """A track of two methods, each with a search of one training."""
    folder = tmp_path_factory.mktemp("track")
    own = [*TINY, "epochs=4", "optimizer.warmup_epochs=0", "seed=0"]
    own.append("evaluation.select_by=[knn,probe]")
    file = folder / "tiny_tuning.yaml"
    rows = [
        "method=vicreg optimizer.base_lr=tag(log,interval(0.1,1))",
        "method=auh method.scale=2.5 optimizer.base_lr=tag(log,interval(0.1,1))",
    ]
    content = {"description": "tiny", "common": own, "final_seeds": [0, 1, 2], "trials": 3}
    file.write_text(json.dumps({**content, "cells": ["method=sfrik epochs=0", *rows]}))
    regbench.tune(file, runtime={"data_dir": str(tiny_data_dir), "runs_dir": str(folder / "runs")})
    submit([folder / "runs" / "tiny_tuning"], folder / "tiny.tar.xz")
    return Track("tiny", str(file), folder / "tiny.tar.xz")


@pytest.mark.slow
def test_a_copy_of_a_row_is_not_told_from_its_twin_and_its_bundle_is_accepted(
    track: Track, tiny_data_dir: Path, tmp_path: Path
) -> None:
    file = written(tmp_path, TWIN, "twin.py")
    overrides = [f"runtime.data_dir={tiny_data_dir}", f"runtime.runs_dir={tmp_path / 'runs'}"]
    said: list[str] = []
    with prepared(file, track, overrides) as begun:
        assert isinstance(begun, Challenge)
        searched = "method.alignment_weight and optimizer.base_lr"
        assert f"again, a search of {searched} with the images of 3 trainings" in begun.plan()
        placing = begun.run(run_sweep, said.append)
    assert isinstance(placing, Placing)
    twin = next(verdict for verdict in placing.verdicts if verdict.label == "VICReg")
    # On the same machine a copy gives the same scores, and so do the repeated cells.
    alike = "not significantly different from"
    assert (twin.words, twin.difference, placing.shifts) == (alike, 0.0, (0.0, 0.0))
    assert {verdict.label for verdict in placing.verdicts} == {"VICReg", "AUH", "untrained"}
    page = placing.page.read_text()
    # The rows are there, and the repeated cells are not taken for cells of the challenge.
    assert alike in str(placing) and "VICReg" in page
    assert 'id="skipped"' not in page and 'id="unfinished"' not in page
    folder = placing.bundle.parent
    trained = [path for path in folder.glob("*/record.json") if Record.read(path).method == "twin"]
    assert len(trained) == len(placing.values)
    bundle = read_bundle(placing.bundle)
    assert {record.label for record in bundle.records} == {"Twin"}
    rows = read_bundle(track.bundle)
    (own,), (other,) = bundle.choices.values(), rows.choices.values()
    assert own.budget == other.budget
    accepted = run("verify", placing.bundle, "--loss", file)
    assert accepted.exit_code == 0, accepted.output
    # Without its loss nobody can tell whether the settings are any.
    assert run("verify", placing.bundle).exit_code == 1
    _enter(placing.bundle, file, tmp_path / "results")
    files = [path for path in folder.rglob("*.json") if path.name != "sweep.json"]
    times = {path: path.stat().st_mtime_ns for path in files}
    again = regbench.challenge(file, overrides, track=track)
    assert again == placing
    assert {path: path.stat().st_mtime_ns for path in times} == times


@pytest.mark.slow
def test_two_challenges_at_once_are_one(track: Track, tiny_data_dir: Path, tmp_path: Path) -> None:
    overrides = [f"runtime.data_dir={tiny_data_dir}", f"runtime.runs_dir={tmp_path / 'runs'}"]
    challenge = partial(regbench.challenge, str(written(tmp_path, PULL)), overrides, track=track)
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        one, other = (pool.submit(challenge) for _ in range(2))
        assert isinstance(one.result(), Placing)
        assert one.result() == other.result()


def _enter(bundle: Path, loss: Path, results: Path) -> None:
    """Enters a challenge as a pull request does, under another name, and makes the leaderboard."""
    results.mkdir()
    shutil.copy(bundle, results / "twin.tar.xz")
    entered = run("verify", results / "twin.tar.xz", "--loss", loss)
    assert entered.exit_code == 0, entered.output
    command = ["leaderboard", str(results), "--out", str(results / "site")]
    assert "no bundle in" in run(*command).stderr
    shown = run(*command, "--loss", loss)
    assert (shown.exit_code, shown.stderr) == (0, ""), shown.output
    assert "Twin" in (results / "site" / "index.html").read_text()


def test_a_loss_without_a_place_in_one_world_has_one_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def place(challenge: Challenge, *_: object) -> Placing:
        if challenge.tuning.cells[0].dataset.name == worlds[0].name:
            raise RegbenchError("all have diverged")
        return PLACING

    monkeypatch.setattr(Challenge, "run", place)
    worlds = TRACKS["latents"][:2]
    monkeypatch.setattr("regbench.tracks.challenge.tasks_of", lambda _: worlds)
    file, runs = written(tmp_path, PULL), f"runtime.runs_dir={tmp_path / 'runs'}"
    assert regbench.challenge(str(file), [runs], track="latents") == {worlds[1].name: PLACING}
    assert "all have diverged" in caplog.text
    shown = run("challenge", file, "--track", "latents", runs)
    assert (shown.exit_code, shown.output.count("diverged")) == (1, 1)
    assert str(PLACING) in shown.output
    # What is wrong in every world is said once.
    shown = run("challenge", tmp_path / "none.py", "--track", "latents", runs)
    assert shown.exit_code == 2 and shown.output.count("there is no file") == 1


def test_rows_of_the_same_name_and_settings_of_the_track_are_refused(tmp_path: Path) -> None:
    runs = f"runtime.runs_dir={tmp_path / 'runs'}"
    (track,) = TRACKS["scenes"]
    twin = written(tmp_path, TWIN.replace('title="Twin"', 'title="VICReg"'), "twin.py")
    taken = "'VICReg' is a row of the track; give it another title"
    with is_refused(taken), prepared(twin, track, [runs]):
        pass
    twin.write_text(TWIN)
    for setting in ("epochs=2", "seed=1", "optimizer.base_lr=0.1", "evaluation.knn.k=5"):
        with is_refused(f"{setting}: the track decides it"), prepared(twin, track, [runs, setting]):
            pass
    bundle = ROOT / "results" / "latents_family_sphere.tar.xz"  # of two searches
    own = Track("own", "latents_tuning", bundle, ("dataset=latents_sphere",))
    few = f"{bundle}: no method has 3 seeds or searches"
    with is_refused(few), prepared(written(tmp_path, PULL), own, [runs]):
        pass
    told = "quickstart: a track's sweep needs trials and 3 or more final_seeds"
    with is_refused(told), prepared(twin, replace(track, sweep="quickstart"), [runs]):
        pass
    with is_refused("minute"):
        tasks_of("hour")
    assert tasks_of("minute") == (None,)


def test_a_smoke_test_tells_a_loss_from_none(tmp_path: Path) -> None:
    """The training is made up: what is measured of it is compared, and the loss itself is
    checked.
    """
    overrides = [f"runtime.runs_dir={tmp_path / 'runs'}"]

    def outcome(text: str, linear: float | None, rank: float | None) -> Smoke:
        def trained(grid: Sweep, _: Sequence[str]) -> list[CellStatus]:
            assert [cell.epochs > 0 for cell in grid.cells] == [False, True]
            assert grid.cells[1].label in text
            for cell, value in zip(grid.cells, (15.0, linear), strict=True):
                folder = tmp_path / "runs" / grid.name / cell.id
                stated = [knn_top1(50.0), knn_top1(50.0, "test")]
                stated.append(Score("linear_top1", 50.0, "tuning", "", "linear"))
                record = made(cell.plain(), status="diverged")
                if value is not None:
                    stated.append(Score("linear_top1", value, "test", "", "linear top-1"))
                    record = made(cell.plain(), scores=tuple(stated))
                if cell.epochs and rank is not None:
                    row = json.dumps({"epoch": cell.epochs, "effective_rank": rank}) + "\n"
                    record = replace(record, metrics=NamedFile("metrics.jsonl", "0" * 64))
                    write_text(folder / "metrics.jsonl", row)
                write_text(folder / "record.json", record.text())
            return []

        with prepared(written(tmp_path, text), None, overrides) as begun:
            found = begun.run(trained)
        assert isinstance(found, Smoke)
        return found

    good = outcome(PULL, 20.0, 30.0)
    assert good.ok, str(good)
    learned = ["not collapsed", "more linear top-1 than untrained"]
    assert [name for _, name, _ in good.findings][-3:] == ["finite", *learned]
    poor = ((15.0, 2.1, learned[1:]), (14.0, 1.9, learned), (None, None, learned))
    for linear, rank, failing in poor:
        found = outcome(PULL, linear, rank)
        assert [name for ok, name, _ in found.findings if not ok] == failing and not found.ok
    assert [name for ok, name, _ in outcome(PULL, None, 30.0).findings if not ok] == learned
    # It takes the views of other images for those of the same, and its gradient is not that of its
    # value.
    broken = "def broken(z1, z2, w=1.0):\n    return -w * (z1.detach() - z2).square().mean()\n"
    failed = {name for ok, name, _ in outcome(broken, 20.0, 30.0).findings if not ok}
    assert {"gradient", "views matter"} <= failed
