"""What a sweep will take, before it is submitted: what is done, hours, memory, disk."""

from __future__ import annotations

import functools
import logging
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from tqdm import tqdm

from regbench import methods
from regbench.benchmark.rundir.record import read_record
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.runtime import Cluster, Runtime
from regbench.benchmark.settings.sweep import Sweep
from regbench.datasets.config import DatasetConfig
from regbench.datasets.manifest import Manifest
from regbench.datasets.sources.base import DividedFiles
from regbench.errors import RegbenchError
from regbench.instruments.plan import Needs, largest, predict

log = logging.getLogger("regbench")

GPU_SHARE = 0.9
"""Of a GPU's memory that a prediction may take: workspaces, the CUDA context and fragments need the rest."""

ASSUMED_FLOP_PER_S = 50e12
"""Of a GPU on which no like cell has run: an A100 trains a ResNet-50 in bf16 with about so many (2,000 images/s)."""


@dataclass(frozen=True)
class Planned:
    """What one cell will take.

    Attributes:
        cell: The cell.
        done: Whether its record is there.
        gpus: Of its training, over all nodes.
        needs: Of a training step; None for an untrained network.
        fits: Whether that fits the GPUs, if their memory is known.
        gpu_hours: By the time of like cells that have run, else those of the training by its FLOP; None if neither is
            known.
        from_flop: Whether they are estimated from FLOP, see `ASSUMED_FLOP_PER_S`.
    """

    cell: Cell
    done: bool
    gpus: int
    needs: Needs | None
    fits: bool | None
    gpu_hours: float | None
    from_flop: bool


def plan(sweep: Sweep) -> list[Planned]:
    """Tell what each cell of a sweep will take; nothing is run and no GPU is needed.

    Args:
        sweep: The grid.

    Raises:
        RegbenchError: If a batch cannot be shared by a cell's GPUs.
    """
    folder = Path(sweep.runtime.runs_dir)
    times = _times(folder)
    images = functools.cache(functools.partial(_images, Path(sweep.runtime.data_dir)))
    known: dict[Any, Needs] = {}
    planned = []
    pairs = zip(sweep.cells, sweep.clusters, strict=True)
    for cell, cluster in tqdm(pairs, "plan", len(sweep.cells), leave=False, disable=None):
        pretrain = cluster.at("pretrain")
        needs = None
        if cell.epochs:
            key = _shape(cell, pretrain.processes)
            if key not in known:
                known[key] = needs_of(cell, sweep.runtime, pretrain)
            needs = known[key]
        limit = pretrain.gpu_memory_gib
        fits = None if needs is None or limit is None else needs.peak_bytes <= GPU_SHARE * limit * 2**30
        done = (folder / sweep.name / cell.id / "record.json").exists()
        known_hours = _known_hours(cell, times) if times and not done else None
        flop_hours = None
        if not done and known_hours is None and needs is not None and pretrain.gpus and sweep.runtime.device != "cpu":
            flop_hours = _flop_hours(cell, needs, images(cell.dataset))
        gpu_hours = known_hours if flop_hours is None else flop_hours
        planned.append(Planned(cell, done, pretrain.processes, needs, fits, gpu_hours, flop_hours is not None))
    return planned


def _flop_hours(cell: Cell, needs: Needs, images: int | None) -> float | None:
    """Estimate the GPU hours of a training with so many images; None if their number is not known."""
    if images is None:
        return None
    return images // cell.batch_size * cell.epochs * needs.flop_per_step / ASSUMED_FLOP_PER_S / 3600


def _images(data_dir: Path, dataset: DatasetConfig) -> int | None:
    """Return the number of images of a training; None if it is not known."""
    try:
        manifest = Manifest.load(data_dir, dataset.name)
        images: int | None = manifest.splits[manifest.pretraining_split]["num_samples"]
    except RegbenchError:  # not prepared yet
        published = dataset.source.expected
        divided = dataset.source.train_per_class if isinstance(dataset.source, DividedFiles) else None
        per_class = dataset.train_per_class or divided
        images = per_class and per_class * dataset.num_classes
        images = images or published.get("unlabeled", published.get("train"))
    return images


def needs_of(cell: Cell, runtime: Runtime, cluster: Cluster) -> Needs:
    """Predict what a training step of a cell needs where it will run."""
    return predict(cell, **_switches(runtime, cluster))


def largest_fitting(sweep: Sweep, gpu_memory_gib: float) -> dict[str, int | None]:
    """Find the largest sizes of a sweep's first cell that fit a GPU.

    Args:
        sweep: The grid.
        gpu_memory_gib: Of the GPU, of which a prediction may take `GPU_SHARE`.

    Returns:
        The largest power of two for "batch_size" and for "embedding_dim"; None where not even the smallest fits.
    """
    limit_bytes = int(GPU_SHARE * gpu_memory_gib * 2**30)
    switches = _switches(sweep.runtime, sweep.clusters[0].at("pretrain"))
    return {what: largest(sweep.cells[0], limit_bytes, what, **switches) for what in ("batch_size", "embedding_dim")}


def refuse_oversized(sweep: Sweep) -> None:
    """Refuse a sweep with cells that are predicted not to fit the memory that its clusters' GPUs are said to have.

    Raises:
        RegbenchError: Naming the first of them.
    """
    if not any(cluster.gpu_memory_gib for cluster in sweep.clusters):
        return
    misfits = [entry for entry in plan(sweep) if entry.fits is False and not entry.done]
    if misfits:
        first = misfits[0]
        assert first.needs is not None
        raise RegbenchError(
            f"{len(misfits)} cells are predicted not to fit a GPU, such as {first.cell.label} with q="
            f"{first.cell.embedding_dim} and {first.cell.batch_size // first.gpus} images a GPU: "
            f"{first.needs.peak_bytes / 1e9:.1f} GB. See them with --plan; run them all the same with --oversized"
        )


