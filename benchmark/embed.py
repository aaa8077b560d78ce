"""Representations of any number of images by a trained backbone, as a parquet file."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from torch import Tensor

from regbench.benchmark.evaluate.features import Encoder, Images, progress_bar
from regbench.benchmark.evaluate.state import fingerprint
from regbench.benchmark.machine.compute import Compute, resolve
from regbench.benchmark.settings.runtime import Runtime
from regbench.benchmark.trained import Trained, load
from regbench.datasets.sources.base import named
from regbench.datasets.sources.layouts import Listing
from regbench.datasets.stored.encode import in_order
from regbench.datasets.stored.manifest import Manifest
from regbench.errors import RegbenchError
from regbench.files import digest, lock, write_atomically, write_text
from regbench.settings import plain

NEAREST = 3
"""Number of classes that are named for an image."""

PART = 1024
"""Number of images that are written at a time."""

_KEY = b"regbench"

log = logging.getLogger("regbench")


def embed(directory: Path, folder: Path, out: Path, runtime: Runtime) -> int:
    """Write the representations of all images below a folder to a parquet file.

    It has the columns `file` (relative to the folder), `embedding` and, where the run's data set is
    prepared here and has labels, `classes`: those whose mean training representation has the
    largest cosine, the nearest first. Images that cannot be read are left out, with a warning each.
    A call after a kill goes on where the killed one stopped.

    Returns:
        The number of images in the file.

    Raises:
        RegbenchError: If the run has no weights, the folder no images, or `out` is another file.
    """
    if out.suffix != ".parquet":
        right = out.parent / f"{out.stem}.parquet"
        raise RegbenchError(f"{out}: the file is a parquet file; give --out {right}")
    trained = load(directory)
    listing = Listing(folder, allow_empty=True)
    files, seen = [], []
    for file in listing.images_below(folder) if folder.is_dir() else []:
        try:
            status = file.stat()
        except OSError as error:  # a link to nothing, for example
            listing.append(f"{file} cannot be read: {error.strerror}")
            continue
        files.append(file)
        seen.append([named(file, folder), status.st_size, status.st_mtime_ns])
    for fault in listing:
        log.warning("left out: %s", fault)
    if not files:
        raise RegbenchError(f"{folder} holds no image; give a folder with images that Pillow reads")
    for note in listing.unread():
        log.info("%s", note)
    compute = resolve(runtime)
    precision = trained.cell.evaluation.precision
    # On a CPU this layout saves a quarter of the time.
    trained.module.to(compute.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    encoder = Encoder(trained.module, trained.dim, precision)
    names, mean_CD = _classes(trained, encoder, compute)
    made_by = [names, precision, trained.interpolation, mean_CD.tolist()]
    network = fingerprint(trained.module, made_by)
    key = digest({"files": seen, "network": network, "dataset": plain(trained.cell.dataset)})
    embedder = _Embedder(trained, encoder, compute, folder, names, mean_CD)
    schema = embedder.table([]).schema.with_metadata({_KEY: key})
    _refuse_other(out, key)
    parts = out.with_name(f".{out.name}.parts")
    parts.mkdir(parents=True, exist_ok=True)
    with (parts / "lock").open("w") as held:
        lock(held, f"writes {out}")
        _refuse_other(out, key)  # another call may have written it
        if not out.exists():
            # Parts of other images or of another network are of no use.
            made_of = parts / "key"
            if not made_of.exists() or made_of.read_text() != key:
                for part in parts.glob("*.parquet"):
                    part.unlink()
                write_text(made_of, key)
            for first in progress_bar(range(0, len(files), PART), "parts of the file"):
                part = parts / f"{first:012}.parquet"
                if not part.exists():
                    table = embedder.table(files[first : first + PART])
                    write_atomically(part, partial(pq.write_table, table))
            write_atomically(out, partial(_join, sorted(parts.glob("*.parquet")), schema))
        # Another call may have removed the folder while this one waited for the lock.
        shutil.rmtree(parts, ignore_errors=True)
    return int(pq.read_metadata(out).num_rows)


def _refuse_other(out: Path, key: str) -> None:
    """Refuse to replace a file that is there and was made of something else."""
    metadata: dict[bytes, bytes] = {}
    if not out.exists():
        return
    with contextlib.suppress(pa.ArrowInvalid):  # it is no parquet file
        metadata = pq.read_schema(out).metadata or {}
    if metadata.get(_KEY) != key.encode():
        what = f"{out} is there already and holds something else"
        raise RegbenchError(f"{what}; remove it, or give another --out")


def _join(parts: Sequence[Path], schema: pa.Schema, file: IO[bytes]) -> None:
    with pq.ParquetWriter(file, schema) as writer:
        for part in parts:
            writer.write_table(pq.read_table(part).cast(schema))


def _classes(trained: Trained, encoder: Encoder, compute: Compute) -> tuple[list[str], Tensor]:
    """Return the names of the classes and their mean training representations.

    Representations are scaled to length 1, and so are their means. Without labelled training images
    there are no names.
    """
    dataset = trained.cell.dataset
    try:
        manifest = Manifest.load(compute.data_dir, dataset)
        if not manifest.class_names:
            raise RegbenchError(f"data set {dataset.name!r} has no labels")
        # Reading training images does not open the test split, so no choice is named.
        images = Images(dataset, compute, Path())
        batch_size = trained.cell.evaluation.batch_size
        train, _ = images.features(encoder, "train", trained.interpolation, batch_size)
    except RegbenchError as error:
        log.info("nearest classes are left out: %s", error)
        return [], torch.empty(0)
    sum_CD = torch.zeros(len(manifest.class_names), encoder.dim)
    labelled_N = train.y_N >= 0
    sum_CD.index_add_(0, train.y_N[labelled_N].cpu(), F.normalize(train.x_ND[labelled_N]).cpu())
    return manifest.class_names, F.normalize(sum_CD)


@dataclass(frozen=True)
class _Embedder:
    """Makes tables from files of images; the attributes are variables of `embed`."""

    trained: Trained
    encoder: Encoder
    compute: Compute
    folder: Path
    names: list[str]
    mean_CD: Tensor

    def table(self, files: Sequence[Path]) -> pa.Table:
        """Return the rows of files, in their order."""
        dim, batch_size = self.encoder.dim, self.trained.cell.evaluation.batch_size
        read: list[str] = []
        found = [torch.empty(0, dim)]
        for first in range(0, len(files), batch_size):
            batch = files[first : first + batch_size]
            images = []
            for file, image in zip(batch, in_order(self._image, batch), strict=True):
                if image is not None:
                    read.append(named(file, self.folder))
                    images.append(image)
            if images:
                x_NCHW = torch.stack(images).to(self.compute.device)
                found.append(self.encoder.represent(x_NCHW).cpu())
        x_ND = torch.cat(found)
        values = pa.array(x_ND.flatten().numpy())
        columns = {
            "file": pa.array(read, pa.string()),
            "embedding": pa.FixedSizeListArray.from_arrays(values, dim),
        }
        if self.names:
            nearest_NK = (F.normalize(x_ND) @ self.mean_CD.T).topk(min(NEAREST, len(self.names)))
            names = [[self.names[c] for c in row] for row in nearest_NK.indices.tolist()]
            columns["classes"] = pa.array(names, pa.list_(pa.string()))
        return pa.table(columns)

    def _image(self, file: Path) -> Tensor | None:
        try:
            return self.trained.transform(file)
        except RegbenchError as error:
            log.warning("left out: %s", error)
            return None
