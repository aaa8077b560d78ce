"""What is wrong with the input, or goes wrong on the way: each is refused or borne, and said in one
line.

Truncated `.beton` files and wrong numbers in them are in `test_beton`, images of odd kinds one by
one in `test_encode`, refusals of settings and of sources in `test_prepare`.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from regbench import RegbenchError
from regbench.datasets.config import DatasetConfig
from regbench.datasets.loading.loaders import EvalLoader
from regbench.datasets.sources.base import SOURCES, ImageFiles
from regbench.datasets.sources.layouts import Listing
from regbench.datasets.stored import encode as encoding
from regbench.datasets.stored.beton import Beton, Sample
from regbench.datasets.stored.encode import Unreadable
from regbench.datasets.stored.manifest import Manifest
from regbench.datasets.stored.prepare import prepare
from regbench.datasets.stored.split_files import write_splits
from regbench.datasets.stored.verify import verify
from regbench.datasets.stored.voc_files import read_image
from tests.command import done, refusal, run
from tests.datasets.preparing import BACKENDS, FFCV, folder_config, make_imagefolder, saved
from tests.refusals import is_refused
from tests.waiting import PATIENCE_S, wait_for

SETTINGS = {"train_per_class": None, "tuning_per_class": None}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A source of three classes with 3 images each in train/ and 2 in val/."""
    return make_imagefolder(tmp_path / "source", 3, 2)


@pytest.fixture
def config() -> DatasetConfig:
    return folder_config(**SETTINGS)


def preparing(data: Path, source: Path, *options: str) -> list[object]:
    """The command, on the data set `config` in `data`."""
    settings = "dataset.name=insects dataset.num_classes=3 dataset.image_size=32"
    settings += " dataset.eval_resize=40 dataset.source.held_out=null"
    where = ["--source-dir", source, f"runtime.data_dir={data}"]
    return ["prepare", "imagefolder", *where, *settings.split(), *options]


def evaluated(
    config: DatasetConfig, data: Path, backend: str, choice: Path
) -> npt.NDArray[np.float32]:
    """Every image of the test split as a loader delivers it, in grey levels."""
    options: Any = {"device": torch.device("cpu"), "backend": backend, "choice": choice}
    loader = EvalLoader(config, "test", data_dir=data, batch_size=4, **options)
    with loader, loader.epoch() as batches:
        images = torch.cat([images for images, _ in batches]).permute(0, 2, 3, 1).numpy()
    mean, std = (np.array(values, np.float32) for values in (config.mean, config.std))
    levels: npt.NDArray[np.float32] = 255 * (images * std + mean)
    return levels


# --------------------------------------------------------------------------------------------------
# images

NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 50, 3), dtype=np.uint8))
JPEG, PNG, TIFF = (saved(NOISE, kind) for kind in ("JPEG", "PNG", "TIFF"))
UNREADABLE = {
    "empty.jpg": (b"", "it is empty"),
    "text.jpg": (b"Not found", "it is no image of a known format"),
    "cut short.jpg": (JPEG[:-200], "image file is truncated"),
    "only a head.jpg": (JPEG[:300], ""),
    "no scan.jpg": (JPEG[: JPEG.index(b"\xff\xda")] + b"\xff\xd9", ""),
    "flipped in the head.jpg": (JPEG[:20] + bytes([JPEG[20] ^ 255] * 40) + JPEG[60:], ""),
    "cut short.png": (PNG[:-200], "image file is truncated"),
    "flipped.png": (PNG[:500] + bytes([PNG[500] ^ 1]) + PNG[501:], ""),
    "cut short.tif": (TIFF[:-2000], ""),
    "numbers.tif": (saved(NOISE.convert("F"), "TIFF"), "whose range is not known"),
    "é ✓.webp": (saved(NOISE, "WEBP")[:-500], ""),
}


