"""A cluster for the tests marked `slurm`."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.standin import Standin
from tests.slurm.testbed import Testbed, missing
from tests.waiting import PATIENCE_S


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[Testbed]:
    """A started cluster; a test that leaves something behind takes `slurm` instead."""
    in_ci = bool(os.environ.get("CI"))
    absent = missing()
    if absent:
        reason = f"Slurm is not installed: no {', '.join(absent)}"
        pytest.fail(reason) if in_ci else pytest.skip(reason)
    # The paths of sockets are limited to 107 characters; tmp_path may take most of that.
    directory = Path(tempfile.mkdtemp(prefix="regbench-slurm-"))
    # A disk to be filled. The nodes see what is mounted before they start.
    small = directory / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(small)]
    is_root = os.geteuid() == 0
    mounted = is_root and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        with Testbed(directory) as cluster:
            yield cluster
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(small)], check=True)
        shutil.rmtree(directory)


@pytest.fixture
def slurm(slurm_cluster: Testbed, monkeypatch: pytest.MonkeyPatch) -> Iterator[Testbed]:
    """The cluster, with all daemons up and without jobs; so it is left behind too.

    This process may give it commands.
    """
    for name, value in slurm_cluster.env().items():
        monkeypatch.setenv(name, value)
    yield slurm_cluster
    slurm_cluster.clean()


@pytest.fixture
def standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Standin:
    """Stand-ins for Slurm's commands, where every process of the test finds them."""
    made = Standin(tmp_path / "slurm")
    monkeypatch.setenv("PATH", os.pathsep.join([str(made.folder), os.environ["PATH"]]))
    # on a busy machine one may take longer
    monkeypatch.setattr("regbench.slurm.queue._TIMEOUT_S", PATIENCE_S)
    return made


@pytest.fixture
def cluster(slurm: Testbed, program: str, tiny: list[str], tmp_path: Path) -> Cluster:
    return Cluster(slurm, program, tiny, tmp_path)


@pytest.fixture
def small(slurm_cluster: Testbed) -> Iterator[Path]:
    """A disk of a few megabytes that the nodes see.

    They only see what was mounted before they started.
    """
    path = slurm_cluster.directory / "small"
    if not path.is_mount():
        pytest.skip("mounting a small disk takes root")
    subprocess.run(["mount", "-o", "remount,size=7m", str(path)], check=True)
    yield path
    for left in path.iterdir():
        shutil.rmtree(left) if left.is_dir() else left.unlink()
