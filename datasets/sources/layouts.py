"""The layouts of folders of image files: our own, and ILSVRC2012 and Places205 as they are published.

ILSVRC2012 is published with `val/` flat: its labels are those of the devkit,
`ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt` (a number for each image, in order) and `meta.mat`
(the class of each number), or of Kaggle's `LOC_val_solution.csv`. Kaggle has the images in `ILSVRC/Data/CLS-LOC/`.

Places205 is published as `data/vision/torralba/deeplearning/images256/`, with the lists
`trainvalsplit_places205/{train,val}_places205.csv`: a line for each image, its name and its label, such as
`a/abbey/gsun_0a1b.jpg 0`.

Each function adds what is wrong to the list that it is given.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from regbench.datasets.progress import shown
from regbench.datasets.published import few

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".pgm", ".tif", ".tiff"})
_KAGGLE = Path("ILSVRC/Data/CLS-LOC")
_KAGGLE_LABELS = Path("LOC_val_solution.csv")
_DEVKIT = Path("ILSVRC2012_devkit_t12/data")
_PLACES_LISTS = Path("trainvalsplit_places205")
_PLACES_IMAGES = (Path("data/vision/torralba/deeplearning/images256"), Path("images256"))

Files = dict[str, list[Path]]
"""Image files by class, in the order of the labels."""


def train_and_val(source_dir: Path, wrong: list[str]) -> tuple[Files, Files]:
    """Find the files of train/ and val/, in any of the layouts."""
    places205 = not (source_dir / "train").is_dir() and (source_dir / _PLACES_LISTS).is_dir()
    return (_places205 if places205 else _by_class)(source_dir, wrong)


def parts_of(source_dir: Path, wrong: list[str]) -> dict[str, Files]:
    """Find the files of train/, val/ and test/, as far as they are there, or of the class folders themselves (".")."""
    if (source_dir / _KAGGLE).is_dir():
        return dict(zip(("train", "val"), _by_class(source_dir, wrong), strict=True))
    there = [part for part in ("train", "val", "test") if (source_dir / part).is_dir()]
    if not there:
        return {".": _class_files(source_dir, wrong)}
    if "test" in there and _class_folders(source_dir / "test"):
        train = _class_files(source_dir / "train", wrong)
        others = [part for part in there if part != "train"]
        return {"train": train, **{part: _class_files_like(train, source_dir / part, wrong) for part in others}}
    if "val" in there:
        return dict(zip(("train", "val"), _by_class(source_dir, wrong), strict=True))
    return {"train": _class_files(source_dir / "train", wrong)}


def _images(folder: Path) -> list[Path]:
    """List the image files of a folder, sorted by name."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if not entry.name.startswith(".")]
    return [folder / name for name in sorted(names) if Path(name).suffix.lower() in IMAGE_SUFFIXES]


def _by_class(source_dir: Path, wrong: list[str]) -> tuple[Files, Files]:
    """Find the files of train/ and val/."""
    root = source_dir / _KAGGLE if (source_dir / _KAGGLE).is_dir() else source_dir
    train = _class_files(root / "train", wrong)
    val = root / "val"
    if val.is_dir() and not _class_folders(val) and _images(val):
        return train, _flat_files(val, source_dir, train, wrong)
    return train, _class_files_like(train, val, wrong)


def _class_files_like(train: Files, folder: Path, wrong: list[str]) -> Files:
    """Find the files of a folder that is to have the classes of train/."""
    files = _class_files(folder, wrong)
    for part, other, lacking in (
        (folder.name, "train", sorted(train.keys() - files.keys())),
        ("train", folder.name, sorted(files.keys() - train.keys())),
    ):
        if lacking and train and files:
            wrong.append(f"{part}/ lacks {len(lacking):,} classes of {other}/: {few(lacking)}")
    return files


def _class_folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _class_files(folder: Path, wrong: list[str]) -> Files:
    """List the image files of each class folder, both sorted by name."""
    if not folder.is_dir():
        wrong.append(f"{folder.name}/ is missing")
        return {}
    folders = _class_folders(folder)
    title = f"listing {folder.name}/"
    classes = {path.name: _images(path) for path in shown(folders, len(folders), title, unit="folders")}
    if not classes:
        wrong.append(f"{folder.name}/ has no class folders")
    elif loose := _images(folder):
        wrong.append(f"{len(loose):,} images lie in {folder.name}/ itself, the first is {loose[0].name}")
    if empty := [name for name, files in classes.items() if not files]:
        wrong.append(f"{len(empty):,} class folders of {folder.name}/ have no images: {few(empty)}")
    return classes


def _flat_files(val: Path, source_dir: Path, train: Files, wrong: list[str]) -> Files:
    """Find the files of ILSVRC2012's flat val/ by class, in the order of the classes of `train`."""
    labels, origin = _validation_labels(source_dir, wrong)
    if not labels:
        return {}
    images = _images(val)
    stems = {path.stem for path in images}
    unknown = [path.name for path in images if path.stem not in labels]
    missing = [name for name in labels if name not in stems]
    strange = sorted(set(labels.values()) - train.keys())
    if unknown:
        wrong.append(f"{len(unknown):,} images of val/ have no label in {origin}: {few(unknown)}")
    if missing:
        wrong.append(f"{len(missing):,} images that {origin} names are not in val/: {few(missing)}")
    if strange:
        wrong.append(f"{len(strange):,} classes of {origin} are not in train/: {few(strange)}")
    classes: Files = {name: [] for name in train}
    for path in images:
        if (name := labels.get(path.stem)) in classes:
            classes[name].append(path)
    if empty := [name for name, files in classes.items() if not files]:
        wrong.append(f"{len(empty):,} classes of train/ have no images in val/: {few(empty)}")
    return classes


