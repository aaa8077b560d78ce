"""What the documents show works."""

from __future__ import annotations

import importlib
import re
import socket
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import regbench
from regbench import methods
from regbench.benchmark.conformance import check_names, run_check
from regbench.benchmark.settings.sweep import load_sweep, read_rows
from regbench.cli import main
from regbench.slurm.search import propose
from tests.ranks import launch

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = (
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"),
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
)


def blocks(document: str, language: str) -> list[str]:
    """The fenced code blocks of a document in one language ("" for none)."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / document).read_text(), re.DOTALL | re.MULTILINE)


def test_snippets_run() -> None:
    (readme,), (_, page, _) = blocks("README.md", "python"), blocks("docs/python.md", "python")
    for snippet in (readme, page):
        names: dict[str, Any] = {}
        exec(snippet, names)
        assert names["loss"].ndim == 0
        torch.testing.assert_close(names["loss"], sum(names["sfrik"](names["z1"], names["z2"]).terms.values()))


@pytest.mark.slow
def test_the_snippet_of_the_commands_runs(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train, sweep = regbench.train, regbench.sweep
    monkeypatch.setattr(regbench, "train", lambda overrides, **more: train([*tiny, *overrides], **more))
    monkeypatch.setattr(regbench, "sweep", lambda name, **more: sweep(name, tiny, **more))
    monkeypatch.setenv("REGBENCH_RUNS_DIR", str(tmp_path / "runs"))
    snippet, *_ = blocks("docs/python.md", "python")
    names: dict[str, Any] = {}
    exec(snippet, names)
    assert len(names["frame"]["cell_id"].unique()) == 2
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "runs" / "losses" / "report" / "index.html")


@pytest.fixture
def one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[float]:
    """The losses of the distributed example on one process, which leaves its weights in `1-0.pt`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path)])
    exec(distributed_example(), {"__name__": "example"})
    return [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]


def distributed_example() -> str:
    """The code of docs/python.md, which saves its weights too."""
    *_, example = blocks("docs/python.md", "python")
    end = "dist.destroy_process_group()\n"
    assert example.endswith(end)
    save = f"torch.save(network.module.state_dict(), sys.argv[1] + f'/{{world}}-{{rank}}.pt')\n{end}"
    return f"import sys\n{example.removesuffix(end)}{save}"


def test_the_distributed_example_lowers_its_loss(one_process: list[float]) -> None:
    assert len(one_process) == 5
    assert one_process[-1] < one_process[0]


@pytest.mark.slow
def test_the_distributed_example_gives_the_same_on_two_processes(one_process: list[float], tmp_path: Path) -> None:
    processes = launch(2, distributed_example(), str(tmp_path))
    for process in processes:
        assert process.returncode == 0, process.stderr
        assert "Warning" not in process.stderr
    shared = [float(line.split()[-1]) for line in processes[0].stdout.splitlines()]
    assert shared == pytest.approx(one_process, rel=1e-5)
    weights, *others = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("1-0", "2-0", "2-1"))
    for other in others:
        torch.testing.assert_close(other, weights, rtol=1e-4, atol=1e-6)


def test_contributing_example_is_a_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = (block for block in blocks("CONTRIBUTING.md", "python") if '@register("imq")' in block)
    (tmp_path / "imq.py").write_text(example)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("imq")
    try:
        method = methods.build("imq", alignment_weight=0.0, offset=0.5)
        z = torch.randn(2, 7, 5, dtype=torch.float64, requires_grad=True)
        u = torch.nn.functional.normalize(z, dim=2)
        expected = 0.5 * sum((0.5 + torch.cdist(view, view).square()).rsqrt().sum() for view in u) / 49
        torch.testing.assert_close(method.loss(z[0], z[1]), expected, rtol=1e-12, atol=0)
        assert torch.autograd.gradcheck(lambda x: methods.build("imq").loss(*x), z)
        for name in check_names():
            finding = run_check(method, name)
            assert finding is None or finding.ok, finding
    finally:
        methods.METHODS.unregister("imq")
        del sys.modules["imq"]


def test_contributing_sweep_loads(tmp_path: Path) -> None:
    sweep = blocks("CONTRIBUTING.md", "yaml")[-1]
    path = tmp_path / "sweep.yaml"
    path.write_text(sweep)
    assert len(load_sweep(str(path)).cells) == 3 * (2 * 2 + 2)
    assert yaml.safe_load(sweep)["description"]


def test_the_search_space_of_the_tunings_page_is_one(tmp_path: Path) -> None:
    (sweep,) = blocks("docs/tuning.md", "yaml")
    path = tmp_path / "space.yaml"
    path.write_text(sweep)
    proposed = propose(str(path), [f"runtime.runs_dir={tmp_path}"], read_rows(str(path), []).trials or 0)
    labels = Counter(cell.label for cell in proposed.sweep.cells)
    assert (labels, proposed.complete) == ({"SFRIK (L=2)": 8, "SFRIK (L=3)": 8, "VICReg": 8}, False)
    assert len({cell.optimizer.base_lr for cell in proposed.sweep.cells}) == 8
    assert proposed.sweep.final_seeds == (0, 1, 2)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_exist_and_links_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text()
    named = set(re.findall(r"^regbench ([\w-]+)", "\n".join(blocks(document, "")), re.MULTILINE))
    named |= set(re.findall(r"`regbench ([\w-]+)[^`]*`", text))
    assert named <= set(main.commands)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make ([a-z-]+)", "\n".join(blocks(document, "")), re.MULTILINE)) <= targets
    for target in re.findall(r"\]\((?!https?://)([^)#]+)\)", (ROOT / document).read_text()):
        assert ((ROOT / document).parent / target).exists(), target
