"""Cutting a box out of an image and resizing it, compiled with numba: the work inside the FFCV loader.

Both filters are separable and antialiased. The weight of source pixel i for output x, whose centre lies at
c = (x + 1/2) s in source pixels, with s = (pixels in) / (pixels out):

- bicubic: k((i + 1/2 - c) / max(s, 1)), with Keys' cubic k (1981) for a = -1/2; as Pillow's `BICUBIC`.
- bilinear: the same with k(d) = max(0, 1 - |d|); as Pillow's `BILINEAR`.
- area: shrinking (s >= 1), the length of [i, i+1] covered by [x s, (x+1) s]; growing, as bilinear.

The weights are normalised over the box, whose outside is not seen. The horizontal pass comes first and is rounded to
whole grey levels, as in Pillow.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Array = npt.NDArray[Any]


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