def _validation_labels(source_dir: Path, wrong: list[str]) -> tuple[dict[str, str], Path]:
    """Read the class of each of ILSVRC2012's validation images, by its name without the ending; and name the list."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    devkit, kaggle = source_dir / _DEVKIT, source_dir / _KAGGLE_LABELS
    if devkit.is_dir():
        meta, truth = _DEVKIT / "meta.mat", _DEVKIT / "ILSVRC2012_validation_ground_truth.txt"
        if missing := [str(path) for path in (meta, truth) if not (source_dir / path).is_file()]:
            wrong.append(f"{' and '.join(missing)} cannot be found")
            return {}, truth
        try:
            synsets = loadmat(source_dir / meta, squeeze_me=True)["synsets"]
            classes = dict(zip(synsets["ILSVRC2012_ID"].tolist(), synsets["WNID"].tolist(), strict=True))
            numbers = [int(line) for line in (source_dir / truth).read_text().split()]
            return {f"ILSVRC2012_val_{i:08d}": classes[number] for i, number in enumerate(numbers, 1)}, truth
        except (OSError, LookupError, ValueError, TypeError, NotImplementedError, MatReadError) as error:
            wrong.append(f"{_DEVKIT}/ cannot be read ({error})")
            return {}, truth
    if kaggle.is_file():
        try:
            with kaggle.open(newline="") as file:
                rows = list(csv.DictReader(file))
            return {row["ImageId"]: row["PredictionString"].split()[0] for row in rows}, _KAGGLE_LABELS
        except (OSError, LookupError, ValueError, AttributeError, csv.Error) as error:
            wrong.append(f"{_KAGGLE_LABELS} cannot be read ({error})")
            return {}, _KAGGLE_LABELS
    wrong.append(
        f"val/ has no class folders, and neither {_DEVKIT}/ nor {_KAGGLE_LABELS}, which tell its labels, is beside it"
    )
    return {}, _KAGGLE_LABELS


def _places205(source_dir: Path, wrong: list[str]) -> tuple[Files, Files]:
    """Find the files that Places205's two lists name, by class, sorted by name."""
    folder = next((source_dir / path for path in _PLACES_IMAGES if (source_dir / path).is_dir()), None)
    if folder is None:
        wrong.append(f"{_PLACES_IMAGES[0]}/ is missing")
    names = {part: _places205_list(source_dir, f"{part}_places205.csv", wrong) for part in ("train", "val")}
    class_names = _places205_classes(names["train"], wrong)
    if names["train"] and (strange := sorted(names["val"].keys() - names["train"].keys())):
        wrong.append(f"labels of val_places205.csv that train_places205.csv has not: {few(strange)}")
    if names["val"] and (lacking := sorted(names["train"].keys() - names["val"].keys())):
        wrong.append(f"labels of train_places205.csv that val_places205.csv has not: {few(lacking)}")
    if folder is None:
        return {}, {}
    train, val = (
        {name: [folder / image for image in sorted(names[part].get(label, []))] for label, name in class_names.items()}
        for part in ("train", "val")
    )
    return train, val


def _places205_list(source_dir: Path, name: str, wrong: list[str]) -> dict[int, list[str]]:
    """Read the names of images by label."""
    try:
        lines = (source_dir / _PLACES_LISTS / name).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        wrong.append(f"{_PLACES_LISTS / name} cannot be read ({error})")
        return {}
    images: dict[int, list[str]] = {}
    bad: list[int] = []
    for number, line in enumerate(lines, start=1):
        image, _, label = line.rpartition(" ")
        # A list must not lead to files outside the folder.
        if image and label.isdecimal() and not image.startswith("/") and ".." not in image.split("/"):
            images.setdefault(int(label), []).append(image)
        elif line.strip():
            bad.append(number)
    if bad:
        wrong.append(f"{name} has {len(bad):,} lines that are no image with its label: {few(bad)}")
    twice = sum(len(listed) - len(set(listed)) for listed in images.values())
    if twice:
        wrong.append(f"{name} names {twice:,} images more than once")
    return images


def _places205_classes(train: Mapping[int, Sequence[str]], wrong: list[str]) -> dict[int, str]:
    """Name each label by its folder, without the letter before it: "abbey" or "church/outdoor"."""
    classes: dict[int, str] = {}
    mixed = []
    for label in sorted(train):
        folders = {image.rpartition("/")[0] for image in train[label]}
        classes[label] = min(folders).partition("/")[2] or min(folders)
        if len(folders) > 1:
            mixed.append(label)
    if mixed:
        wrong.append(f"labels of train_places205.csv with images of more than one folder: {few(mixed)}")
    if len(set(classes.values())) < len(classes):
        wrong.append("train_places205.csv has a folder with more than one label")
    if gaps := sorted(set(range(max(classes, default=-1) + 1)) - classes.keys()):
        wrong.append(f"labels without images in train_places205.csv: {few(gaps)}")
    return classes
