"""What a data set and its augmentation are: plain frozen dataclasses, checked when they are made.

The defaults of `ViewConfig` and `AugmentationConfig` are those of the SFRIK paper (appendix, "Image
augmentations"), which follows BYOL.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from regbench import RegbenchError
from regbench.datasets.published import PUBLISHED

ARRAY_SOURCES = ("fashion_mnist", "cifar10", "cifar100", "stl10")
OWN = ("imagefolder", "parquet")
SOURCES = (*ARRAY_SOURCES, *OWN)
DIVIDING = ("train_per_class", "tuning_per_class", "train_list")
RESIZE_SIDES = ("shorter", "longer")
# Settings of `DatasetConfig` that came later, as they are for all data sets from before.
LATER: dict[str, int | float | str | None] = {
    "resize_px": None,
    "resize_side": "shorter",
    "jpeg_quality": 95,
    "held_out": None,
}
INTERPOLATIONS = ("bicubic", "bilinear", "area")
SPLITS = ("train", "tuning", "test")


def _check_probability(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise RegbenchError(f"augmentation: {name} is {value}; a probability lies in [0, 1]")


def _check_range(name: str, value: tuple[float, float], low: float, high: float) -> None:
    if len(value) != 2 or not low < value[0] <= value[1] <= high:
        raise RegbenchError(f"augmentation: {name} is {tuple(value)}; give two numbers {low} < a <= b <= {high}")


@dataclass(frozen=True, kw_only=True)
class ViewConfig:
    """The augmentation of one view; the defaults are the paper's first view.

    Attributes:
        crop_scale: range of the crop's area, as a fraction of the image's.
        crop_ratio: range of the crop's width / height.
        flip_p: probability of a horizontal flip.
        jitter_p: probability of the colour jitter.
        brightness: the brightness factor is uniform in [1 - brightness, 1 + brightness]; likewise `contrast`
            and `saturation`.
        contrast: see `brightness`.
        saturation: see `brightness`.
        hue: the hue shift is uniform in [-hue, hue], in turns of the colour circle.
        grayscale_p: probability of dropping the colour.
        blur_p: probability of the Gaussian blur.
        blur_sigma: range of the blur's standard deviation, in px of the crop.
        solarize_p: probability of inverting the values at or above `solarize_threshold`.
        solarize_threshold: a grey level, 0 to 255.

    Raises:
        RegbenchError: a value outside its range.
    """

    crop_scale: tuple[float, float] = (0.08, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip_p: float = 0.5
    jitter_p: float = 0.8
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.2
    hue: float = 0.1
    grayscale_p: float = 0.2
    blur_p: float = 0.1
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    solarize_p: float = 0.2
    solarize_threshold: int = 130

    def __post_init__(self) -> None:
        """Check every range."""
        for name in ("flip_p", "jitter_p", "grayscale_p", "blur_p", "solarize_p"):
            _check_probability(name, getattr(self, name))
        for name in ("brightness", "contrast", "saturation"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise RegbenchError(f"augmentation: {name} is {getattr(self, name)}; it lies in [0, 1]")
        if not 0.0 <= self.hue <= 0.5:
            raise RegbenchError(f"augmentation: hue is {self.hue}; it lies in [0, 0.5]")
        _check_range("crop_scale", self.crop_scale, 0.0, 1.0)
        _check_range("crop_ratio", self.crop_ratio, 0.0, 100.0)
        _check_range("blur_sigma", self.blur_sigma, 0.0, 100.0)
        if not 0 <= self.solarize_threshold <= 255:
            raise RegbenchError(f"augmentation: solarize_threshold is {self.solarize_threshold}; it lies in [0, 255]")


UNCHANGED = ViewConfig(jitter_p=0.0, grayscale_p=0.0, blur_p=0.0, solarize_p=0.0)
"""Cropped and flipped only."""


@dataclass(frozen=True, kw_only=True)
class AugmentationConfig:
    """The augmentation of both views and the filter that resizes the crops.

    Attributes:
        name: for the record.
        view1: the first view.
        view2: the second view; by default blurred always and never solarized, as in the paper.
        interpolation: "bicubic" (a = -0.5), "bilinear" or "area" (mean of the covered pixels), all antialiased.

    Raises:
        RegbenchError: an unknown interpolation.
    """

    name: str = "imagenet"
    view1: ViewConfig = field(default_factory=ViewConfig)
    view2: ViewConfig = field(default_factory=lambda: ViewConfig(blur_p=1.0, solarize_p=0.0))
    interpolation: str = "bicubic"

    def __post_init__(self) -> None:
        """Check the interpolation."""
        check_interpolation(self.interpolation)

    def crops(self, size: int) -> MultiCropConfig:
        """The two views as random resized crops of `size` px."""
        crops = tuple(CropConfig(view=view, size=size) for view in (self.view1, self.view2))
        return MultiCropConfig(crops=crops, interpolation=self.interpolation)


PATCH_JITTER = 24


@dataclass(frozen=True, kw_only=True)
class CropConfig:
    """Views of one kind, of which an image can have many.

    Attributes:
        view: their augmentation.
        size: their side, px.
        count: how many of them.
        cut: "random": random resized crops; "center": the shorter side resized to `resize` px, the central square kept,
            flipped as `view` says; "patches": of the 3 x 3 overlapping squares of one random resized crop of `resize`
            px, each moved by up to `PATCH_JITTER` px, `count` different ones (Gidaris et al., "OBoW", CVPR 2021).
            Patches of an image share their photometric parameters; the contrast is about the mean of the patch.
        resize: px, see `cut`.

    Raises:
        RegbenchError: an unknown cut, or sizes that do not fit.
    """

    view: ViewConfig
    size: int
    count: int = 1
    cut: str = "random"
    resize: int | None = None

    def __post_init__(self) -> None:
        """Check the numbers against each other."""
        if self.cut not in ("random", "center", "patches"):
            raise RegbenchError(f"crops: unknown cut '{self.cut}'; choose one of random, center, patches")
        if self.size < 1 or self.count < 1:
            raise RegbenchError(f"crops: size ({self.size}) and count ({self.count}) are at least 1")
        needed = {"random": 0, "center": self.size, "patches": self.size + PATCH_JITTER}[self.cut]
        if needed and (self.resize or 0) < needed:
            raise RegbenchError(f"crops: resize is {self.resize}; {self.cut} of {self.size} px needs at least {needed}")
        if self.cut == "patches" and self.count > 9:
            raise RegbenchError(f"crops: count is {self.count}; there are 9 patches")


@dataclass(frozen=True, kw_only=True)
class MultiCropConfig:
    """All views of a multi-crop augmentation.

    Attributes:
        crops: the kinds of views, in the order in which they are delivered.
        interpolation: as for `AugmentationConfig`.

    Raises:
        RegbenchError: an unknown interpolation.
    """

    crops: tuple[CropConfig, ...]
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        """Check the interpolation."""
        check_interpolation(self.interpolation)


def swav_crops(
    counts: tuple[int, ...] = (2, 6),
    sizes: tuple[int, ...] = (224, 96),
    min_scales: tuple[float, ...] = (0.14, 0.05),
    max_scales: tuple[float, ...] = (1.0, 0.14),
) -> MultiCropConfig:
    """The views of SwAV (Caron et al., NeurIPS 2020), with the options of SFRIK's published code and its defaults.

    Args:
        counts: crops of each kind.
        sizes: their sides, px.
        min_scales: the least area of each kind, as a fraction of the image's.
        max_scales: the largest.

    Raises:
        RegbenchError: the four differ in length, or hold an impossible number.
    """
    if not len(counts) == len(sizes) == len(min_scales) == len(max_scales):
        raise RegbenchError("crops: give as many counts as sizes, min_scales and max_scales")
    colors = {"brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2, "blur_p": 0.5, "solarize_p": 0.0}
    kinds = zip(counts, sizes, min_scales, max_scales, strict=True)
    return MultiCropConfig(
        crops=tuple(
            CropConfig(view=ViewConfig(crop_scale=(low, high), **colors), size=size, count=count)  # type: ignore[arg-type]
            for count, size, low, high in kinds
        )
    )


def obow_crops(num_crops: int = 2, crop_size: int = 160, num_patches: int = 5, patch_size: int = 96) -> MultiCropConfig:
    """The views of OBoW (Gidaris et al., CVPR 2021), with the options of SFRIK's published code: image, crops, patches.

    Args:
        num_crops: crops of 8 to 60 % of the image.
        crop_size: their side, px.
        num_patches: patches of 9; 0 for none.
        patch_size: their side, px.

    Raises:
        RegbenchError: an impossible number.
    """
    colors = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.4, "solarize_p": 0.0}
    crop = ViewConfig(crop_scale=(0.08, 0.6), blur_p=0.5, **colors)  # type: ignore[arg-type]
    patch = ViewConfig(crop_scale=(0.6, 1.0), blur_p=0.0, **colors)  # type: ignore[arg-type]
    crops = [
        CropConfig(view=UNCHANGED, size=224, cut="center", resize=256),
        CropConfig(view=crop, size=crop_size, count=num_crops),
    ]
    if num_patches:
        crops.append(CropConfig(view=patch, size=patch_size, count=num_patches, cut="patches", resize=256))
    return MultiCropConfig(crops=tuple(crops))


def check_interpolation(interpolation: str) -> None:
    """Refuse an interpolation that we do not have.

    Raises:
        RegbenchError: an unknown interpolation.
    """
    if interpolation not in INTERPOLATIONS:
        raise RegbenchError(f"unknown interpolation '{interpolation}'; choose one of {', '.join(INTERPOLATIONS)}")


@dataclass(frozen=True, kw_only=True)
class DatasetConfig:
    """A data set: where its images come from, how they are split and how they are shown.

    Attributes:
        name: the folder under the data folder.
        source: one of `SOURCES`.
        image_size: side of a training crop and of an evaluation image, px.
        channels: 3, or 1 for grey images (stored as RGB; the first channel is taken).
        mean: per channel, of values in [0, 1]; subtracted.
        std: per channel; divided by.
        num_classes: number of classes; 0, for `prepare` only: as many as a source of `OWN` has.
        eval_resize: for evaluation the shorter side is resized to so many px, then `image_size` px are cut from the
            centre. (The paper writes "256 × 256"; the code that it names, DINO's and VICReg's, does this.)
        train_per_class: the train split holds the first so many images of each class (None: all of them).
        train_list: imagefolder only: a text file with the names of the images for training, one a line (None: all of
            them); in the source's folder, else in the working directory.
        tuning_per_class: imagefolder and parquet: the tuning split holds so many images of each class, taken from the
            training images after those for training and one skipped, or, with a `train_list`, from those that it does
            not name (None: no such split).
        held_out: imagefolder only, without the three above: the share of each class's training images, by the hash of
            their names, that is for tuning, and as many for the test, where the source has no folders for these.
        resize_px: image files only: a larger image is shrunk to so many px when the data set is prepared (None: the
            original JPEGs are kept bit for bit); see `encode`.
        resize_side: "shorter" or "longer", the side that `resize_px` is about.
        jpeg_quality: of the images that are shrunk or converted when the data set is prepared, 1 to 100.
        published: the published data set of `PUBLISHED` that the source must be the whole of: its images are counted
            (None: a part of one, or any other images). It only says what `prepare` accepts, and is no part of a cell.

    Raises:
        RegbenchError: an unknown source or a number that cannot be.
    """

    name: str
    source: str
    image_size: int
    channels: int = 3
    mean: tuple[float, ...]
    std: tuple[float, ...]
    num_classes: int
    eval_resize: int
    train_per_class: int | None = None
    tuning_per_class: int | None = None
    train_list: str | None = None
    resize_px: int | None = None
    resize_side: str = "shorter"
    jpeg_quality: int = 95
    held_out: float | None = None
    published: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Check the numbers against each other."""
        where = f"data set '{self.name}'"
        if not self.name or "/" in self.name or self.name.startswith("."):
            raise RegbenchError(f"{where}: the name is a folder's name: no '/', no leading '.', not empty")
        if self.source not in SOURCES:
            raise RegbenchError(f"{where}: unknown source '{self.source}'; choose one of {', '.join(SOURCES)}")
        if self.published is not None and self.published not in PUBLISHED:
            raise RegbenchError(
                f"{where}: unknown published data set '{self.published}'; choose one of {', '.join(PUBLISHED)}, or null"
            )
        if self.channels not in (1, 3):
            raise RegbenchError(f"{where}: channels is {self.channels}; it is 1 or 3")
        if len(self.mean) != self.channels or len(self.std) != self.channels or min(self.std) <= 0:
            raise RegbenchError(f"{where}: mean and std need {self.channels} numbers each, std above 0")
        if self.num_classes < (self.source not in OWN) or self.image_size < 1:
            raise RegbenchError(f"{where}: num_classes and image_size are at least 1")
        if self.eval_resize < self.image_size:
            raise RegbenchError(
                f"{where}: eval_resize ({self.eval_resize} px) is smaller than image_size ({self.image_size} px)"
            )
        for name in ("train_per_class", "tuning_per_class"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise RegbenchError(f"{where}: {name} is {value}; give at least 1, or leave it out for all")
        if self.resize_px is not None and (self.resize_px < 1 or self.source in ARRAY_SOURCES):
            raise RegbenchError(
                f"{where}: resize_px is {self.resize_px}; give at least 1, and only where the source is image files"
            )
        if self.resize_side not in RESIZE_SIDES or (self.resize_side != "shorter" and self.resize_px is None):
            raise RegbenchError(
                f"{where}: resize_side is '{self.resize_side}'; choose one of {', '.join(RESIZE_SIDES)}, with resize_px"
            )
        if not 1 <= self.jpeg_quality <= 100:
            raise RegbenchError(f"{where}: jpeg_quality is {self.jpeg_quality}; it lies in [1, 100]")
        if self.held_out is not None:
            if self.source != "imagefolder" or not 0 < self.held_out <= 0.4:
                raise RegbenchError(
                    f"{where}: held_out is {self.held_out}; give a share above 0 and up to 0.4, of a folder of images, "
                    "or null"
                )
            if any(getattr(self, name) is not None for name in DIVIDING):
                raise RegbenchError(
                    f"{where}: held_out divides the images, and so do {', '.join(DIVIDING)}; set it null"
                )

    def later(self) -> dict[str, int | float | str]:
        """Those of `LATER` that are not at their defaults."""
        return {name: getattr(self, name) for name, default in LATER.items() if getattr(self, name) != default}

    @property
    def prepare_command(self) -> str:
        """How it is prepared: what is published by its name, one's own images by the kind of their source."""
        preset = self.source if self.published is None or self.source in ARRAY_SOURCES else self.name
        folder = "" if self.source in ARRAY_SOURCES else " --source-dir FOLDER"
        name = "" if preset == self.name else f" dataset.name={self.name}"
        return f"regbench prepare {preset}{folder}{name}"
