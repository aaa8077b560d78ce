"""Decoding images, cutting views out of them and augmenting these, compiled with numba: the work in the FFCV loader.

No library does this work. FFCV has the area filter alone, decodes an image once for each view, has no blur, and its
random numbers cannot be seeded. PyTorch and torchvision need 13 and 47 times as long for the photometric part on a CPU
(docs/data.md). `torchvision_crops` and `photometric` do the same with Pillow and PyTorch, and are the reference.

All of it lies in one file. Numba keeps compiled code on disk, and compiles a function anew only when its own file has
changed: a change in another file with a function that it calls would go unnoticed.

The filters are separable and antialiased. The weight of source pixel i for output x, whose centre lies at
c = (x + 1/2) s in source pixels, with s = (pixels in) / (pixels out):

- bicubic: k((i + 1/2 - c) / max(s, 1)), with Keys' cubic k (1981) for a = -1/2; as Pillow's `BICUBIC`.
- bilinear: the same with k(d) = max(0, 1 - |d|); as Pillow's `BILINEAR`.
- area: shrinking (s >= 1), the length of [i, i+1] covered by [x s, (x+1) s]; growing, as bilinear.

The weights are normalised over the box, whose outside is not seen. The horizontal pass comes first and is rounded to
whole grey levels, as in Pillow. Both passes are one function, which adds up weighted rows: the loops run over what lies
side by side in memory, which compilers turn into vector instructions. For the horizontal pass a band of rows is
transposed, so that a column of the band lies side by side. Nothing is reordered or fused (no `fastmath`): the pictures
are the same on every machine.

The photometric part follows `photometric` operation by operation, in float32 on planes, one image at a time, so that
it stays in the cache.
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
from numba import njit, types

from regbench.datasets.beton import JPEG

Array = npt.NDArray[Any]
# A float32, which Python would take for something else than a float.
Scalar = Any

# Beside this file, where numba would put it, `pip uninstall` would leave the compiled code behind.
if not numba.config.CACHE_DIR:  # type: ignore[attr-defined]
    with contextlib.suppress(OSError, RuntimeError):
        _cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regbench" / "numba"
        _cache.mkdir(parents=True, exist_ok=True)
        if os.access(_cache, os.W_OK):
            numba.config.CACHE_DIR = str(_cache)  # type: ignore[attr-defined]

BICUBIC, BILINEAR, AREA = 0, 1, 2
FILTERS = {"bicubic": BICUBIC, "bilinear": BILINEAR, "area": AREA}
# Rows that are transposed at once: with three channels and 500 columns they fill the first-level cache.
_BAND = 32

# NumPy's rules for division by zero: with Python's, loops that divide would not become vector instructions.
_compiled = njit(cache=True, nogil=True, error_model="numpy")
_f32 = np.float32


@_compiled
def _weights(n_in: int, n_out: int, first: int, count: int, kind: int, flip: bool) -> tuple[Array, Array, Array]:
    """Compute the filter for outputs `first` to `first + count - 1` of `n_out`, in the reverse order if `flip`.

    Returns:
        For each output the first source pixel, the number of fours of pixels from there, and their weights: zeros fill
        the last four.
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
            # Zeros at the ends are cut off: with them, the weights would often take four pixels more.
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


@_compiled
def _whole_level(value: Scalar) -> Scalar:
    return np.uint8(np.int32(min(max(value, _f32(0.0)), _f32(255.0))))


@_compiled
def _filter_rows(source: Array, start: Array, fours: Array, weights: Array, out: Array) -> None:
    """Make every row of `out` (uint8) the weighted sum of rows of `source` (uint8), rounded."""
    last = len(source) - 1
    n = source.shape[1]
    total = np.empty(n, np.float32)
    for y in range(len(out)):
        # A half, because whole levels are cut off the sum.
        total[:] = _f32(0.5)
        # Four rows at once, so that the sum is read and written a quarter as often.
        for k in range(0, 4 * fours[y], 4):
            row = start[y] + k
            # The last weights may be zeros that stand for no pixel.
            a, b = source[min(row, last)], source[min(row + 1, last)]
            c, d = source[min(row + 2, last)], source[min(row + 3, last)]
            u, v, w, z = weights[y, k], weights[y, k + 1], weights[y, k + 2], weights[y, k + 3]
            for i in range(n):
                total[i] = total[i] + u * _f32(a[i]) + v * _f32(b[i]) + w * _f32(c[i]) + z * _f32(d[i])
        target = out[y]
        for i in range(n):
            target[i] = _whole_level(total[i])


