"""Measures what commands take before they do anything: python instruments/speed/waits.py [CELLS].

Imports, the list of methods, and the expansion of a sweep of so many cells (10,000), in processes of their own, beside
the import of PyTorch.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial

from regbench.instruments.cost.harness import Machine, median, number, span, take_turns

ROUNDS = 3


def cpu_s(*arguments: str) -> float:
    """Return the CPU seconds of a call of Python."""
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime


def expansion(cells: int) -> str:
    """Write a program that expands quickstart with so many seeds that there are about so many cells."""
    return f"""
from regbench.benchmark.settings.sweep import load_sweep
of_a_seed = len(load_sweep("quickstart", []).cells)
load_sweep("quickstart", ["seed=" + ",".join(map(str, range({cells} // of_a_seed)))])
"""


def main() -> None:
    """Print the CPU seconds of each."""
    cells = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    turns: dict[str, Callable[[], float]] = {
        "import torch": partial(cpu_s, "-c", "import torch"),
        "import regbench.benchmark.run": partial(cpu_s, "-c", "import regbench.benchmark.run"),
        "regbench methods": partial(cpu_s, "-m", "regbench", "methods"),
        f"a sweep of {cells} cells": partial(cpu_s, "-c", expansion(cells)),
    }
    found = take_turns(turns, ROUNDS)
    print(Machine.here("cpu", rounds=ROUNDS))
    for title, seconds in found.items():
        print(f"{title}: {number(median(seconds))} s of CPU ({span(seconds)})")


if __name__ == "__main__":
    main()
