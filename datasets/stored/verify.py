"""Reading a prepared data set back: every image is decoded and compared with what was recorded
when it was written.
"""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path

from regbench.datasets.config import DatasetConfig
from regbench.datasets.stored.beton import Beton, written_again
from regbench.datasets.stored.encode import in_order
from regbench.datasets.stored.manifest import Manifest, SplitEntry, is_whole
from regbench.datasets.stored.progress import tracked
from regbench.datasets.stored.split_files import counts_per_class
from regbench.errors import RegbenchError

_CHANGED = "is missing or has not the hash in the manifest"


def verify(dataset: DatasetConfig | str, data_dir: Path) -> tuple[int, list[str]]:
    """Read every image of a data set, or of the one with that name, back, and return how many
    there are.

    The second value is a line for each image and file that is not as it was written.
    """
    manifest = Manifest.load(data_dir, dataset)
    name, images = manifest.name, 0
    problems = []
    for split, entry in manifest.splits.items():
        if entry["file"].endswith(".json"):  # a latent world
            images += entry["num_samples"]
            path = data_dir / name / entry["file"]
            if not is_whole(path, entry["content_sha256"]):
                problems.append(f"{path} {_CHANGED}")
            continue
        try:
            beton = Beton(manifest.split_file(data_dir, split))
            origins = _origins(data_dir / name, entry)
        except RegbenchError as error:
            problems.append(str(error))
            continue
        images += len(beton)
        if "factors" in entry:
            table = data_dir / name / entry["factors"]
            if not is_whole(table, entry["factors_sha256"]):
                problems.append(f"{table} {_CHANGED}")
        wrong, content_sha256 = _read_back(beton, origins, f"verify {name}/{split}")
        problems += wrong
        classes = len(manifest.class_names)
        low, high = beton.labels.min(), beton.labels.max()
        fault = ""
        if not -1 <= low <= high < classes:
            fault = f"labels from {low} to {high} are no classes"
        elif counts_per_class(beton.labels, classes) != entry["counts_per_class"]:
            fault = "the images of each class are not as many as in the manifest"
        elif not wrong and content_sha256 != entry["content_sha256"]:
            fault = "its labels and images have not the hash in the manifest"
        if fault:
            problems.append(f"{beton.path}: {fault}")
    return images, problems


def _origins(folder: Path, entry: SplitEntry) -> list[tuple[int, str]]:
    """Read the CRC-32 of each image, and where it came from."""
    path = folder / entry["origins"]
    if not is_whole(path, entry["origins_sha256"]):
        raise RegbenchError(f"{path} {_CHANGED}; {written_again(folder.name)}")
    # A name may hold characters that splitlines, and read_text, treat as the end of a line.
    lines = path.read_bytes().decode().split("\n")[:-1]
    return [(int(line[:8], 16), line[9:]) for line in lines]


def _read_back(beton: Beton, origins: list[tuple[int, str]], title: str) -> tuple[list[str], str]:
    """Return a line for each image that is not as it was written, and the content's hash, see
    `write_beton`.
    """

    def wrong(index: int) -> str | None:
        crc, origin = origins[index]
        where = f"image {index} of {beton.path}, {origin},"
        if crc != zlib.crc32(beton.stored_bytes(index).data):
            return f"{where} has not the bytes that were written"
        try:
            beton.image(index)
        except RegbenchError:
            return f"{where} cannot be decoded"
        return None

    # The digest is taken here, in order, while threads decode: it cannot be put together from
    # parts.
    digest = hashlib.sha256()
    lines = []
    found = tracked(in_order(wrong, range(len(beton))), len(beton), title)
    for index, line in enumerate(found):
        digest.update(int(beton.labels[index]).to_bytes(8, "little", signed=True))
        digest.update(beton.stored_bytes(index).data)
        if line is not None:
            lines.append(line)
    return lines, digest.hexdigest()
