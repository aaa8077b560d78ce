"""The layouts of folders of image files: our own, and ILSVRC2012 and Places205 as they are
published.

ILSVRC2012 is published with `val/` flat: its labels are those of the devkit,
`ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt` (a number for each image, in
order) and `meta.mat` (the class of each number), or of Kaggle's `LOC_val_solution.csv`. Kaggle has
the images in `ILSVRC/Data/CLS-LOC/`.

Places205 is published as `data/vision/torralba/deeplearning/images256/`, with the lists
`trainvalsplit_places205/{train,val}_places205.csv`: a line for each image, its name and its label,
such as `a/abbey/gsun_0a1b.jpg 0`.

Each function adds faults and notes to the listing that it is given.
"""

from __future__ import annotations

import csv
import functools
import os
import unicodedata
from collections import Counter
from pathlib import Path

from regbench.datasets.published import Faults
from regbench.datasets.sources.base import NO_CLASS, named
from regbench.datasets.stored.progress import tracked
from regbench.files import regular
from regbench.text import few

_KAGGLE = Path("ILSVRC/Data/CLS-LOC")
_KAGGLE_LABELS = Path("LOC_val_solution.csv")
_DEVKIT = Path("ILSVRC2012_devkit_t12/data")
_PLACES_LISTS = Path("trainvalsplit_places205")
_PLACES_IMAGES = (Path("data/vision/torralba/deeplearning/images256"), Path("images256"))
PARTS = dict.fromkeys(("train", "training"), "train")
PARTS |= dict.fromkeys(("val", "valid", "validation"), "val")
PARTS |= dict.fromkeys(("test", "testing"), "test")
"""The part of a data set that a folder's name means, in lower case."""
_UNLABELLED = ("unlabelled", "unlabeled")
# macOS archives and Synology disks keep copies of each image here, which are not the user's.
_OF_SYSTEMS = ("__MACOSX", "@eaDir")
# Pillow recognises these kinds, but leaves it to other programs to decode them.
_NOT_DECODED = ("BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF")

Files = dict[str, list[Path]]
"""Image files by class, in the order of the labels."""

composed = functools.partial(unicodedata.normalize, "NFC")
"""Write a name in the one form of those that look alike: macOS may write é as two characters."""


