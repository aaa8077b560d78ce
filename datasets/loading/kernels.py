"""Decoding an image once and making every view out of it, compiled with numba: the work in the FFCV
loader.

No library does this work. FFCV has the area filter alone, decodes an image once for each view, has
no blur, and its random numbers cannot be seeded. `torchvision_crops` and `photometric` do the same
with Pillow and PyTorch, and are the reference.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from regbench.datasets.loading.compiled import Array, compiled
from regbench.datasets.loading.kernels_cut import cut
from regbench.datasets.loading.kernels_photometric import finish
from regbench.datasets.stored.beton import JPEG

# FFCV's JPEG decoder, by its name in the library: numba can cache compiled code that refers to a
# name, but not code that holds a ctypes pointer. Its signature is int imdecode(source,
# source_bytes, height, width, target, crop_height, crop_width, offset_x, offset_y, scale_numerator,
# scale_denominator, crop, flip).
_SIZE: Any = types.uint32
_SIGNATURE: Any = types.int32(types.intp, types.uint64, _SIZE, _SIZE, types.intp, *[_SIZE] * 8)
_imdecode: Any = types.ExternalFunction("imdecode", _SIGNATURE)


@compiled
def _decode(data: Array, shape: Array) -> tuple[int, Array]:
    """Decode one image of a mode, height and width.

    Return 0 if all went well, and the image, (height, width, 3).
    """
    height, width = shape[1], shape[2]
    if shape[0] != JPEG:
        return 0, data.reshape(height, width, 3)
    pixels = np.empty((height, width, 3), np.uint8)
    source, target = data.ctypes.data, pixels.ctypes.data
    return _imdecode(
        source, data.size, height, width, target, height, width, 0, 0, 1, 1, 0, 0
    ), pixels


@compiled
def show(
    image: Array,
    number: int,
    count: int,
    boxes: Array,
    shape: tuple[int, Array, int],
    chains: Array,
    finishing: tuple[Array, Array, Array],
    out: tuple[Array, Array],
) -> None:
    """Make all views of one image.

    Args:
        image: (H, W, 3) uint8.
        number: Place of the image in the batch.
        count: Images in the batch.
        boxes: (views, 9), see `crops.Boxes`.
        shape: The filter, from `FILTERS`; (views,) the sizes of the crops, px; the channels, 1 (the
            first) or 3.
        chains: (views,), see `photometric.CHAIN`.
        finishing: (views,) lengths of the blur's kernel; scale and shift, see `finish`.
        out: Memory of all views of all images, see `crops.CropShape.split`: as uint8, and as
            float32, augmented and normalised. The first is written if the second is empty.
    """
    kind, sizes, channels = shape
    taps, scale, shift = finishing
    crops, finished = out
    before = 0
    for view in range(len(sizes)):
        size = sizes[view]
        length = size * size * channels
        start = before * count + number * length
        before += length
        if len(finished) == 0:
            target = crops[start : start + length].reshape(size, size, channels)
            cut(image, boxes[view], kind, target)
        else:
            crop = np.empty((size, size, channels), np.uint8)
            cut(image, boxes[view], kind, crop)
            views = finished[start : start + length].reshape(size, size, channels)
            finish(crop, chains[view], taps[view], scale, shift, views)


@compiled
def decode(
    rows: Array,
    first: int,
    count: int,
    where: tuple[Array, Array, Array, Array],
    boxes: Array,
    shape: tuple[int, Array, int],
    chains: Array,
    finishing: tuple[Array, Array, Array],
    failed: Array,
    out: tuple[Array, Array],
) -> None:
    """Decode some images of a batch, and make their views.

    Args:
        rows: (N,) their indices in the file.
        first: The place of the first of them in the batch.
        count: Images in the batch.
        where: The whole `.beton` file; where each image's bytes begin; how many they are; (images,
            3) mode, height and width.
        boxes: (count, views, 9).
        shape: Shape of the crops, see `show`.
        chains: (count, views).
        finishing: Lengths, scale and shift, see `show`.
        failed: (count,), written: 0 if the image was decoded.
        out: Memory of all views, see `show`.
    """
    file, start, size, image_shape = where
    for number in range(first, first + len(rows)):
        i = rows[number - first]
        failed[number], image = _decode(file[start[i] : start[i] + size[i]], image_shape[i])
        if failed[number] == 0:
            show(image, number, count, boxes[number], shape, chains[number], finishing, out)
