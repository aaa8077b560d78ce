"""A process that is in an epoch of a loader can end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PATIENCE_S

ITERATE = """
import sys, torch
from pathlib import Path
from regbench.datasets.config import AugmentationConfig, DatasetConfig
from regbench.datasets.sources.base import SOURCES
from regbench.datasets.loading.loaders import PretrainingLoader
if __name__ == "__main__":
    dataset = DatasetConfig(name="fashion", source=SOURCES.build("fashion_mnist", published=False), image_size=28,
                            channels=1, mean=(0.5,), std=(0.5,), num_classes=10, eval_resize=28)
    loader = PretrainingLoader(dataset, AugmentationConfig(), data_dir=Path(sys.argv[1]), batch_size=4, seed=0,
                               device=torch.device("cpu"), backend=sys.argv[2], workers=2)
    for e in range(10**6):
        for _ in loader.epoch(e):
            print(sys.modules["numba"].threading_layer() if sys.argv[2] == "ffcv" else "none", flush=True)
"""


@pytest.mark.parametrize("backend", ["ffcv", pytest.param("torchvision", marks=pytest.mark.slow)])
def test_ctrl_c_ends_a_process_in_its_epoch(data_dir: Path, backend: str) -> None:
    if backend == "ffcv":
        pytest.importorskip("ffcv")
    command = [sys.executable, "-c", ITERATE, str(data_dir), backend]
    environment = os.environ | {"NUMBA_NUM_THREADS": "2"}  # also on a machine with one core
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, **pipes, env=environment, start_new_session=True)
    try:
        assert process.stdout is not None
        # With TBB, which numba prefers where the system has it, some processes waited for ever at
        # their exit.
        assert process.stdout.readline() == (b"workqueue\n" if backend == "ffcv" else b"none\n")
        # As a terminal does: to all processes of the group.
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert b"KeyboardInterrupt" in errors
    assert process.returncode != 0
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


GPUS_ARE_LEFT_ALONE = """
import torch
def refuse(*_, **__):
    raise AssertionError("CUDA is used")
torch.cuda.is_available = lambda: True
torch.cuda.Stream = torch.cuda.current_stream = torch.cuda.Event = torch.cuda._lazy_init = refuse
"""


FORK = """
import os, torch, regbench.sweeps.preload
child = os.fork()
if not child:
    os._exit(torch.cuda._is_in_bad_fork())
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_runs_forked_after_the_preload_can_use_a_gpu() -> None:
    """FFCV asks torch whether there is one, after which torch lets no forked process use it."""
    pytest.importorskip("ffcv")
    done = subprocess.run([sys.executable, "-c", FORK], timeout=PATIENCE_S)
    assert done.returncode == 0


def test_ffcv_on_a_machine_with_gpus_leaves_them_alone(data_dir: Path) -> None:
    """Its iterator would make a context on the first of them, even of a loader for the CPU."""
    pytest.importorskip("ffcv")
    once = ITERATE.replace("range(10**6)", "range(1)")
    command = [sys.executable, "-c", GPUS_ARE_LEFT_ALONE + once, str(data_dir), "ffcv"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert "workqueue" in done.stdout
