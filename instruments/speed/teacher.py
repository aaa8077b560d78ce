"""Measures what a teacher and a predictor cost: `python instruments/speed/teacher.py`, CPU time of a training step.

The setting is the quickstart's, with VICReg. A teacher's pass has no backward pass, so a step with one should take a
third of its forward and backward more. Processor time on one thread does not depend on what runs beside it, but for
caches; all kinds take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
import yaml
from torch import Tensor

from regbench.benchmark.settings.presets import preset_files
from regbench.benchmark.settings.sweep import load_run
from regbench.benchmark.training.assembly import build_network, build_step, build_teacher, views_dtype
from regbench.benchmark.training.distributed import World
from regbench.instruments.cost.harness import in_words, machine, median, number, ratios, span, take_turns
from regbench.methods import Engine

ROUNDS = 20
COMMON: list[str] = yaml.safe_load(preset_files("sweep")["quickstart_tuning"].read_text())["common"]
KINDS = {
    "plain": "network.teacher=none",
    "stopped gradient": "network.teacher=stop_gradient",
    "and predictor": "network.teacher=stop_gradient network.predictor.depth=2",
    "teacher": "network.teacher=ema",
    "teacher and predictor": "network.teacher=ema network.predictor.depth=2",
}


def timed_step(settings: str) -> Callable[[list[Tensor]], float]:
    """Return a function that takes a training step on views and returns its processor time in seconds."""
    cell, _ = load_run([*" ".join(COMMON).split(), "method=vicreg", *settings.split()])
    network = build_network(cell, torch.device("cpu")).train()
    step = build_step(
        cell,
        World(),
        torch.device("cpu"),
        network=network,
        optimizer=cell.optimizer.build_clipping(network.parameters()),
        engine=Engine(even=True),
        mark=time.process_time,
        teacher=build_teacher(cell, network),
        done=lambda: 0.0,
    )

    def timed(views_NCHW: list[Tensor]) -> float:
        begun = time.process_time()
        step(*views_NCHW)
        return time.process_time() - begun

    return timed


def main() -> None:
    """Measure and print a table."""
    torch.set_num_threads(1)
    cell, _ = load_run(" ".join(COMMON).split())
    shape = (cell.batch_size, 3, cell.dataset.image_size, cell.dataset.image_size)
    views = [torch.randn(shape).to(views_dtype(cell), memory_format=torch.channels_last) for _ in range(2)]
    turns = {name: partial(timed_step(settings), views) for name, settings in KINDS.items()}
    take_turns(turns, 2)  # to warm up
    seconds = take_turns(turns, ROUNDS)
    print(in_words(machine("cpu", rounds=ROUNDS, batch=cell.batch_size)))
    for name, each in seconds.items():
        of_plain = ratios(each, seconds["plain"])
        print(f"{name}: {1e3 * (median(each) or 0):.0f} ms, {number(median(of_plain))} of plain ({span(of_plain)})")


if __name__ == "__main__":
    main()
