"""The compilation of the FFCV loader's inner loops, and the place where numba keeps their code."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from regbench.files import cache_dir

Array = npt.NDArray[Any]
# A float32, which to Python is no float.
Scalar = Any
f32 = np.float32

# numba would put the compiled code beside these files, where `pip uninstall` would leave it behind.
if not numba.config.CACHE_DIR:  # type: ignore[attr-defined]
    with contextlib.suppress(OSError, RuntimeError):
        # Numba compiles a function anew only when its own file has changed, not when a function
        # that it calls has. So each state of all the files has a folder of its own.
        changed_ns = max(
            path.stat().st_mtime_ns for path in Path(__file__).parent.glob("kernels*.py")
        )
        folder = cache_dir() / "numba" / str(changed_ns)
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            numba.config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]

# NumPy's rules for division by zero: with Python's, loops that divide would not become vector
# instructions. Nothing is reordered or fused (no `fastmath`), so that the pictures are the same on
# every machine.
compiled = numba.njit(cache=True, nogil=True, error_model="numpy")
