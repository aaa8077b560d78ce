"""Decoding images, cutting boxes out of them and resizing these, compiled with numba: the work inside the FFCV loader.

All of it lies in one file: numba keeps compiled code on disk as long as the function's own file does not change, and
would not notice a change in a function of another file that is part of it.

The filters are separable and antialiased. The weight of source pixel i for output x, whose centre lies at
c = (x + 1/2) s in source pixels, with s = (pixels in) / (pixels out):

- bicubic: k((i + 1/2 - c) / max(s, 1)), with Keys' cubic k (1981) for a = -1/2; as Pillow's `BICUBIC`.
- bilinear: the same with k(d) = max(0, 1 - |d|); as Pillow's `BILINEAR`.
- area: shrinking (s >= 1), the length of [i, i+1] covered by [x s, (x+1) s]; growing, as bilinear.

The weights are normalised over the box, whose outside is not seen. The horizontal pass comes first and is rounded to
whole grey levels, as in Pillow.
"""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import njit, prange, types

from regbench.datasets.beton import JPEG

Array = npt.NDArray[Any]

# Beside this file, where numba would put it, `pip uninstall` would leave the compiled code behind.
if not numba.config.CACHE_DIR:  # type: ignore[attr-defined]
    with contextlib.suppress(OSError, RuntimeError):
        _cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regbench" / "numba"
        _cache.mkdir(parents=True, exist_ok=True)
        if os.access(_cache, os.W_OK):
            numba.config.CACHE_DIR = str(_cache)  # type: ignore[attr-defined]

BICUBIC, BILINEAR, AREA = 0, 1, 2
FILTERS = {"bicubic": BICUBIC, "bilinear": BILINEAR, "area": AREA}


@njit(cache=True, nogil=True)
def _weights(n_in: int, n_out: int, first: int, count: int, kind: int) -> tuple[Array, Array, Array]:
    """For outputs `first` to `first + count - 1` of `n_out`: first source pixel, number of them, their weights."""
    scale = n_in / n_out
    stretch = max(scale, 1.0)
    covered = kind == AREA and scale >= 1.0
    if covered:
        support = 0.5 * scale
    elif kind == BICUBIC:
        support = 2.0 * stretch
    else:
        support = stretch
    start = np.empty(count, np.int64)
    length = np.empty(count, np.int64)
    weights = np.empty((count, math.ceil(support) * 2 + 1), np.float32)
    row = np.empty(weights.shape[1])
    for x in range(count):
        center = (first + x + 0.5) * scale
        low = max(math.floor(center - support), 0)
        high = min(math.ceil(center + support), n_in)
        total = 0.0
        for i in range(low, high):
            d = abs(i + 0.5 - center) / stretch
            if covered:
                w = max(min(center + support, i + 1.0) - max(center - support, float(i)), 0.0)
            elif kind != BICUBIC:
                w = max(1.0 - d, 0.0)
            elif d < 1.0:
                w = (1.5 * d - 2.5) * d * d + 1.0
            elif d < 2.0:
                w = ((-0.5 * d + 2.5) * d - 4.0) * d + 2.0
            else:
                w = 0.0
            row[i - low] = w
            total += w
        start[x] = low
        length[x] = high - low
        for k in range(high - low):
            weights[x, k] = row[k] / total
    return start, length, weights


