"""Damaged files of all kinds: each is refused in a line that names it, and whatever it does not
touch is still shown.

The damage is drawn from fixed seeds; a slow test goes over many more of them. The files are those
of the real writers.
"""

from __future__ import annotations

import os
import random
import shutil
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import Result

from regbench import RegbenchError
from regbench.benchmark.run import run_cell
from regbench.benchmark.settings.runtime import STAGES
from regbench.benchmark.settings.stored import load_cell
from regbench.benchmark.settings.sweep import Sweep, load_grid, load_run, load_sweep, read_rows
from regbench.datasets.stored.prepare import prepare
from regbench.datasets.stored.verify import verify
from regbench.slurm.manage import submit_sweep
from regbench.sweeps import tune
from regbench.sweeps.choose import choose
from tests.command import run as call
from tests.conftest import TINY
from tests.damage import damaged, damaged_lines, no_file
from tests.slurm.standin import Standin
from tests.sweep_file import write_sweep

SHORT = (
    *(*TINY, "epochs=1", "optimizer.warmup_epochs=0", "evaluation.protocols=[knn]"),
    *("cluster=slurm", "cluster.gpus=0"),
)
PROFILE = b"""\
defaults: [slurm]
partition: gpu
gpus: 4
mem_gib: 64.5
modules: [cuda, python]
extra: {reservation: paper, exclude: 'node[1-3]'}
stages: {pretrain: {}, tune: {gpus: 1}, final: {gpus: 1, cpus: 2}}
"""


def refused_or_done(result: Result) -> None:
    """No traceback; an error is one line."""
    error = result.exception
    traced = traceback.format_exception(error)
    assert error is None or isinstance(error, SystemExit), "".join(traced)
    if result.exit_code == 2:
        assert result.stderr.splitlines()[-1].startswith("regbench: "), result.stderr


@dataclass
class Sweeps:
    """Two sweeps in the middle of their lives, to be copied and damaged: "own", and the tuning
    "tuned".

    Attributes:
        folder: With their sweep files, and their folders under `runs`.
        own: Of its four cells two are done, one is trained and one waits.
        states: Of its cells, by id.
    """

    folder: Path
    own: Sweep
    states: dict[str, str]

    def copies(self, folder: Path, name: str, seeds: range) -> Iterator[tuple[random.Random, Path]]:
        """For each seed, a random generator of its own and a copy of the runs to be damaged."""
        for seed in seeds:
            runs = folder / str(seed)
            shutil.copytree(self.folder / "runs", runs, copy_function=os.link)
            yield random.Random(f"{name} {seed}"), runs
            shutil.rmtree(runs)


@pytest.fixture(scope="module")
def sweeps(tiny_data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sweeps]:
    folder = tmp_path_factory.mktemp("sweeps")
    slurm = Standin(folder / "slurm")
    settings = [*SHORT, f"runtime.data_dir={tiny_data_dir}", f"runtime.runs_dir={folder / 'runs'}"]
    rows = {
        "own": ("method=vicreg", "method=simclr", "method=auh", "method=rbf"),
        "tuned": ("method=vicreg method.alignment_weight=10,20",),
    }
    for name, cells in rows.items():
        write_sweep(folder / f"{name}.yaml", settings, cells)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{slurm.folder}{os.pathsep}{os.environ['PATH']}")
        own, tuned = (load_sweep(str(folder / f"{name}.yaml")) for name in rows)
        submit_sweep(own, STAGES)
        for cell, stages in zip(own.cells, (STAGES, STAGES, ("pretrain",)), strict=False):
            run_cell(cell, own.runtime, "own", stages)
        tune.begin(tuned.cells, folder / "runs" / "tuned", tiny_data_dir)
        submit_sweep(tuned, ("pretrain", "tune"))
        for cell in tuned.cells:
            run_cell(cell, tuned.runtime, "tuned", ("pretrain", "tune"))
        choose(folder / "runs" / "tuned")
        # The processes that held a run or a lock have ended, unlike this one.
        for path in folder.glob("runs/*/*/attempts/*.json"):
            path.write_text(path.read_text().replace(f'"pid": {os.getpid()},', '"pid": 0,'))
        states = zip(own.cells, ("done", "done", "queued", "queued"), strict=True)
        yield Sweeps(folder, own, {cell.id: state for cell, state in states})


