from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regbench.benchmark.rundir.run_folder import RunFolder
from regbench.reports import write_report
from regbench.reports.find.check import check_records
from regbench.reports.find.records import load_records, read_records, steps_of_searches
from regbench.reports.find.runs import Missing
from tests.records import attempted, chosen, plan, ranked, search, tuning_choice
from tests.refusals import is_refused
from tests.reports.conftest import GIVEN, RATE, backbone, later, resign, score, tuned_sweep

Make = Callable[..., Path]


def test_tidy_data(record_here: Make, golden: Callable[[str, str], None]) -> None:
    """A row for each score, with all that leads back to its run."""
    record = record_here
    how: dict[str, Any] = {"selected_on": "tuning", "score": "knn_top1", "budget": 8}
    how |= {"record": "q/tuning_choice.json", "sha256": "0"}
    record("VICReg", 0, knn=70.5, linear=75.25, tuning=71.0, choice={"hyperparameters": how})
    # A column that one record alone has, and numbers that no column can hold.
    own = {"serial": 7, "gpus": ["a", "b"]}
    own |= {"label": "forged", "value": 99.0}  # no column is taken from others
    record("AUH", 3, linear=None, environment=own)
    timm = {"name": "timm", "model": "vit_tiny_patch16_224"}
    cell = {"network": backbone("timm", backbone=timm)}
    record("VICReg", 1, knn=None, cell=cell, environment={"serial": 2**63})
    rate = {"hyperparameters": GIVEN, "probe_learning_rate": {**RATE, "selected_on": "test"}}
    record("untrained", knn=None, choice=rate)
    frame = load_records(Path("runs"))
    for record_sha256, path in zip(frame["record_sha256"], frame["record"], strict=True):
        assert f'"sha256": "{record_sha256}"' in Path(path).read_text()
    # Its digest is that of a machine's paths and versions.
    lines = []
    for row in frame.drop(columns="record_sha256").to_dict("records"):
        known = {name: value for name, value in row.items() if value == value and value is not None}
        lines += [f"{name}: {value}" for name, value in known.items()] + [""]
    golden("tidy.txt", "\n".join(lines))


def test_a_folder_of_sweeps_a_sweep_a_run_and_several_folders(runs: Path, record: Make) -> None:
    one, two = record(seed=0), record(seed=1, sweep="other")
    folders = (runs, runs / "quickstart", one.parent)
    assert [len(load_records(folder)) for folder in folders] == [4, 2, 2]
    assert set(load_records([one.parent, two.parent])["sweep"]) == {"quickstart", "other"}


def test_nothing_there_says_how_to_make_some(runs: Path) -> None:
    runs.mkdir()
    with is_refused("regbench sweep quickstart"):
        load_records(runs)
    with is_refused("is not a folder"):
        load_records(runs / "none")


def test_where_no_record_fits_the_first_is_named(runs: Path, record: Make) -> None:
    path = record()
    path.write_text("{")
    with is_refused("no record that fits") as refusal:
        load_records(runs)
    assert str(path) in str(refusal.value)
    record("AUH")
    frame = load_records(runs)
    assert set(frame["label"]) == {"AUH"}
    (skipped,) = frame.attrs["skipped"]
    assert skipped.startswith(f"{path}: not valid JSON")


def test_a_copied_folder_does_not_count_twice(runs: Path, record: Make) -> None:
    path = record()
    shutil.copytree(path.parents[1], path.parents[2] / "copy")
    found = read_records(runs)
    assert (len(found.records), found.skipped) == (1, ())
    resign(path, label="another")
    (skipped,) = read_records(runs).skipped
    assert skipped.path == path and "the same cell as" in skipped.reason
    record(sweep="other")
    assert [each.sweep for each in read_records(runs).records] == ["other", "quickstart"]


def test_unfinished_cells_are_counted(runs: Path, record: Make) -> None:
    record()
    for name in ("0123456789ab", "ba9876543210", "report", "measurements"):
        folder = runs / "quickstart" / name
        folder.mkdir()
        (folder / "config.yaml").touch()
    assert read_records(runs).unfinished == {"quickstart": 2}


