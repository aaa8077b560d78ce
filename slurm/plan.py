"""What a sweep will take, before it is submitted: what is done, hours, memory, disk."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from regbench import methods
from regbench.benchmark.config import Cell, Cluster, Runtime, Sweep
from regbench.benchmark.directory import read_record
from regbench.benchmark.plan import Needs, predict

GPU_SHARE = 0.9
"""Of a GPU's memory that a prediction may take: workspaces, the CUDA context and fragments need the rest."""


@dataclass(frozen=True)
class Planned:
    """What one cell will take.

    Attributes:
        cell: The cell.
        done: Whether its record is there.
        gpus: Of its training, over all nodes.
        needs: Of a training step; None for an untrained network.
        fits: Whether that fits the GPUs, if their memory is known.
        gpu_hours: By the time of like cells that have run; None if there are none.
    """

    cell: Cell
    done: bool
    gpus: int
    needs: Needs | None
    fits: bool | None
    gpu_hours: float | None


def plan(sweep: Sweep, *, progress: bool) -> list[Planned]:
    """What each cell of a sweep will take; nothing is run and no GPU is needed.

    Args:
        sweep: The grid.
        progress: Whether to show a bar.

    Raises:
        RegbenchError: If a batch cannot be shared by a cell's GPUs.
    """
    folder = Path(sweep.runtime.runs_dir)
    hours = _Hours(folder)
    known: dict[Any, Needs] = {}
    planned = []
    pairs = zip(sweep.cells, sweep.clusters, strict=True)
    for cell, cluster in tqdm(pairs, "plan", len(sweep.cells), leave=False, disable=not progress):
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
        planned.append(Planned(cell, done, pretrain.processes, needs, fits, None if done else hours.of(cell)))
    return planned


def needs_of(cell: Cell, runtime: Runtime, cluster: Cluster) -> Needs:
    """What a training step of a cell needs where it will run."""
    return predict(
        cell,
        world_size=cluster.processes,
        loss_form=runtime.loss_form,
        shard_optimizer=runtime.shard_optimizer and cluster.processes > 1,
    )


def _shape(cell: Cell, processes: int) -> Any:
    """What the needs of a step depend on: not on seeds, rates and most hyperparameters, of which a grid has many."""
    method = methods.registry_name(cell.method)
    sizes = (cell.embedding_dim, cell.batch_size, cell.micro_batch_size, cell.precision, processes)
    return (method, cell.method.forms, *sizes, cell.network, cell.dataset.image_size, cell.dataset.channels)


class _Hours:
    """GPU hours by the records of all sweeps in a folder."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._by_kind: dict[Any, list[tuple[float, float]]] | None = None

    def of(self, cell: Cell) -> float | None:
        if self._by_kind is None:
            self._by_kind = {}
            for path in sorted(self._runs.glob("*/*/record.json")):
                self._take(path.parent)
        exact, alike = _kinds(methods.registry_name(cell.method), cell.plain())
        found = self._by_kind.get(exact) or self._by_kind.get(alike)
        if not found:
            return None
        per_epoch_s = statistics.median(epoch_s for epoch_s, _ in found)
        return (per_epoch_s * cell.epochs + statistics.median(rest_s for _, rest_s in found)) / 3600

    def _take(self, directory: Path) -> None:
        assert self._by_kind is not None
        record = read_record(directory)
        if record is None or record["status"] != "done" or not record["cell"]["epochs"]:
            return
        gpus = record["environment"].get("world_size", 1)
        times = (gpus * record["cost"]["train_s"] / record["cell"]["epochs"], record["cost"]["evaluate_s"])
        for kind in _kinds(record["method"], record["cell"]):
            self._by_kind.setdefault(kind, []).append(times)


def _kinds(method: str, cell: dict[str, Any]) -> tuple[Any, Any]:
    """What cells of like time share: with the method and q, and without."""
    alike = (str(cell["dataset"]), str(cell["network"]), cell["batch_size"], cell["precision"])
    return (method, cell["embedding_dim"], *alike), alike


def rows(planned: Sequence[Planned]) -> Iterable[dict[str, Any]]:
    """The plan as the rows of a table."""
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
            "network": cell.network.backbone,
            "GPUs": entry.gpus,
            "GB/GPU": f"{needs.peak_bytes / 1e9:.2f}" if needs else "–",
            "parameters (M)": f"{needs.parameters / 1e6:.1f}" if needs else "–",
            "TFLOP/step": f"{needs.flop_per_step / 1e12:.3g}" if needs else "–",
            "sent GB/step": f"{needs.sent_bytes_per_step / 1e9:.3g}" if needs else "–",
            "checkpoint GB": f"{needs.checkpoint_bytes / 1e9:.3g}" if needs else "–",
            "GPU hours": "–" if entry.gpu_hours is None else f"{entry.gpu_hours:.3g}",
        }


def summary(planned: Sequence[Planned]) -> str:
    """The plan in one line."""
    todo = [entry for entry in planned if not entry.done]
    hours = [entry.gpu_hours for entry in todo]
    known = sum(value for value in hours if value is not None)
    unknown = sum(value is None for value in hours)
    parts = [f"{len(planned)} cells, {len(planned) - len(todo)} done, {len(todo)} to run"]
    if todo and unknown < len(todo):
        parts.append(f"{known:.3g} GPU hours by the time of like cells" + f" ({unknown} cells unknown)" * bool(unknown))
    elif todo:
        parts.append("GPU hours unknown: no like cell has run yet")
    peaks = [entry.needs.peak_bytes for entry in todo if entry.needs]
    if peaks:
        # Two checkpoints lie side by side while a cell trains.
        disk = sum(2 * entry.needs.checkpoint_bytes for entry in todo if entry.needs)
        parts.append(f"at most {max(peaks) / 1e9:.2f} GB a GPU (predicted), {disk / 1e9:.3g} GB of disk")
    if misfits := sum(entry.fits is False for entry in todo):
        parts.append(f"{misfits} do not fit")
    return "; ".join(parts)
