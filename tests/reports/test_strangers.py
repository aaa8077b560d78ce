"""Bundles and names of strangers: none stops a command, moves a terminal or passes for what it
is not.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from click.testing import Result

from tests.command import python, run
from tests.reports.conftest import tuned_sweep
from tests.reports.forging import Json, Parts, set_leaf
from tests.reports.reading import cells_in

HOSTILE = (
    "$\\frac{$\x00\x1b]0;pwned\x07\x9b2J\n\r\u2028\u202eGERciV\u200b{x}%s]]></text></script><img "
    "src=x>" + "x" * 4_000,
    "nan",
    "",
)


def left_out(result: Result) -> dict[str, str]:
    """The names of the bundles that a leaderboard leaves out, each with the reason."""
    lines = [line.removeprefix("left out: ") for line in result.stderr.splitlines()]
    return {name: reason for name, _, reason in (line.partition(": ") for line in lines)}


def write_everywhere(parts: Parts, text: str) -> None:
    """Puts a text wherever nothing else says what should stand there."""
    for record in parts.records:
        record["cell"]["dataset"]["name"] += f"-{len(text)}"
        record["cell"]["augmentation"]["name"] = f"{text}{record['cell']['optimizer']['base_lr']}"
        record["environment"] = dict.fromkeys(("hardware", "git", "loader", text), text)
        names = ("reference", "formula", "url", "limitation", text)
        record["regularizer"] = dict.fromkeys(names, text)
        record["data"]["source"] = record["cost"]["peak_memory_kind"] = text
        record["attempts"][0]["error"] = record["attempts"][0]["hostname"] = text
        for score in record["scores"]:
            score["title"] = score["protocol"] = text
        _settle(parts, record)


def _settle(parts: Parts, record: Json) -> None:
    old = record["cell_id"]
    parts.settle(record)
    for entry in parts.choices[0]["choices"]:
        for one in (entry, *entry["ranking"]):
            for name in ("chosen", "cell_id", "configuration"):
                if one.get(name) == old:
                    one[name] = record["cell_id"]


def test_no_text_stops_the_site(lab: Path, tmp_path: Path) -> None:
    for number, text in enumerate(HOSTILE):
        parts = Parts(lab)
        write_everywhere(parts, text)
        parts.write(tmp_path / f"{number}.tar.xz")
    done = run("leaderboard", tmp_path, "--out", tmp_path / "site")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{len(HOSTILE)} bundles: ")
    page = tmp_path / "site" / "index.html"
    text = page.read_text().replace("\n", "")
    assert text.isprintable() and r"\u001b" not in text
    assert all(len(letters) < 600 for letters in re.findall("<text[^>]*>([^<]*)", text))
    assert all(int(px) < 2000 for px in re.findall(r"min-width: (\d+)px", text))
    assert all(map(_texts_are_printable, cells_in(page)))
    assert any(r"\u202eGERciV\u200b" in cell["data"]["source"] for cell in cells_in(page))
    assert r"\u202eGERciV\u200b" in text


NO_NAMES = (
    *("../../x", "/abs", "a/b", ".a", "-a", "", "a\n\x1b[2J\u202eb", "<img src=x>", "\u043e"),
    *("a\n", "x" * 101, "x" * 200_000),
)
# How a refusal calls a place, and where it is in the first final record or in a choice.
PLACES = {
    "sweep": "sweep",
    "cell_id": "cell_id",
    "metrics.file": "metrics.file",
    "checkpoint.file": "checkpoint.file",
    "dataset.name": "cell.dataset.name",
    "hyperparameters.record": "choice.hyperparameters.record",
    "content_sha256": "data.content_sha256.{}",
    "chosen": "choices.0.chosen",
    "cell_id of a ranking": "choices.0.ranking.0.cell_id",
}


@pytest.mark.parametrize("place", PLACES)
def test_a_name_that_is_none_is_refused_in_a_line(place: str, lab: Path, tmp_path: Path) -> None:
    shutil.copy(lab, tmp_path)
    for number, name in enumerate(NO_NAMES):
        # a choice lies in the folder of its sweep
        if (place, name) != ("hyperparameters.record", "a/b"):
            parts = Parts(lab)
            steps = [name if step == "{}" else step for step in PLACES[place].split(".")]
            set_leaf(parts.choices[0] if "choices" in steps else parts.final[0], steps, name)
            done = run("verify", parts.write(tmp_path / f"{number}.tar.xz"))
            refused = done.stderr.removesuffix("\n")
            assert (done.exit_code, done.stdout) == (2, ""), done.output
            assert refused.isprintable() and len(refused) < 600, refused
            assert place.partition(" ")[0] in refused
            assert re.search("a name of 1 to 100|no path of names", refused)
    done = run("leaderboard", tmp_path, "--out", tmp_path / "site")
    assert done.stdout.startswith("1 bundle: ")
    assert len(left_out(done)) == len([*tmp_path.glob("[0-9]*.tar.xz")])


ENDLESS = "\x1b" + 200_000 * "x"
TEXTS: dict[str, tuple[int, dict[str, object]]] = {
    "label": (1, {"label": ENDLESS}),
    "method": (1, {"method": ENDLESS}),
    "command": (1, {"command": ENDLESS}),
    "time": (1, {"attempts.1.finished": ENDLESS}),
    "unit": (1, {"scores.0.unit": ENDLESS}),
    "score above 100 %": (2, {"scores.0.name": ENDLESS, "scores.0.value": 101.0}),
    "candidates": (1, {"choice.probe_learning_rate.candidates": {ENDLESS: 99.0}}),
    "a setting": (2, {f"cell.{ENDLESS}": 1}),
}


@pytest.mark.parametrize("what", TEXTS)
def test_a_text_without_end_is_cut_in_a_refusal(what: str, lab: Path, tmp_path: Path) -> None:
    parts, (code, leaves) = Parts(lab), TEXTS[what]
    for path, value in leaves.items():
        set_leaf(parts.final[0], path.split("."), value)
    done = run("verify", parts.write(tmp_path / "lab.tar.xz"))
    assert done.exit_code == code, done.output
    for line in done.output.splitlines():
        assert line.isprintable() and len(line) < 700, line[:2000]


def _texts_are_printable(data: object) -> bool:
    if isinstance(data, dict):
        return all(_texts_are_printable(each) for each in (*data.keys(), *data.values()))
    if isinstance(data, list):
        return all(map(_texts_are_printable, data))
    return not isinstance(data, str) or data.isprintable()


def test_names_of_strangers_are_printed_as_escapes(lab: Path, tmp_path: Path) -> None:
    parts = Parts(lab)
    parts.members["\x1b]0;pwned\x07\u202egpj.json"] = b"{}"
    folder = tmp_path / "results"
    folder.mkdir()
    shutil.copy(lab, folder / os.fsdecode(b"\xfe\x1b[2J.tar.xz"))
    loud = parts.write(folder / os.fsdecode(b"\xff\x1b[2J.tar.xz"))
    refused = r"\x1b]0;pwned\x07\u202egpj.json does not belong into a bundle"
    done = run("verify", loud)
    assert done.stderr.replace("\n", "").isprintable()
    assert refused in done.stderr
    done = run("leaderboard", folder, "--out", tmp_path / "site")
    assert done.exit_code == 0, done.exception
    assert left_out(done)[r"\udcff\x1b[2J.tar.xz"].endswith(f"{refused}; ask for it again")
    page = (tmp_path / "site" / "index.html").read_text()
    assert r"\udcff\x1b[2J" in page and refused in page
    first, *_ = cells_in(tmp_path / "site" / "index.html")
    assert first["path"].startswith(r"\udcfe\x1b[2J.tar.xz/mine/")


def test_a_report_of_a_strangers_folder_prints_escapes(tmp_path: Path) -> None:
    sweep = tuned_sweep(tmp_path, "\x1b[2J")
    next(sweep.glob("*/record.json")).write_text("{}")
    for done in (run("report", sweep, "--check"), run("report", sweep)):
        assert r"\x1b[2J" in done.output
        assert "\x1b" not in done.output


def test_a_log_prints_escapes() -> None:
    program = "import sys, logging, atexit; from regbench.cli import main\n"
    program += r"atexit.register(logging.warning, 'a\nb\x1b[2J\u202e'); main(['cost', '--help'])"
    done = python(program, check=True)
    assert done.stderr == "a\nb\\x1b[2J\\u202e\n"


def test_numbers_that_no_training_has_are_not_drawn(lab: Path, tmp_path: Path) -> None:
    """A rank of 0 has no place on its axis, a logarithmic one; squares of the losses are no
    floats.
    """
    parts = Parts(lab)
    for record in parts.records:
        parts.history(record, lambda rows: rows[-1].update(effective_rank=0.0))
        parts.history(record, lambda rows: rows[-1].update(loss=1e200 * rows[0]["epoch_s"]))
    parts.write(tmp_path / "odd.tar.xz")
    done = run("leaderboard", tmp_path, "--out", tmp_path / "site")
    assert (done.exit_code, done.stderr) == (0, "")
