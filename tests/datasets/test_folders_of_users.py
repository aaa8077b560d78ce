"""Folders of images as users have them, and what `regbench prepare` says of each: nothing is
left out silently.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import numpy.typing as npt
import pytest
from click.testing import Result
from PIL import Image

from regbench.benchmark.settings.sweep import load_run
from regbench.datasets.sources.imagefolder import ImageFolder
from regbench.datasets.stored.beton import Beton, Sample
from regbench.datasets.stored.encode import Unreadable, encode
from regbench.datasets.stored.manifest import Manifest
from tests.command import refusal
from tests.command import run as command_line

CLASSES = ("ant", "bee")
# Of an image of 12 bits.
GREY12 = np.linspace(0, 4095, 64).reshape(8, 8).astype(np.uint16)


def draw(path: Path, mode: str = "RGB", **options: Any) -> Path:
    """A small image, another one for each path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(zlib.crc32(str(path).encode()))
    image = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
    image.convert(mode).save(path, **options)
    return path


def fill(folder: Path, count: int = 5) -> Path:
    """So many images of each class."""
    for name in CLASSES:
        for i in range(count):
            draw(folder / name / f"{i}.png")
    return folder


def tiff(path: Path, bands: int) -> None:
    """An uncompressed TIFF of so many bands of 8 bits, of which those after the third have no
    meaning.
    """
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, bands), dtype=np.uint8).tobytes()
    after = 8 + len(pixels)
    extra = [(338, 3, [0] * (bands - 3))]
    tags = [(256, 3, [8]), (257, 3, [8]), (258, 3, [8] * bands)]
    tags += [(259, 3, [1]), (262, 3, [2]), (273, 4, [8])]
    tags += [(277, 3, [bands]), (278, 3, [8]), (279, 4, [len(pixels)]), *extra]
    rows, values = struct.pack("<H", len(tags)), b""
    for tag, kind, numbers in tags:
        value = struct.pack(f"<{len(numbers)}{'H' if kind == 3 else 'I'}", *numbers)
        if len(value) > 4:
            place = struct.pack("<I", after + 2 + 12 * len(tags) + 4 + len(values))
            values += value
            value = place
        rows += struct.pack("<HHI", tag, kind, len(numbers)) + value.ljust(4, b"\0")
    path.write_bytes(b"II*\0" + struct.pack("<I", after) + pixels + rows + bytes(4) + values)


def png16(path: Path, pixels: npt.NDArray[np.uint16]) -> None:
    """A PNG with 16 bits for each of three colours, which Pillow does not write."""
    lines = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    content = b"\x89PNG\r\n\x1a\n"
    header = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 16, 2, 0, 0, 0)
    for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b"")):
        crc = zlib.crc32(kind + data)
        content += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)
    path.write_bytes(content)


def run(root: Path, *options: str) -> Result:
    """The command of a user."""
    data_dir = f"runtime.data_dir={root.parent / 'data'}"
    return command_line("prepare", "imagefolder", "--source-dir", root, data_dir, *options)


def origins(root: Path, split: str = "") -> list[str]:
    """The files that were read, as the prepared data set lists them."""
    paths = sorted((root.parent / "data" / "imagefolder").glob(f"{split}*.origins.txt"))
    return sorted(line[9:] for path in paths for line in path.read_text().split("\n")[:-1])


# --------------------------------------------------------------------------------------------------
# folders


def made(*names: str) -> Callable[[Path], None]:
    """Make what is named: images, files of other kinds, empty folders, and folders with images
    of each class ("…/").
    """

    def make(root: Path) -> None:
        for name in names:
            path = root / name
            if name.endswith("/"):
                fill(path)
            elif path.suffix == ".png":
                draw(path)
            elif path.suffix:
                path.write_bytes(b"")
            else:
                path.mkdir(parents=True)

    return make


def nested(root: Path) -> None:
    made("./", *(f"ant/field/site 2/{i}.png" for i in range(3)))(root)
    (root / "ant" / "field" / "again").symlink_to(root / "ant")
    draw(root / "ant" / "album.jpg" / "0.png")


def empty_class_of_a_part(root: Path) -> None:
    made("train/", "test/")(root)
    for path in (root / "test" / "bee").iterdir():
        path.unlink()


def kinds(root: Path) -> None:
    fill(root)
    for suffix in ("jfif", "gif", "bmp", "webp", "tiff", "jp2", "JPE", "tga"):
        draw(root / "ant" / f"a.{suffix}")
    for name in ("a.heic", "b.heic", "notes.txt", "movie.mpg", "table.h5", "README"):
        (root / "bee" / name).write_bytes(b"\0")
    os.mkfifo(root / "bee" / "pipe.jpg")
    (root / "bee" / "zero.png").symlink_to("/dev/zero")


