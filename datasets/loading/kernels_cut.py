"""Cutting a view out of an image, compiled with numba.

The filters are separable and antialiased. The weight of source pixel i for output x, whose centre
lies at c = (x + 1/2) s in source pixels, with s = (pixels in) / (pixels out):

- bicubic: k((i + 1/2 - c) / max(s, 1)), with Keys' cubic k (1981) for a = -1/2; as Pillow's
  `BICUBIC`.
- bilinear: the same with k(d) = max(0, 1 - |d|); as Pillow's `BILINEAR`.
- area: shrinking (s >= 1), the length of [i, i+1] covered by [x s, (x+1) s]; growing, as bilinear.

The weights are normalised over the box, whose outside is not seen. The horizontal pass comes first
and is rounded to whole grey levels, as in Pillow. Both passes are one function, which adds up
weighted rows: the loops run over what lies side by side in memory, which compilers turn into vector
instructions. For the horizontal pass a band of rows is transposed, so that a column of the band
lies side by side.
"""

from __future__ import annotations

import math

import numpy as np

from regbench.datasets.loading.compiled import Array, Scalar, compiled, f32

BICUBIC, BILINEAR, AREA = 0, 1, 2
FILTERS = {"bicubic": BICUBIC, "bilinear": BILINEAR, "area": AREA}
# Rows that are transposed at once: with three channels and 500 columns they fill the first-level
# cache.
_BAND = 32


@compiled
def _weights(
    n_in: int, n_out: int, first: int, count: int, kind: int, flip: bool
) -> tuple[Array, Array, Array]:
    """Compute the filter for outputs `first` to `first + count - 1` of `n_out`, in the reverse
    order if `flip`.

    Returns:
        For each output the first source pixel, the number of fours of pixels from there, and their
        weights: zeros fill the last four.
    """
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
    fours = np.empty(count, np.int64)
    # The support to both sides, in whole fours, holds every pixel that has a weight.
    weights = np.zeros((count, (math.ceil(support) * 2 + 4) // 4 * 4), np.float32)
    row = np.empty(weights.shape[1])
    for number in range(count):
        center = (first + number + 0.5) * scale
        low = max(math.floor(center - support), 0)
        high = min(math.ceil(center + support), n_in)
        length = 0
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
            # Zeros at the ends are cut off: with them, the weights would often take four pixels
            # more.
            if length == 0 and w == 0.0:
                low += 1
            else:
                row[length] = w
                length += 1
                total += w
        while row[length - 1] == 0.0:
            length -= 1
        x = count - 1 - number if flip else number
        start[x] = low
        fours[x] = (length + 3) // 4
        for k in range(length):
            weights[x, k] = row[k] / total
    return start, fours, weights


@compiled
def _whole_level(value: Scalar) -> Scalar:
    return np.uint8(np.int32(min(max(value, f32(0.0)), f32(255.0))))


@compiled
def _filter_rows(source: Array, start: Array, fours: Array, weights: Array, out: Array) -> None:
    """Make every row of `out` (uint8) the weighted sum of rows of `source` (uint8), rounded."""
    last = len(source) - 1
    n = source.shape[1]
    total = np.empty(n, np.float32)
    for y in range(len(out)):
        # The sum begins with a half because its fraction is cut off in the end.
        total[:] = f32(0.5)
        # Four rows are added at once, so that the sum is read and written a quarter as often.
        for k in range(0, 4 * fours[y], 4):
            row = start[y] + k
            # The last weights may be zeros that stand for no pixel.
            a, b = source[min(row, last)], source[min(row + 1, last)]
            c, d = source[min(row + 2, last)], source[min(row + 3, last)]
            u, v, w, z = weights[y, k], weights[y, k + 1], weights[y, k + 2], weights[y, k + 3]
            for i in range(n):
                total[i] = total[i] + u * f32(a[i]) + v * f32(b[i]) + w * f32(c[i]) + z * f32(d[i])
        target = out[y]
        for i in range(n):
            target[i] = _whole_level(total[i])


@compiled
def _copy_pixels(source: Array, target: Array) -> None:
    """Copy (N, 3 or more) to (N, 3), or the first channel to (N, 1)."""
    if target.shape[1] == 1:
        for x in range(len(target)):
            target[x, 0] = source[x, 0]
    else:
        for x in range(len(target)):
            target[x, 0] = source[x, 0]
            target[x, 1] = source[x, 1]
            target[x, 2] = source[x, 2]


@compiled
def cut(image: Array, box: Array, kind: int, out: Array) -> None:
    """Resize a box of `image` and write a square part of the result.

    Args:
        image: (H, W, 3) uint8.
        box: (9,), see `crops.Boxes`.
        kind: Kind of the filter, from `FILTERS`.
        out: (size, size, channels) uint8, written; channels is 1 (the first) or 3.
    """
    size, channels = out.shape[0], out.shape[2]
    top, left, height, width = box[0], box[1], box[2], box[3]
    start_y, fours_y, weights_y = _weights(height, box[5], box[7], size, kind, False)
    start_x, fours_x, weights_x = _weights(width, box[6], box[8], size, kind, box[4] != 0)
    # A row may begin before the one above it if weights at a filter's ends are 0.
    low = start_y.min()
    high = min((start_y + 4 * fours_y).max(), height)
    resized = np.empty((high - low, size, channels), np.uint8)
    columns = np.empty((width, _BAND * channels), np.uint8)
    resized_columns = np.empty((size, _BAND * channels), np.uint8)
    for band in range(low, high, _BAND):
        rows = min(_BAND, high - band)
        for r in range(rows):
            source = image[top + band + r, left : left + width]
            _copy_pixels(source, columns[:, r * channels : (r + 1) * channels])
        _filter_rows(columns, start_x, fours_x, weights_x, resized_columns)
        for r in range(rows):
            _copy_pixels(
                resized_columns[:, r * channels : (r + 1) * channels], resized[band - low + r]
            )
    flat = resized.reshape(high - low, size * channels)
    _filter_rows(flat, start_y - low, fours_y, weights_y, out.reshape(size, size * channels))