def test_what_is_missing_is_told_in_the_order_of_the_plan(
    runs: Path, record: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cells of the plan without a record, and then those that were begun without being
    planned.
    """
    names = {name: name[0] * 12 for name in ("begun", "failed", "early", "deserted")}
    done, waiting = record("AUH").parent.name, "0" * 12
    sweep = runs / "quickstart"
    attempted(sweep / names["begun"], "failed", "no\nmemory")
    attempted(sweep / names["begun"], "interrupted", number=2)
    attempts = sweep / names["begun"] / "attempts"
    for other in (".0003.json", "0003.txt"):
        shutil.copy(attempts / "0001.json", attempts / other)
    for name, error in (("failed", "no\nmemory"), ("deserted", None)):
        attempted(sweep / names[name], "interrupted")
        attempted(sweep / names[name], "failed", error, number=2)
    attempted(sweep / names["early"], "done")
    ids = [names["failed"], waiting, done, names["begun"], names["early"]]
    plan(sweep, *({"id": name, "label": "DCL", "seed": i} for i, name in enumerate(ids)))
    (sweep / "search.json").write_text("{")
    # A damaged search says nothing.
    assert names["early"] in [cell.cell_id for cell in read_records(runs).missing]
    search(sweep, names["early"])
    missing = (
        Missing("quickstart", names["failed"], "DCL", 0, {"epochs": 3}, "no memory"),
        Missing("quickstart", waiting, "DCL", 1, {"epochs": 3}, ""),
        Missing("quickstart", names["begun"], "DCL", 3, {"epochs": 3}, ""),
        Missing("quickstart", names["deserted"], "", None, {}, "no reason noted"),
    )
    monkeypatch.chdir(runs)
    for folder in (runs, Path(), Path("quickstart")):
        assert read_records(folder).missing == missing
    assert read_records(Path("quickstart", done)).missing == ()  # nobody asked for the others
    (sweep / names["failed"] / "attempts" / "0003.json").write_text("{")
    (sweep / "sweep.json").write_text("{")
    found = {(cell.cell_id, cell.failure) for cell in read_records(runs).missing}
    reasons = {"failed": "", "begun": "", "deserted": "no reason noted"}
    assert found == {(names[name], reason) for name, reason in reasons.items()}
    shutil.rmtree(sweep / done)
    with is_refused(f"no finished run in {runs}, 3 cells without one yet; make some"):
        read_records(runs)


def test_an_attempt_that_names_no_error_has_failed_all_the_same(tmp_path: Path) -> None:
    attempted(tmp_path, "failed")
    note = tmp_path / "attempts" / "0001.json"
    note.write_text(note.read_text().replace(', "error": null', ""))
    assert "error" not in note.read_text()
    assert RunFolder(tmp_path).failure == "no reason noted"


def test_a_run_that_a_search_stopped_is_no_result(
    runs: Path, record: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = record("AUH", status="tuned", knn=None, linear=None, tuning=60.0)
    tuning_choice(runs / "quickstart")
    search(runs / "quickstart", path.parent.name)
    monkeypatch.chdir(path.parent)
    for folder in (runs, path.parent, Path()):
        with is_refused("no finished run in"):
            read_records(folder)
    record("VICReg")
    found = read_records(runs)
    assert [each.label for each in found.records] == ["VICReg"]
    assert [each.label for each in found.short] == ["AUH"]
    # In the middle of a search a method may have nothing else.
    assert "VICReg" in write_report(runs, tmp_path / "report").leaderboard


def test_in_a_bundle_their_length_tells_the_steps_of_a_search(runs: Path, record: Make) -> None:
    tuned: dict[str, Any] = {"status": "tuned", "knn": None, "linear": None, "tuning": 50.0}
    step = record("VICReg", **tuned, cell={"epochs": 1})
    record("VICReg", **tuned)  # as long as the choice
    record("VICReg", 1, cell={"epochs": 1})  # a final run
    record("AUH", **tuned, cell={"epochs": 1})  # of which the tuning chose nothing
    other_q = {"embedding_dim": 64, "epochs": 1}
    record("VICReg", **tuned, cell=other_q)  # of another setting
    tuning_choice(runs / "quickstart", chosen("VICReg", ranked("a" * 12)))
    plan(runs / "quickstart")
    found = read_records(runs)
    choices = found.choices.values()
    assert len(found.records) == 5  # beside a plan, the search itself says what its steps are
    assert not list(steps_of_searches(found.records, choices))
    (runs / "quickstart" / "sweep.json").unlink()
    assert [each.path for each in steps_of_searches(found.records, choices)] == [step]


def test_records_are_in_the_order_of_sweep_label_and_seed(runs: Path, record: Make) -> None:
    """A sweep's references, which are no methods, come after its methods."""
    unsorted = (("b", "AUH", 1), ("a", "untrained", 0), ("b", "AUH", 0), ("a", "VICReg", 0))
    for sweep, label, seed in unsorted:
        record(label, seed, sweep=sweep)
    found = [(each.sweep, each.label, each.seed) for each in read_records(runs).records]
    assert found == [("a", "VICReg", 0), ("a", "untrained", 0), ("b", "AUH", 0), ("b", "AUH", 1)]


def test_what_is_left_out_is_counted_in_a_line(runs: Path, record: Make) -> None:
    paths = [record("AUH", seed) for seed in range(3)]
    assert read_records(runs).warning == ""
    told = "left out of the report: {}: not valid JSON.*[)]{}; `regbench report .*/runs/ --check`"
    for last, (count, others) in enumerate((("1 file is", ""), ("2 files are", " and others")), 1):
        paths[last].write_text("{")
        expected = f"{count} {told.format(min(paths[1 : last + 1]), others)} tells all"
        assert re.fullmatch(expected, read_records(runs).warning)
    remedy = read_records([runs, runs / "quickstart"]).remedy
    assert remedy == f"regbench report {runs}/ {runs}/quickstart/ --check"
    paths[0].write_text("{")
    with is_refused(f"in {runs}: 3 damaged or changed, the first is {min(paths)}: not valid"):
        read_records(runs)


def test_a_plan_that_holds_something_else_is_none(runs: Path, record: Make) -> None:
    record()
    plan(runs / "quickstart", {"id": "a" * 12, "label": "DCL"})
    assert [cell.label for cell in read_records(runs).missing] == ["DCL"]
    plan(runs / "quickstart", {"id": "a" * 12, "label": "DCL", "seed": [1]})
    assert read_records(runs).missing == ()


def test_a_cell_of_a_tuning_is_read_until_it_is_final(runs: Path, record: Make) -> None:
    path = record(status="tuned", linear=None, knn=None, tuning=60.0)
    (tuned,) = read_records(runs).records
    assert (tuned.status, tuned.path) == ("tuned", path)
    shutil.copy(path, path.with_name("record.json"))
    resign(path.with_name("record.json"), status="done")
    (done,) = read_records(runs).records
    assert done.status == "done"


def test_later_evaluations_add_their_scores(runs: Path, record: Make) -> None:
    scores = (score("voc07_map", 80.0), score("voc07_map", 81.0), score("knn_top1", 1.0))
    later(record(knn=70.0), *scores, score("linear_top1", 74.0, "tuning"))
    (one,) = read_records(runs).records
    assert one.score("voc07_map", "test") == 80.0  # the first of two
    assert one.score("knn_top1", "test") == 70.0  # the record's own wins
    # the record has none on that split
    assert load_records(runs)["value"].tolist() == [70.0, 75.0, 80.0, 81.0, 74.0]


@pytest.mark.parametrize("choice", [{"voc07_rate": {"selected_on": "test"}}, {}], ids=str)
def test_the_test_split_may_choose_a_later_evaluation_of_what_it_chose(
    runs: Path, record: Make, choice: dict[str, Any]
) -> None:
    path = record(choice={"hyperparameters": {"selected_on": "test"}})
    later(path, score("voc07_map", 80.0), choice=choice)
    found = read_records(runs)
    assert (found.records[0].score("voc07_map", "test"), found.skipped) == (80.0, ())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cell_id": "0" * 12}, "of cell 000000000000"),
        ({"choice": {"learning_rate": {"selected_on": "test"}}}, "chosen on the test split"),
        ({}, "not valid JSON"),
    ],
)
def test_an_evaluation_that_does_not_fit_is_set_aside(
    runs: Path, record: Make, changes: dict[str, Any], reason: str
) -> None:
    path = later(record(), score("voc07_map", 80.0), **changes)
    if not changes:
        path.write_text("{")
    found = read_records(runs)
    assert found.records[0].score("voc07_map", "test") is None
    assert [s.path for s in found.skipped] == [path]
    assert check_records([runs]).misfits == tuple(map(str, found.skipped))
    assert reason in found.skipped[0].reason