@njit(cache=True, nogil=True)
def cut(image: Array, box: Array, kind: int, out: Array) -> None:
    """Resize a box of `image` and write a square part of the result.

    Args:
        image: (H, W, 3) uint8.
        box: (9,), see `crops.BOX`.
        kind: of the filter, from `FILTERS`.
        out: (size, size, channels) uint8, written; channels is 1 (the first) or 3.
    """
    size = out.shape[0]
    channels = out.shape[2]
    top, left, flip = box[0], box[1], box[4] != 0
    start_y, length_y, weights_y = _weights(box[2], box[5], box[7], size, kind)
    start_x, length_x, weights_x = _weights(box[3], box[6], box[8], size, kind)
    row_low = start_y[0]
    row_high = start_y[size - 1] + length_y[size - 1]
    half = np.empty((row_high - row_low, size * channels), np.uint8)
    for y in range(row_low, row_high):
        source = image[top + y]
        target = half[y - row_low]
        for x in range(size):
            at = (size - 1 - x if flip else x) * channels
            x0 = left + start_x[x]
            if channels == 1:
                grey = np.float32(0.5)
                for k in range(length_x[x]):
                    grey += weights_x[x, k] * np.float32(source[x0 + k, 0])
                target[at] = np.uint8(min(max(grey, np.float32(0.0)), np.float32(255.0)))
            else:
                red = np.float32(0.5)
                green = np.float32(0.5)
                blue = np.float32(0.5)
                for k in range(length_x[x]):
                    w = weights_x[x, k]
                    red += w * np.float32(source[x0 + k, 0])
                    green += w * np.float32(source[x0 + k, 1])
                    blue += w * np.float32(source[x0 + k, 2])
                target[at] = np.uint8(min(max(red, np.float32(0.0)), np.float32(255.0)))
                target[at + 1] = np.uint8(min(max(green, np.float32(0.0)), np.float32(255.0)))
                target[at + 2] = np.uint8(min(max(blue, np.float32(0.0)), np.float32(255.0)))
    total = np.empty(size * channels, np.float32)
    flat = out.reshape(size, size * channels)
    for y in range(size):
        total[:] = np.float32(0.5)
        for k in range(length_y[y]):
            w = weights_y[y, k]
            source_row = half[start_y[y] - row_low + k]
            for i in range(size * channels):
                total[i] += w * np.float32(source_row[i])
        for i in range(size * channels):
            flat[y, i] = np.uint8(min(max(total[i], np.float32(0.0)), np.float32(255.0)))


# FFCV's JPEG decoder by its name in the library, because numba can keep compiled code that refers to it so, but not
# code with a ctypes pointer in it: int imdecode(source, source_bytes, height, width, target, crop_height, crop_width,
# offset_x, offset_y, scale_numerator, scale_denominator, crop, flip).
_imdecode: Any = types.ExternalFunction(
    "imdecode", types.int32(types.intp, types.uint64, types.uint32, types.uint32, types.intp, *[types.uint32] * 8)
)


@njit(cache=True, nogil=True)
def _decode_one(data: Array, jpeg: bool, height: int, width: int, boxes: Array, kind: int, crops: Array) -> int:
    """Decode one image once, cut every view out of it, and return 0 if all went well."""
    if jpeg:
        pixels = np.empty((height, width, 3), np.uint8)
        source, target = data.ctypes.data, pixels.ctypes.data
        status = _imdecode(source, data.size, height, width, target, height, width, 0, 0, 1, 1, 0, 0)
        if status != 0:
            return 1
        for view in range(len(boxes)):
            cut(pixels, boxes[view], kind, crops[view])
    else:
        stored = data.reshape(height, width, 3)
        for view in range(len(boxes)):
            cut(stored, boxes[view], kind, crops[view])
    return 0


# Two functions, since what numba keeps of one does not tell apart whether it was compiled to run in parallel.
@njit(cache=True, nogil=True)
def decode_serial(
    rows: Array,
    file: Array,
    start: Array,
    size: Array,
    shape: Array,
    boxes: Array,
    kind: int,
    status: Array,
    crops: Array,
) -> None:
    """Decode the images `rows` and cut their views, one after the other.

    Args:
        rows: (N,) indices into `start`, `size` and `shape`.
        file: the whole `.beton` file.
        start: where each image's bytes begin.
        size: how many they are.
        shape: (images, 3) mode, height and width.
        boxes: (N, views, 9), see `crops.BOX`.
        kind: of the filter, from `FILTERS`.
        status: (N, 1), written: 0 if the image was decoded.
        crops: (N, views, size, size, channels) uint8, written.
    """
    for n in range(len(rows)):
        i = rows[n]
        data = file[start[i] : start[i] + size[i]]
        status[n, 0] = _decode_one(data, shape[i, 0] == JPEG, shape[i, 1], shape[i, 2], boxes[n], kind, crops[n])


@njit(cache=True, nogil=True, parallel=True)
def decode_parallel(
    rows: Array,
    file: Array,
    start: Array,
    size: Array,
    shape: Array,
    boxes: Array,
    kind: int,
    status: Array,
    crops: Array,
) -> None:
    """As `decode_serial`, in numba's threads."""
    for n in prange(len(rows)):
        i = rows[n]
        data = file[start[i] : start[i] + size[i]]
        status[n, 0] = _decode_one(data, shape[i, 0] == JPEG, shape[i, 1], shape[i, 2], boxes[n], kind, crops[n])
