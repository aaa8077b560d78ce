"""The bundles of results that come with the project fit this version of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from regbench.cli import main

RESULTS = Path(__file__).resolve().parents[1] / "results"
BUNDLES = sorted(path.name for path in RESULTS.glob("*.zip"))


def test_the_list_names_each_bundle() -> None:
    lines = (RESULTS / "README.md").read_text().splitlines()
    assert [line.split("`")[1] for line in lines if line.startswith("| `")] == BUNDLES


@pytest.mark.slow
@pytest.mark.parametrize("name", BUNDLES)
def test_bundles_check_out(name: str) -> None:
    done = CliRunner().invoke(main, ["verify", str(RESULTS / name)])
    assert (done.exit_code, "check out" in done.output) == (0, True), done.output
