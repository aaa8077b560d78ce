"""A small folder in VOC2007's layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from regbench.datasets.stored.voc_files import CLASSES

TRAINVAL, TEST = 60, 40


def main_folder(data_dir: Path) -> Path:
    """Where the lists of images are."""
    return data_dir / "voc07" / "VOCdevkit" / "VOC2007" / "ImageSets" / "Main"


def write_voc07(data_dir: Path) -> None:
    """Noisy pictures whose hue tells, more or less, which classes are in them.

    Each image has two, one of them easy.
    """
    rng = np.random.default_rng(7)
    images = main_folder(data_dir).parents[1] / "JPEGImages"
    for folder in (main_folder(data_dir), images):
        folder.mkdir(parents=True)
    for split, count, first in (("trainval", TRAINVAL, 1), ("test", TEST, 500)):
        presence = np.full((count, len(CLASSES)), -1)
        for i in range(count):
            easy, other = i % 20, (7 * i + i // 20) % 20
            presence[i, other] = rng.choice([0, 1])
            presence[i, easy] = 1
            hue = np.array([np.sin(easy), np.sin(2 * easy + 1), np.cos(3 * easy)])
            size = tuple(rng.integers(24, 40, 2))
            pixels = 128 + 60 * hue + rng.normal(0, 25, (*size, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(
                images / f"{first + i:06d}.jpg", quality=92
            )
        for column, name in enumerate(CLASSES):
            lines = [f"{first + i:06d} {presence[i, column]:2d}\n" for i in range(count)]
            (main_folder(data_dir) / f"{name}_{split}.txt").write_text("".join(lines))
