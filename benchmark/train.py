"""The training loop: one for all methods."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from regbench import RegbenchError
from regbench.benchmark.config import Cell
from regbench.benchmark.measure import PeakMemory, Stopwatch
from regbench.benchmark.metrics import COLLAPSED_SPREAD, spread_metrics
from regbench.benchmark.network import SiameseNetwork
from regbench.benchmark.optimizer import LARS, learning_rate
from regbench.datasets.loader import TwoViewLoader
from regbench.files import write_atomically, write_text
from regbench.methods import Engine

log = logging.getLogger("regbench")


@dataclass(frozen=True, kw_only=True)
class Compute:
    """Where and with what one run computes (`Runtime`, resolved on this machine)."""

    device: torch.device
    data_dir: Path
    loader: str
    workers: int
    loss_form: str


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What training leaves.

    Attributes:
        network: With its last weights, on the device.
        history: A dictionary of numbers for each epoch.
        peak_memory_bytes: Of training, over all attempts.
        peak_memory_kind: What `peak_memory_bytes` counts.
    """

    network: SiameseNetwork
    history: list[dict[str, Any]]
    peak_memory_bytes: int
    peak_memory_kind: str


def train(cell: Cell, compute: Compute, directory: Path) -> Trained:
    """Trains a cell to the end, from its last checkpoint if it has one.

    Every epoch ends with a checkpoint, so a killed run loses at most one epoch; the resumed run sees the same images
    and, with the same number of threads on a CPU, ends with the same weights.

    Args:
        cell: What to train.
        compute: On what.
        directory: Run directory; `checkpoint.pt` and `metrics.jsonl` are written there.

    Returns:
        The trained network and what was measured.

    Raises:
        RegbenchError: If the loss is no longer finite, or the data set or batch size is refused.
    """
    device, config = compute.device, cell.optimizer
    network = SiameseNetwork(cell.network, cell.embedding_dim, cell.dataset.channels, cell.seed)
    network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = LARS(
        network.parameters(),
        lr=0.0,
        weight_decay=config.weight_decay,
        momentum=config.momentum,
        trust_coefficient=config.trust_coefficient,
    )
    history: list[dict[str, Any]] = []
    peak_memory_bytes = 0
    checkpoint = directory / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=device, weights_only=True)
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        history, peak_memory_bytes = state["history"], state["peak_memory_bytes"]
        _write_metrics(history, directory)  # a kill may have come between the two files
        log.info("%s: goes on after epoch %d of %d", cell.label, len(history), cell.epochs)

    memory = PeakMemory(device)
    engine = Engine(form=compute.loss_form)
    network.train()
    with contextlib.ExitStack() as stack:
        if len(history) < cell.epochs:
            loader = stack.enter_context(
                TwoViewLoader(
                    cell.dataset,
                    cell.augmentation,
                    data_dir=compute.data_dir,
                    batch_size=cell.batch_size,
                    seed=cell.seed,
                    device=device,
                    backend=compute.loader,
                    workers=compute.workers,
                )
            )
        for epoch in range(len(history), cell.epochs):
            history.append(_epoch(cell, network, optimizer, loader, engine, epoch))
            peak_memory_bytes = max(peak_memory_bytes, memory.read_bytes())
            state = {
                "network": network.state_dict(),
                "optimizer": optimizer.state_dict(),
                "history": history,
                "peak_memory_bytes": peak_memory_bytes,
            }
            write_atomically(checkpoint, functools.partial(torch.save, state))
            _write_metrics(history, directory)
            _report(cell, history[-1])
    return Trained(network=network, history=history, peak_memory_bytes=peak_memory_bytes, peak_memory_kind=memory.kind)


def _write_metrics(history: list[dict[str, Any]], directory: Path) -> None:
    write_text(directory / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in history))


def _epoch(
    cell: Cell, network: SiameseNetwork, optimizer: LARS, loader: TwoViewLoader, engine: Engine, epoch: int
) -> dict[str, Any]:
    """Trains one epoch (counted from 0) and returns its row of the history."""
    # For methods that draw: what they draw depends on the seed and the epoch, not on what ran before.
    torch.manual_seed(cell.seed * 1_000_003 + epoch)
    began_s = time.perf_counter()
    device = next(network.parameters()).device
    clock = Stopwatch(device)
    sums: dict[str, Tensor] = {}
    laps = []
    with loader.epoch(epoch) as batches:
        title = f"{cell.label} epoch {epoch + 1}/{cell.epochs}"
        bar = tqdm(batches, title, len(loader), leave=False, unit="batch", disable=not sys.stderr.isatty())
        for step, (x1_NCHW, x2_NCHW) in enumerate(bar, epoch * len(loader)):
            lr = learning_rate(cell.optimizer, cell.batch_size, step, len(loader), cell.epochs)
            optimizer.param_groups[0]["lr"] = lr
            start = clock.mark()
            # Two passes, so that BN statistics are per view.
            with torch.autocast(device.type, torch.bfloat16, enabled=cell.precision == "bf16"):
                z1_NQ, z2_NQ = network(x1_NCHW), network(x2_NCHW)
            # The loss acts on leaves of its own, so that its cost can be told from the network's.
            leaf1_NQ, leaf2_NQ = (z.detach().float().requires_grad_() for z in (z1_NQ, z2_NQ))
            loss_start = clock.mark()
            loss, terms = cell.method(leaf1_NQ, leaf2_NQ, engine)
            gradients = torch.autograd.grad(loss, [leaf1_NQ, leaf2_NQ])
            loss_end = clock.mark()
            torch.autograd.backward([z1_NQ, z2_NQ], [g.to(z1_NQ.dtype) for g in gradients])
            optimizer.step()
            optimizer.zero_grad()
            laps.append((start, loss_start, loss_end, clock.mark()))
            for name, term in terms.items():
                sums[name] = sums.get(name, torch.zeros_like(term)) + term
    means = {name: (total / len(loader)).item() for name, total in sums.items()}
    if not math.isfinite(sum(means.values())):
        raise RegbenchError(
            f"{cell.label}: the loss is not finite in epoch {epoch + 1} ({means}); "
            "lower optimizer.base_lr or the method's weights"
        )
    return {
        "epoch": epoch + 1,
        "loss": sum(means.values()),
        **spread_metrics(z1_NQ.detach(), z2_NQ.detach()),
        "learning_rate": lr,
        "epoch_s": time.perf_counter() - began_s,
        "images": len(loader) * cell.batch_size,
        "step_ms": statistics.median(clock.milliseconds(a, d) for a, _, _, d in laps),
        "loss_ms": statistics.median(clock.milliseconds(b, c) for _, b, c, _ in laps),
        "terms": means,
    }


def _report(cell: Cell, epoch: dict[str, Any]) -> None:
    """One line a finished epoch, and a warning if the embeddings have become a point."""
    log.info(
        "%s epoch %d/%d: loss %.5g, alignment %.3f, uniformity %.3f, effective rank %.1f, spread %.3f, %.0f img/s",
        *(cell.label, epoch["epoch"], cell.epochs, epoch["loss"], epoch["alignment"], epoch["uniformity"]),
        *(epoch["effective_rank"], epoch["feature_spread"], epoch["images"] / epoch["epoch_s"]),
    )
    if epoch["feature_spread"] < COLLAPSED_SPREAD:
        log.warning(
            "%s has COLLAPSED: all embeddings are nearly the same point (feature spread %.4f < %g); "
            "lower the alignment weight or base_lr",
            *(cell.label, epoch["feature_spread"], COLLAPSED_SPREAD),
        )