def damage(path: Path, rng: random.Random) -> str:
    """Damages a file that may have other names; says how."""
    content = path.read_bytes()
    path.unlink()
    if rng.random() < 0.07:
        return no_file(path, rng)
    path.write_bytes(damaged(content, rng))
    return "other content"


def rounds(count: int) -> pytest.MarkDecorator:
    """The test's `seed`: `count` of them, and twenty times as many in a slow test."""
    others = (range(count * i, count * (i + 1)) for i in range(1, 20))
    slow = [pytest.param(seeds, marks=pytest.mark.slow) for seeds in others]
    return pytest.mark.parametrize("seeds", [range(count), *slow])


RUN_FILES = ["attempts/*.json", "record.json", "config.yaml", "metrics*.jsonl"]
RUN_FILES += ["scores*.json", "choice*.json", "env*.json"]


def files_of_runs(runs: Path, cell: str = "*") -> list[Path]:
    return [path for kind in RUN_FILES for path in sorted(runs.glob(f"own/{cell}/{kind}"))]


@rounds(12)
def test_status_shows_the_cells_that_are_not_damaged(
    sweeps: Sweeps, tmp_path: Path, seeds: range
) -> None:
    for rng, runs in sweeps.copies(tmp_path, "status", seeds):
        path = rng.choice(files_of_runs(runs))
        how = damage(path, rng)
        result = call("status", "own", "--runs-dir", runs)
        refused_or_done(result)
        shown = {line.split()[0]: line for line in result.stdout.splitlines() if line.strip()}
        for cell, state in sweeps.states.items():
            told = (path, how, result.output)
            assert cell in path.parts or f" {state} " in shown[cell], told
            assert cell in shown


@rounds(10)
def test_a_damaged_plan_or_note_is_named(sweeps: Sweeps, tmp_path: Path, seeds: range) -> None:
    for rng, runs in sweeps.copies(tmp_path, "plan", seeds):
        path = rng.choice([runs / "own" / "sweep.json", *sorted(runs.glob("own/jobs/*.json"))])
        how = damage(path, rng)
        for command in (("status", "own"), ("clean", "own", "--dry-run")):
            result = call(*command, "--runs-dir", runs)
            refused_or_done(result)
            if result.exit_code:
                told = (runs, how, result.output)
                assert how.startswith("a link") or "sweep.json" in result.output, told
                assert path.name == "sweep.json"


@rounds(2)
@pytest.mark.parametrize("command", ["cancel", "retry", "report --check", "logs"])
def test_other_commands_on_a_damaged_sweep(
    sweeps: Sweeps, tmp_path: Path, command: str, seeds: range
) -> None:
    name, *options = command.split()
    for rng, runs in sweeps.copies(tmp_path, command, seeds):
        of_jobs = sorted(runs.glob("own/jobs/*.json"))
        damage(rng.choice([*files_of_runs(runs), runs / "own" / "sweep.json", *of_jobs]), rng)
        cell = [sweeps.own.cells[rng.randrange(4)].id] if name == "logs" else []
        refused_or_done(call(name, "own", *cell, *options, "--runs-dir", runs))


@rounds(1)
def test_a_report_of_damaged_files_has_the_others(
    sweeps: Sweeps, tmp_path: Path, seeds: range
) -> None:
    for rng, runs in sweeps.copies(tmp_path, "report", seeds):
        first, second = sweeps.own.cells[:2]
        path = rng.choice(files_of_runs(runs, first.id))
        damage(path, rng)
        result = call("report", "own", "--runs-dir", runs)
        refused_or_done(result)
        assert result.exit_code == 0, result.output
        assert second.label in result.output
        assert first.label in result.output or path.name in result.output


