"""The layouts of folders of image files: our own, and ILSVRC2012 and Places205 as they are published.

ILSVRC2012 is published with `val/` flat: its labels are those of the devkit,
`ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt` (a number for each image, in order) and `meta.mat`
(the class of each number), or of Kaggle's `LOC_val_solution.csv`. Kaggle has the images in `ILSVRC/Data/CLS-LOC/`.

Places205 is published as `data/vision/torralba/deeplearning/images256/`, with the lists
`trainvalsplit_places205/{train,val}_places205.csv`: a line for each image, its name and its label, such as
`a/abbey/gsun_0a1b.jpg 0`.

Each function adds what is wrong to the faults that it is given.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path

from regbench.datasets.progress import tracked
from regbench.datasets.published import Faults, few
from regbench.files import regular

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".pgm", ".tif", ".tiff"})
_KAGGLE = Path("ILSVRC/Data/CLS-LOC")
_KAGGLE_LABELS = Path("LOC_val_solution.csv")
_DEVKIT = Path("ILSVRC2012_devkit_t12/data")
_PLACES_LISTS = Path("trainvalsplit_places205")
_PLACES_IMAGES = (Path("data/vision/torralba/deeplearning/images256"), Path("images256"))

Files = dict[str, list[Path]]
"""Image files by class, in the order of the labels."""


def train_and_val(source_dir: Path, wrong: Faults) -> dict[str, Files]:
    """Find the files of train/ and val/, in any of the layouts."""
    if not (source_dir / "train").is_dir() and (source_dir / _PLACES_LISTS).is_dir():
        return _places205(source_dir, wrong)
    root = source_dir / _KAGGLE if (source_dir / _KAGGLE).is_dir() else source_dir
    train, val = _class_files(root / "train", wrong), root / "val"
    if val.is_dir() and not _class_folders(val) and _images(val):
        return {"train": train, "val": _flat_files(val, source_dir, train, wrong)}
    return {"train": train, "val": _class_files_like(train, val, wrong)}


def parts_of(source_dir: Path, wrong: Faults) -> dict[str, Files]:
    """Find the files of train/, val/ and test/, as far as they are there, or of the class folders themselves (".")."""
    if (source_dir / _KAGGLE).is_dir():
        return train_and_val(source_dir, wrong)
    there = [part for part in ("val", "test") if (source_dir / part).is_dir()]
    if not there and not (source_dir / "train").is_dir():
        return {".": _class_files(source_dir, wrong)}
    # ILSVRC2012's test/ is flat and has no labels.
    if "test" in there and _class_folders(source_dir / "test"):
        train = _class_files(source_dir / "train", wrong)
        parts = {"train": train}
        for part in there:
            parts[part] = _class_files_like(train, source_dir / part, wrong)
        return parts
    if "val" in there:
        return train_and_val(source_dir, wrong)
    return {"train": _class_files(source_dir / "train", wrong)}


def _images(folder: Path) -> list[Path]:
    """List the image files of a folder, sorted by name."""
    with os.scandir(folder) as entries:
        # The order decides which images are for tuning, and a disk has none.
        names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
    return [folder / name for name in names if Path(name).suffix.lower() in IMAGE_SUFFIXES]


def _class_folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _class_files(folder: Path, wrong: Faults) -> Files:
    """List the image files of each class folder, both sorted by name."""
    if not folder.is_dir():
        wrong.append(f"{folder.name}/ is missing")
        return {}
    folders = _class_folders(folder)
    title = f"listing {folder.name}/"
    classes = {path.name: _images(path) for path in tracked(folders, len(folders), title, unit="folders")}
    if not classes:
        wrong.append(f"{folder.name}/ has no class folders")
    elif loose := _images(folder):
        wrong.append(f"{len(loose):,} images lie in {folder.name}/ itself, the first is {loose[0].name}")
    wrong.add(_empty(classes), f"class folders of {folder.name}/ have no images")
    return classes


def _class_files_like(train: Files, folder: Path, wrong: Faults) -> Files:
    """Find the files of a folder that is to have the classes of train/."""
    files = _class_files(folder, wrong)
    if not train or not files:
        return files
    if lacking := sorted(train.keys() - files.keys()):
        wrong.append(f"{folder.name}/ lacks {len(lacking):,} classes of train/: {few(lacking)}")
    if lacking := sorted(files.keys() - train.keys()):
        wrong.append(f"train/ lacks {len(lacking):,} classes of {folder.name}/: {few(lacking)}")
    return files


def _empty(classes: Files) -> list[str]:
    return [name for name, files in classes.items() if not files]


def _flat_files(val: Path, source_dir: Path, train: Files, wrong: Faults) -> Files:
    """Find the files of ILSVRC2012's flat val/ by class, in the order of the classes of `train`."""
    if (source_dir / _DEVKIT).is_dir():
        labels, origin = _devkit_labels(source_dir, wrong)
    elif (source_dir / _KAGGLE_LABELS).is_file():
        labels, origin = _kaggle_labels(source_dir, wrong), _KAGGLE_LABELS
    else:
        wrong.append(
            f"val/ has no class folders, and neither {_DEVKIT}/ nor {_KAGGLE_LABELS}, which tell its labels, is "
            "beside it"
        )
        return {}
    if not labels:
        return {}
    images = _images(val)
    stems = {path.stem for path in images}
    unlabelled = [path.name for path in images if path.stem not in labels]
    wrong.add(unlabelled, f"images of val/ have no label in {origin}")
    missing = [name for name in labels if name not in stems]
    wrong.add(missing, f"images that {origin} names are not in val/")
    wrong.add(sorted(set(labels.values()) - train.keys()), f"classes of {origin} are not in train/")
    classes: Files = {name: [] for name in train}
    for path in images:
        if (name := labels.get(path.stem)) in classes:
            classes[name].append(path)
    wrong.add(_empty(classes), "classes of train/ have no images in val/")
    return classes


