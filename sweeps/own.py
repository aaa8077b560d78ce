"""Fit a comparison on one's own images to a budget of hours on this machine.

A few cells are trained for two epochs, as many at a time as later. What these took decides how many
methods are compared, how many configurations are tried of each, and for how many epochs. The plan
is written down as a sweep's file, so that the same command goes on with the same cells.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import yaml

from regbench.benchmark.rundir.record import Record, read_tuned
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.presets import preset_files
from regbench.benchmark.settings.sweep import load_rows, load_sweep, read_rows
from regbench.datasets.stored.manifest import Manifest
from regbench.errors import RegbenchError
from regbench.files import write_new, write_text
from regbench.settings import read_yaml
from regbench.sweeps.local import at_a_time
from regbench.sweeps.run import Execute, refuse_unfinished

_PRESET = "own"
_STAGES = ("pretrain", "tune")
# Of the budget, what is planned: a machine does not always run as fast as it did.
_PLANNED = 0.85
_MEASURED_EPOCHS = 2
# An epoch of the measurement has no more pixels than so many images of 32 px, but one batch.
_MEASURED_PIXELS = 8192 * 32**2
# Trainings of a search: one, two or three brackets of successive halving, each of seven trainings.
_TRIALS = (3, 6, 9)
_CELLS_PER_TRIAL = 7 / 3
_LEAST_METHODS = 2
_LEAST_EPOCHS = 4  # fewer have no quarter


@dataclass(frozen=True)
class _Speed:
    """What a run takes while others run beside it.

    Attributes:
        epoch_s: Seconds of an epoch.
        rest_s: Seconds of all else: start, checkpoints, evaluation.
        untrained_s: Seconds of all untrained rows, once.
        parallel: Runs at a time.
    """

    epoch_s: float
    rest_s: float
    untrained_s: float
    parallel: int


@dataclass(frozen=True)
class _Size:
    """How much is compared, beside untrained rows and the supervised one."""

    methods: int
    trials: int
    seeds: int

    def seconds(self, speed: _Speed, epochs: int) -> float:
        """Return how long all of it takes."""
        # The search has trained the first seed, and every cell of it is scored once more at last.
        trained = self.methods * (self.trials + self.seeds - 1) + self.seeds
        runs = self.methods * (_CELLS_PER_TRIAL * self.trials + self.seeds)
        runs += self.seeds + 1
        in_all = trained * epochs * speed.epoch_s + runs * speed.rest_s
        return (in_all + (self.seeds + 1) * speed.untrained_s) / speed.parallel

    def epochs(self, speed: _Speed, seconds: float) -> int:
        """Return for how many epochs each can be trained: a multiple of four."""
        fixed_s = self.seconds(speed, 0)
        per_epoch_s = self.seconds(speed, 1) - fixed_s
        return max(0, math.floor((seconds - fixed_s) / per_epoch_s) // 4 * 4)


def own_file(
    runs_dir: Path, data: Manifest, hours: float, overrides: Sequence[str], execute: Execute
) -> Path:
    """Return the sweep's file that compares methods on prepared images within some hours.

    It is written once, after a measurement that is done where no such file is there.

    Args:
        runs_dir: The folder of runs.
        data: The images.
        hours: The budget.
        overrides: Settings that change every cell.
        execute: Runs cells.

    Raises:
        RegbenchError: If the budget pays no comparison.
    """
    for override in overrides:
        if override.partition("=")[0] in ("epochs", "seed"):
            raise RegbenchError(
                f"{override}: --hours decides the epochs, and the seeds are 0, 1, 2"
            )
    name = f"{data.name}_{hours:g}h"
    path = runs_dir / name / f"{name}.yaml"
    if path.exists():
        return path
    given = [f"dataset.name={data.name}", *overrides]
    grid = load_sweep(_PRESET, given)
    if grid.scheduler == "slurm":
        raise RegbenchError("own measures this machine; on a cluster take regbench tune own --plan")
    cells = [cell for cell in grid.cells if cell.is_method]
    content = read_yaml(preset_files("sweep")[_PRESET])
    rows = content["cells"]
    speed = _measured(f"{data.name}_speed", given, cells, data, execute)
    largest = _Size(len(cells), _TRIALS[0], len(grid.final_seeds))
    size, epochs = _fitted(largest, speed, 3600 * hours, cells[0].epochs)
    content["cells"] = rows[: len(rows) - len(cells) + size.methods]
    content["common"] += [f"dataset.name={data.name} epochs={epochs}"]
    content["trials"] = size.trials
    steps = epochs * (_images(data) // cells[0].batch_size)
    minutes = size.seconds(speed, epochs) / 60
    text = (
        f"{size.methods} methods on {data.name} in {hours:g} hours: {size.trials // 3 * 4} "
        f"configurations of each by successive halving, {epochs} epochs ({steps:,} steps), and "
        f"{size.seeds} seeds of the best, beside untrained rows and the supervised one; "
        f"forecast {minutes:.0f} min, as an epoch takes {speed.epoch_s:.2g} s and the rest of a "
        f"run {speed.rest_s:.2g} s, {speed.parallel} at a time"
    )
    if epochs < cells[0].epochs:
        enough = size.seconds(speed, cells[0].epochs) / _PLANNED / 3600
        text += (
            f". That is too short to learn much: many methods end below the untrained network "
            f"before epoch {cells[0].epochs}, for which it takes --hours {enough:.2g}"
        )
    content["description"] = text
    path.parent.mkdir(parents=True, exist_ok=True)
    write_new(path, yaml.safe_dump(content, sort_keys=False, width=1000))
    return path


def claim(data_dir: Path, name: str, folder: Path) -> None:
    """Keep a data set's name for the images of one folder.

    Raises:
        RegbenchError: If it is that of another folder's images.
    """
    path = data_dir / name / "folder.txt"
    mine = str(folder.resolve())
    if not path.exists():
        write_text(path, mine)
    elif path.read_text() != mine:
        raise RegbenchError(
            f"the data set {name} was prepared from {path.read_text()}; give the images of "
            f"{folder} another name: dataset.name=NAME"
        )


def _images(data: Manifest) -> int:
    return int(data.splits[data.pretraining_split]["num_samples"])


def _measured(
    name: str, given: Sequence[str], cells: Sequence[Cell], data: Manifest, execute: Execute
) -> _Speed:
    """Train some cells for two epochs, and score the untrained rows, on a part of many images;
    return what they took.
    """
    first = cells[0]
    images = max(_MEASURED_PIXELS // first.dataset.image_size**2, first.batch_size)
    file = replace(read_rows(_PRESET, given), name=name)
    untrained = [row for row in file.rows if "epochs=0" in row]
    methods = file.rows[-len(cells) :]
    part, share = [], 1.0
    if images < _images(data):
        per_class = math.ceil(images / len(data.class_names))
        part.append(f"dataset.train_per_class={per_class}")
        share = images / _images(data)
    parallel = min(at_a_time(load_rows(file, file.rows).runtime), 4 * len(cells))
    rows = []
    for number in range(2 * parallel):
        row = methods[number % len(methods)]
        rows.append((*row, f"epochs={_MEASURED_EPOCHS}", f"seed={number // len(methods)}"))
    rows = [(*row, *part) for row in (*rows, *untrained)]
    grid = load_rows(file, rows)
    refuse_unfinished(execute(grid, _STAGES), grid, _STAGES)
    epochs_s, rests_s, untrained_s = [], [], 0.0
    for cell in grid.cells:
        record = read_tuned(Path(grid.runtime.runs_dir) / name / cell.id)
        if record is not None and record.untrained:
            untrained_s += _wall_s(record) / share
        elif record is not None and record.status != "diverged":
            # The first epoch warms up.
            epoch_s = float(record.history[-1]["epoch_s"])
            epochs_s.append(epoch_s / share)
            rests_s.append((_wall_s(record) - _MEASURED_EPOCHS * epoch_s) / share)
    if not epochs_s:
        raise RegbenchError(f"every cell of the measurement {name} diverged")
    # On a new machine the first ones also wait for the loader to be compiled.
    return _Speed(statistics.median(epochs_s), min(rests_s), untrained_s, parallel)


def _wall_s(record: Record) -> float:
    begun, ended = map(datetime.fromisoformat, (record.started, record.finished))
    return (ended - begun).total_seconds()


def _fitted(largest: _Size, speed: _Speed, budget_s: float, enough: int) -> tuple[_Size, int]:
    """Return the largest comparison whose trainings have `enough` epochs; of two methods, with
    as many as the budget pays.
    """
    planned_s = _PLANNED * budget_s
    for size in _sizes(largest):
        epochs = size.epochs(speed, planned_s)
        if epochs >= enough:
            return size, epochs
    if epochs < _LEAST_EPOCHS:
        least = size.seconds(speed, _LEAST_EPOCHS) / _PLANNED / 3600
        raise RegbenchError(
            f"--hours {budget_s / 3600:g} is too little: {size.methods} methods for "
            f"{_LEAST_EPOCHS} epochs take --hours {least * 1.05:.2g} on this machine"
        )
    return size, epochs


def _sizes(largest: _Size) -> Iterator[_Size]:
    """Yield comparisons, from the largest search of all methods to the smallest of two."""
    for trials in reversed(_TRIALS):
        yield replace(largest, trials=trials)
    for methods in range(largest.methods - 1, _LEAST_METHODS - 1, -1):
        yield replace(largest, methods=methods)
