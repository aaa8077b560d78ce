"""Puts together what a training is made of: network, teacher, and the loader of its images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from regbench.benchmark.backbones.weights import fill, load_backbone
from regbench.benchmark.machine.compute import Compute
from regbench.benchmark.settings.architecture import ProjectorConfig
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.training.distributed import World
from regbench.benchmark.training.network import SiameseNetwork
from regbench.benchmark.training.teacher import Teacher
from regbench.datasets.loading.loaders import PretrainingLoader


def new_network(cell: Cell) -> SiameseNetwork:
    """Build the network of a cell as its seed initialises it."""
    config, width, prototypes = cell.network, cell.embedding_dim, cell.method.prototypes
    if cell.is_supervised:
        width, prototypes = cell.output_dim, 0
    if cell.baseline == "supervised":
        config = replace(config, projector=ProjectorConfig(depth=1, bias=True))
    image = cell.dataset.input_channels, cell.dataset.image_size
    weights = cell.method.prototype_weights
    return SiameseNetwork(
        config, width, *image, cell.seed, prototypes=prototypes, prototype_weights=weights
    )


def build_network(
    cell: Cell, device: torch.device, state: Mapping[str, Any] | None = None
) -> SiameseNetwork:
    """Build the network of a cell on its device, with the weights of a checkpoint if it is given.

    Otherwise `network.init` gives the weights, and the seed those that it does not give.
    """
    network, config = new_network(cell), cell.network
    if state is not None:
        network.load_state_dict(state["network"])
    elif config.init is not None:
        image = cell.dataset.input_channels, cell.dataset.image_size
        weights = load_backbone(config.init, config.backbone, *image)
        config.refuse_other_weights(weights.sha256)
        state_dict = weights.backbone.module.state_dict()
        fill(network.backbone, state_dict, config.init, config.architecture)
    # Evaluations need the layout of the training: the last bits of features depend on it. On a CPU
    # it saves a quarter of the time.
    network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def build_teacher(cell: Cell, network: SiameseNetwork) -> Teacher | None:
    """Build the teacher of a network as it is now; None if the cell has none."""
    if cell.network.teacher == "none":
        return None
    transform = cell.method.target_transform(cell.output_dim)
    device = next(network.parameters()).device
    return Teacher(network, cell.network, transform and transform.to(device))


def views_dtype(cell: Cell) -> torch.dtype:
    """Return the dtype of the views of a training."""
    # Autocast would make bfloat16 of them anyway; this takes half the memory.
    return torch.bfloat16 if cell.precision == "bf16" else torch.float32


def build_loader(cell: Cell, compute: Compute, world: World) -> PretrainingLoader:
    """Open the images that this rank trains on."""
    return PretrainingLoader(
        cell.dataset,
        cell.augmentation,
        data_dir=compute.data_dir,
        batch_size=cell.batch_size // world.size,
        seed=cell.seed,
        device=compute.device,
        backend=compute.runtime.loader,
        workers=compute.workers,
        rank=world.rank,
        world_size=world.size,
        parts=cell.batch_size // (cell.micro_batch_size or cell.batch_size),
        labels=cell.is_supervised,
        dtype=views_dtype(cell),
    )
