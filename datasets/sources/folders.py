"""Folders of image files: `train/<class>/` and `val/<class>/`, ILSVRC2012 and Places205 as they are published.

ILSVRC2012 is published with `val/` flat: its labels are those of the devkit,
`ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt` (a number for each image, in order) and `meta.mat`
(the class of each number), or of Kaggle's `LOC_val_solution.csv`. Kaggle has the images in `ILSVRC/Data/CLS-LOC/`.

Places205 is published as `data/vision/torralba/deeplearning/images256/`, with the lists
`trainvalsplit_places205/{train,val}_places205.csv`: a line for each image, its name and its label, such as
`a/abbey/gsun_0a1b.jpg 0`.
"""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.io import loadmat
from scipy.io.matlab import MatReadError

from regbench import RegbenchError
from regbench.datasets.config import DatasetConfig
from regbench.datasets.encode import encode_all
from regbench.datasets.progress import shown
from regbench.datasets.published import PUBLISHED, SIMCLR_LISTS, few, refuse_if
from regbench.datasets.sources.base import (
    Image,
    Source,
    Split,
    check_selection,
    divided,
    page_bytes,
    refuse_incomplete,
    stored_bytes,
)

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".pgm", ".tif", ".tiff"})
LAYOUT = "train/CLASS/*.jpg and val/CLASS/*.jpg"
_OWN_LAYOUT = "CLASS/*.jpg, or train/CLASS/*.jpg and what there is of val/ and test/"
_KAGGLE = Path("ILSVRC/Data/CLS-LOC")
_KAGGLE_LABELS = Path("LOC_val_solution.csv")
_DEVKIT = Path("ILSVRC2012_devkit_t12/data")
_PLACES_LISTS = Path("trainvalsplit_places205")
_PLACES_IMAGES = (Path("data/vision/torralba/deeplearning/images256"), Path("images256"))

Files = dict[str, list[Path]]
"""Image files by class, in the order of the labels."""


def imagefolder(config: DatasetConfig, source_dir: Path | None) -> Source:
    """A folder of images in one of the layouts above.

    Raises:
        RegbenchError: no folder is given, or something is wrong with it or with the settings; it is listed.
    """
    if source_dir is None:
        published = PUBLISHED.get(config.published or "")
        raise RegbenchError(
            f"data set '{config.name}' is made from a folder of images; give the one that holds train/ and val/: "
            f"{config.prepare_command}"
            f"{f'; {published.title} is to be had from {published.address}' if published else ''}"
        )
    check_selection(config)
    wrong: list[str] = []
    if config.held_out is not None:
        parts = _own_images(source_dir, wrong)
        refuse_incomplete(config, source_dir, wrong, {}, _OWN_LAYOUT)
        return _divided_by_hash(config, source_dir, parts, config.held_out)
    places205 = not (source_dir / "train").is_dir() and (source_dir / _PLACES_LISTS).is_dir()
    train, val = (_places205 if places205 else _by_class)(source_dir, wrong)
    counts = {part: sum(map(len, files.values())) for part, files in (("train", train), ("val", val))}
    refuse_incomplete(config, source_dir, wrong, {part: n for part, n in counts.items() if n}, LAYOUT)
    if config.train_list is None:
        too_few: list[str] = []
        chosen: dict[str, dict[str, Sequence[Path]]] = divided(
            train, config.train_per_class, config.tuning_per_class, too_few
        )
        refuse_if(too_few, f"{source_dir}: train/ is too small", "choose other numbers, or add images")
    else:
        chosen = _divided_by_list(source_dir, config.train_list, train, config.tuning_per_class)
    chosen["test"] = {**val}
    _refuse_overlap(config, source_dir, chosen)
    return Source({split: _file_split(classes, source_dir, config) for split, classes in chosen.items()}, list(train))


# ------------------------------------------------------------------------------------------------------ the layouts


