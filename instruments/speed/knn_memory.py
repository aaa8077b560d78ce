"""Measure what weighted kNN needs beyond the features.

python instruments/speed/knn_memory.py [IMAGES ...] [--dim D]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from regbench.benchmark.evaluate.features import Features
from regbench.benchmark.evaluate.knn import BANK_BLOCK, QUERY_BLOCK, weighted_knn
from regbench.benchmark.meters import PeakMemory


def resident_bytes() -> int:
    """Measure this process, now."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def drawn(n: int, dim: int) -> Features:
    """Draw random features of 1,000 classes, made in place."""
    return Features(torch.empty(n, dim).normal_(), torch.randint(1000, (n,)))


def main() -> None:
    """Print the peak resident size of the process over its size with the features, for each size of the bank."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("images", type=int, nargs="*", default=[50_000, 100_000, 200_000])
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--queries", type=int, default=QUERY_BLOCK)
    arguments = parser.parse_args()
    block_bytes = 4 * (QUERY_BLOCK + BANK_BLOCK) * arguments.dim + 12 * QUERY_BLOCK * BANK_BLOCK
    print(f"a block: {block_bytes / 1e9:.2f} GB")
    cpu = torch.device("cpu")
    queries = drawn(arguments.queries, arguments.dim)
    neighbours, temperature = (20, 200), 0.07
    weighted_knn(
        drawn(BANK_BLOCK, arguments.dim), queries, neighbours, temperature, 1000
    )  # libraries take their own memory once
    for n in arguments.images:
        bank = drawn(n, arguments.dim)
        before_bytes, peak, began_s = resident_bytes(), PeakMemory(cpu), time.perf_counter()
        weighted_knn(bank, queries, neighbours, temperature, 1000)
        took_s, extra_bytes = time.perf_counter() - began_s, peak.read_bytes() - before_bytes
        print(
            f"bank of {n:,} x {arguments.dim}, {arguments.queries:,} queries: "
            f"features {bank.x_ND.nbytes / 1e9:.2f} GB, beyond them {extra_bytes / 1e9:.2f} GB, {took_s:.1f} s"
        )
        del bank


if __name__ == "__main__":
    main()
