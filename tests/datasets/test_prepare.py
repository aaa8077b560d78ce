from __future__ import annotations

import gzip
import hashlib
import itertools
import pickle
import re
import shutil
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest

from regbench import RegbenchError
from regbench.datasets.beton import JPEG, Beton
from regbench.datasets.config import DatasetConfig
from regbench.datasets.manifest import Manifest
from regbench.datasets.prepare import prepare
from regbench.datasets.sources import fashion_mnist
from regbench.datasets.sources.base import SOURCES

Config = Callable[..., DatasetConfig]
MakeFolder = Callable[[Path, int, int], Path]


def read_idx(path: Path, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    return np.frombuffer(gzip.decompress(path.read_bytes())[4 + 4 * len(shape) :], np.uint8).reshape(shape)


def test_fashion_mnist(data_dir: Path, fashion_source: Path) -> None:
    images = read_idx(fashion_source / "train-images-idx3-ubyte.gz", (120, 28, 28))
    labels = read_idx(fashion_source / "train-labels-idx1-ubyte.gz", (120,))
    manifest = Manifest.load(data_dir, "fashion")
    counts = {name: entry["counts_per_class"] for name, entry in manifest.splits.items()}
    assert counts == {"train": [10] * 10, "tuning": [2] * 10, "test": [3] * 10}
    assert manifest.pretraining_split == "train"
    train, tuning = (Beton(data_dir / "fashion" / f"{split}.beton") for split in ("train", "tuning"))
    for label in range(10):
        rows = np.flatnonzero(labels == label)
        for beton, expected in ((train, rows[:10]), (tuning, rows[10:])):
            found = [beton.image(int(i)) for i in np.flatnonzero(beton.labels == label)]
            np.testing.assert_array_equal(found, np.repeat(images[expected, :, :, None], 3, axis=3))
    # In the file's order, not class by class.
    assert (np.diff(train.labels) < 0).any()


def test_cifar10(tmp_path: Path, cifar_source: Path) -> None:
    config = DatasetConfig(
        name="cifar",
        source=SOURCES.build("cifar10", published=False),
        image_size=32,
        mean=(0.5,) * 3,
        std=(0.2,) * 3,
        num_classes=10,
        eval_resize=32,
    )
    manifest = prepare(config, tmp_path, source_dir=cifar_source, progress=False)
    counts = {name: entry["counts_per_class"] for name, entry in manifest.splits.items()}
    assert counts == {"train": [18] * 10, "tuning": [2] * 10, "test": [2] * 10}
    batch = pickle.loads((cifar_source / "cifar-10-batches-py" / "test_batch").read_bytes(), encoding="bytes")
    beton = Beton(tmp_path / "cifar" / "test.beton")
    assert beton.labels.tolist() == batch[b"labels"]
    for i in range(20):
        planes = batch[b"data"][i].reshape(3, 32, 32)
        np.testing.assert_array_equal(beton.image(i), np.stack(list(planes), axis=2))


def test_stl10(tmp_path: Path, stl_source: Path) -> None:
    config = DatasetConfig(
        name="stl",
        source=SOURCES.build("stl10", published=False),
        image_size=96,
        mean=(0.5,) * 3,
        std=(0.2,) * 3,
        num_classes=10,
        eval_resize=96,
    )
    manifest = prepare(config, tmp_path, source_dir=stl_source, progress=False)
    counts = {name: entry["counts_per_class"] for name, entry in manifest.splits.items()}
    assert counts == {"train": [4] * 10, "tuning": [1] * 10, "test": [2] * 10, "unlabeled": []}
    assert manifest.pretraining_split == "unlabeled"
    unlabeled = Beton(tmp_path / "stl" / "unlabeled.beton")
    assert unlabeled.labels.tolist() == [-1] * 30
    content = (stl_source / "stl10_binary" / "unlabeled_X.bin").read_bytes()
    third = content[2 * 27648 : 3 * 27648]
    image = unlabeled.image(2)
    # Plane by plane, column by column.
    for channel, row, column in [(0, 0, 1), (1, 5, 90), (2, 95, 0)]:
        assert image[row, column, channel] == third[channel * 9216 + column * 96 + row]
    test_labels = np.frombuffer((stl_source / "stl10_binary" / "test_y.bin").read_bytes(), np.uint8)
    np.testing.assert_array_equal(Beton(tmp_path / "stl" / "test.beton").labels, test_labels.astype(int) - 1)


def test_imagefolder_splits_as_published(data_dir: Path, insects_source: Path) -> None:
    manifest = Manifest.load(data_dir, "insects")
    assert manifest.class_names == ["ant", "bee", "cat"]
    expected = {"train": ("train", range(8)), "tuning": ("train", range(9, 13)), "test": ("val", range(3))}
    assert set(manifest.splits) == set(expected)
    for split, (part, numbers) in expected.items():
        beton = Beton(data_dir / "insects" / f"{split}.beton")
        files = [
            insects_source / part / name / f"{name}_{i:03d}.jpg" for name in ("ant", "bee", "cat") for i in numbers
        ]
        assert [beton.stored_bytes(i).tobytes() for i in range(len(beton))] == [file.read_bytes() for file in files]
        assert beton.labels.tolist() == [label for label in range(3) for _ in numbers]
        assert (beton.modes == JPEG).all()


def test_preparing_again_does_nothing(tmp_path: Path, fashion_source: Path, fashion_config: Config) -> None:
    first = prepare(fashion_config(), tmp_path, source_dir=fashion_source, progress=False)
    files = sorted((tmp_path / "fashion").iterdir())
    before = [file.stat().st_mtime_ns for file in files]
    # Not even the source is needed.
    assert prepare(fashion_config(), tmp_path, source_dir=tmp_path / "none", progress=False) == first
    assert [file.stat().st_mtime_ns for file in files] == before


def test_a_file_of_another_size_is_written_again(tmp_path: Path, fashion_source: Path, fashion_config: Config) -> None:
    manifest = prepare(fashion_config(), tmp_path, source_dir=fashion_source, progress=False)
    path = tmp_path / "fashion" / "tuning.beton"
    content = path.read_bytes()
    path.write_bytes(content[:-10])
    with pytest.raises(
        RegbenchError, match=r"tuning\.beton is \d+ bytes long, not \d+; write it again: regbench prepare"
    ):
        manifest.split_file(tmp_path, "tuning")
    again = prepare(fashion_config(), tmp_path, source_dir=fashion_source, progress=False)
    assert path.read_bytes() == content
    assert again.splits == manifest.splits


def test_force_writes_again(tmp_path: Path, fashion_source: Path, fashion_config: Config) -> None:
    prepare(fashion_config(), tmp_path, source_dir=fashion_source, progress=False)
    path = tmp_path / "fashion" / "test.beton"
    content = bytearray(path.read_bytes())
    content[-1000] ^= 255
    path.write_bytes(content)
    manifest = prepare(fashion_config(), tmp_path, source_dir=fashion_source, progress=False, force=True)
    content[-1000] ^= 255
    assert path.read_bytes() == content
    assert manifest == Manifest.load(tmp_path, "fashion")


def test_other_settings_are_refused(data_dir: Path, folder_config: Config, fashion_config: Config) -> None:
    with pytest.raises(RegbenchError, match=r"train_per_class 8.*not.*train_per_class 9.*choose another dataset\.name"):
        prepare(folder_config(train_per_class=9), data_dir, progress=False)
    with pytest.raises(RegbenchError, match=r"source fashion_mnist.*not source cifar10"):
        prepare(fashion_config(source="cifar10"), data_dir, progress=False)
    # For the fixed sets it only chooses what is shown of what is there.
    assert prepare(fashion_config(train_per_class=3), data_dir, progress=False).splits["train"]["num_samples"] == 100


@pytest.mark.parametrize("content", ['{"name": 1}', '{"splits": '])
def test_a_damaged_manifest_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "manifest.json").write_text(content)
    with pytest.raises(RegbenchError, match=r"manifest\.json cannot be read .*regbench prepare x --force"):
        Manifest.load(tmp_path, "x")


