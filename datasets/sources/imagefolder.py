"""A folder of image files: one's own, ILSVRC2012 or Places205; see `layouts`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from regbench.datasets.progress import shown
from regbench.datasets.published import SIMCLR_LISTS, few, refuse_if
from regbench.datasets.sources.base import Contents, DividedFiles, register, split_of_files
from regbench.datasets.sources.layouts import Files, parts_of, train_and_val
from regbench.errors import RegbenchError
from regbench.files import file_sha256
from regbench.settings import settings

Chosen = dict[str, Mapping[str, Sequence[Path]]]
"""Image files by split and class."""


@register("imagefolder")
@settings
class ImageFolder(DividedFiles):
    """A folder of images, train/CLASS/*.jpg and val/CLASS/*.jpg; "test" is val/.

    Files are taken in the order of their names. With `train_per_class` = n and `tuning_per_class` = m, files 0 to n-1
    of each class of train/ are "train" and files n+1 to n+m "tuning": file n belongs to neither, as in the published
    code of SFRIK.

    With `held_out` the folder may hold train/ alone, or beside it val/, test/ or both, or the class folders themselves:
    "test" is test/, else val/, and "tuning" is val/ beside a test/. A share of each class is held out for each of the
    two that has no folder.

    Attributes:
        class_list: A text file with the names of the class folders to take, one a line, in the source's folder, in the
            working directory, or imagenet100.txt, which comes with regbench; null: all of them.
        train_list: A text file with the names of the images for training, one a line, in the source's folder or else in
            the working directory; null: all of them. Tuning images are then the first others of each class.
        held_out: The share of each class's training images, by the hash of their names, that is for tuning, and as
            many for the test, where there are no folders for these; null: another setting divides the images.
    """

    class_list: str | None = None
    train_list: str | None = None
    held_out: Annotated[float, Field(gt=0, le=0.4)] | None = None

    title = "a folder of images"

    @property
    def layout(self) -> str:
        """What the folder is to hold."""
        if self.held_out is None:
            return "train/CLASS/*.jpg and val/CLASS/*.jpg"
        return "CLASS/*.jpg, or train/CLASS/*.jpg and what there is of val/ and test/"

    def __post_init__(self) -> None:
        """Refuse settings that say twice which images are for training, or leave none for tuning.

        Raises:
            RegbenchError: Naming the settings.
        """
        super().__post_init__()
        if self.train_list is None:
            self.refuse_overlap()
        elif self.train_per_class is not None:
            raise RegbenchError(
                "dataset.source.train_list and dataset.source.train_per_class both say which images are for training; "
                "set dataset.source.train_per_class=null"
            )
        divided_by = (self.train_per_class, self.tuning_per_class, self.train_list)
        if self.held_out is not None and any(number is not None for number in divided_by):
            raise RegbenchError(
                f"dataset.source.held_out={self.held_out:g} divides the images, and so do train_per_class, "
                "tuning_per_class and train_list; set dataset.source.held_out=null"
            )

    def open(self, folder: Path | None, downloads: Path) -> Contents:
        """Read the folder; see `Source.open`."""
        assert folder is not None  # it is one's own
        wrong: list[str] = []
        taken_from: dict[str, str] = {}
        if self.held_out is not None:
            parts = {part: self._listed(files, folder) for part, files in parts_of(folder, wrong).items()}
            self.refuse(folder, wrong)
            class_names = list(next(iter(parts.values())))
            chosen, taken_from = _divided_by_hash(folder, parts, self.held_out)
        else:
            train, val = (self._listed(files, folder) for files in train_and_val(folder, wrong))
            counts = {part: sum(map(len, files.values())) for part, files in (("train", train), ("val", val))}
            self.refuse(folder, wrong, {part: count for part, count in counts.items() if count})
            class_names = list(train)
            if self.train_list is None:
                chosen = {**self.divided(train, f"{folder}: train/")}
            else:
                path = _find_list(self.train_list, folder, "train_list")
                chosen = _divided_by_list(folder, path, train, self.tuning_per_class)
                taken_from["train"] = f"train/, those that {path.name} names (SHA-256 {file_sha256(path)})"
            chosen["test"] = val
        if self.class_list is not None:
            path = _find_list(self.class_list, folder, "class_list")
            classes = f"the classes of {path.name} (SHA-256 {file_sha256(path)})"
            taken_from = {split: ", ".join(filter(None, (taken_from.get(split), classes))) for split in chosen}
        self._refuse_shared(folder, chosen)
        splits = {split: split_of_files(classes, folder) for split, classes in chosen.items()}
        return Contents(splits, class_names, {split: taken_from[split] for split in splits if split in taken_from})

    def _listed(self, files: Files, folder: Path) -> Files:
        """Keep the classes that `class_list` names, in the folder's order.

        Raises:
            RegbenchError: If the list names one twice, or one that is not there.
        """
        if self.class_list is None or not files:
            return files
        path = _find_list(self.class_list, folder, "class_list")
        lines = [line.strip() for line in _lines_of(path, "classes")]
        names = [line for line in lines if line and not line.startswith("#")]
        missing = [name for name in names if name not in files]
        twice = sorted({name for name in names if names.count(name) > 1})
        wrong = [f"{len(missing):,} of its {len(names):,} classes are not in {folder}: {few(missing)}"] * bool(missing)
        wrong += [f"it names {len(twice):,} classes twice: {few(twice)}"] * bool(twice)
        refuse_if(
            wrong, f"the list of classes {path} cannot be used", "mend it, or give another dataset.source.class_list"
        )
        return {name: paths for name, paths in files.items() if name in set(names)}

    def _refuse_shared(self, folder: Path, chosen: Chosen) -> None:
        """Refuse files that are not there, and a file that is in two splits, under whatever names."""
        files = [(split, path) for split, classes in chosen.items() for paths in classes.values() for path in paths]
        seen: dict[tuple[int, int], tuple[str, Path]] = {}
        missing, both = [], []
        for split, path in shown(files, len(files), f"files of {folder}", unit="files"):
            try:
                status = path.stat()
            except OSError:
                missing.append(path.relative_to(folder))
                continue
            other_split, other = seen.setdefault((status.st_dev, status.st_ino), (split, path))
            if other_split != split:
                both.append(f"{path} ({split}) and {other} ({other_split}) are one file")
        if missing:
            self.refuse(folder, [f"{len(missing):,} of {len(files):,} images are not there: {few(missing)}"])
        refuse_if(both, f"{folder}: the splits overlap", "keep each file in one")


def _divided_by_hash(folder: Path, parts: Mapping[str, Files], share: float) -> tuple[Chosen, dict[str, str]]:
    """Make train, tuning and test, of which the folders `parts` hold some, and say where each is from."""
    (all_of_it, train), *others = parts.items()
    roles = ("test",) if len(others) == 1 else ("tuning", "test")
    chosen: Chosen = dict(zip(roles, (files for _, files in others), strict=False))
    taken_from = dict(zip(chosen, (f"{part}/" for part, _ in others), strict=True))
    missing = [split for split in ("test", "tuning") if split not in chosen]
    refuse_if(
        [f"{name} has {len(files)}" for name, files in train.items() if len(files) <= len(missing)],
        f"{folder}: each class needs at least {len(missing) + 1} images to be divided",
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
    return {"train": rest, "tuning": chosen["tuning"], "test": chosen["test"]}, taken_from


def _hash_of(label: str, path: Path) -> bytes:
    return hashlib.sha256(os.fsencode(f"{label}/{path.name}")).digest()


def _divided_by_list(folder: Path, path: Path, train: Files, tune: int | None) -> Chosen:
    """Choose the files that a list names and, of the others of each class, the first `tune`."""
    named = _listed_files(path, folder / "train", train)
    chosen: Chosen = {"train": named}
    if tune is None:
        return chosen
    others = {name: sorted(set(files) - set(named[name])) for name, files in train.items()}
    refuse_if(
        [f"{name} has {len(files):,}" for name, files in others.items() if len(files) < tune],
        f"{folder}: tuning_per_class needs {tune} images of each class of train/ that {path.name} does not name",
        "choose a smaller dataset.source.tuning_per_class",
    )
    chosen["tuning"] = {name: files[:tune] for name, files in others.items()}
    return chosen


def _find_list(name: str, folder: Path, setting: str) -> Path:
    """Find the file of a list: in the source's folder, in the working directory, or one of ours."""
    for path in (folder / name, Path(name), Path(__file__).parent / name):
        if path.is_file():
            return path
    what = {"train_list": "training images", "class_list": "classes"}[setting]
    where = "" if Path(name).is_absolute() else f": it is neither in {folder} nor in {Path.cwd()}"
    address = f" (it is to be had from {SIMCLR_LISTS}{name})" if name in ("1percent.txt", "10percent.txt") else ""
    raise RegbenchError(
        f"the list of {what} {name} is missing{where}; "
        f"put it there, or give its path: dataset.source.{setting}=PATH{address}"
    )


def _lines_of(path: Path, what: str) -> list[str]:
    """Read the lines of a list.

    Raises:
        RegbenchError: If it cannot be read.
    """
    try:
        return path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RegbenchError(f"cannot read the list of {what} {path} ({error}); get it again") from error


def _listed_files(path: Path, folder: Path, train: Files) -> Files:
    """Find the training images that a list names, by class, in the folder's order.

    Args:
        path: The list: a file's name, or CLASS/NAME, a line; empty lines are skipped.
        folder: Of the training images, for messages.
        train: All of its images by class.

    Raises:
        RegbenchError: If the list cannot be read, names a file twice, or one that is not there or in two classes, or
            leaves out a class; with the lines' numbers.
    """
    lines = _lines_of(path, "training images")
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
