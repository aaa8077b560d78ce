"""Images as they are stored: the bytes of an RGB JPEG as they are, everything else converted,
shrunk where asked.

What a picture looks like does not depend on the loader, so it is settled here, with the settings of
`ImageFiles`:

- Without `resize_px` an RGB JPEG is copied bit for bit. Other kinds are converted to RGB and stored
  raw up to `MAX_RAW_PIXELS` pixels, above as JPEG.
- With it, an image whose side is longer is shrunk by Pillow's bicubic filter, which is antialiased,
  and stored as JPEG; others are treated as without it. Nothing is enlarged.
- JPEGs made here have `jpeg_quality` and no chroma subsampling.
- The EXIF orientation of JPEG, PNG and WebP files is ignored, as torchvision's `ImageFolder` does;
  of TIFF files Pillow itself obeys it, there as here. A transparent pixel has the colour that is
  stored for it, as in `ImageFolder`.
- Of 16 bits a channel the upper 8 are kept. (Pillow's own conversion would turn all but the darkest
  grey levels white.) Grey images that do not use all of them are scaled by `levels`.
- Of several frames or pages the first is kept, and of more than three bands the first three.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image as PIL_Image
from PIL import TiffImagePlugin, UnidentifiedImageError

from regbench.datasets.sources.base import Image, ImageFiles, Source, Split
from regbench.datasets.stored.beton import JPEG, RAW, Sample
from regbench.files import regular

# Images that are no RGB JPEG are stored raw up to this many pixels.
MAX_RAW_PIXELS = 128 * 128
# The longest side that libjpeg can write and read.
MAX_SIDE_PX = 65500
_TIFF_BANDS = 277  # the number of this tag
# Remarks on what is left out of images, to stand after the number of images.
_BANDS = "have transparency or bands beyond their colours, of which nothing is kept"
_FRAMES = "have several frames or pages, of which the first is kept"
# Pillow prints a line of its own for each image that is refused here.
logging.getLogger(TiffImagePlugin.__name__).setLevel(logging.CRITICAL)
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Unreadable:
    """An image that cannot be stored: where it is, as in `Sample`, and why, in one line."""

    origin: str
    reason: str


def encode(image: Path | bytes, label: int, origin: str, source: ImageFiles) -> Sample | Unreadable:
    """Read and fully decode one image, and shrink or convert it where `source` or its kind asks
    for that.
    """
    try:
        data = regular(image).read_bytes() if isinstance(image, Path) else image
        with PIL_Image.open(BytesIO(data)) as picture:
            # Pillow keeps 8 of the 16 bits of a colour, and only says so until the image is
            # decoded. ("BGR;16", without an order of bytes, has 16 bits for all three colours.)
            tile = str(picture.tile[:1])
            deep_colour = picture.mode[0] != "I" and any(f";16{order}" in tile for order in "BLN")
            # Even if its bytes are kept, the image is decoded in full, as a check.
            picture.load()
            width, height = shrunk_size(*picture.size, source)
            if max(width, height) > MAX_SIDE_PX:
                size = f"it is {width} x {height} px, and {MAX_SIDE_PX} is the most"
                raise ValueError(f"{size}; set dataset.source.resize_px")
            shrunk = (width, height) != picture.size
            if picture.format == "JPEG" and picture.mode == "RGB" and not shrunk:
                return Sample(JPEG, height, width, label, data, origin)
            grey = picture.mode in ("1", "L", "LA") or picture.mode.startswith("I")
            rgb, peak = to_rgb(picture, source.levels)
            if deep_colour:
                if source.levels is not None:
                    raise ValueError(
                        "dataset.source.levels is for grey images without transparency; convert it "
                        "to 8 bits"
                    )
                # This is an upper bound: the lower bits are not known.
                peak = int(np.asarray(rgb).max()) * 256 + 255
            remarks = _remarks(picture)
    except UnidentifiedImageError:
        if data[:4] in (b"II*\0", b"MM\0*"):
            reason = "Pillow decodes no such TIFF; of more than four bands write three"
            return Unreadable(origin, reason)
        return Unreadable(origin, "it is no image of a known format" if data else "it is empty")
    except Exception as error:  # a damaged file can lead Pillow's decoders to raise anything
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return Unreadable(origin, " ".join(reason.split()))
    if shrunk:
        rgb = rgb.resize((width, height), PIL_Image.Resampling.BICUBIC)
    elif width * height <= MAX_RAW_PIXELS:
        return Sample(RAW, height, width, label, rgb.tobytes(), origin, grey, peak, remarks)
    buffer = BytesIO()
    rgb.save(buffer, "JPEG", quality=source.jpeg_quality, subsampling=0)
    return Sample(JPEG, height, width, label, buffer.getvalue(), origin, grey, peak, remarks)


def shrunk_size(width: int, height: int, source: ImageFiles) -> tuple[int, int]:
    """Return the width and height (px) to store.

    The side that `resize_side` does not name is cut down to whole pixels.
    """
    side = min(width, height) if source.resize_side == "shorter" else max(width, height)
    if source.resize_px is None or side <= source.resize_px:
        return width, height
    return max(1, width * source.resize_px // side), max(1, height * source.resize_px // side)


def to_rgb(picture: PIL_Image.Image, levels: int | None) -> tuple[PIL_Image.Image, int]:
    """Convert to 8-bit RGB, and return the highest value if grey has more than 8 bits, else -1."""
    if picture.mode == "F":
        what = "its pixels are floating-point numbers, whose range is not known"
        raise ValueError(f"{what}; convert it to 8 or 16 bits")
    peak = -1
    if picture.mode.startswith("I"):
        values = np.asarray(picture).astype(np.int64)
        if picture.format == "PPM":  # it states its range, and Pillow scales to 16 bits
            levels = None
        elif picture.mode == "I" and levels is None:
            remedy = "convert it to 8 or 16 bits, or set dataset.source.levels"
            raise ValueError(f"its pixels are 32-bit numbers, whose range is not known; {remedy}")
        else:
            peak = int(values.max())
        scaled = np.clip(values * 256 // (levels or 65536), 0, 255)
        picture = PIL_Image.fromarray(scaled.astype(np.uint8))
    elif "transparency" in picture.info:
        # Pillow warns if a palette with transparency is converted to RGB directly.
        picture = picture.convert("RGBA")
    return picture.convert("RGB"), peak


def _remarks(picture: PIL_Image.Image) -> tuple[str, ...]:
    """Say what is not kept of a decoded image."""
    said = []
    bands = picture.getbands()
    stored = len(bands)
    if isinstance(picture, TiffImagePlugin.TiffImageFile):
        stored = picture.tag_v2.get(_TIFF_BANDS, 1)
    if stored > len(bands) or bands[-1] in "Aa" or "transparency" in picture.info:
        said.append(_BANDS)
    # Damage in later frames does not matter.
    with suppress(Exception):
        if getattr(picture, "n_frames", 1) > 1:
            said.append(_FRAMES)
    return tuple(said)


def samples_of(split: Split, source: Source) -> Iterator[Sample | Unreadable]:
    """Yield what is stored of every image of a split, in order.

    Image files are read in several threads.
    """

    def sample(item: tuple[tuple[Image, str], int]) -> Sample | Unreadable:
        (image, origin), label = item
        if isinstance(image, np.ndarray):
            height, width = image.shape[:2]
            if grey := image.ndim == 2:
                image = np.repeat(image[:, :, None], 3, axis=2)
            return Sample(RAW, height, width, label, image.tobytes(), origin, grey)
        assert isinstance(source, ImageFiles), "image files come from subclasses of ImageFiles"
        return encode(image, label, origin, source)

    images = zip(split.images(), split.labels.tolist(), strict=True)
    if isinstance(source, ImageFiles):
        # Threads will do: Pillow releases Python's lock while it decodes, shrinks and encodes.
        return in_order(sample, images)
    return map(sample, images)


def in_order(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield the results of `function` in the order of `items`, from a thread per core, never far
    ahead of the reader.
    """
    waiting: deque[Future[R]] = deque()
    # The cores that this process may use: under Slurm fewer than the machine has.
    threads = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(threads) as pool:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > 16 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