def _switches(runtime: Runtime, cluster: Cluster) -> dict[str, Any]:
    """Describe where a cell will run, as arguments of `predict`."""
    ranks = cluster.processes
    shard = runtime.shard_optimizer and ranks > 1
    return {"world_size": ranks, "loss_form": runtime.loss_form, "shard_optimizer": shard}


def _shape(cell: Cell, processes: int) -> Any:
    """Return what the needs of a step depend on; a grid has many seeds, rates and hyperparameters, which do not."""
    method = methods.registry_name(cell.method)
    sizes = (cell.embedding_dim, cell.batch_size, cell.micro_batch_size, cell.precision, processes)
    return (method, cell.method.forms, *sizes, cell.network, cell.dataset.image_size, cell.dataset.channels)


def _times(runs: Path) -> dict[Any, list[tuple[float, float]]]:
    """Map kinds of cells to GPU seconds per epoch and for the rest, by the records of all sweeps in a folder."""
    times: dict[Any, list[tuple[float, float]]] = {}
    for path in sorted(runs.glob("*/*/record.json")):
        try:
            record = read_record(path.parent)
        except RegbenchError as error:
            log.warning("%s", error)
            continue
        if record is None or record.status != "done" or not record.cell["epochs"]:
            continue
        gpus, cost = record.environment.get("world_size", 1), record.cost
        rest_s = (cost.monitor_s or 0.0) + (cost.evaluate_s or 0.0)
        spent = (gpus * (cost.train_s or 0.0) / record.cell["epochs"], rest_s)
        for kind in _kinds(record.method, record.cell):
            times.setdefault(kind, []).append(spent)
    return times


def _known_hours(cell: Cell, times: dict[Any, list[tuple[float, float]]]) -> float | None:
    """Return the median GPU hours of like cells; None if none has run."""
    exact, alike = _kinds(methods.registry_name(cell.method), cell.plain())
    found = times.get(exact) or times.get(alike)
    if not found:
        return None
    per_epoch_s = statistics.median(epoch_s for epoch_s, _ in found)
    return (per_epoch_s * cell.epochs + statistics.median(rest_s for _, rest_s in found)) / 3600


def _kinds(method: str, cell: dict[str, Any]) -> tuple[Any, Any]:
    """Return what cells of like time share: with the method and q, and without."""
    same = orjson.dumps([cell["dataset"], cell["network"]], option=orjson.OPT_SORT_KEYS)
    alike = (same, cell["batch_size"], cell["precision"])
    return (method, cell["embedding_dim"], *alike), alike


def rows(planned: Sequence[Planned]) -> Iterable[dict[str, Any]]:
    """Lay out the plan as the rows of a table."""
    for entry in planned:
        cell, needs = entry.cell, entry.needs
        yield {
            "cell": cell.id,
            "": "done" if entry.done else "to run" if entry.fits is not False else "DOES NOT FIT",
            "method": cell.label,
            "q": cell.embedding_dim,
            "n": cell.batch_size,
            "epochs": cell.epochs,
            "seed": cell.seed,
            "data": cell.dataset.name,
            "network": cell.network.architecture,
            "GPUs": entry.gpus,
            "GB/GPU": f"{needs.peak_bytes / 1e9:.2f}" if needs else "–",
            "parameters (M)": f"{needs.parameters / 1e6:.1f}" if needs else "–",
            "TFLOP/step": f"{needs.flop_per_step / 1e12:.3g}" if needs else "–",
            "sent GB/step": f"{needs.sent_bytes_per_step / 1e9:.3g}" if needs else "–",
            "checkpoint GB": f"{needs.checkpoint_bytes / 1e9:.3g}" if needs else "–",
            "GPU hours": "–" if entry.gpu_hours is None else f"{'≈ ' * entry.from_flop}{entry.gpu_hours:.3g}",
        }


def summary(planned: Sequence[Planned]) -> str:
    """Say the plan in one line."""
    todo = [entry for entry in planned if not entry.done]
    parts = [f"{len(planned)} cells, {len(planned) - len(todo)} done, {len(todo)} to run"]
    timed, estimated = (
        [entry.gpu_hours for entry in todo if entry.gpu_hours is not None and entry.from_flop == from_flop]
        for from_flop in (False, True)
    )
    if timed:
        parts.append(f"{sum(timed):.3g} GPU hours by the time of like cells")
    if estimated:
        of = f" of {len(estimated)} cells" if len(estimated) < len(todo) else ""
        parts.append(
            f"≈ {sum(estimated):.3g} GPU hours for the training{of}: an estimate from FLOP, as no like cell has run "
            f"yet, at {ASSUMED_FLOP_PER_S / 1e12:g} TFLOP/s a GPU"
        )
    if unknown := len(todo) - len(timed) - len(estimated):
        of = f" of {unknown} cells" if unknown < len(todo) else ""
        parts.append(f"GPU hours{of} unknown: no like cell has run yet")
    peaks = [entry.needs.peak_bytes for entry in todo if entry.needs]
    if peaks:
        # Two checkpoints lie side by side while a cell trains.
        disk = sum(2 * entry.needs.checkpoint_bytes for entry in todo if entry.needs)
        parts.append(f"at most {max(peaks) / 1e9:.2f} GB a GPU (predicted), {disk / 1e9:.3g} GB of disk")
    if misfits := sum(entry.fits is False for entry in todo):
        parts.append(f"{misfits} do not fit")
    return "; ".join(parts)
