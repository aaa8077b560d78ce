"""What the documents show works."""

from __future__ import annotations

import importlib
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image

from regbench import methods
from regbench.benchmark.conformance import check_names, run_check
from regbench.benchmark.settings.sweep import load_sweep
from regbench.cli import main
from regbench.slurm.search import propose
from tests.plugin import install
from tests.ranks import launch

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = (
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"),
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
)


def blocks(document: str, language: str) -> list[str]:
    """The fenced code blocks of a document in one language ("" for none)."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / document).read_text(), re.DOTALL | re.MULTILINE)


def contributed(start: str) -> str:
    """The example of CONTRIBUTING.md whose docstring begins so."""
    (example,) = (block for block in blocks("CONTRIBUTING.md", "python") if block.startswith(f'"""{start}'))
    return example


def test_snippets_run() -> None:
    (readme,), (page, _) = blocks("README.md", "python"), blocks("docs/python.md", "python")
    for snippet in (readme, page):
        names: dict[str, Any] = {}
        exec(snippet, names)
        assert names["loss"].ndim == 0
        torch.testing.assert_close(names["loss"], sum(names["sfrik"](names["z1"], names["z2"]).terms.values()))


def test_the_distributed_example_gives_one_processs_losses_and_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On two processes too; nothing of it warns."""
    _, example = blocks("docs/python.md", "python")
    end = "dist.destroy_process_group()\n"
    assert example.endswith(end)
    save = f"torch.save(network.module.state_dict(), sys.argv[1] + f'/{{world}}-{{rank}}.pt')\n{end}"
    code = f"import sys\n{example.removesuffix(end)}{save}"
    first, other = launch(2, code, str(tmp_path))
    for process in (first, other):
        assert process.returncode == 0, process.stderr
        assert "Warning" not in process.stderr
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path)])
    exec(code, {"__name__": "example"})
    losses = first.stdout, capsys.readouterr().out
    shared, alone = ([float(line.split()[-1]) for line in text.splitlines()] for text in losses)
    assert len(alone) == 5
    assert alone[-1] < alone[0]
    assert shared == pytest.approx(alone, rel=1e-5)
    weights, *others = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("1-0", "2-0", "2-1"))
    for other in others:
        torch.testing.assert_close(other, weights, rtol=1e-4, atol=1e-6)


def test_contributing_example_is_a_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = contributed("The inverse multiquadric kernel")
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


PREPARE_CSV = """
import sys
from regbench.benchmark.settings.sweep import load_run
from regbench.cli import main
from regbench.datasets.manifest import Manifest
from pathlib import Path
data_dir, folder = Path(sys.argv[1]), sys.argv[2]
settings = ["dataset.source.resize_px=8", f"runtime.data_dir={data_dir}"]
main(["prepare", "plants", "--source-dir", folder, *settings], standalone_mode=False)
splits = Manifest.load(data_dir, "plants").splits
assert {name: split["counts_per_class"] for name, split in splits.items()} == {"train": [2, 2], "test": [1, 1]}
cell, _ = load_run(["dataset=plants", *settings])
assert cell.plain()["dataset"]["source"]["table"] == "images.csv"
assert (cell.dataset.num_classes, cell.dataset.image_size, cell.dataset.channels) == (2, 8, 3)
Path(folder, "fern0.png").unlink()
main(["prepare", "plants", "--source-dir", folder, *settings, "--force"])
"""


def test_contributing_example_is_a_data_source(tmp_path: Path) -> None:
    """Found in another distribution; its preset is the user's."""
    presets = tmp_path / "config" / "regbench" / "dataset"
    presets.mkdir(parents=True)
    (presets / "plants.yaml").write_text(blocks("CONTRIBUTING.md", "yaml")[0])
    folder = tmp_path / "plants"
    folder.mkdir()
    rows = [(f"{name}{i}.png", name, "test" if i == 2 else "train") for name in ("moss", "fern") for i in range(3)]
    (folder / "images.csv").write_text("\n".join(",".join(row) for row in [("file", "class", "split"), *rows]))
    for number, (file, _, _) in enumerate(rows):
        Image.new("RGB", (9, 9), (20 * number, 90, 90)).save(folder / file)
    path = install(tmp_path, "csv_images", contributed("Images that a table lists"), "regbench.sources")
    environment = {**os.environ, "PYTHONPATH": path, "XDG_CONFIG_HOME": str(tmp_path / "config")}
    arguments = [sys.executable, "-c", PREPARE_CSV, str(tmp_path / "data"), str(folder)]
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2, done.stderr
    wanted = "images.csv, with the columns file, class and split (train, tuning or test), and these files"
    line = done.stderr.splitlines()[-1]
    assert line.endswith(f"fern0.png is missing; mend it, or give another folder, with {wanted}")


@pytest.mark.parametrize(
    ("start", "lines"), [("The inverse multiquadric kernel", 25), ("Images that a table lists", 60)]
)
def test_contributing_examples_are_short(start: str, lines: int) -> None:
    code = re.sub(r'""".*?"""', "", contributed(start), flags=re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= lines


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
    grid, complete = propose(str(path), ["epochs=1", "optimizer.warmup_epochs=0", f"runtime.runs_dir={tmp_path}"], 2)
    assert ([cell.label for cell in grid.cells], complete) == (["SFRIK (L=2)", "SFRIK (L=3)", "VICReg"], False)
    assert load_sweep(str(path), ["method.alignment_weight=1", "optimizer.base_lr=1"]).final_seeds == (0, 1, 2)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    named = set(re.findall(r"^regbench ([\w-]+)", "\n".join(blocks(document, "")), re.MULTILINE))
    named |= set(re.findall(r"`regbench ([\w-]+)[^`]*`", text))
    assert named <= set(main.commands)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make ([a-z-]+)", "\n".join(blocks(document, "")), re.MULTILINE)) <= targets


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    for target in re.findall(r"\]\((?!https?://)([^)#]+)\)", (ROOT / document).read_text()):
        assert ((ROOT / document).parent / target).exists(), target
