"""The leaderboard of several bundles: the report of all their cells."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path

from tests.command import done, refusal
from tests.reports.conftest import GIVEN, tuned_sweep
from tests.reports.forging import Parts
from tests.reports.reading import cells_in, tables_in

EVIL = "</script><img src=x onerror=alert(1)>"


def board_of(folder: Path, *left_out: str) -> Path:
    """The page of the bundles in a folder, of which some are left out for the given reasons."""
    place = Path.cwd()
    lines = done("leaderboard", folder, "--out", folder / "board").stderr.splitlines()
    assert Path.cwd() == place
    assert len(lines) == len(left_out) and all(map(re.match, left_out, lines)), lines
    return folder / "board" / "index.html"


def test_the_cells_of_all_bundles_are_in_one_report(lab: Path, tmp_path: Path) -> None:
    """A run of one more lab is not a second seed, and a copy is no second run."""
    for name in ("copy", "lab-a"):
        shutil.copy(lab, tmp_path / f"{name}.tar.xz")
    parts = Parts(lab)
    record = next(record for record in parts.final if record["method"] == "vicreg")
    parts.records = [record]
    parts.choices.clear()
    record["choice"]["hyperparameters"] = GIVEN
    record["environment"]["hardware"] = EVIL
    # A sweep whose name comes first is no reason to take its numbers.
    record["sweep"] = "aaa"
    parts.score(record)["value"] = 85.0
    (tmp_path / "other").mkdir()
    parts.write(tmp_path / "other" / "lab-b.tar.xz")
    parts.score(record)["value"] = 99.0
    parts.write(tmp_path / "forged.tar.xz")
    page = board_of(
        tmp_path,
        "left out: forged.tar.xz: .* more than its top-5",
        "left out: other/lab-b.tar.xz: 1 cell is in copy.tar.xz already, with other scores, which count",
    )
    rows = {row["method"]: row for row in tables_in(page)["Leaderboard"]}
    assert rows["VICReg"]["knn_top1 (%)"] == "70.00 ± 0.00"
    assert rows["AUH"]["knn_top1 (%)"] == "**71.00 ± 0.00**"
    assert {row["n"] for row in rows.values()} == {"2"}
    cells = cells_in(page)
    assert len(cells) == 6
    assert {cell["path"].partition("/")[0] for cell in cells} == {"copy.tar.xz"}
    text = page.read_text()
    assert '<span class="id">forged.tar.xz</span>' in text
    assert "<code>regbench verify BUNDLE</code> tells all" in text
    assert not re.search(r"""(?:src|<link[^>]*href)=["']?(?:https?:)?//""", text)
    assert (page.parent / "leaderboard.csv").exists()


def test_a_folder_without_a_bundle_is_refused(lab: Path, tmp_path: Path) -> None:
    command = ("leaderboard", tmp_path, "--out")
    assert f"no bundle in {tmp_path}; make one with" in refusal(*command, tmp_path / "board")
    (tmp_path / "none.tar.xz").write_text("words")
    told = refusal(*command, tmp_path / "board")
    assert "; the first of 1 was refused: none.tar.xz: " in told
    shutil.copy(lab, tmp_path)
    assert "cannot write to" in refusal(*command, tmp_path / "none.tar.xz" / "board")


def test_a_bundle_of_other_images_is_left_out(lab: Path, tmp_path: Path) -> None:
    shutil.copy(lab, tmp_path / "a.tar.xz")
    parts = Parts(lab)
    for record in parts.records:
        record["data"]["content_sha256"]["test"] = "99" * 32
    parts.write(tmp_path / "b.tar.xz")
    page = board_of(tmp_path, "left out: b.tar.xz: .*the test split has 2 contents")
    assert len(cells_in(page)) == 6


def test_a_bundle_of_other_units_is_left_out(lab: Path, tmp_path: Path) -> None:
    """Without its unit, a percentage of 170 would stand first in the column of percentages."""
    shutil.copy(lab, tmp_path / "a.tar.xz")
    parts = Parts(lab)
    for record in parts.records:
        for each in record["scores"]:
            each["unit"] = ""
    parts.write(tmp_path / "b.tar.xz")
    page = board_of(tmp_path, "left out: b.tar.xz: .* has the unit '', in other records '%'")
    assert len(cells_in(page)) == 6


def test_the_final_run_of_a_cell_counts_before_that_of_a_tuning(lab: Path, tmp_path: Path) -> None:
    parts = Parts(lab)
    parts.choices.clear()
    (record,) = parts.records = parts.final[:1]
    record["choice"]["hyperparameters"] = GIVEN
    parts.write(tmp_path / "b.tar.xz")
    voc07 = {"name": "voc07_map", "value": 50.0, "split": "test", "protocol": "", "title": ""}
    record["scores"].append(voc07)  # a score more is no other score
    parts.write(tmp_path / "c.tar.xz")
    record["scores"].remove(voc07)
    record |= {"status": "tuned", "choice": {}}
    record["scores"] = [each for each in record["scores"] if each["split"] == "tuning"]
    parts.write(tmp_path / "a.tar.xz")
    (cell,) = cells_in(board_of(tmp_path))
    assert (cell["status"], cell["path"].partition("/")[0]) == ("done", "b.tar.xz")


def test_short_trainings_of_a_search_are_in_no_row(lab: Path, tmp_path: Path) -> None:
    parts = Parts(lab)
    template = next(r for r in parts.records if (r["status"], r["method"]) == ("tuned", "vicreg"))
    parts.score(parts.shorten(template), split="tuning")["value"] = 89.0
    parts.write(tmp_path / "search.tar.xz")
    page = board_of(tmp_path)
    found = tables_in(page)
    assert all("epochs" not in row for row in found["Leaderboard"])
    assert Counter(row["method"] for row in found["Hyperparameters"]) == {"VICReg": 2, "AUH": 2}
    assert all("89.00" not in row["knn_top1 (%), tuning"] for row in found["Hyperparameters"])
    epochs = [cell["config"]["epochs"] for cell in cells_in(page)]
    assert sorted(epochs) == [1, 2, 2, 2, 2, 2, 2]


def test_tunings_of_two_lengths_are_no_steps_and_what_is_between_is_one(tmp_path: Path) -> None:
    tuned_sweep(tmp_path / "runs", "long", "epochs=3")
    tuned_sweep(tmp_path / "runs", "brief", "epochs=1", "optimizer.warmup_epochs=0")
    out = tmp_path / "results" / "both.tar.xz"
    done("submit", "long", "brief", "--runs-dir", tmp_path / "runs", "--out", out)
    parts = Parts(out)
    tuned = [each for each in parts.records if each["status"] == "tuned"]
    parts.shorten(next(each for each in tuned if each["cell"]["epochs"] == 3))
    parts.write(out)
    found = tables_in(board_of(out.parent))
    tried = Counter((row["method"], row["epochs"]) for row in found["Hyperparameters"])
    assert tried == {(name, epochs): 2 for name in ("AUH", "VICReg") for epochs in ("1", "3")}


def test_a_shorter_final_run_of_another_sweep_is_no_step(lab: Path, tmp_path: Path) -> None:
    parts = Parts(lab)
    brief = parts.shorten(next(record for record in parts.final if record["method"] == "vicreg"))
    brief |= {"sweep": "brief", "choice": {"hyperparameters": GIVEN}}
    parts.write(tmp_path / "both.tar.xz")
    rows = tables_in(board_of(tmp_path))["Leaderboard"]
    found = Counter((row["method"], row["epochs"]) for row in rows)
    assert found == {("AUH", "2"): 1, ("VICReg", "2"): 1, ("VICReg", "1"): 1}
