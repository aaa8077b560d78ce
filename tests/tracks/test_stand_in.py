"""Files of strangers: whatever they do, the commands end in a line and status 1, and judge what
is handed over.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from torch import Tensor

from regbench.benchmark.run import run_cell
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.sweep import load_run
from regbench.instruments.conformance import run_check
from regbench.methods import METHODS, Regularizer, mec
from regbench.reports.bundle.pack import submit
from regbench.spaces import Choice, Range
from regbench.tracks import stand_in
from regbench.tracks.own_loss import LossFile
from regbench.tracks.stand_in import ask, compute_once, entered
from tests.command import run
from tests.conftest import TINY
from tests.refusals import is_refused
from tests.reports.forging import Parts
from tests.tracks.test_challenge import PULL, refusals, written

RESULTS = Path(__file__).resolve().parents[2] / "results"


def refused(result: Result, code: int = 1) -> str:
    """What a command says in the one line that it ends with."""
    found = (result.exit_code, result.stdout, result.stderr.count("\n"))
    assert found == (code, "", 1), result.output
    return result.stderr.removeprefix("regbench: ").strip()


# If one ran in this process, 0 would end the tests as if all had passed, so 7 comes first.
@pytest.mark.parametrize(
    "end", ["import os; os._exit(7)", "import sys; sys.exit(0)", "import os; os._exit(0)"]
)
@pytest.mark.parametrize(
    "command",
    [
        ("verify", RESULTS / "digits.tar.xz", "--loss"),
        ("leaderboard", RESULTS, "--out", "site", "--loss"),
        ("challenge", "--track", "minute"),
        ("challenge",),
    ],
)
def test_a_file_that_ends_its_process_is_no_success(
    end: str, command: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = refused(run(*command, written(tmp_path, end)))
    ended = "gave no answer, and ended with exit code"
    assert "my_loss.py: SystemExit: 0 (my_loss.py, line 1)" in said or ended in said


def cell_id_of(_: Regularizer, plain: dict[str, Any]) -> str:
    """The id of a cell where the file's own class is registered, as in a job."""
    return Cell.stored(plain).id


def test_a_cell_has_one_id_here_and_in_the_processes_of_the_file(tmp_path: Path) -> None:
    """MEC has a setting that cells from before it lack."""
    text = Path(mec.__file__).read_text().replace('@register("mec")', '@register("my_mec")')
    file, folder = LossFile.of(written(tmp_path, text)), tmp_path / "plug_in"
    with file.on_path(folder), entered(file, folder):
        cell, _ = load_run([*TINY, "method=my_mec"])
        assert ask(file, folder, cell_id_of, cell.plain()) == cell.id