def refused(config: DatasetConfig, data: Path, source: Path | None, reason: str) -> None:
    with pytest.raises(RegbenchError, match=reason) as refusal:
        prepare(config, data, source_dir=source, progress=False)
    assert "\n" not in str(refusal.value)
    assert not (data / config.name / "manifest.json").exists()


def test_refusals_of_folders(tmp_path: Path, make_imagefolder: MakeFolder, folder_config: Config) -> None:
    root = make_imagefolder(tmp_path / "source", 6, 2)
    data = tmp_path / "data"
    config = folder_config(train_per_class=3, tuning_per_class=2)
    refused(config, data, None, "give the folder that holds train/CLASS/")
    refused(
        config, data, tmp_path, "train/ is missing; val/ is missing; mend it, or give another folder, with train/CLASS/"
    )
    refused(folder_config(train_per_class=4, tuning_per_class=2), data, root, r"ant has 6 images; .* need 7")
    refused(folder_config(num_classes=4, train_per_class=3, tuning_per_class=2), data, root, "3 classes, not 4")
    (root / "val" / "dog").mkdir()
    refused(config, data, root, r"1 class folders of val/ have no images: dog")
    (root / "val" / "dog" / "a.png").write_bytes(b"")
    refused(config, data, root, "train/ lacks 1 classes of val/: dog")
    shutil.rmtree(root / "val" / "dog")
    (root / "train" / "cat").rename(root / "train" / "dog")
    refused(config, data, root, "val/ lacks 1 classes of train/: dog; train/ lacks 1 classes of val/: cat")


