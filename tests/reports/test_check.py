from __future__ import annotations

import hashlib
import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest

from regbench.benchmark.rundir.record_parts import ImageSource, Saved
from regbench.reports.find.check import check_records
from regbench.reports.find.records import read_records
from regbench.reports.rows.notes import task_notes
from tests.command import run
from tests.records import chosen, plan, ranked, tuning_choice
from tests.refusals import is_refused
from tests.reports.conftest import dataset, resign
from tests.reports.reading import Make, tasks
from tests.reports.test_report import SPOILED, spoil


def test_good_records_check_out(runs: Path, record: Make) -> None:
    record("VICReg", history=[{"epoch": 1, "loss": float("nan")}])
    record("AUH", status="tuned", knn=None, linear=None, tuning=60.0)
    checked = check_records([runs])
    assert checked.misfits == ()
    assert str(checked) == "2 records check out"


# Two things of these do not fit.
TWICE = ("its cell id is", "its cell is none")


@pytest.mark.parametrize("how", [*itertools.chain(*SPOILED.values())], ids=str)
def test_a_misfit_is_told_alone_and_the_record_left_out(runs: Path, record: Make, how: Any) -> None:
    record("AUH")
    spoil(record("VICReg", linear=99.5), how)
    reason = how["told"]
    lines = check_records([runs]).misfits
    assert len(lines) == 1 + any(part in reason for part in TWICE), lines
    assert reason in "\n".join(lines) and all("\n" not in line for line in lines)
    assert [each.label for each in read_records(runs).records] == ["AUH"]
    misfits = "1 misfit" if len(lines) == 1 else "2 misfits"
    assert str(check_records([runs])).endswith(f"\n{misfits} in 2 records")


def test_weights_are_read_where_they_still_are(runs: Path, record: Make) -> None:
    path = record(checkpoint=Saved("checkpoint-0001.pt", hashlib.sha256(b"weights").hexdigest(), 6))
    assert check_records([runs]).misfits == ()
    path.with_name("checkpoint-0001.pt").write_bytes(b"weights")
    assert check_records([runs]).misfits == ()
    path.with_name("checkpoint-0001.pt").write_bytes(b"others")
    (line,) = check_records([runs]).misfits
    assert "checkpoint-0001.pt: its content is not what" in line
    path.with_name("metrics-0001.jsonl").unlink()  # what else does not fit hides nothing
    assert check_records([runs]).misfits[1:] == (line,)


def test_a_record_may_be_checked_from_within_its_folder(
    runs: Path, record: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(record().parent)
    assert str(check_records([Path()])) == "1 record checks out"
    beside = record("AUH").parent.name  # what a tuning chose need not be asked for
    tuning_choice(Path().absolute().parent, chosen("AUH", ranked(beside)))
    assert str(check_records([Path()])) == "1 record checks out"


def test_a_run_without_a_record_is_nothing_to_check(runs: Path, record: Make) -> None:
    record("VICReg")
    begun = runs / "quickstart" / ("0" * 12)
    begun.mkdir()
    (begun / "config.yaml").touch()
    plan(runs / "quickstart")
    assert str(check_records([runs])) == "1 record checks out"
    tuning_choice(runs / "quickstart", chosen("AUH", ranked(begun.name)))
    (line,) = check_records([runs]).misfits
    assert line.endswith("000000000000, chosen for AUH, has no record beside it")


def test_nothing_there(runs: Path) -> None:
    runs.mkdir()
    with is_refused(f"no record in {runs}, {runs.parent}; make some"):
        check_records([runs, runs.parent])


def test_a_choice_that_is_not_here_is_named(runs: Path, record: Make) -> None:
    resign(record(), choice={"hyperparameters": {"record": "gone/t.json", "sha256": "0"}})
    (line,) = check_records([runs]).misfits
    assert line.endswith("chosen in gone/t.json, which is not here")


def test_a_choice_may_lie_in_the_sweep_that_a_cell_came_from(runs: Path, record: Make) -> None:
    """Where the chosen cell was trained again under another name."""
    path = record("VICReg", sweep="again")
    record("VICReg", sweep="mine")
    digest = tuning_choice(runs / "mine", chosen("VICReg", ranked(path.parent.name)))
    origin = {"selected_on": "tuning", "record": "mine/tuning_choice.json", "sha256": digest}
    resign(path, choice={"hyperparameters": origin})
    assert check_records([runs]).misfits == ()
    tuning_choice(runs / "again")  # a sweep's own comes first
    (line,) = check_records([runs]).misfits
    assert "chosen in another version of mine" in line


def test_splits_must_hold_the_same_images(runs: Path, record: Make) -> None:
    first = min(record("VICReg", seed) for seed in (0, 1))
    other = record("AUH", data=ImageSource("made up", {"train": "ab" * 32, "test": "ee" * 32}))
    of_stl10 = ImageSource("made up", {"test": "11" * 32})
    record("AUH", cell={"dataset": dataset("stl10")}, data=of_stl10)
    (line,) = check_records([runs]).misfits
    told = f"cdcdcdcdcdcd in 2 records, first {first}; eeeeeeeeeeee in 1 record, first {other}"
    assert line == f"data set fashion_mnist: the test split has 2 contents: {told}"
    assert check_records(sorted(runs.glob("*/*"), reverse=True)).misfits == (line,)
    told = f"The cells saw unequal images, so compare within one content: {line}."
    assert [told in task_notes(each) for each in tasks(runs)] == [True, False]


def test_a_tunings_choice(runs: Path, record: Make) -> None:
    path = record("VICReg")
    best = path.parent.name

    def write(**changes: Any) -> str:
        return tuning_choice(runs / "quickstart", chosen("VICReg", ranked(best), **changes))

    origin = {"record": "elsewhere/quickstart/tuning_choice.json", "sha256": write()}
    resign(path, choice={"hyperparameters": {**origin, "selected_on": "tuning"}})
    assert check_records([runs]).misfits == ()
    write(chosen="0" * 12)
    misfits = check_records([runs]).misfits
    assert any("chosen in another version of" in line for line in misfits)
    assert any("000000000000, chosen for VICReg, is not in its ranking" in line for line in misfits)
    record("AUH")
    (runs / "quickstart" / "tuning_choice.json").write_text("{")  # to which a record refers
    (line,) = check_records([runs]).misfits
    assert "tuning_choice.json: not valid JSON" in line
    shutil.rmtree(path.parent)
    record("VICReg", sweep="other")  # the same cell, and not of this tuning
    write()
    (line,) = check_records([runs]).misfits
    assert f"{best}, chosen for VICReg, has no record beside it" in line
    (runs / "quickstart" / "tuning_choice.json").write_text("{}")
    misfits = check_records([runs]).misfits
    assert any("tuning_choice.json: schema version None" in line for line in misfits)


def test_on_the_command_line(runs: Path, record: Make) -> None:
    path = record("VICReg")
    command = ["report", "quickstart", "--check", "--runs-dir", str(runs)]
    done = run(*command)
    assert (done.exit_code, done.output) == (0, "1 record checks out\n")
    path.write_text("{")
    done = run(*command)
    assert done.exit_code == 1
    assert done.output.splitlines()[-1] == "1 misfit in 1 record"
    assert not (runs / "quickstart" / "report").exists()
