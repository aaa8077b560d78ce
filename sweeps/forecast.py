"""Forecast what a sweep will take, before it is submitted: finished cells, hours, memory, disk."""

from __future__ import annotations

import contextlib
import logging
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from tabulate import tabulate
from tqdm import tqdm

from regbench import methods
from regbench.benchmark.rundir.record import read_record
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.runtime import STAGES
from regbench.benchmark.settings.sweep import Sweep
from regbench.datasets.sources.base import DividedFiles
from regbench.datasets.sources.latents import Latents
from regbench.datasets.stored.manifest import Manifest
from regbench.errors import RegbenchError
from regbench.sweeps.predict import Needs, predict
from regbench.text import counted

log = logging.getLogger("regbench")

GPU_SHARE = 0.9
"""Share of a GPU's memory for a prediction.

Workspaces, the CUDA context and fragments need the rest.
"""

ASSUMED_FLOP_PER_S = 50e12
"""Assumed speed of a GPU on which no like cell has run: that of an A100 that trains a ResNet-50 in
bf16 (2,000 images/s).
"""

_Times = Mapping[str, Sequence[tuple[float, float]]]
"""Kind of cell -> GPU seconds of each that has run: per epoch, and for the rest."""

_NEEDS: dict[tuple[Any, ...], Needs] = {}
"""Predictions, by what they depend on: each takes seconds, and most cells of a grid, and the next
plan of the same process, share it.
"""


@dataclass(frozen=True)
class Planned:
    """The time, memory and disk that one cell will take.

    Attributes:
        cell: The cell.
        done: Whether it has come through the stages that are asked for.
        gpus: GPUs of its training, over all nodes.
        needs: Needs of a training step; None for an untrained network, and for a loss that only
            jobs run.
        fits: Whether that fits the GPUs, if their memory is known.
        gpu_hours: GPU hours by the time of like cells, else by the training's FLOP; None if neither
            is known.
        from_flop: Whether the hours are estimated from FLOP, see `ASSUMED_FLOP_PER_S`.
    """

    cell: Cell
    done: bool
    gpus: int
    needs: Needs | None
    fits: bool | None
    gpu_hours: float | None
    from_flop: bool


def plan(sweep: Sweep, stages: Collection[str] = STAGES) -> list[Planned]:
    """Predict what each cell of a sweep will take to come through the stages; nothing is run and no
    GPU is needed.

    Raises:
        RegbenchError: If a batch cannot be shared by a cell's GPUs.
    """
    times = _times(Path(sweep.runtime.runs_dir))
    planned = []
    pairs = zip(sweep.cells, sweep.clusters, strict=True)
    for cell, cluster in tqdm(pairs, "plan", len(sweep.cells), leave=False, disable=None):
        pretrain = cluster.at("pretrain")
        needs = None
        if cell.epochs and cell.method.has_code:
            form = sweep.runtime.loss_form
            shape = (*_shape(cell), pretrain.processes, form)
            if shape not in _NEEDS:
                _NEEDS[shape] = predict(cell, world_size=pretrain.processes, loss_form=form)
            needs = _NEEDS[shape]
        fits = None  # as long as nobody says what memory the GPUs have
        if needs is not None and pretrain.gpu_memory_gib is not None:
            fits = needs.peak_bytes <= GPU_SHARE * pretrain.gpu_memory_gib * 2**30
        directory = sweep.folder / cell.id
        is_tuned = (directory / "tuning.json").exists()
        done = (directory / "record.json").exists() or (is_tuned and "final" not in stages)
        epochs = 0 if is_tuned else cell.epochs  # that are left
        gpu_hours, from_flop = _known_hours(cell, times, epochs), False
        # On a CPU, FLOP say little about time.
        on_gpu = pretrain.gpus and sweep.runtime.device != "cpu"
        if gpu_hours is None and needs is not None and on_gpu:
            images = _images(Path(sweep.runtime.data_dir), cell)
            if images is not None:
                # The last short batch of an epoch is dropped.
                steps = images // cell.batch_size * epochs
                gpu_hours = steps * needs.flop_per_step / ASSUMED_FLOP_PER_S / 3600
                from_flop = True
        planned.append(Planned(cell, done, pretrain.processes, needs, fits, gpu_hours, from_flop))
    return planned


