"""What a machine has of all that regbench can use."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from regbench.benchmark.machine import hardware, versions
from regbench.benchmark.settings.runtime import Runtime
from regbench.datasets.manifest import FILE_NAME

_LITTLE_SPACE_BYTES = 20 * 10**9


class Item(NamedTuple):
    """One thing that a machine has or lacks.

    Attributes:
        what: It is.
        found: What there is of it.
        remedy: How to have it; empty if it is there.
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
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    if gpus:
        yield Item("GPUs", ", ".join(gpus))
    elif torch.version.cuda is None:
        yield Item("GPUs", "none that this build of PyTorch can use", "install a CUDA build: https://pytorch.org")
    else:
        yield Item("GPUs", "none", "nvidia-smi tells whether the driver sees one; trainings run on the CPU meanwhile")
    ffcv = versions("ffcv").get("ffcv")
    remedy = "pip install 'regbench[ffcv]' (docs/data.md); images are read by torchvision meanwhile, which is slower"
    yield Item("FFCV", ffcv, "") if ffcv and importlib.util.find_spec("ffcv") else Item("FFCV", "none", remedy)
    slurm = shutil.which("sbatch")
    yield Item("Slurm", slurm or "none", "" if slurm else "sbatch is not on the PATH; sweeps run as local processes")
    names = sorted(path.parent.name for path in Path(runtime.data_dir).glob(f"*/{FILE_NAME}"))
    prepare = "" if names else "regbench prepare fashion_mnist, or another one: regbench prepare --help"
    yield Item(f"data in {runtime.data_dir}", ", ".join(names) or "none", prepare)
    yield from (_space(what, Path(folder)) for what, folder in (("data", runtime.data_dir), ("runs", runtime.runs_dir)))


def _space(what: str, folder: Path) -> Item:
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    free = shutil.disk_usage(there).free
    remedy = f"choose another folder: runtime.{what}_dir=FOLDER" if free < _LITTLE_SPACE_BYTES else ""
    if not os.access(there, os.W_OK):
        return Item(f"space for {what}", f"{there} cannot be written to", f"runtime.{what}_dir=FOLDER")
    return Item(f"space for {what}", f"{free / 1e9:.0f} GB free at {there}", remedy)
