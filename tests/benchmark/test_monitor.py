"""Evaluation while training: it measures each epoch's weights, changes nothing else, and is
exact on resumption.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

from regbench.benchmark.evaluate import linear
from regbench.benchmark.evaluate.features import Encoder
from regbench.benchmark.evaluate.knn import KNN
from regbench.benchmark.evaluate.linear import LinearProbe
from regbench.benchmark.evaluate.state import State
from regbench.benchmark.evaluate.subject import Subject
from regbench.benchmark.machine.compute import resolve
from regbench.benchmark.run import run_cell
from regbench.benchmark.rundir.checkpoint import load_checkpoint, read_tensors
from regbench.benchmark.rundir.choice import Choices
from regbench.benchmark.rundir.directory import checkpoint_files, run_directory, tensor_files
from regbench.benchmark.rundir.interruption import Interrupted
from regbench.benchmark.rundir.lease import Attempt
from regbench.benchmark.rundir.record import Record, Score, read_record
from regbench.benchmark.settings.sweep import load_run
from regbench.benchmark.training import journal
from regbench.benchmark.training.assembly import build_network
from regbench.datasets.stored.prepare import prepare
from regbench.sweeps.status import cell_status, plan_of
from tests.benchmark.steps import Interrupt, before_steps, interrupt_run, kill_while_it_writes
from tests.history import assert_same
from tests.ranks import launch
from tests.refusals import is_refused
from tests.there import there
from tests.waiting import PATIENCE_S

# A method that draws random numbers; accuracies of 36 images move with every epoch.
WATCHED = ("method=sigreg", "epochs=3", "evaluation.probe.learning_rates=[0.1,1.0]")
BOTH = "evaluation.while_training=[knn,probe]"


def finish(overrides: list[str], sweep: str) -> tuple[Record, Path]:
    cell, runtime = load_run(overrides)
    record = there(run_cell(cell, runtime, sweep))
    return record, run_directory(runtime, sweep, cell)


def curve(record: Record) -> dict[int, dict[str, float]]:
    """Epoch -> the scores that were measured after it."""
    found = {}
    for row in record.history:
        if "scores" in row:
            found[row["epoch"]] = {score["name"]: score["value"] for score in row["scores"]}
    return found


@pytest.fixture(scope="module")
def watched(shared: list[str]) -> tuple[Record, Path]:
    """An undisturbed run with curves.

    Its evaluations leave nothing behind that is there before the next step.
    """
    overrides = [*shared, *WATCHED, BOTH]
    cell, runtime = load_run(overrides)
    directory = run_directory(runtime, "watched", cell)
    with pytest.MonkeyPatch.context() as patch:
        before_steps(patch, lambda _: _nothing_left(directory))
        return finish(overrides, "watched")


def _nothing_left(directory: Path) -> None:
    assert not list(directory.glob("choice-*.json"))  # which would open the test split
    assert tensor_files(directory, "evaluation-*") == []


def test_it_changes_nothing_of_a_training(shared: list[str], watched: tuple[Record, Path]) -> None:
    """The weights, the statistics of BN and all scores are those of the same cell without
    curves, to the bit.
    """
    record, _ = finish([*shared, *WATCHED], "plain")
    assert curve(record) == {}
    assert record.cost.monitor_s is None
    assert (watched[0].cost.monitor_s or 0) > 0
    assert_same(record, watched[0], curves=False)


def test_each_epoch_is_scored_with_its_own_weights(
    shared: list[str],
    watched: tuple[Record, Path],
    tmp_path: Path,
    claimed: Callable[[Path], Attempt],
) -> None:
    """The last as the run's final evaluation on that split, the one before it as its checkpoint
    evaluated alone.
    """
    record, directory = watched
    scores = curve(record)
    names = ("knn_top1", "linear_top1")
    assert scores[3] == {name: record.score(name, "tuning") for name in names}
    cell, runtime = load_run([*shared, *WATCHED, BOTH])
    _, second = tensor_files(directory, "checkpoint")
    network = build_network(cell, torch.device("cpu"), read_tensors(second)[0])
    encoder = Encoder(network.backbone, network.representation_dim)
    config = cell.evaluation.replaced(select_by=("knn", "probe"))
    settings = config, cell.dataset, cell.augmentation
    choices = Choices(claimed(tmp_path / "alone"))
    subject = Subject(*settings, encoder, resolve(runtime), choices, cell.seed)
    alone = {score.name: score.value for score in subject.select()}
    assert scores[2] == {name: alone[name] for name in names}
    assert scores[1] != scores[2] != scores[3]


def test_every_few_epochs_and_after_the_last(
    tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A score may be a number of NumPy's, which a checkpoint must not hold."""
    select = KNN.select

    def of_numpy(self: KNN, name: str, subject: Subject) -> list[Score]:
        found = select(self, name, subject)
        return [replace(score, value=np.float64(score.value)) for score in found]

    monkeypatch.setattr(KNN, "select", of_numpy)
    watched = ("evaluation.while_training=[knn]", "evaluation.every_epochs=2")
    every = ("method=vicreg", "epochs=5", *watched)
    record, directory = finish([*tiny, *every], "here")
    assert list(curve(record)) == [2, 4, 5]
    assert load_checkpoint(directory) is not None
    untrained, _ = finish([*tiny, *every, "epochs=0", "optimizer.warmup_epochs=0"], "here")
    assert untrained.history == []


