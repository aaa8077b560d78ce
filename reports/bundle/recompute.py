"""Computing cells of a bundle again: which cells, how, and how near the new scores come."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from regbench.benchmark.machine.compute import resolve
from regbench.benchmark.machine.description import THEN, environment
from regbench.benchmark.run import evaluate_directory, run_cell
from regbench.benchmark.rundir.directory import write_config
from regbench.benchmark.rundir.record import Record, Score
from regbench.benchmark.rundir.record_parts import finite_numbers
from regbench.benchmark.settings.identity import configuration_id
from regbench.benchmark.settings.stored import load_config
from regbench.datasets.stored.manifest import Manifest
from regbench.datasets.stored.prepare import prepare_all
from regbench.errors import RegbenchError
from regbench.files import parse_json
from regbench.reports.bundle.bundle import Bundle

SMALL_S = 600.0
"""A training that took less is done again as a whole, even if its weights are in the bundle."""

# Entries of the environment that must be the same for numbers to be the same to the last bit.
_VERSIONS = ("torch", "torchvision", "numpy")
_ARITHMETIC = ("threads", "tf32", "bf16_products", "loss_form", "loss_revision", "compile")
_DECIDING = (*_VERSIONS, "hardware", "loader", "world_size", *_ARITHMETIC)


# Largest difference of a score in per cent if the same weights are evaluated on another machine.
_EVALUATED_POINTS = 0.5

# The same for a score that is no percentage, as a share of the score.
_EVALUATED_SHARE = 0.01

# Factor on both if no configuration of the bundle has two seeds to show how much seeds differ.
_UNKNOWN_NOISE = 4.0

# Two runs differ by √2 standard deviations of one run; three of these are exceeded once in 400
# scores.
_SPREADS = 3 * math.sqrt(2)


@dataclass(frozen=True)
class Recomputed:
    """A cell that was computed again.

    Attributes:
        trained: Whether it was trained again; else its weights were evaluated again.
        alike: Whether the numbers have to be the same to the last bit: on a CPU, if all that
            decides them is the same.
        scores: New scores; empty if training diverged.
        at_end: Measures of the embeddings in the last epoch, by name, if it was trained again.
    """

    trained: bool
    alike: bool
    scores: Sequence[Score]
    at_end: Mapping[str, float] = field(default_factory=dict)


def drawn_cells(bundle: Bundle, count: int) -> list[Record]:
    """Choose cells by the bundle's hash: nobody can influence the choice, and all get the same."""

    def draw(record: Record) -> bytes:
        return hashlib.sha256(f"{bundle.sha256} {record.cell_id}".encode()).digest()

    done = [record for record in bundle.records if record.status == "done"]
    # Weights from elsewhere were not trained by regbench, which therefore cannot do it again.
    able = [record for record in done if "external" not in record.cell]
    return sorted(able, key=draw)[:count]


def recompute(
    record: Record, folder: Path, *, weights: bool, overrides: Sequence[str] = ()
) -> Recomputed:
    """Compute the scores of a finished cell again: by the whole run if it is small, else from its
    weights.

    Threads, loader, form of the loss and compilation are those that the record states, except for
    the overrides.
    Data that can be generated or downloaded are prepared if they are missing.

    Args:
        record: Record of the cell.
        folder: Folder to compute in, empty except for the file of the weights, if there are any.
        weights: Whether there are weights.
        overrides: `runtime.…=value`, as for the command line.

    Raises:
        RegbenchError: If the data are unavailable or are other images here, the cell is too large
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
    deciding = ("threads", "loader", "loss_form", "compile")
    # Where a run went on with other settings, no single one is right.
    stated = [name for name in deciding if name in said and THEN not in str(said[name])]
    own = [*(f"runtime.{name}={said[name]}" for name in stated), *overrides]
    cell, runtime = load_config(folder / "config.yaml", own)
    compute = resolve(runtime)
    # A GPU adds up in an order of its own.
    on_cpu = compute.device.type == "cpu"
    prepare_all(cell.datasets, compute.data_dir)
    _refuse_other_images(record, Manifest.load(compute.data_dir, cell.dataset))
    small = record.cost.train_s is not None and record.cost.train_s <= SMALL_S
    # Hours of training are not begun unasked.
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
        alike = on_cpu and _alike(record, again.environment)
        return Recomputed(True, alike, again.scores, _measures(again.at_end))
    (folder / record.file_name).write_text(record.text())
    scores = evaluate_directory(folder, own, how_chosen=record.choice["hyperparameters"])
    # The rest of what the record says holds for the training, which is not done again.
    now = {**said, "loader": runtime.loader, **environment(compute.device)}
    return Recomputed(False, on_cpu and _alike(record, now), scores)


def _measures(row: Mapping[str, float]) -> dict[str, float]:
    """Return the measures of the embeddings in a row of a history."""
    return {name: row[name] for name in ("alignment", "effective_rank") if name in row}


def _refuse_other_images(record: Record, manifest: Manifest) -> None:
    here = manifest.content_sha256
    for split, sha256 in record.data.content_sha256.items():
        if here.get(split) != sha256:
            raise RegbenchError(
                f"{record.path}: the {split} split of {manifest.name} has other images there "
                f"({sha256:.12}) than here ({here.get(split, 'none'):.12}); nothing can be compared"
            )


def _alike(record: Record, now: Mapping[str, Any]) -> bool:
    """Return True if an environment reproduces a record's numbers to the last bit."""
    # Older records do not state the first two.
    said = {"bf16_products": "torch", "loss_revision": 1, **record.environment}
    # Where nothing is trained, NumPy's linear algebra decides: it finds the components of a PCA.
    deciding = _DECIDING if record.cell["epochs"] else (*_DECIDING, "blas_threads")
    return all(said.get(name) == now.get(name) for name in deciding)


