"""Measure commands that read a whole sweep, on made-up records: `python instruments/speed/report.py [CELLS]`.

Timed are `regbench status`, a first `regbench report`, a second one with nothing changed, and `report --check`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from regbench import methods
from regbench.benchmark.rundir.record import Record, Score
from regbench.benchmark.rundir.record_parts import Cost, ImageSource, NamedFile, PastAttempt
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.sweep import load_sweep

EPOCHS, CHOICES, SEEDS = 100, 10, 5
DIMENSIONS = (512, 1024, 2048, 4096, 8192)
SCORES = ("knn_top1", "knn_top5", "linear_top1", "linear_top5")
MEASURES = ("alignment", "uniformity", "rankme", "alpha_req", "lidar", "feature_spread")


def made_cells(count: int) -> list[Cell]:
    """List methods, each with five dimensions, ten learning rates and five seeds, until there are enough."""
    base = load_sweep("quickstart", ["epochs=100", "optimizer.warmup_epochs=10"]).cells[1]
    built = dict.fromkeys(methods.build(name) for name in methods.names())  # presets may be the default
    built = {method: None for method in built if not method.needs}
    grid = itertools.product(built, DIMENSIONS, range(CHOICES), range(SEEDS))
    cells = []
    for method, q, choice, seed in itertools.islice(grid, count):
        optimizer = dataclasses.replace(base.optimizer, base_lr=0.1 * (choice + 1))
        cells.append(dataclasses.replace(base, method=method, embedding_dim=q, seed=seed, optimizer=optimizer))
    return cells


def made_record(cell: Cell, metrics: NamedFile, draw: np.random.Generator) -> Record:
    """Make what a run of the cell would leave; the first learning rate is the chosen one, the others are tuned only."""
    final = cell.optimizer.base_lr == 0.1
    skill = 40 + 5 * np.log2(cell.embedding_dim / 512) + 10 * final + draw.normal()
    scores = []
    for i, name in enumerate(SCORES):
        value = round(float(skill + 2 * i + draw.normal()), 2)
        for split in ("tuning", "test") if final else ("tuning",):
            scores.append(Score(name, value, split, f"how {name} is measured", name))
    for name in MEASURES if final else ():
        scores.append(Score(name, float(draw.normal()), "test", f"how {name} is measured", name, "", None))
    given = {"selected_on": "tuning", "score": "knn_top1", "budget": CHOICES, "record": None, "sha256": None}
    cost = {"train_s": 100 + 50 * draw.random(), "img_per_s": 1000.0, "step_ms": 10.0, "loss_ms": 1.0}
    return Record(
        cell_id=cell.id,
        sweep="large",
        label=cell.label,
        method=methods.registry_name(cell.method),
        seed=cell.seed,
        status="done" if final else "tuned",
        cell=cell.plain(),
        scores=tuple(scores),
        choice={"hyperparameters": given} if final else {},
        regularizer={"reference": "somebody, 2021", "url": "https://example.org", "formula": "a + b"},
        cost=Cost(**cost, peak_memory_bytes=2**30, energy_gpu_joules=5e4, peak_memory_kind="CUDA allocated"),
        environment={"regbench": "0", "git": "abc1234", "hardware": "1 x Example GPU", "loader": "ffcv"},
        data=ImageSource("made up", {"train": "ab" * 32, "test": "cd" * 32}),
        attempts=(PastAttempt(started="2026-01-01T00:00:00+00:00", finished="2026-01-01T01:00:00+00:00"),),
        command=f"regbench train --config runs/large/{cell.id}/config.yaml",
        metrics=metrics,
    )


def made_history(draw: np.random.Generator) -> list[dict[str, Any]]:
    """Make what a run would leave of its training."""
    names = ("loss", *MEASURES, "learning_rate", "epoch_s", "images", "step_ms", "data_ms", "forward_ms", "loss_ms")
    rows = []
    for epoch, values in enumerate(draw.random((EPOCHS, len(names))).round(6).tolist(), 1):
        terms = {"alignment": values[0], "uniformity": values[1]}
        rows.append({"epoch": epoch, **dict(zip(names, values, strict=True)), "terms": terms})
    return rows


def make_sweep(folder: Path, count: int) -> None:
    """Write the run directories of a finished sweep."""
    draw = np.random.default_rng(0)
    plan = []
    for cell in made_cells(count):
        run = folder / cell.id
        run.mkdir(parents=True)
        metrics = "".join(json.dumps(row) + "\n" for row in made_history(draw)).encode()
        (run / "metrics-0001.jsonl").write_bytes(metrics)
        record = made_record(cell, NamedFile("metrics-0001.jsonl", hashlib.sha256(metrics).hexdigest()), draw)
        # By libyaml: Python's own writer is slow for thousands of cells.
        (run / "config.yaml").write_text(yaml.dump(record.cell, Dumper=yaml.CSafeDumper, sort_keys=False))
        (run / record.file_name).write_text(record.text())
        plan.append({"id": cell.id, "label": cell.label, "seed": cell.seed, "epochs": cell.epochs})
    (folder / "sweep.json").write_text(json.dumps({"description": "", "cells": plan}))


def children_cpu_s() -> float:
    """Return the CPU seconds of all commands so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print the seconds of each command, waited and of CPU, and its last line."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    program = str(Path(sys.executable).with_name("regbench"))
    with tempfile.TemporaryDirectory() as runs:
        make_sweep(Path(runs) / "large", count)
        for words in (["status", "large"], ["report", "large"], ["report", "large"], ["report", "large", "--check"]):
            began_s, began_cpu_s = time.perf_counter(), children_cpu_s()
            command = [program, *words, "--runs-dir", runs]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            waited_s, cpu_s = time.perf_counter() - began_s, children_cpu_s() - began_cpu_s
            print(f"{' '.join(words)}: {waited_s:.2f} s, {cpu_s:.2f} s of CPU: {done.stdout.splitlines()[-1]}")


if __name__ == "__main__":
    main()