@_compiled
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


@_compiled
def cut(image: Array, box: Array, kind: int, out: Array) -> None:
    """Resize a box of `image` and write a square part of the result.

    Args:
        image: (H, W, 3) uint8.
        box: (9,), see `crops.BOX`.
        kind: Of the filter, from `FILTERS`.
        out: (size, size, channels) uint8, written; channels is 1 (the first) or 3.
    """
    size, channels = out.shape[0], out.shape[2]
    top, left, height, width = box[0], box[1], box[2], box[3]
    start_y, fours_y, weights_y = _weights(height, box[5], box[7], size, kind, False)
    start_x, fours_x, weights_x = _weights(width, box[6], box[8], size, kind, box[4] != 0)
    # Where weights at a filter's ends are 0, a row may begin before the one above it.
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
            _copy_pixels(resized_columns[:, r * channels : (r + 1) * channels], resized[band - low + r])
    flat = resized.reshape(high - low, size * channels)
    _filter_rows(flat, start_y - low, fours_y, weights_y, out.reshape(size, size * channels))


@_compiled
def _luma(planes: Array, out: Array) -> None:
    """Compute the luma, see `photometric.grey`."""
    if len(planes) == 1:
        out[:] = planes[0]
    else:
        red, green, blue = planes[0], planes[1], planes[2]
        for i in range(len(out)):
            out[i] = _f32(0.299) * red[i] + _f32(0.587) * green[i] + _f32(0.114) * blue[i]


@_compiled
def _mean(plane: Array, size: int) -> Scalar:
    """Average `size` x `size` numbers, by columns first."""
    columns = np.zeros(size, np.float32)
    for y in range(size):
        row = plane[y * size : (y + 1) * size]
        for x in range(size):
            columns[x] += row[x]
    total = 0.0
    for x in range(size):
        total += columns[x]
    return total / len(plane)


@_compiled
def _clipped(value: Scalar) -> Scalar:
    return min(max(value, _f32(0.0)), _f32(255.0))


@_compiled
def _scale(planes: Array, factor: Scalar, offset: Scalar) -> None:
    """Make it factor x + offset."""
    for c in range(len(planes)):
        plane = planes[c]
        for i in range(len(plane)):
            plane[i] = _clipped(factor * plane[i] + offset)


@_compiled
def _saturate(planes: Array, factor: Scalar, luma: Array) -> None:
    """Make it factor x + (1 - factor) luma."""
    rest = _f32(1.0) - factor
    for c in range(len(planes)):
        plane = planes[c]
        for i in range(len(plane)):
            plane[i] = _clipped(factor * plane[i] + rest * luma[i])


@_compiled
def _channel(value: Scalar, chroma: Scalar, hue: Scalar) -> Scalar:
    """Compute one channel of a colour, see `photometric.adjust_hue`."""
    k = hue - _f32(6.0) * np.floor(hue / _f32(6.0))
    return value - chroma * min(max(min(k, _f32(4.0) - k), _f32(0.0)), _f32(1.0))


