"""Small published images (Fashion-MNIST, digits, CIFAR, STL-10), and all that is wrong with one
in one line.
"""

from __future__ import annotations

import gzip
import pickle
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torchvision.datasets

from regbench.benchmark.settings.sweep import load_run
from regbench.datasets.config import DatasetConfig
from regbench.datasets.published import Published
from regbench.datasets.sources import fashion_mnist
from regbench.datasets.sources.base import Split
from regbench.datasets.sources.stl10 import STL10
from tests.datasets.preparing import counts, opened, refused

Config = Callable[..., DatasetConfig]


def pixels(split: Split) -> Sequence[npt.NDArray[np.uint8]]:
    return [image for image, _ in split.images() if isinstance(image, np.ndarray)]


def per_class(split: Split) -> list[int]:
    found: list[int] = np.bincount(split.labels).tolist()
    return found


@pytest.fixture
def cifar100_source(tmp_path: Path) -> Path:
    """10 training images and 2 test images a class."""
    folder = tmp_path / "source" / "cifar-100-python"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(3)
    for name, number in (("train", 10), ("test", 2)):
        labels = rng.permutation(np.repeat(np.arange(100), number)).tolist()
        data = rng.integers(0, 256, (len(labels), 3072), dtype=np.uint8)
        coarse = [label // 5 for label in labels]
        content = {b"data": data, b"fine_labels": labels, b"coarse_labels": coarse}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    names = {
        b"fine_label_names": [f"class {i}".encode() for i in range(100)],
        b"coarse_label_names": [],
    }
    (folder / "meta").write_bytes(pickle.dumps(names, protocol=2))
    return folder.parent


@pytest.fixture
def cifar100() -> DatasetConfig:
    return load_run(["dataset=cifar100", "dataset.source.published=false"])[0].dataset


def test_fashion_mnist(fashion_source: Path, fashion_config: Config) -> None:
    contents = opened(fashion_config(), fashion_source)
    assert counts(contents) == {"train": 100, "tuning": 20, "test": 30}
    content = gzip.decompress((fashion_source / "train-images-idx3-ubyte.gz").read_bytes())
    images = np.frombuffer(content[16:], np.uint8).reshape(120, 28, 28)
    labels = np.frombuffer(
        gzip.decompress((fashion_source / "train-labels-idx1-ubyte.gz").read_bytes())[8:], np.uint8
    )
    for name, part in (("train", slice(0, 10)), ("tuning", slice(10, 12))):
        # In the file's order, not class by class; of each class the last are for tuning.
        rows = np.sort(
            np.concatenate([np.flatnonzero(labels == label)[part] for label in range(10)])
        )
        split = contents.splits[name]
        assert split.labels.tolist() == labels[rows].tolist()
        np.testing.assert_array_equal(pixels(split), images[rows])
        assert [origin for _, origin in split.images()] == [
            f"fashion_mnist train[{row}]" for row in rows
        ]


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
            mine = [
                image
                for image, its in zip(pixels(found), found.labels, strict=True)
                if its == label
            ]
            first = next(row for row, image in enumerate(of_class) if (image == mine[0]).all())
            assert begin <= first and first + len(mine) <= end
            np.testing.assert_array_equal(mine, of_class[first : first + len(mine)])


def test_cifar10(cifar_source: Path, fashion_config: Config) -> None:
    contents = opened(fashion_config(source="cifar10"), cifar_source)
    assert [per_class(split) for split in contents.splits.values()] == [
        [18] * 10,
        [2] * 10,
        [2] * 10,
    ]
    batch = pickle.loads(
        (cifar_source / "cifar-10-batches-py" / "test_batch").read_bytes(), encoding="bytes"
    )
    assert contents.splits["test"].labels.tolist() == batch[b"labels"]
    expected = batch[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(pixels(contents.splits["test"]), expected)


def test_all_training_images_are_for_training_where_there_is_no_tuning_split(
    cifar_source: Path, fashion_config: Config
) -> None:
    config = fashion_config(source="cifar10", tuning_split=False)
    contents = opened(config, cifar_source)
    assert counts(contents) == {"train": 200, "test": 20}
    batches = [
        (cifar_source / "cifar-10-batches-py" / f"data_batch_{i}").read_bytes() for i in range(1, 6)
    ]
    labels = [
        label for batch in batches for label in pickle.loads(batch, encoding="bytes")[b"labels"]
    ]
    assert contents.splits["train"].labels.tolist() == labels
    # What is to be typed says so too: the default would make another data set.
    assert "prepare cifar10 dataset.source.tuning_split=false" in config.prepare_command


def test_cifar100(cifar100_source: Path, cifar100: DatasetConfig) -> None:
    contents = opened(cifar100, cifar100_source)
    assert [per_class(split) for split in contents.splits.values()] == [
        [9] * 100,
        [1] * 100,
        [2] * 100,
    ]
    assert contents.class_names[7] == "class 7"
    content = pickle.loads((cifar100_source / "cifar-100-python" / "train").read_bytes())
    tuning = contents.splits["tuning"]
    # The last one of its class.
    rows = [
        np.flatnonzero(np.array(content[b"fine_labels"]) == label)[-1] for label in tuning.labels
    ]
    np.testing.assert_array_equal(
        pixels(tuning), content[b"data"][rows].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    )


def test_stl10(stl_source: Path, fashion_config: Config) -> None:
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


def test_all_that_is_wrong_with_fashion_mnist_is_listed(
    tmp_path: Path, fashion_source: Path, fashion_config: Config
) -> None:
    refused(
        fashion_config(),
        tmp_path,
        "train-labels-idx1-ubyte.gz is missing; ",
        "; get it from https://github",
    )
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


def test_all_that_is_wrong_with_cifar_is_listed(
    tmp_path: Path,
    cifar100_source: Path,
    cifar100: DatasetConfig,
    cifar_source: Path,
    fashion_config: Config,
) -> None:
    folder = cifar100_source / "cifar-100-python"
    content = pickle.loads((folder / "train").read_bytes())
    (folder / "train").write_bytes(
        pickle.dumps(content | {b"fine_labels": content[b"fine_labels"][1:]})
    )
    (folder / "test").write_bytes(b"")
    refused(
        cifar100,
        cifar100_source,
        "cifar-100-python is not the complete CIFAR-100: train is not the file that CIFAR's "
        "authors published (1,000 images but 999 labels); test is not the file that CIFAR's "
        "authors published (Ran out of input); get it from "
        "https://www.cs.toronto.edu/~kriz/cifar.html (cifar-100-python.tar.gz)",
    )
    (folder / "train").write_bytes(
        pickle.dumps(content | {b"fine_labels": [100, *content[b"fine_labels"][1:]]})
    )
    (folder / "test").unlink()
    refused(cifar100, cifar100_source, "train: labels from 0 to 100, not 0 to 99; test is missing")
    (folder / "meta").write_bytes(pickle.dumps(print))
    refused(
        cifar100,
        cifar100_source,
        "meta is not the file that CIFAR's authors published (it names builtins.print)",
    )
    copy = Path(shutil.copytree(cifar_source, tmp_path / "copy"))
    (copy / "cifar-10-batches-py" / "data_batch_2").unlink()
    (copy / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps({b"data": 1}))
    refused(
        fashion_config(source="cifar10"),
        copy,
        "data_batch_2 is missing; test_batch is not the file that",
    )


def test_all_that_is_wrong_with_stl10_is_listed(
    tmp_path: Path, stl_source: Path, fashion_config: Config
) -> None:
    copy = Path(shutil.copytree(stl_source, tmp_path / "copy"))
    for name in ("train_y.bin", "test_X.bin"):
        path = copy / "stl10_binary" / name
        path.write_bytes(path.read_bytes()[:-1])
    (copy / "stl10_binary" / "unlabeled_X.bin").unlink()
    refused(
        fashion_config(source="stl10"),
        copy,
        "train_y.bin: 50 images but 49 labels; test_X.bin is cut short: 552,959 bytes, no multiple "
        "of 27,648; unlabeled_X.bin is missing or empty; get it from "
        "https://cs.stanford.edu/~acoates/stl10/",
    )


def test_the_published_numbers_of_images_are_asked_for(
    fashion_source: Path,
    cifar_source: Path,
    stl_source: Path,
    fashion_config: Config,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, source, reason in (
        (
            "fashion_mnist",
            fashion_source,
            "train has 120 images, not 60,000; test has 30 images, not 10,000; get it",
        ),
        (
            "cifar10",
            cifar_source,
            "train has 200 images, not 50,000; test has 20 images, not 10,000; get it from",
        ),
        (
            "stl10",
            stl_source,
            "test has 20 images, not 8,000; unlabeled has 30 images, not 100,000",
        ),
    ):
        refused(
            load_run([f"dataset={name}"])[0].dataset,
            source,
            reason,
            "dataset.source.published=false",
        )
    monkeypatch.setattr(
        STL10, "about", Published("STL-10", "", {"train": 50, "test": 20, "unlabeled": 30})
    )
    assert opened(fashion_config(source="stl10", published=True), stl_source)


def test_downloads_that_fail_are_one_line(
    tmp_path: Path, cifar100: DatasetConfig, fashion_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(fashion_mnist, "DEBIAN_FOLDER", tmp_path / "none")
    sources = {
        "FashionMNIST": "fashion_mnist",
        "CIFAR10": "cifar10",
        "CIFAR100": "cifar100",
        "STL10": "stl10",
    }
    for name, source in sources.items():
        monkeypatch.setattr(torchvision.datasets, name, unreachable)
        message = "(no network); get it by other means from "
        refused(
            fashion_config(source=source), None, "cannot download ", message, downloads=tmp_path
        )
    (tmp_path / "cifar-100-python").mkdir()
    again = "cifar-100-python, which was downloaded (remove it to try again), is not"
    refused(cifar100, None, again, downloads=tmp_path)


def test_debians_fashion_mnist(tmp_path: Path, fashion_config: Config) -> None:
    if not fashion_mnist.DEBIAN_FOLDER.is_dir():
        pytest.skip("the Debian package dataset-fashion-mnist is not installed")
    contents = fashion_config(published=True).source.open(None, tmp_path)
    assert [per_class(split) for split in contents.splits.values()] == [
        [5000] * 10,
        [1000] * 10,
        [1000] * 10,
    ]
