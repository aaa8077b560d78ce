"""Measure what threads cost on a quiet and on a busy machine.

    python instruments/speed/thread_contention.py [OVERRIDES]

The same run in turns with the default number of threads, with one and with one for each core; once alone and once
beside a process for each core that only counts. The images are made here. Overrides are of the run.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tabulate import tabulate

from regbench.instruments.cost.harness import Machine, median, number, span, take_turns

ROUNDS, EPOCHS = 3, 3
CORES = len(os.sched_getaffinity(0))
THREADS = {"default": 0, "1": 1, f"all cores ({CORES})": CORES}
SILENT: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
REGBENCH = (sys.executable, "-m", "regbench")


def generate(folder: Path) -> None:
    """Make grey images of ten classes, 28 px: 1,000 are for training."""
    rng = np.random.default_rng(0)
    for label in range(10):
        place = folder / f"{label}"
        place.mkdir(parents=True)
        for i in range(125):
            Image.fromarray(rng.integers(0, 256, (28, 28), dtype=np.uint8)).save(place / f"{i}.png")


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep so many processes computing for themselves."""
    counting = [subprocess.Popen((sys.executable, "-c", "while True: pass")) for _ in range(processes)]
    try:
        yield
    finally:
        for process in counting:
            process.kill()
            process.wait()


def measure(settings: list[str]) -> tuple[float, float]:
    """Measure images/s of a run's median epoch, and milliseconds of CPU time for each image, start-up included."""
    with tempfile.TemporaryDirectory() as runs:
        process = subprocess.Popen((*REGBENCH, "train", *settings, f"runtime.runs_dir={runs}"), **SILENT)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"a run ended with {process.returncode}: regbench train {' '.join(settings)}")
        (metrics,) = Path(runs).glob("manual/*/metrics-*.jsonl")
        epochs = [json.loads(line) for line in metrics.read_text().splitlines()]
    images = sum(epoch["images"] for epoch in epochs)
    return statistics.median(e["images"] / e["epoch_s"] for e in epochs), 1e3 * (used.ru_utime + used.ru_stime) / images


def main() -> None:
    """Print the medians over the rounds, and the least and the most."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generate(folder / "source")
        data_dir = f"runtime.data_dir={folder}"
        prepare = (*REGBENCH, "prepare", "imagefolder", "--source-dir", str(folder / "source"), data_dir)
        subprocess.run(prepare, check=True, **SILENT)
        settings = ["dataset=imagefolder", data_dir, f"epochs={EPOCHS}", "evaluation.protocols=[knn]"]
        settings += ["runtime.device=cpu", *sys.argv[1:]]
        turns = {
            threads: partial(measure, [*settings, f"runtime.threads={count}"]) for threads, count in THREADS.items()
        }
        for machine, processes in (("quiet", 0), ("busy", CORES)):
            with busy(processes):
                for threads, rounds in take_turns(turns, ROUNDS).items():
                    speeds, cpu_ms = map(list, zip(*rounds, strict=True))
                    rows.append((machine, threads, number(median(speeds)), span(speeds), number(median(cpu_ms))))
    print(f"{Machine.here(rounds=ROUNDS)}\n")
    print(tabulate(rows, headers=["machine", "threads", "images/s", "range", "CPU ms/image"], disable_numparse=True))


if __name__ == "__main__":
    main()
