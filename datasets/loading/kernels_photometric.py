"""The photometric part for one image, compiled with numba.

It follows `photometric` operation by operation, in float32 on planes, one image at a time, so that
it stays in the cache. PyTorch and torchvision need 13 and 47 times as long on a CPU (docs/data.md).
"""

from __future__ import annotations

import math

import numpy as np

from regbench.datasets.loading.compiled import Array, Scalar, compiled, f32


@compiled
def _luma(planes: Array, out: Array) -> None:
    """Compute the luma, see `photometric.grey`."""
    if len(planes) == 1:
        out[:] = planes[0]
    else:
        red, green, blue = planes[0], planes[1], planes[2]
        for i in range(len(out)):
            out[i] = f32(0.299) * red[i] + f32(0.587) * green[i] + f32(0.114) * blue[i]


@compiled
def _mean(plane: Array, size: int) -> Scalar:
    """Average `size` x `size` numbers, by columns first."""
    # Sums of columns are short enough for float32, and the loop becomes vector instructions; the
    # total is a double.
    columns = np.zeros(size, np.float32)
    for y in range(size):
        row = plane[y * size : (y + 1) * size]
        for x in range(size):
            columns[x] += row[x]
    total = 0.0
    for x in range(size):
        total += columns[x]
    return total / len(plane)


@compiled
def _clipped(value: Scalar) -> Scalar:
    return min(max(value, f32(0.0)), f32(255.0))


@compiled
def _scale(planes: Array, factor: Scalar, offset: Scalar) -> None:
    """Make it factor x + offset."""
    for c in range(len(planes)):
        plane = planes[c]
        for i in range(len(plane)):
            plane[i] = _clipped(factor * plane[i] + offset)


@compiled
def _saturate(planes: Array, factor: Scalar, luma: Array) -> None:
    """Make it factor x + (1 - factor) luma."""
    rest = f32(1.0) - factor
    for c in range(len(planes)):
        plane = planes[c]
        for i in range(len(plane)):
            plane[i] = _clipped(factor * plane[i] + rest * luma[i])


@compiled
def _channel(value: Scalar, chroma: Scalar, hue: Scalar) -> Scalar:
    """Compute one channel of a colour, see `photometric.adjust_hue`."""
    k = hue - f32(6.0) * np.floor(hue / f32(6.0))
    return value - chroma * min(max(min(k, f32(4.0) - k), f32(0.0)), f32(1.0))


@compiled
def _turn_hue(planes: Array, shift: Scalar) -> None:
    """Turn the hue, see `photometric.adjust_hue`."""
    reds, greens, blues = planes[0], planes[1], planes[2]
    turn = f32(6.0) * shift
    for i in range(len(reds)):
        red, green, blue = reds[i], greens[i], blues[i]
        value = max(red, green, blue)
        chroma = value - min(red, green, blue)
        safe = chroma if chroma > f32(0.0) else f32(1.0)
        from_red = (green - blue) / safe
        from_green = f32(2.0) + (blue - red) / safe
        from_blue = f32(4.0) + (red - green) / safe
        not_red = from_green if value == green else from_blue
        hue = (from_red if value == red else not_red) + turn
        reds[i] = _channel(value, chroma, hue + f32(5.0))
        greens[i] = _channel(value, chroma, hue + f32(3.0))
        blues[i] = _channel(value, chroma, hue + f32(1.0))


@compiled
def _blur(planes: Array, size: int, taps: int, sigma: Scalar) -> None:
    """Blur as `photometric.gaussian_blur`.

    Weights below 1e-7, together less than 0.001 grey levels, are left out.
    """
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
            # Mirrored once, so that the loops below need no condition.
            padded[reach : reach + size] = row
            # Pixel −k is pixel k, and likewise at the far border; a reach beyond the whole row
            # turns back again.
            for k in range(1, reach + 1):
                padded[reach - k] = row[mirror - abs(mirror - k)]
                padded[reach + mirror + k] = row[abs(mirror - k)]
            for x in range(size):
                out[x] = weights[0] * row[x]
            for k in range(1, reach + 1):
                w = weights[k]
                before = padded[reach - k : reach - k + size]
                after = padded[reach + k : reach + k + size]
                for x in range(size):
                    out[x] += w * (before[x] + after[x])
        for y in range(size):
            row, out = half[y], plane[y]
            for x in range(size):
                out[x] = weights[0] * row[x]
            for k in range(1, reach + 1):
                w = weights[k]
                before, after = half[abs(y - k)], half[mirror - abs(mirror - (y + k))]
                for x in range(size):
                    out[x] += w * (before[x] + after[x])


@compiled
def _solarize(planes: Array, threshold: Scalar) -> None:
    """Invert the values at or above the threshold."""
    for c in range(len(planes)):
        plane = planes[c]
        for i in range(len(plane)):
            plane[i] = f32(255.0) - plane[i] if plane[i] >= threshold else plane[i]


@compiled
def finish(crop: Array, chain: Array, taps: int, scale: Array, shift: Array, out: Array) -> None:
    """Apply the photometric augmentation to one crop and normalise it.

    Args:
        crop: (size, size, channels) uint8.
        chain: What to do, of `photometric.CHAIN`.
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
        # One channel at a time, here and at the end, `finish` takes a third longer at 224 px.
        red, green, blue = planes[0], planes[1], planes[2]
        for i in range(len(red)):
            red[i], green[i], blue[i] = pixels[i, 0], pixels[i, 1], pixels[i, 2]
    for place in range(4):
        operation = chain["order"][place]
        if operation < 0:
            continue
        value = f32(chain["factors"][operation])
        if operation == 0:
            _scale(planes, value, f32(0.0))
        elif operation == 1:
            _luma(planes, luma)
            _scale(planes, value, (f32(1.0) - value) * f32(_mean(luma, size)))
        elif operation == 2:
            _luma(planes, luma)
            _saturate(planes, value, luma)
        else:
            _turn_hue(planes, value)
    if chain["grayscale"]:
        _luma(planes, luma)
        for c in range(channels):
            planes[c, :] = luma
    if chain["sigma"] > 0.0:
        _blur(planes, size, taps, chain["sigma"])
    if chain["threshold"] <= 255.0:
        _solarize(planes, f32(chain["threshold"]))
    # Planes are normalised first and turned into pixels then: one loop would not become vector
    # instructions.
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