def differences(bundle: Bundle, record: Record, done: Recomputed) -> list[str]:
    """List the scores of a cell that were not reproduced, one line each, and those that the record
    leaves out.

    Args:
        bundle: The bundle, whose seeds show how much scores vary by themselves.
        record: Record of the cell.
        done: The second computation.
    """
    found = {(score.name, score.split): score.value for score in done.scores}
    how = "it was trained again" if done.trained else "its weights were evaluated again"
    noise = _noise(bundle.records) if done.trained else {}
    lines = []
    # This version may measure more than the one that wrote the bundle.
    of_status = [other.values for other in bundle.records if other.status == record.status]
    usual = set[tuple[str, str]]().union(*of_status)
    for name, split in found:
        if (name, split) in usual and record.score(name, split) is None:
            lines.append(f"{record.path}: {name} on {split}, which came here, is left out there")
    history = bundle.histories.get(record.cell_id, b"").splitlines()
    if done.trained and done.alike and history:
        there = _measures(finite_numbers(parse_json(history[-1])))
        if there != done.at_end:
            lines.append(f"{record.path}: {there} at the end, and {done.at_end} here")
    for score in record.scores:
        named = f"{record.path}: {score.name} on {score.split}"
        value = found.get((score.name, score.split))
        if value is None:
            # Later evaluations are not done when a cell is trained again.
            if (record.cell_id, score.name, score.split) not in bundle.later:
                lines.append(f"{named} did not come again")
            continue
        tolerance = _EVALUATED_POINTS if score.unit == "%" else _EVALUATED_SHARE * abs(score.value)
        spread = noise.get((score.name, score.split))
        if spread is not None:
            tolerance = max(tolerance, _SPREADS * spread)
        elif done.trained:
            tolerance *= _UNKNOWN_NOISE
        rule = f"{tolerance:.2g} is the tolerance"
        if done.alike:
            tolerance, rule = 0.0, "they must be equal"
        if abs(value - score.value) > tolerance:
            numbers = f"{score.value:.6g} there and {value:.6g} here"
            lines.append(f"{named} is {numbers}, where {how}; {rule}")
    return lines


def _noise(records: Sequence[Record]) -> dict[tuple[str, str], float]:
    """Find how much each score varies from seed to seed: the standard deviation pooled over
    configurations.
    """
    import pandas as pd  # takes longer to import than most bundles take to verify

    rows = []
    for record in records:
        configuration = configuration_id(record.cell)
        for score in record.scores:
            rows.append((score.name, score.split, configuration, score.value))
    names = ["name", "split", "configuration"]
    by_name = pd.DataFrame(rows, columns=[*names, "value"]).groupby(names)["value"]
    # A single seed has no variance, and drops out.
    found = by_name.agg(["var", "count"]).dropna()
    # A configuration gives one degree of freedom less than it has seeds, because they share its
    # mean.
    freedom = found["count"] - 1
    squares = (found["var"] * freedom).groupby(names[:2]).sum()
    noise: dict[Any, float] = (squares / freedom.groupby(names[:2]).sum()).pow(0.5).to_dict()
    return noise