# ------------------------------------------------------------------ interruptions


def in_call(number: int, of: Any, name: str, act: Callable[[], None]) -> Interrupt:
    """What replaces a method or function by one that acts first in its n-th call."""

    def patch_it(patch: pytest.MonkeyPatch) -> None:
        function, numbers = getattr(of, name), itertools.count(1)

        def acting(*arguments: Any, **options: Any) -> Any:
            if next(numbers) == number:
                act()
            return function(*arguments, **options)

        patch.setattr(of, name, acting)

    return patch_it


def killed() -> NoReturn:
    raise KeyboardInterrupt


def told() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


def in_a_probe(patch: pytest.MonkeyPatch) -> None:
    """A signal after the second probe's first epoch was kept."""
    patch.setattr("regbench.benchmark.evaluate.state.SAVE_EVERY_S", 0.0)
    save = State.save

    def telling(self: State, done: str, **options: Any) -> None:
        save(self, done, **options)
        if self.data["epoch"] == 1 and next(numbers) == 2:
            told()

    numbers = itertools.count(1)
    patch.setattr(State, "save", telling)


at_the_second_end = in_call(2, journal, "spread_metrics", told)
# How it is interrupted, the step of the last checkpoint, and the epochs that have scores there.
INTERRUPTIONS: dict[str, tuple[Interrupt, int, list[int]]] = {
    "killed in an evaluation": (in_call(2, KNN, "select", killed), 3, [1]),
    # the second one, after the second evaluation
    "killed before its checkpoint": (partial(kill_while_it_writes, checkpoint=2), 3, [1]),
    "killed with few checkpoints": (in_call(3, LinearProbe, "select", killed), 6, [1, 2]),
    "told by a signal just before an evaluation": (at_the_second_end, 6, [1]),
    "told by a signal in an evaluation": (in_call(2, KNN, "select", told), 6, [1]),
    "told by a signal in an epoch's second": (in_call(2, LinearProbe, "select", told), 6, [1]),
    "told by a signal in a probe's second epoch": (in_a_probe, 6, [1]),
    "told by a signal in the last evaluation": (in_call(3, KNN, "select", told), 9, [1, 2]),
}
EVERY = {"killed with few checkpoints": 2, "told by a signal in the last evaluation": 100}


@pytest.mark.parametrize("how", INTERRUPTIONS)
def test_an_interrupted_run_has_the_curve_of_an_undisturbed_one(
    how: str, tiny: list[str], watched: tuple[Record, Path]
) -> None:
    """It has three epochs of three steps, each of which is evaluated."""
    interrupt, step, scored = INTERRUPTIONS[how]
    every = f"runtime.checkpoint_epochs={EVERY.get(how, 1)}"
    cell, runtime = load_run([*tiny, *WATCHED, BOTH, every])
    kind = Interrupted if "signal" in how else KeyboardInterrupt
    directory = interrupt_run(cell, runtime, interrupt, kind)
    loaded = there(load_checkpoint(directory))
    history = loaded[0]["progress"]["history"]
    assert (loaded[1].step, [row["epoch"] for row in history if "scores" in row]) == (step, scored)
    with pytest.MonkeyPatch.context() as patch:
        probed = _counted_epochs(patch)
        if "last" in how:  # the stages that follow the training have to wait for the evaluation
            with is_refused("not trained to the end; run the stage pretrain first"):
                run_cell(cell, runtime, "disturbed", ["tune"])
            assert run_cell(cell, runtime, "disturbed", ["pretrain"]) is None
            record = run_cell(cell, runtime, "disturbed", ["tune", "final"])
        else:
            record = run_cell(cell, runtime, "disturbed")
    assert record is not None
    if "probe's" in how:  # the epoch that was kept is not trained again
        assert probed[:3] == [1, 2, 0]
    assert_same(record, watched[0])
    assert not tensor_files(directory, "evaluation-*")


def test_an_evaluation_stopped_twice_leaves_the_checkpoint_it_began_with(tiny: list[str]) -> None:
    cell, runtime = load_run([*tiny, *WATCHED, BOTH])
    directory = interrupt_run(cell, runtime, in_call(2, KNN, "select", told))
    before = checkpoint_files(directory)
    interrupt_run(cell, runtime, in_call(1, KNN, "select", told))
    assert checkpoint_files(directory) == before


