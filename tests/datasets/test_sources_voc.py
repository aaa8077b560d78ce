"""VOC2007 from its archives, or unpacked, to the folder that evaluations read."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from regbench.datasets.stored.prepare_voc import ARCHIVES, prepare_voc07
from regbench.datasets.stored.voc_files import read_voc07, voc07_folder
from tests.command import done, refusal
from tests.refusals import is_refused
from tests.voc import TEST, TRAINVAL, main_folder, write_voc07

COUNTS = (TRAINVAL, TEST)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("voc")
    write_voc07(folder)
    return folder / "voc07"


@pytest.fixture(scope="module")
def archives(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The two archives, each with the images and lists of its split."""
    folder = tmp_path_factory.mktemp("voc_archives")
    for name, split in zip(ARCHIVES, ("trainval", "test"), strict=True):
        with tarfile.open(folder / name, "w") as archive:
            for path in sorted(unpacked.rglob("*")):
                of_split = (path.stem < "000500") == (split == "trainval")
                if split in path.stem or (path.suffix == ".jpg" and of_split):
                    archive.add(path, path.relative_to(unpacked))
    return folder


def images(data_dir: Path) -> list[bytes]:
    splits = read_voc07(voc07_folder(data_dir), COUNTS)
    return [path.read_bytes() for path in (*splits["trainval"].paths, *splits["test"].paths)]


def refused(data_dir: Path, reason: str, source: Path | None = None, **changes: bool) -> None:
    with is_refused(reason):
        prepare_voc07(data_dir, COUNTS, source_dir=source, **changes)
    assert not list((data_dir / "voc07").glob(".VOCdevkit.*"))


def test_archives_are_unpacked(tmp_path: Path, archives: Path, unpacked: Path) -> None:
    prepare_voc07(tmp_path, COUNTS, source_dir=archives)
    assert images(tmp_path) == images(unpacked.parent)
    assert sorted(path.name for path in (tmp_path / "voc07").iterdir()) == [".lock", "VOCdevkit"]
    # Once there, it is only read again.
    prepare_voc07(tmp_path, COUNTS)
    prepare_voc07(tmp_path, COUNTS, source_dir=tmp_path / "none")


def test_an_unpacked_folder_is_linked(tmp_path: Path, unpacked: Path) -> None:
    prepare_voc07(tmp_path, COUNTS, source_dir=unpacked)
    assert (tmp_path / "voc07" / "VOCdevkit").is_symlink()
    assert images(tmp_path) == images(unpacked.parent)


def test_what_is_not_there_is_refused_with_its_address(tmp_path: Path, archives: Path) -> None:
    address = r"http://host\.robots\.ox\.ac\.uk/pascal/VOC/voc2007/"
    refused(tmp_path, rf"VOCdevkit is missing.*{address}")
    one = tmp_path / "one"
    one.mkdir()
    (one / ARCHIVES[0]).symlink_to(archives / ARCHIVES[0])
    reason = rf"one has not VOCtest_06-Nov-2007\.tar; get both archives from {address}"
    refused(tmp_path, reason, one)
    (one / ARCHIVES[1]).write_bytes((archives / ARCHIVES[0]).read_bytes())
    reason = r"one is not the complete VOC2007: ImageSets/Main/aeroplane_test\.txt is missing"
    refused(tmp_path, reason, one)
    (one / ARCHIVES[1]).write_bytes((archives / ARCHIVES[1]).read_bytes()[:30_000])
    refused(tmp_path, rf"cannot unpack .*VOCtest.*; get it again from {address}", one)
    assert not (tmp_path / "voc07" / "VOCdevkit").exists()


@pytest.mark.parametrize("has_filters", [True, False])
def test_an_archive_cannot_write_elsewhere(
    has_filters: bool, tmp_path: Path, archives: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python before 3.11.4 has no filters."""
    if not has_filters:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    source = tmp_path / "source"
    source.mkdir()
    for name in ARCHIVES:
        (source / name).write_bytes((archives / name).read_bytes())
    with tarfile.open(source / ARCHIVES[1], "a") as archive:
        archive.addfile(tarfile.TarInfo("../../../escaped"), io.BytesIO())
    refused(tmp_path / "data", "cannot unpack .*VOCtest.*outside the destination", source)
    assert not list(tmp_path.rglob("escaped"))


def test_damaged_images_are_listed_and_replaced_by_force(tmp_path: Path, archives: Path) -> None:
    prepare_voc07(tmp_path, COUNTS, source_dir=archives)
    paths = read_voc07(voc07_folder(tmp_path), COUNTS)["test"].paths
    for path in paths[:9]:
        path.write_bytes(path.read_bytes()[:-60])
    reason = rf"complete VOC2007: 9 images cannot be read: {paths[0].name}, .* 3 more"
    refused(tmp_path, reason)
    refused(tmp_path, "9 images cannot be read", archives)
    refused(tmp_path, "voc07 has not VOCtrainval", tmp_path / "voc07", force=True)
    prepare_voc07(tmp_path, COUNTS, source_dir=archives, force=True)
    assert len(images(tmp_path)) == TRAINVAL + TEST
    assert sorted(path.name for path in (tmp_path / "voc07").iterdir()) == [".lock", "VOCdevkit"]


def test_an_unpacking_that_was_stopped_is_not_taken_for_a_whole_one(
    tmp_path: Path, archives: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Image, "open", stopped)  # when the archives are unpacked
        prepare_voc07(tmp_path, COUNTS, source_dir=archives)
    with is_refused("VOC2007 is missing"):
        read_voc07(voc07_folder(tmp_path), COUNTS)
    shutil.copytree(archives, tmp_path / "voc07" / ".VOCdevkit.x7")  # what a kill leaves
    prepare_voc07(tmp_path, COUNTS, source_dir=archives)
    assert sorted(path.name for path in (tmp_path / "voc07").iterdir()) == [".lock", "VOCdevkit"]


def test_the_command(tmp_path: Path, archives: Path) -> None:
    own = [f"runtime.data_dir={tmp_path}", f"evaluation.voc07.num_images=[{TRAINVAL},{TEST}]"]
    told = done("prepare", "voc07", "--source-dir", archives, *own).output
    assert f"trainval: {TRAINVAL:>9} images in" in told
    # The published counts are asked for unless others are stated.
    assert f"trainval has {TRAINVAL} images, not 5,011" in refusal("prepare", "voc07", own[0])
    (main_folder(tmp_path) / "cat_test.txt").unlink()
    assert "cat_test.txt is missing" in refusal("prepare", "voc07", "--verify", *own)