class Listing(Faults):
    """The faults of a folder of images, and notes on it.

    Attributes:
        folder: The folder that was given.
        root: The folder in it that holds the classes or the splits, or `folder` itself.
        allow_empty: Whether classes may have no images.
        notes: Notes on what was not read, or not as it lies there, each in one line.
        left_out: Files that are not read, with the kind of each.
        aside: A folder in it that is neither a class nor a split, or None.
    """

    def __init__(self, folder: Path, allow_empty: bool) -> None:
        """Begin with nothing seen."""
        super().__init__()
        self.folder = self.root = folder
        self.allow_empty = allow_empty
        self.notes: list[str] = []
        self.left_out: dict[Path, str] = {}
        self.aside: Path | None = None

    def listed(self, folder: Path) -> tuple[list[Path], list[Path]]:
        """List the folders and the image files in a folder, each sorted by name.

        All else, except `aside`, is added to `left_out`.
        """
        folders: list[Path] = []
        images: list[Path] = []
        try:
            with os.scandir(folder) as entries:
                # The order decides which images are for tuning, and a disk has no fixed order.
                found = sorted(entries, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return folders, images  # callers that need the folder report it
        except OSError as error:
            self.append(f"{folder} cannot be listed ({error.strerror})")
            return folders, images
        for entry in found:
            if entry.name.startswith(".") or entry.name in _OF_SYSTEMS:
                self.left_out[Path(entry)] = "hidden"
            elif entry.is_dir():
                if Path(entry) != self.aside:
                    folders.append(Path(entry))
            elif kind := _no_image(entry):
                self.left_out[Path(entry)] = kind
            else:
                images.append(Path(entry))
        return folders, images

    def images_below(self, folder: Path) -> list[Path]:
        """List the image files of a folder and of those in it, as torchvision's ImageFolder
        finds them.
        """
        found: list[Path] = []
        waiting, seen = [folder], set()
        while waiting:
            here = waiting.pop()
            try:
                status = here.stat()
            except OSError as error:
                self.append(f"{here} cannot be listed ({error.strerror})")
                continue
            # Links can lead back to a folder that holds them.
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            folders, images = self.listed(here)
            found += images
            waiting += reversed(folders)
        return found

    def unread(self) -> list[str]:
        """State how many files of each kind are left out, with the first of them."""
        of_kind: dict[str, list[Path]] = {}
        for path, kind in self.left_out.items():
            of_kind.setdefault(kind, []).append(path)
        words = []
        for kind, paths in of_kind.items():
            words.append(f"{len(paths):,} {kind} ({named(paths[0], self.folder)})")
        return [f"not read: {', '.join(words)}"] * bool(words)


@functools.cache
def _suffixes() -> frozenset[str]:
    """Return the endings of the files that Pillow decodes, in lower case."""
    from PIL import Image

    Image.init()
    kinds = Image.registered_extensions()
    decoded = Image.OPEN.keys() - {*_NOT_DECODED}
    return frozenset(suffix for suffix, kind in kinds.items() if kind in decoded)


def _no_image(entry: os.DirEntry[str]) -> str:
    """Return the kind of a file that is not an image; empty for an image."""
    _, dot, suffix = entry.name.lower().rpartition(".")
    if dot + suffix not in _suffixes():
        return dot + suffix if dot else "without an ending"
    # Reading a pipe or a device may never end. A link to nothing is an image that is missing.
    if not entry.is_file() and Path(entry).exists():
        return "no regular files"
    return ""


def train_and_val(source_dir: Path, seen: Listing) -> dict[str, Files]:
    """Find the files of the parts "train" and "val", in any of the layouts."""
    base = _unwrapped(source_dir, seen)
    folders = _part_folders(("train", "val"), seen)
    if "train" not in folders and (base / _PLACES_LISTS).is_dir():
        return _places205(base, seen)
    return _parts(base, {"train": seen.root / "train", "val": seen.root / "val", **folders}, seen)


def parts_of(source_dir: Path, seen: Listing) -> dict[str, Files]:
    """Find the files of those of train/, val/ and test/ that exist, or of the class folders
    themselves ("./").

    The parts are named after their folders.
    """
    base = _unwrapped(source_dir, seen)
    folders = _part_folders(("train", "val", "test"), seen)
    if not folders:
        classes, images = seen.listed(seen.root)
        if images and not classes:
            return {"./": {NO_CLASS: images}}
        return {"./": _class_files(seen.root, seen)}
    if "test" in folders:
        # ILSVRC2012's test/ is flat and has no labels.
        classes, images = seen.listed(folders["test"])
        if not classes:
            name = folders.pop("test").name
            seen.notes.append(
                f"{name}/ is not read: its {len(images):,} images lie in no class folders"
            )
    folders = {"train": seen.root / "train", **folders}
    return {f"{folders[part].name}/": files for part, files in _parts(base, folders, seen).items()}


def with_unlabelled(source_dir: Path, seen: Listing) -> tuple[dict[str, Files], list[Path]]:
    """Find the files of the parts, as `parts_of` does, and those of unlabelled/ beside them.

    Without such a folder the images of all folders are one part, without classes.
    """
    base = _unwrapped(source_dir, seen)
    for folder in seen.listed(base)[0]:
        if folder.name.lower() in _UNLABELLED:
            seen.aside = folder
            return parts_of(base, seen), seen.images_below(folder)
    # In Kaggle's layout too, all folders are one part.
    seen.root = base
    images = seen.images_below(source_dir)
    if not images:
        seen.append(f"{source_dir.name}/ holds no image")
    return {"./": {NO_CLASS: images}}, []


def _unwrapped(source_dir: Path, seen: Listing) -> Path:
    """Step into a folder that is the only one, as archives have it, unless it is a class or a
    part.
    """
    base = source_dir
    while not (base / _KAGGLE).is_dir():
        folders, images = seen.listed(base)
        if images or len(folders) != 1 or folders[0].name.lower() in PARTS:
            break
        if not seen.listed(folders[0])[0]:
            break
        base = folders[0]
    if base != source_dir:
        seen.notes.append(
            f"the images are those of {named(base, source_dir)}/, the only folder there"
        )
    seen.root = base / _KAGGLE if (base / _KAGGLE).is_dir() else base
    return base


def _part_folders(parts: tuple[str, ...], seen: Listing) -> dict[str, Path]:
    """Find the folders of parts by their names, in the order of `parts`."""
    found: dict[str, Path] = {}
    others = []
    folders, images = seen.listed(seen.root)
    for folder in folders:
        part = PARTS.get(folder.name.lower(), "")
        if part in found:
            both = f"{found[part].name}/ and {folder.name}/"
            seen.append(f"{both} both mean {part}/: leave one of them")
        elif part in parts:
            found[part] = folder
        elif folder.name != _DEVKIT.parts[0]:
            others.append(f"{named(folder, seen.root)}/")
    found = {part: found[part] for part in parts if part in found}
    read = {part: f"{folder.name}/" for part, folder in found.items()}
    if renamed := [f"{name} as {part}/" for part, name in read.items() if name != f"{part}/"]:
        seen.notes.append(f"read {', '.join(renamed)}")
    if images:
        others.append(f"{len(images):,} images")
    if found and others:
        seen.notes.append(f"beside {', '.join(read.values())} not read: {few(others)}")
    return found


def _parts(base: Path, folders: dict[str, Path], seen: Listing) -> dict[str, Files]:
    """Find the files of each part: those of the class folders of train/, and of the same
    classes in the others.
    """
    train = _class_files(folders["train"], seen)
    parts = {"train": train}
    for part, folder in list(folders.items())[1:]:
        classes, images = seen.listed(folder)
        if part == "val" and images and not classes:
            parts[part] = _flat_files(folder, base, train, seen)
        else:
            parts[part] = like_train(train, _class_files(folder, seen), f"{folder.name}/", seen)
    return parts


def _class_files(folder: Path, seen: Listing) -> Files:
    """List the image files below each class folder, both sorted by name."""
    if not folder.is_dir():
        seen.append(f"{folder.name}/ is missing")
        return {}
    folders, loose = seen.listed(folder)
    classes: Files = {}
    nested: list[Path] = []
    for path in tracked(folders, len(folders), f"listing {folder.name}/", unit="folders"):
        if path.name.lower() in _UNLABELLED:
            remedy = "dataset.source.unlabelled=true trains on its images"
            seen.append(f"{named(path, seen.folder)}/ is no class: {remedy}, or rename it")
        classes[path.name] = seen.images_below(path)
        nested += [image for image in classes[path.name] if image.parent != path]
    if nested:
        what = f"{len(nested):,} images are read from folders inside those of their classes"
        seen.notes.append(f"{what}, such as {named(nested[0], seen.folder)}")
    forms = Counter(map(composed, classes))
    alike = [name for name in classes if forms[composed(name)] > 1]
    seen.add(alike, f"class folders of {folder.name}/ are one name in two forms of Unicode")
    what = f"{len(loose):,} images"
    if loose and not classes:
        unlabelled = f"the {what} in it have no labels: give them by dataset.source.labels=FILE.csv"
        remedy = "or train without: dataset.source.unlabelled=true"
        seen.append(f"{folder.name}/ has no class folders, and {unlabelled}, {remedy}")
    elif not classes:
        seen.append(f"{folder.name}/ has no class folders")
    elif loose:
        seen.append(f"{what} lie in {folder.name}/ itself, the first is {loose[0].name}")
    if not (empty := _empty(classes)):
        return classes
    what = f"{len(empty):,} class folders of {folder.name}/ have no images: {few(empty)}"
    if not seen.allow_empty:
        seen.append(f"{what} (dataset.source.allow_empty=true leaves them out)")
    elif len(empty) == len(classes):
        seen.append(what)
    else:
        seen.notes.append(f"{what}; they are left out")
        return {name: files for name, files in classes.items() if files}
    return classes


def like_train(train: Files, files: Files, where: str, seen: Listing) -> Files:
    """Return the files of another part with the classes of train, in its order.

    Refuse other classes.
    """
    if not train or not files:
        return files
    of_train = {composed(name): name for name in train}
    files = {of_train.get(composed(name), name): paths for name, paths in files.items()}
    if (lacking := sorted(train.keys() - files.keys())) and not seen.allow_empty:
        seen.append(f"{where} lacks {len(lacking):,} classes of train/: {few(lacking)}")
    if lacking := sorted(files.keys() - train.keys()):
        seen.append(f"train/ lacks {len(lacking):,} classes of {where}: {few(lacking)}")
    return {name: files.get(name, []) for name in train}


def _empty(classes: Files) -> list[str]:
    return [name for name, files in classes.items() if not files]


def _flat_files(val: Path, source_dir: Path, train: Files, seen: Listing) -> Files:
    """Find the files of ILSVRC2012's flat val/ by class, in the order of the classes of `train`."""
    if (source_dir / _DEVKIT).is_dir():
        labels, origin = _devkit_labels(source_dir, seen)
    elif (source_dir / _KAGGLE_LABELS).is_file():
        labels, origin = _kaggle_labels(source_dir, seen), _KAGGLE_LABELS
        seen.left_out.pop(source_dir / _KAGGLE_LABELS, None)
    else:
        lists = f"neither {_DEVKIT}/ nor {_KAGGLE_LABELS}, which tell its labels,"
        seen.append(f"val/ has no class folders, and {lists} is beside it")
        return {}
    if not labels:
        return {}
    images = seen.listed(val)[1]
    stems = {path.stem for path in images}
    unlabelled = [path.name for path in images if path.stem not in labels]
    seen.add(unlabelled, f"images of val/ have no label in {origin}")
    missing = [name for name in labels if name not in stems]
    seen.add(missing, f"images that {origin} names are not in val/")
    seen.add(sorted(set(labels.values()) - train.keys()), f"classes of {origin} are not in train/")
    classes: Files = {name: [] for name in train}
    for path in images:
        if (name := labels.get(path.stem)) in classes:
            classes[name].append(path)
    seen.add(_empty(classes), "classes of train/ have no images in val/")
    return classes


def _devkit_labels(source_dir: Path, seen: Listing) -> tuple[dict[str, str], Path]:
    """Read the class of each validation image from the devkit, by its name without the ending.

    Return the path of the list, too.
    """
    from scipy.io import loadmat

    meta, truth = _DEVKIT / "meta.mat", _DEVKIT / "ILSVRC2012_validation_ground_truth.txt"
    if missing := [str(path) for path in (meta, truth) if not (source_dir / path).is_file()]:
        seen.append(f"{' and '.join(missing)} cannot be found")
        return {}, truth
    try:
        synsets = loadmat(source_dir / meta, squeeze_me=True)["synsets"]
        # The devkit numbers the classes in an order of its own, and inner nodes of the hierarchy
        # after them.
        numbers, names = synsets["ILSVRC2012_ID"].tolist(), synsets["WNID"].tolist()
        classes = dict(zip(numbers, names, strict=True))
        labels = {}
        # The list has no names: its lines are in the order of the images' numbers, which begin with
        # 1.
        for i, number in enumerate((source_dir / truth).read_text().split(), start=1):
            labels[f"ILSVRC2012_val_{i:08d}"] = classes[int(number)]
        return labels, truth
    # scipy documents no list of what it raises for a file that holds something else.
    except Exception as error:
        seen.append(f"{_DEVKIT}/ cannot be read ({error})")
        return {}, truth


def _kaggle_labels(source_dir: Path, seen: Listing) -> dict[str, str]:
    """Read the class of each validation image from Kaggle's list, by its name without the
    ending.
    """
    try:
        with (source_dir / _KAGGLE_LABELS).open(newline="") as file:
            # The class stands before the boxes of the objects.
            rows = csv.DictReader(file)
            return {row["ImageId"]: row["PredictionString"].split()[0] for row in rows}
    except (OSError, LookupError, ValueError, AttributeError, csv.Error) as error:
        seen.append(f"{_KAGGLE_LABELS} cannot be read ({error})")
        return {}


def _places205(source_dir: Path, seen: Listing) -> dict[str, Files]:
    """Find the files that Places205's two lists name, by class, sorted by name."""
    folders = [source_dir / path for path in _PLACES_IMAGES]
    folder = next(filter(Path.is_dir, folders), None)
    if folder is None:
        seen.append(f"{_PLACES_IMAGES[0]}/ is missing")
    listed = {part: _places205_list(source_dir, part, seen) for part in ("train", "val")}
    labels = sorted(listed["train"].keys() | listed["val"].keys())
    for part, images in listed.items():
        lacking = [label for label in labels if label not in images]
        if images and lacking:
            seen.append(f"{part}_places205.csv has no images of the labels {few(lacking)}")
    parts: dict[str, Files] = {"train": {}, "val": {}}
    if folder is None or seen:
        return parts
    for label in labels:
        # A class is named by its folder without the letter before it: abbey of a/abbey.
        name = listed["train"][label][0].rpartition("/")[0].partition("/")[2]
        for part, images in listed.items():
            files = [folder / image for image in sorted(images[label])]
            parts[part].setdefault(name, []).extend(files)
    return parts


def _places205_list(source_dir: Path, part: str, seen: Listing) -> dict[int, list[str]]:
    """Read the names of the images of a part by label."""
    name = f"{part}_places205.csv"
    try:
        lines = regular(source_dir / _PLACES_LISTS / name).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        seen.append(f"{_PLACES_LISTS / name} cannot be read ({error})")
        return {}
    images: dict[int, list[str]] = {}
    bad: list[int] = []
    for number, line in enumerate(lines, start=1):
        image, _, label = line.rpartition(" ")
        # A list must not lead to files outside the folder.
        leads_out = image.startswith("/") or ".." in image.split("/")
        if image and label.isdecimal() and not leads_out:
            images.setdefault(int(label), []).append(image)
        elif line.strip():
            bad.append(number)
    seen.add(bad, f"lines of {name} are no image with its label")
    return images