def _images(data_dir: Path, cell: Cell) -> int | None:
    """Return the number of images of a training; None if it is not known."""
    dataset, source = cell.dataset, cell.dataset.source
    # The labels of a latent world are its content, which all examples have.
    labels = cell.is_supervised and not isinstance(source, Latents)
    per_class, most = dataset.train_per_class, dataset.pretraining_images
    with contextlib.suppress(RegbenchError):  # not prepared yet
        manifest = Manifest.load(data_dir, dataset.name)
        return manifest.images_to_train_on(per_class, most, labels=labels)
    if most:
        return most
    # A pretraining takes the images without labels where there are any.
    if "unlabeled" in source.expected and not labels:
        return source.expected["unlabeled"]
    if not per_class and isinstance(source, DividedFiles):
        per_class = source.train_per_class
    return per_class * dataset.num_classes if per_class else source.expected.get("train")


def refuse_oversized(sweep: Sweep) -> None:
    """Refuse a sweep with cells that are predicted not to fit the memory that its clusters'
    GPUs are said to have.
    """
    if not any(cluster.at("pretrain").gpu_memory_gib for cluster in sweep.clusters):
        return  # nothing to compare with, so the predictions are spared
    misfits = [entry for entry in plan(sweep) if entry.fits is False and not entry.done]
    if misfits:
        first = misfits[0]
        cell, needs = first.cell, first.needs
        assert needs is not None
        raise RegbenchError(
            f"predicted not to fit a GPU: {counted(len(misfits), 'cell')}, such as {cell.label} "
            f"with q={cell.embedding_dim} and {cell.batch_size // first.gpus} images a GPU: "
            f"{needs.peak_bytes / 1e9:.1f} GB. See them with --plan; run them all the same with "
            "--oversized"
        )


def _shape(cell: Cell) -> tuple[Any, ...]:
    """Return what the needs of a step depend on, beside the number of processes and the form.

    The many seeds, rates and weights of a grid do not matter.
    """
    of_plug_ins = []
    for value in (*vars(cell.method).values(), *vars(cell.optimizer).values()):
        # A whole number counts something, such as directions; without a momentum there is no state.
        number = bool(value) if isinstance(value, float) else value
        of_plug_ins.append(len(value) if isinstance(value, tuple) else number)
    loss = (type(cell.method), tuple(of_plug_ins), cell.method.forms)
    sizes = (cell.embedding_dim, cell.output_dim, cell.batch_size, cell.micro_batch_size)
    sizes_px = cell.augmentation.sizes_px(cell.dataset.image_size)
    views = (*sizes_px, cell.augmentation.global_views, cell.dataset.input_channels)
    trained = (cell.network, cell.dataset.image_size, type(cell.optimizer), cell.baseline)
    return (loss, sizes, cell.precision, views, trained)


def _times(runs: Path) -> _Times:
    """Collect the times of cells, by kind, from the records of all sweeps in a folder."""
    times: dict[str, list[tuple[float, float]]] = {}
    for path in sorted(runs.glob("*/*/record.json")):
        try:
            record = read_record(path.parent)
        except RegbenchError as error:
            log.warning("%s", error)
            continue
        # A diverged run stopped early, and an untrained network has no time of an epoch.
        if record is None or record.status != "done" or not record.cell["epochs"]:
            continue
        cost, gpus = record.cost, record.environment.get("world_size", 1)
        if not isinstance(gpus, int):  # "4, then 2": it went on with others
            continue
        epoch_s = gpus * (cost.train_s or 0.0) / record.cell["epochs"]
        # One process evaluates at the end; while training, all wait for it.
        rest_s = gpus * (cost.monitor_s or 0.0) + (cost.evaluate_s or 0.0)
        for kind in _kinds(record.method, record.cell):
            times.setdefault(kind, []).append((epoch_s, rest_s))
    return times


def _known_hours(cell: Cell, times: _Times, epochs: int) -> float | None:
    """Return the median GPU hours of like cells for the epochs left; None if none has run."""
    same_method, any_method = _kinds(methods.registry_name(cell.method), cell.plain())
    # Most of a step is the network's, so another method in the same setting gives a rough time.
    found = times.get(same_method) or times.get(any_method)
    if not found:
        return None
    # A median, because a run that shared its machine may have taken several times as long.
    epoch_s = statistics.median(epoch_s for epoch_s, _ in found)
    rest_s = statistics.median(rest_s for _, rest_s in found)
    return (epoch_s * epochs + rest_s) / 3600


