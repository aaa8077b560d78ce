"""The manifest of a prepared data set: what `prepare` wrote, and the proof that it finished."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NotRequired

from typing_extensions import TypedDict

from regbench.datasets.config import DatasetConfig, decisive
from regbench.datasets.stored.beton import written_again
from regbench.errors import RegbenchError
from regbench.files import Name, file_sha256, lock, read_json, write_text
from regbench.settings import plain
from regbench.wording import shown

FILE_NAME = "manifest.json"
LOCK = ".lock"
"""Name of the file, beside the manifest, that a process locks while it prepares the data set."""


class SplitEntry(TypedDict):
    """One split's file.

    Attributes:
        file: Name of the file, beside the manifest.
        num_samples: Number of images.
        counts_per_class: Number of images of each class; empty for a split without labels.
        content_sha256: Digest of all images' labels and stored bytes, in order.
        bytes: The file's size.
        origins: Name of a text file beside it: for each image, in order, a line of the CRC-32 of
            its stored bytes (hexadecimal), a blank, and where it came from: a file's name relative
            to the source, or its row there.
        origins_sha256: Digest of the file of origins.
        left_out: Images that could not be read: where they are in the source -> the reason.
        image_px: The median of the images' shorter sides.
        grey: Whether none of the images had colour channels in the source.
        factors: Name of a table beside it, with a line for each image: what it is made of, if the
            source knows.
        factors_sha256: SHA-256 of that table.
    """

    file: Name
    num_samples: int
    counts_per_class: list[int]
    content_sha256: str
    bytes: int
    origins: Name
    origins_sha256: str
    left_out: dict[str, str]
    image_px: int
    grey: bool
    factors: NotRequired[Name]
    factors_sha256: NotRequired[str]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of a prepared data set; it is written last, so its presence means that all is
    there.

    Attributes:
        name: The data set's folder.
        source: Name and settings of the source that it was made from.
        splits: Splits by name: "train", "tuning" (if there is one), "test", and "unlabeled" (if
            images without labels are pretrained on).
        class_names: Names in the order of the labels.
        beton_version: Version of the files' format.
        regbench_version: The version that wrote them.
        created: UTC time, ISO 8601.
        taken_from: Split -> which of the source's images are in it, if that needs to be said.
        notes: Notes on what was not read, or not as a user may expect, and why, each in one line.
    """

    name: Name
    source: dict[str, bool | int | float | str | None]
    splits: dict[str, SplitEntry]
    class_names: list[str]
    beton_version: int
    regbench_version: str
    created: str
    taken_from: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def pretraining_split(self) -> str:
        """The split to pretrain on: "unlabeled" if there is one, else "train"."""
        return "unlabeled" if "unlabeled" in self.splits else "train"

    def images_to_train_on(
        self, train_per_class: int | None, pretraining_images: int | None, *, labels: bool = False
    ) -> int:
        """Count the images of a training, with these settings of its data set, or of one that needs
        `labels`.
        """
        split = "train" if labels else self.pretraining_split
        count = self.splits[split]["num_samples"]
        if train_per_class and self.class_names and split == "train":
            count = min(count, train_per_class * len(self.class_names))
        return min(count, pretraining_images or count)

    @property
    def content_sha256(self) -> dict[str, str]:
        """The digest of all images of each split."""
        return {name: entry["content_sha256"] for name, entry in self.splits.items()}

    @classmethod
    def load(cls, data_dir: Path, dataset: DatasetConfig | str) -> Manifest:
        """Read the manifest of a data set, or of the one with that name; refuse one that is missing
        or damaged.

        While another process prepares the data set there is none, so this waits for that process.
        """
        name = dataset if isinstance(dataset, str) else dataset.name
        command = f"regbench prepare … dataset.name={name}"
        if not isinstance(dataset, str):
            command = dataset.prepare_command
        folder = data_dir / name
        with suppress(OSError):
            if not (folder / FILE_NAME).exists():
                with (folder / LOCK).open() as file:
                    lock(file, f"prepares {folder}", fcntl.LOCK_SH)
        try:
            return read_json(folder / FILE_NAME, cls, f"write it again: {command} --force")
        except FileNotFoundError:
            what = f"data set '{name}' is not prepared in {data_dir}"
            raise RegbenchError(f"{what}; run: {command}") from None

    def require(self, dataset: DatasetConfig, data_dir: Path) -> None:
        """Refuse a prepared data set that has another source, other settings or another number
        of classes.
        """
        classes = len(self.class_names)
        wanted = {**prepared_from(dataset), "num_classes": dataset.num_classes or classes}
        found = {**self.source, "num_classes": classes}
        there, asked = [], []
        for key in {**wanted, **found}:
            # A setting that one of the two lacks counts as different: another version has it.
            if wanted.get(key, wanted) != found.get(key, found):
                there.append(_stated(found, key))
                asked.append(_stated(wanted, key))
        if there:
            what = f"was prepared with {', '.join(there)}, not {', '.join(asked)}"
            remedy = f"choose another dataset.name, or: {dataset.prepare_command} --force"
            raise RegbenchError(f"{data_dir / dataset.name} {what}; {remedy}")

    def save(self, data_dir: Path) -> None:
        """Write the manifest atomically to its place in `data_dir`."""
        save_text(data_dir / self.name / FILE_NAME, json.dumps(asdict(self), indent=2) + "\n")

    def split_file(self, data_dir: Path, split: str) -> Path:
        """Return the file of `split`; refuse one that is missing or not of the recorded size."""
        if split not in self.splits:
            raise RegbenchError(
                f"data set '{self.name}' has no split '{split}'; it has {', '.join(self.splits)}"
            )
        path = data_dir / self.name / self.splits[split]["file"]
        expected = self.splits[split]["bytes"]
        state = "missing"
        with suppress(OSError):  # a damaged manifest may hold an impossible file name
            if path.is_file():
                state = f"{path.stat().st_size} bytes long, not {expected}"
        if not state.startswith(f"{expected} "):
            raise RegbenchError(f"{path} is {state}; {written_again(self.name)}")
        return path


def is_whole(path: Path, sha256: str) -> bool:
    """Return True if a file is there and has the hash that the manifest has."""
    with suppress(OSError):  # a damaged manifest may hold an impossible file name
        return path.is_file() and file_sha256(path) == sha256
    return False


def _stated(settings: Mapping[str, Any], key: str) -> str:
    """Word one setting, which a source of an older or newer version may lack."""
    if key not in settings:
        return f"no {key}"
    return f"{'source' if key == 'name' else key} {shown(settings[key])}"


def prepared_from(dataset: DatasetConfig) -> dict[str, Any]:
    """Return the name and settings of a data set's source that decide which images are in its
    files.
    """
    # Settings that only say what `prepare` accepts are left out: prepared images fit all cells that
    # see the same images.
    source: dict[str, Any] = decisive(plain(dataset))["source"]
    return source


def save_text(path: Path, text: str) -> None:
    """Write `text` atomically to `path`, in a prepared data set's folder.

    Refuse a full disk in one line.
    """
    try:
        write_text(path, text)
    except OSError as error:
        raise RegbenchError(f"cannot write {path}: {error.strerror or error}") from error
