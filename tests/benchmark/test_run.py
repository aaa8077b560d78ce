"""One cell to its record: the loop against another one, resumption, refusals."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import math
import os
import random
import re
import shutil
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regbench.benchmark import run as run_module
from regbench.benchmark import scoring
from regbench.benchmark.evaluate.features import Encoder
from regbench.benchmark.evaluate.knn import KNN
from regbench.benchmark.evaluate.linear import LinearProbe
from regbench.benchmark.evaluate.subject import Subject
from regbench.benchmark.machine.compute import default_workers, resolve, usable_cpus
from regbench.benchmark.machine.description import environment
from regbench.benchmark.machine.meters import PeakMemory, draw_embeddings, peak_extra_bytes
from regbench.benchmark.run import evaluate_directory, run_cell
from regbench.benchmark.rundir.checkpoint import save_checkpoint
from regbench.benchmark.rundir.choice import GIVEN
from regbench.benchmark.rundir.directory import (
    checkpoint_files,
    numbered_files,
    read_numbered,
    remove_earlier_leftovers,
    run_directory,
)
from regbench.benchmark.rundir.interruption import Interrupted
from regbench.benchmark.rundir.lease import is_running, last_attempt, read_attempts
from regbench.benchmark.rundir.record import Record, Score, read_record
from regbench.benchmark.rundir.record_parts import PastAttempt, Saved
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.runtime import Runtime
from regbench.benchmark.settings.stored import load_config
from regbench.benchmark.settings.sweep import load_run
from regbench.benchmark.training import checkpoint_writer, journal, loop
from regbench.benchmark.training.embedding_metrics import spread_metrics
from regbench.benchmark.training.loop import Trained, train
from regbench.benchmark.training.network import SiameseNetwork
from regbench.benchmark.training.step import Step, Stepped
from regbench.datasets.loading.loaders import EvalLoader, PretrainingLoader
from regbench.datasets.stored.manifest import Manifest
from regbench.datasets.stored.prepare import prepare
from regbench.instruments.cost.timing import value_and_gradient
from regbench.methods import Engine, Regularizer
from tests.benchmark.steps import before_steps, interrupt_run, kill_while_it_writes, signal_at
from tests.history import assert_same, weights
from tests.records import made
from tests.refusals import is_refused
from tests.there import there
from tests.waiting import PATIENCE_S

MEASURES = ("alignment", "uniformity", "rankme", "alpha_req", "lidar", "feature_spread")
UNTRAINED = ("epochs=0", "optimizer.warmup_epochs=0")
SHORT = ("method=vicreg", "epochs=1", "optimizer.warmup_epochs=0", "evaluation.protocols=[knn]")
CROPS = ("augmentation=small_grey_crops", "augmentation.views.local.count=2")
NOT_TRAINED = "not trained to the end; run the stage pretrain first"


def finish(cell: Cell, runtime: Runtime, sweep: str) -> Record:
    return there(run_cell(cell, runtime, sweep))


def load(tiny: list[str], *overrides: str) -> tuple[Cell, Runtime]:
    return load_run([*tiny, *overrides])


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@dataclass
class Run:
    """A finished run that tests read and leave as it is.

    Attributes:
        drawn: The numbers that python, numpy and torch drew after each step.
    """

    cell: Cell
    runtime: Runtime
    record: Record
    directory: Path
    drawn: list[tuple[float, ...]] = field(default_factory=list)


def drawing(patch: pytest.MonkeyPatch) -> list[tuple[float, ...]]:
    """Let every generator draw after each step; return the list of what was drawn."""
    step = Step.__call__
    drawn: list[tuple[float, ...]] = []

    def also_drawing(self: Step, *views: torch.Tensor) -> Stepped:
        stepped = step(self, *views)
        drawn.append((torch.rand(()).item(), random.random(), np.random.random()))
        return stepped

    patch.setattr(Step, "__call__", also_drawing)
    return drawn


@pytest.fixture(scope="module")
def undisturbed(shared: list[str]) -> Run:
    """A run of a method that draws random numbers on many views.

    It chooses among the probe's learning rates.
    """
    rates = "evaluation.probe.learning_rates=[0.1,1.0]"
    views = (*CROPS, "network.statistics=size")
    cell, runtime = load(shared, "method=sigreg", "epochs=3", rates, *views)
    with pytest.MonkeyPatch.context() as patch:
        drawn = drawing(patch)
        record = finish(cell, runtime, "undisturbed")
    return Run(cell, runtime, record, run_directory(runtime, "undisturbed", cell), drawn)


@pytest.fixture(scope="module")
def complete(shared: list[str]) -> Run:
    """A run with measures, whose checkpoints are due after its end."""
    measured = ("evaluation.protocols=[knn,probe,measures]", "evaluation.measures.view_images=8")
    seldom = ("runtime.checkpoint_epochs=100", "runtime.checkpoint_minutes=1.5")
    method = ("method=sfrik_l2", "runtime.loss_form=textbook")
    cell, runtime = load(shared, *method, "evaluation.knn.k=1", "seed=7", *measured, *seldom)
    record = finish(cell, runtime, "mine")
    return Run(cell, runtime, record, run_directory(runtime, "mine", cell))


def test_training_goes_on_while_a_checkpoint_is_written(
    shared: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the checkpoint is of the moment when it was due."""
    cell, runtime = load(shared, "epochs=2", "seed=5")
    finish(cell, runtime, "quick")
    begun: list[int] = []
    first_taken = threading.Event()
    save = save_checkpoint

    def begins(step: int) -> None:
        begun.append(step)
        if checkpoints and step > checkpoints[0]:  # at least one step more is done
            first_taken.set()

    checkpoints: list[int] = []

    def slowly(directory: Path, attempt: int, step: int, state: dict[str, Any]) -> Saved:
        checkpoints.append(step)
        if len(checkpoints) == 1:
            assert first_taken.wait(60.0), "training waits for the checkpoint"
        return save(directory, attempt, step, state)

    before_steps(monkeypatch, begins)

    monkeypatch.setattr(checkpoint_writer, "save_checkpoint", slowly)
    finish(cell, runtime, "slow")
    states = []
    for sweep in ("quick", "slow"):
        first, _ = sorted(run_directory(runtime, sweep, cell).glob("checkpoint-*.pt"))
        states.append(torch.load(first, weights_only=True))
    one, other = states
    assert one["progress"]["step"] == other["progress"]["step"] == checkpoints[0] < len(begun)
    assert len(other["progress"]["history"]) == 1
    assert all(torch.equal(value, other["network"][name]) for name, value in one["network"].items())
    momenta = ([*each["optimizer"]["state"].values()] for each in (one, other))
    assert all(torch.equal(a[key], b[key]) for a, b in zip(*momenta, strict=True) for key in a)