def twelve_bits(root: Path) -> None:
    fill(root)
    for name, pixels in zip(CLASSES, (GREY12, GREY12[::-1]), strict=True):
        Image.fromarray(pixels).save(root / name / "deep.png")


def deep_colours(root: Path) -> None:
    fill(root)
    png16(root / "bee" / "deep.png", np.repeat(GREY12[:, :, None], 3, axis=2))


def bands_and_frames(root: Path) -> None:
    fill(root)
    tiff(root / "ant" / "near infrared.tif", 4)
    draw(root / "ant" / "clear.png", "RGBA")
    draw(root / "ant" / "palette.png", "P", transparency=0)
    pages = [Image.open(root / "bee" / f"{i}.png") for i in range(3)]
    for name in ("pages.tif", "film.gif", "film.webp"):
        draw(root / "bee" / name, save_all=True, append_images=pages)


def copied(root: Path) -> None:
    made("train/", "val/", "test/")(root)
    for i in (0, 1):
        shutil.copy(root / f"train/bee/{i}.png", root / f"test/ant/copy {i}.png")


def labelled(root: Path) -> None:
    rows = ["\ufefffile,label"]
    for i in range(10):
        draw(root / "images" / f"{i}.png")
        rows.append(f"./images/{i}.png,{CLASSES[i % 2]}")
    draw(root / "images" / "more.png")
    (root / "labels.csv").write_text("\r\n".join(rows), newline="")


def labelled_parts(root: Path) -> None:
    rows = ["split,label,file,camera"]
    splits = ("Train", "train", "training", "train", "valid", "validation", "test", "test")
    for i, split in enumerate(splits):
        draw(root / f"{i}.png")
        rows.append(f"{split},{CLASSES[i % 2]},{i}.png,x")
    (root / "labels.csv").write_text("\n".join(rows))


def not_utf8(root: Path) -> None:
    fill(root)
    (root / "ant").rename(root / os.fsdecode(b"f\xe9e"))


def many_bands(root: Path) -> None:
    fill(root)
    tiff(root / "ant" / "satellite.tif", 13)


def dangling(root: Path) -> None:
    fill(root)
    (root / "ant" / "lost.png").symlink_to(root / "nowhere.png")


def table(text: str) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        for i in range(6):
            draw(root / f"{i}.png")
        (root / "labels.csv").write_text(text, errors="surrogateescape")

    return make


BESIDE_PARTS = ("train/", "val/", "old/", "test/0.png", "cover.png")
WRAPPED = ("insects/insects v2/", "__MACOSX/insects/ant/0.png", "insects/insects v2/ant/._0.png")
LABELS = ("--labels", "labels.csv")
ONE_FOR_TRAINING = "dataset.source.train_per_class=1"
CASES: dict[str, tuple[Any, ...]] = {
    "tidy": (fill,),
    "nested": (nested,),
    "train, valid": (made("train/", "valid/"),),
    "Train, Validation": (made("Train/", "Validation/"),),
    "training, testing": (made("training/", "testing/"),),
    "by numbers": (made("Train/", "valid/", "test/"), "dataset.source.train_per_class=2"),
    "beside parts": (made(*BESIDE_PARTS),),
    "wrapped": (made(*WRAPPED),),
    "empty class": (made("./", "cat"), "--allow-empty"),
    "empty class of a part": (empty_class_of_a_part, "--allow-empty"),
    "kinds": (kinds,),
    "12 bits": (twelve_bits,),
    "12 bits, said": (twelve_bits, "dataset.source.levels=4096"),
    "12 bits, said wrongly": (twelve_bits, "dataset.source.levels=1024"),
    "12 bits, colours": (deep_colours,),
    "bands and frames": (bands_and_frames,),
    "copied": (copied,),
    "labels": (labelled, "--labels", "labels.csv"),
    "labels and parts": (labelled_parts, "--labels", "labels.csv"),
    "one class": (made(*(f"images/{i}.png" for i in range(5))),),
    "empty class, refused": (made("./", "cat"),),
    "nothing but empty classes": (made(*CLASSES), "--allow-empty"),
    "only unknown files in a class": (made("./", "cat", "cat/a.heic"),),
    "two folders for a part": (made("train/", "val/", "Validation/"),),
    "an image beside a folder": (made("insects/", "cover.png"),),
    "no UTF-8": (not_utf8,),
    "13 bands": (many_bands,),
    "colours by levels": (deep_colours, "dataset.source.levels=4096"),
    "no labels": (made("0.png"),),
    "no classes in a part": (made("train/0.png"),),
    "a part without labels": (made("train/", "val/0.png"),),
    "a link to nothing": (dangling,),
    "no such table": (made("0.png"), *LABELS),
    "other columns": (table("name;label\n0.png;ant"), *LABELS),
    "no images": (table("file,label\n"), *LABELS),
    "no training": (table("file,label,split\n0.png,ant,val"), *LABELS),
    "no file": (table("file,label\n../root/0.png,ant\n9.png,bee"), *LABELS),
    "twice": (table("file,label\n0.png,ant\n0.png,bee"), *LABELS),
    "no label": (table("file,label\n0.png,"), *LABELS),
    "another split": (table("file,label,split\n0.png,ant,dev"), *LABELS),
    "no CSV": (table("\udc80"), *LABELS),
    "a class of one part": (table("file,label,split\n0.png,ant,train\n1.png,bee,test"), *LABELS),
    "two data folders": (made("0.png"), "runtime.data_dir=a,b"),
    "labels and numbers": (table("file,label\n0.png,ant"), *LABELS, ONE_FOR_TRAINING),
}
# What the command prints of each, in blocks under "== CASE".
SAID: dict[str, str] = {}
for block in Path(__file__).with_name("said_of_folders.txt").read_text().split("== ")[1:]:
    case, _, text = block.partition("\n")
    SAID[case] = text


