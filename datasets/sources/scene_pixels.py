"""The pixels of generated scenes: sampling, colours and patterns, for many scenes at a time.

All is NumPy in double precision, so that scenes are the same on every machine: rounding to 256
levels hides the last bits in which processors differ.

Shapes: N = scenes, S = side of a scene, F = side of a foreground image, C = channels.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from regbench.datasets.sources.base import Labels, Pixels

Floats = npt.NDArray[np.float64]

PATTERNS = (
    "plain",
    "stripes across",
    "stripes along",
    "checks",
    "fine stripes across",
    "fine stripes along",
    "fine checks",
    "diagonal stripes",
    "counter-diagonal stripes",
    "diagonal checks",
    "fine diagonal stripes",
    "fine counter-diagonal stripes",
    "fine diagonal checks",
    "rings",
    "fine rings",
    "dots",
)
"""Patterns of garments; with several patterns, a class is a garment in one of them."""

# Grey level from which on a garment hides what is behind it; the hems of Fashion-MNIST are darker.
_OPAQUE = 48.0


def to_levels(canvas: Floats) -> Pixels:
    """Turn brightness from 0 to 1 into levels from 0 to 255."""
    levels: Pixels = np.round(255 * canvas).astype(np.uint8)
    return levels


def sampled(grey_NFF: Floats, rows: npt.NDArray[np.intp], u_NSS: Floats, v_NSS: Floats) -> Floats:
    """Sample images at coordinates from 0 to 1; outside they are black."""
    side = grey_NFF.shape[1]
    # One black pixel around each image, so that its edge fades out instead of being repeated.
    framed_NFF = np.pad(grey_NFF[rows], ((0, 0), (1, 1), (1, 1)))
    # The framed image has side + 2 columns, of which `left + 1` may be the last.
    column = np.clip(u_NSS * side + 0.5, 0, side + 0.999)
    line = np.clip(v_NSS * side + 0.5, 0, side + 0.999)
    left, top = column.astype(np.intp), line.astype(np.intp)
    right_part, low_part = column - left, line - top
    each = np.arange(len(rows))[:, None, None]
    upper = framed_NFF[each, top, left] * (1 - right_part)
    upper += framed_NFF[each, top, left + 1] * right_part
    lower = framed_NFF[each, top + 1, left] * (1 - right_part)
    lower += framed_NFF[each, top + 1, left + 1] * right_part
    sampled_NSS: Floats = upper * (1 - low_part) + lower * low_part
    return sampled_NSS


def laid_over(
    canvas_NSSC: Floats, levels_NSS: Floats, colour_NC: Floats, shade_NSS: Floats
) -> Floats:
    """Lay a coloured garment over a canvas; where it is dark the canvas shows through."""
    opacity_NSS1 = np.minimum(1, levels_NSS / _OPAQUE)[..., None]
    garment_NSSC = colour_NC[:, None, None] * shade_NSS[..., None]
    return opacity_NSS1 * garment_NSSC + (1 - opacity_NSS1) * canvas_NSSC


def pink(white_NSS: Floats) -> Floats:
    """Turn white noise into noise whose amplitude falls with its frequency f as 1/f, as in
    photographs.

    Returns:
        Noise (N, S, S) of mean 0 and standard deviation 1 in each scene.
    """
    side = white_NSS.shape[1]
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side))
    # The mean of the noise is divided by this, which makes it 0.
    frequency[0, 0] = np.inf
    pink_NSS = np.fft.irfft2(np.fft.rfft2(white_NSS) / frequency, s=(side, side))
    noise_NSS: Floats = pink_NSS / pink_NSS.std(axis=(1, 2), keepdims=True)
    return noise_NSS


def pattern(numbers_N: Labels, u_NSS: Floats, v_NSS: Floats) -> Floats:
    """Return the brightness of patterns, 0.35 or 1, in a garment's own coordinates."""
    bright = np.ones_like(u_NSS)
    for number in np.unique(numbers_N):
        name = PATTERNS[number]
        chosen = numbers_N == number
        u, v = u_NSS[chosen], v_NSS[chosen]
        if "diagonal" in name:  # a turn by 45°
            u, v = (u + v) / np.sqrt(2), (v - u) / np.sqrt(2)
        cycles = 7 if name.startswith("fine") else 3.5
        across, along = np.sin(2 * np.pi * cycles * u), np.sin(2 * np.pi * cycles * v)
        if "rings" in name:
            wave = np.sin(2 * np.pi * cycles * 2 * np.hypot(u - 0.5, v - 0.5))
        elif "checks" in name:
            wave = across * along
        elif name == "dots":
            wave = across * along - 0.5
        elif "along" in name or "counter" in name:
            wave = across
        elif name == "plain":
            wave = np.ones_like(u)
        else:
            wave = along
        bright[chosen] = np.where(wave >= 0, 1.0, 0.35)
    return bright


def rgb(hue_N: Floats, saturation_N: Floats, value_N: Floats) -> Floats:
    """Turn hue (in turns), saturation and value into red, green and blue from 0 to 1, (N, 3)."""
    place_NC = (np.array([5.0, 3.0, 1.0]) + 6 * hue_N[:, None]) % 6
    share_NC = np.clip(np.minimum(place_NC, 4 - place_NC), 0, 1)
    colour_NC: Floats = value_N[:, None] * (1 - saturation_N[:, None] * share_NC)
    return colour_NC
