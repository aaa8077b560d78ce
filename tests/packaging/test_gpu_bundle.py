"""The archive for a GPU machine without a network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_bundle_is_small_and_holds_what_a_machine_with_pytorch_lacks(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    unwanted = ".git .venv runs data build site __pycache__ .*_cache"
    ignored = shutil.ignore_patterns(*unwanted.split())
    shutil.copytree(ROOT, tree, symlinks=True, ignore=ignored)
    subprocess.run([sys.executable, ".ci/gpu_bundle.py"], cwd=tree, check=True)

    bundle = tree / "regbench-gpu.tar.gz"
    assert bundle.stat().st_size <= 60 * 2**20
    with tarfile.open(bundle) as archive:
        names = {Path(name).relative_to("regbench-gpu") for name in archive.getnames()}
        archive.extractall(tmp_path, filter="data")
    packed = {"run.sh", "training.py", "pyproject.toml", "tests/gpu/test_gpu_losses.py"}
    assert {Path(name) for name in packed} <= names
    wheels = {path.name.partition("-")[0].lower() for path in names if path.suffix == ".whl"}
    needed = "regbench hydra_core antlr4_python3_runtime pydantic_core submitit pytest"
    assert {*needed.split()} <= wheels
    assert not wheels & {"torch", "numpy", "nvidia_cublas", "ffcv"}

    # What a training is measured with is in the bundle too.
    measured = subprocess.run(
        [sys.executable, "training.py", "--device", "cpu", "resnet18"],
        cwd=tmp_path / "regbench-gpu",
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    values = [cell.strip() for cell in measured.stdout.splitlines()[-1].strip("|").split("|")]
    assert values[:3] == ["resnet18", "16", "64"]
    rate, bare, ratio = map(float, values[3:6])
    assert min(rate, bare) > 0 and ratio == pytest.approx(rate / bare, rel=0.02)
    assert "" not in values[6:12]