def test_unreadable_images_are_listed_and_refused_and_left_out_on_request(
    tmp_path: Path, root: Path, config: DatasetConfig, choice: Path
) -> None:
    good = prepare(config, tmp_path / "good", source_dir=root)
    for name, (content, _) in UNREADABLE.items():
        (root / "train" / "bee" / name).write_bytes(content)
    line = refusal(*preparing(tmp_path, root))
    path = tmp_path / "insects" / "unreadable.txt"
    count = len(UNREADABLE)
    first = "train/bee/cut short.jpg (image file is truncated"
    assert f"{count} images cannot be read: {first}" in line
    assert f"and {count - 3} more; all are listed in {path}" in line
    assert "--skip-unreadable" in line
    listed = dict(entry.split(": ", 1) for entry in path.read_text().splitlines())
    assert len(listed) == count
    for name, (_, reason) in UNREADABLE.items():
        assert reason in listed[f"train/bee/{name}"]
    with is_refused("is not prepared"):
        Manifest.load(tmp_path, "insects")

    said = done(*preparing(tmp_path, root, "--skip-unreadable")).stdout
    assert f"({count} left out)" in said
    assert first in said
    manifest = Manifest.load(tmp_path, "insects")
    assert set(manifest.splits["train"]["left_out"]) == {f"train/bee/{name}" for name in UNREADABLE}
    assert not manifest.splits["test"]["left_out"]
    for split, entry in good.splits.items():
        assert manifest.splits[split]["content_sha256"] == entry["content_sha256"]
        assert manifest.splits[split]["counts_per_class"] == entry["counts_per_class"]
    assert verify("insects", tmp_path) == (15, [])
    assert len(evaluated(config, tmp_path, "torchvision", choice)) == 6


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("fashion_mnist", ["train-labels-idx1-ubyte.gz"]),
        ("parquet", ["train.parquet", "test.parquet"]),
        ("imagefolder", ["trainvalsplit_places205/train_places205.csv"]),
    ],
)
def test_no_source_reads_a_device(tmp_path: Path, source: str, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to("/dev/null")
    with is_refused(f"{names[0]}.* cannot be read .*it is no regular file"):
        SOURCES.build(source).open(tmp_path, tmp_path)
    with is_refused(r"cannot read the image .*it is no regular file"):
        read_image(tmp_path / names[0])


def test_pages_are_as_large_as_a_header_can_say(
    tmp_path: Path, root: Path, config: DatasetConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = config.source.open(root, root)
    large = replace(found.splits["test"], largest_bytes=2**29 + 1)
    write_splits(config, replace(found, splits={"test": large}), tmp_path)
    assert len(Beton(tmp_path / "test.beton")) == 6
    monkeypatch.setattr("regbench.datasets.stored.split_files.MAX_PAGE_BYTES", len(JPEG))
    (root / "val" / "ant" / "large.jpg").write_bytes(JPEG + b"more")
    with is_refused(rf"val/ant/large\.jpg \(it takes {len(JPEG) + 4:,} bytes, and .* is the most"):
        prepare(config, tmp_path, source_dir=root)


def test_mended_images_are_read_again(tmp_path: Path, root: Path, config: DatasetConfig) -> None:
    path = root / "val" / "bee" / "bee_000.jpg"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with is_refused(r"1 images cannot be read: val/bee/bee_000\.jpg"):
        prepare(config, tmp_path, source_dir=root)
    path.write_bytes(whole)
    manifest = prepare(config, tmp_path, source_dir=root)
    assert manifest.splits["test"]["counts_per_class"] == [2, 2, 2]
    assert not (tmp_path / "insects" / "unreadable.txt").exists()


def test_a_class_that_would_be_empty_is_refused_all_the_same(
    tmp_path: Path, root: Path, config: DatasetConfig
) -> None:
    for path in (root / "val" / "bee").iterdir():
        path.write_bytes(b"none")
    reason = r"beton: 1 classes \(bee\) would have no image, .* val/bee/bee_000\.jpg .*; mend them"
    with is_refused(reason):
        prepare(config, tmp_path, source_dir=root, skip_unreadable=True)
    assert len((tmp_path / "insects" / "unreadable.txt").read_text().splitlines()) == 2
    assert not (tmp_path / "insects" / "test.beton").exists()


def test_odd_images_come_the_same_out_of_both_loaders(
    tmp_path: Path, root: Path, config: DatasetConfig, choice: Path
) -> None:
    orange = (200, 90, 30)
    colour = Image.new("RGB", (40, 40), orange)
    odd = {
        "grey.jpg": (saved(Image.new("L", (40, 40), 200), "JPEG"), (200, 200, 200)),
        "cmyk.jpg": (saved(colour.convert("CMYK"), "JPEG", quality=100), orange),
        "one pixel.jpg": (saved(colour.resize((1, 1)), "JPEG"), orange),
        "one pixel.png": (saved(colour.resize((1, 1)), "PNG"), orange),
        "one row.jpg": (saved(colour.resize((300, 1)), "JPEG"), orange),
    }
    for name, (content, _) in odd.items():
        (root / "val" / "ant" / name).write_bytes(content)
    prepare(config, tmp_path, source_dir=root)
    origins = (tmp_path / "insects" / "test.origins.txt").read_text().splitlines()
    rows = {name: [line[9:] for line in origins].index(f"val/ant/{name}") for name in odd}
    for backend in ("torchvision", *(["ffcv"] if FFCV else [])):
        images = evaluated(config, tmp_path, backend, choice)
        for name, (_, expected) in odd.items():
            assert np.abs(images[rows[name]] - np.array(expected)).max() < 4, (backend, name)


# --------------------------------------------------------------------------------------------------
# folders


def test_names_in_any_script(tmp_path: Path, root: Path, config: DatasetConfig) -> None:
    names = ["日本語.jpg", "naïve café.jpg", "two\nlines.jpg", "a, (b); c.jpg", "mac\rline.jpg"]
    names.append(os.fsdecode(b"latin \xe9.jpg"))
    for part in ("train", "val"):
        (root / part / "cat").rename(root / part / "猫")
        for name in names:
            (root / part / "猫" / name).write_bytes(JPEG)
    manifest = prepare(config, tmp_path, source_dir=root)
    assert manifest.class_names == ["ant", "bee", "猫"]
    lines = (tmp_path / "insects" / "train.origins.txt").read_bytes().decode().split("\n")[:-1]
    assert len(lines) == manifest.splits["train"]["num_samples"] == 15
    origins = {line[9:] for line in lines}
    assert {f"train/猫/{name}.jpg" for name in ("日本語", r"two\nlines", r"latin \xe9")} <= origins
    assert verify("insects", tmp_path) == (27, [])
    assert Manifest.load(tmp_path, "insects") == manifest


@pytest.fixture
def as_nobody(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder of a user who is not the superuser, whom no permission stops.

    The test runs as that user.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        privileged = os.geteuid() == 0
        if privileged:
            os.seteuid(65534)
        try:
            yield folder
        finally:
            if privileged:
                os.seteuid(0)


def test_no_permission_is_one_line(as_nobody: Path, config: DatasetConfig) -> None:
    root = make_imagefolder(as_nobody / "source", 2, 1)
    secret = root / "train" / "ant" / "ant_001.jpg"
    data, closed = as_nobody / "data", as_nobody / "closed"
    closed.mkdir(mode=0o500)
    for path, mode, into, reason in (
        (secret, 0, data, r"cannot be read: train/ant/ant_001\.jpg \(Permission denied\)"),
        (secret.parent, 0, data, r"source/train/ant cannot be listed \(Permission denied\)"),
        (root, 0o700, closed, "cannot write in the folder .*closed/insects: Permission denied; ch"),
    ):
        before = path.stat().st_mode
        path.chmod(mode)
        with is_refused(reason):
            prepare(config, into, source_dir=root)
        path.chmod(before)
    prepare(config, data, source_dir=root)
    # What may be listed need not be entered.
    secret.rename(root / "train" / "loose.jpg")
    (root / "train").chmod(0o600)
    seen = Listing(root, allow_empty=True)
    assert len(seen.images_below(root)) == 4
    names = ("ant", "bee", "cat")
    assert seen == [f"{root}/train/{name} cannot be listed (Permission denied)" for name in names]
    beton = data / "insects" / "train.beton"
    beton.chmod(0)
    problem = f"cannot read {beton}: Permission denied"
    assert verify("insects", data) == (3, [problem])


# --------------------------------------------------------------------------------------------------
# .beton files


@pytest.fixture
def insects(tmp_path: Path, root: Path, config: DatasetConfig) -> Path:
    """The folder of a data set that is prepared."""
    prepare(config, tmp_path, source_dir=root)
    return tmp_path / "insects"


METADATA_START = 24 + 2 * 1041
# Mode (1 byte), width (2), height (2), where the image's bytes are (8), padding (3), label (8).
ROW_BYTES = 24


def flip(path: Path, offset: int, bits: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        value = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([value ^ bits]))


def test_a_flipped_bit_anywhere_but_in_the_images_is_refused_or_found(insects: Path) -> None:
    path = insects / "test.beton"
    whole = path.read_bytes()
    before = Beton(path)
    table_start = int.from_bytes(whole[16:24], "little")
    refused = unseen = 0
    # Steps that meet every byte of a row, and sooner or later every one of its bits.
    metadata = range(METADATA_START, METADATA_START + ROW_BYTES * len(before), 5)
    for offset in [*range(24), *metadata, *range(table_start, len(whole), 5)]:
        bits = 1 << (offset % 8)
        flip(path, offset, bits)
        try:
            beton = Beton(path)
        except RegbenchError as error:
            assert "test.beton" in str(error) and "\n" not in str(error)
            refused += 1
        else:
            changed = False
            for name in ("labels", "start", "size", "modes", "heights", "widths"):
                changed |= not np.array_equal(getattr(beton, name), getattr(before, name))
            if changed:
                assert verify("insects", insects.parent)[1]
            unseen += changed
        flip(path, offset, bits)
    assert path.read_bytes() == whole
    assert refused > 30 and unseen > 5


def test_flipped_bits_in_images_are_found_by_index_and_name(insects: Path, tmp_path: Path) -> None:
    beton = Beton(insects / "train.beton")
    for index in (2, 7):
        flip(beton.path, int(beton.start[index]) + 300)
    result = run(*preparing(tmp_path, tmp_path / "none", "--verify"))
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"image 2 of {beton.path}, train/ant/ant_002.jpg, has not the bytes that were written",
        f"image 7 of {beton.path}, train/cat/cat_001.jpg, has not the bytes that were written",
        "insects: 15 images read back, 2 problems",
    ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loader_bears_flipped_bits_or_names_the_image(
    backend: str, insects: Path, config: DatasetConfig, choice: Path
) -> None:
    path = insects / "test.beton"
    before = evaluated(config, insects.parent, backend, choice)
    beton = Beton(path)
    start, size = int(beton.start[3]), int(beton.size[3])
    borne = named = 0
    width = METADATA_START + 3 * ROW_BYTES + 1
    offsets = [start, start + 1, start + 3, width, width + 2]
    for offset in [*offsets, *range(start + 20, start + size, size // 12)]:
        flip(path, offset, 4)
        try:
            images = evaluated(config, insects.parent, backend, choice)
            others = np.arange(len(images)) != 3
            np.testing.assert_array_equal(images[others], before[others])
            borne += 1
        except RegbenchError as error:
            assert "image 3 of" in str(error) and "test.beton cannot be decoded" in str(error)
            named += 1
        flip(path, offset, 4)
    assert borne > 0 and named > 2
    np.testing.assert_array_equal(evaluated(config, insects.parent, backend, choice), before)


def test_a_file_of_another_size_is_refused(
    insects: Path, config: DatasetConfig, choice: Path
) -> None:
    path = insects / "test.beton"
    reason = f"test.beton is {len(JPEG)} bytes long, not {path.stat().st_size}; write it again"
    path.write_bytes(JPEG)
    with is_refused(reason):
        evaluated(config, insects.parent, "torchvision", choice)
    (problem,) = verify("insects", insects.parent)[1]
    assert reason in problem


def test_changed_labels_and_origins_are_found(insects: Path) -> None:
    def problems() -> list[str]:
        return verify("insects", insects.parent)[1]

    assert problems() == []
    path, label = insects / "train.beton", METADATA_START + 16
    flip(path, label)
    assert problems() == [f"{path}: the images of each class are not as many as in the manifest"]
    # An ant and a bee change places.
    flip(path, label + 3 * ROW_BYTES)
    assert problems() == [f"{path}: its labels and images have not the hash in the manifest"]
    origins = insects / "test.origins.txt"
    origins.write_text(origins.read_text().replace("cat_000", "cat_009"))
    changed = f"{origins} is missing or has not the hash in the manifest; write it again"
    assert problems()[1].startswith(changed)


# ---------------------------------------------------------------------------------------- disks,
# kills, two writers

KILLED = """
import os, signal, sys
from pathlib import Path
from regbench.datasets.stored import encode as encoding
from regbench.datasets.stored import prepare
from regbench.datasets.config import DatasetConfig
from regbench.datasets.sources.base import SOURCES
encode = encoding.encode
def kill(image, label, origin, config):
    if origin.startswith("val/bee"):
        os.kill(os.getpid(), signal.SIGKILL)
    return encode(image, label, origin, config)
encoding.encode = kill
config = DatasetConfig(name="insects", source=SOURCES.build("imagefolder"), image_size=32,
                       mean=(0.5,) * 3, std=(0.5,) * 3, num_classes=3, eval_resize=40)
prepare.prepare(config, Path(sys.argv[1]), source_dir=Path(sys.argv[2]))
"""


def contents(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.iterdir() if path.name not in (".lock", "manifest.json")]
    return {path.name: path.read_bytes() for path in paths}


def test_a_disk_that_fills_up_is_one_line_and_leaves_nothing_half_written(
    tmp_path: Path, root: Path, config: DatasetConfig
) -> None:
    for number in range(60):
        noise = np.random.default_rng(number).integers(0, 256, (100, 100, 3), dtype=np.uint8)
        Image.fromarray(noise).save(root / "val" / "bee" / f"{number:02d}.jpg")
    # A limit on the size of files stands for it: the writer sees an error half-way.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_200_000, limits[1]))
    try:
        with pytest.raises(RegbenchError) as refusal:
            prepare(config, tmp_path, source_dir=root)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    path = tmp_path / "insects" / "test.beton"
    assert str(refusal.value) == f"cannot write {path}: File too large"
    names = {path.name for path in (tmp_path / "insects").iterdir()}
    assert names == {".lock", "train.beton", "train.origins.txt"}


def test_a_killed_writer(tmp_path: Path, root: Path, config: DatasetConfig) -> None:
    folder = tmp_path / "insects"
    command = [sys.executable, "-c", KILLED, str(tmp_path), str(root)]
    killed = subprocess.run(command, stderr=subprocess.DEVNULL)
    assert killed.returncode == -signal.SIGKILL
    assert list(folder.glob(".test.beton.*"))
    with is_refused("is not prepared"):
        Manifest.load(tmp_path, "insects")
    assert [path.name for path in folder.glob("*.beton")] == ["train.beton"]
    prepare(config, tmp_path, source_dir=root)
    prepare(config, tmp_path / "undisturbed", source_dir=root)
    assert contents(folder) == contents(tmp_path / "undisturbed" / "insects")
    names = {"train.beton", "train.origins.txt", "test.beton", "test.origins.txt", "folder.txt"}
    assert set(contents(folder)) == names


def test_it_may_end_between_any_two_files(
    tmp_path: Path, root: Path, config: DatasetConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(config, tmp_path, source_dir=root)
    replace = Path.replace
    renamed: list[Path] = []

    def replace_some(temporary: Path, path: Path) -> Path:
        # Threads that earlier tests of this process have left may rename files of their own.
        if tmp_path not in path.parents:
            return replace(temporary, path)
        if len(renamed) == last:
            raise KeyboardInterrupt
        renamed.append(path)
        return replace(temporary, path)

    for last in range(6):
        data = tmp_path / str(last)
        renamed.clear()
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(Path, "replace", replace_some)
            prepare(config, data, source_dir=root)
        with is_refused("is not prepared"):
            Manifest.load(data, "insects")
        prepare(config, data, source_dir=root)
        assert contents(data / "insects") == contents(tmp_path / "insects")
    # The manifest is the last one, and all that it missed.
    assert renamed[-1].name == "folder.txt" and len(renamed) == 5
    # Beside files that are written anew there is no manifest of the old ones.
    for last in (0, 3):  # noqa: B007  # for replace_some
        renamed.clear()
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(Path, "replace", replace_some)
            prepare(config, tmp_path, source_dir=root, force=True)
        with is_refused("is not prepared"):
            Manifest.load(tmp_path, "insects")
        prepare(config, tmp_path, source_dir=root)


def test_what_was_prepared_with_other_settings_is_refused(
    tmp_path: Path, root: Path, config: DatasetConfig
) -> None:
    shrunk = replace(config, source=SOURCES.build("imagefolder", resize_px=20))
    manifest = prepare(shrunk, tmp_path, source_dir=root)
    assert max(Beton(tmp_path / "insects" / "train.beton").heights) < 50
    assert manifest.source["resize_px"] == 20
    with is_refused(r"was prepared with .*resize_px 20.*, not .*; choose another dataset\.name"):
        prepare(config, tmp_path, source_dir=root)
    older = {key: value for key, value in manifest.source.items() if key != "held_out"}
    replace(manifest, source=older).save(tmp_path)
    with is_refused("was prepared with no held_out, not held_out .*; choose another"):
        prepare(shrunk, tmp_path, source_dir=root)


def test_a_second_writer_and_readers_wait_and_the_second_writes_nothing(
    tmp_path: Path,
    root: Path,
    config: DatasetConfig,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    go_on = threading.Event()
    encode = encoding.encode

    def held(image: Path, label: int, origin: str, source: ImageFiles) -> Sample | Unreadable:
        assert go_on.wait(PATIENCE_S)
        return encode(image, label, origin, source)

    waiting = f"waiting for another process that prepares {tmp_path / 'insects'}"

    def told(times: int) -> bool:
        return caplog.messages.count(waiting) == times

    prepare(config, tmp_path, source_dir=root)
    monkeypatch.setattr(encoding, "encode", held)
    with ThreadPoolExecutor(3) as pool, caplog.at_level("INFO", "regbench"):
        first = pool.submit(prepare, config, tmp_path, source_dir=root, force=True)
        wait_for(lambda: list((tmp_path / "insects").glob(".train.beton.*")))
        second = pool.submit(prepare, config, tmp_path, source_dir=tmp_path / "none")
        wait_for(lambda: told(1) or second.done())
        reader = pool.submit(Manifest.load, tmp_path, config)
        wait_for(lambda: told(2) or reader.done())
        go_on.set()
        assert second.result() == reader.result() == first.result()
    assert told(2)
