"""Measures what settings cost: `python results/speed/step.py`, processor time of a training
step.

The setting is the quickstart's, with VICReg. A teacher's pass has no backward pass, so a step with
one should take a third of its forward and backward more. bf16 should take as long as float32 at
most; torch's own products in bf16 and those in float32 stand beside each other, whichever this
processor takes. Processor time on one thread does not depend on what runs beside it, but for
caches; all kinds take turns. `--returned` lets the allocator return freed memory.
"""

from __future__ import annotations

import contextlib
import resource
import sys
import time
from collections.abc import Callable
from unittest import mock

import torch
import yaml

from regbench.benchmark.machine.bf16 import ProductsInFloat32
from regbench.benchmark.machine.compute import keep_freed_memory
from regbench.benchmark.settings.presets import preset_files
from regbench.benchmark.settings.sweep import load_run
from regbench.benchmark.training.assembly import build_network, build_teacher, views_dtype
from regbench.benchmark.training.step import Step
from regbench.instruments.cost.harness import in_words, machine
from turns import compare
from regbench.methods import Engine

ROUNDS = 20
CPU = torch.device("cpu")
COMMON: list[str] = yaml.safe_load(preset_files("sweep")["quickstart_tuning"].read_text())["common"]
KINDS = {
    "plain": "network.teacher=none",
    "stopped gradient": "network.teacher=stop_gradient",
    "and predictor": "network.teacher=stop_gradient network.predictor.depth=2",
    "teacher": "network.teacher=ema",
    "teacher and predictor": "network.teacher=ema network.predictor.depth=2",
    "float32": "precision=fp32",
}
PRODUCTS = {
    "torch's own products": contextlib.nullcontext,
    "products in float32": ProductsInFloat32,
}


def timed_step(settings: str, products: str = "") -> Callable[[], float]:
    """Return a function that takes a training step and returns its processor time in ms.

    Args:
        settings: Settings that differ from the quickstart's.
        products: A key of `PRODUCTS`; "" is what this processor takes.
    """
    cell, _ = load_run([*" ".join(COMMON).split(), "method=vicreg", *settings.split()])
    network = build_network(cell, CPU).train()
    step = Step(
        network=network,
        optimizer=cell.optimizer.build_clipping(network.parameters()),
        method=cell.method,
        engine=Engine(even=True),
        precision=cell.precision,
        mark=time.process_time,
        is_asymmetric=cell.network.is_asymmetric,
        teacher=build_teacher(cell, network),
    )
    shape = (cell.batch_size, 3, cell.dataset.image_size, cell.dataset.image_size)
    views = [
        torch.randn(shape).to(views_dtype(cell), memory_format=torch.channels_last)
        for _ in range(2)
    ]

    def timed() -> float:
        with contextlib.ExitStack() as stack:
            if products:
                context = PRODUCTS[products]
                stack.enter_context(
                    mock.patch("regbench.benchmark.training.step.fast_bf16", lambda *_: context())
                )
            begun = time.process_time()
            step(*views)
            return 1e3 * (time.process_time() - begun)

    return timed


def main() -> None:
    """Print the milliseconds of each kind, and page faults."""
    torch.set_num_threads(1)
    if "--returned" not in sys.argv:
        keep_freed_memory()
    turns = {name: timed_step(settings) for name, settings in KINDS.items()}
    turns |= {name: timed_step(KINDS["plain"], name) for name in PRODUCTS}
    print(in_words(machine("cpu", rounds=ROUNDS)))
    compare(turns, ROUNDS, "plain")
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(ROUNDS):
        turns["plain"]()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    print(f"{faults / ROUNDS:.0f} page faults a step")


if __name__ == "__main__":
    main()