def test_one_file_in_two_splits_is_refused(tmp_path: Path, make_imagefolder: MakeFolder, folder_config: Config) -> None:
    root = make_imagefolder(tmp_path / "source", 6, 2)
    (root / "val" / "ant" / "copy.jpg").symlink_to(root / "train" / "ant" / "ant_001.jpg")
    config = folder_config(train_per_class=3, tuning_per_class=2)
    refused(config, tmp_path / "data", root, r"splits overlap: .*(ant_001|copy)\.jpg .* one file")


def test_refusals_of_small_sets(
    tmp_path: Path, fashion_source: Path, cifar_source: Path, stl_source: Path, fashion_config: Config
) -> None:
    data = tmp_path / "data"
    config = fashion_config()
    refused(config, data, tmp_path, r"train-labels-idx1-ubyte\.gz is missing; .*; get it from https://github")
    folder = tmp_path / "fashion_copy"
    folder.mkdir()
    for file in fashion_source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    images = folder / "t10k-images-idx3-ubyte.gz"
    good = images.read_bytes()
    for bad, reason in [
        (good[:-20], "is damaged"),
        (b"plain", "is damaged"),
        (gzip.compress(b"\0\0\x0d\3" + bytes(100)), "is not an IDX file"),
        (gzip.compress(gzip.decompress(good)[:-5]), "is cut short"),
    ]:
        images.write_bytes(bad)
        refused(config, data, folder, reason)
    images.write_bytes(good)
    labels = folder / "t10k-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(gzip.decompress(labels.read_bytes())[:-1] + b"\x0a"))
    refused(config, data, folder, "labels from 0 to 10, not 0 to 9")

    cifar = fashion_config(source="cifar10")
    copy = tmp_path / "cifar_copy" / "cifar-10-batches-py"
    copy.mkdir(parents=True)
    for file in (cifar_source / "cifar-10-batches-py").iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    refused(cifar, data, tmp_path, "data_batch_1 is missing")
    for bad in (b"", pickle.dumps({b"data": 1}), pickle.dumps(print)):
        (copy / "data_batch_3").write_bytes(bad)
        refused(cifar, data, copy.parent, "data_batch_3 is not the file that CIFAR's authors published")

    stl = fashion_config(source="stl10")
    refused(stl, data, tmp_path, "train_y.bin is missing; train_X.bin is missing")


def test_a_download_that_fails_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fashion_config: Config
) -> None:
    import torchvision.datasets

    def unreachable(*_: object, **__: object) -> None:
        raise OSError("no network")

    for name, source in (
        ("FashionMNIST", "fashion_mnist"),
        ("CIFAR10", "cifar10"),
        ("CIFAR100", "cifar100"),
        ("STL10", "stl10"),
    ):
        monkeypatch.setattr(torchvision.datasets, name, unreachable)
        monkeypatch.setattr(fashion_mnist, "DEBIAN_FOLDER", tmp_path / "none")
        refused(
            fashion_config(source=source), tmp_path, None, r"cannot download .* \(no network\); get it by other means"
        )


