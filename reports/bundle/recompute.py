"""Cells of others, computed again: whether their settings are settings, and their scores come
again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from regbench.benchmark.machine.compute import resolve
from regbench.benchmark.machine.description import environment
from regbench.benchmark.run import evaluate_directory, run_cell
from regbench.benchmark.rundir.directory import write_config
from regbench.benchmark.rundir.record import Record, Score
from regbench.benchmark.scoring import images_record
from regbench.benchmark.settings.stored import load_config
from regbench.datasets.stored.manifest import Manifest
from regbench.datasets.stored.prepare import prepare_all
from regbench.errors import RegbenchError

SMALL_S = 600.0
"""A training that took less is done again as a whole, even where its weights are there."""

# Entries of the environment that must be the same for numbers to be the same to the last bit.
_VERSIONS = ("torch", "torchvision", "numpy")
_ARITHMETIC = ("threads", "tf32", "bf16_products", "loss_form", "loss_revision", "compile")
_DECIDING = (*_VERSIONS, "hardware", "loader", "world_size", *_ARITHMETIC)


@dataclass(frozen=True)
class Recomputed:
    """A cell that was computed again.

    Attributes:
        trained: Whether it was trained again; else its weights were evaluated again.
        alike: Whether the numbers have to be the same to the last bit: on a CPU, with all that
            decides it the same.
        scores: New scores; empty where training diverged.
    """

    trained: bool
    alike: bool
    scores: Sequence[Score]


def recompute(
    record: Record, folder: Path, *, weights: bool, overrides: Sequence[str] = ()
) -> Recomputed:
    """Compute the scores of a finished cell again: the whole run where that is small, else from its
    weights.

    It computes as the record says that it was computed (threads, loader, form of the loss) but for
    the overrides. Data that can be generated or downloaded are prepared where they are missing.

    Args:
        record: Record of the cell.
        folder: Folder to compute in, empty but for the file of the weights, where there are
            weights.
        weights: Whether there are weights.
        overrides: `runtime.…=value`, as for the command line.

    Raises:
        RegbenchError: If the data are not to be had or are other images here, the cell is too large
            to be trained again and has no weights, or an override is no setting of the runtime.
    """
    for override in overrides:
        if not override.startswith("runtime."):
            raise RegbenchError(
                f"{override}: settings of the cell are the record's; give runtime.* settings only"
            )
    write_config(folder, record.cell)
    said = record.environment
    # Threads and loader decide the last bits of sums and of images.
    own = []
    for name in ("threads", "loader", "loss_form", "compile"):
        if name in said:
            own.append(f"runtime.{name}={said[name]}")
    cell, runtime = load_config(folder / "config.yaml", [*own, *overrides])
    compute = resolve(runtime)
    # A GPU adds up in an order of its own.
    on_cpu = compute.device.type == "cpu"
    prepare_all(cell.datasets, compute.data_dir)
    _refuse_other_images(record, Manifest.load(compute.data_dir, cell.dataset))
    small = record.cost.train_s is not None and record.cost.train_s <= SMALL_S
    # Hours of training are nothing to begin unasked.
    if not small and not weights:
        raise RegbenchError(
            f"{record.path}: its training took {(record.cost.train_s or 0) / 3600:.1f} h, and the "
            "bundle has no weights of it; ask for a bundle made with --weights, or run it: "
            "regbench train --config config.yaml"
        )
    if small:
        runtime = replace(runtime, runs_dir=str(folder / "again"))
        again = run_cell(cell, runtime, "again", how_chosen=record.choice["hyperparameters"])
        assert again is not None
        return Recomputed(True, on_cpu and _alike(record, again.environment), again.scores)
    (folder / record.file_name).write_text(record.text())
    scores = evaluate_directory(
        folder, [*own, *overrides], how_chosen=record.choice["hyperparameters"]
    )
    # The rest of what the record says holds for the training, which is not done again.
    now = {**said, "loader": runtime.loader, **environment(compute.device)}
    return Recomputed(False, on_cpu and _alike(record, now), scores)


def _refuse_other_images(record: Record, manifest: Manifest) -> None:
    here = images_record(manifest).content_sha256
    for split, sha256 in record.data.content_sha256.items():
        if here.get(split) != sha256:
            raise RegbenchError(
                f"{record.path}: the {split} split of {manifest.name} has other images there "
                f"({sha256:.12}) than here ({here.get(split, 'none'):.12}); nothing can be compared"
            )


def _alike(record: Record, now: Mapping[str, Any]) -> bool:
    """Return True if an environment computes a record's numbers to the last bit."""
    # Older records do not state the first two.
    said = {"bf16_products": "torch", "loss_revision": 1, **record.environment}
    # Where nothing is trained, NumPy's linear algebra decides: it finds the components of a PCA.
    deciding = _DECIDING if record.cell["epochs"] else (*_DECIDING, "blas_threads")
    return all(said.get(name) == now.get(name) for name in deciding)
