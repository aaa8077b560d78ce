"""A description of the machine: versions, hardware, state of the source tree."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import threadpoolctl
import torch

THEN = ", then "
"""What stands between two surroundings of a run, such as of its training and its evaluation."""


def versions(*packages: str) -> dict[str, str]:
    """Return the version of each of the packages that is installed."""
    found = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def environment(device: torch.device) -> dict[str, Any]:
    """Describe what ran the cell: versions, git state, host, hardware, threads, and whether
    float32 is cut to TF32.
    """
    blas = threadpoolctl.ThreadpoolController().select(user_api="blas").info()
    return {
        "python": platform.python_version(),
        **versions("regbench", "torch", "torchvision", "numpy", "ffcv"),
        "git": git_state(),
        "hostname": platform.node(),
        "platform": platform.platform(),
        "hardware": hardware(device),
        "threads": torch.get_num_threads(),
        "blas_threads": max((library["num_threads"] for library in blas), default=None),
        # See `regbench.benchmark.machine.bf16`.
        "bf16_products": "torch" if device.type != "cpu" or has_fast_bf16() else "float32",
        "tf32": torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32,
    }


def one_after_another(descriptions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what describes a run that went on in other surroundings: "A, then B" where these
    differ.
    """
    found: dict[str, list[Any]] = {}
    for description in descriptions:
        for name, value in description.items():
            values = found.setdefault(name, [])
            if value not in values:
                values.append(value)
    return {
        name: values[0] if len(values) == 1 else THEN.join(map(str, values))
        for name, values in found.items()
    }


def hardware(device: torch.device) -> str:
    """Name the GPU, or the CPU with the number of usable cores."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    # On Linux, `platform.processor` names the architecture alone; the model is in /proc.
    name = processor("model name") or platform.processor() or platform.machine()
    return f"{len(os.sched_getaffinity(0))} cores of {name}"


def has_fast_bf16() -> bool:
    """Return True if this processor multiplies bf16 faster than float32, by vendor and features.

    A timing might answer differently when a run is resumed, which would change the run's bits.
    """
    if platform.machine() != "x86_64" or torch.cpu._is_amx_tile_supported():
        return True
    # Intel's AVX-512 multiplies bf16 at half the speed of float32, AMD's (from Zen 4 on) at twice
    # the speed.
    return torch.cpu._is_avx512_bf16_supported() and processor("vendor_id") == "AuthenticAMD"


# Each forward pass in bf16 asks, and a machine of many cores takes milliseconds to answer.
@functools.cache
def processor(field: str) -> str:
    """Return what Linux knows of the first processor, such as its "model name" or "vendor_id";
    "" if nothing.
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == field:
                return value.strip()
    return ""


def git_state() -> str | None:
    """Find the commit of the source tree, "+dirty" if it differs; None outside a checkout."""
    here = Path(__file__).resolve()

    def git(*words: str) -> str:
        command = ["git", "-C", str(here.parent), *words]
        return subprocess.check_output(command, stderr=subprocess.PIPE, text=True, timeout=10)

    try:
        # An environment may lie inside some other checkout, to which this file does not belong.
        git("ls-files", "--error-unmatch", here.name)
        return git("describe", "--always", "--dirty=+dirty", "--abbrev=12", "--exclude=*").strip()
    except (OSError, subprocess.SubprocessError):
        return None
