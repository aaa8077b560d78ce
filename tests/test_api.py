"""The Python API: what the commands do, from Python."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import regbench
from regbench import methods
from regbench.api import _overrides
from regbench.benchmark.settings.sweep import Sweep, load_run
from regbench.settings import plain
from regbench.sweeps.status import CellStatus, cell_status, plan_of
from tests.command import python
from tests.refusals import is_refused
from tests.there import there

SHORT: dict[str, Any] = {"method": "vicreg", "epochs": 0, "evaluation": {"protocols": ["knn"]}}


def test_the_package_is_quick_to_import() -> None:
    program = "import sys, regbench; assert callable(regbench.train); print(*sys.modules)"
    done = python(program, check=True)
    assert not {"torch", "pandas", "pydantic", "hydra"} & set(done.stdout.split())


def test_what_is_public_is_there() -> None:
    for name in regbench.__all__:
        assert getattr(regbench, name)
    for function in ("train", "evaluate", "sweep", "tune", "challenge", "report", "load_records"):
        assert getattr(regbench, function).__doc__
    assert not hasattr(regbench, "trane")


def test_train_returns_the_record_and_does_not_train_twice(tiny: list[str], tmp_path: Path) -> None:
    record = there(regbench.train(tiny, name="mine", **SHORT))
    assert record.path.parent == tmp_path / "runs" / "mine" / record.cell_id
    short = ("method=vicreg", "epochs=0", "evaluation.protocols=[knn]")
    assert record.cell_id == load_run([*tiny, *short])[0].id
    assert record.score("knn_top1", "test") is not None
    written_ns = record.path.stat().st_mtime_ns
    own = [override for override in tiny if override.startswith("runtime.")]
    again = there(regbench.train(own, name="mine", config=record.path.with_name("config.yaml")))
    assert again.sha256 == record.sha256
    assert record.path.stat().st_mtime_ns == written_ns


def test_evaluate_gives_the_scores_of_a_run_once_more(tiny: list[str]) -> None:
    record = there(regbench.train(tiny, **SHORT))
    own = [override for override in tiny if override.startswith("runtime.")]
    assert tuple(regbench.evaluate(record.path.parent, own)) == record.scores
    other = regbench.evaluate(record.path.parent, own, only=["knn"], evaluation={"knn.k": 1})
    assert {score.split for score in other} == {"tuning", "test"}
    assert all("k=1," in score.protocol for score in other)


def test_train_works_beside_the_main_thread(tiny: list[str]) -> None:
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(lambda: regbench.train(tiny, **SHORT)).result()
    assert there(found).status == "done"


@pytest.mark.slow
def test_sweep_works_beside_the_main_thread(tiny: list[str]) -> None:
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(lambda: regbench.sweep("mine", tiny, cells="seed=0", **SHORT)).result()
    assert set(found["status"]) == {"done"}


def test_keywords_are_the_last_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("regbench.datasets.stored.prepare.prepare_all", lambda *_: None)
    monkeypatch.setattr(
        "regbench.benchmark.run.run_cell",
        lambda cell, runtime, *_, **__: seen.append((cell, runtime)),
    )
    odd = tmp_path / "it's \\ \\' here, (and) = there\\"
    regbench.train(
        "optimizer.base_lr=0.5 method=vicreg method.eps=0.1 seed=3",
        method={"name": "sfrik", "weights": [1, 2], "alignment_weight": 7},
        seed=2,
        embedding_dim=64,
        micro_batch_size=None,
        optimizer={"base_lr": 1, "warmup_epochs": 0.5},
        evaluation={"protocols": ("knn",), "knn": {"k": 7}, "while_training": []},
        runtime={"compile": False, "data_dir": odd, "runs_dir": str(odd)},
    )
    ((cell, runtime),) = seen
    assert cell.method == methods.build("sfrik", weights=(1.0, 2.0), alignment_weight=7.0)
    assert (cell.seed, cell.embedding_dim, cell.micro_batch_size) == (2, 64, None)
    assert (cell.optimizer.base_lr, cell.optimizer.warmup_epochs) == (1.0, 0.5)
    assert cell.plain()["evaluation"]["knn"]["k"] == 7
    assert cell.evaluation.protocols == ("knn",)
    assert runtime.data_dir == runtime.runs_dir == str(odd)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: regbench.train(metod="vicreg"), "unknown setting 'metod'"),
        (lambda: regbench.train(method="vicregg"), "did you mean vicreg"),
        (lambda: regbench.train(epochs=object()), "is no setting; give a number"),
        (lambda: regbench.train("epochs='1"), "quotation mark is not closed"),
        (lambda: regbench.train(name="../x"), "must be a name of 1 to"),
        (lambda: regbench.sweep("quikstart"), "no sweep named 'quikstart'"),
        (lambda: regbench.sweep("a/b", cells=["method=vicreg"]), "must be a name of 1 to"),
        (lambda: regbench.sweep("none", cells=[]), "has no cells"),
        (lambda: regbench.tune("quikstart"), "no sweep named 'quikstart'"),
        (lambda: regbench.tune("latents_tuning", seeds=cast(Any, 3)), "seeds=3 must be a list"),
        (lambda: regbench.tune("latents_tuning", seeds=cast(Any, "0,1")), "seeds='0,1' must be"),
        (lambda: regbench.tune("latents_tuning", trials=-1), "trials=-1 must be a whole number"),
        (lambda: regbench.tune("latents_tuning", repeats=cast(Any, "4")), "repeats='4' must be"),
        (lambda: regbench.train(runtime={"data_dir": "~/data"}), "no shell reads ~ here"),
        (lambda: regbench.train("network.init=a.pt network=resnet18"), "stands after network.init"),
        (lambda: regbench.train("method.name=sfrik_l1"), "write method=sfrik_l1"),
        (lambda: regbench.report(), "what shall be reported"),
        (lambda: regbench.report("nothing"), "is not a folder"),
        (lambda: regbench.report("nothing", out=""), "an empty path; give . for this folder"),
        (lambda: regbench.evaluate("nowhere"), "nowhere is no run directory"),
        (lambda: regbench.load_records("nowhere"), "is not a folder"),
        (lambda: regbench.audit.audit("nothing:x", probes=["value"]), "nothing"),
    ],
)
def test_refusals_are_of_one_line(
    call: Callable[[], object], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with is_refused(said):
        call()


def test_a_sweep_gives_its_scores_as_a_table(tiny: list[str], tmp_path: Path) -> None:
    cells = ["method=vicreg seed=0,1"]
    for seed in (0, 1):  # a sweep leaves alone what is finished, and starts no process
        regbench.train([*tiny, f"seed={seed}"], name="seeds", **SHORT)
    frame = regbench.sweep("seeds", tiny, cells=cells, **SHORT)
    assert set(frame["seed"]) == {0, 1}
    assert set(frame["sweep"]) == {"seeds"}
    assert (tmp_path / "runs" / "seeds" / "sweep.json").exists()
    top1 = frame[(frame["score"] == "knn_top1") & (frame["split"] == "test")]
    assert top1["value"].between(0, 100).all()
    assert len(top1) == 2
    loaded = regbench.load_records(tmp_path / "runs" / "seeds")
    assert loaded.equals(frame)


def test_numbers_of_numpy_are_settings(tiny: list[str]) -> None:
    numbers: dict[str, Any] = {"seed": np.int64(3), "method": {"weights": [np.float32(0.5), 1]}}
    cell, _ = load_run(_overrides(["method=sfrik", *tiny], numbers))
    other, _ = load_run([*tiny, "method=sfrik", "seed=3", "method.weights=[0.5,1]"])
    assert (type(cell.seed), cell.id) == (int, other.id)
    built = methods.build("sfrik", weights=list(np.array([1, 2])))
    assert plain(built)["weights"] == [1.0, 2.0]
    number: Any = np.int64(4)
    assert type(replace(cell, seed=number).seed) is int


def test_a_line_without_training_stays_so(tiny: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []

    def seen(grid: Sweep, stages: Sequence[str], announce: None) -> list[CellStatus]:
        found.extend(cell.epochs for cell in grid.cells)
        return []

    monkeypatch.setattr("regbench.sweeps.local.run_sweep", seen)
    with is_refused("is not a folder"):  # of records, as nothing ran
        regbench.sweep("mine", tiny, cells=["method=vicreg", "epochs=0"], epochs=2)
    assert found == [2, 0]


def test_the_folder_of_a_tuning_is_no_sweep(tiny: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "tuned"
    folder.mkdir(parents=True)
    (folder / "tune.json").write_text("[]")
    with is_refused("is of a tuning; go on with: regbench tune"):
        regbench.sweep("tuned", tiny, cells=["method=vicreg"], **SHORT)


def test_a_sweep_says_what_did_not_end(tiny: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(grid: Sweep, stages: Sequence[str], announce: None) -> list[CellStatus]:
        folder = Path(grid.runtime.runs_dir) / "none"
        return [cell_status(folder / cell.id, plan_of(cell)) for cell in grid.cells]

    monkeypatch.setattr("regbench.sweeps.local.run_sweep", fails)
    with is_refused("1 of 1 cell not finished: untrained seed 0 pending"):
        regbench.sweep("none", tiny, cells=["method=vicreg"], **SHORT)


def test_a_report_of_a_single_run(tiny: list[str], tmp_path: Path) -> None:
    record = there(regbench.train(tiny, **SHORT))
    report = regbench.report(record.path.parent)
    assert report.page == record.path.parent / "report" / "index.html"
    assert "untrained" in report.leaderboard
    by_name = regbench.report("manual", runs_dir=tmp_path / "runs", out=tmp_path / "elsewhere")
    assert by_name.page == tmp_path / "elsewhere" / "index.html"
    assert by_name.leaderboard == report.leaderboard


# In a process of its own, in which nothing was composed before.
IN_HYDRA = """
from concurrent.futures import ThreadPoolExecutor
import hydra
from hydra.core.global_hydra import GlobalHydra
from regbench.benchmark.settings.sweep import load_run

@hydra.main(version_base=None)
def application(_):
    names = ["digits", "cifar10", "in20"]
    with ThreadPoolExecutor(3) as pool:
        cells = pool.map(lambda name: load_run([f"dataset={name}"])[0], names)
        assert [cell.dataset.name for cell in cells] == names
    assert GlobalHydra.instance().is_initialized()

application()
"""


def test_settings_are_composed_in_threads_and_in_an_application_of_hydra(tmp_path: Path) -> None:
    done = python(IN_HYDRA, "hydra.run.dir=.", "hydra.output_subdir=null", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_an_audit_gives_what_the_command_prints() -> None:
    loss = "tests/instruments/audited.py:Ours('simclr')"
    (found,) = regbench.audit.audit(loss, claims="simclr", probes=["state"])
    assert (found.probes, found.findings) == (("state",), ())
    assert shlex.split(found.command) == ["regbench", "audit", loss, "--claims", "simclr"]
