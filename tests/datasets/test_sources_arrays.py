"""Small published images (Fashion-MNIST, digits, CIFAR, STL-10), and all that is wrong with one
in one line.
"""

from __future__ import annotations

import gzip
import pickle
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torchvision.datasets

from regbench.benchmark.settings.sweep import load_run
from regbench.datasets.published import Published
from regbench.datasets.sources import fashion_mnist
from regbench.datasets.sources.base import Split
from regbench.datasets.sources.stl10 import STL10
from tests.datasets.preparing import counts, fashion_config, opened, refused


def pixels(split: Split) -> Sequence[npt.NDArray[np.uint8]]:
    return [image for image, _ in split.images() if isinstance(image, np.ndarray)]


def per_class(split: Split) -> list[int]:
    found: list[int] = np.bincount(split.labels).tolist()
    return found


def test_fashion_mnist(fashion_source: Path) -> None:
    contents = opened(fashion_config(), fashion_source)
    assert counts(contents) == {"train": 100, "tuning": 20, "test": 30}
    files = (fashion_source / f"train-{name}-ubyte.gz" for name in ("images-idx3", "labels-idx1"))
    first, second = (gzip.decompress(file.read_bytes()) for file in files)
    images = np.frombuffer(first[16:], np.uint8).reshape(120, 28, 28)
    labels = np.frombuffer(second[8:], np.uint8)
    for name, part in (("train", slice(0, 10)), ("tuning", slice(10, 12))):
        # In the file's order, not class by class; of each class the last are for tuning.
        of_classes = [np.flatnonzero(labels == label)[part] for label in range(10)]
        rows = np.sort(np.concatenate(of_classes))
        split = contents.splits[name]
        assert split.labels.tolist() == labels[rows].tolist()
        np.testing.assert_array_equal(pixels(split), images[rows])
        origins = [origin for _, origin in split.images()]
        assert origins == [f"fashion_mnist train[{row}]" for row in rows]


def test_digits(tmp_path: Path) -> None:
    """As scikit-learn itself reads them, in its order; each is in one split."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    contents = load_run(["dataset=digits"])[0].dataset.source.open(None, tmp_path)
    assert counts(contents) == {"train": 805, "tuning": 396, "test": 596}
    for split, (begin, end) in {"train": (0, 82), "tuning": (78, 123), "test": (116, 183)}.items():
        found = contents.splits[split]
        for label in range(10):
            of_class = np.round(digits.images[digits.target == label] * 255 / 16).astype(np.uint8)
            images = pixels(found)
            mine = [images[row] for row in np.flatnonzero(found.labels == label).tolist()]
            first = next(row for row, image in enumerate(of_class) if (image == mine[0]).all())
            assert begin <= first and first + len(mine) <= end
            np.testing.assert_array_equal(mine, of_class[first : first + len(mine)])


@pytest.mark.parametrize(
    ("source", "folder", "key", "per_class"),
    [
        ("cifar10", "cifar-10-batches-py", b"labels", [18, 2, 2]),
        ("cifar100", "cifar-100-python", b"fine_labels", [9, 1, 2]),
    ],
)
def test_cifar(
    source: str, folder: str, key: bytes, per_class: list[int], cifar_source: Path
) -> None:
    classes = 100 if source == "cifar100" else 10
    contents = opened(fashion_config(source=source, num_classes=classes), cifar_source)
    assert list(contents.splits) == ["train", "tuning", "test"]
    for split, count in zip(contents.splits.values(), per_class, strict=True):
        assert np.bincount(split.labels).tolist() == [count] * classes
    assert contents.class_names[7] == "class 7"
    names = ["train"] if classes == 100 else [f"data_batch_{i}" for i in range(1, 6)]
    test_name = "test" if classes == 100 else "test_batch"
    in_files = ("train", names, ("train", "tuning")), ("test", [test_name], ("test",))
    for part, files, splits in in_files:
        labels: list[int] = []
        rows_N3072 = []
        for name in files:
            file = (cifar_source / folder / name).read_bytes()
            content = pickle.loads(file, encoding="bytes")
            labels += content[key]
            rows_N3072.append(content[b"data"])
        images = np.concatenate(rows_N3072).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        for name in splits:
            found = contents.splits[name]
            rows = []
            for image, origin in found.images():
                row = int(origin.removeprefix(f"{source} {part}[").removesuffix("]"))
                rows.append(row)
                np.testing.assert_array_equal(image, images[row])
                # Of each class the last training images are for tuning.
                if part == "train":
                    is_last = labels[:row].count(labels[row]) >= per_class[0]
                    assert is_last == (name == "tuning")
            assert rows == sorted(rows)
            assert found.labels.tolist() == [labels[row] for row in rows]


def test_all_training_images_are_for_training_where_there_is_no_tuning_split(
    cifar_source: Path,
) -> None:
    config = fashion_config(source="cifar10", tuning_split=False)
    contents = opened(config, cifar_source)
    assert counts(contents) == {"train": 200, "test": 20}
    origins = [origin for _, origin in contents.splits["train"].images()]
    assert origins == [f"cifar10 train[{row}]" for row in range(200)]
    # What is to be typed says so too: the default would make another data set.
    assert "prepare cifar10 dataset.source.tuning_split=false" in config.prepare_command


def test_stl10(stl_source: Path) -> None:
    contents = opened(fashion_config(source="stl10"), stl_source)
    assert counts(contents) == {"train": 40, "tuning": 10, "test": 20, "unlabeled": 30}
    assert contents.splits["unlabeled"].labels.tolist() == [-1] * 30
    third = (stl_source / "stl10_binary" / "unlabeled_X.bin").read_bytes()[2 * 27648 : 3 * 27648]
    image = pixels(contents.splits["unlabeled"])[2]
    # Plane by plane, column by column.
    for channel, row, column in [(0, 0, 1), (1, 5, 90), (2, 95, 0)]:
        assert image[row, column, channel] == third[channel * 9216 + column * 96 + row]
    test_labels = np.frombuffer((stl_source / "stl10_binary" / "test_y.bin").read_bytes(), np.uint8)
    assert contents.splits["test"].labels.tolist() == (test_labels.astype(int) - 1).tolist()


def test_what_is_wrong_with_fashion_mnist_is_listed(tmp_path: Path, fashion_source: Path) -> None:
    refused(fashion_config(), tmp_path, "train-labels-idx1-ubyte.gz is missing")
    folder = Path(shutil.copytree(fashion_source, tmp_path / "copy"))
    images, labels = (folder / f"t10k-{name}-ubyte.gz" for name in ("images-idx3", "labels-idx1"))
    good = images.read_bytes()
    for bad, reason in [
        (good[:-20], "is damaged"),
        (b"plain", "is damaged"),
        (gzip.compress(b"\0\0\x0d\3" + bytes(100)), "is not an IDX file"),
        (gzip.compress(gzip.decompress(good)[:-5]), "is cut short"),
    ]:
        images.write_bytes(bad)
        refused(fashion_config(), folder, reason)
    images.write_bytes(good)
    labels.write_bytes(gzip.compress(gzip.decompress(labels.read_bytes())[:-1] + b"\x0a"))
    refused(fashion_config(), folder, "labels from 0 to 10, not 0 to 9")


def test_cifar_that_is_not_the_published_one_is_never_unpickled(
    tmp_path: Path, cifar_source: Path
) -> None:
    copy = Path(shutil.copytree(cifar_source, tmp_path / "copy"))
    config = fashion_config(source="cifar100", num_classes=100)
    ran = tmp_path / "ran"
    (copy / "cifar-100-python" / "train").write_bytes(pickle.dumps(Touches(ran)))
    (copy / "cifar-100-python" / "meta").unlink()
    refused(config, copy, "cifar-100-python is not the complete")
    assert not ran.exists()


class Touches:
    """A pickle of it makes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self._path,)


