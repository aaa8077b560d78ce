from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from regbench.datasets.config import ViewConfig
from regbench.datasets.loading import draws, photometric

N, SIZE = 12, 32
# Grey levels. For bytes torchvision cuts off the fraction, of the luma and again of the result.
BYTES_TOLERANCE = 1.5


@pytest.fixture
def images() -> Tensor:
    """(N, 3, SIZE, SIZE) whole grey levels, with flat grey, black and white parts."""
    x = torch.randint(0, 256, (N, 3, SIZE, SIZE), generator=torch.Generator().manual_seed(0))
    x[0, :, :8], x[1, :, :8], x[2, :, :8] = 128, 0, 255
    return x.to(torch.uint8)


def per_image(images: Tensor, function: object, values: Tensor) -> Tensor:

    return torch.stack([function(x, float(v)) for x, v in zip(images, values, strict=True)])  # type: ignore[operator]


JITTER = [
    (photometric.adjust_brightness, F.adjust_brightness, (0.6, 1.4)),
    (photometric.adjust_contrast, F.adjust_contrast, (0.6, 1.4)),
    (photometric.adjust_saturation, F.adjust_saturation, (0.8, 1.2)),
    (photometric.adjust_hue, F.adjust_hue, (-0.5, 0.5)),
]


@pytest.mark.parametrize(("ours", "theirs", "span"), JITTER)
def test_jitter_equals_torchvision(
    ours: object, theirs: object, span: tuple[float, float], images: Tensor
) -> None:
    values = torch.linspace(*span, N)
    got = ours(images.float(), values)  # type: ignore[operator]
    as_bytes = per_image(images, theirs, values).float()
    as_floats = per_image(images.float() / 255, theirs, values) * 255
    assert (got - as_bytes).abs().max() < BYTES_TOLERANCE
    assert (got - as_floats).abs().max() < 0.1
    assert got.min() >= 0
    assert got.max() <= 255


def test_grayscale_equals_torchvision(images: Tensor) -> None:
    got = photometric.to_grayscale(images.float(), torch.zeros(N))
    as_bytes = F.rgb_to_grayscale(images, num_output_channels=3).float()
    assert (got - as_bytes).abs().max() < BYTES_TOLERANCE
    assert (got - F.rgb_to_grayscale(images.float(), num_output_channels=3)).abs().max() < 0.1


def test_blur_equals_torchvision() -> None:
    for size in (12, 28, 96, 224):
        x = torch.rand(3, 1, size, size, generator=torch.Generator().manual_seed(1)) * 255
        sigma = torch.tensor([0.1, 0.9, 2.0])
        taps = [photometric.blur_taps(size)] * 2
        got = photometric.gaussian_blur(x, sigma)
        pairs = zip(x, sigma, strict=True)
        expected = torch.stack([F.gaussian_blur(a, taps, [float(s)] * 2) for a, s in pairs])
        assert (got - expected).abs().max() < 0.01


def test_blur_kernel_lengths() -> None:
    sizes = (8, 28, 32, 64, 96, 224)
    assert [photometric.blur_taps(size) for size in sizes] == [3, 3, 3, 7, 9, 23]


def test_blur_of_many_images_is_that_of_each() -> None:
    x = torch.rand(300, 1, 8, 8)
    sigma = torch.linspace(0.1, 2, 300)
    got = photometric.gaussian_blur(x, sigma)
    torch.testing.assert_close(got[299:], photometric.gaussian_blur(x[299:], sigma[299:]))


def test_solarize_equals_torchvision(images: Tensor) -> None:
    got = photometric.solarize(images.float(), torch.full((N,), 130.0))
    torch.testing.assert_close(got, F.solarize(images, 130).float())
    assert (got[images == 130] == 125).all()
    assert (got[images == 129] == 129).all()


def augmented(images: Tensor, chain: photometric.Chain, way: str = "batch") -> Tensor:
    """The whole chain on (N, C, H, W), as a batch or image by image with numba."""
    crops = images.permute(0, 2, 3, 1).contiguous()
    if way == "batch":
        return photometric.photometric(crops, chain)
    module = "regbench.datasets.loading.kernels_photometric"
    kernels = pytest.importorskip(module, reason="needs numba", exc_type=ImportError)
    out = np.empty(crops.shape, np.float32)
    unchanged = np.ones(images.shape[1], np.float32), np.zeros(images.shape[1], np.float32)
    for n, crop in enumerate(crops.numpy()):
        kernels.finish(crop, chain[n], photometric.blur_taps(images.shape[2]), *unchanged, out[n])
    return torch.from_numpy(out).permute(0, 3, 1, 2)


