"""Measures what settings cost: `python instruments/speed/step.py`, processor time of a training step.

The setting is the quickstart's, with VICReg. A teacher's pass has no backward pass, so a step with one should take a
third of its forward and backward more. bf16 should take as long as float32 at most; where the processor has no
instructions for it, torch's own products take longer. `ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2` before the
command makes any processor one without AVX-512. Processor time on one thread does not depend on what runs beside it,
but for caches; all kinds take turns.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import torch
import yaml

from regbench.benchmark.bf16 import fast_bf16
from regbench.benchmark.settings.presets import preset_files
from regbench.benchmark.settings.sweep import load_run
from regbench.benchmark.training.assembly import build_network, build_step, build_teacher, views_dtype
from regbench.benchmark.training.distributed import World
from regbench.instruments.cost.harness import in_words, machine, median, number, ratios, span, take_turns
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
OWN_PRODUCTS = "plain, torch's products"


def timed_step(settings: str, *, own_products: bool = False) -> Callable[[], float]:
    """Return a function that takes a training step and returns its processor time in seconds.

    Args:
        settings: Settings that differ from the quickstart's.
        own_products: Whether torch computes products in bf16 its own way, see `fast_bf16`.
    """
    cell, _ = load_run([*" ".join(COMMON).split(), "method=vicreg", *settings.split()])
    network = build_network(cell, CPU).train()
    step = build_step(
        cell,
        World(),
        CPU,
        network=network,
        optimizer=cell.optimizer.build_clipping(network.parameters()),
        engine=Engine(even=True),
        mark=time.process_time,
        teacher=build_teacher(cell, network),
        done=lambda: 0.0,
    )
    shape = (cell.batch_size, 3, cell.dataset.image_size, cell.dataset.image_size)
    views = [torch.randn(shape).to(views_dtype(cell), memory_format=torch.channels_last) for _ in range(2)]

    def timed() -> float:
        begun = time.process_time()
        with contextlib.nullcontext() if own_products else fast_bf16(CPU, cell.precision):
            step(*views)
        return time.process_time() - begun

    return timed


def main() -> None:
    """Measure and print a table."""
    torch.set_num_threads(1)
    turns = {name: timed_step(settings) for name, settings in KINDS.items()}
    turns[OWN_PRODUCTS] = timed_step(KINDS["plain"], own_products=True)
    take_turns(turns, 2)  # to warm up
    seconds = take_turns(turns, ROUNDS)
    print(in_words(machine("cpu", rounds=ROUNDS)))
    for name, each in seconds.items():
        of_plain = ratios(each, seconds["plain"])
        print(f"{name}: {1e3 * (median(each) or 0):.0f} ms, {number(median(of_plain))} of plain ({span(of_plain)})")


if __name__ == "__main__":
    main()
