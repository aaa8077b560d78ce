"""PASCAL VOC2007 as it is published: which classes are in an image, and the images of its two
splits.

`ImageSets/Main/<class>_<split>.txt` has a line for each image: its name and 1 (the class is in it),
-1 (it is not) or 0 (it is, but only in objects marked "difficult").
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from PIL import Image
from torch import Tensor

from regbench.datasets.loading.torchvision_crops import resize
from regbench.datasets.published import PUBLISHED, refuse_if
from regbench.errors import RegbenchError
from regbench.files import regular

# fmt: off
CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
        "diningtable", "dog",
    "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)
# fmt: on
SPLITS = ("trainval", "test")


@dataclass(frozen=True)
class VOCSplit:
    """One split.

    Attributes:
        paths: Paths of the N images, sorted by name.
        presence: (N, 20) int8: 1 the class is in the image, -1 it is not, 0 only in objects marked
            difficult.
    """

    paths: tuple[Path, ...]
    presence: npt.NDArray[np.int8]


def voc07_folder(data_dir: Path) -> Path:
    """Return the folder of a prepared VOC2007."""
    return data_dir / "voc07" / "VOCdevkit"


def read_voc07(devkit: Path, num_images: tuple[int, int], where: str = "") -> dict[str, VOCSplit]:
    """Read "trainval" and "test" of a folder VOCdevkit/, whose VOC2007/ messages call `where`.

    Refuse numbers of images other than `num_images`.
    """
    folder = devkit / "VOC2007"
    where = where or str(folder)
    address = PUBLISHED["voc2007"].address
    if not folder.is_dir():
        what = f"{where} is missing, or has no VOC2007/; get both archives from {address}"
        raise RegbenchError(f"{what}: regbench prepare voc07 --source-dir FOLDER")
    wrong: list[str] = []
    splits = {}
    for split, expected in zip(SPLITS, num_images, strict=True):
        # The table has a row for each image that any class names. A fault can leave gaps; they are
        # filled so that all faults are found.
        presence = {name: _presence(folder, name, split, wrong) for name in CLASSES}
        table = pd.DataFrame(presence).sort_index()
        if len(table) != expected:
            wrong.append(f"{split} has {len(table):,} images, not {expected:,}")
        for name, count in table.notna().sum().items():
            if 0 < count < len(table):
                wrong.append(f"{name}_{split}.txt names {count:,} of {len(table):,} images")
        paths = tuple(folder / "JPEGImages" / f"{image}.jpg" for image in table.index)
        missing = [path.name for path in paths if not path.is_file()]
        if missing:
            lost = f"{len(missing):,} images of {split} are not in JPEGImages/"
            wrong.append(f"{lost}, the first is {missing[0]}")
        splits[split] = VOCSplit(paths, table.fillna(-1).to_numpy(np.int8))
    if both := set(splits["trainval"].paths) & set(splits["test"].paths):
        wrong.append(f"{len(both):,} images are in both splits, the first is {min(both).name}")
    again = f"get both archives again from {address}"
    remedy = f"{again}: regbench prepare voc07 --source-dir FOLDER --force; or state the size of "
    remedy += "a folder of your own: evaluation.voc07.num_images=[TRAINVAL,TEST]"
    refuse_if(wrong, f"{where} is not the complete VOC2007", remedy)
    return splits


def _presence(folder: Path, name: str, split: str, wrong: list[str]) -> dict[str, int]:
    """Read one file: image -> 1, 0 or -1. What is wrong is added to `wrong`."""
    path = folder / "ImageSets" / "Main" / f"{name}_{split}.txt"
    try:
        lines = [line.split() for line in path.read_text().splitlines() if line.strip()]
        found = {image: int(label) for image, label in lines}
        if set(found.values()) - {-1, 0, 1}:
            raise ValueError
    except FileNotFoundError:
        wrong.append(f"ImageSets/Main/{path.name} is missing")
    except ValueError:
        wrong.append(f"ImageSets/Main/{path.name} has a line that is no image with -1, 0 or 1")
    else:
        return found
    return {}


def read_image(path: Path) -> npt.NDArray[np.uint8]:
    """Decode an image of VOC2007: (height, width, 3), RGB; a refusal names the file."""
    try:
        with Image.open(regular(path)) as image:
            return np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise RegbenchError(
            f"cannot read the image {path} ({error}); unpack its archive again"
        ) from error


def whole_images(
    paths: tuple[Path, ...],
    *,
    shorter: int,
    size: int,
    interpolation: str,
    batch_size: int,
    workers: int,
) -> Iterator[Tensor]:
    """Make batches (n, 3, size, size) uint8 of whole images, in order, in threads.

    A refusal names the file.
    """

    # VISSL resizes twice, too: the shorter side to `shorter` px, then the image to a square,
    # whatever its shape.
    def read(path: Path) -> Tensor:
        pixels = read_image(path)
        height, width, _ = pixels.shape
        short = min(height, width)
        pixels = resize(pixels, shorter * height // short, shorter * width // short, interpolation)
        square_SSC = np.array(resize(pixels, size, size, interpolation))
        return torch.from_numpy(square_SSC).permute(2, 0, 1)

    with ThreadPoolExecutor(workers) as pool:
        for start in range(0, len(paths), batch_size):
            yield torch.stack(list(pool.map(read, paths[start : start + batch_size])))
