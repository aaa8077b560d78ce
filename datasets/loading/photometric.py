"""The photometric part of the augmentation, in batches on the training device, with parameters
drawn per image.

With FFCV on a CPU the same is done image by image in `kernels_photometric.finish`.

Every operation works on (N, C, H, W) float32 with values in [0, 255] and is defined as the
torchvision function of the same name, without the rounding to whole levels between operations.
An operation changes only the images that drew it.

The Gaussian blur has a kernel of 23 taps at 224 px and in proportion at other sizes, odd and at
least 3 (3 at 28 and 32 px, 7 at 64, 9 at 96), and mirrors at the borders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regbench.datasets.config import ViewConfig
from regbench.datasets.loading.draws import Keys, uniforms

_JITTERS = [("order", np.int64, 4), ("factors", np.float64, 4)]
_OTHERS = [("grayscale", np.bool_), ("sigma", np.float64), ("threshold", np.float64)]
CHAIN = np.dtype([*_JITTERS, *_OTHERS])
"""The operations on one view of one image: the jitters in their order (brightness 0, contrast 1,
saturation 2, hue 3, none -1), the value of each of the four, whether the colour is dropped, the
blur's standard deviation (px, 0: no blur) and the threshold of the solarization (a grey level,
above 255: none).
"""
Chain = npt.NDArray[np.void]
_NO_SOLARIZE = 256.0
# Images that the blur handles at once: this limits the memory of its matrices.
_BLUR_CHUNK = 256


def blur_taps(size: int) -> int:
    """Return the length of the blur's kernel for images of `size` px: about a tenth, odd, at
    least 3.
    """
    return max(3, 2 * round((size * 23 / 224 - 1) / 2) + 1)


def grey(x: Tensor) -> Tensor:
    """Compute the luma of ITU-R BT.601, (N, 1, H, W); the channel itself if there is but one."""
    if x.shape[1] == 1:
        return x
    return (0.299 * x[:, 0:1]).add_(x[:, 1:2], alpha=0.587).add_(x[:, 2:3], alpha=0.114)


def _per_image(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1)


def adjust_brightness(x: Tensor, factor: Tensor) -> Tensor:
    """Multiply by `factor` (N,). Works in place."""
    return x.mul_(_per_image(factor)).clamp_(0, 255)


def adjust_contrast(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with the mean luma of the image: f x + (1 - f) mean. Works in place."""
    mean = grey(x).mean((1, 2, 3))
    return x.mul_(_per_image(factor)).add_(_per_image((1 - factor) * mean)).clamp_(0, 255)


def adjust_saturation(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with the luma: f x + (1 - f) luma. Works in place."""
    luma = grey(x)
    return x.mul_(_per_image(factor)).add_(luma.mul_(_per_image(1 - factor))).clamp_(0, 255)


def adjust_hue(x: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue of HSV by `shift` (N,) turns."""
    value, low = x.amax(1), x.amin(1)
    chroma = value - low
    safe = torch.where(chroma > 0, chroma, 1.0)
    red, green, blue = x.unbind(1)
    # Sixths of a turn from red; at grey (chroma 0) any hue will do.
    not_red = torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe)
    hue = torch.where(value == red, (green - blue) / safe, not_red)
    hue = hue + 6 * shift.view(-1, 1, 1)
    # Channel c of a colour of hue h is value - chroma * max(0, min(1, k, 4 - k)) with k = (n_c + h)
    # mod 6.
    n = torch.arange(5, 0, -2, device=x.device).view(1, 3, 1, 1)
    k = (hue.unsqueeze(1) + n).remainder_(6)
    k = torch.minimum(k, 4 - k).clamp_(0, 1)
    return value.unsqueeze(1) - chroma.unsqueeze(1) * k


def to_grayscale(x: Tensor, _: Tensor) -> Tensor:
    """Set all channels to the luma."""
    return grey(x).expand_as(x).contiguous()


def gaussian_blur(x: Tensor, sigma: Tensor) -> Tensor:
    """Blur with standard deviation `sigma` (N,) px."""
    # Each image is multiplied from both sides by its own banded matrix, which has the mirrored
    # borders in it.
    size = x.shape[-1]
    taps = blur_taps(size)
    offset = torch.arange(taps, device=x.device) - taps // 2
    # The softmax of its exponents is the normalised Gaussian.
    kernel = torch.softmax(-0.5 * (offset / sigma.view(-1, 1)) ** 2, dim=1)
    source = (torch.arange(size, device=x.device).view(-1, 1) + offset).abs()
    # Mirrored at both borders: pixel -k is pixel k.
    source = (size - 1) - (size - 1 - source).abs()
    place = torch.zeros(taps, size, size, device=x.device)
    place.scatter_(2, source.t().unsqueeze(2), 1.0)
    out = torch.empty_like(x)
    for start in range(0, len(x), _BLUR_CHUNK):
        part = slice(start, start + _BLUR_CHUNK)
        matrix = (kernel[part] @ place.view(taps, -1)).view(-1, 1, size, size)
        torch.matmul(torch.matmul(matrix, x[part]), matrix.transpose(2, 3), out=out[part])
    return out


