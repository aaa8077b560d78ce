"""Somebody else's distribution, whose module is loaded with ours of its kind."""

from __future__ import annotations

import os
from pathlib import Path


def install(folder: Path, module: str, source: str, group: str = "regbench.methods") -> str:
    """Writes it into the folder; returns the PYTHONPATH of processes that are to find it."""
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / f"{module}.py").write_text(source)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{module} = {module}\n")
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
