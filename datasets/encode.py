"""Images as they are stored: the bytes of an RGB JPEG as they are, everything else converted, shrunk where asked.

What a picture looks like does not depend on the loader, so it is settled here:

- Without `DatasetConfig.resize_px` an RGB JPEG is copied bit for bit. Other kinds are converted to RGB and stored raw
  up to `MAX_RAW_PIXELS` pixels, above as JPEG.
- With it, an image whose side is longer is shrunk by Pillow's bicubic filter, which is antialiased, and stored as JPEG;
  others are treated as without it. Nothing is enlarged.
- JPEGs made here have `DatasetConfig.jpeg_quality` and no chroma subsampling.
- The EXIF orientation of JPEG, PNG and WebP files is ignored, as torchvision's `ImageFolder` does; of TIFF files Pillow
  itself obeys it, there as here. A transparent pixel has the colour that is stored for it, as in `ImageFolder`.
- Of 16 bits a channel the upper 8 are kept. (Pillow's own conversion would turn all but the darkest grey levels white.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image, UnidentifiedImageError

from regbench.datasets.beton import JPEG, RAW, Sample
from regbench.datasets.config import DatasetConfig

# What is no RGB JPEG is stored raw up to this many pixels.
MAX_RAW_PIXELS = 128 * 128
# Of what libjpeg writes and reads.
MAX_SIDE_PX = 65500
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Unreadable:
    """An image that cannot be stored.

    Attributes:
        origin: where it is, as in `Sample`.
        reason: why, in one line.
    """

    origin: str
    reason: str


def encode(image: Path | bytes, label: int, origin: str, config: DatasetConfig) -> Sample | Unreadable:
    """Read and fully decode one image, and shrink or convert it where `config` or its kind asks for that.

    Args:
        image: the file, or its content.
        label: the class, or -1 for none.
        origin: where the image is in its source, see `Sample`.
        config: says whether it is shrunk.
    """
    try:
        data = image.read_bytes() if isinstance(image, Path) else image
        with Image.open(BytesIO(data)) as picture:
            picture.load()
            width, height = shrunk_size(*picture.size, config)
            if max(width, height) > MAX_SIDE_PX:
                raise ValueError(f"it is {width} x {height} px, and {MAX_SIDE_PX} is the most; set dataset.resize_px")
            shrunk = (width, height) != picture.size
            if picture.format == "JPEG" and picture.mode == "RGB" and not shrunk:
                return Sample(JPEG, height, width, label, data, origin)
            grey = picture.mode in ("1", "L", "LA") or picture.mode.startswith("I")
            rgb = _rgb(picture)
    except UnidentifiedImageError:
        return Unreadable(origin, "it is no image of a known format")
    except Exception as error:  # a damaged file can lead Pillow's decoders to raise anything
        reason = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
        return Unreadable(origin, " ".join(reason.split()))
    if shrunk:
        rgb = rgb.resize((width, height), Image.Resampling.BICUBIC)
    elif width * height <= MAX_RAW_PIXELS:
        return Sample(RAW, height, width, label, rgb.tobytes(), origin, grey)
    buffer = BytesIO()
    rgb.save(buffer, "JPEG", quality=config.jpeg_quality, subsampling=0)
    return Sample(JPEG, height, width, label, buffer.getvalue(), origin, grey)


def shrunk_size(width: int, height: int, config: DatasetConfig) -> tuple[int, int]:
    """Width and height (px) at which an image of this size is stored; the other side is cut down to whole pixels."""
    side = min(width, height) if config.resize_side == "shorter" else max(width, height)
    if config.resize_px is None or side <= config.resize_px:
        return width, height
    return max(1, width * config.resize_px // side), max(1, height * config.resize_px // side)


def _rgb(picture: Image.Image) -> Image.Image:
    if picture.mode == "F":
        raise ValueError("its pixels are floating-point numbers, whose range is not known; convert it to 8 or 16 bits")
    if picture.mode.startswith("I"):
        grey = np.asarray(picture)
        if grey.min() < 0 or grey.max() > 0xFFFF:
            raise ValueError("its pixels are 32-bit numbers, whose range is not known; convert it to 8 or 16 bits")
        picture = Image.fromarray((grey >> 8).astype(np.uint8))
    elif "transparency" in picture.info:
        # Straight to RGB, Pillow warns of a palette's transparency.
        picture = picture.convert("RGBA")
    return picture.convert("RGB")


def encode_all(
    images: Iterable[tuple[Path | bytes, int, str]], config: DatasetConfig, workers: int
) -> Iterator[Sample | Unreadable]:
    """`encode` every (image, label, origin), in order, in `workers` threads.

    Threads will do: Pillow releases Python's lock while it decodes, shrinks and encodes.
    """

    def one(image: tuple[Path | bytes, int, str]) -> Sample | Unreadable:
        return encode(*image, config)

    return in_order(one, images, workers)


def in_order(function: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[R]:
    """The results of `function` in the order of `items`, from threads that are never far ahead of the reader."""
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > 16 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