def _images(folder: Path) -> list[Path]:
    """The image files of a folder, sorted by name."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if not entry.name.startswith(".")]
    return [folder / name for name in sorted(names) if Path(name).suffix.lower() in IMAGE_SUFFIXES]


def _by_class(source_dir: Path, wrong: list[str]) -> tuple[Files, Files]:
    """The files of train/ and val/; what is wrong is added to `wrong`."""
    root = source_dir / _KAGGLE if (source_dir / _KAGGLE).is_dir() else source_dir
    train = _class_files(root / "train", wrong)
    val = root / "val"
    if val.is_dir() and not _class_folders(val) and _images(val):
        return train, _flat_files(val, source_dir, train, wrong)
    return train, _class_files_like(train, val, wrong)


def _own_images(source_dir: Path, wrong: list[str]) -> dict[str, Files]:
    """The files of each folder that is there, train/, val/ and test/, or of the class folders ("."), as train/."""
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


def _class_files_like(train: Files, folder: Path, wrong: list[str]) -> Files:
    """The files of a folder that is to have the classes of train/."""
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
    """Image files of each class folder, both sorted by name."""
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
    """The files of ILSVRC2012's flat val/ by class, those of `train`."""
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
    """The class of each of ILSVRC2012's validation images, by its name without the ending; and the file that tells."""
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
    """The files that Places205's two lists name, by class, sorted by name; what is wrong is added to `wrong`."""
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
    """Names of images by label."""
    try:
        lines = (source_dir / _PLACES_LISTS / name).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        wrong.append(f"{_PLACES_LISTS / name} cannot be read ({error})")
        return {}
    images: dict[int, list[str]] = {}
    bad: list[int] = []
    for number, line in enumerate(lines, start=1):
        image, _, label = line.rpartition(" ")
        # A list is no reason to read files elsewhere.
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
    """The name of each label: its folder without the letter before it, such as "abbey" or "church/outdoor"."""
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


# ------------------------------------------------------------------------------------------------ what goes where