@pytest.mark.parametrize(("text", "said"), [*refusals("cannot be loaded"), *refusals("is no loss")])
def test_whatever_a_file_does_is_one_line(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "while" in text:
        monkeypatch.setattr(stand_in, "LIMIT_S", 3.0)
    before = METHODS.names()
    with (
        is_refused(rf"^{tmp_path}/my_loss.py:? ?.*{said}"),
        entered(LossFile.of(written(tmp_path, text)), tmp_path / "plug_in"),
    ):
        pass
    assert METHODS.names() == before


def test_a_stand_in_has_the_facts_of_its_loss(tmp_path: Path) -> None:
    text = """
from dataclasses import dataclass, replace
from typing import ClassVar

from regbench.methods.base import register
from regbench.methods.dino import DINO
from regbench.spaces import Choice, Range


@register("own")
@dataclass(frozen=True, kw_only=True)
class Own(DINO):
    weights: tuple[float, ...] = (1.0, 2.0)
    space: ClassVar = {"student_temperature": Range(0.1, 1.0, times="q"), "weights": Choice((True, "none"))}

    @property
    def label(self):
        return f"Own of {len(self.weights)}"
"""
    file = LossFile.of(written(tmp_path, text))
    with entered(file, tmp_path / "plug_in") as found:
        made = METHODS.from_plain({"name": "own", "weights": [1, 2, 3]}, "method.")
        assert (made.label, found.label, made.weights) == ("Own of 3", "Own of 2", (1.0, 2.0, 3.0))  # type: ignore[attr-defined]
        facts, plain = (found.prototypes, found.needs, found.of_training), METHODS.plain(found)
        rate, weights = Range(0.1, 1.0, times="q"), Choice((True, "none"))
        assert found.space == {"student_temperature": rate, "weights": weights}
        with is_refused(r"method\.weights=many must be"):
            METHODS.from_plain({"name": "own", "weights": "many"}, "method.")
    with file.loaded(tmp_path / "plug_in") as own:
        assert facts == (own.prototypes, own.needs, own.of_training)
        assert (plain, found.space) == (METHODS.plain(own), own.space)
        assert own.prototypes and own.needs


@pytest.mark.parametrize(("text", "said"), refusals("cannot be trained"))
def test_a_loss_that_cannot_be_trained_is_refused_before_a_training(
    text: str, said: str, tmp_path: Path
) -> None:
    with is_refused(said):
        ask(LossFile.of(written(tmp_path, text)), tmp_path / "plug_in", compute_once, 8, 4)


@pytest.mark.parametrize(
    ("name", "space", "said"),
    [
        ("vicreg.py", "{}", "'vicreg' .* choose another: rename the file, or give FILE:NAME$"),
        ("my_loss.py", "{'wieght': Range(1, 2)}", "pull: space: wieght must be a hyperparameter "),
        ("my_loss.py", "{'weight': (1, 2)}", "pull: space: weight must .* Range or Choice; "),
    ],
)
def test_a_wrong_name_or_space_is_refused(name: str, space: str, said: str, tmp_path: Path) -> None:
    text = f"{PULL}\nfrom regbench.spaces import Range\npull.space = {space}"
    file = LossFile.of(written(tmp_path, text, name))
    with is_refused(said), entered(file, tmp_path / "plug_in"):
        pass


@pytest.mark.parametrize("track", ["scenes", "minute"])
def test_a_challenge_says_what_fails_in_a_loss_and_where(track: str, tmp_path: Path) -> None:
    text = "import torch\n\ndef own(z1, z2, k=3):\n    return torch.ones(3, k) @ z1"
    command = ("challenge", written(tmp_path, text), "--track", track)
    said = refused(run(*command, f"runtime.runs_dir={tmp_path / 'runs'}"))
    assert "RuntimeError" in said and said.endswith("(my_loss.py, line 4)")


def test_the_gradient_of_what_keeps_a_state_is_told_with_what_to_do() -> None:
    class Counts(Regularizer):
        metadata = METHODS.build("vicreg").metadata
        calls = 0

        def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
            Counts.calls += 1
            return {"all": Counts.calls * (z1_NQ - z2_NQ).square().mean()}

    result = run_check(Counts(), "gradient")
    assert result is not None and not result.ok
    assert "compute that from the embeddings" in result.where
    assert "it draws from another generator than torch's global one, or" in result.where


@pytest.fixture(scope="module")
def bundle(tiny_data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a tiny run of the plain function, of an epoch."""
    folder = tmp_path_factory.mktemp("entered")
    own = ["method=my_loss", "epochs=1", "optimizer.warmup_epochs=0", "evaluation.protocols=[knn]"]
    where = [f"runtime.data_dir={tiny_data_dir}", f"runtime.runs_dir={folder}"]
    with LossFile.of(written(folder, PULL)).loaded(folder / "plug_in"):
        run_cell(*load_run([*TINY, *own, *where]), "own")
        submit([folder / "own"], folder / "own.tar.xz")
    return folder / "own.tar.xz"


# What changes the checks in its own process, and answers wherever it can.
FORGER = """
import regbench.reports.bundle.claims as claims
import regbench.reports.bundle.recompute as recompute

claims.claim_misfits = lambda *_: []
recompute.differences = lambda *_, **__: []
print("1 cell checks out; sha256 " + 64 * "0")
"""


@pytest.mark.parametrize(
    ("text", "points", "said"),
    [
        (PULL, 0.0, "trained again, equal to the last bit"),
        (PULL + FORGER, 0.1, "they must be equal"),
        (PULL.replace("    return {", "    import os; os._exit(7)\n    return {"), 0.0, ""),
    ],
)
def test_a_bundle_is_judged_apart_from_its_loss(
    text: str, points: float, said: str, bundle: Path, tiny_data_dir: Path, tmp_path: Path
) -> None:
    parts = Parts(bundle)
    parts.score(parts.records[0])["value"] += points
    forged, file = parts.write(tmp_path / "own.tar.xz"), written(tmp_path, text)
    data = f"runtime.data_dir={tiny_data_dir}"
    done = run("verify", forged, "--loss", file, "--recompute", 1, data)
    if said:
        assert (done.exit_code, said in done.stdout) == (int(points > 0), True), done.output
    else:
        assert "its process gave no answer, and ended with exit code 7" in refused(done)


def test_a_label_that_the_loss_has_not_is_a_misfit(bundle: Path, tmp_path: Path) -> None:
    parts = Parts(bundle)
    parts.records[0]["label"] = "better"
    done = run("verify", parts.write(tmp_path / "own.tar.xz"), "--loss", written(tmp_path, PULL))
    assert done.exit_code == 1 and "it is called 'better', and is 'pull'" in done.stdout


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "my_loss.py"
    file.write_bytes(b"\xff\xfe")
    done = run("verify", RESULTS / "digits.tar.xz", "--loss", file)
    assert "is no text in UTF-8" in refused(done, 2)