def test_a_checkpoint_that_cannot_be_written_ends_the_run(
    shared: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint_writer, "save_checkpoint", full)
    cell, runtime = load(shared, "epochs=1", "seed=6", "optimizer.warmup_epochs=0")
    with pytest.raises(OSError, match="No space left"):
        finish(cell, runtime, "full")
    (attempt,) = read_attempts(run_directory(runtime, "full", cell))
    assert attempt["ended"] == "failed"


def test_training_is_what_the_definitions_say(tiny: list[str]) -> None:
    """Against a loop with plain autograd and per-tensor LARS, in float32, over two epochs."""
    # InfoNCE takes the first views for anchors: it matters which are the first.
    settings = [*CROPS, "method=info_nce", "precision=fp32", "seed=3"]
    lars = {"base_lr": 0.8, "weight_decay": 0.01, "trust_coefficient": 0.01, "momentum": 0.8}
    for name, value in (lars | {"final_lr_fraction": 0.02}).items():
        settings.append(f"optimizer.{name}={value}")
    cell, runtime = load(tiny, *settings)
    record = finish(cell, runtime, "here")
    network = SiameseNetwork(cell.network, 16, 3, 24, seed=3)
    network.train()
    momenta = [torch.zeros_like(p) for p in network.parameters()]
    step, rows = 0, []
    options: dict[str, Any] = {"device": torch.device("cpu"), "backend": "torchvision", "seed": 3}
    options |= {"data_dir": Path(runtime.data_dir), "batch_size": 32}
    with PretrainingLoader(cell.dataset, cell.augmentation, **options) as loader:
        assert len(loader) == 3  # 120 images: the last 24 make no batch
        for epoch in range(2):
            total = 0.0
            with loader.epoch(epoch) as batches:
                for views in batches:
                    embeddings = network(*views)  # a pass each: BN statistics are per view
                    loss = cell.method.loss(*embeddings, global_views=2)
                    total += loss.item() / 3
                    network.zero_grad()
                    loss.backward()
                    # Linear over the first 3 steps; the second half of a cosine would begin at step
                    # 3.
                    peak = 0.8 * 32 / 256
                    decay = 0.5 * (1 + torch.tensor(torch.pi * (step - 3) / 3).cos().item())
                    lr = peak * step / 3 if step < 3 else peak * (decay + (1 - decay) * 0.02)
                    with torch.no_grad():
                        for p, m in zip(network.parameters(), momenta, strict=True):
                            g = there(p.grad)
                            if p.ndim > 1:
                                g = g + 0.01 * p
                                if p.norm() > 0 and g.norm() > 0:
                                    g = g * (0.01 * p.norm() / g.norm())
                            m.mul_(0.8).add_(g)
                            p.sub_(lr * m)
                    step += 1
            rows.append({"loss": total, **spread_metrics(*embeddings[:2]), "learning_rate": lr})
    for row, wanted in zip(record.history, rows, strict=True):
        assert {name: row[name] for name in wanted} == pytest.approx(wanted, rel=1e-4)
    assert record.history[0]["learning_rate"] == pytest.approx(0.1 * 2 / 3)
    found, expected = weights(run_directory(runtime, "here", cell)), network.state_dict()
    start = SiameseNetwork(cell.network, 16, 3, 24, seed=3).state_dict()
    assert found.keys() == expected.keys()
    moved = 0
    for name, value in expected.items():
        change = (value - start[name]).float().norm().item()
        moved += change > 0
        assert (found[name] - value).float().norm().item() <= 1e-3 * change + 1e-6, name
    assert moved > 20


