"""A kill at any operation on files: the same command goes on, and what it leaves is that of an
undisturbed one.

Each kill is of a process of its own, forked from one that has imported what commands need. A slow
test has some of the operations of each command, `make test-all` every one.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from regbench.benchmark.rundir.checkpoint import read_saved
from regbench.benchmark.rundir.record import Record
from regbench.cli import main
from regbench.processes import Worker
from regbench.sweeps import local
from tests.conftest import TINY, striped
from tests.history import untimed
from tests.waiting import PATIENCE_S

FORKED = multiprocessing.get_context("forkserver")
OURS = ("benchmark.run", "reports.bundle.recompute", "reports.bundle.pack", "reports.page.page")
PRELOADED = [f"regbench.{name}" for name in (*OURS, "sweeps.local", "sweeps.run")]
PRELOADED += ["pyarrow.csv", "pyarrow.parquet", "scipy.optimize", "torchvision.models"]
FORKED.set_forkserver_preload(["tests.test_kills", *PRELOADED])

SETTINGS = (
    *TINY,
    *("dataset.source.train_per_class=8", "dataset.source.tuning_per_class=4", "batch_size=12"),
    *("evaluation.probe.epochs=1", "evaluation.probe.learning_rates=[0.5]"),
    "runtime.lease_s=3600",  # no heartbeat comes, so that operations have the same numbers in each run
)
OF_DATA = [setting for setting in SETTINGS if setting.startswith("dataset.")]
ROWS = {
    "pair": ["method=vicreg,simclr"],
    "search": [
        "method=tcr optimizer.base_lr=1 epochs=4 evaluation.protocols=[knn] "
        "runtime.checkpoint_epochs=100"
    ],
}
# Each with the command in whose folder it begins, and its words.
COMMANDS = {
    "prepare": ("", "prepare imagefolder --source-dir images " + " ".join(OF_DATA)),
    "train": ("prepare", "train " + " ".join(SETTINGS) + " method=sigreg epochs=4"),
    "evaluate": (
        "train",
        "evaluate RUN --only measures,retrieval runtime.data_dir=data runtime.loader=torchvision",
    ),
    "sweep": ("prepare", "sweep pair.yaml"),
    "tune": ("prepare", "tune search.yaml --trials 3"),
    "report": ("sweep", "report pair"),
    "submit": ("sweep", "submit pair --out bundles/pair.tar.xz"),
    "leaderboard": ("submit", "leaderboard bundles --out site"),
}


class Here(Worker):
    """Calls its jobs in this process, so that they are killed with it."""

    def begin(self, folder: Path, job: Callable[..., None], *arguments: Any) -> None:
        job(*arguments)


class Operations:
    """What this process does with the files of a folder; it is killed just before one of these
    operations.

    Of a file that is written to and is not on the disk yet, half is there then.
    """

    def __init__(self, folder: Path, killed_at: int | None) -> None:
        self.folder, self.killed_at = folder, killed_at
        self.done: list[str] = []
        self.unsynced = Path()
        fsync = os.fsync

        def synced(handle: int) -> None:
            self.comes("fsync", Path(f"/proc/self/fd/{handle}").readlink())
            fsync(handle)
            self.unsynced = Path()

        pytest.MonkeyPatch().setattr(os, "fsync", synced)
        sys.addaudithook(self.hear)

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | Path):
            if arguments[2] & (os.O_WRONLY | os.O_RDWR):
                self.unsynced = Path(arguments[0]).absolute()
        elif event in ("os.rename", "os.link"):
            self.comes(event, Path(arguments[1]))
        elif event in ("os.remove", "os.rmdir") and os.path.lexists(arguments[0]):
            self.comes(event, Path(arguments[0]))

    def comes(self, event: str, path: Path) -> None:
        if self.folder not in path.absolute().parents:
            return
        if len(self.done) == self.killed_at:
            if self.folder in self.unsynced.parents and self.unsynced.is_file():
                os.truncate(self.unsynced, self.unsynced.stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        self.done.append(f"{event} {path.absolute().relative_to(self.folder)}")


def perform(folder: Path, words: str, killed_at: int | None) -> None:
    """Give a command, and note what it does with files beside its folder."""
    os.chdir(folder)
    said = os.open("../said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(said, stream.fileno())
    patch = pytest.MonkeyPatch()
    patch.setattr(local, "Worker", Here)
    patch.setattr(local, "POLL_S", 0.0)
    patch.setattr(tempfile, "tempdir", tempfile.mkdtemp(dir=folder.parent))
    operations = Operations(folder, killed_at)
    try:
        main(words.split(), prog_name="regbench")
    finally:
        Path("../operations").write_text(json.dumps(operations.done))


def begin(
    folder: Path, command: str, killed_at: int | None = None, count: int = 1
) -> set[int | None]:
    """Give a command in a process of its own, or in several at once; return their exit codes."""
    words = COMMANDS[command][1]
    for path in folder.glob("runs/manual/*/record.json"):
        words = words.replace("RUN", str(path.parent.relative_to(folder)))
    processes = []
    for _ in range(count):
        processes.append(FORKED.Process(target=perform, args=(folder, words, killed_at)))
        processes[-1].start()
    for process in processes:
        process.join(PATIENCE_S)
    return {process.exitcode for process in processes}


SELDOM_EQUAL = {"attempts", "checkpoint", "cost", "created"}
SELDOM_EQUAL |= {"finished", "metrics", "seconds", "sha256"}


def lasting(value: Any) -> Any:
    """Plain data without times, and digests of what holds times."""
    if isinstance(value, dict):
        return {key: lasting(each) for key, each in value.items() if key not in SELDOM_EQUAL}
    return [lasting(each) for each in value] if isinstance(value, list) else value


def content(path: Path) -> Any:
    """What any two runs agree on in a file."""
    if path.suffix != ".json":
        return hashlib.sha256(path.read_bytes()).hexdigest()
    found = lasting(json.loads(path.read_bytes()))
    if path.name in ("record.json", "tuning.json"):
        record = Record.read(path)
        assert record.checkpoint is not None
        state = read_saved(path.parent, record.checkpoint)
        weights = hashlib.sha256()
        for leaf in tree_leaves([state["network"], state["optimizer"]]):
            if torch.is_tensor(leaf):
                weights.update(leaf.numpy().tobytes())
        return found, untimed(record), weights.hexdigest()
    return found


# What each attempt has of its own, and temporary files of its killed writers, which nobody reads.
OF_ATTEMPTS = re.compile(r"attempts/|logs/|folder.txt|-\d{4}[-.]|runs/(.*/)?[.](?!.*[.]regbench$)")


def outcome(folder: Path) -> dict[str, Any]:
    """What any two runs of a command agree on: files and their contents, but for what each
    attempt has of its own.
    """
    found = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if not OF_ATTEMPTS.search(name):
            found[name] = content(path) if path.is_file() else ""
    return found


@dataclass
class Undisturbed:
    """How a command ends that nobody kills.

    Attributes:
        before: The folder that it began in.
        after: The folder that it left.
        operations: What it did with files there.
        outcome: What others are to agree with.
    """

    before: Path
    after: Path
    operations: list[str]
    outcome: dict[str, Any]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Undisturbed]:
    """Runs a command, and those before it, once."""
    start, known = tmp_path_factory.mktemp("start"), dict[str, Undisturbed]()
    striped(start / "images", "png", train=13, val=4)
    for name, rows in ROWS.items():
        sweep = {"description": "ours", "common": SETTINGS, "cells": rows}
        (start / f"{name}.yaml").write_text(json.dumps(sweep))

    def run(command: str) -> Undisturbed:
        if command not in known:
            former = COMMANDS[command][0]
            before = run(former).after if former else start
            after = tmp_path_factory.mktemp(command) / "folder"
            shutil.copytree(before, after)
            assert begin(after, command) == {0}, (after.parent / "said").read_text()
            operations = json.loads((after.parent / "operations").read_text())
            known[command] = Undisturbed(before, after, operations, outcome(after))
        return known[command]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("some", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_killed_command_goes_on(
    command: str, some: bool, undisturbed: Callable[[str], Undisturbed], tmp_path: Path
) -> None:
    """At five operations, from the first to the last, or at every one: killed just before it, it
    is given again.
    """
    found = undisturbed(command)
    last = len(found.operations) - 1
    for number in sorted({round(last * i / 4) for i in range(5)} if some else range(last + 1)):
        folder = tmp_path / str(number) / "folder"
        shutil.copytree(found.before, folder)
        where = f"{number}: {found.operations[number]}"
        assert begin(folder, command, number) == {-signal.SIGKILL}, where
        assert begin(folder, command) == {0}, (where, (folder.parent / "said").read_text())
        assert outcome(folder) == found.outcome, where
        shutil.rmtree(folder.parent)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_two_of_a_command_at_once_end_well_and_as_one(
    command: str, undisturbed: Callable[[str], Undisturbed], tmp_path: Path
) -> None:
    found, folder = undisturbed(command), tmp_path / "folder"
    shutil.copytree(found.before, folder)
    assert begin(folder, command, count=2) == {0}, (tmp_path / "said").read_text()
    assert outcome(folder) == found.outcome