def _counted_epochs(patch: pytest.MonkeyPatch) -> list[int]:
    """Write down the epochs of probes that are trained from now on."""
    epochs: list[int] = []
    shuffled = linear.shuffled

    def counted(*arguments: Any) -> Any:
        epochs.append(arguments[-1])
        return shuffled(*arguments)

    patch.setattr(linear, "shuffled", counted)
    return epochs


# ------------------------------------------------------------------ several processes

RANKS = """
import itertools, json, logging, os, signal, sys
import torch
import torch.distributed as dist
from regbench import RegbenchError
from regbench.benchmark.evaluate.knn import KNN
from regbench.benchmark.rundir.interruption import Interrupted, Interruption
from regbench.benchmark.run import run_cell
from regbench.benchmark.settings.sweep import load_run
select, rank = KNN.select, os.environ["RANK"]
def acting(self, *arguments):
    assert rank == "0"
    if (number := next(numbers)) == 2 and name == "failing":
        raise OSError("disk full")
    if number == 2 and name == "stopped":
        os.kill(os.getpid(), signal.SIGUSR1)
    return select(self, *arguments)
KNN.select = acting
for name, overrides in json.loads(sys.argv[1]).items():
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)  # the first rank may still hold the last
    cell, runtime = load_run(overrides)
    interruption, numbers = Interruption(), itertools.count(1)
    try:
        with interruption.listening(signal.SIGUSR1):
            run_cell(cell, runtime, name, interruption=interruption)
    except (Interrupted, RegbenchError, OSError) as error:
        print(name, error)
"""


@pytest.mark.slow
def test_the_first_of_several_processes_evaluates_and_the_others_wait(tiny: list[str]) -> None:
    cases = {name: [*tiny, "method=vicreg", BOTH] for name in ("whole", "stopped", "failing")}
    told_by_rank = []
    for process in launch(2, RANKS, json.dumps(cases)):
        assert process.returncode == 0, process.stderr
        told_by_rank.append(dict(line.split(" ", 1) for line in process.stdout.splitlines()))
    first, second = told_by_rank
    assert first == {"stopped": "interrupted by SIGUSR1", "failing": "disk full"}
    assert second.keys() == first.keys()
    assert second["stopped"] == "interrupted by SIGUSR1"
    # The first may be gone before it can be asked.
    lost = ("rank 0: OSError: disk full", "another process of the run is gone")
    assert second["failing"].startswith(lost)
    cell, runtime = load_run(cases["whole"])
    whole = there(read_record(run_directory(runtime, "whole", cell)))
    scores = curve(whole)
    assert list(scores) == [1, 2]
    assert scores[2] == {name: whole.score(name, "tuning") for name in ("knn_top1", "linear_top1")}
    for name, step in (("stopped", 6), ("failing", 3)):
        resumed, _ = finish(cases[name], name)
        assert [attempt.from_step for attempt in resumed.attempts] == [None, step]
        assert list(curve(resumed)) == [1, 2]


# ------------------------------------------------------------------ what is shown meanwhile


def test_the_status_says_what_is_going_on(tiny: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = [*tiny, "method=vicreg", "evaluation.while_training=[knn]", "runtime.lease_s=0.3"]
    cell, runtime = load_run(overrides)
    directory = run_directory(runtime, "here", cell)
    seen: list[tuple[str, int, str]] = []

    def look() -> None:
        for _ in range(int(PATIENCE_S / 0.05)):
            status = cell_status(directory, plan_of(cell))
            if status.detail:
                break
            time.sleep(0.05)
        seen.append((status.state, status.epochs_done, status.detail))

    in_call(1, KNN, "select", look)(monkeypatch)
    finish(overrides, "here")
    assert seen == [("running", 1, "knn after epoch 1")]


# ------------------------------------------------------------------ settings and refusals


def test_without_a_split_to_evaluate_on_it_is_refused_or_marked(
    tiny: list[str], tiny_source: Path, tmp_path: Path
) -> None:
    """Before the training.

    With `select_on=test` all scores of the run count as chosen on the test split.
    """
    settings = (
        *("dataset.source.tuning_per_class=null", f"runtime.data_dir={tmp_path}", "method=vicreg"),
        *("evaluation.while_training=[knn]", "evaluation.protocols=[knn]"),
    )
    cell, runtime = load_run([*tiny, *settings])
    prepare(cell.dataset, tmp_path, source_dir=tiny_source)
    with is_refused(r"while_training=\[knn\]: data set 'tiny' has no tuning split to evaluate knn"):
        run_cell(cell, runtime, "here")
    assert not checkpoint_files(run_directory(runtime, "here", cell))
    record, _ = finish([*tiny, *settings, "evaluation.select_on=test"], "here")
    assert {score["split"] for row in record.history for score in row["scores"]} == {"test"}
    assert curve(record)[2] == {"knn_top1": record.score("knn_top1", "test")}
    assert record.on_test
    assert record.choice["hyperparameters"]["selected_on"] == "test"