@pytest.mark.parametrize("way", ["batch", "numba"])
@pytest.mark.parametrize("channels", [1, 3])
def test_chain_equals_torchvision_image_by_image(channels: int, way: str, images: Tensor) -> None:
    config = ViewConfig(blur_p=0.5, solarize_p=0.4, grayscale_p=0.3, solarize_threshold=100)
    images = images[:, :channels]
    key = draws.keys(7, 3, np.arange(N), draws.PHOTOMETRIC)
    got = augmented(images, photometric.chains(key, config, channels), way)
    # Grey images keep the order of what they have.
    chain = photometric.chains(key, config, 3)
    taps = photometric.blur_taps(SIZE)
    functions = [F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue]
    solarized = 0
    for n in range(N):
        x = images[n].float() / 255
        for i in chain["order"][n]:
            if i >= 0 and (channels == 3 or i < 2):
                x = functions[i](x, float(chain["factors"][n, i]))
        if chain["grayscale"][n] and channels == 3:
            x = F.rgb_to_grayscale(x, num_output_channels=3)
        if chain["sigma"][n]:
            x = F.gaussian_blur(x, [taps, taps], [float(chain["sigma"][n])] * 2)
        if chain["threshold"][n] == 100:
            # A value at the threshold may fall on either side of it.
            near = (x - 100 / 255).abs() < 1e-3
            expected, mine = F.solarize(x, 100 / 255)[~near], got[n][~near]
            solarized += 1
        else:
            expected, mine = x, got[n]
        assert (mine - expected * 255).abs().max() < 0.2, n
    assert 0 < solarized < N


def test_an_operation_on_all_images_bears_one_on_some_after_it(images: Tensor) -> None:
    key = draws.keys(0, 0, np.arange(N), draws.PHOTOMETRIC)
    grey = ViewConfig(jitter_p=0, grayscale_p=1, blur_p=0, solarize_p=0)
    both = ViewConfig(jitter_p=0, grayscale_p=1, blur_p=0.5, solarize_p=0)
    chain = photometric.chains(key, both, 3)
    got = augmented(images, chain)
    plain = augmented(images, photometric.chains(key, grey, 3))
    sigma = torch.from_numpy(chain["sigma"].astype(np.float32))
    blurred = sigma > 0
    assert 0 < blurred.sum() < N
    torch.testing.assert_close(got[~blurred], plain[~blurred])
    expected = photometric.gaussian_blur(plain[blurred], sigma[blurred])
    torch.testing.assert_close(got[blurred], expected)


def test_the_crops_given_are_not_written_to(images: Tensor) -> None:
    config = ViewConfig(blur_p=1, solarize_p=1)
    crops = images.permute(0, 2, 3, 1).contiguous()
    before = crops.clone()
    key = draws.keys(0, 0, np.arange(N), draws.PHOTOMETRIC)
    photometric.photometric(crops, photometric.chains(key, config, 3))
    assert torch.equal(crops, before)


@pytest.mark.parametrize("size", [28, 96])
def test_both_ways_are_the_same(size: int) -> None:
    generator = torch.Generator().manual_seed(5)
    images = torch.randint(0, 256, (12, 3, size, size), dtype=torch.uint8, generator=generator)
    config = ViewConfig(blur_p=0.7, jitter_p=0.9, hue=0.5)
    chain = photometric.chains(draws.keys(1, 0, np.arange(12), draws.PHOTOMETRIC), config, 3)
    difference = augmented(images, chain) - augmented(images, chain, "numba")
    # Where a value meets the threshold to the last bit, solarization may fall on either side.
    assert (difference.abs() > 0.01).float().mean() < 1e-4
    assert (difference[torch.from_numpy(chain["threshold"] > 255)].abs() < 0.01).all()


def test_normalize() -> None:
    x = torch.tensor([0.0, 51.0, 255.0]).view(1, 3, 1, 1).repeat(2, 1, 4, 5)
    normalize = photometric.Normalize((0.5, 0.1, 0.25), (0.5, 0.2, 0.25), torch.device("cpu"))
    got, rounded = normalize(x.clone()), normalize(x.clone(), torch.bfloat16)
    torch.testing.assert_close(got[1, :, 2, 3], torch.tensor([-1.0, 0.5, 3.0]))
    assert torch.equal(rounded, got.bfloat16())
    assert got.is_contiguous(memory_format=torch.channels_last) and got.stride() == rounded.stride()