@_compiled
def _turn_hue(planes: Array, shift: Scalar) -> None:
    """Turn the hue, see `photometric.adjust_hue`."""
    reds, greens, blues = planes[0], planes[1], planes[2]
    turn = _f32(6.0) * shift
    for i in range(len(reds)):
        red, green, blue = reds[i], greens[i], blues[i]
        value = max(red, green, blue)
        chroma = value - min(red, green, blue)
        safe = chroma if chroma > _f32(0.0) else _f32(1.0)
        from_red = (green - blue) / safe
        from_green = _f32(2.0) + (blue - red) / safe
        from_blue = _f32(4.0) + (red - green) / safe
        hue = (from_red if value == red else (from_green if value == green else from_blue)) + turn
        reds[i] = _channel(value, chroma, hue + _f32(5.0))
        greens[i] = _channel(value, chroma, hue + _f32(3.0))
        blues[i] = _channel(value, chroma, hue + _f32(1.0))


@_compiled
def _blur(planes: Array, size: int, taps: int, sigma: Scalar) -> None:
    """Blur as `photometric.gaussian_blur`; weights below 1e-7, together less than 0.001 grey levels, are left out."""
    weights = np.empty(taps // 2 + 1, np.float32)
    total = 0.0
    for k in range(len(weights)):
        total += math.exp(-0.5 * (k / sigma) ** 2) * (1.0 if k == 0 else 2.0)
    reach = 0
    for k in range(len(weights)):
        w = math.exp(-0.5 * (k / sigma) ** 2) / total
        weights[k] = w
        if w > 1e-7:
            reach = k
    mirror = size - 1
    padded = np.empty(size + 2 * reach, np.float32)
    half = np.empty((size, size), np.float32)
    for c in range(len(planes)):
        plane = planes[c].reshape(size, size)
        for y in range(size):
            row, out = plane[y], half[y]
            padded[reach : reach + size] = row
            for k in range(1, reach + 1):
                padded[reach - k] = row[mirror - abs(mirror - k)]
                padded[reach + mirror + k] = row[abs(mirror - k)]
            for x in range(size):
                out[x] = weights[0] * row[x]
            for k in range(1, reach + 1):
                before, after = padded[reach - k : reach - k + size], padded[reach + k : reach + k + size]
                w = weights[k]
                for x in range(size):
                    out[x] += w * (before[x] + after[x])
        for y in range(size):
            row, out = half[y], plane[y]
            for x in range(size):
                out[x] = weights[0] * row[x]
            for k in range(1, reach + 1):
                before, after, w = half[abs(y - k)], half[mirror - abs(mirror - (y + k))], weights[k]
                for x in range(size):
                    out[x] += w * (before[x] + after[x])


@_compiled
def _solarize(planes: Array, threshold: Scalar) -> None:
    """Invert the values at or above the threshold."""
    for c in range(len(planes)):
        plane = planes[c]
        for i in range(len(plane)):
            plane[i] = _f32(255.0) - plane[i] if plane[i] >= threshold else plane[i]


@_compiled
def finish(crop: Array, chain: Array, taps: int, scale: Array, shift: Array, out: Array) -> None:
    """Apply the photometric augmentation to one crop and normalise it.

    Args:
        crop: (size, size, channels) uint8.
        chain: (11,), a row of `photometric.chains`.
        taps: Length of the blur's kernel.
        scale: (channels,) float32; the result is scale x + shift.
        shift: (channels,) float32.
        out: (size, size, channels) float32, written.
    """
    size, channels = crop.shape[0], crop.shape[2]
    pixels = crop.reshape(size * size, channels)
    planes = np.empty((channels, size * size), np.float32)
    luma = np.empty(size * size, np.float32)
    if channels == 1:
        planes[0, :] = pixels[:, 0]
    else:
        # One channel after the other, here and at the end, `finish` takes a third longer at 224 px.
        red, green, blue = planes[0], planes[1], planes[2]
        for i in range(len(red)):
            red[i], green[i], blue[i] = pixels[i, 0], pixels[i, 1], pixels[i, 2]
    for place in range(4):
        operation = int(chain[place])
        if operation < 0:
            continue
        value = _f32(chain[4 + operation])
        if operation == 0:
            _scale(planes, value, _f32(0.0))
        elif operation == 1:
            _luma(planes, luma)
            _scale(planes, value, (_f32(1.0) - value) * _f32(_mean(luma, size)))
        elif operation == 2:
            _luma(planes, luma)
            _saturate(planes, value, luma)
        else:
            _turn_hue(planes, value)
    if chain[8] > 0.0:
        _luma(planes, luma)
        for c in range(channels):
            planes[c, :] = luma
    if chain[9] > 0.0:
        _blur(planes, size, taps, chain[9])
    if chain[10] <= 255.0:
        _solarize(planes, _f32(chain[10]))
    # First on planes and then into pixels: in one pass the loop would not become vector instructions.
    for c in range(channels):
        plane, factor, offset = planes[c], scale[c], shift[c]
        for i in range(len(plane)):
            plane[i] = plane[i] * factor + offset
    finished = out.reshape(size * size, channels)
    if channels == 1:
        finished[:, 0] = planes[0]
    else:
        red, green, blue = planes[0], planes[1], planes[2]
        for i in range(len(red)):
            finished[i, 0], finished[i, 1], finished[i, 2] = red[i], green[i], blue[i]


# FFCV's JPEG decoder by its name in the library, because numba can keep compiled code that refers to it so, but not
# code with a ctypes pointer in it: int imdecode(source, source_bytes, height, width, target, crop_height, crop_width,
# offset_x, offset_y, scale_numerator, scale_denominator, crop, flip).
_imdecode: Any = types.ExternalFunction(
    "imdecode", types.int32(types.intp, types.uint64, types.uint32, types.uint32, types.intp, *[types.uint32] * 8)
)


@_compiled
def _decode(data: Array, shape: Array) -> tuple[int, Array]:
    """Decode one image of a mode, height and width; return 0 if all went well, and the image, (height, width, 3)."""
    height, width = shape[1], shape[2]
    if shape[0] != JPEG:
        return 0, data.reshape(height, width, 3)
    pixels = np.empty((height, width, 3), np.uint8)
    source, target = data.ctypes.data, pixels.ctypes.data
    return _imdecode(source, data.size, height, width, target, height, width, 0, 0, 1, 1, 0, 0), pixels


@_compiled
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
        number: Its place in the batch.
        count: Images in the batch.
        boxes: (views, 9), see `crops.BOX`.
        shape: The filter, from `FILTERS`; (views,) the sizes of the crops, px; the channels, 1 (the first) or 3.
        chains: (views, 11), see `photometric.chains`.
        finishing: (views,) lengths of the blur's kernel; scale and shift, see `finish`.
        out: Where all views of all images lie, see `crops.CropShape.split`: as uint8, and as float32, augmented and
            normalised. The first is written if the second is empty.
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
            cut(image, boxes[view], kind, crops[start : start + length].reshape(size, size, channels))
        else:
            crop = np.empty((size, size, channels), np.uint8)
            cut(image, boxes[view], kind, crop)
            views = finished[start : start + length].reshape(size, size, channels)
            finish(crop, chains[view], taps[view], scale, shift, views)


@_compiled
def decode(
    rows: Array,
    first: int,
    count: int,
    where: tuple[Array, Array, Array, Array],
    boxes: Array,
    shape: tuple[int, Array, int],
    chains: Array,
    finishing: tuple[Array, Array, Array],
    status: Array,
    out: tuple[Array, Array],
) -> None:
    """Decode some images of a batch, and make their views.

    Args:
        rows: (N,) their indices in the file.
        first: The place of the first of them in the batch.
        count: Images in the batch.
        where: The whole `.beton` file; where each image's bytes begin; how many they are; (images, 3) mode, height and
            width.
        boxes: (count, views, 9).
        shape: As for `show`.
        chains: (count, views, 11).
        finishing: As for `show`.
        status: (count, 1), written: 0 if the image was decoded.
        out: As for `show`.
    """
    file, start, size, image_shape = where
    for number in range(first, first + len(rows)):
        i = rows[number - first]
        status[number, 0], image = _decode(file[start[i] : start[i] + size[i]], image_shape[i])
        if status[number, 0] == 0:
            show(image, number, count, boxes[number], shape, chains[number], finishing, out)