def test_the_record_is_complete(complete: Run) -> None:
    cell, record, directory = complete.cell, complete.record, complete.directory
    assert directory == Path(complete.runtime.runs_dir) / "mine" / cell.id
    expected: dict[str, Any] = {"cell_id": cell.id, "sweep": "mine", "label": "SFRIK (L=2)"}
    expected |= {"method": "sfrik", "seed": 7, "status": "done"}
    assert {key: getattr(record, key) for key in expected} == expected
    assert Cell.stored(record.cell) == cell
    accuracies = []
    for evaluation, split in itertools.product(("knn", "linear"), ("tuning", "test")):
        accuracies += [(f"{evaluation}_{top}", split) for top in ("top1", "top5")]
    found = [(score.name, score.split) for score in record.scores]
    assert found == accuracies + [(name, "tuning") for name in MEASURES]
    assert {(score.unit, score.higher_is_better) for score in record.scores[8:]} == {("", None)}
    assert record.scores[-4].head == "RankMe"
    for score in record.scores[:8]:
        assert score.head == score.name.replace("knn", "kNN").replace("_top", " top-") + " (%)"
        assert 0 <= score.value <= 100
        assert score.value == 100 or score.name != "linear_top5"  # three classes
    assert any("k=1" in score.protocol for score in record.scores)
    assert [row["epoch"] for row in record.history] == [1, 2]
    for row in record.history:
        assert row["loss"] == pytest.approx(sum(row["terms"].values()), rel=1e-5)  # of six digits
        assert row["terms"].keys() == {"alignment", "uniformity", "diagonal"}
        assert row["terms"]["diagonal"] == pytest.approx(21 / 32)
    noted = {"world_size": 1, "loader": "torchvision", "loss_form": "textbook", "threads": 1}
    assert noted.items() <= record.environment.items()
    assert record.environment["tf32"] is False
    assert record.data.content_sha256.keys() == {"train", "tuning", "test"}
    assert len(record.attempts) == 1
    assert record.finished >= record.started
    assert last_attempt(directory)["ended"] == "done"  # type: ignore[index]
    cpu = torch.device("cpu")
    views = draw_embeddings(cell.batch_size, cell.embedding_dim, 2, torch.float32, cpu)
    alone = value_and_gradient(cell.method, views, Engine(form="textbook"))
    assert record.cost.loss_extra_bytes == pytest.approx(peak_extra_bytes(alone, cpu), abs=200)
    assert len((directory / there(record.metrics).file).read_text().splitlines()) == 2


def test_a_record_lasts_from_its_first_attempt_to_its_last() -> None:
    """Of some it may not be known."""
    days = [PastAttempt(started=f"2026-01-0{day}", finished=f"2026-02-0{day}") for day in (2, 1, 3)]
    record = made(attempts=(PastAttempt(), *days))
    assert (record.started, record.finished) == ("2026-01-01", "2026-02-03")
    assert (made().started, made().finished) == ("", "")


def test_the_evaluation_is_that_of_the_frozen_backbone(complete: Run) -> None:
    """k = 1 at scale: the nearest training image by cosine similarity of the representations."""
    cell, directory = complete.cell, complete.directory
    network = SiameseNetwork(cell.network, 16, 3, 24, seed=0)
    network.load_state_dict(weights(directory))
    network.eval()
    features = {}
    options: dict[str, Any] = {"device": torch.device("cpu"), "backend": "torchvision"}
    options |= {"data_dir": Path(complete.runtime.data_dir), "batch_size": 64}
    for split in ("train", "test"):
        loader = EvalLoader(cell.dataset, split, choice=directory / "choice-0001.json", **options)
        with loader, loader.epoch() as batches, torch.no_grad():
            pairs = [(F.normalize(network.backbone(x), dim=1), y) for x, y in batches]
        features[split] = torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])
    assert [len(y) for _, y in features.values()] == [120, 30]
    nearest = (features["test"][0] @ features["train"][0].T).argmax(dim=1)
    expected = 100 * (features["train"][1][nearest] == features["test"][1]).double().mean().item()
    assert complete.record.score("knn_top1", "test") == pytest.approx(expected)


def test_the_last_checkpoint_holds_the_final_weights_though_none_was_due(complete: Run) -> None:
    (file,) = checkpoint_files(complete.directory)
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    assert complete.record.checkpoint == Saved(file.name, sha256, 6)


def test_a_finished_run_stays_as_it_is(complete: Run, shared: list[str]) -> None:
    """Run again it gives its record.

    Evaluated anew it gives its scores, or others that are only shown.
    """
    directory, record = complete.directory, complete.record
    before = {path: path.stat().st_mtime_ns for path in directory.iterdir()}
    assert finish(complete.cell, complete.runtime, "mine").sha256 == record.sha256
    own = [override for override in shared if override.startswith("runtime.")]
    assert tuple(evaluate_directory(directory, own)) == record.scores
    assert "k=9" in evaluate_directory(directory, [*own, "evaluation.knn.k=9"], ["knn"])[0].protocol
    assert {path: path.stat().st_mtime_ns for path in directory.iterdir()} == before
    with is_refused(r"seed=3: a trained run can be given other evaluation\.\* settings only"):
        evaluate_directory(directory, [*own, "seed=3"])
    with is_refused("is missing"):
        evaluate_directory(directory.parent, own)


# ------------------------------------------------------------------ interruptions


