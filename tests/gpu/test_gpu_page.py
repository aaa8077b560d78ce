"""The page of a GPU's measurements, on a CPU and on small sizes."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from regbench import RegbenchError
from regbench.benchmark.machine.description import environment
from regbench.instruments.gpu import ALL, Bench, write_page


@pytest.mark.slow
@pytest.mark.parametrize("title", ALL)
def test_every_part_measures_on_a_cpu(title: str, tmp_path: Path) -> None:
    assert write_page(torch.device("cpu"), tmp_path, {title: ALL[title]}), (
        tmp_path / "gpu.md"
    ).read_text()
    assert f"## {title}" in (tmp_path / "gpu.md").read_text()


def test_the_page_goes_on_after_what_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # torch's default

    def breaks(bench: Bench) -> NoReturn:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    def refuses(bench: Bench) -> NoReturn:
        raise RegbenchError("nothing fits")

    def measures(bench: Bench) -> str:
        assert bench.small and not environment(bench.device)["tf32"]
        return "| a | b |"

    parts = {"Breaks": breaks, "Refuses": refuses, "Measures": measures}
    assert not write_page(torch.device("cpu"), tmp_path, parts)
    page = (tmp_path / "gpu.md").read_text()
    assert "## Breaks\n\n**Failed: rank 0 was ended by signal 9**" in page
    assert "## Refuses\n\n**Failed: nothing fits**" in page
    assert "## Measures\n\n| a | b |" in page
    assert "- tf32: False" in page
    assert "hostname" not in page and f"torch: {torch.__version__.partition('+')[0]}" in page


def test_calls_for_single_parts_come_together_on_a_page_of_one_machine(tmp_path: Path) -> None:
    here = torch.device("cpu")

    assert write_page(
        here, tmp_path, {"One": partial(say, "first\n\n### below"), "Two": partial(say, "second")}
    )
    assert write_page(here, tmp_path, {"Two": partial(say, "second again")})
    page = (tmp_path / "gpu.md").read_text()
    assert page.endswith("\n## One\n\nfirst\n\n### below\n\n## Two\n\nsecond again\n")
    assert page.count("## Two") == 1

    (tmp_path / "gpu.md").write_text(page.replace("- torch: ", "- torch: another "))
    assert write_page(here, tmp_path, {"Two": partial(say, "elsewhere")})
    assert "first" not in (tmp_path / "gpu.md").read_text()


def say(text: str, bench: Bench) -> str:
    return text
