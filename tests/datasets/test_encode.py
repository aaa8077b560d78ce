from __future__ import annotations

import io
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from regbench.datasets.sources.imagefolder import ImageFolder
from regbench.datasets.stored.beton import JPEG, RAW, Sample
from regbench.datasets.stored.encode import Unreadable, encode, in_order
from tests.datasets.preparing import saved

Pixels = npt.NDArray[np.uint8]
NOISE = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
MASKS = (0xF800, 0x07E0, 0x001F)
GREY16 = np.linspace(0, 65535, 600).reshape(20, 30).astype(np.uint16)


def encoded(content: bytes | Path, origin: str = "", **settings: Any) -> Sample:
    sample = encode(content, 4, origin, ImageFolder(**settings))
    assert isinstance(sample, Sample)
    return sample


def pixels(sample: Sample) -> Pixels:
    if sample.mode == RAW:
        return np.frombuffer(sample.data, np.uint8).reshape(sample.height, sample.width, 3)
    return np.asarray(Image.open(io.BytesIO(sample.data)))


RGB = Image.fromarray(NOISE)
KINDS = {
    "grey.jpg": saved(RGB.convert("L"), "JPEG"),
    "cmyk.jpg": saved(RGB.convert("CMYK"), "JPEG"),
    "rgba.png": saved(RGB.convert("RGBA"), "PNG"),
    "grey and alpha.png": saved(RGB.convert("LA"), "PNG"),
    "palette.png": saved(RGB.convert("P"), "PNG"),
    "black and white.png": saved(RGB.convert("1"), "PNG"),
    "webp.webp": saved(RGB, "WEBP"),
    "a PNG by another name.JPEG": saved(RGB, "PNG"),
}


def test_other_kinds_of_images_become_rgb(tmp_path: Path) -> None:
    for name, content in KINDS.items():
        path = tmp_path / name
        path.write_bytes(content)
        sample = encoded(path, name)
        assert (sample.mode, sample.height, sample.width) == (RAW, 20, 30)
        assert (sample.label, sample.origin) == (4, name)
        assert sample.grey == name.startswith(("grey", "black")), name
        np.testing.assert_array_equal(pixels(sample), np.asarray(Image.open(path).convert("RGB")))


def test_large_images_of_other_kinds_become_good_jpegs() -> None:
    x = np.linspace(0, 255, 200)
    image = np.stack([np.add.outer(x, x) / 2] * 3, axis=2).astype(np.uint8)
    sample = encoded(saved(Image.fromarray(image), "PNG"))
    assert sample.mode == JPEG
    assert np.abs(pixels(sample).astype(int) - image).max() <= 4


def test_of_16_bits_the_upper_8_are_kept() -> None:
    # A PGM with levels above 255 is big-endian.
    big_endian = b"P5 30 20 65535\n" + GREY16.astype(">u2").tobytes()
    png, tiff = (saved(Image.fromarray(GREY16), kind) for kind in ("PNG", "TIFF"))
    for content in (png, tiff, big_endian):
        found = pixels(encoded(content))
        np.testing.assert_array_equal(found, np.repeat((GREY16 >> 8)[:, :, None], 3, axis=2))


def test_nothing_is_said_of_bits_and_bands_that_an_image_does_not_have() -> None:
    # The three colours of a pixel of this BMP have 16 bits together.
    head = struct.pack("<2s6I2H9I", b"BM", 106, 0, 66, 40, 5, 4, 1, 16, 3, 40, *[0] * 4, *MASKS)
    assert encoded(head + bytes(48), levels=4096).peak == -1
    lab = encode(saved(Image.new("LAB", (5, 4)), "TIFF"), 0, "", ImageFolder())
    assert getattr(lab, "remarks", ()) == ()  # older Pillows do not convert it


def test_pixels_of_unknown_range_are_not_guessed() -> None:
    for kind, factor in (("i4", 7), ("i4", 1), ("f4", 7)):
        image = Image.fromarray((GREY16 * 1.0 * factor).astype(kind))
        found = encode(saved(image, "TIFF"), 0, "deep.tif", ImageFolder())
        assert isinstance(found, Unreadable)
        assert found.origin == "deep.tif"
        assert "whose range is not known; convert it to 8 or 16 bits" in found.reason


