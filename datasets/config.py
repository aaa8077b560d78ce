"""The settings of a data set and of its augmentation.

The defaults of `ViewConfig` and `AugmentationConfig` are those of the SFRIK paper (appendix, "Image
augmentations"), which follows BYOL.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from regbench.datasets.sources.base import SOURCES, Source
from regbench.errors import RegbenchError
from regbench.files import Name
from regbench.settings import AtLeastOne, AtLeastZero, Fraction, Positive, plain, settings
from regbench.wording import shown

Interpolation = Literal["bicubic", "bilinear", "area"]
"""The filters that resize: bicubic (a = -0.5), bilinear or the mean of the covered pixels, all
antialiased.
"""

Cut = Literal["random", "center", "patches"]

Share = Annotated[float, Field(gt=0, le=1)]


# OBoW's code has this number.
PATCH_JITTER = 24
"""Largest displacement of a patch, px."""


@settings
class ViewConfig:
    """The augmentation of one view; the defaults are the paper's first view.

    Attributes:
        crop_scale: Range of the crop's area, as a share of the image's.
        crop_ratio: Range of the crop's width / height.
        flip_p: Probability of a horizontal flip.
        jitter_p: Probability of the colour jitter.
        brightness: The brightness factor is uniform in [1 - brightness, 1 + brightness].
        contrast: The contrast factor is uniform in [1 - contrast, 1 + contrast].
        saturation: The saturation factor is uniform in [1 - saturation, 1 + saturation].
        hue: The hue shift is uniform in [-hue, hue], in turns of the colour circle.
        grayscale_p: Probability of dropping the colour.
        blur_p: Probability of the Gaussian blur.
        blur_sigma: Range of the blur's standard deviation, in px of the crop.
        solarize_p: Probability of inverting the values at or above solarize_threshold.
        solarize_threshold: A grey level.
    """

    crop_scale: tuple[Share, Share] = (0.08, 1.0)
    crop_ratio: tuple[Positive, Positive] = (3 / 4, 4 / 3)
    flip_p: Fraction = 0.5
    jitter_p: Fraction = 0.8
    brightness: Fraction = 0.4
    contrast: Fraction = 0.4
    saturation: Fraction = 0.2
    hue: Annotated[float, Field(ge=0, le=0.5)] = 0.1
    grayscale_p: Fraction = 0.2
    blur_p: Fraction = 0.1
    blur_sigma: tuple[Positive, Positive] = (0.1, 2.0)
    solarize_p: Fraction = 0.2
    solarize_threshold: Annotated[int, Field(ge=0, le=255)] = 130

    def __post_init__(self) -> None:
        """Refuse ranges that end before they begin."""
        for name in ("crop_scale", "crop_ratio", "blur_sigma"):
            low, high = getattr(self, name)
            if low > high:
                raise RegbenchError(
                    f"augmentation: {name} is [{low},{high}]; give the smaller number first"
                )


@settings
class ViewsConfig(ViewConfig):
    """The views of one kind, of which an image can have many: their augmentation, size and number.

    A kind is cut in one of three ways. "random": random resized crops. "center": the shorter side
    is resized to `resize` px and the central square is kept, flipped as `flip_p` says. "patches":
    of the 3 x 3 overlapping squares of one random resized crop of `resize` px, each moved by up to
    `PATCH_JITTER` px, `count` different ones (Gidaris et al., "OBoW", CVPR 2021). Patches of an
    image share their photometric parameters; the contrast is about the mean of the patch.

    Attributes:
        count: Number of such views of an image.
        size: Side of a view, px; null: the data set's image size.
        cut: Way that views are cut out of an image: "random", "center" or "patches".
        resize: Side in px, see `cut`.
        local: Whether they show a small part of the image. A loss compares each global view with
            all others.
    """

    count: AtLeastOne = 1
    size: AtLeastOne | None = None
    cut: Cut = "random"
    resize: AtLeastOne | None = None
    local: bool = False

    def of_size(self, image_size: int) -> ViewsConfig:
        """Return the same kind, with the size `image_size` px if it has none.

        Refuse numbers that do not fit each other.
        """
        size = self.size or image_size
        if self.cut == "random" and self.resize is not None:
            what = f"crops: resize is {self.resize}, and random crops are resized to their size"
            raise RegbenchError(f"{what}; set it to null, or cut to center or patches")
        needed = {"random": 0, "center": size, "patches": size + PATCH_JITTER}[self.cut]
        if needed and (self.resize or 0) < needed:
            raise RegbenchError(
                f"crops: resize is {self.resize}; {self.cut} of {size} px needs at least {needed}"
            )
        if self.cut == "patches" and self.count > 9:
            raise RegbenchError(f"crops: count is {self.count}; there are 9 patches")
        return replace(self, size=size)

    @property
    def side(self) -> int:
        """The side of these views in px, which `of_size` has filled in."""
        assert self.size is not None
        return self.size


UNCHANGED = ViewsConfig(jitter_p=0.0, grayscale_p=0.0, blur_p=0.0, solarize_p=0.0)
"""Views that are only cropped and flipped."""

UNAUGMENTED = replace(UNCHANGED, crop_scale=(1.0, 1.0), crop_ratio=(1.0, 1.0), flip_p=0.0)
"""The views of vectors, which differ by their draws alone."""


def _two_views() -> dict[str, ViewsConfig]:
    return {"view1": ViewsConfig(), "view2": ViewsConfig(blur_p=1.0, solarize_p=0.0)}


@settings
class AugmentationConfig:
    """The views of an image and the filter that resizes the crops.

    Attributes:
        name: Name in the record.
        views: The kinds of views by any names, the global ones first; by default the paper's two.
        interpolation: Filter that resizes the crops.
    """

    name: str = "imagenet"
    # A dictionary has no hash. It still counts in comparisons.
    views: dict[str, ViewsConfig] = field(default_factory=_two_views, hash=False)
    interpolation: Interpolation = "bicubic"

    def __post_init__(self) -> None:
        """Refuse views that no loss can take."""
        # A loss treats the first views as the global ones.
        # False sorts before True, so that sorted kinds have the global ones first.
        local = [kind.local for kind in self.views.values()]
        if self.count < 2 or local != sorted(local) or all(local):
            stated = []
            for name, kind in self.views.items():
                stated.append(f"{name}: {kind.count}{' local' * kind.local}")
            what = f"augmentation.views are {', '.join(stated) or 'none'}"
            raise RegbenchError(f"{what}; give two or more, the global ones before the local ones")

    @property
    def count(self) -> int:
        """Number of views of an image."""
        return sum(kind.count for kind in self.views.values())

    @property
    def global_views(self) -> int:
        """Number of global views of an image."""
        return sum(kind.count for kind in self.views.values() if not kind.local)

    def pair(self) -> AugmentationConfig:
        """Return the same with its first two views only, for evaluations that need two views."""
        views: dict[str, ViewsConfig] = {}
        wanted = 2
        for name, kind in self.views.items():
            taken = min(kind.count, wanted)
            wanted -= taken
            if taken:
                views[name] = replace(kind, count=taken)
        return replace(self, views=views)

    def kinds(self, image_size: int) -> list[ViewsConfig]:
        """List the kinds of views with their sizes, for a data set of this image size.

        Refuse views that cannot be cut.
        """
        return [kind.of_size(image_size) for kind in self.views.values()]

    def sizes_px(self, image_size: int) -> list[int]:
        """List the side of each view, px."""
        sides: list[int] = []
        for kind in self.kinds(image_size):
            sides += [kind.side] * kind.count
        return sides


@settings
class DatasetConfig:
    """A data set: where its images come from, and how they are shown.

    Attributes:
        name: Name of its folder under the data folder.
        source: Source of the images, which divides them into splits.
        image_size: Side of a training crop and of an evaluation image, px.
        channels: 3, or 1 for grey images (stored as RGB; the first channel is taken).
        mean: Mean of each channel, of values in [0, 1]; it is subtracted.
        std: Standard deviation of each channel; it is divided by.
        shared_bits: Number of random bits that all views of an image share, each a further,
            constant channel: a shortcut that a network can take in place of what the image shows
            (Chen, Luo and Li, "Intriguing properties of contrastive losses", NeurIPS 2021).
        num_classes: Number of classes; 0 of one's own images: as many as there are, which `prepare`
            finds.
        eval_resize: Shorter side for evaluation, px; image_size px are then cut from the
            centre. (The paper writes "256 × 256"; the code that it names, DINO's and VICReg's, does
            this.)
        train_per_class: Training takes the first so many images of each class of the train split;
            null: all of them.
        pretraining_images: Number of images to pretrain on, at even distances in their split; null:
            all of them.
    """

    name: Name
    source: Annotated[Source, SOURCES.setting("dataset.source.")]
    image_size: AtLeastOne
    channels: Literal[1, 3] = 3
    mean: tuple[float, ...]
    std: tuple[Positive, ...]
    shared_bits: Annotated[int, Field(ge=0, le=12)] = 0
    num_classes: AtLeastZero
    eval_resize: AtLeastOne
    train_per_class: AtLeastOne | None = None
    pretraining_images: AtLeastOne | None = None

    def __post_init__(self) -> None:
        """Refuse numbers that do not fit each other."""
        where = f"data set '{self.name}'"
        if len(self.mean) != self.channels or len(self.std) != self.channels:
            raise RegbenchError(f"{where}: mean and std need {self.channels} numbers each")
        if not self.num_classes and not self.source.own:
            raise RegbenchError(f"{where}: num_classes is at least 1")
        if (drawn := self.source.drawn_shape) and (
            self.image_size != drawn[1] or self.train_per_class
        ):
            raise RegbenchError(
                f"{where}: examples are drawn, and taken whole; set dataset.image_size={drawn[1]} "
                "dataset.train_per_class=null, and dataset.source.train_examples for fewer labels"
            )
        if self.eval_resize < self.image_size:
            raise RegbenchError(
                f"{where}: eval_resize ({self.eval_resize} px) is smaller than image_size "
                f"({self.image_size} px)"
            )

    @property
    def input_channels(self) -> int:
        """Number of the network's input channels: those of the images or the values of a vector,
        plus the shared bits.
        """
        drawn = self.source.drawn_shape
        return (drawn[0] if drawn else self.channels) + self.shared_bits

    @property
    def prepare_command(self) -> str:
        """The command that prepares it. It names a published data set, or the kind of source of
        one's own images.
        """
        if self.source.own:
            preset = self.name if self.source.about else SOURCES.name(self.source)
            words = [preset, "--source-dir FOLDER"]
        else:
            # A published source has a preset of its name, whose settings may have been changed.
            preset = SOURCES.name(self.source)
            settings, defaults = plain(self.source), plain(SOURCES.build(preset))
            changed = [key for key, value in settings.items() if value != defaults[key]]
            words = [preset] + [f"dataset.source.{key}={shown(settings[key])}" for key in changed]
        name = [] if preset == self.name else [f"dataset.name={self.name}"]
        return " ".join(["regbench prepare", *words, *name])


# Settings that scenes got later, with the value that older cells have.
_OF_SCENES = {"backgrounds": 0, "scenes_per_image": 1}


def decisive(dataset: Mapping[str, Any]) -> dict[str, Any]:
    """Return a data set's plain data without settings that do not affect a run, such as what
    `prepare` accepts.
    """
    kind = SOURCES.of(dataset["source"]["name"])
    left_out = {each.name for each in dataclasses.fields(kind) if not each.compare}  # type: ignore[arg-type]
    source = {name: value for name, value in dataset["source"].items() if name not in left_out}
    found = {**dataset, "source": source}
    # Cells from before these settings existed keep their ids.
    for group, name in ((found, "shared_bits"), (found, "pretraining_images"), (source, "levels")):
        if not group.get(name):
            group.pop(name, None)
    for name, value in _OF_SCENES.items():
        if source["name"] == "scenes" and source.get(name) == value:
            del source[name]
    return found
