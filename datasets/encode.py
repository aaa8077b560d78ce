"""Images as they are stored: the bytes of an RGB JPEG as they are, everything else converted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from itertools import islice
from pathlib import Path

from PIL import Image

from regbench import RegbenchError
from regbench.datasets.beton import JPEG, RAW, Sample
from regbench.datasets.config import DatasetConfig

# What is no RGB JPEG is stored raw up to this many pixels; larger images become JPEGs of this quality.
MAX_RAW_PIXELS = 128 * 128
JPEG_QUALITY = 95


def encode(image: Path | bytes, label: int, origin: str, config: DatasetConfig) -> Sample:
    """Read and fully decode one image; an RGB JPEG is kept byte for byte.

    Everything else (grey, CMYK, palette, other formats) is converted to RGB as Pillow does, and stored raw up to
    `MAX_RAW_PIXELS` pixels, above as JPEG of quality `JPEG_QUALITY` without chroma subsampling.

    Args:
        image: the file, or its content.
        label: the class, or -1 for none.
        origin: where the image comes from, for messages.
        config: the data set.

    Raises:
        RegbenchError: it is not a complete image; the message names its origin.
    """
    try:
        data = image.read_bytes() if isinstance(image, Path) else image
        with Image.open(BytesIO(data)) as picture:
            picture.load()
            width, height = picture.size
            if picture.format == "JPEG" and picture.mode == "RGB":
                return Sample(JPEG, height, width, label, data, origin)
            rgb = picture.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise RegbenchError(f"cannot read the image {origin} ({error}); mend or remove it") from error
    if width * height <= MAX_RAW_PIXELS:
        return Sample(RAW, height, width, label, rgb.tobytes(), origin)
    buffer = BytesIO()
    rgb.save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    return Sample(JPEG, height, width, label, buffer.getvalue(), origin)


def encode_all(
    images: Iterable[tuple[Path | bytes, int, str]], config: DatasetConfig, workers: int
) -> Iterator[Sample]:
    """`encode` every (image, label, origin), in order, in `workers` threads."""
    waiting = iter(images)
    with ThreadPoolExecutor(workers) as pool:
        # In chunks, so that no more than so many images wait in memory.
        while chunk := list(islice(waiting, 64 * workers)):
            yield from pool.map(lambda image: encode(*image, config), chunk)