def _devkit_labels(source_dir: Path, wrong: Faults) -> tuple[dict[str, str], Path]:
    """Read the class of each validation image from the devkit, by its name without the ending; and name the list."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    meta, truth = _DEVKIT / "meta.mat", _DEVKIT / "ILSVRC2012_validation_ground_truth.txt"
    if missing := [str(path) for path in (meta, truth) if not (source_dir / path).is_file()]:
        wrong.append(f"{' and '.join(missing)} cannot be found")
        return {}, truth
    try:
        synsets = loadmat(source_dir / meta, squeeze_me=True)["synsets"]
        # The devkit numbers the classes in an order of its own, and inner nodes of the hierarchy after them.
        classes = dict(zip(synsets["ILSVRC2012_ID"].tolist(), synsets["WNID"].tolist(), strict=True))
        numbers = (source_dir / truth).read_text().split()
        # The list has no names: its lines are in the order of the images' numbers, which begin with 1.
        return {f"ILSVRC2012_val_{i:08d}": classes[int(number)] for i, number in enumerate(numbers, 1)}, truth
    except (OSError, LookupError, ValueError, TypeError, NotImplementedError, MatReadError) as error:
        wrong.append(f"{_DEVKIT}/ cannot be read ({error})")
        return {}, truth


def _kaggle_labels(source_dir: Path, wrong: Faults) -> dict[str, str]:
    """Read the class of each validation image from Kaggle's list, by its name without the ending."""
    try:
        with (source_dir / _KAGGLE_LABELS).open(newline="") as file:
            # The class stands before the boxes of the objects.
            return {row["ImageId"]: row["PredictionString"].split()[0] for row in csv.DictReader(file)}
    except (OSError, LookupError, ValueError, AttributeError, csv.Error) as error:
        wrong.append(f"{_KAGGLE_LABELS} cannot be read ({error})")
        return {}


def _places205(source_dir: Path, wrong: Faults) -> dict[str, Files]:
    """Find the files that Places205's two lists name, by class, sorted by name."""
    folders = [source_dir / path for path in _PLACES_IMAGES]
    folder = next(filter(Path.is_dir, folders), None)
    if folder is None:
        wrong.append(f"{_PLACES_IMAGES[0]}/ is missing")
    listed = {part: _places205_list(source_dir, part, wrong) for part in ("train", "val")}
    labels = sorted(listed["train"].keys() | listed["val"].keys())
    for part, images in listed.items():
        lacking = [label for label in labels if label not in images]
        if images and lacking:
            wrong.append(f"{part}_places205.csv has no images of the labels {few(lacking)}")
    parts: dict[str, Files] = {"train": {}, "val": {}}
    if folder is None or wrong:
        return parts
    for label in labels:
        # A class is named by its folder without the letter before it: abbey of a/abbey.
        name = listed["train"][label][0].rpartition("/")[0].partition("/")[2]
        for part, images in listed.items():
            parts[part].setdefault(name, []).extend(folder / image for image in sorted(images[label]))
    return parts


def _places205_list(source_dir: Path, part: str, wrong: Faults) -> dict[int, list[str]]:
    """Read the names of the images of a part by label."""
    name = f"{part}_places205.csv"
    try:
        lines = regular(source_dir / _PLACES_LISTS / name).read_text().splitlines()
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
    wrong.add(bad, f"lines of {name} are no image with its label")
    return images
