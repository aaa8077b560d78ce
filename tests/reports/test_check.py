from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from regbench import RegbenchError
from regbench.benchmark.rundir.record import Images
from regbench.cli import main
from regbench.reports.find.check import check_records
from tests.records import chosen, ranked, tuning_choice
from tests.reports.conftest import dataset, later, resign, score

Make = Callable[..., Path]


def test_good_records_check_out(runs: Path, record: Make) -> None:
    record("VICReg", history=[{"epoch": 1, "loss": float("nan")}])
    record("AUH", status="tuned", knn=None, linear=None, tuning=60.0)
    checked = check_records([runs])
    assert checked.misfits == ()
    assert str(checked) == "2 records check out"


def test_nothing_there(runs: Path) -> None:
    runs.mkdir()
    with pytest.raises(RegbenchError, match="no record in"):
        check_records([runs])


def _edit(path: Path) -> None:
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1', 1))


def _score(value: float) -> Callable[[Path], None]:
    return lambda path: resign(path, scores=[asdict(score("knn_top1", value))])


def _other_config(path: Path) -> None:
    config = path.with_name("config.yaml")
    config.write_text(config.read_text().replace("batch_size: 256", "batch_size: 128"))


def _evaluation(path: Path, **changes: Any) -> None:
    made = later(path, **changes)
    made.write_text(made.read_text().replace("VICReg", "AUH"))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_edit, "record.json: its content is not what its sha256 was taken of"),
        (lambda path: path.write_text(path.read_text()[:100]), "record.json: not valid JSON"),
        (lambda path: resign(path, schema_version=2), "record.json: schema version 2"),
        (lambda path: resign(path, cell_id="0" * 12), "record.json: its cell id is 000000000000, that of its cell is"),
        (lambda path: path.parent.rename(path.parent.with_name("f" * 12)), "the folder's name is another"),
        (lambda path: resign(path, status="tuned"), "belongs into another file"),
        (_score(101.0), "knn_top1 on test is 101 %, outside 0 to 100 %"),
        (lambda path: path.with_name("config.yaml").unlink(), "config.yaml: is missing"),
        (lambda path: path.with_name("config.yaml").write_text("a: [\n"), "config.yaml: cannot be read"),
        (
            lambda path: path.with_name("metrics-0001.jsonl").unlink(),
            "metrics-0001.jsonl: cannot be read (No such",
        ),
        (
            lambda path: path.with_name("metrics-0001.jsonl").write_text("{}\n"),
            "metrics-0001.jsonl: its content is not what",
        ),
        (_other_config, "config.yaml: differs from the record's cell in batch_size"),
        (lambda path: _evaluation(path, cell_id="0" * 12), "voc07.json: of cell 000000000000"),
        (lambda path: _evaluation(path, protocol="VICReg"), "voc07.json: its content is not what its sha256"),
        (
            lambda path: resign(path, choice={"hyperparameters": {"record": "gone/t.json", "sha256": "0"}}),
            "chosen in gone/t.json, which is not here",
        ),
    ],
)
def test_what_does_not_fit_is_named(runs: Path, record: Make, spoil: Callable[[Path], None], reason: str) -> None:
    record("AUH")
    spoil(record("VICReg"))
    checked = check_records([runs])
    assert checked.records == 2
    assert any(reason in line for line in checked.misfits), checked.misfits
    assert all("\n" not in line for line in checked.misfits)
    assert str(checked).endswith("in 2 records")


def test_splits_must_hold_the_same_images(runs: Path, record: Make) -> None:
    record("VICReg")
    record("AUH", data=Images("made up", {"train": "ab" * 32, "test": "ee" * 32}))
    record("AUH", cell={"dataset": dataset("stl10")}, data=Images("made up", {"test": "11" * 32}))
    (line,) = check_records([runs]).misfits
    assert line.startswith("data set fashion_mnist: the test split has 2 contents: cdcdcdcdcdcd in 1 records")


def test_a_tunings_choice(runs: Path, record: Make) -> None:
    path = record("VICReg")
    best = path.parent.name

    def write(**changes: Any) -> str:
        return tuning_choice(runs / "quickstart", chosen("VICReg", ranked(best), **changes))

    digest = write()
    origin = {"selected_on": "tuning", "record": "elsewhere/quickstart/tuning_choice.json", "sha256": digest}
    resign(path, choice={"hyperparameters": origin})
    assert check_records([runs]).misfits == ()
    write(chosen="0" * 12)
    misfits = check_records([runs]).misfits
    assert any("chosen in another version of" in line for line in misfits)
    assert any("000000000000, chosen for VICReg, is not in its ranking" in line for line in misfits)
    record("AUH")
    shutil.rmtree(path.parent)
    write()
    (line,) = check_records([runs]).misfits
    assert f"{best}, chosen for VICReg, has no record beside it" in line
    (runs / "quickstart" / "tuning_choice.json").write_text("{}")
    assert any("tuning_choice.json: schema version None" in line for line in check_records([runs]).misfits)


def test_on_the_command_line(runs: Path, record: Make) -> None:
    path = record("VICReg")
    command = ["report", "quickstart", "--check", "--runs-dir", str(runs)]
    done = CliRunner().invoke(main, command)
    assert (done.exit_code, done.output) == (0, "1 record checks out\n")
    _edit(path)
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 1
    assert done.output.splitlines()[-1].endswith("in 1 record")
    assert not (runs / "quickstart" / "report").exists()
