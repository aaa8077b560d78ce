"""Settings that a data set leaves open: defaults, and choices that fit one's own images."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from regbench.datasets.config import DatasetConfig
from regbench.datasets.sources.base import SOURCES
from regbench.datasets.stored.manifest import FILE_NAME, Manifest
from regbench.settings import defaults
from regbench.wording import hints

# Settings that depend on the images, if they are one's own.
_OPEN = ("num_classes", "image_size", "eval_resize", "channels", "mean", "std")
# The side assumed for images that are not prepared yet.
_UNKNOWN_PX = 256
# With fewer steps many methods end up below the untrained network.
_STEPS = 500
# Settings of other groups for data sets whose content is known.
_FOR_LATENTS = {
    "augmentation": "unaugmented",
    "network": "mlp",
    "optimizer": "adamw",
    "evaluation.protocols": ["latents"],
    "evaluation.select_by": ["latents"],
}
# To give epochs more steps, a batch is not made smaller than this.
_BATCH = 64


def complete(dataset: Mapping[str, Any]) -> dict[str, Any]:
    """Return a data set's plain data with all settings: those that are left out have their
    defaults, or are null.

    The source is given as its name, or as a mapping that holds the name.
    """
    source = dataset.get("source")
    given = source if isinstance(source, Mapping) else {"name": source}
    name = str(given.get("name"))
    whole: dict[str, Any] = {**dict.fromkeys(hints(DatasetConfig)), **defaults(DatasetConfig)}
    if any(dataset.get(name) is None for name in _OPEN if name != "channels"):
        whole["channels"] = None  # it depends on the images as the others in _OPEN do
    return {**whole, **dataset, "source": {"name": name, **SOURCES.defaults(name), **given}}


def fitting(
    dataset: Mapping[str, Any],
    batch_size: object,
    epochs: object,
    data_dir: Path | None,
    given: Collection[str],
) -> dict[str, Any]:
    """Choose the settings that one's own images leave open, except those `given`, by name.

    Without `data_dir`, the folder of prepared data sets, nothing counts as prepared.

    Returns:
        Further settings by name, also of other groups, such as the augmentation and the network.
    """
    source = dataset["source"]
    fitted: dict[str, Any] = {}
    if source["name"] in ("latents", "latent_pictures"):
        fitted |= _FOR_LATENTS
    if source["name"] == "latent_pictures":
        fitted["network"] = "resnet_tiny"
    divided_by = ("train_per_class", "tuning_per_class", "train_list")
    if source.get("held_out") and any(source.get(name) is not None for name in divided_by):
        fitted["dataset.source.held_out"] = None
    if any(dataset.get(name) is None for name in _OPEN):
        name, manifest = str(dataset["name"]), None
        if data_dir is not None and (data_dir / name / FILE_NAME).exists():
            manifest = Manifest.load(data_dir, name)
        fitted |= _fitting_images(dataset, manifest)
        if manifest and not manifest.class_names:
            # Protocols that need no labels.
            fitted["evaluation.protocols"] = ["retrieval", "measures"]
        if manifest and isinstance(batch_size, int) and isinstance(epochs, int):
            # A limit that is not a possible number is refused later.
            given_limits = map(dataset.get, ("train_per_class", "pretraining_images"))
            limits = [n if isinstance(n, int) and n > 0 else None for n in given_limits]
            images = manifest.images_to_train_on(*limits)
            if "batch_size" not in given:
                # The largest power of two that the images fill. With a quarter of it, an epoch has
                # at least four steps.
                filled = 1 << (images.bit_length() - 1)
                batch_size = min(batch_size, max(filled // 4, min(filled, _BATCH)))
                fitted["batch_size"] = batch_size
            # An impossible batch size is refused later.
            steps = max(1, images // max(1, batch_size))
            fitted["epochs"] = max(epochs, math.ceil(_STEPS / steps))
    return {name: value for name, value in fitted.items() if name not in given}


def _fitting_images(dataset: Mapping[str, Any], manifest: Manifest | None) -> dict[str, Any]:
    """Choose sizes, channels, augmentation and network by the images of the train split, if
    they are prepared.
    """
    image_px, grey, num_classes = _UNKNOWN_PX, False, 0
    if manifest:
        train = manifest.splits[manifest.pretraining_split]
        image_px = train["image_px"]
        # The colours of any split would be lost in one channel.
        grey = all(split["grey"] for split in manifest.splits.values())
        num_classes = len(manifest.class_names)
    given_px, size_px = dataset.get("image_size"), min(image_px, 224)
    if isinstance(given_px, int):
        size_px = given_px
    if given_channels := dataset.get("channels"):
        grey = given_channels == 1
    # Mean and standard deviation of ImageNet, and of the mean over its channels.
    channels, mean, std = 3, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    augmentation, network = "small_color", "resnet_tiny"
    if grey:
        channels, mean, std, augmentation = 1, [0.449], [0.226], "small_grey"
    if size_px >= 100:
        augmentation, network = "imagenet", "resnet18"
    return {
        "augmentation": augmentation,
        "network": network,
        "dataset.num_classes": num_classes,
        "dataset.image_size": size_px,
        # 256 px for 224, as is usual with ImageNet, and no more than the images have.
        "dataset.eval_resize": max(size_px, min(image_px, size_px * 8 // 7)),
        "dataset.channels": channels,
        "dataset.mean": mean,
        "dataset.std": std,
    }