def solarize(x: Tensor, threshold: Tensor) -> Tensor:
    """Invert the values at or above `threshold` (N,)."""
    return torch.where(x >= _per_image(threshold), 255 - x, x)


# One operation, the rows of the batch that it is for, and its value for each of them.
_Step = tuple[Callable[[Tensor, Tensor], Tensor], npt.NDArray[np.int64], npt.NDArray[np.generic]]


def chains(key: Keys, config: ViewConfig, channels: int) -> Chain:
    """Draw what is done to one view of N images, with the distributions of torchvision's
    transforms: (N,) of `CHAIN`.
    """
    # All numbers are drawn whatever is switched off, so that no setting changes the draws of
    # another.
    u = uniforms(key, 0, 13)
    rows = np.empty(len(key), CHAIN)
    strengths = np.array([config.brightness, config.contrast, config.saturation, config.hue])
    rows["factors"] = np.array([1.0, 1.0, 1.0, 0.0]) + strengths * (2 * u[:, 1:5] - 1)
    # Grey images have neither saturation nor hue, the last two. The order is that of four random
    # numbers: leaving some out does not change the others' order.
    active = np.flatnonzero(strengths[: 4 if channels == 3 else 2] > 0)
    order = active[np.argsort(u[:, 5 + active], axis=1)]
    rows["order"] = -1
    rows["order"][:, : len(active)] = np.where(u[:, :1] < config.jitter_p, order, -1)
    rows["grayscale"] = (u[:, 9] < config.grayscale_p) & (channels == 3)
    low, high = config.blur_sigma
    rows["sigma"] = np.where(u[:, 10] < config.blur_p, low + (high - low) * u[:, 11], 0.0)
    solarized = u[:, 12] < config.solarize_p
    rows["threshold"] = np.where(solarized, config.solarize_threshold, _NO_SOLARIZE)
    return rows


def _steps(chain: Chain) -> list[_Step]:
    """List the operations of one batch in the order in which they are applied."""
    steps: list[_Step] = []
    jitters = (adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue)
    for place in range(4):
        for number, jitter in enumerate(jitters):
            rows = np.flatnonzero(chain["order"][:, place] == number)
            steps.append((jitter, rows, chain["factors"][rows, number]))
    after = (
        (to_grayscale, "grayscale", chain["grayscale"]),
        (gaussian_blur, "sigma", chain["sigma"] > 0),
        (solarize, "threshold", chain["threshold"] <= 255),
    )
    for operation, column, chosen in after:
        rows = np.flatnonzero(chosen)
        steps.append((operation, rows, chain[column][rows]))
    return [step for step in steps if len(step[1])]


def on_device(array: npt.NDArray[np.generic], device: torch.device) -> Tensor:
    """Copy without waiting for what the device is doing."""
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def photometric(crops: Tensor, chain: Chain) -> Tensor:
    """Apply one view's photometric augmentation, by (N,) `chains`.

    Crops (N, H, W, C), uint8, become (N, C, H, W), float32 in [0, 255], on the same device.
    """
    planes = crops.permute(0, 3, 1, 2)
    steps = _steps(chain)
    if not steps:
        return planes.to(torch.float32)
    x = planes.to(torch.float32, memory_format=torch.contiguous_format)
    # One transfer for the rows and one for the values of all steps.
    operations, own_rows, own_values = zip(*steps, strict=True)
    lengths = list(map(len, own_rows))
    all_rows = on_device(np.concatenate(own_rows), x.device).split(lengths)
    values = np.concatenate(own_values).astype(np.float32)
    all_values = on_device(values, x.device).split(lengths)
    for operation, rows, value in zip(operations, all_rows, all_values, strict=True):
        if len(rows) == len(x):
            # A step for all images needs no picking and putting back.
            x = operation(x, value)
        else:
            x.index_copy_(0, rows, operation(x.index_select(0, rows), value))
    return x


class Normalize:
    """Turns x in [0, 255] into (x / 255 - mean) / std per channel.

    Its constants are brought to the device once.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], device: torch.device) -> None:
        """Make it for images on `device`."""
        scale = [1 / (255 * s) for s in std]
        self._scale = torch.tensor(scale, device=device).view(1, -1, 1, 1)
        shift = [-m / s for m, s in zip(mean, std, strict=True)]
        self._shift = torch.tensor(shift, device=device).view(1, -1, 1, 1)

    def constants(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return a scale and a shift per channel, float32: the normalised value is scale x +
        shift.
        """
        return self._scale.flatten().numpy(), self._shift.flatten().numpy()

    def __call__(self, x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Normalise (N, C, H, W) float32, which is overwritten.

        The result is `channels_last` with three channels.
        """
        # A GPU shifts, rounds and reorders in one pass.
        layout = torch.channels_last if x.shape[1] == 3 else torch.contiguous_format
        out = torch.empty_like(x, dtype=dtype, memory_format=layout)
        return torch.add(x.mul_(self._scale), self._shift, out=out)
