"""List what a machine has of all that regbench can use, for `regbench doctor`."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from regbench.benchmark.machine.description import hardware, versions
from regbench.benchmark.settings.runtime import Runtime
from regbench.datasets.stored.manifest import FILE_NAME

_LITTLE_SPACE_BYTES = 20 * 10**9


class Item(NamedTuple):
    """One thing that a machine has or lacks.

    Attributes:
        what: Name of the item.
        found: Version or kind that is there.
        remedy: Advice on how to get it or do without; empty if nothing is lacking.
    """

    what: str
    found: str
    remedy: str = ""


def inventory() -> Iterator[Item]:
    """Look at software, hardware, schedulers, prepared data and space."""
    runtime = Runtime()
    packages = versions("torch", "torchvision", "timm", "numpy")
    yield Item("Python", platform.python_version())
    yield Item("packages", ", ".join(f"{name} {version}" for name, version in packages.items()))
    yield Item("processor", hardware(torch.device("cpu")))
    names, count = [], torch.cuda.device_count()
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(number) for number in range(count)]
    if count and not names:
        remedy = f"the driver may be too old for CUDA {torch.version.cuda}, or not running"
        yield Item("GPUs", f"{count} that PyTorch cannot use", remedy)
    elif not names and torch.version.cuda is None:
        remedy = "install a CUDA build: https://pytorch.org"
        yield Item("GPUs", "none that this build of PyTorch can use", remedy)
    else:
        remedy = "nvidia-smi tells whether the driver sees one; trainings run on the CPU meanwhile"
        yield _item("GPUs", ", ".join(names), remedy)
    ffcv = versions("ffcv").get("ffcv") if importlib.util.find_spec("ffcv") else None
    remedy = "pip install 'regbench[ffcv]' (docs/overview.md); images are read by torchvision "
    yield _item("FFCV", ffcv, f"{remedy}meanwhile, which is slower")
    remedy = "sbatch is not on the PATH; sweeps run as local processes"
    yield _item("Slurm", shutil.which("sbatch"), remedy)
    prepared = sorted(path.parent.name for path in Path(runtime.data_dir).glob(f"*/{FILE_NAME}"))
    remedy = "regbench prepare fashion_mnist, or another one: regbench prepare --help"
    yield _item(f"data in {runtime.data_dir}", ", ".join(prepared), remedy)
    yield _space("data", Path(runtime.data_dir))
    yield _space("runs", Path(runtime.runs_dir))


def _item(what: str, found: str | None, remedy: str) -> Item:
    """Report what is there, or else how to get it."""
    return Item(what, found) if found else Item(what, "none", remedy)


def _space(what: str, folder: Path) -> Item:
    # The folder itself may not be there yet.
    place = folder.absolute()
    there = next(each for each in (place, *place.parents) if each.exists())
    title, remedy = f"space for {what}", f"choose another folder: runtime.{what}_dir=FOLDER"
    if not os.access(there, os.W_OK):
        return Item(title, f"{there} cannot be written to", remedy)
    free_bytes = shutil.disk_usage(there).free
    if free_bytes >= _LITTLE_SPACE_BYTES:
        remedy = ""
    return Item(title, f"{free_bytes / 1e9:.0f} GB free at {there}", remedy)
