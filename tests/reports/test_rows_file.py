"""Rows files: what a bundle enters into a leaderboard, and what is refused of one that states
something else.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from regbench.reports.bundle.bundle import read_bundle
from regbench.reports.bundle.entered import entered_rows
from regbench.reports.bundle.leaderboard import write_leaderboard
from regbench.reports.bundle.rows_file import RowsFile
from tests.command import run
from tests.reports.conftest import GIVEN
from tests.reports.forging import Json, Parts

TASK = "fashion_mnist, resnet_tiny"


@pytest.fixture
def results(submitted: Path, tmp_path: Path) -> Path:
    """The folder, to be changed."""
    return shutil.copytree(submitted, tmp_path / "results")


def change(path: Path, how: Callable[[Json], object]) -> None:
    content = json.loads(path.read_text())
    how(content)
    path.write_text(json.dumps(content))


def set_url(path: Path, url: str) -> None:
    change(path, lambda content: content.update(url=url))


def test_submit_writes_the_rows_of_a_bundle(submitted: Path) -> None:
    content = json.loads((submitted / "lab.rows.json").read_text())
    assert (content["url"], content["sha256"]) == ("", read_bundle(submitted / "lab.tar.xz").sha256)
    auh, vicreg = content["rows"]
    assert (auh["task"], auh["row"], vicreg["row"]) == (TASK, "AUH", "VICReg")
    assert vicreg["tried"] == 2
    assert vicreg["scores"] == {
        "knn_top1": {"0": 70.0, "1": 70.0},
        "linear_top1": {"0": 65.0, "1": 65.0},
    }
    assert vicreg["settings"].pop("optimizer.base_lr") == "0.5"
    assert all(name.startswith("method.") for name in vicreg["settings"])
    assert json.loads(RowsFile("0", (), "https://a.b").text())["url"] == "https://a.b"
    done = run("verify", submitted / "lab.rows.json")
    assert (done.exit_code, done.output.partition(";")[0]) == (0, "6 cells check out")


def _rows(change_rows: Callable[[list[Json]], object]) -> Callable[[Json], object]:
    return lambda content: change_rows(content["rows"])


FORGERIES: dict[str, tuple[Callable[[Json], Any], str]] = {
    "a score": (
        _rows(lambda rows: rows[1]["scores"]["knn_top1"].update({"1": 70.01})),
        f"VICReg on {TASK}: knn_top1 of seed 1 is 70.01 in the file and 70.0 in the bundle",
    ),
    "a seed left out": (
        _rows(lambda rows: rows[0]["scores"]["linear_top1"].pop("0")),
        f"AUH on {TASK}: linear_top1 of seed 0 is missing in the file and 65.0 in the bundle",
    ),
    "fewer tries": (
        _rows(lambda rows: rows[1].update(tried=1)),
        f"VICReg on {TASK}: number of configurations tried is 1 in the file and 2 in the bundle",
    ),
    "another choice": (
        _rows(lambda rows: rows[1]["settings"].update({"optimizer.base_lr": "0.3"})),
        f"VICReg on {TASK}: optimizer.base_lr is 0.3 in the file and 0.5 in the bundle",
    ),
    "an unknown method": (
        _rows(lambda rows: rows.append({**rows[0], "row": "Marvel"})),
        f"Marvel on {TASK}: the bundle has no such row",
    ),
    "a name without end": (
        _rows(lambda rows: rows.append({**rows[0], "row": "M\x1b" + 200_000 * "x"})),
        rf"M\x1b{98 * 'x'}… on {TASK}: the bundle has no such row",
    ),
    "a row left out": (
        _rows(lambda rows: rows.pop()),
        f"VICReg on {TASK}: the bundle holds this row, and the file does not; a bundle is entered "
        "with all its rows",
    ),
    "a row twice": (_rows(lambda rows: rows.append(rows[0])), "a row is in it twice"),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_rows_that_are_not_those_of_the_bundle_are_refused(what: str, results: Path) -> None:
    how, reason = FORGERIES[what]
    path = results / "lab.rows.json"
    change(path, how)
    done = run("verify", path)
    assert (done.exit_code, done.output) == (1, f"{path}: {reason}\n1 misfit in 6 cells\n")


@pytest.mark.parametrize(
    "text, reason",
    [
        ("{", "lab.rows.json cannot be read ("),
        ('{"sha256": "0"}', "rows is missing"),
        ('{"sha256": "0", "rows": [{"task": "a"}]}', "rows.0.row is missing"),
        ('{"sha256": "00", "rows": [], "sh\\u0061256": "0"}', "the key 'sha256' is given twice"),
        ('{"sha256": "00", "rows": []}', "it is of another bundle (sha256 00) than "),
    ],
)
def test_what_is_no_rows_file_of_a_bundle_is_refused_in_a_line(
    text: str, reason: str, results: Path
) -> None:
    path = results / "lab.rows.json"
    path.write_text(text)
    done = run("verify", path)
    assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert reason in done.stderr


def test_a_bundle_that_is_missing_is_refused_and_named_by_the_leaderboard(results: Path) -> None:
    shutil.copy(results / "lab.tar.xz", results / "other.tar.xz")
    (results / "lab.tar.xz").unlink()
    path = results / "lab.rows.json"
    reason = f"{path}: there is no {results}/lab.tar.xz; put it there, or give its https:// address as url"
    for url in ("", f"file://{results}/other.tar.xz"):
        set_url(path, url)
        done = run("verify", path)
        assert (done.exit_code, done.stderr) == (2, f"regbench: {reason}\n")
    done = run("leaderboard", results, "--out", results / "board")
    assert f"left out: lab.rows.json: {reason}\n" in done.stderr


def test_a_forged_bundle_is_refused_before_its_rows_are_made(results: Path) -> None:
    parts = Parts(results / "lab.tar.xz")
    parts.score(parts.final[0])["value"] = 99.0
    parts.write(results / "lab.tar.xz")
    change(
        results / "lab.rows.json",
        lambda content: content.update(sha256=read_bundle(results / "lab.tar.xz").sha256),
    )
    done = run("verify", results / "lab.rows.json")
    assert done.exit_code == 1
    assert "more than its top-5" in done.output and "in the file" not in done.output


def test_every_configuration_counts_once_however_long_it_was_trained(results: Path) -> None:
    """A search trains some for a part of the epochs, and with a shorter warm-up."""
    parts = Parts(results / "lab.tar.xz")
    tuned = next(
        each for each in parts.records if (each["status"], each["method"]) == ("tuned", "vicreg")
    )
    parts.shorten(tuned)
    counted = {
        row.row: row.tried for row in entered_rows(read_bundle(parts.write(results / "lab.tar.xz")))
    }
    assert counted == {"VICReg": 2, "AUH": 2}
    parts.shorten(tuned, base_lr=0.7)
    counted = {
        row.row: row.tried for row in entered_rows(read_bundle(parts.write(results / "lab.tar.xz")))
    }
    assert counted == {"VICReg": 3, "AUH": 2}
    final = next(each for each in parts.final if each["method"] == "vicreg")
    parts.shorten(final).update(
        sweep="brief", choice={"hyperparameters": GIVEN}
    )  # so that rows differ in epochs
    counted = {
        row.row: row.tried for row in entered_rows(read_bundle(parts.write(results / "lab.tar.xz")))
    }
    assert (counted["VICReg, epochs=2"], counted["AUH, epochs=2"]) == (3, 2)


def test_a_seed_that_diverged_is_in_the_row(results: Path) -> None:
    parts = Parts(results / "lab.tar.xz")
    record = next(each for each in parts.final if (each["seed"], each["method"]) == (1, "auh"))
    record |= {"status": "diverged", "scores": []}
    (row,) = (
        row
        for row in entered_rows(read_bundle(parts.write(results / "lab.tar.xz")))
        if row.row == "AUH"
    )
    assert row.scores == {"knn_top1": {"0": 71.0, "1": None}, "linear_top1": {"0": 65.0, "1": None}}


def test_of_a_method_that_was_searched_again_the_row_has_what_both_searches_chose(
    results: Path,
) -> None:
    parts = Parts(results / "lab.tar.xz")
    parts.records = [
        each for each in parts.records if (each["status"], each["method"]) == ("done", "vicreg")
    ]
    for record in parts.records:
        search = record["choice"]["hyperparameters"]["search"] = record["seed"]
        record["seed"] = record["cell"]["seed"] = 1000 * search
        record["cell"]["method"]["alignment_weight"] += search
        record["cell"]["optimizer"]["base_lr"] += search
        parts.settle(record)
    (row,) = entered_rows(read_bundle(parts.write(results / "lab.tar.xz")))
    assert (row.row, row.tried, sorted(row.scores["knn_top1"])) == ("VICReg", 2, ["0", "1000"])
    both = {*parts.records[0]["cell"]["method"]} - {"alignment_weight"}
    assert row.settings.keys() == {f"method.{name}" for name in both}


class _Silent(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def address(submitted: Path) -> Iterator[str]:
    """Where a server has the bundle."""
    with ThreadingHTTPServer(("localhost", 0), partial(_Silent, directory=submitted)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}/lab.tar.xz"
        server.shutdown()


def test_a_bundle_that_lies_elsewhere_is_fetched(results: Path, address: str) -> None:
    path = results / "lab.rows.json"
    set_url(path, "http://localhost:9/lab.tar.xz")  # the one beside it is taken
    assert run("verify", path).exit_code == 0
    set_url(path, address)
    (results / "lab.tar.xz").unlink()
    done = run("verify", path)
    assert (done.exit_code, done.output.partition(";")[0]) == (0, "6 cells check out")
    found = write_leaderboard(results, results / "board")
    assert (found.bundles, found.left_out) == (1, ())
    wrong = {
        address.replace("lab", "none"): "404",
        "http://[/lab.tar.xz": "IPv6",
        "http://a b/lab.tar.xz": "control",
    }
    wrong |= {f"{scheme}://localhost:9/lab.tar.xz": "refused" for scheme in ("http", "https")}
    for other, why in wrong.items():
        set_url(path, other)
        done = run("verify", path)
        assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
        assert (
            f"lab.rows.json: its bundle cannot be fetched from '{other}'" in done.stderr
            and why in done.stderr
        )