def test_copies_deeper_down_are_no_runs(runs: Path, record: Make) -> None:
    sweep = record().parent.parent
    shutil.copytree(sweep, runs / "kept" / sweep.name)
    (run,) = sweep.iterdir()
    shutil.copytree(run, run / ("0" * 12))
    for folder in (runs, sweep):
        found = read_records(folder)
        assert (len(found.records), found.skipped) == (1, ())


def test_the_history(runs: Path, record: Make) -> None:
    last = {"epoch": 2, "loss": float("nan"), "rank": 7, "odd": True}
    record(history=[{"epoch": 1, "loss": 2.0, "terms": {}}, last])
    (one,) = read_records(runs).records
    assert one.history[0] == {"epoch": 1, "loss": 2.0, "terms": {}}
    assert one.at_end == {"epoch": 2, "rank": 7.0}


def test_a_single_run_of_a_tuning_has_a_choice_and_nothing_missing(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = tuned_sweep(runs)
    final = min(path.parent for path in sweep.glob("*/record.json"))
    plan(sweep, {"id": "0" * 12, "label": "DCL", "seed": 0})
    assert len(read_records(sweep).missing) == 1
    for folder, place in ((final, runs), (Path(), final), (Path(final.name), sweep)):
        monkeypatch.chdir(place)
        found = read_records(folder)
        assert ([record.cell_id for record in found.records], found.skipped) == ([final.name], ())
        assert (found.missing, len(found.choices)) == ((), 1)
        assert check_records([folder]).misfits == ()
