"""A folder of image files: one's own, ILSVRC2012 or Places205; see `layouts`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import chain
from pathlib import Path
from typing import Annotated

from pydantic import Field

from regbench.datasets.published import refuse_if
from regbench.datasets.sources.base import (
    NO_CLASS,
    Contents,
    DividedFiles,
    named,
    register,
    split_of_files,
)
from regbench.datasets.sources.layouts import (
    Files,
    Listing,
    composed,
    parts_of,
    train_and_val,
    with_unlabelled,
)
from regbench.datasets.sources.lists import (
    find_list,
    of_labels,
    of_listed_classes,
    of_listed_images,
)
from regbench.datasets.stored.progress import tracked
from regbench.errors import RegbenchError
from regbench.files import file_sha256
from regbench.settings import settings
from regbench.text import few
from regbench.wording import shown

Chosen = dict[str, Mapping[str, Sequence[Path]]]
"""Image files by split and class."""


@register("imagefolder")
@settings
class ImageFolder(DividedFiles):
    """A folder of images, train/CLASS/*.jpg and val/CLASS/*.jpg; "test" is val/.

    Files are taken in the order of their names. With `train_per_class` = n and `tuning_per_class` =
    m, files 0 to n-1 of each class of train/ are "train" and files n+1 to n+m "tuning": file n
    belongs to neither, as in the published code of SFRIK.

    With `held_out` the folder may hold train/ alone, or beside it val/, test/ or both, or the class
    folders themselves: "test" is test/, else val/, and "tuning" is val/ beside a test/. A share of
    each class is held out for each of the two that has no folder.

    Attributes:
        class_list: A text file with the names of the class folders to take, one a line, in the
            source's folder, in the working directory, or imagenet100.txt, which comes with
            regbench; null: all of them.
        train_list: A text file with the names of the images for training, one a line, in the
            source's folder or else in the working directory; null: all of them. Tuning images are
            then the first others of each class.
        held_out: The share of each class's training images, by the hash of their names, that is for
            tuning, and as many for the test, where there are no folders for these; null: another
            setting divides the images.
        labels: A table (CSV) of images in a folder without classes, with the columns file and
            label, and where it is to divide them split (train, val or test), in the source's folder
            or in the working directory; or another folder, whose folders are the classes: all
            images of the source's folder are then for pretraining alone; null: the folders are the
            classes.
        unlabelled: Whether images without a class are for pretraining too: those of a folder
            unlabelled/ or unlabeled/ beside the others, or those that the table of labels does not
            name; without either, all images of the folder, whose folders are then no classes.
        allow_empty: Whether class folders without images are left out; otherwise they are refused.
    """

    class_list: str | None = None
    train_list: str | None = None
    # With 0.4 each, tuning and test leave a fifth of the images for training.
    held_out: Annotated[float, Field(gt=0, le=0.4)] | None = None
    # Like the images, these are inputs of `prepare`.
    labels: str | None = field(default=None, compare=False)
    unlabelled: bool = field(default=False, compare=False)
    allow_empty: bool = field(default=False, compare=False)

    title = "a folder of images"

    @property
    def layout(self) -> str:
        """Layout that the folder must have."""
        if self.held_out is None:
            return "train/CLASS/*.jpg and val/CLASS/*.jpg"
        return "CLASS/*.jpg, or train/CLASS/*.jpg and what there is of val/ and test/"

    def __post_init__(self) -> None:
        """Refuse settings that say twice which images are for training, or leave none for
        tuning.
        """
        super().__post_init__()
        if self.train_list is None:
            self.refuse_overlap()
        elif self.train_per_class is not None:
            raise RegbenchError(
                "dataset.source.train_list and dataset.source.train_per_class both say which "
                "images are for training; set dataset.source.train_per_class=null"
            )
        divided_by = (self.train_per_class, self.tuning_per_class, self.train_list)
        if self.held_out is not None and any(number is not None for number in divided_by):
            raise RegbenchError(
                f"dataset.source.held_out={self.held_out:g} divides the images, and so do "
                "train_per_class, tuning_per_class and train_list; set "
                "dataset.source.held_out=null"
            )
        for name in ("labels", "unlabelled"):
            if self.held_out is None and getattr(self, name):
                raise RegbenchError(
                    f"dataset.source.{name} goes with dataset.source.held_out, not with "
                    "train_per_class, tuning_per_class and train_list"
                )

    def inputs(self, folder: Path) -> str:
        """State the folder and its labels; see `Source.inputs`."""
        labels = "null"
        if self.labels is not None:
            path = find_list(self.labels, folder, "labels").resolve()
            labels = named(path, folder.resolve())
            if path.is_file():
                labels += f" (SHA-256 {file_sha256(path)})"
        return f"{super().inputs(folder)}\nlabels {labels}, unlabelled {shown(self.unlabelled)}"

    def open(self, folder: Path | None, downloads: Path) -> Contents:
        """Read the folder; see `Source.open`."""
        assert folder is not None  # a source of one's own images has one
        seen = Listing(folder, self.allow_empty)
        labels = None if self.labels is None else find_list(self.labels, folder, "labels")
        # Images for pretraining alone.
        loose: list[Path] = []
        if labels is not None and labels.is_dir():
            # The labelled images may be among those of the source.
            if folder.resolve() in labels.resolve().parents:
                labels = folder / labels.resolve().relative_to(folder.resolve())
            parts = parts_of(labels, seen)
            if NO_CLASS in next(iter(parts.values())):
                seen.append(f"the folder of labels {labels} has no class folders")
            loose = sorted(set(seen.images_below(folder)) - set(seen.images_below(labels)))
        elif labels is not None:
            parts, loose = of_labels(labels, folder, seen, self.unlabelled)
        elif self.held_out is None:
            parts = train_and_val(folder, seen)
        elif self.unlabelled:
            parts, loose = with_unlabelled(folder, seen)
        else:
            parts = parts_of(folder, seen)
        note = ""
        if self.class_list is not None:
            path = find_list(self.class_list, folder, "class_list")
            seen.left_out.pop(path, None)
            note = f"the classes of {path.name} (SHA-256 {file_sha256(path)})"
            for part, files in parts.items():
                # A part that could not be read is refused below, with its reason.
                if files:
                    parts[part] = of_listed_classes(path, files, folder)
        counts = {part: sum(map(len, files.values())) for part, files in parts.items() if files}
        # Duplicates go: a folder that cannot be listed is reported each time it is asked for.
        empty = [f"{part} has no images of listed classes" for part in counts if not counts[part]]
        wrong = [*dict.fromkeys(seen), *seen.unread()] if seen else empty
        self.refuse(folder, wrong, counts if self.held_out is None else None)
        chosen, taken_from = self._divide(seen, parts)
        if loose:
            chosen["unlabeled"] = {NO_CLASS: loose}
            taken_from["unlabeled"] = f"{len(loose):,} images without a class, and train"
        self._refuse_shared(folder, chosen)
        if loose:
            chosen["unlabeled"] = {NO_CLASS: [*loose, *chain(*chosen["train"].values())]}
        splits = {}
        stated = {}
        for split, classes in chosen.items():
            splits[split] = split_of_files(classes, folder)
            if texts := [text for text in (taken_from.get(split), note) if text]:
                stated[split] = ", ".join(texts)
        names = [name for name in chosen["train"] if name != NO_CLASS]
        if not names:
            seen.notes.append("no image has a class: evaluations that need labels are left out")
        if len(names) == 1:
            seen.notes.append(f"warning: all images are of one class, {names[0]}")
        return Contents(splits, names, stated, seen.notes + seen.unread())

    def _divide(self, seen: Listing, parts: Mapping[str, Files]) -> tuple[Chosen, dict[str, str]]:
        """Make the splits from the folders found, and say where each comes from if that needs to
        be said.
        """
        folder = seen.folder
        if self.held_out is not None:
            return _divide_by_hash(seen, parts, self.held_out)
        train = parts["train"]
        if self.train_list is None:
            return {**self.divided(train, f"{folder}: train/"), "test": parts["val"]}, {}
        path = find_list(self.train_list, folder, "train_list")
        seen.left_out.pop(path, None)
        listed = of_listed_images(path, train, folder / "train")
        chosen: Chosen = {"train": listed}
        if (tune := self.tuning_per_class) is not None:
            others = {name: sorted({*files} - {*listed[name]}) for name, files in train.items()}
            chosen["tuning"] = {name: files[:tune] for name, files in others.items()}
            found = {name: len(files) for name, files in others.items()}
            too_few = [f"{name} has {count:,}" for name, count in found.items() if count < tune]
            what = f"tuning_per_class needs {tune} images of each class of train/"
            what = f"{folder}: {what} that {path.name} does not name"
            refuse_if(too_few, what, "choose a smaller dataset.source.tuning_per_class")
        note = f"train/, those that {path.name} names (SHA-256 {file_sha256(path)})"
        return {**chosen, "test": parts["val"]}, {"train": note}

    def _refuse_shared(self, folder: Path, chosen: Chosen) -> None:
        """Refuse missing files, and a file that is in two splits, whatever its names there."""
        files: list[tuple[str, Path]] = []
        for split, classes in chosen.items():
            files += [(split, path) for path in chain.from_iterable(classes.values())]
        seen: dict[tuple[int, int], tuple[str, Path]] = {}
        missing, both = [], []
        for split, path in tracked(files, len(files), f"files of {folder}", unit="files"):
            if not path.is_file():
                missing.append(named(path, folder))
                continue
            status = path.stat()
            # Links count: an image of the test must not be trained on under another name.
            other_split, other = seen.setdefault((status.st_dev, status.st_ino), (split, path))
            if other_split != split:
                both.append(f"{path} ({split}) and {other} ({other_split}) are one file")
        if missing:
            lost = f"{len(missing):,} of {len(files):,} images are not there: {few(missing)}"
            self.refuse(folder, [lost])
        refuse_if(both, f"{folder}: the splits overlap", "keep each file in one")


def _divide_by_hash(
    seen: Listing, parts: Mapping[str, Files], share: float
) -> tuple[Chosen, dict[str, str]]:
    """Make train, tuning and test from the folders `parts`. Splits that have no folder are cut
    from the first one.
    """
    (first, train), *others = parts.items()
    roles = ("test",) if len(others) == 1 else ("tuning", "test")
    chosen: Chosen = {}
    taken_from = {}
    for role, (part, files) in zip(roles, others, strict=False):
        chosen[role] = files
        taken_from[role] = part
    missing = [split for split in ("test", "tuning") if split not in chosen]
    too_few = []
    for label, images in train.items():
        if len(images) <= len(missing):
            too_few.append(f"{label or 'the folder without classes'} has {len(images)}")
    what = f"{seen.folder}: each class needs at least {len(missing) + 1} images to be divided"
    refuse_if(too_few, what, "add some, or leave out the class")
    for split in missing:
        taken_from[split] = f"{first}, {share:.3g} of each class by the hash of CLASS/NAME"
    held_out: dict[str, Files] = {split: {} for split in missing}
    rest: Files = {}
    for label, images in train.items():
        # Neighbours by name are often alike, such as the frames of one film, so they are ranked by
        # a hash.
        home = seen.root / first / label
        hashes = {}
        for path in images:
            name = path.relative_to(home if home in path.parents else seen.root)
            hashes[path] = hashlib.sha256(os.fsencode(composed(f"{label}/{name}"))).digest()
        ranked = sorted(images, key=hashes.__getitem__)
        # At least one image in each split.
        count = min(max(1, round(share * len(images))), (len(images) - 1) // max(1, len(missing)))
        for number, split in enumerate(missing):
            held_out[split][label] = sorted(ranked[number * count : (number + 1) * count])
        rest[label] = sorted(ranked[len(missing) * count :])
    taken_from["train"] = f"{first}, the rest" if missing else first
    chosen |= held_out
    return {"train": rest, "tuning": chosen["tuning"], "test": chosen["test"]}, taken_from