def _kinds(method: str, cell: Mapping[str, Any]) -> tuple[str, str]:
    """Name the kinds of a cell by which times are collected: with its method and q, and without."""
    shared = [cell["dataset"], cell["network"], cell["batch_size"]]
    # A record may lack these.
    shared += map(cell.get, ("precision", "augmentation", "micro_batch_size", "baseline"))
    like = orjson.dumps(shared, option=orjson.OPT_SORT_KEYS).decode()
    return f"{method} {cell['embedding_dim']} {like}", like


_PREDICTED = (
    *("GB/GPU", "parameters (M)", "TFLOP/step", "sent GB/step", "checkpoint GB"),
    "GPU hours",
)


def rows(planned: Sequence[Planned]) -> Iterable[dict[str, Any]]:
    """Lay out the plan as the rows of a table."""
    for entry in planned:
        cell, needs = entry.cell, entry.needs
        state = "to run" if entry.fits is not False else "DOES NOT FIT"
        row = {
            "cell": cell.id,
            "": "done" if entry.done else state,
            "method": cell.label,
            "q": cell.embedding_dim,
            "n": cell.batch_size,
            "epochs": cell.epochs,
            "seed": cell.seed,
            "data": cell.dataset.name,
            "network": cell.network.architecture,
            "GPUs": entry.gpus,
        }
        row |= dict.fromkeys(_PREDICTED, "–")
        if needs is not None:
            row["GB/GPU"] = f"{needs.peak_bytes / 1e9:.2f}"
            row["parameters (M)"] = f"{needs.parameters / 1e6:.1f}"
            row["TFLOP/step"] = f"{needs.flop_per_step / 1e12:.3g}"
            row["sent GB/step"] = f"{needs.sent_bytes_per_step / 1e9:.3g}"
            row["checkpoint GB"] = f"{needs.checkpoint_bytes / 1e9:.3g}"
        if entry.gpu_hours is not None and not entry.done:
            row["GPU hours"] = f"{'≈ ' * entry.from_flop}{entry.gpu_hours:.3g}"
        yield row


def table(planned: Sequence[Planned]) -> str:
    """Lay out the plan as a table, with its summary below."""
    cells = tabulate(list(rows(planned)), headers="keys", disable_numparse=True)
    return f"{cells}\n\n{summary(planned)}"


def summary(planned: Sequence[Planned]) -> str:
    """Describe the plan in one line."""
    todo = [entry for entry in planned if not entry.done]
    hours = [(entry.gpu_hours, entry.from_flop) for entry in todo if entry.gpu_hours is not None]
    timed = [each for each, from_flop in hours if not from_flop]
    estimated = [each for each, from_flop in hours if from_flop]
    unknown = len(todo) - len(hours)
    needs = [entry.needs for entry in todo if entry.needs is not None]
    misfits = sum(entry.fits is False for entry in todo)
    parts = [
        f"{counted(len(planned), 'cell')}, {len(planned) - len(todo)} done, {len(todo)} to run"
    ]
    if timed:
        parts.append(f"{sum(timed):.3g} GPU hours by the time of like cells")
    if estimated:
        of = f" of {counted(len(estimated), 'cell')}" if len(estimated) < len(todo) else ""
        parts.append(
            f"≈ {sum(estimated):.3g} GPU hours for the training{of}: an estimate from FLOP, as no "
            f"like cell has run yet, at {ASSUMED_FLOP_PER_S / 1e12:g} TFLOP/s a GPU"
        )
    if unknown:
        of = f" of {counted(unknown, 'cell')}" if unknown < len(todo) else ""
        parts.append(f"GPU hours{of} unknown: no like cell has run yet")
    if needs:
        peak_bytes = max(each.peak_bytes for each in needs)
        # Two checkpoints lie side by side while a cell trains.
        disk_bytes = sum(2 * each.checkpoint_bytes for each in needs)
        parts.append(
            f"at most {peak_bytes / 1e9:.2f} GB a GPU (predicted), {disk_bytes / 1e9:.3g} GB of "
            "disk"
        )
    if misfits:
        parts.append(f"{misfits} do not fit")
    return "; ".join(parts)