def test_what_is_too_long_for_a_jpeg_is_unreadable() -> None:
    content = saved(Image.new("L", (65501, 1)), "PNG")
    reason = "it is 65501 x 1 px, and 65500 is the most; set dataset.source.resize_px"
    assert encode(content, 0, "long.png", ImageFolder()) == Unreadable("long.png", reason)
    assert encoded(content, resize_px=99, resize_side="longer").width == 99


def test_what_is_transparent_has_the_colour_stored_for_it() -> None:
    alpha = np.zeros((20, 30, 1), np.uint8)
    alpha[:10] = 128
    rgba = Image.fromarray(np.concatenate([NOISE, alpha], axis=2))
    np.testing.assert_array_equal(pixels(encoded(saved(rgba, "PNG"))), NOISE)
    # Pillow would warn of this one.
    palette = RGB.quantize(8)
    content = saved(palette, "PNG", transparency=bytes(range(0, 80, 10)))
    found = pixels(encoded(content))
    np.testing.assert_array_equal(found, np.asarray(palette.convert("RGB")))


def test_the_exif_orientation_is_ignored() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    for kind in ("JPEG", "PNG", "WEBP"):
        sample = encoded(saved(RGB, kind, exif=exif))
        assert (sample.height, sample.width) == (20, 30), kind
    shrunk = encoded(saved(RGB, "JPEG", exif=exif), resize_px=10)
    assert (shrunk.height, shrunk.width) == (10, 15)
    assert not Image.open(io.BytesIO(shrunk.data)).getexif()


def test_only_larger_images_are_shrunk() -> None:
    for size, side, px, stored in (
        ((30, 20), "shorter", 10, (15, 10)),
        ((20, 30), "longer", 10, (6, 10)),
        ((30, 20), "shorter", 20, (30, 20)),
        ((30, 20), "shorter", 99, (30, 20)),
        ((30, 20), "longer", 29, (29, 19)),
        ((300, 1), "longer", 10, (10, 1)),
        ((1, 1), "shorter", 1, (1, 1)),
    ):
        content = saved(Image.new("RGB", size, (200, 100, 50)), "JPEG")
        sample = encoded(content, resize_px=px, resize_side=side)
        assert (sample.width, sample.height) == stored
        assert pixels(sample).shape[:2] == stored[::-1]
        assert (sample.data == content) == (size == stored)


def test_shrinking_averages_and_quality_is_obeyed() -> None:
    stripes = np.zeros((400, 400, 3), np.uint8)
    stripes[:, ::2] = 255
    content = saved(Image.fromarray(stripes), "PNG")
    grey = pixels(encoded(content, resize_px=100)).astype(int)
    # Antialiased: what is finer than a pixel turns grey, and does not show as coarser stripes.
    assert np.abs(grey[5:-5, 5:-5] - 127.5).max() < 4
    pixels_of_noise = np.random.default_rng(0).integers(0, 256, (90, 90, 3), dtype=np.uint8)
    noise = saved(Image.fromarray(pixels_of_noise), "PNG")
    rough, fine = (encoded(noise, resize_px=60, jpeg_quality=quality) for quality in (30, 90))
    assert len(rough.data) < len(fine.data) / 2


def test_shrinking_is_bicubic_and_keeps_colours_sharp() -> None:
    sample = encoded(saved(RGB, "PNG"), resize_px=13, jpeg_quality=100)
    kinds = (Image.Resampling.BICUBIC, Image.Resampling.BILINEAR)
    bicubic, bilinear = (np.asarray(RGB.resize((19, 13), kind)).astype(int) for kind in kinds)
    # A JPEG of the best quality is off by a few levels, and by far more where its colours are not
    # of every pixel.
    assert np.abs(pixels(sample) - bicubic).max() <= 6
    assert np.abs(bilinear - bicubic).max() > 20


def test_results_come_in_order_and_not_far_ahead() -> None:
    drawn = []

    def numbers() -> Iterator[int]:
        for i in range(1000):
            drawn.append(i)
            yield i

    def half(i: int) -> float:
        time.sleep(0.001 * (i % 3))
        return i / 2

    results = in_order(half, numbers())
    assert [next(results) for _ in range(50)] == [i / 2 for i in range(50)]
    assert len(drawn) < 50 + 20 * len(os.sched_getaffinity(0))