class Clock:
    """A clock on which every step of training takes 40 s."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_s, self.perf_counter = 0.0, time.perf_counter
        patch.setattr(checkpoint_writer, "time", self)

    def monotonic(self) -> float:
        return self.now_s

    def kill_at(self, step: int) -> None:
        """Begin a step, and kill the process at the sixth."""
        self.now_s += 40
        if step == 5:
            raise KeyboardInterrupt


INTERRUPTIONS: dict[str, tuple[Any, tuple[str, ...], int | None]] = {
    "killed before the first checkpoint": (lambda patch: kill_while_it_writes(patch, 1), (), None),
    "killed after the second epoch": (lambda patch: kill_while_it_writes(patch, 3), (), 6),
    "told by a signal in mid-epoch": (signal_at(4), (), 5),
    "killed between checkpoints by the minute": (
        lambda patch: before_steps(patch, Clock(patch).kill_at),
        ("runtime.checkpoint_minutes=1", "runtime.checkpoint_epochs=100"),
        4,
    ),
}


@pytest.mark.parametrize("how", INTERRUPTIONS)
def test_an_interrupted_run_ends_as_an_undisturbed_one(
    how: str, tiny: list[str], undisturbed: Run
) -> None:
    """It has three epochs of three steps."""
    interrupt, overrides, step = INTERRUPTIONS[how]
    cell, runtime = undisturbed.cell, load(tiny, *overrides)[1]
    kind = Interrupted if "signal" in how else KeyboardInterrupt
    directory = interrupt_run(cell, runtime, interrupt, kind)
    steps = [int(file.name.split("-")[2]) for file in checkpoint_files(directory)]
    assert steps[:1] == [step][: step is not None]
    assert read_record(directory) is None
    resumed = finish(cell, runtime, "disturbed")
    assert_same(resumed, undisturbed.record)
    seen = [(a.ended, a.from_step) for a in resumed.attempts]
    assert seen == [("interrupted", None), (None, step)]


ADAMW = ("optimizer=adamw", "optimizer.warmup_steps=2", "optimizer.clip_grad_norm=1")
TRANSFORMER = ("network.backbone=timm", "network.backbone.patch_size=4")
EMA = ("network.teacher=ema", "network.momentum=0.9")
NETWORKS = {
    "transformer": (
        *("method=vicreg", "network.projector.norm=layer", *ADAMW, "micro_batch_size=16"),
        *(*TRANSFORMER, "network.backbone.drop_path_rate=0.5"),
        "network.backbone.options={depth: 2, embed_dim: 24, num_heads: 2}",
    ),
    "byol": ("method=byol", "network.predictor.depth=2", *EMA),
    "dino": ("method=dino", "method.prototypes=24", *EMA),
    "tico": ("method=tico", "method.covariance_momentum=0.9", *EMA),
    "supcon": ("baseline=supcon",),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_an_interrupted_network_ends_as_an_undisturbed_one(
    name: str, shared: list[str], tiny: list[str]
) -> None:
    """From the middle of an epoch to all evaluations.

    A transformer has stochastic layers, AdamW, gradient caching and clipping; others have a
    teacher.
    """
    cell, runtime = load(shared, *NETWORKS[name])
    undisturbed = finish(cell, runtime, name)
    _, runtime = load(tiny, *NETWORKS[name])
    interrupt_run(cell, runtime, signal_at(4))
    resumed = finish(cell, runtime, "disturbed")
    assert [attempt.from_step for attempt in resumed.attempts] == [None, 5]
    assert_same(resumed, undisturbed)
    assert {score.name for score in resumed.scores} >= {"knn_top1", "linear_top1"}


def test_stages_one_at_a_time_give_what_all_at_once_give(
    tiny: list[str], undisturbed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the network's layout that it was trained in, on which the last bits of features
    depend.
    """
    cell, runtime = undisturbed.cell, load(tiny)[1]
    represent, as_trained = Encoder.represent, []

    def watched(self: Encoder, x: Tensor) -> Tensor:
        for each in self.module.parameters():
            if each.ndim == 4:
                as_trained.append(each.is_contiguous(memory_format=torch.channels_last))
        return represent(self, x)

    monkeypatch.setattr(Encoder, "represent", watched)
    with is_refused(NOT_TRAINED):
        run_cell(cell, runtime, "staged", ["tune"])
    for stage in ("pretrain", "tune"):
        here = {**environment(torch.device("cpu")), "hardware": f"the machine of {stage}"}
        monkeypatch.setattr(run_module, "environment", lambda device, here=here: here)
        assert run_cell(cell, runtime, "staged", [stage]) is None
    scores = read_numbered(run_directory(runtime, "staged", cell), "scores.json")
    splits = {score["split"] for entry in scores["done"].values() for score in entry["scores"]}
    assert splits == {"tuning"}  # the test split is not opened before the last stage
    record = there(run_cell(cell, runtime, "staged", ["final"]))
    assert_same(record, undisturbed.record)
    assert record.environment["hardware"] == "the machine of pretrain, then the machine of tune"
    assert record.environment["torch"] == undisturbed.record.environment["torch"]
    assert set(as_trained) == {True}


