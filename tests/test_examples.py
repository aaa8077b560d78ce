"""Every file of examples/ runs."""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import torch

import regbench
from tests.ranks import as_one_process, launch

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs an example; returns what it prints."""

    def run(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def losses(output: str) -> list[float]:
    """The losses of the lines `step …: …`."""
    return [float(value) for value in re.findall(r"^step \d+: ([-\d.]+)", output, re.MULTILINE)]


def test_the_list_names_every_example_once() -> None:
    files = sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb"))
    text = (EXAMPLES / "README.md").read_text()
    assert sorted(re.findall(r"^\| \[(\S+)\]\(\1\)", text, re.MULTILINE)) == files


def test_the_plain_loop_lowers_its_loss(run: Callable[..., str]) -> None:
    found = losses(run("plain_loop.py"))
    assert len(found) == 5
    assert found[-1] < found[0]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, run: Callable[..., str]) -> list[float]:
    """The losses of DDP on one process."""
    as_one_process(monkeypatch)
    return losses(run("ddp.py"))


def test_ddp_on_one_process(alone: list[float]) -> None:
    assert alone[-1] < alone[0]


@pytest.mark.slow
def test_ddp_gives_the_same_losses_on_two_processes(alone: list[float]) -> None:
    processes = launch(2, (EXAMPLES / "ddp.py").read_text())
    for process in processes:
        assert process.returncode == 0, process.stderr
        assert "Warning" not in process.stderr
    assert losses(processes[0].stdout) == pytest.approx(alone, rel=1e-5)


@pytest.mark.slow  # to import Lightning takes seconds
@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_the_training_step_of_lightning(run: Callable[..., str]) -> None:
    pytest.importorskip("pytorch_lightning")
    assert re.search(r"loss after 3 epochs: \d+\.\d{4}\n$", run("lightning_step.py"))


def test_the_training_step_without_lightning_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, run: Callable[..., str]
) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_lightning", None)
    with pytest.raises(SystemExit, match="pip install pytorch-lightning"):
        run("lightning_step.py")


def test_the_sweep_and_its_records(
    tiny: list[str], tmp_path: Path, run: Callable[..., str]
) -> None:
    quick = [*tiny, "epochs=0", "evaluation.protocols=[knn]"]
    for seed in (0, 1):  # the sweep leaves alone what is finished, and starts no process
        regbench.train(quick, seed=seed, name="losses")
    output = run("run_sweep.py", *quick, "seed=0,1")
    folder = tmp_path / "runs" / "losses"
    assert f"report: {folder / 'report' / 'index.html'}" in output
    assert re.search(r"untrained +knn_top1 +[\d.]+ +[\d.]+ +2", output)
    assert "2 cells with " in run("read_records.py", str(folder))


def test_the_notebook_runs_from_its_first_cell_to_its_last(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    matplotlib.use("agg")
    torch.set_num_threads(1)
    shown: list[bool] = []
    monkeypatch.setattr("matplotlib.pyplot.show", lambda: shown.append(True))
    notebook = json.loads((EXAMPLES / "compare_losses.ipynb").read_text())
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        assert not cell.get("outputs")  # a notebook is kept without what it printed
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert shown == [True]
    assert "VICReg" in capsys.readouterr().out
    for curve in names["ranks"].values():
        assert 1 < curve[-1] <= 16
