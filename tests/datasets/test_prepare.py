from __future__ import annotations

import hashlib
import itertools
import re
import shutil
import sys
import zlib
from pathlib import Path

import pytest

from regbench.datasets.stored import progress
from regbench.datasets.stored.beton import JPEG, Beton
from regbench.datasets.stored.manifest import Manifest
from regbench.datasets.stored.prepare import prepare
from tests.datasets import preparing
from tests.datasets.preparing import fashion_config, folder_config, make_imagefolder, refused
from tests.refusals import is_refused


def test_imagefolder_splits_as_published(data_dir: Path, insects_source: Path) -> None:
    manifest = Manifest.load(data_dir, "insects")
    assert manifest.class_names == ["ant", "bee", "cat"]
    expected = {"train": ("train", range(8)), "test": ("val", range(3))}
    expected["tuning"] = ("train", range(9, 13))
    assert set(manifest.splits) == set(expected)
    for split, (part, numbers) in expected.items():
        files = []
        for name in ("ant", "bee", "cat"):
            files += [insects_source / part / name / f"{name}_{i:03d}.jpg" for i in numbers]
        labels = [manifest.class_names.index(file.parent.name) for file in files]
        contents = [file.read_bytes() for file in files]
        stored = preparing.stored(data_dir, "insects", split)
        assert stored == list(zip(labels, contents, strict=True))
        assert (Beton(data_dir / "insects" / f"{split}.beton").modes == JPEG).all()


def test_preparing_again_does_nothing_unless_a_file_has_another_size_or_it_is_told_to(
    tmp_path: Path, fashion_source: Path
) -> None:
    def again(source: Path = fashion_source, **options: bool) -> Manifest:
        return prepare(fashion_config(), tmp_path, source_dir=source, **options)

    first = again()
    files = sorted((tmp_path / "fashion").iterdir())
    before = [file.stat().st_mtime_ns for file in files]
    # Not even the source is needed.
    assert again(tmp_path / "none") == first
    assert [file.stat().st_mtime_ns for file in files] == before
    path = tmp_path / "fashion" / "tuning.beton"
    content = path.read_bytes()
    path.write_bytes(content[:-10])
    assert again().splits == first.splits
    assert path.read_bytes() == content
    path.write_bytes(content[:-1000] + bytes(1000))
    assert again(force=True) == Manifest.load(tmp_path, "fashion")
    assert path.read_bytes() == content


def test_other_settings_are_refused(data_dir: Path) -> None:
    with is_refused(r"train_per_class 8.*not.*train_per_class 9.*choose another dataset\.name"):
        prepare(folder_config(train_per_class=9), data_dir)
    with is_refused(r"source fashion_mnist.*not source cifar10"):
        prepare(fashion_config(source="cifar10"), data_dir)
    # For the fixed sets it only chooses what is shown of what is there.
    manifest = prepare(fashion_config(train_per_class=3), data_dir)
    assert manifest.splits["train"]["num_samples"] == 100


def test_a_damaged_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    for content in ('{"name": 1}', '{"splits": '):
        (tmp_path / "x" / "manifest.json").write_text(content)
        with is_refused(r"manifest\.json cannot be read .*prepare … dataset\.name=x --force"):
            Manifest.load(tmp_path, "x")


def test_refusals_of_folders(tmp_path: Path) -> None:
    root = make_imagefolder(tmp_path / "source", 6, 2)
    config = folder_config(train_per_class=3, tuning_per_class=2)
    refused(config, None, "give the folder that holds")
    (tmp_path / "nothing").mkdir()
    refused(config, tmp_path / "nothing", "train/ is missing; val/ is missing;")
    refused(folder_config(train_per_class=4, tuning_per_class=2), root, "ant has 6 images; ")
    four = folder_config(num_classes=4, train_per_class=3, tuning_per_class=2)
    refused(four, root, "3 classes, not 4")
    (root / "val" / "dog").mkdir()
    refused(config, root, "1 class folders of val/ have no")
    (root / "val" / "dog" / "a.png").write_bytes(b"")
    refused(config, root, "train/ lacks 1 classes of val/: dog")
    shutil.rmtree(root / "val" / "dog")
    (root / "val" / "ant" / "copy.jpg").symlink_to(root / "train" / "ant" / "ant_001.jpg")
    refused(config, root, "the splits overlap: ")
    (root / "train" / "cat").rename(root / "train" / "dog")
    refused(config, root, "val/ lacks 1 classes of train/: dog;")


def test_progress_is_a_bar_on_a_terminal_and_now_and_then_in_a_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown() -> str:
        assert list(progress.tracked(range(100), 100, "x")) == list(range(100))
        return capsys.readouterr().err

    assert not shown()  # it takes less than two seconds
    with monkeypatch.context() as patched:
        seconds = itertools.count()
        patched.setattr("tqdm.std.time", lambda: next(seconds))
        assert 1 <= shown().count("images/s]") <= 4
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert "x: 100%" in shown()


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


def test_an_unknown_setting_of_a_data_set_is_refused() -> None:
    with is_refused("unknown setting 'resize_px'"):
        fashion_config(resize_px=20)
