"""Fit a comparison on one's own images to a budget of hours on this machine.

A few cells are trained for two epochs, as many at a time as later. What these took decides how many
methods are compared, how many configurations are tried of each, and for how many epochs. The plan
is written down as a sweep's file, so that the same command goes on with the same cells.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import torch
import yaml

from regbench.benchmark.rundir.record import read_tuned
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.overrides import row_values
from regbench.benchmark.settings.presets import preset_files
from regbench.benchmark.settings.sweep import SweepFile, load_rows, load_sweep, read_rows
from regbench.datasets.config import DatasetConfig
from regbench.datasets.stored.manifest import FILE_NAME, Manifest
from regbench.datasets.stored.prepare import read_inputs
from regbench.errors import RegbenchError
from regbench.files import digest, write_new
from regbench.settings import read_yaml
from regbench.sweeps.local import at_a_time
from regbench.sweeps.run import Execute, refuse_unfinished
from regbench.wording import quoted

_STAGES = ("pretrain", "tune")
# Share of the budget that is planned: a machine does not always run as fast as it did.
_PLANNED = 0.85
_MEASURED_EPOCHS = 2
# Most pixels of an epoch of the measurement: those of 8192 images of 32 px, but at least one batch;
# on a GPU more, as it takes less time for a few batches than a loader to begin.
_MEASURED_PIXELS = 8192 * 32**2
_MEASURED_BATCHES_OF_GPU = 50
# Trainings of a search: one, two or three brackets of successive halving, each of seven trainings.
_TRIALS = (9, 6, 3)
_CELLS_PER_TRIAL = 7 / 3
_SEEDS = 3
_LEAST_METHODS = 2
_LEAST_EPOCHS = 4  # fewer cannot be quartered


@dataclass(frozen=True)
class _Speed:
    """Times of runs while others run beside them.

    Attributes:
        epoch_s: Seconds of an epoch.
        rest_s: Seconds of all else in a training: start, checkpoints, evaluation.
        untrained_s: Seconds of all untrained rows, once.
        parallel: Runs at a time.
        supervised: Number of supervised runs.
    """

    epoch_s: float
    rest_s: float
    untrained_s: float
    parallel: int
    supervised: int = 0

    def seconds(self, methods: int, trials: int, epochs: int) -> float:
        """Return how long a comparison takes, with the untrained and supervised rows."""
        trained = methods * _SEEDS + self.supervised
        runs = trained + 1.0
        if trials:
            # The search trains the first seed, and every cell of it is scored once more at last.
            trained += methods * (trials - 1)
            runs += methods * _CELLS_PER_TRIAL * trials
        in_all = trained * epochs * self.epoch_s + runs * self.rest_s
        return (in_all + (_SEEDS + 1) * self.untrained_s) / self.parallel

    def hours(self, methods: int, trials: int, epochs: int) -> str:
        """Return the budget that pays a comparison, in two digits and rounded up."""
        return f"{1.05 * self.seconds(methods, trials, epochs) / _PLANNED / 3600:.2g}"

    def fitted(
        self, methods: int, budget_s: float, enough: int, trials: Sequence[int]
    ) -> tuple[int, int, int]:
        """Return methods, trials and epochs of the largest comparison that has `enough` epochs; if
        none has, two methods and as many epochs as the budget pays.
        """
        sizes = [(methods, count) for count in trials]
        sizes += [(fewer, trials[-1]) for fewer in range(methods - 1, _LEAST_METHODS - 1, -1)]
        epochs = 0
        for size in sizes:
            fixed_s = self.seconds(*size, 0)
            per_epoch_s = self.seconds(*size, 1) - fixed_s
            epochs = math.floor((_PLANNED * budget_s - fixed_s) / per_epoch_s) // 4 * 4
            if epochs >= enough:
                break
        if epochs < _LEAST_EPOCHS:
            least = self.hours(*size, _LEAST_EPOCHS)
            raise RegbenchError(
                f"--hours {budget_s / 3600:g} is too little: {size[0]} methods for "
                f"{_LEAST_EPOCHS} epochs take --hours {least} on this machine"
            )
        return *size, epochs


def own_file(
    runs_dir: Path, data: Manifest, hours: float, overrides: Sequence[str], execute: Execute
) -> Path:
    """Return the sweep's file that compares methods on prepared images within some hours.

    If there is no such file yet, it is written after a measurement.

    Args:
        runs_dir: The folder of runs.
        data: The images.
        hours: The budget.
        overrides: Settings that change every cell.
        execute: Function that runs cells.

    Raises:
        RegbenchError: If the budget pays no comparison.
    """
    for key, override, values in row_values(overrides):
        if key in ("epochs", "seed"):
            what = f"{override.input_line}: --hours decides the epochs"
            raise RegbenchError(f"{what}, and seeds are 0, 1 and 2")
        if len(values) != 1:
            raise RegbenchError(f"{key} has one value in all cells here; give one")
    name = f"{data.name}_{hours:g}h".replace("+", "")  # 1e+06
    # Other settings make another comparison.
    changed = [each for each in overrides if not each.startswith(("dataset.name=", "runtime."))]
    if changed:
        name += f"_{digest({'settings': sorted(changed)})[:6]}"
    path = runs_dir / name / f"{name}.yaml"
    given = [f"dataset.name={quoted(data.name)}", *overrides]
    # Without labels to choose by, nothing is searched.
    preset, all_trials = ("own", _TRIALS) if data.class_names else ("own_images", (0,))
    grid = load_sweep(preset, given)
    if grid.scheduler == "slurm":
        raise RegbenchError("own measures this machine; on a cluster take regbench tune own --plan")
    if path.exists():
        return path
    cells = [cell for cell in grid.cells if cell.is_method]
    enough = cells[0].epochs
    batch, dataset = cells[0].batch_size, cells[0].dataset
    limits = dataset.train_per_class, dataset.pretraining_images
    images = data.images_to_train_on(*limits)
    file = replace(read_rows(preset, given), name=f"{data.name}_speed")
    # A few labels beside many images may not fill a batch.
    labelled = data.images_to_train_on(*limits, labels=True) if data.class_names else 0
    is_supervised = labelled >= batch
    speed = replace(_measured(file, cells, images, execute), supervised=_SEEDS * is_supervised)
    methods, trials, epochs = speed.fitted(len(cells), 3600 * hours, enough, all_trials)
    steps = epochs * (images // batch)
    tried = "one configuration, as no label can choose,"
    beside = "the untrained network"
    if trials:
        tried = f"{trials // 3 * 4} configurations by successive halving and, of the best,"
        beside = "untrained rows" + " and the supervised one" * is_supervised
    text = (
        f"{methods} methods on {data.name} in {hours:g} hours: of each {tried} {_SEEDS} seeds, "
        f"{epochs} epochs ({steps:,} steps), beside {beside}; forecast "
        f"{speed.seconds(methods, trials, epochs) / 60:.0f} min, as an epoch takes "
        f"{speed.epoch_s:.2g} s and the rest of a run {speed.rest_s:.2g} s, {speed.parallel} at a "
        "time"
    )
    if epochs < enough:
        text += (
            ". That is too short to learn much: many methods end below the untrained network "
            f"before epoch {enough}, for which it takes --hours "
            f"{speed.hours(methods, trials, enough)}"
        )
    content = read_yaml(preset_files("sweep")[preset])
    content["description"] = text
    own = f"dataset.name={quoted(data.name)} epochs={epochs}"
    if trials:
        content["trials"] = trials
    else:
        own += f" seed={','.join(map(str, range(_SEEDS)))}"
    content["common"].append(own)
    # The methods come last.
    rows = content["cells"][: len(content["cells"]) - len(cells) + methods]
    if not is_supervised:
        rows = [row for row in rows if "baseline=supervised" not in row]
    content["cells"] = rows
    path.parent.mkdir(parents=True, exist_ok=True)
    write_new(path, yaml.safe_dump(content, sort_keys=False, width=1000))
    return path


def relabelled(
    config: DatasetConfig, data_dir: Path, runs_dir: Path, folder: Path, again: str
) -> bool:
    """Return whether the images of a folder are prepared, but with other labels than are given.

    Args:
        config: The data set of this folder.
        data_dir: The folder of all prepared data sets.
        runs_dir: The folder of runs.
        folder: The images.
        again: The command that prepares them again.

    Raises:
        RegbenchError: If the data set's name is that of another folder's images, or if a comparison
            was begun with the other labels.
    """
    prepared = data_dir / config.name
    if not (prepared / FILE_NAME).exists():
        return False
    what = f"the data set {config.name} was prepared"
    remedy = f"give another name, dataset.name=NAME, or prepare it again: {again}"
    inputs = read_inputs(prepared)
    if not inputs:
        raise RegbenchError(f"{what} before, and it is not known from which folder; {remedy}")
    owner, *found = inputs
    home, *asked = config.source.inputs(folder).split("\n")
    if owner != home:
        raise RegbenchError(
            f"{what} from {owner}; give the images of {folder} another name: dataset.name=NAME"
        )
    # Before labels were noted, the file held the folder alone.
    if not found or found == asked:
        return False
    # As `own_file` names folders, so that birds_2_1h is no folder of birds.
    own = re.compile(rf"{re.escape(config.name)}_[\d.e-]+h(_[0-9a-f]{{6}})?")
    for cell in runs_dir.glob(f"{config.name}_*h*/*/config.yaml"):
        begun = cell.parent.parent
        if own.fullmatch(begun.name):
            other = f"with {found[0]}, not {asked[0]}, and {begun} compares methods on it"
            raise RegbenchError(f"{what} {other}; {remedy}")
    return True


def _measured(file: SweepFile, cells: Sequence[Cell], in_all: int, execute: Execute) -> _Speed:
    """Train some cells of a sweep for two epochs, and score the untrained rows; return their times.

    If there are many images `in_all`, the cells train on a part of them.
    """
    runtime = load_rows(file, file.rows).runtime
    parallel = min(at_a_time(runtime), 4 * len(cells))
    on_gpu = runtime.device != "cpu" and torch.cuda.is_available()
    rows = [row for row in file.rows if "epochs=0" in row]
    for number in range(2 * parallel):
        seed, method = divmod(number, len(cells))
        row = file.rows[method - len(cells)]
        rows.append((*row, f"epochs={_MEASURED_EPOCHS}", f"seed={seed}"))
    batch = cells[0].batch_size
    least = batch * (_MEASURED_BATCHES_OF_GPU if on_gpu else 1)
    images = max(_MEASURED_PIXELS // cells[0].dataset.image_size ** 2, least)
    share = 1.0
    if images < in_all:
        # Epochs have no step for a last short batch. Evaluations see all images, as later.
        share = (images // batch) / (in_all // batch)
        rows = [(*row, f"dataset.pretraining_images={images}") for row in rows]
    grid = load_rows(file, rows)
    refuse_unfinished(execute(grid, _STAGES), grid, _STAGES)
    epochs_s, rests_s, untrained_s = [], [], 0.0
    for cell in grid.cells:
        record = read_tuned(grid.folder / cell.id)
        if record is None or record.status == "diverged":
            continue
        # A measurement that was stopped goes on in another attempt.
        last = record.attempts[-1]
        begun = datetime.fromisoformat(last.started or record.started)
        ended = datetime.fromisoformat(last.finished or record.finished)
        wall_s = (ended - begun).total_seconds()
        if record.untrained:
            untrained_s += wall_s
        else:
            # The first epoch warms up.
            epoch_s = float(record.history[-1]["epoch_s"])
            epochs_s.append(epoch_s / share)
            # What was stopped has done a part of this before.
            is_part = len(record.attempts) > 1
            rests_s.append((is_part, max(0.0, wall_s - _MEASURED_EPOCHS * epoch_s)))
    if not epochs_s:
        raise RegbenchError(f"every cell of the measurement {grid.name} diverged")
    # On a new machine the first runs also wait for the loader to be compiled.
    return _Speed(statistics.median(epochs_s), min(rests_s)[1], untrained_s, parallel)