def test_all_that_is_wrong_with_stl10_is_listed(tmp_path: Path, stl_source: Path) -> None:
    copy = Path(shutil.copytree(stl_source, tmp_path / "copy"))
    for name in ("train_y.bin", "test_X.bin"):
        path = copy / "stl10_binary" / name
        path.write_bytes(path.read_bytes()[:-1])
    (copy / "stl10_binary" / "unlabeled_X.bin").unlink()
    refused(fashion_config(source="stl10"), copy, "train_y.bin: 50 images but 49 labels;")


def test_the_published_numbers_of_images_are_asked_for(
    fashion_source: Path, stl_source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, source, reason in (
        ("fashion_mnist", fashion_source, "train has 120 images, not 60,000; test has 30 images"),
        ("stl10", stl_source, "train has 50 images, not 5,000; test has 20 images, not 8,000"),
    ):
        refused(load_run([f"dataset={name}"])[0].dataset, source, reason)
    about = Published("STL-10", "", {"train": 50, "test": 20, "unlabeled": 30})
    monkeypatch.setattr(STL10, "about", about)
    assert opened(fashion_config(source="stl10", published=True), stl_source)


def test_downloads_that_fail_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(fashion_mnist, "DEBIAN_FOLDER", tmp_path / "none")
    sources = {"FashionMNIST": "fashion_mnist", "CIFAR10": "cifar10"}
    sources |= {"CIFAR100": "cifar100", "STL10": "stl10"}
    for name, source in sources.items():
        monkeypatch.setattr(torchvision.datasets, name, unreachable)
        refused(fashion_config(source=source), None, "cannot download ", downloads=tmp_path)
    (tmp_path / "stl10_binary").mkdir()
    again = "stl10_binary, which was downloaded (remove it to try again), is not"
    refused(fashion_config(source="stl10"), None, again, downloads=tmp_path)


def test_a_download_that_is_stopped_begins_again(
    tmp_path: Path, stl_source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def whole(root: str, *, download: bool) -> None:
        shutil.copytree(stl_source, root, dirs_exist_ok=download)

    def stopped(root: str, **_: object) -> None:
        Path(root, "stl10_binary").mkdir()
        raise KeyboardInterrupt

    source = fashion_config(source="stl10").source
    monkeypatch.setattr(torchvision.datasets, "STL10", stopped)
    with pytest.raises(KeyboardInterrupt):
        source.open(None, tmp_path)
    monkeypatch.setattr(torchvision.datasets, "STL10", whole)
    assert len(source.open(None, tmp_path).splits["unlabeled"].labels) == 30
    assert [path.name for path in tmp_path.iterdir()] == ["stl10_binary"]


def test_debians_fashion_mnist(tmp_path: Path) -> None:
    if not fashion_mnist.DEBIAN_FOLDER.is_dir():
        pytest.skip("the Debian package dataset-fashion-mnist is not installed")
    contents = fashion_config(published=True).source.open(None, tmp_path)
    seen = [per_class(split) for split in contents.splits.values()]
    assert seen == [[5000] * 10, [1000] * 10, [1000] * 10]
