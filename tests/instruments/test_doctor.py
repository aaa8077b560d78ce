"""The examination of a machine, on a CPU and on small sizes."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from regbench import RegbenchError, methods
from regbench.cli import main
from regbench.instruments.doctor import checks, section
from regbench.instruments.doctor.examination import examine
from regbench.instruments.doctor.section import Bench, Outcome, Section
from regbench.methods import Regularizer


def told(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["doctor", *arguments])
    return result.exit_code, result.output


def test_the_inventory_names_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("REGBENCH_DATA_DIR", str(tmp_path / "data"))
    code, text = told()
    assert code == 0
    assert "sbatch is not on the PATH" in text
    assert "regbench prepare fashion_mnist" in text
    (tmp_path / "data" / "digits").mkdir(parents=True)
    (tmp_path / "data" / "digits" / "manifest.json").touch()
    (tmp_path / "sbatch").touch(mode=0o755)
    code, text = told()
    assert "digits" in text and "regbench prepare fashion_mnist" not in text
    assert str(tmp_path / "sbatch") in text


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert told("losses") == (2, "regbench: sections are of the examination of a GPU; add --gpu\n")
    code, text = told("--gpu", "--out", str(tmp_path))
    assert code == 2 and "torch sees no GPU here; try it on small sizes" in text
    with pytest.raises(RegbenchError, match="unknown section 'loses'; choose losses, step, waiting, photometry"):
        examine("cpu", tmp_path, small=True, names=["loses"])


def test_the_report_of_some_sections(tmp_path: Path) -> None:
    code, text = told("--gpu", "--device", "cpu", "--out", str(tmp_path), "photometry")
    assert code == 0, text
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert [each["name"] for each in report["sections"]] == ["photometry"]
    assert all(each["ok"] for each in report["sections"])
    assert torch.__version__.startswith(report["machine"]["torch"].partition("+")[0])
    page = (tmp_path / "gpu.md").read_text()
    assert "1 of 1 sections hold." in page and "figures say that everything runs, not how fast" in page
    assert "16 images of 32 px: 0.0e+00 of the values differ" in page


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["losses", "step", "waiting", "plan", "resume", "ranks", "cost", "training", "loaders"]
)
def test_every_other_section_holds_on_a_cpu(name: str, tmp_path: Path) -> None:
    (examined,) = examine("cpu", tmp_path, small=True, names=[name])
    assert examined.outcome.failures == []


@pytest.mark.slow
def test_a_training_and_the_bare_loop_have_as_many_threads(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        outcome = section.SECTIONS["training"].work(Bench(torch.device("cpu"), small=True, folder=tmp_path))
    finally:
        torch.set_num_threads(before)
    training, bare = re.findall(r"(?:Threads|the bare loop): (\d+)", " ".join(outcome.notes))
    assert training == bare != "3"


def test_forms_that_are_wrong_on_the_device_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(Regularizer):
        """A loss of which the device computes a hundredth too much, of local views only."""

        metadata = methods.build("vicreg").metadata
        forms = ("textbook", "gram")

        def terms(self, z1: Tensor, z2: Tensor) -> dict[str, Tensor]:
            return {"loss": (z1 - z2).square().mean()}

        def view_terms(self, views: Sequence[Tensor], global_views: int) -> dict[str, Tensor]:
            wrong = views[0].dtype == torch.float32 and global_views < len(views)
            return {"loss": super().view_terms(views, global_views)["loss"] * (1.01 if wrong else 1.0)}

    class NotANumber(Wrong):
        """A loss whose gradient alone is NaN on the device."""

        def terms(self, z1: Tensor, z2: Tensor) -> dict[str, Tensor]:
            x = (z1 - z2).square().mean()
            return {"loss": x + (0 * x).sqrt() if z1.dtype == torch.float32 else x}

    monkeypatch.setattr(methods, "names", lambda: ["wrong", "not_a_number"])
    built = {"wrong": Wrong(), "not_a_number": NotANumber(), "sfrik_l3": NotANumber()}
    monkeypatch.setattr(methods, "build", built.get)
    outcome = section.SECTIONS["losses"].work(Bench(torch.device("cpu"), small=True, folder=tmp_path))
    assert outcome.failures == [
        "wrong: 0.01 in float32, allowed are 0.001",
        "not_a_number: inf in float32, allowed are 0.001",
        "sfrik_l3, compiled: inf in float32, allowed are 0.001",
    ]


def test_a_plan_is_wrong_in_both_directions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "peak_extra_bytes", lambda run, device: 2**20)

    def failures(share: float) -> list[str]:
        monkeypatch.setattr(checks, "predict", lambda cell: SimpleNamespace(peak_bytes=share * 2**20))
        return section.SECTIONS["plan"].work(Bench(torch.device("cpu"), small=True, folder=tmp_path)).failures

    assert failures(0.95) == failures(1.05) == []
    for share, ratio in ((0.8, "1.25"), (1.25, "0.80")):
        assert failures(share)[0] == f"resnet_tiny: measured is {ratio} times what was predicted"


@pytest.mark.parametrize(("last", "off"), [(0.0, []), (0.5, ["0.5"]), (math.nan, ["inf"])])
def test_a_resumed_run_has_every_weight_of_an_undisturbed_one(
    last: float, off: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.setattr(checks, "_run", lambda command: "")
    monkeypatch.setattr(checks, "_kill_at_checkpoint", lambda command, directory: None)

    def load(directory: Path) -> tuple[dict[str, Any], None]:
        again = 1 + last * ("killed" in directory.parts)
        network = {"first": torch.ones(1), "last": torch.tensor([again]), "count": torch.tensor(3)}
        return {"network": network, "progress": {"history": [{"loss": 1.0}]}}, None

    monkeypatch.setattr(checks, "load_checkpoint", load)
    outcome = section.SECTIONS["resume"].work(Bench(torch.device("cpu"), small=True, folder=tmp_path))
    assert outcome.failures == [f"the weights differ by {each}; allowed is 0" for each in off]


def test_it_goes_on_after_what_breaks_hangs_or_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(bench: Bench) -> NoReturn:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    def hangs(bench: Bench) -> NoReturn:
        while True:
            time.sleep(1)

    def refuses(bench: Bench) -> NoReturn:
        raise RegbenchError("nothing fits")

    def holds(bench: Bench) -> Outcome:
        return Outcome("| a | b |")

    for each, limit_s in ((breaks, 60.0), (hangs, 1.0), (refuses, 60.0), (holds, 60.0)):
        name = each.__name__
        monkeypatch.setitem(section.SECTIONS, name, Section(name, name, each, limit_s))
    examined = examine("cpu", tmp_path, small=True, names=["breaks", "hangs", "refuses", "holds"])
    assert [each.outcome.failures for each in examined] == [
        ["broke with signal 9: no message"],
        ["not done after 1 s"],
        ["nothing fits"],
        [],
    ]
    page = (tmp_path / "gpu.md").read_text()
    assert "these do not: breaks, hangs, refuses." in page and "- **nothing fits**" in page
    assert "| a | b |" in page