@rounds(1)
@pytest.mark.parametrize(
    "options", [(), ("optimizer.base_lr=1.0", "--trials", "4")], ids=["grid", "search"]
)
def test_a_damaged_tuning(
    sweeps: Sweeps, tmp_path: Path, options: tuple[str, ...], seeds: range
) -> None:
    for rng, runs in sweeps.copies(tmp_path, f"tune {options}", seeds):
        command = ("tune", sweeps.folder / "tuned.yaml", *options, f"runtime.runs_dir={runs}")
        if options:  # both configurations are tried, which the grid's runs have scored
            (runs / "tuned" / "tuning_choice.json").unlink()
            (runs / "tuned" / "tune.json").unlink()
            call(*command)
            assert (runs / "tuned" / "search.json").exists()
        files = []
        for name in ("*.json", "*/tuning.json", "*/config.yaml"):
            files += sorted(runs.glob(f"tuned/{name}"))
        damage(rng.choice(files), rng)
        refused_or_done(call(*command))


@rounds(12)
def test_damaged_answers_of_squeue(
    sweeps: Sweeps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: range
) -> None:
    (tmp_path / "squeue").write_text(f"#!/bin/sh\ncat {tmp_path}/answer\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for seed in seeds:
        rng = random.Random(f"squeue {seed}")
        answer = b""
        for i in range(4):
            state, reason = rng.choice((b"PENDING", b"RUNNING")), rng.choice((b"None", b"Priority"))
            answer += b"1_%d|%s|%s\n" % (i, state, reason)
        (tmp_path / "answer").write_bytes(damaged_lines(answer, rng))
        result = call("status", "own", "--runs-dir", sweeps.folder / "runs")
        refused_or_done(result)
        assert all(cell in result.stdout for cell in sweeps.states), (seed, result.output)


def refused_or_read(read: Callable[[], object], named: str) -> None:
    try:
        read()
    except RegbenchError as error:
        assert named in str(error)
        assert "\n" not in str(error)


@rounds(20)
def test_damaged_manifests(tiny_data_dir: Path, tmp_path: Path, seeds: range) -> None:
    dataset = load_run(TINY)[0].dataset
    shutil.copytree(tiny_data_dir / "tiny", tmp_path / "tiny", copy_function=os.link)
    for seed in seeds:
        rng = random.Random(f"manifest {seed}")
        path = tmp_path / "tiny" / "manifest.json"
        how = damage(path, rng)
        for read in (lambda: prepare(dataset, tmp_path), lambda: verify("tiny", tmp_path)):
            refused_or_read(read, "tiny")
        path.rmdir() if how == "a folder" else path.unlink(missing_ok=True)
        path.hardlink_to(tiny_data_dir / "tiny" / "manifest.json")


@rounds(30)
def test_damaged_configurations_of_runs(sweeps: Sweeps, tmp_path: Path, seeds: range) -> None:
    content = (sweeps.folder / "runs" / "own" / sweeps.own.cells[0].id / "config.yaml").read_bytes()
    path = tmp_path / "config.yaml"
    for seed in seeds:
        path.write_bytes(damaged(content, random.Random(f"config {seed}")))
        refused_or_read(lambda: load_cell(path), "config.yaml")


@rounds(8)
def test_damaged_sweep_files(sweeps: Sweeps, tmp_path: Path, seeds: range) -> None:
    content = (sweeps.folder / "own.yaml").read_bytes()
    path = tmp_path / "own.yaml"
    for seed in seeds:
        path.write_bytes(damaged(content, random.Random(f"sweep file {seed}")))
        refused_or_read(lambda: read_rows(str(path), ()), "own.yaml")


@rounds(6)
def test_damaged_profiles_of_clusters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: range
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "regbench" / "cluster" / "mine.yaml"
    path.parent.mkdir(parents=True)
    for seed in seeds:
        path.write_bytes(damaged(PROFILE, random.Random(f"profile {seed}")))
        refused_or_read(lambda: load_grid(["cluster=mine"]).clusters[0].at("tune"), "")
