"""The manifest of a prepared data set: what `prepare` wrote, and the proof that it finished."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NotRequired, TypedDict

from regbench import RegbenchError
from regbench.datasets.config import DatasetConfig
from regbench.files import read_json, write_text

FILE_NAME = "manifest.json"


class SplitEntry(TypedDict):
    """One split's file.

    Attributes:
        file: its name, beside the manifest.
        num_samples: number of images.
        counts_per_class: number of images of each class; empty for a split without labels.
        content_sha256: over every image's label and stored bytes, in order.
        bytes: the file's size.
        origins: name of a text file beside it: for each image, in order, a line of the CRC-32 of its stored bytes
            (hexadecimal), a blank, and where it came from: a file's name relative to the source, or its row there. This
            and what follows is missing in manifests from before there was any.
        origins_sha256: of that file.
        left_out: images that could not be read: where they are in the source -> the reason.
        image_px: the median of the images' shorter sides.
        grey: whether none of the images had colour channels in the source.
    """

    file: str
    num_samples: int
    counts_per_class: list[int]
    content_sha256: str
    bytes: int
    origins: NotRequired[str]
    origins_sha256: NotRequired[str]
    left_out: NotRequired[dict[str, str]]
    image_px: NotRequired[int]
    grey: NotRequired[bool]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a prepared data set holds; it is written last, so its presence means that all is there.

    Attributes:
        name: the data set's folder.
        source: see `DatasetConfig.source`.
        selection: what of `DatasetConfig` decided which images went where (imagefolder), and their size if that was
            asked for.
        splits: by name: "train", "tuning" (if there is one), "test", and for STL-10 "unlabeled".
        class_names: in the order of the labels.
        beton: version of the files' format, quality of the JPEGs that were made (and not copied).
        regbench_version: the version that wrote them.
        created: UTC time, ISO 8601.
        train_list_sha256: of the file that `DatasetConfig.train_list` names; None without one.
        taken_from: for one's own images: split -> which of the source's images are in it.
    """

    name: str
    source: str
    selection: dict[str, int | float | str | None]
    splits: dict[str, SplitEntry]
    class_names: list[str]
    beton: dict[str, int]
    regbench_version: str
    created: str
    train_list_sha256: str | None = None
    taken_from: dict[str, str] = field(default_factory=dict)

    @property
    def pretraining_split(self) -> str:
        """The split to pretrain on: "unlabeled" where there is one (STL-10), else "train"."""
        return "unlabeled" if "unlabeled" in self.splits else "train"

    @classmethod
    def load(cls, data_dir: Path, dataset: DatasetConfig | str) -> Manifest:
        """Read the manifest of a data set, or of the one with that name, in `data_dir`.

        Raises:
            RegbenchError: the data set is not prepared, or the manifest cannot be read.
        """
        name = dataset if isinstance(dataset, str) else dataset.name
        command = f"regbench prepare {name}" if isinstance(dataset, str) else dataset.prepare_command
        try:
            return read_json(data_dir / name / FILE_NAME, cls, f"write it again: {command} --force")
        except FileNotFoundError:
            raise RegbenchError(f"data set '{name}' is not prepared in {data_dir}; run: {command}") from None

    def save(self, data_dir: Path) -> None:
        """Write the manifest atomically to its place in `data_dir`.

        Raises:
            RegbenchError: it cannot be written.
        """
        save_text(data_dir / self.name / FILE_NAME, json.dumps(asdict(self), indent=2) + "\n")

    def split_file(self, data_dir: Path, split: str) -> Path:
        """The file of `split`, present and of the recorded size.

        Raises:
            RegbenchError: no such split, or its file is missing or has another size.
        """
        if split not in self.splits:
            raise RegbenchError(f"data set '{self.name}' has no split '{split}'; it has {', '.join(self.splits)}")
        path = data_dir / self.name / self.splits[split]["file"]
        try:
            found = path.stat().st_size if path.is_file() else -1
        except OSError:  # no name that a file may have, in a manifest that was damaged
            found = -1
        if found != self.splits[split]["bytes"]:
            state = "missing" if found < 0 else f"{found} bytes long, not {self.splits[split]['bytes']}"
            raise RegbenchError(f"{path} is {state}; write it again: regbench prepare {self.name} --force")
        return path


def save_text(path: Path, text: str) -> None:
    """Write `text` atomically to `path`, in a prepared data set's folder.

    Raises:
        RegbenchError: it cannot be written, as on a full disk.
    """
    try:
        write_text(path, text)
    except OSError as error:
        raise RegbenchError(f"cannot write {path}: {error.strerror or error}") from error