def test_scores_of_other_weights_are_not_taken_up(
    tiny: list[str], undisturbed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The final checkpoint is damaged between two stages.

    The weights are trained again, and scored.
    """
    cell, runtime = undisturbed.cell, load(tiny)[1]
    directory = run_directory(runtime, "here", cell)
    assert run_cell(cell, runtime, "here", ["pretrain", "tune"]) is None
    final, _ = checkpoint_files(directory)
    final.write_bytes(final.read_bytes()[:-1])
    with is_refused(NOT_TRAINED):
        run_cell(cell, runtime, "here", ["final"])
    selected: list[int] = []
    select = Subject.select

    def counted(evaluator: Subject) -> list[Score]:
        selected.append(1)
        return select(evaluator)

    monkeypatch.setattr(Subject, "select", counted)
    record = finish(cell, runtime, "here")
    assert selected == [1]
    assert_same(record, undisturbed.record)
    assert there(record.checkpoint).file == checkpoint_files(directory)[0].name


def test_a_run_does_not_go_on_with_other_images(
    tiny: list[str],
    tiny_data_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nor are images that were prepared anew meanwhile scored for it."""
    data_dir = tmp_path / "data"
    shutil.copytree(tiny_data_dir, data_dir)
    cell, runtime = load([*tiny, f"runtime.data_dir={data_dir}"], "method=vicreg")
    manifest = Manifest.load(data_dir, cell.dataset)
    splits = manifest.splits | {"test": {**manifest.splits["test"], "content_sha256": "0" * 64}}
    other, score = replace(manifest, splits=splits), scoring.score

    def score_late(*arguments: Any) -> Any:
        other.save(data_dir)
        return score(*arguments)

    refusal = "was begun with other images of 'tiny': remove"
    monkeypatch.setattr(scoring, "score", score_late)
    with is_refused(refusal):
        run_cell(cell, runtime, "here", ("pretrain", "tune"))
    monkeypatch.undo()
    with is_refused(refusal):
        finish(cell, runtime, "here")
    manifest.save(data_dir)
    assert finish(cell, runtime, "here").status == "done"
    other.save(data_dir)
    directory = run_directory(runtime, "here", cell)
    assert evaluate_directory(directory, [f"runtime.data_dir={data_dir}"], ["retrieval"])
    assert not (directory / "evaluations").exists()
    assert "saw other images of tiny than these" in caplog.text


def test_a_failed_evaluation_does_not_train_again(
    tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell, runtime = load(tiny, "method=vicreg")
    directory = run_directory(runtime, "here", cell)

    def fail(*_: Any) -> list[Score]:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(LinearProbe, "run", fail)
        with pytest.raises(OSError, match="disk full"):
            finish(cell, runtime, "here")
    attempt = there(last_attempt(directory))
    assert (attempt["ended"], attempt["error"]) == ("failed", "OSError: disk full")
    checkpoint_ns = checkpoint_files(directory)[0].stat().st_mtime_ns
    with monkeypatch.context() as patch:
        # What the first attempt finished is not done again.
        patch.setattr(Subject, "select", fail)
        patch.setattr(KNN, "run", fail)
        record = finish(cell, runtime, "here")
    assert checkpoint_files(directory)[0].stat().st_mtime_ns == checkpoint_ns
    assert len(record.scores) == 8
    assert len(record.attempts) == 2


def test_a_kill_between_the_checkpoint_and_the_curve_loses_no_row(
    tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell, runtime = load(tiny, "method=vicreg")
    with monkeypatch.context() as patch:
        patch.setattr("regbench.benchmark.training.checkpoint_writer.write_metrics", interrupted)
        with pytest.raises(KeyboardInterrupt):
            finish(cell, runtime, "here")
    directory = run_directory(runtime, "here", cell)
    assert not numbered_files(directory, "metrics.jsonl")
    first = finish(cell, runtime, "here")
    assert [row["epoch"] for row in first.history] == [1, 2]
    (directory / there(first.metrics).file).unlink()
    (directory / "record.json").unlink()
    record = finish(cell, runtime, "here")
    assert record.history == first.history
    assert record.metrics
    curve = directory / record.metrics.file
    assert record.metrics.sha256 == hashlib.sha256(curve.read_bytes()).hexdigest()


def test_a_seed_decides_a_run_and_another_gives_another(tiny: list[str], undisturbed: Run) -> None:
    """Whatever a step draws, from any generator, is of the seed and the step."""
    runs = []
    for seed in (0, 1):
        cell, runtime = load(tiny, "method=sigreg", *SHORT[1:], f"seed={seed}")
        with pytest.MonkeyPatch.context() as patch:
            drawn = drawing(patch)
            runs.append((finish(cell, runtime, "here"), drawn))
    (_, again), (other, others) = runs
    assert again == undisturbed.drawn[:3]
    assert other.history[0]["loss"] != undisturbed.record.history[0]["loss"]
    for numbers_of_a_generator in zip(*undisturbed.drawn, *others, strict=True):
        assert len(set(numbers_of_a_generator)) == 9 + 3


def test_micro_batches_train(tiny: list[str]) -> None:
    """BN sees parts of the batch, so the numbers differ, but not by much.

    And it is another cell.
    """
    whole, runtime = load(tiny, *SHORT, "precision=fp32")
    parts = replace(whole, micro_batch_size=16)
    assert whole.id != parts.id
    losses = [finish(cell, runtime, "here").history[-1]["loss"] for cell in (whole, parts)]
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.1)


@pytest.mark.slow
def test_a_compiled_network_trains_as_the_plain_one(tiny: list[str]) -> None:
    records = []
    for compiled in ("false", "true"):
        cell, runtime = load(tiny, "method=vicreg", "precision=fp32", f"runtime.compile={compiled}")
        records.append(finish(cell, runtime, compiled))
    assert records[0].cell_id == records[1].cell_id
    plain, compiled_ = ([row["loss"] for row in record.history] for record in records)
    assert compiled_ == pytest.approx(plain, rel=1e-3)


@pytest.fixture(scope="module")
def untrained(shared: list[str]) -> Run:
    """A run without training in a directory in which killed attempts and others left files."""
    cell, runtime = load(shared, *UNTRAINED)
    directory = run_directory(runtime, "untrained", cell)
    (directory / "attempts").mkdir(parents=True)
    (directory / "config.yaml").write_text("seed: 3\n")
    ended = {"ended": None, "heartbeat": 0.0, "beat": 3, "lease_s": 60}
    (directory / "attempts" / "0004.json").write_text(json.dumps(ended))
    for name in (*EARLIER, *OTHERS):
        (directory / name).touch()
    return Run(cell, runtime, finish(cell, runtime, "untrained"), directory)


EARLIER = (
    *(".checkpoint-0003-000000005.pt.x_1", ".evaluation-probe-0004-000000001.pt.y"),
    ".metrics-0004.jsonl.z",
)
OTHERS = (".nfs0123456789", ".record.json.w")


def test_the_untrained_network_has_scores_and_no_history(untrained: Run) -> None:
    record = untrained.record
    assert (record.label, record.metrics, record.status) == ("untrained", None, "done")
    assert len(record.scores) == 8
    for key in ("img_per_s", "step_ms", "loss_ms", "peak_memory_bytes"):
        assert getattr(record.cost, key) is None


def test_a_config_that_is_not_the_cells_is_mended(untrained: Run) -> None:
    assert load_config(untrained.directory / "config.yaml")[0] == untrained.cell


def test_what_killed_attempts_left_goes_and_what_others_write_stays(untrained: Run) -> None:
    directory = untrained.directory
    assert sorted(path.name for path in directory.glob(".*")) == sorted(OTHERS)
    later = (".checkpoint-0006-000000005.pt.x", ".metrics-0005.jsonl.z")
    for name in (*EARLIER, *later):
        (directory / name).touch()
    remove_earlier_leftovers(directory, 5)  # as a process does that was stopped just before
    assert sorted(path.name for path in directory.glob(".*")) == sorted([*OTHERS, *later])


# ------------------------------------------------------------------ divergence and refusals


def test_a_collapsed_run_ends_as_diverged(tiny: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    cell, runtime = load(tiny, "method=vicreg", "epochs=2", "optimizer.warmup_epochs=1")
    monkeypatch.setattr(journal, "COLLAPSED_SPREAD", 1.1)
    record = finish(cell, runtime, "collapsed")
    assert (record.status, record.scores) == ("diverged", ())
    what = record.diverged or {}
    # Not in the first epoch, in which the rate still rises.
    assert (what["epoch"], what["step"]) == (2, 6)
    assert "collapsed" in what["reason"]
    assert what["last_good"]["step"] == 3
    assert record.choice == {}
    (epoch,) = record.history
    assert record.cost.img_per_s == pytest.approx(epoch["images"] / epoch["epoch_s"], rel=1e-5)
    # A report has to know that a tuning chose it.
    how = dict(GIVEN) | {"selected_on": "tuning", "sha256": "0" * 64}
    chosen = run_cell(cell, runtime, "chosen", how_chosen=how)
    assert there(chosen).choice == {"hyperparameters": how}


def test_a_loss_that_is_not_finite_ends_the_run_as_diverged(
    tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "LOGGING_STEPS", 2)
    exploding = ("optimizer.base_lr=1e30", "batch_size=12", "epochs=4")
    cell, runtime = load(tiny, "method=vicreg", *exploding)
    record = finish(cell, runtime, "here")
    assert (record.status, record.scores, record.metrics) == ("diverged", (), None)
    what = record.diverged or {}
    assert "not finite" in what["reason"]
    # The first step's rate is 0, so the second still sees good weights; the loop looks at the loss
    # after every second.
    assert (what["epoch"], what["step"], what["last_good"]["step"]) == (1, 3, 2)
    assert math.isfinite(what["last_good"]["loss"])
    assert (record.cost.train_s or 0) > 0
    # Time counts though the loss is looked at for the first time.
    monkeypatch.setattr(loop, "LOGGING_STEPS", 50)
    assert (finish(cell, runtime, "unseen").cost.train_s or 0) > 0
    assert finish(cell, runtime, "here").sha256 == record.sha256  # a result: not tried again


EXPLODING = (
    *("optimizer=sgd", "optimizer.base_lr=1e30", "optimizer.warmup_epochs=0"),
    *("epochs=1", "precision=fp32"),
)
STUDENT = ("network.predictor.depth=2", "network.teacher=stop_gradient")
TAUGHT = ("network.predictor.depth=2", "network.teacher=ema")


@pytest.mark.parametrize(
    "settings",
    [
        *((f"method={name}",) for name in ("mec", "frossl", "kcl_riesz", "rdmreg")),
        *((f"method={name}",) for name in ("corinfomax", "w_mse", "mmcr")),
        ("method=simsiam", *STUDENT),
        ("method=swav", STUDENT[1]),
        ("method=byol", *TAUGHT),
        ("method=dino", TAUGHT[1]),
        ("method=tico", "method.covariance_momentum=0.9", *TAUGHT),
        ("baseline=supcon",),
        ("method=vicreg", "optimizer=sgd", "optimizer.base_lr=1e308"),
        ("method=vicreg", "optimizer=adamw", "optimizer.base_lr=1e308"),
        ("method=vicreg", "optimizer=lars", "optimizer.base_lr=1e308"),
    ],
    ids=" ".join,
)
def test_weights_that_explode_end_the_run_as_diverged(
    tiny: list[str], settings: tuple[str, ...]
) -> None:
    """Whether the loss sees it, a factorisation in it fails, or the optimizer cannot write the
    rate down.
    """
    record = finish(*load(tiny, *EXPLODING, *settings), "here")
    assert (record.status, record.scores) == ("diverged", ())
    assert re.search("not finite|cannot be computed", (record.diverged or {})["reason"])


def test_a_loss_that_hides_or_fails_at_broken_embeddings_ends_the_run_as_diverged(
    tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named is the first step whose loss is not finite, though the run ends in a later one."""
    cell, runtime = load(tiny, *EXPLODING, "method=mec")
    broken: list[bool] = []

    def hide(self: Regularizer, z1: Tensor, z2: Tensor) -> dict[str, Tensor]:
        return {"alignment": (z1 - z2).nan_to_num(0, 0, 0).square().mean()}

    def fail_at_the_second(self: Regularizer, z1: Tensor, z2: Tensor) -> dict[str, Tensor]:
        broken.append(not z1.isfinite().all())
        if sum(broken) > 1:
            torch.linalg.cholesky(-torch.eye(2))
        return {"alignment": (z1 - z2).square().mean()}

    hidden = (hide, 3, "the embeddings are not finite")
    for terms, step, reason in (hidden, (fail_at_the_second, 2, "the loss is not")):
        monkeypatch.setattr(type(cell.method), "terms", terms)
        record = finish(cell, runtime, terms.__name__)
        what = record.diverged or {}
        assert (what["step"], what["reason"][: len(reason)]) == (step, reason)
        assert there(record.cost.train_s) > 0


def test_addends_may_come_and_go(tiny: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    cell, runtime = load(tiny, *SHORT, "method=mec")
    calls = itertools.count()

    def terms(self: Regularizer, z1: Tensor, z2: Tensor) -> dict[str, Tensor]:
        found = {"alignment": (z1 - z2).square().mean()}
        return found | ({"late": found["alignment"]} if next(calls) % 2 else {})

    monkeypatch.setattr(type(cell.method), "terms", terms)
    (row,) = finish(cell, runtime, "here").history
    assert 0 < row["terms"]["late"] < row["terms"]["alignment"]
    assert row["loss"] == pytest.approx(sum(row["terms"].values()), rel=1e-5)


@pytest.mark.parametrize("watched", ["", "evaluation.while_training=[knn]"])
def test_representations_that_are_not_finite_end_the_run_as_diverged(
    tiny: list[str], monkeypatch: pytest.MonkeyPatch, watched: str
) -> None:
    """Weights may explode while the loss and normalised embeddings stay finite.

    KNN would call each image right.
    """
    represent = Encoder.represent

    def exploded(encoder: Encoder, x_NCHW: torch.Tensor) -> torch.Tensor:
        found = represent(encoder, x_NCHW)
        return torch.cat([found[:-1], found[-1:] * math.inf])

    monkeypatch.setattr(Encoder, "represent", exploded)
    settings = [*SHORT[:1], "epochs=2", "optimizer.warmup_epochs=0", *filter(None, [watched])]
    record = finish(*load(tiny, *settings), "here")
    assert (record.status, record.scores) == ("diverged", ())
    what = record.diverged or {}
    reason = r"the representations of the (train|tuning) split are not finite in length"
    assert re.match(reason, what["reason"])
    assert (what["epoch"], what["step"]) == ((1, 3) if watched else (2, 6))
    # Nothing has trained that could diverge.
    with is_refused("are not finite"):
        finish(*load(tiny, "method=vicreg", *UNTRAINED), "untrained")


def test_what_cannot_be_run_is_refused_before_training(tiny: list[str], tmp_path: Path) -> None:
    larger = "is larger than the 120 training images"
    for override, message in (
        ("batch_size=4096", f"batch size 4096 {larger}; choose at most 120"),
        ("dataset.name=nowhere", "data set 'nowhere' is not prepared.*regbench prepare"),
        ("dataset.source.train_per_class=39", "was prepared with"),
        ("evaluation.knn.k=121", f"evaluation.knn.k=121 {larger}"),
        ("evaluation.knn.other_k=[3,121]", f"evaluation.knn.other_k=121 {larger}"),
        ("runtime.loss_form=covariance", "SimCLR has no covariance form; it has textbook, gram"),
    ):
        with is_refused(message):
            finish(*load(tiny, "method=simclr", *SHORT[1:], override), "here")
    assert not list((tmp_path / "runs").rglob("metrics*.jsonl"))


def test_several_learning_rates_need_a_tuning_split(
    tiny: list[str], tiny_source: Path, tmp_path: Path
) -> None:
    """Refused before the training, since the choice would be made on the test split.

    One rate is no choice.
    """
    untuned = ("dataset.source.tuning_per_class=null", f"runtime.data_dir={tmp_path}")
    settings = (*untuned, *UNTRAINED)
    cell, runtime = load(tiny, *settings)
    prepare(cell.dataset, tmp_path, source_dir=tiny_source)
    with is_refused(r"no tuning split.*evaluation\.probe\.learning_rates=\["):
        finish(cell, runtime, "here")
    cell, runtime = load(tiny, *settings, "evaluation.probe.learning_rates=[0.5]")
    scores = finish(cell, runtime, "here").scores
    assert {score.split for score in scores} == {"test"}
    assert not any("chosen" in score.protocol for score in scores)


RANK_OF_TWO = {"RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
RANK_OF_TWO |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}


def test_cuda_is_refused_where_there_is_none(tiny: list[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    cell, runtime = load(tiny, "runtime.device=cuda")
    with is_refused(r"runtime\.device=cpu"):
        finish(cell, runtime, "here")


def test_a_network_over_several_gpus_is_not_compiled(
    tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name, value in RANK_OF_TWO.items():
        monkeypatch.setenv(name, value)
    with is_refused(r"stops at each BN layer"):
        resolve(load(tiny, "runtime.device=cuda", "runtime.compile=true")[1])


def test_one_process_at_a_time_works_on_a_cell(
    tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second waits for the first and takes its record."""
    cell, runtime = load(tiny, "method=vicreg", "epochs=0", "optimizer.warmup_epochs=0")
    directory = run_directory(runtime, "here", cell)
    inside, go_on = threading.Event(), threading.Event()
    train_once = train
    entered: list[int] = []

    def slow(*args: Any) -> Trained:
        entered.append(1)
        inside.set()
        go_on.wait(PATIENCE_S)
        return train_once(*args)

    monkeypatch.setattr(run_module, "train", slow)
    records: list[Record] = []
    first, second = (
        threading.Thread(target=lambda: records.append(finish(cell, runtime, "here"))) for _ in "ab"
    )
    assert not is_running(last_attempt(directory))
    first.start()
    assert inside.wait(PATIENCE_S)
    assert is_running(last_attempt(directory))
    second.start()
    second.join(0.3)
    assert second.is_alive()
    go_on.set()
    first.join(PATIENCE_S)
    second.join(PATIENCE_S)
    assert not is_running(last_attempt(directory))
    assert len(entered) == 1
    assert records[0].sha256 == records[1].sha256
    assert len(records[0].attempts) == 1


def test_float32_is_that_of_ieee_754(tiny: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """By torch's default the convolutions of a run in fp32, and of every evaluation, would be
    in TF32 on a GPU.
    """
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    torch.backends.cuda.matmul.allow_tf32 = True
    assert environment(torch.device("cpu"))["tf32"] is True
    resolve(load(tiny)[1])
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32
    # What torch has beside these settings, which a script may have changed.
    for module in (torch.backends, torch.backends.cudnn):
        module.fp32_precision = "tf32"  # type: ignore[attr-defined]
        torch.set_float32_matmul_precision("medium")  # bf16, on a CPU too
        resolve(load(tiny)[1])
        assert environment(torch.device("cpu"))["tf32"] is False
        convolutions = torch.backends.cudnn.conv  # type: ignore[attr-defined]
        assert convolutions.fp32_precision == "ieee"
        assert torch.get_float32_matmul_precision() == "highest"


def test_peaks_of_memory_on_a_gpu_and_on_a_cpu_are_not_compared(
    tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run begins on a CPU and goes on on a GPU: that of its process is more than the
    allocator's.
    """
    cell, runtime = load(tiny, *SHORT, "epochs=2")
    for kind, size_bytes in (("process RSS", 2000), ("CUDA allocated", 1000)):
        monkeypatch.setattr(PeakMemory, "kind", kind)
        for read in ("read_bytes", "read_reserved_bytes"):
            monkeypatch.setattr(PeakMemory, read, lambda _, size=size_bytes: size)
        if kind == "process RSS":
            interrupt_run(cell, runtime, signal_at(2))
    cost = finish(cell, runtime, "disturbed").cost
    assert (cost.peak_memory_bytes, cost.peak_memory_kind) == (1000, "CUDA allocated")
    assert cost.peak_reserved_bytes == 1000


def test_threads_of_a_run_on_a_cpu(tiny: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    ranks, two = RANK_OF_TWO, {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    alone = {"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    job = {"SLURM_JOB_ID": "7"}
    step = job | {"SLURM_CPUS_PER_TASK": "6", "SLURM_NNODES": "1"}
    four = two | {"WORLD_SIZE": "4", "SLURM_NTASKS": "4", "SLURM_NNODES": "2"}
    runtime = load(tiny)[1]
    for surroundings, threads, expected in (
        (alone, 0, 1),  # other work may share the cores
        (alone | job, 0, 6),  # they are the job's
        (two | job, 0, 3),
        # The affinity of a task is its own: it is not divided again.
        (step | two | {"SLURM_NTASKS": "2"}, 0, 6),
        (step | four, 0, 6),
        # torchrun in one task has processes that share it, and a task may have less than it sees.
        (step | two | {"SLURM_NTASKS": "1"}, 0, 3),
        (alone | step | {"SLURM_NTASKS": "1", "SLURM_CPUS_PER_TASK": "4"}, 0, 4),
        (alone, 5, 5),
        (alone | job, 5, 5),
    ):
        with monkeypatch.context() as patch:
            for name in ("SLURM_JOB_ID", "SLURM_CPUS_PER_TASK", "SLURM_NTASKS", "SLURM_NNODES"):
                patch.delenv(name, raising=False)
            for name, value in {**ranks, **surroundings}.items():
                patch.setenv(name, value)
            resolve(replace(runtime, threads=threads))
        assert torch.get_num_threads() == expected


def test_loaders_beside_a_gpu_have_the_cpus_of_their_process(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_NTASKS", "SLURM_NNODES"):
        monkeypatch.delenv(name, raising=False)
    runtime = load(tiny)[1]
    assert (resolve(runtime).workers, resolve(replace(runtime, workers=5)).workers) == (1, 5)
    assert [default_workers("cuda:0", processes) for processes in (1, 2, 4, 9)] == [6, 3, 1, 1]
    # A container's quota, and that of a group above it.
    (tmp_path / "own").write_text("0::/pod/box\n")
    (tmp_path / "groups" / "pod" / "box").mkdir(parents=True)
    assert usable_cpus(tmp_path / "groups", tmp_path / "own") == 6
    quotas = (("pod", "max", 6), ("pod/box", "450000", 4), ("pod", "50000", 1))
    for folder, quota, expected in quotas:
        (tmp_path / "groups" / folder / "cpu.max").write_text(f"{quota} 100000\n")
        assert usable_cpus(tmp_path / "groups", tmp_path / "own") == expected
    assert usable_cpus(tmp_path / "none", tmp_path / "none") == 6
