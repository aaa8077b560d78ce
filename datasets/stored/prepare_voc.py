"""Preparing VOC2007: its two archives are unpacked, or an unpacked folder is taken, and every
image is read.
"""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from pathlib import Path

from regbench.datasets.published import PUBLISHED
from regbench.datasets.stored.encode import in_order
from regbench.datasets.stored.prepare import locked
from regbench.datasets.stored.progress import tracked
from regbench.datasets.stored.voc_files import VOCSplit, read_image, read_voc07, voc07_folder
from regbench.errors import RegbenchError
from regbench.text import few

ARCHIVES = ("VOCtrainval_06-Nov-2007.tar", "VOCtest_06-Nov-2007.tar")


def prepare_voc07(
    data_dir: Path,
    num_images: tuple[int, int],
    *,
    source_dir: Path | None = None,
    force: bool = False,
) -> dict[str, VOCSplit]:
    """Bring VOC2007 to `<data_dir>/voc07/VOCdevkit/`, unless it is there, and check all of it.

    A rename puts it there once it is complete and checked. `source_dir` holds the two archives, or
    VOCdevkit/, to which a link is made; `force` replaces an existing folder with it.
    """
    place = voc07_folder(data_dir)
    folder = place.parent
    with locked(folder):
        for leftover in folder.glob(".VOCdevkit.*"):
            shutil.rmtree(leftover)
        if source_dir is not None and (force or not place.is_dir()):
            # The new folder lies beside the old one, so that a rename puts it into place at once.
            new = Path(tempfile.mkdtemp(prefix=".VOCdevkit.", dir=folder))
            try:
                _bring(source_dir, new)
                _check(new / "VOCdevkit", str(source_dir), num_images)
                if place.is_symlink() or place.exists():
                    # The old folder moves into one that is removed below, so that its place is
                    # empty for a moment only.
                    place.rename(new / "replaced")
                (new / "VOCdevkit").rename(place)
            finally:
                shutil.rmtree(new)
            return read_voc07(place, num_images)
        return _check(place, str(place), num_images)


def _bring(source_dir: Path, new: Path) -> None:
    """Make `new`/VOCdevkit of what `source_dir` holds."""
    address = PUBLISHED["voc2007"].address
    if missing := [name for name in ARCHIVES if not (source_dir / name).is_file()]:
        unpacked = (source_dir / "VOCdevkit").resolve()
        if not unpacked.is_dir() or unpacked == (new.parent / "VOCdevkit").resolve():
            raise RegbenchError(
                f"{source_dir} has not {' and '.join(missing)}; get both archives from {address}"
            )
        (new / "VOCdevkit").symlink_to(unpacked)
        return
    for name in ARCHIVES:
        try:
            with tarfile.open(source_dir / name) as archive:
                members = archive.getmembers()
                title, count = f"unpacking {name}", len(members)
                for member in tracked(members, count, title, "files"):
                    _extract(archive, member, new)
        except (tarfile.TarError, EOFError) as error:
            raise RegbenchError(
                f"cannot unpack {source_dir / name} ({error}); get it again from {address}"
            ) from error
        except OSError as error:
            raise RegbenchError(
                f"cannot unpack {source_dir / name} to {new.parent}: {error.strerror or error}; "
                "make room, or choose another folder: runtime.data_dir=FOLDER"
            ) from error


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Unpack a member; raise `tarfile.TarError` if it leads out of the folder."""
    if hasattr(tarfile, "data_filter"):
        archive.extract(member, folder, filter="data")
        return
    # Python has filters from 3.11.4 on; Debian 12 has 3.11.2.
    is_inside = (folder / member.name).resolve().is_relative_to(folder.resolve())
    if not is_inside or not (member.isfile() or member.isdir()):
        raise tarfile.TarError(f"{member.name!r} would be outside the destination")
    archive.extract(member, folder)


def _check(devkit: Path, where: str, num_images: tuple[int, int]) -> dict[str, VOCSplit]:
    """Read the splits; refuse them if anything is missing or an image cannot be read."""
    splits = read_voc07(devkit, num_images, where)
    paths = [*splits["trainval"].paths, *splits["test"].paths]
    faults = tracked(in_order(_fault, paths), len(paths), "VOC2007: reading")
    if wrong := [fault for fault in faults if fault]:
        raise RegbenchError(
            f"{where} is not the complete VOC2007: {len(wrong):,} images cannot be read: "
            f"{few(wrong)}; get it again from {PUBLISHED['voc2007'].address}: regbench prepare "
            "voc07 --source-dir FOLDER --force"
        )
    return splits


def _fault(path: Path) -> str:
    """Return the name of an image that cannot be read; empty if it can."""
    try:
        read_image(path)
    except RegbenchError:
        return path.name
    return ""
