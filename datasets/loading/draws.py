"""Randomness as a pure function: every number is a hash of (seed, epoch, image, purpose).

So a picture does not depend on the number of workers, on the batch that it is in or on what ran
before, and both loaders draw the same. The hash is SplitMix64 (Steele, Lea and Flood, OOPSLA 2014):
its 64-bit finalizer absorbs the coordinates one after the other into a key, and number d of a key
is output d of the generator seeded with it.
"""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

from regbench.datasets.config import PATCH_JITTER

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Keys = npt.NDArray[np.uint64]

# SplitMix64's increment: 2**64 divided by the golden ratio, made odd.
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
# As many as torchvision's `RandomResizedCrop` makes.
_CROP_ATTEMPTS = 10
# Purposes of a key. No view of pretraining shares a number with another or with the evaluation's
# augmentation.
ORDER, CROP, PHOTOMETRIC, BITS = 0, 1, 2, 3
EVALUATION_VIEW = 2


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Apply the finalizer of SplitMix64, a bijection of 64-bit integers."""
    z = z ^ (z >> np.uint64(30))  # a new array, which the rest changes in place
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def keys(seed: int, epoch: int, indices: Ints, purpose: int, view: int = 0) -> Keys:
    """Hash the coordinates of a draw to one 64-bit key for each image: (N,).

    Args:
        seed: Seed of the run.
        epoch: Number of the epoch.
        indices: (N,) the images' places in their split's file.
        purpose: `ORDER`, `CROP`, `PHOTOMETRIC` or `BITS`.
        view: Number of the view, or `EVALUATION_VIEW`.
    """
    key = np.zeros(1, np.uint64)
    # The mask gives negative numbers 64 bits, too. Additions and products wrap around, as the hash
    # requires.
    for coordinate in (seed, epoch, purpose, view):
        key = _mix(key + _GAMMA + np.uint64(coordinate & 0xFFFFFFFFFFFFFFFF))
    return _mix(key + _GAMMA + indices.astype(np.uint64))


def uniforms(key: Keys, first: int, count: int) -> Floats:
    """Draw numbers `first` to `first + count - 1` of each key: (N, count), uniform in [0, 1)
    with 53 bits.
    """
    steps = np.arange(first + 1, first + count + 1, dtype=np.uint64) * _GAMMA
    # The upper 53 bits, which a float64 holds exactly.
    z = _mix(key[:, None] + steps)
    z >>= np.uint64(11)
    found = z.astype(np.float64)
    found *= 2.0**-53
    return found


def epoch_order(seed: int, epoch: int, indices: Ints) -> Ints:
    """Put the images `indices` into the random order of this epoch."""
    # A stable sort, so that the order is defined even if two keys should be equal.
    return indices[np.argsort(keys(seed, epoch, indices, ORDER), kind="stable")]


def shared_bits(split: str, indices: Ints, count: int) -> Ints:
    """Draw the bits of images of a split, (N, count): the same in every epoch and for every
    seed of a run.
    """
    # Each split has its own numbers, so that one split's bits reveal nothing about another's.
    key = keys(0, zlib.crc32(split.encode()), indices, BITS)
    return (uniforms(key, 0, count) < 0.5).astype(np.int64)


def flips(key: Keys, flip_p: float) -> Bools:
    """Draw which images are flipped, (N,)."""
    flipped: Bools = uniforms(key, 0, 1)[:, 0] < flip_p
    return flipped


def patches(key: Keys, number: int, whole: int, size: int) -> Ints:
    """Draw row and column, (N, 2), where patch `number` begins in a square of `whole` px.

    See `config.ViewsConfig`.
    """
    # The numbers before these are the crop's, which all patches of an image share.
    first = 1 + 4 * _CROP_ATTEMPTS
    place = np.argsort(uniforms(key, first, 9), axis=1)[:, number]
    moved = (uniforms(key, first + 9 + 2 * number, 2) * (PATCH_JITTER + 1)).astype(np.int64)
    # There are two steps between the first and the last of three squares.
    step = (whole - size - PATCH_JITTER) // 2
    return np.stack([place // 3, place % 3], axis=1) * step + moved


def crop_boxes(
    key: Keys,
    heights: Ints,
    widths: Ints,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    flip_p: float,
) -> Ints:
    """Draw random resized crops and whether to flip them, with the distribution of torchvision's
    `RandomResizedCrop`.

    Returns:
        (N, 5): top, left, height, width (px) and flip (0 or 1).
    """
    # The area is uniform in `scale` times the image's, the ratio (width / height) log-uniform in
    # `ratio`. The first of ten attempts that fits is taken, else the largest centred box with a
    # ratio in range.
    boxes = np.empty((len(key), 5), np.int64)
    boxes[:, 4] = flips(key, flip_p)
    log_low, log_high = np.log(ratio[0]), np.log(ratio[1])
    todo = np.arange(len(key))
    for attempt in range(_CROP_ATTEMPTS):
        # Number 0 has decided the flip.
        u = uniforms(key[todo], 1 + 4 * attempt, 4)
        image_h, image_w = heights[todo], widths[todo]
        area = image_h * image_w * (scale[0] + (scale[1] - scale[0]) * u[:, 0])
        shape = np.exp(log_low + (log_high - log_low) * u[:, 1])
        h = np.rint(np.sqrt(area / shape)).astype(np.int64)
        w = np.rint(np.sqrt(area * shape)).astype(np.int64)
        fits = (h > 0) & (w > 0) & (h <= image_h) & (w <= image_w)
        top = (u[:, 2] * (image_h - h + 1)).astype(np.int64)
        left = (u[:, 3] * (image_w - w + 1)).astype(np.int64)
        boxes[todo[fits], :4] = np.stack([top, left, h, w], axis=1)[fits]
        todo = todo[~fits]
        if len(todo) == 0:
            return boxes
    # Ten attempts have failed, mostly with images whose ratio no crop may have.
    image_h, image_w = heights[todo], widths[todo]
    # A side of an extreme ratio would be rounded to nothing.
    h = np.clip(np.rint(image_w / ratio[0]), 1, image_h).astype(np.int64)
    w = np.clip(np.rint(image_h * ratio[1]), 1, image_w).astype(np.int64)
    boxes[todo, :4] = np.stack([(image_h - h) // 2, (image_w - w) // 2, h, w], axis=1)
    return boxes
