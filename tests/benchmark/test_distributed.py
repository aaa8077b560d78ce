"""Several processes train as one does: gloo on CPUs, started as torchrun starts them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from regbench import RegbenchError
from regbench.benchmark.checkpoint import load_checkpoint
from regbench.benchmark.config import load_run
from regbench.benchmark.directory import read_record, run_directory
from regbench.benchmark.distributed import environment_ranks
from regbench.benchmark.run import resolve, run_cell
from tests.conftest import TINY
from tests.history import history

# Steps of one batch each, so that an epoch's row is a step's. At this low rate twenty of them are not yet chaotic.
STEPS = (
    *("precision=fp32", "batch_size=120", "optimizer.warmup_epochs=2", "optimizer.base_lr=0.005", "method=vicreg"),
    *("evaluation.probe.epochs=1", "runtime.checkpoint_epochs=9"),
)
CASES = {
    "plain": ("epochs=20",),
    "sharded": ("epochs=5", "runtime.shard_optimizer=true"),
    "micro": ("epochs=5", "micro_batch_size=40"),
    "random": ("epochs=5", "method=sigreg", "method.directions=8"),
    "bf16": ("epochs=5", "precision=bf16"),
}
DRIVER = """
import json, logging, os, sys
from regbench.benchmark.config import load_run
from regbench.benchmark.run import resolve, run_cell
logging.basicConfig(level=logging.INFO)
for name, overrides in json.loads(sys.argv[1]).items():
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)  # the first rank may still hold the last one
    cell, runtime = load_run(overrides)
    run_cell(cell, runtime, name)
"""


def launch(size: int, code: str, *arguments: str) -> list[subprocess.CompletedProcess[str]]:
    """Runs code in `size` processes with the environment that torchrun gives them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for rank in range(size):
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        environment = {**os.environ, **{name: str(value) for name, value in ranks.items()}}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "error::FutureWarning:regbench", "-c", code, *arguments]
        processes.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    try:
        return [
            subprocess.CompletedProcess(process.args, process.wait(), *process.communicate(timeout=300))
            for process in processes
        ]
    finally:
        for process in processes:
            process.kill()


def rows_of(tiny: list[str], name: str) -> list[dict[str, Any]]:
    cell, runtime = load_run([*tiny, *STEPS, *CASES[name]])
    record = read_record(run_directory(runtime, name, cell))
    assert record is not None
    return history(record)


@pytest.fixture(scope="module")
def one(tiny_data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Overrides for what one process runs."""
    folder = tmp_path_factory.mktemp("one")
    return [*TINY, f"runtime.data_dir={tiny_data_dir}", f"runtime.runs_dir={folder}"]


@pytest.mark.parametrize(
    ("size", "names"),
    [
        (2, ["plain", "sharded", "micro"]),
        pytest.param(2, ["random", "bf16"], marks=pytest.mark.slow),
        pytest.param(4, list(CASES), marks=pytest.mark.slow),
    ],
)
def test_processes_train_as_one_does(one: list[str], tiny: list[str], size: int, names: list[str]) -> None:
    cases = {name: [*tiny, *STEPS, *CASES[name]] for name in names}
    for process in launch(size, DRIVER, json.dumps(cases)):
        assert process.returncode == 0, process.stderr
    for name in names:
        cell, runtime = load_run([*one, *STEPS, *CASES[name]])
        run_cell(cell, runtime, name)  # unless an earlier test did
        rows, expected = rows_of(tiny, name), rows_of(one, name)
        # bf16 rounds what is summed in another order; float32 does so ten thousand times less, and training amplifies.
        early, late = (1e-2, 1e-2) if name == "bf16" else (2e-6, 1e-4)
        for key in ("loss", "alignment", "uniformity", "effective_rank", "feature_spread", "learning_rate"):
            for number, (row, other) in enumerate(zip(rows, expected, strict=True)):
                rel = early if number < 3 else late
                assert row[key] == pytest.approx(other[key], rel=rel), (name, key, number)
        assert rows[-1]["loss"] != pytest.approx(rows[0]["loss"], rel=1e-4)


def test_a_batch_that_cannot_be_shared_is_refused(tiny: list[str]) -> None:
    for process in launch(2, DRIVER, json.dumps({"odd": [*tiny, "batch_size=33", "method=vicreg"]})):
        assert process.returncode == 1
        assert "batch_size=33 cannot be shared equally between 2 processes" in process.stderr


@pytest.mark.slow
def test_a_checkpoint_serves_any_number_of_processes(tiny: list[str]) -> None:
    """Two processes with shared momentum stop half-way; one goes on."""
    overrides = [*tiny, *STEPS, "epochs=6", "runtime.checkpoint_epochs=3", "runtime.shard_optimizer=true"]
    cell, runtime = load_run(overrides)
    code = DRIVER.replace(
        "for name",
        "from regbench.benchmark import train\n"
        "save = train._Training._checkpoint\n"
        "def stop(self):\n    save(self)\n    raise SystemExit\n"
        "train._Training._checkpoint = stop\n"
        "for name",
        1,
    )
    launch(2, code, json.dumps({"here": overrides}))
    directory = run_directory(runtime, "here", cell)
    state = load_checkpoint(directory)
    assert state is not None
    assert state["progress"]["step"] == 3
    resumed = run_cell(cell, runtime, "here")
    undisturbed = run_cell(cell, runtime, "undisturbed")
    assert resumed is not None
    assert undisturbed is not None
    assert [attempt["from_step"] for attempt in resumed["attempts"]] == [None, 3]
    losses = [[row["loss"] for row in history(record)] for record in (resumed, undisturbed)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_a_launcher_that_says_half_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(RegbenchError, match="LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set"):
        environment_ranks()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert environment_ranks() == (0, 1, 0, 1)


def test_the_processes_of_a_machine_share_its_cores(tiny: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = {"RANK": 5, "WORLD_SIZE": 8, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 4}
    for name, value in {**ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
    for given, expected in ((0, 3), (2, 2)):
        resolve(load_run([*tiny, f"runtime.threads={given}"])[1])
        assert torch.get_num_threads() == expected


def test_synchronised_bn_is_bn_over_all_rows() -> None:
    """Value, both gradients and running statistics, with unequal shares of the batch, in float32."""
    code = """
import os, sys, torch
import torch.distributed as dist
from torch import nn
from regbench.benchmark.distributed import connect, synchronize_batch_norm
cpu = torch.device("cpu")
generator = torch.Generator().manual_seed(0)
x = torch.randn(7, 4, 3, 3, generator=generator) * 3 + 1
weights = torch.randn(7, 4, 3, 3, generator=generator)
def run(network, x, weights):
    x = x.clone().requires_grad_()
    (network(x) * weights).sum().backward()
    return x.grad
whole = nn.Sequential(nn.BatchNorm2d(4))
expected = run(whole, x, weights)
with connect(cpu) as world:
    network = nn.Sequential(nn.BatchNorm2d(4))
    synchronize_batch_norm(network, world, cpu)
    assert network.state_dict().keys() == whole.state_dict().keys()
    rows = slice(0, 5) if world.rank == 0 else slice(5, 7)
    close = lambda a, b: torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    close(run(network, x[rows], weights[rows]), expected[rows])
    for mine, theirs in zip(network.parameters(), whole.parameters()):
        dist.all_reduce(mine.grad)
        close(mine.grad, theirs.grad)
    for mine, theirs in zip(network.buffers(), whole.buffers()):
        close(mine, theirs)
    network.eval(), whole.eval()
    close(network(x), whole(x))
"""
    for process in launch(2, code):
        assert process.returncode == 0, process.stderr
