"""Opening a split of a prepared data set, and which of its images are used."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from regbench.datasets.config import DatasetConfig
from regbench.datasets.loading.crops import Ints
from regbench.datasets.loading.latent_split import LatentSplit
from regbench.datasets.sources.latents import Latents
from regbench.datasets.stored.beton import Beton
from regbench.datasets.stored.manifest import Manifest
from regbench.errors import RegbenchError

Opened = Beton | LatentSplit
"""A split of images in a file, or of examples that are drawn when they are used."""


def open_pretraining_split(dataset: DatasetConfig, data_dir: Path) -> tuple[Opened, Ints]:
    """Open the split to pretrain on, "unlabeled" or else "train".

    Return its file and the places in it to use.
    """
    manifest = Manifest.load(data_dir, dataset)
    opened, indices = _open(manifest, dataset, manifest.pretraining_split, data_dir)
    asked = dataset.pretraining_images or len(indices)
    if asked > len(indices):
        raise RegbenchError(
            f"data set '{dataset.name}': pretraining_images is {asked:,}, and there are "
            f"{len(indices):,} to pretrain on; choose at most as many"
        )
    return opened, evenly(indices, asked)


def open_split(
    dataset: DatasetConfig, split: str, data_dir: Path, choice: Path | None
) -> tuple[Opened, Ints]:
    """Open a split for evaluation; return its file and the places in it of the images to use."""
    # The test split is opened only with `choice`, the record of what was chosen before, and on
    # which split.
    if split == "test":
        _check_choice(choice)
    return _open(Manifest.load(data_dir, dataset), dataset, split, data_dir)


def _open(
    manifest: Manifest, dataset: DatasetConfig, split: str, data_dir: Path
) -> tuple[Opened, Ints]:
    manifest.require(dataset, data_dir)
    path = manifest.split_file(data_dir, split)
    if isinstance(dataset.source, Latents):
        latent = LatentSplit(dataset.source, path)
        return latent, np.arange(len(latent))
    beton = Beton(path)
    if beton.labels.min() < -1 or beton.labels.max() >= dataset.num_classes:
        labels = f"labels from {beton.labels.min()} to {beton.labels.max()}"
        what = f"{beton.path} is damaged: it has {labels} for {dataset.num_classes} classes"
        raise RegbenchError(f"{what}; write it again: {dataset.prepare_command} --force")
    return beton, _first_of_each_class(beton.labels, dataset, split)


def _check_choice(path: Path | None) -> None:
    """Keep the test split closed until a record on disk says what was chosen on which split."""
    try:
        choice = json.loads(path.read_text()) if path else {}
        selected_on = choice["hyperparameters"]["selected_on"]
    except (OSError, ValueError, KeyError, TypeError):
        selected_on = None
    if selected_on not in ("given", "tuning", "test"):
        raise RegbenchError(
            "the test split is for final scores: it is opened with the record of what was chosen "
            f"before, and {path or 'none was given'} is none"
        )


def _first_of_each_class(labels: Ints, dataset: DatasetConfig, split: str) -> Ints:
    """Return the indices of the images to use, ascending: in "train" the first
    `train_per_class` of each class.
    """
    if split != "train" or dataset.train_per_class is None:
        return np.arange(len(labels))
    if labels.min() < 0:
        raise RegbenchError(
            f"data set '{dataset.name}': dataset.train_per_class={dataset.train_per_class} takes "
            "images of each class, and the images have no labels; leave it out"
        )
    counts = np.bincount(labels, minlength=dataset.num_classes)
    if counts.min() < dataset.train_per_class:
        raise RegbenchError(
            f"data set '{dataset.name}': train_per_class is {dataset.train_per_class}, but class "
            f"{counts.argmin()} has {counts.min()} training images; choose at most {counts.min()}"
        )
    # Images stay in the file's order, as without the limit.
    classes, most = range(dataset.num_classes), dataset.train_per_class
    return np.sort(np.concatenate([np.flatnonzero(labels == each)[:most] for each in classes]))


def evenly(indices: Ints, count: int) -> Ints:
    """Take `count` of the indices at even distances, or all of them if there are no more."""
    # Whole numbers are used throughout: a step of floats could miss the last image or take one
    # twice.
    if count < len(indices):
        return indices[np.arange(count) * len(indices) // count]
    return indices
