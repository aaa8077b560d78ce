"""The walk-through's plug-ins, each installed as a wheel of its own: together they make a run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from regbench.benchmark.evaluate.base import EVALUATIONS
from regbench.benchmark.settings.listing import listing
from regbench.benchmark.settings.sweep import load_run
from regbench.cli import main
from tests.plugin import install
from tests.test_documentation import blocks

GROUPS = {"ncm": "regbench.evaluations", "convnet": "regbench.backbones", "adamw": "regbench.optimizers"}
LONGEST = {"imq": 25, "ncm": 60, "convnet": 20, "adamw": 20}


def examples() -> dict[str, str]:
    """The code blocks of the walk-through, by the name that they register."""
    found = {}
    for block in blocks("CONTRIBUTING.md", "python"):
        if match := re.search(r'^@register\("(\w+)"\)', block, re.MULTILINE):
            found[match[1]] = block
    return found


@pytest.mark.parametrize("name", LONGEST)
def test_an_example_is_short(name: str) -> None:
    code = re.sub(r'""".*?"""', "", examples()[name], flags=re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= LONGEST[name]


def test_plug_ins_of_other_wheels_make_a_run(tiny: list[str], tmp_path: Path) -> None:
    code, environment = examples(), dict(os.environ)
    for name, group in GROUPS.items():
        environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path / name), environment.get("PYTHONPATH", "")])
        install(tmp_path / name, f"{name}_plugin", code[name], group)
    chosen = ["method=vicreg", "network.backbone=convnet", "network.backbone.width=24", "optimizer=adamw"]
    chosen += [
        "optimizer.base_lr=0.01",
        "evaluation.protocols=[ncm,retrieval]",
        f"runtime.runs_dir={tmp_path / 'runs'}",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "regbench", "train", *tiny, *chosen], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "runs").glob("*/*/record.json")
    record = json.loads(path.read_bytes())
    assert record["cell"]["network"]["backbone"] == {"name": "convnet", "width": 24}
    assert (record["cell"]["optimizer"]["name"], record["cell"]["optimizer"]["weight_decay"]) == ("adamw", 0.05)
    scores = {score["name"]: score for score in record["scores"]}
    assert set(scores) == {*("knn_top1", "knn_top5", "ncm_top1", "ncm_top5"), "retrieval_recall1", "retrieval_recall10"}
    assert scores["ncm_top1"]["title"] == "nearest class mean top-1"
    assert scores["ncm_top1"]["value"] > 40  # of three classes
    assert 0 < scores["retrieval_recall1"]["value"] <= scores["retrieval_recall10"]["value"] <= 100


def test_every_setting_of_a_cell_is_listed_with_its_meaning() -> None:
    listed = {setting.name: setting for _, found in listing() for setting in found}
    names = {*(f"evaluation.{name}" for name in EVALUATIONS.names()), "method"}
    cell, _ = load_run([f"evaluation.protocols=[{','.join(EVALUATIONS.names())}]"])

    def leaves(node: object, path: str) -> list[str]:
        if not isinstance(node, dict) or (path in names and not node):
            return [path]
        return [leaf for key, value in node.items() for leaf in leaves(value, f"{path}.{key}" if path else key)]

    plain = cell.plain()
    del plain["method"]
    of_plug_ins = {"optimizer.name", "network.backbone.name", "dataset.source.name"}
    wanted = {leaf for leaf in leaves(plain, "") if leaf not in of_plug_ins and ".dataset." not in leaf}
    assert wanted <= set(listed)
    assert all(setting.meaning and setting.kind for setting in listed.values())
    assert listed["evaluation.places205.epochs"].default == "28"
    assert CliRunner().invoke(main, ["settings", "runtime.lease"]).output.split()[:4] == [
        *("runtime", "runtime.lease_s", "=", "60.0"),
    ]
    assert CliRunner().invoke(main, ["settings", "nothing"]).exit_code == 2