def _divided_by_hash(config: DatasetConfig, source_dir: Path, parts: Mapping[str, Files], share: float) -> Source:
    """Train, tuning and test, of which the folders `parts` hold some: a share of train/ is held out for each other."""
    (all_of_it, train), *others = parts.items()
    chosen: dict[str, Mapping[str, Sequence[Path]]] = dict(
        zip(("test",) if len(others) == 1 else ("tuning", "test"), (files for _, files in others), strict=False)
    )
    taken_from = dict(zip(chosen, (f"{part}/" for part, _ in others), strict=True))
    missing = [split for split in ("test", "tuning") if split not in chosen]
    refuse_if(
        [f"{name} has {len(files)}" for name, files in train.items() if len(files) <= len(missing)],
        f"{source_dir}: each class needs at least {len(missing) + 1} images to be divided",
        "add some, or leave out the class",
    )
    ranked = {label: sorted(files, key=lambda path: _hash_of(label, path)) for label, files in train.items()}
    # At least one image in each split.
    count = {
        label: min(max(1, round(share * len(files))), (len(files) - 1) // max(1, len(missing)))
        for label, files in train.items()
    }
    for number, split in enumerate(missing):
        chosen[split] = {
            label: sorted(files[number * count[label] : (number + 1) * count[label]]) for label, files in ranked.items()
        }
        taken_from[split] = f"{all_of_it}/, {share:.3g} of each class by the hash of CLASS/NAME"
    rest = {label: sorted(files[len(missing) * count[label] :]) for label, files in ranked.items()}
    taken_from["train"] = f"{all_of_it}/" + (", the rest" if missing else "")
    chosen = {"train": rest, "tuning": chosen["tuning"], "test": chosen["test"]}
    _refuse_overlap(config, source_dir, chosen)
    splits = {split: _file_split(classes, source_dir, config) for split, classes in chosen.items()}
    return Source(splits, list(train), {split: taken_from[split] for split in splits})


def _hash_of(label: str, path: Path) -> bytes:
    return hashlib.sha256(os.fsencode(f"{label}/{path.name}")).digest()


def _divided_by_list(
    source_dir: Path, listed: str, train: Files, tune: int | None
) -> dict[str, dict[str, Sequence[Path]]]:
    """The files that a list names and, of the others of each class, the first `tune`."""
    named = _listed_files(find_list(listed, source_dir), source_dir / "train", train)
    chosen: dict[str, dict[str, Sequence[Path]]] = {"train": {**named}}
    if tune is None:
        return chosen
    others = {name: sorted(set(files) - set(named[name])) for name, files in train.items()}
    refuse_if(
        [f"{name} has {len(files):,}" for name, files in others.items() if len(files) < tune],
        f"{source_dir}: tuning_per_class needs {tune} images of each class of train/ that {listed} does not name",
        "choose a smaller dataset.tuning_per_class",
    )
    chosen["tuning"] = {name: files[:tune] for name, files in others.items()}
    return chosen


def find_list(name: str, source_dir: Path) -> Path:
    """The file of `train_list`: in `source_dir`, else in the working directory; an absolute path as it is."""
    for path in (source_dir / name, Path(name)):
        if path.is_file():
            return path
    where = "" if Path(name).is_absolute() else f": it is neither in {source_dir} nor in {Path.cwd()}"
    address = f" (it is to be had from {SIMCLR_LISTS}{name})" if name in ("1percent.txt", "10percent.txt") else ""
    raise RegbenchError(
        f"the list of training images {name} is missing{where}; "
        f"put it there, or give its path: dataset.train_list=PATH{address}"
    )


def _listed_files(path: Path, folder: Path, train: Files) -> Files:
    """The training images that a list names, by class, in the folder's order.

    Args:
        path: The list: a file's name, or CLASS/NAME, a line; empty lines are skipped.
        folder: Of the training images, for messages.
        train: All of its images by class.

    Raises:
        RegbenchError: If the list cannot be read, names a file twice, or one that is not there or in two classes, or
            leaves out a class; with the lines' numbers.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RegbenchError(f"cannot read the list of training images {path} ({error}); get it again") from error
    places: dict[str, list[str]] = {}
    for label, files in train.items():
        for file in files:
            places.setdefault(file.name, []).append(label)
            places[f"{label}/{file.name}"] = [label]
    seen: dict[tuple[str, str], int] = {}
    wrong = []
    for number, line in enumerate(lines, start=1):
        if not (name := line.strip()):
            continue
        classes = places.get(name, [])
        place = (classes[0] if classes else "", name.rpartition("/")[2])
        if not classes:
            unknown = name.rpartition("/")[0]
            missing = f"its class {unknown}" if unknown and unknown not in train else "it"
            wrong.append(f"line {number}: {name}: {missing} is not in {folder.name}/")
        elif len(classes) > 1:
            wrong.append(f"line {number}: {name} is in {len(classes)} classes ({few(classes)}); write CLASS/NAME")
        elif first := seen.get(place):
            wrong.append(f"line {number}: {name} is already in line {first}")
        else:
            seen[place] = number
    chosen = {label: [file for file in files if (label, file.name) in seen] for label, files in train.items()}
    if not wrong and (empty := [label for label, files in chosen.items() if not files]):
        wrong.append(
            f"it names {len(seen):,} images and none of {len(empty)} of the {len(train)} classes ({few(empty)}); "
            "is it cut short?"
        )
    refuse_if(wrong, f"{path} does not fit {folder}", "get the list again, or mend it or the folder")
    return chosen


def _refuse_overlap(
    config: DatasetConfig, source_dir: Path, chosen: Mapping[str, Mapping[str, Sequence[Path]]]
) -> None:
    """Refuse files that are not there, and a file that is in two splits, under whatever names."""
    files = [(split, path) for split, classes in chosen.items() for paths in classes.values() for path in paths]
    seen: dict[tuple[int, int], tuple[str, Path]] = {}
    missing, both = [], []
    for split, path in shown(files, len(files), f"files of {source_dir}", unit="files"):
        try:
            status = path.stat()
        except OSError:
            missing.append(path.relative_to(source_dir))
            continue
        other_split, other = seen.setdefault((status.st_dev, status.st_ino), (split, path))
        if other_split != split:
            both.append(f"{path} ({split}) and {other} ({other_split}) are one file")
    if missing:
        absent = f"{len(missing):,} of {len(files):,} images are not there: {few(missing)}"
        refuse_incomplete(config, source_dir, [absent], {}, LAYOUT)
    refuse_if(both, f"{source_dir}: the splits overlap", "keep each file in one")


# ---------------------------------------------------------------------------------------------------------- reading


def _file_split(classes: Mapping[str, Sequence[Path]], source_dir: Path, config: DatasetConfig) -> Split:
    files: list[tuple[Image, int, str]] = []
    sizes = []
    identity = hashlib.sha256()
    for label, paths in enumerate(classes.values()):
        for path in paths:
            status = path.stat()
            # A name need not be UTF-8, nor free of line breaks.
            origin = os.fsencode(path.relative_to(source_dir)).decode(errors="backslashreplace").replace("\n", "\\n")
            files.append((path, label, origin))
            sizes.append(status.st_size)
            # The time of the last change of any kind: new permissions, too, can make an image readable.
            identity.update(f"{origin}\n{label} {status.st_size} {status.st_ctime_ns}\n".encode())
    some = [(files[index][0], sizes[index]) for index in range(0, len(files), -(-len(files) // 32))]
    return Split(
        np.array([label for _, label, _ in files], np.int64),
        page_bytes(max(sizes)),
        lambda workers: encode_all(files, config, workers),
        stored_bytes=stored_bytes(some, sum(sizes), config),
        identity=identity.hexdigest(),
    )
