"""Pack regbench for a GPU machine without a network: `make gpu-bundle` writes regbench-gpu.tar.gz.

There `tar -xzf regbench-gpu.tar.gz && bash regbench-gpu/run.sh` compares the GPU with the CPU and
measures it. The machine brings Python 3.12, PyTorch and the large packages below; the bundle brings
everything else but FFCV, which would have to be compiled there, so images are loaded with
torchvision.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
OUT = ROOT / "regbench-gpu.tar.gz"
# A machine that trains networks has these, and they would make the bundle ten times as large.
THERE = {
    "matplotlib",
    "numpy",
    "pandas",
    "pillow",
    "pyarrow",
    "scikit-learn",
    "scipy",
    "timm",
    "torch",
    "torchvision",
}
# pip matches the names of platforms exactly, and packages are built for different ones.
PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
)


def closure(*wanted: str) -> set[str]:
    """Find what the packages require here, directly or not, without what is there."""
    found: set[str] = set()
    waiting = list(wanted)
    while waiting:
        name = waiting.pop()
        if name in found | THERE:
            continue
        try:
            lines = requires(name) or []
        except PackageNotFoundError:
            continue  # a requirement of another platform
        found.add(name)
        for requirement in map(Requirement, lines):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(canonicalize_name(requirement.name))
    return found


def pip(*arguments: str) -> None:
    """Give a command to pip; end with its exit status where it fails."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    if status := subprocess.run(command, check=False).returncode:
        sys.exit(status)


def main() -> None:
    """Collect wheels, tests and the script in a folder, and pack it."""
    names = closure("regbench", "pytest") - {"regbench"}
    sources = {"antlr4-python3-runtime"}  # published without a wheel, but of Python alone
    # setuptools would pack what an earlier call left there, files that are gone included.
    shutil.rmtree(ROOT / "build", ignore_errors=True)
    platforms = [f"--platform={platform}" for platform in PLATFORMS]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "regbench-gpu"
        into = ["-q", "--no-deps", f"--constraint={ROOT / 'constraints.txt'}"]
        where = str(folder / "wheels")
        wheels = ["--only-binary=:all:", "--python-version=3.12", "--implementation=cp", *platforms]
        pip("download", *into, *wheels, "-d", where, *sorted(names - sources))
        pip("wheel", *into, "-w", where, *sorted(names & sources), str(ROOT))
        shutil.copytree(
            ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__")
        )
        shutil.copy(ROOT / "pyproject.toml", folder)
        shutil.copy(ROOT / ".ci" / "gpu-run", folder / "run.sh")
        for script in ("training.py", "made_images.py"):  # the one imports the other
            shutil.copy(ROOT / "results" / "speed" / script, folder)
        with tarfile.open(OUT, "w:gz") as archive:
            archive.add(folder, folder.name)
    print(f"{OUT.name}: {OUT.stat().st_size / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
