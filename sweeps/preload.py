"""Modules that jobs of a sweep need; the fork server imports them once for all jobs."""

import contextlib
import importlib

import regbench.benchmark.run
import regbench.sweeps.tune  # noqa: F401
from regbench.plugins import PACKAGES, import_own

# Reading a cell asks for every plug-in. Those of other wheels wait for the job, whose environment
# says where they are.
for kind in PACKAGES:
    import_own(kind)
for module in ("torchvision.models", "regbench.datasets.loading.ffcv_crops"):
    # A library that cannot be loaded raises OSError; the job will say it, if it needs this one.
    with contextlib.suppress(ImportError, OSError, RuntimeError):
        importlib.import_module(module)