@pytest.mark.parametrize("case", CASES)
def test_what_was_read_and_what_was_not_is_said(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make, *options = CASES[case]
    root = tmp_path / "root"
    make(root)
    result = run(root, *options)
    said = (result.stdout + result.stderr).replace(f"{tmp_path}/", "")
    assert said.replace(str(Path.cwd()), "HERE") == SAID[case]
    assert not caplog.records
    if result.exit_code:
        assert result.exit_code == 2
        assert result.stdout == "" and len(result.stderr.splitlines()) == 1
        assert not (tmp_path / "data" / "imagefolder" / "manifest.json").exists()
        return
    assert result.stderr == ""
    counts = [int(line.split()[1]) for line in said.splitlines() if " images in data/" in line]
    read = origins(root)
    assert len(read) == len(set(read)) == sum(counts) > 0
    # The second time nothing is read, and all is said again.
    assert run(root, *options).stdout.startswith(result.stdout)


def test_what_was_prepared_before_is_said_to_be(tmp_path: Path) -> None:
    root = fill(tmp_path / "root")
    assert "--force" not in run(root).stdout
    manifest = Manifest.load(tmp_path / "data", "imagefolder")
    replace(manifest, created="2026-01-02T03:04:05+00:00").save(tmp_path / "data")
    line = run(root).stdout.splitlines()[-1]
    when = "2026-01-02T03:04:05+00:00"
    said = f"this was prepared from {root} on {when}; --force reads the source again"
    assert line == said
    # Another folder under the same name is not read.
    assert run(fill(tmp_path / "other")).stdout.splitlines()[-1] == said


def test_parts_by_other_names_are_the_splits(tmp_path: Path) -> None:
    root = tmp_path / "root"
    made("Training/", "valid/", "Testing/")(root)
    run(root)
    for split, folder in (("train", "Training"), ("tuning", "valid"), ("test", "Testing")):
        expected = [f"{folder}/{name}/{i}.png" for name in CLASSES for i in range(5)]
        assert origins(root, split) == expected


def test_labels_are_those_of_the_table(tmp_path: Path) -> None:
    root = tmp_path / "root"
    labelled_parts(root)
    run(root, "--labels", str(root / "labels.csv"))
    assert Manifest.load(tmp_path / "data", "imagefolder").class_names == list(CLASSES)
    beton = Beton(tmp_path / "data" / "imagefolder" / "train.beton")
    lines = (tmp_path / "data" / "imagefolder" / "train.origins.txt").read_text().splitlines()
    found = {line[9:]: label for line, label in zip(lines, beton.labels.tolist(), strict=True)}
    assert found == {"0.png": 0, "1.png": 1, "2.png": 0, "3.png": 1}


def test_images_of_more_bits_are_scaled_by_the_levels(tmp_path: Path) -> None:
    scaled = {None: GREY12 >> 8, 4096: GREY12 >> 4, 2048: np.minimum(GREY12 >> 3, 255)}
    for levels, expected in scaled.items():
        source = ImageFolder(levels=levels)
        for values in (GREY12, GREY12.astype(np.int32)):
            content = io.BytesIO()
            Image.fromarray(values).save(content, "TIFF")
            sample = encode(content.getvalue(), 0, "", source)
            if isinstance(sample, Unreadable):  # 32 bits, of which nobody knows how many are used
                assert levels is None and "or set dataset.source.levels" in sample.reason
                continue
            pixels = np.frombuffer(sample.data, np.uint8).reshape(8, 8, 3)
            np.testing.assert_array_equal(pixels, np.repeat(expected[:, :, None], 3, axis=2))
        # A PGM states its range.
        sample = encode(b"P5 8 8 4095\n" + GREY12.astype(">u2").tobytes(), 0, "", source)
        assert isinstance(sample, Sample)
        found = np.frombuffer(sample.data, np.uint8)[::3].reshape(8, 8).astype(int)
        assert np.abs(found - (GREY12 >> 4)).max() <= 1


def test_cells_of_before_the_levels_keep_their_ids() -> None:
    before, _ = load_run(["dataset=in20"])
    assert "levels" not in before.plain()["dataset"]["source"]
    assert load_run(["dataset=in20", "dataset.source.levels=null"])[0].id == before.id
    assert load_run(["dataset=in20", "dataset.source.levels=4096"])[0].id != before.id
    # What `prepare` is given is in no cell.
    given = ["dataset=in20", "dataset.source.held_out=0.1", "dataset.source.train_per_class=null"]
    given.append("dataset.source.tuning_per_class=null")
    divided, _ = load_run(given)
    more = ["dataset.source.labels=x.csv", "dataset.source.allow_empty=true"]
    assert load_run([*given, *more])[0].id == divided.id


def test_images_are_held_out_by_their_names_in_the_class(tmp_path: Path) -> None:
    """Wherever they lie, and slices of the same names in several folders of a class not all at
    once.
    """
    for root in (tmp_path / "a" / "root", tmp_path / "b" / "root" / "wrapping"):
        for name in CLASSES:
            for i in range(20):
                draw(root / name / f"patient {i}" / "slice.png")
    held_out = []
    for letter in "ab":
        root = tmp_path / letter / "root"
        run(root)
        held_out.append([name.removeprefix("wrapping/") for name in origins(root, "test")])
    assert held_out[0] == held_out[1]
    for name in CLASSES:
        names = [f"{name}/patient {i}/slice.png" for i in range(20)]
        smallest = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())[:2]
        assert {*smallest} == {found for found in held_out[0] if found.startswith(name)}


