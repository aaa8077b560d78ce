"""Measures what checkpoints cost a training: python instruments/speed/checkpoints.py [OVERRIDES].

The same training of short epochs takes turns with itself: with a checkpoint at its end alone, with one after each epoch
that a thread writes meanwhile, as regbench does, and with one after each epoch that the training waits for.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from regbench.benchmark.run import run_cell
from regbench.benchmark.settings.sweep import load_run
from regbench.benchmark.training import checkpoint_writer
from regbench.instruments.cost.harness import Machine, median, number, ratios, span, take_turns
from regbench.instruments.cost.images import Scenario, make_images

EPOCHS, ROUNDS = 5, 3
SCENARIO = Scenario(name="small", height=40, width=40, quality=None, image_size=28, distinct=128, copies=2)
RARE = ("runtime.checkpoint_epochs=1000", "runtime.checkpoint_minutes=1000")


class Spent(NamedTuple):
    """Seconds of a training: all of it, what it waited for checkpoints, and of CPU."""

    all_s: float
    waited_s: float
    cpu_s: float


class AtOnce(Executor):
    """Does what it is given before it returns, in the place of a pool of threads."""

    def __init__(self, threads: int) -> None:
        """Need no threads."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Do it."""
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


def main() -> None:
    """Print the seconds of each way, and what it takes over the training that has its last checkpoint alone."""
    with tempfile.TemporaryDirectory() as name:
        images = make_images(SCENARIO, Path(name))
        settings = [
            *images.overrides,
            *("augmentation=small_color", "network=resnet_tiny", "embedding_dim=512", "batch_size=128"),
            *("method=vicreg", f"epochs={EPOCHS}", "evaluation.protocols=[]"),
            *sys.argv[1:],
        ]
        numbers = itertools.count()

        def train(pool: type[Executor], more: tuple[str, ...] = ()) -> Spent:
            vars(checkpoint_writer)["ThreadPoolExecutor"] = pool
            cell, runtime = load_run([*settings, *more, f"runtime.runs_dir={name}/runs{next(numbers)}"])
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            record = run_cell(cell, runtime, "checkpoints")
            all_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
            assert record is not None
            return Spent(all_s, record.cost.checkpoint_s or 0.0, cpu_s)

        turns = {
            "one, at the end": partial(train, ThreadPoolExecutor, RARE),
            "each epoch, written meanwhile": partial(train, ThreadPoolExecutor),
            "each epoch, waited for": partial(train, AtOnce),
        }
        take_turns(turns, 1)  # warms up
        found = take_turns(turns, ROUNDS)
        alone = next(iter(found.values()))
        print(Machine.here("cpu", rounds=ROUNDS))
        print(f"{EPOCHS} epochs of {SCENARIO.distinct * SCENARIO.copies} images; medians of {ROUNDS} rounds")
        for title, rounds in found.items():
            shares = ratios([each.cpu_s for each in rounds], [each.cpu_s for each in alone])
            all_s, waited_s, cpu_s = (median(column) for column in zip(*rounds, strict=True))
            print(
                f"{title}: {number(all_s)} s, of which {number(waited_s)} s waiting for checkpoints; "
                f"{number(cpu_s)} s of CPU, {number(median(shares))} times the first's ({span(shares)})"
            )


if __name__ == "__main__":
    main()
