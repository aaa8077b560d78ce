"""CIFAR-100 as it is published, and all that is wrong with a source of arrays in one line."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from regbench import RegbenchError
from regbench.benchmark.settings.sweep import load_run
from regbench.datasets.beton import Beton
from regbench.datasets.config import DatasetConfig
from regbench.datasets.prepare import open_source, prepare
from regbench.datasets.published import Published
from regbench.datasets.sources.stl10 import STL10

Config = Callable[..., DatasetConfig]


@pytest.fixture
def cifar100_source(tmp_path: Path) -> Path:
    """10 training images and 2 test images a class."""
    folder = tmp_path / "source" / "cifar-100-python"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(3)
    for name, per_class in (("train", 10), ("test", 2)):
        labels = rng.permutation(np.repeat(np.arange(100), per_class)).tolist()
        content = {
            b"data": rng.integers(0, 256, (len(labels), 3072), dtype=np.uint8),
            b"fine_labels": labels,
            b"coarse_labels": [label // 5 for label in labels],
        }
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    names = {b"fine_label_names": [f"class {i}".encode() for i in range(100)], b"coarse_label_names": []}
    (folder / "meta").write_bytes(pickle.dumps(names, protocol=2))
    return folder.parent


@pytest.fixture
def cifar100() -> DatasetConfig:
    return load_run(["dataset=cifar100", "dataset.source.published=false"])[0].dataset


def refused(config: DatasetConfig, source: Path, *reasons: str) -> None:
    with pytest.raises(RegbenchError) as refusal:
        open_source(config, source, source)
    for reason in reasons:
        assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_cifar100(tmp_path: Path, cifar100_source: Path, cifar100: DatasetConfig) -> None:
    manifest = prepare(cifar100, tmp_path, source_dir=cifar100_source, progress=False)
    counts = {name: entry["counts_per_class"] for name, entry in manifest.splits.items()}
    assert counts == {"train": [9] * 100, "tuning": [1] * 100, "test": [2] * 100}
    assert manifest.class_names[7] == "class 7"
    content = pickle.loads((cifar100_source / "cifar-100-python" / "train").read_bytes())
    labels = np.array(content[b"fine_labels"])
    tuning = Beton(tmp_path / "cifar100" / "tuning.beton")
    for i in (0, 17, 99):
        # The last one of its class.
        row = np.flatnonzero(labels == tuning.labels[i])[-1]
        planes = content[b"data"][row].reshape(3, 32, 32)
        np.testing.assert_array_equal(tuning.image(i), np.stack(list(planes), axis=2))


def test_all_that_is_wrong_with_cifar100_is_listed(cifar100_source: Path, cifar100: DatasetConfig) -> None:
    folder = cifar100_source / "cifar-100-python"
    content = pickle.loads((folder / "train").read_bytes())
    (folder / "train").write_bytes(pickle.dumps(content | {b"fine_labels": content[b"fine_labels"][1:]}))
    (folder / "test").write_bytes(b"")
    refused(
        cifar100,
        cifar100_source,
        "cifar-100-python is not the complete CIFAR-100: train is not the file that CIFAR's authors published "
        "(1,000 images but 999 labels); test is not the file that CIFAR's authors published (Ran out of input); "
        "get it from https://www.cs.toronto.edu/~kriz/cifar.html (cifar-100-python.tar.gz)",
    )
    (folder / "train").write_bytes(pickle.dumps(content | {b"fine_labels": [100, *content[b"fine_labels"][1:]]}))
    (folder / "test").unlink()
    refused(cifar100, cifar100_source, "train: labels from 0 to 100, not 0 to 99; test is missing")
    (folder / "meta").write_bytes(pickle.dumps(print))
    refused(cifar100, cifar100_source, "meta is not the file that CIFAR's authors published (it names builtins.print)")


def test_cifar10_and_stl10_list_what_is_wrong(
    tmp_path: Path, cifar_source: Path, stl_source: Path, fashion_config: Config
) -> None:
    for source, folder in ((cifar_source, "cifar-10-batches-py"), (stl_source, "stl10_binary")):
        (tmp_path / folder).mkdir()
        for path in (source / folder).iterdir():
            (tmp_path / folder / path.name).write_bytes(path.read_bytes())
    (tmp_path / "cifar-10-batches-py" / "data_batch_2").unlink()
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(b"x")
    refused(
        fashion_config(source="cifar10"),
        tmp_path,
        "data_batch_2 is missing; test_batch is not the file that",
        "get it from https://www.cs.toronto.edu/~kriz/cifar.html (cifar-10-python.tar.gz)",
    )
    stl = tmp_path / "stl10_binary"
    (stl / "train_y.bin").write_bytes((stl / "train_y.bin").read_bytes()[:-1])
    (stl / "test_X.bin").write_bytes((stl / "test_X.bin").read_bytes()[:-1])
    (stl / "unlabeled_X.bin").unlink()
    refused(
        fashion_config(source="stl10"),
        tmp_path,
        "train_y.bin: 50 images but 49 labels; test_X.bin is cut short: 552,959 bytes, no multiple of 27,648; "
        "unlabeled_X.bin is missing or empty; get it from https://cs.stanford.edu/~acoates/stl10/",
    )


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fashion_mnist", "train has 120 images, not 60,000; test has 30 images, not 10,000; get it from https://git"),
        ("cifar10", "train has 200 images, not 50,000; test has 20 images, not 10,000; get it from https://www.cs"),
        (
            "stl10",
            "train has 50 images, not 5,000; test has 20 images, not 8,000; unlabeled has 30 images, not 100,000",
        ),
    ],
)
def test_the_presets_ask_for_the_published_counts(
    name: str, reason: str, fashion_source: Path, cifar_source: Path, stl_source: Path
) -> None:
    source = {"fashion_mnist": fashion_source, "cifar10": cifar_source, "stl10": stl_source}[name]
    refused(load_run([f"dataset={name}"])[0].dataset, source, reason, "dataset.source.published=false")


def test_published_counts_are_accepted(
    stl_source: Path, fashion_config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    counts = {"train": 50, "test": 20, "unlabeled": 30}
    monkeypatch.setattr(STL10, "about", Published("STL-10", "nowhere", counts))
    source = open_source(fashion_config(source="stl10", published=True), stl_source, tmp_path)
    assert list(source.splits) == ["train", "tuning", "test", "unlabeled"]


def test_a_download_that_was_cut_short_says_how_to_repeat_it(tmp_path: Path, cifar100: DatasetConfig) -> None:
    (tmp_path / "cifar-100-python").mkdir()
    with pytest.raises(
        RegbenchError, match=r"cifar-100-python, which was downloaded \(remove it to try again\), is not"
    ):
        open_source(cifar100, None, tmp_path)