def test_a_name_is_the_same_in_either_form_of_unicode(tmp_path: Path) -> None:
    """As Linux writes é, one character, or as macOS does, e and an accent."""
    held_out = []
    for form in ("NFC", "NFD"):
        root = tmp_path / form / "root"
        for path in [f"{name}/é{i}.png" for name in ("café", "thé") for i in range(20)]:
            draw(root / normalize(form, path))
        run(root)
        held_out.append([normalize("NFC", name) for name in origins(root, "test")])
    assert held_out[0] == held_out[1] and len(held_out[0]) == 4
    labels = [f"thé/é{i}.png,{normalize(('NFC', 'NFD')[i % 2], 'fée')}" for i in range(8)]
    (tmp_path / "labels.csv").write_text("\n".join(["file,label", *labels]))
    (tmp_path / "classes.txt").write_text("thé")
    for name in ("NFC", "NFD"):
        root, data_dir = tmp_path / name / "root", tmp_path / name / "data"
        run(root, "--labels", f"{tmp_path}/labels.csv", "dataset.name=table")
        assert Manifest.load(data_dir, "table").class_names == ["fée"]
        run(root, f"dataset.source.class_list={tmp_path}/classes.txt", "dataset.name=listed")
        (listed,) = Manifest.load(data_dir, "listed").class_names
        assert normalize("NFC", listed) == "thé"
    root = tmp_path / "parts" / "root"
    for part, form in (("train", "NFC"), ("val", "NFD")):
        shutil.copytree(tmp_path / form / "root", root / part)
    assert "40 images in" in run(root).stdout
    assert Manifest.load(root.parent / "data", "imagefolder").class_names == ["café", "thé"]
    # Windows' editor begins a file with a byte order mark.
    lines = normalize("NFD", "café/é3.png\nthé/é4.png")
    (tmp_path / "few.txt").write_text(lines, encoding="utf-8-sig")
    few = run(root, f"dataset.source.train_list={tmp_path}/few.txt", "dataset.name=few")
    assert "2 images in" in few.stdout
    shutil.copytree(root / "val", root / "train", dirs_exist_ok=True)
    said = run(root, "dataset.name=other").stderr
    assert "4 class folders of train/ are one name in two forms of Unicode" in said


def test_an_archive_is_no_folder(tmp_path: Path) -> None:
    archive = tmp_path / "birds.zip"
    archive.touch()
    assert "birds.zip' is a file" in refusal("prepare", "imagefolder", "--source-dir", archive)


def test_options_of_folders_are_refused_of_others(tmp_path: Path) -> None:
    for name in ("parquet", "voc07"):
        arguments = ("--source-dir", tmp_path, "--allow-empty", f"runtime.data_dir={tmp_path}")
        assert "--allow-empty" in refusal("prepare", name, *arguments)
