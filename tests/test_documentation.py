"""What the documents show works."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from regbench.benchmark.config import load_sweep
from regbench.cli import main

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")


def blocks(document: str, language: str) -> list[str]:
    """The fenced code blocks of a document in one language ("" for none)."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / document).read_text(), re.DOTALL | re.MULTILINE)


def test_readme_snippet_runs() -> None:
    (snippet,) = blocks("README.md", "python")
    code = snippet + "\nassert loss.ndim == 0\ntorch.testing.assert_close(loss, sum(sfrik(z1, z2).terms.values()))\n"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_contributing_example_is_a_method(tmp_path: Path) -> None:
    (example,) = blocks("CONTRIBUTING.md", "python")
    (tmp_path / "imq.py").write_text(example)
    check = """
import imq, torch
from regbench import methods
assert "imq" in methods.names()
method = methods.build("imq", alignment_weight=0.0, offset=0.5)
z = torch.randn(2, 7, 5, dtype=torch.float64, requires_grad=True)
u = torch.nn.functional.normalize(z, dim=2)
expected = 0.5 * sum((0.5 + torch.cdist(view, view).square()).rsqrt().sum() for view in u) / 49
torch.testing.assert_close(method.loss(*z), expected, rtol=1e-12, atol=0)
assert torch.autograd.gradcheck(lambda x: methods.build("imq").loss(*x), z)
from regbench.benchmark.check import check_names, run_check
for name in check_names():
    finding = run_check(method, name)
    assert finding is None or finding.ok, finding
"""
    subprocess.run([sys.executable, "-c", check], cwd=tmp_path, check=True)


def test_contributing_example_is_short() -> None:
    (example,) = blocks("CONTRIBUTING.md", "python")
    code = re.sub(r'""".*?"""', "", example, flags=re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 25


def test_contributing_sweep_loads(tmp_path: Path) -> None:
    (sweep,) = blocks("CONTRIBUTING.md", "yaml")
    path = tmp_path / "sweep.yaml"
    path.write_text(sweep)
    assert len(load_sweep(str(path)).cells) == 3 * (2 * 2 + 2)
    assert yaml.safe_load(sweep)["description"]


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
        assert (ROOT / target).exists(), target