def test_debians_fashion_mnist(tmp_path: Path, fashion_config: Config) -> None:
    if not fashion_mnist.DEBIAN_FOLDER.is_dir():
        pytest.skip("the Debian package dataset-fashion-mnist is not installed")
    manifest = prepare(fashion_config(), tmp_path, progress=False)
    counts = {name: entry["counts_per_class"] for name, entry in manifest.splits.items()}
    assert counts == {"train": [5000] * 10, "tuning": [1000] * 10, "test": [1000] * 10}
    assert manifest.class_names[:3] == ["t-shirt/top", "trouser", "pullover"]


def test_progress_in_a_log_is_plain_lines(
    tmp_path: Path,
    fashion_source: Path,
    fashion_config: Config,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from regbench.datasets import progress as module

    minutes = itertools.count(step=60.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(minutes)))
    prepare(fashion_config(), tmp_path, source_dir=fashion_source)
    said = capsys.readouterr().err
    assert re.search(r"^fashion/train: 50 of 100 images, 0 images/s, 50:00 left$", said, re.MULTILINE)
    assert "\r" not in said


def test_progress_on_a_terminal_is_a_bar(
    tmp_path: Path,
    fashion_source: Path,
    fashion_config: Config,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    prepare(fashion_config(), tmp_path, source_dir=fashion_source)
    said = capsys.readouterr().err
    assert re.search(r"\rfashion/train: 100%\|.*\| 100/100 \[00:\d\d<00:\d\d, .* images/s\]", said)


def test_where_images_came_from(data_dir: Path, insects_source: Path) -> None:
    for split, entry in Manifest.load(data_dir, "insects").splits.items():
        beton = Beton(data_dir / "insects" / entry["file"])
        origins = data_dir / "insects" / entry["origins"]
        assert entry["origins_sha256"] == hashlib.sha256(origins.read_bytes()).hexdigest()
        lines = origins.read_text().splitlines()
        assert len(lines) == len(beton) == entry["num_samples"], split
        for index, line in enumerate(lines):
            crc, name = line.split(" ")
            content = (insects_source / name).read_bytes()
            assert beton.stored_bytes(index).tobytes() == content
            assert int(crc, 16) == zlib.crc32(content)
    rows = (data_dir / "fashion" / "tuning.origins.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[0-9a-f]{8} fashion_mnist train\[\d+\]", row) for row in rows)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"source": "mnist"}, "unknown source 'mnist'; did you mean fashion_mnist"),
        ({"name": "../x"}, "the name is a folder's name"),
        ({"channels": 2}, "channels=2 must be 1 or 3"),
        ({"mean": (0.1, 0.2)}, "mean and std need 1 numbers"),
        ({"std": (0.0,)}, r"std=\[0.0\] must be a list of numbers, each above 0"),
        ({"num_classes": 0}, "num_classes is at least 1"),
        ({"eval_resize": 20}, "is smaller than image_size"),
        ({"train_per_class": 0}, "train_per_class=0 must be a whole number, at least 1"),
        ({"resize_px": 20}, "unknown setting 'resize_px'"),
        ({"source": "imagefolder", "resize_px": 0}, "resize_px=0 must be a whole number, at least 1"),
        ({"source": "imagefolder", "resize_side": "longer"}, "resize_side=longer needs dataset.source.resize_px"),
        ({"source": "imagefolder", "resize_px": 9, "resize_side": "width"}, "resize_side=width must be shorter or"),
        ({"source": "imagefolder", "jpeg_quality": 101}, "jpeg_quality=101 must be a whole number, at least 1 and at"),
        ({"source": "imagefolder", "tuning_per_class": 3}, "the splits overlap"),
        ({"source": "parquet", "tuning_per_class": 3}, "the splits overlap"),
    ],
)
def test_impossible_configurations_are_refused(changes: dict[str, object], reason: str, fashion_config: Config) -> None:
    with pytest.raises(RegbenchError, match=reason):
        fashion_config(**changes)
