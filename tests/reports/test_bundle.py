"""Bundles: what is packed, and forgeries of it, each of which is refused with its reason."""

from __future__ import annotations

import errno
import json
import lzma
import math
import os
import re
import shutil
import tarfile
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from regbench.benchmark.rundir.record import Record
from regbench.reports.bundle import bundle
from regbench.reports.bundle.bundle import Bundle, read_bundle
from regbench.reports.bundle.pack import submit
from regbench.reports.bundle.recompute import Recomputed, differences, drawn_cells
from tests.command import refusal, run
from tests.records import CELL, made, plan
from tests.refusals import is_refused
from tests.reports.conftest import resign, score, tuned_sweep
from tests.reports.forging import Parts, write_tar
from tests.there import there
from tests.waiting import PATIENCE_S, wait_for

LEADERBOARD = Path(__file__).parents[2] / "docs" / "leaderboard.md"


def test_an_honest_bundle_checks_out(honest: Path) -> None:
    done = run("verify", honest)
    assert (done.exit_code, done.output.partition(";")[0]) == (0, "6 cells check out")


def test_the_same_cells_give_the_same_file(honest: Path, tmp_path: Path) -> None:
    again, light = tmp_path / "again.tar.xz", tmp_path / "light.tar.xz"
    folders = [honest.parent / "runs" / "mine"]
    submit(folders, again, weights=True)
    assert again.read_bytes() == honest.read_bytes()
    submit(folders, light)
    assert light.stat().st_size < 5000 * 6
    assert read_bundle(light).weights == frozenset()
    assert run("verify", light).exit_code == 0


def test_neither_the_order_nor_the_place_of_sweeps_changes_the_file(tmp_path: Path) -> None:
    tuned_sweep(tmp_path / "runs")
    tuned_sweep(tmp_path / "runs", "other", "evaluation.select_on=test")
    files = []
    for names in (("mine", "other"), ("other", "mine")):
        out = tmp_path / f"{names[0]}.tar.xz"
        assert run("submit", *names, "--runs-dir", tmp_path / "runs", "--out", out).exit_code == 0
        files.append(out.read_bytes())
    (tmp_path / "runs" / "mine").rename(tmp_path / "runs" / "then")
    submit([tmp_path / "runs" / "then", tmp_path / "runs" / "other"], tmp_path / "moved.tar.xz")
    assert files == 2 * [(tmp_path / "moved.tar.xz").read_bytes()]


def test_nothing_is_submitted_that_does_not_check_out(tmp_path: Path) -> None:
    runs, out = tmp_path / "runs", tmp_path / "lab.tar.xz"
    sweep = tuned_sweep(runs)
    command = ("submit", "mine", "--runs-dir", runs, "--out", out)
    assert "give an --out that ends in .tar.xz" in run(*command[:-1], tmp_path / "lab.zip").stderr
    record = next(sweep.glob("*/record.json"))
    text = record.read_text()
    record.write_text(text.replace("70.0", "80.0").replace("71.0", "81.0"))
    assert re.search("cannot be submitted.*its content is not what its sha256", refusal(*command))
    record.write_text(text)
    (sweep / "tuning_choice.json").rename(tmp_path / "tuning_choice.json")
    assert "which is not here" in run(*command).stderr
    assert list(tmp_path.glob("*.tar.xz")) == []
    (tmp_path / "tuning_choice.json").rename(sweep / "tuning_choice.json")
    next(sweep.glob("*/checkpoint-*.pt")).unlink()
    told = refusal(*command, "--weights")
    assert "is gone, and cannot be packed; leave out --weights" in told
    assert run(*command).exit_code == 0


def test_what_a_killed_submit_leaves_is_swept(
    honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    command = ("submit", "mine", "--runs-dir", honest.parent / "runs", "--out", out / "lab.tar.xz")
    replace = Path.replace

    def watched(path: Path, target: Path) -> Path:
        # what a kill here would leave
        shutil.copytree(out, tmp_path / "killed", dirs_exist_ok=True)
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", watched)
        assert run(*command).exit_code == 0
    left = {path.name for path in (tmp_path / "killed").iterdir()}
    assert left == {".lab.tar.xz.lock", ".lab.tar.xz.unfinished"}
    shutil.copytree(tmp_path / "killed", out, dirs_exist_ok=True)
    assert run(*command).exit_code == 0
    assert {path.name for path in out.iterdir()} == {"lab.tar.xz"}


def test_of_several_that_submit_at_once_each_has_the_bundle(
    honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    out, folders = tmp_path / "new" / "lab.tar.xz", [honest.parent / "runs" / "mine"]
    all_wait = threading.Event()

    def held(path: Path) -> Bundle:
        assert all_wait.wait(PATIENCE_S)
        return read_bundle(path)

    monkeypatch.setattr("regbench.reports.bundle.pack.read_bundle", held)
    with caplog.at_level("INFO", "regbench"), ThreadPoolExecutor(3) as pool:
        found = [pool.submit(submit, folders, out) for _ in range(3)]
        said = f"waiting for another process that writes {out}"
        wait_for(lambda: caplog.messages.count(said) == 2 or any(each.done() for each in found))
        all_wait.set()
        assert {each.result().sha256 for each in found} == {read_bundle(out).sha256}
    assert {path.name for path in out.parent.iterdir()} == {"lab.tar.xz"}


@pytest.mark.parametrize("command", ["submit", "report", "leaderboard"])
def test_a_pipe_is_refused_and_stays(honest: Path, tmp_path: Path, command: str) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    runs = [] if command == "leaderboard" else ["--runs-dir", honest.parent / "runs"]
    what = honest.parent if command == "leaderboard" else "mine"
    assert str(pipe) in refusal(command, what, *runs, "--out", pipe)
    assert list(tmp_path.iterdir()) == [pipe] and pipe.is_fifo()


def test_a_cell_of_two_sweeps_is_not_packed_twice(tmp_path: Path) -> None:
    tuned_sweep(tmp_path / "runs")
    tuned_sweep(tmp_path / "runs", "other")
    folders = [tmp_path / "runs" / "mine", tmp_path / "runs" / "other"]
    with is_refused("leave one of the two sweeps out"):
        submit(folders, tmp_path / "lab.tar.xz")
    next(tmp_path.glob("runs/mine/*/record.json")).write_text("{}")
    with is_refused(r"; `regbench report .*/mine/ .*/other/ --check` tells all"):
        submit(folders, tmp_path / "lab.tar.xz")


def test_a_forgery_without_all_digests_is_refused(honest: Path, tmp_path: Path) -> None:
    parts = Parts(honest)
    parts.score(parts.final[0])["value"] = 75.0
    told = refusal("verify", parts.write(tmp_path / "forged.tar.xz", signed=False))
    reason = r"mine/\w+/record.json: its content is not what its sha256 was taken of"
    assert re.search(f"writes it: {reason}", told)


def test_what_is_no_bundle_is_refused_in_one_line(honest: Path, tmp_path: Path) -> None:
    """Nor is what was cut, or damaged wherever it is, even in the checksum at the end."""
    broken, whole = tmp_path / "broken.tar.xz", honest.read_bytes()
    contents = [b"", b"words", whole[:2000], whole[2000:]]
    for place in (60, len(whole) // 2, -40):
        damaged = bytearray(whole)
        damaged[place] ^= 255
        contents.append(bytes(damaged))
    for content in contents:
        broken.write_bytes(content)
        assert "is no bundle as `regbench submit` writes it" in refusal("verify", broken)


RUN = f"mine/{12 * 'a'}"


def member(name: str = f"{RUN}/record.json", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    """A member of an archive, and its content."""
    content = fields.pop("content", b"{}")
    found = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(found, field, value)
    return found, content


SPARSE = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "8"}
LONG = {"comment": "x" * 2**20}
NO_FILE = "is no regular file"
HOSTILE: dict[str, tuple[list[tuple[tarfile.TarInfo, bytes]], str]] = {
    "above the folder": ([member("../outside.json")], "../outside.json does not belong"),
    "an absolute path": ([member("/outside.json")], "/outside.json does not belong"),
    "a hidden file": ([member("mine/.profile")], "mine/.profile does not belong"),
    "a path of signs": ([member("a\x1b[2J\u202eb")], r"a\x1b[2J\u202eb does not belong"),
    "a deep folder": ([member("a/b/c/d/e.json")], "a/b/c/d/e.json does not belong"),
    "a link": ([member(type=tarfile.SYMTYPE, linkname="/etc/passwd")], NO_FILE),
    "a hard link": ([member(type=tarfile.LNKTYPE, linkname="/etc/passwd")], NO_FILE),
    "a device": ([member(type=tarfile.CHRTYPE)], NO_FILE),
    "a pipe": ([member(type=tarfile.FIFOTYPE)], NO_FILE),
    "a folder": ([member("mine", type=tarfile.DIRTYPE)], f"mine {NO_FILE}"),
    "a sparse file": ([member(content=b"1\n0\n8\n" + bytes(512), pax_headers=SPARSE)], NO_FILE),
    "a member twice": ([member(), member()], "record.json is in it twice"),
    "a file that is a folder": ([member("mine/a.json"), member("mine/a.json/b")], "File exists"),
    "no member": ([], "it holds no record"),
    "no run": ([member("mine/words.txt")], "mine/words.txt does not belong"),
    "a run without a record": ([member(f"{RUN}/config.yaml")], "config.yaml does not belong"),
    "a record in no sweep": ([member("record.json")], "schema version None"),
    "no JSON": ([member(content=b"{")], f"{RUN}/record.json: not valid JSON"),
    "a member without end": (
        [member(size=2**40)],
        "record.json unpacks to 1,099,511,627,776 bytes, which are too many",
    ),
    "headers of its own": ([member(pax_headers={"note": "x"})], "has headers that no bundle has"),
    "a size below zero": ([member(pax_headers={"size": "-5"})], "which are too many"),
    "a name without end": ([member(pax_headers=LONG)], "it unpacks to more than its files"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_archive_is_refused_in_a_line(what: str, tmp_path: Path) -> None:
    members, reason = HOSTILE[what]
    hostile = write_tar(tmp_path / "hostile.tar.xz", *members)
    told = refusal("verify", hostile)
    assert "is no bundle as `regbench submit` writes it: " in told
    assert reason in told
    assert [*tmp_path.iterdir()] == [hostile]


def moved(bundle: Path, out: Path, old: str, new: str) -> Path:
    """The bundle with other names of its files."""
    members = []
    with tarfile.open(bundle) as archive:
        for found in archive:
            content = there(archive.extractfile(found))
            members.append(member(found.name.replace(old, new), content=content.read()))
    return write_tar(out, *members)


@pytest.mark.parametrize("place", ["other/tuning_choice.json", "tuning_choice.json"])
def test_a_choice_lies_beside_the_cells_it_chose(place: str, honest: Path, tmp_path: Path) -> None:
    bundle = moved(honest, tmp_path / "moved.tar.xz", "mine/tuning_choice.json", place)
    assert f"{place} does not belong" in refusal("verify", bundle)


def test_a_choice_may_stand_beside_cells_that_were_only_tuned(honest: Path, tmp_path: Path) -> None:
    parts = Parts(honest)
    for record in parts.final:
        record["status"] = "tuned"
    done = run("verify", parts.write(tmp_path / "tuned.tar.xz"))
    assert "does not belong" not in done.output, done.output


def test_no_more_is_unpacked_than_is_allowed(
    honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "unpacked"))
    (tmp_path / "unpacked").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", None)
    bombs = {
        "weights": [member(f"{RUN}/x{n}.pt", content=bytes(2**20)) for n in range(4)],
        "texts": [member(f"{RUN}/x{n}.json", content=bytes(2**10)) for n in range(4)],
    }
    monkeypatch.setattr(bundle, "WHOLE_BYTES", 2**21)
    monkeypatch.setattr(bundle, "TEXT_BYTES", 2**9)
    monkeypatch.setattr(bundle, "MOST_FILES", 20)
    told = {}
    for name, members in bombs.items():
        told[name] = run("verify", write_tar(tmp_path / f"{name}.tar.xz", *members)).stderr
    assert "x2.pt unpacks to 1,048,576 bytes, which are too many" in told["weights"]
    assert "x0.json unpacks to 1,024 bytes, which are too many" in told["texts"]
    monkeypatch.setattr(bundle, "TEXT_BYTES", 2**24)
    assert "it holds more than 20 files" in run("verify", honest).stderr
    assert [*(tmp_path / "unpacked").iterdir()] == []


def test_a_full_disk_is_no_fault_of_a_bundle(honest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", full)
    told = refusal("verify", honest)
    assert "is no bundle" not in told
    assert "No space left on device; make room, or set TMPDIR" in told


def test_what_comes_after_the_archive_is_not_read_without_end(honest: Path, tmp_path: Path) -> None:
    long, short = tmp_path / "long.tar.xz", tmp_path / "short.tar.xz"
    content = lzma.decompress(honest.read_bytes())
    long.write_bytes(lzma.compress(content + bytes(2**20)))
    short.write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
    assert "it unpacks to more than its files" in run("verify", long).stderr
    # Other programs would unpack it, over the files before.
    cut = lzma.compress(content.rstrip(bytes(1)) + bytes(512))
    for more in (cut + honest.read_bytes(), lzma.compress(content + content)):
        long.write_bytes(more)
        assert "it goes on behind its end" in run("verify", long).stderr
    assert read_bundle(short).sha256 == read_bundle(honest).sha256
    greedy = tmp_path / "greedy.tar.xz"
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 2**28}]
    greedy.write_bytes(lzma.compress(b"x", filters=filters))
    assert "Memory usage limit exceeded" in run("verify", greedy).stderr


def test_a_record_lies_in_the_folder_of_its_sweep(honest: Path, tmp_path: Path) -> None:
    told = refusal("verify", moved(honest, tmp_path / "moved.tar.xz", "mine/", "themine/"))
    assert re.search(r"themine/\w+/record.json: is of the sweep mine", told)


def test_a_bundle_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with is_refused(r"none\.tar\.xz is no bundle .*: No such file or directory; ask for it again"):
        read_bundle(tmp_path / "none.tar.xz")


def test_a_bundle_that_was_read_says_all_that_it_holds(honest: Path, tmp_path: Path) -> None:
    found = read_bundle(honest)
    parts = Parts(honest)
    ids = sorted(record["cell_id"] for record in parts.records)
    assert [record.cell_id for record in found.records] == ids
    assert found.choices.keys() == {choice["sha256"] for choice in parts.choices}
    assert found.histories == {
        record["cell_id"]: parts.histories[record["metrics"]["sha256"]].encode()
        for record in parts.records
    }
    assert found.weights == {record["checkpoint"]["sha256"] for record in parts.records}
    assert found.later == {(parts.evaluations[0]["cell_id"], "voc07_map", "test")}
    record = found.records[0]
    assert {each.path for each in found.records} == {
        Path("mine", each.cell_id, "record.json" if each.status == "done" else "tuning.json")
        for each in found.records
    }
    assert record.checkpoint is not None
    assert read_bundle(honest, tmp_path).sha256 == found.sha256
    weights = tmp_path / record.path.with_name(record.checkpoint.file)
    assert weights.read_bytes() == f"weights of {record.cell_id}".encode()
    assert Record.read(tmp_path / record.path).sha256 == record.sha256


def test_what_was_packed_is_told_and_nothing_else_is_left(tmp_path: Path) -> None:
    sweep, out = tuned_sweep(tmp_path / "runs"), tmp_path / "out" / "lab.tar.xz"
    plan(sweep, *({"id": name * 12, "label": "DCL"} for name in "ab"))
    (sweep / ("b" * 12)).mkdir()
    (sweep / ("b" * 12) / "config.yaml").touch()
    done = submit([sweep], out)
    assert (done.cells, done.missing, done.size_bytes) == (6, 2, out.stat().st_size)
    assert done.sha256 == read_bundle(out).sha256
    assert read_bundle(out).weights == set()
    for path in sweep.glob("*/record.json"):
        data = json.loads(path.read_text())
        data["scores"][0]["value"] = 99.0
        resign(path, scores=data["scores"])
    shutil.rmtree(out.parent)
    one = f"mine/{min(path.parent.name for path in sweep.glob('*/record.json'))}/record.json"
    with is_refused(rf"{one}: .*more than its top-5.* \(and \d+ more\); docs/leaderboard.md says"):
        submit([sweep], out)
    assert list(out.parent.iterdir()) == []


def test_how_near_scores_have_to_come_again() -> None:
    """Of three seeds of one method and two of another.

    A loss of -200, which has no unit, was measured once.
    """

    def record(method: str, seed: int, knn: float) -> Record:
        cell = {**CELL, "method": {"name": method}, "seed": seed}
        return made(cell, seed=seed, scores=(score("later", 5.0), score("knn_top1", knn)))

    seeds = [record("a", seed, 70.0 + 2 * seed) for seed in range(3)]
    seeds += [record("b", seed, 60.0 + seed) for seed in (0, 1)]
    first = replace(seeds[0], scores=(*seeds[0].scores, score("loss", -200.0, unit="")))
    later = frozenset({(first.cell_id, "later", "test")})
    found = Bundle(Path(), "0" * 64, (first, *seeds[1:], record("c", 0, 10.0)), {}, {}, later=later)
    pooled = 3 * math.sqrt(2) * math.sqrt((2 * 4.0 + 1 * 0.5) / 3)
    # Of knn_top1 and of the loss, where it is trained again and where it is not.
    bounds = {True: (pooled, 4 * 0.01 * 200), False: (0.5, 0.01 * 200)}
    for trained, alike in product((True, False), repeat=2):
        tolerances = (0.0, 0.0) if alike else bounds[trained]
        for sign in (-1, 1):
            for change, told in ((-1e-6, 0), (1e-6, 2)):
                changes = [sign * max(tolerance + change, 0.0) for tolerance in tolerances]
                changed = zip(first.scores[1:], changes, strict=True)
                again = [replace(each, value=each.value + by) for each, by in changed]
                lines = differences(found, first, Recomputed(trained, alike, again))
                assert len(lines) == told, lines
        how = "it was trained again" if trained else "its weights were evaluated again"
        rules = [f"{how}; {tolerance:.2g} is the tolerance" for tolerance in tolerances]
        rules = [f"{how}; they must be equal"] * 2 if alike else rules
        assert [line.partition(" here, where ")[2] for line in lines] == rules


def test_which_cells_are_computed_again_follows_from_the_whole_bundle(honest: Path) -> None:
    found = read_bundle(honest)
    others = [replace(found, sha256=f"{i:064x}") for i in range(8)]
    assert len({tuple(record.cell_id for record in drawn_cells(other, 2)) for other in others}) > 1


def test_published_weights_and_what_was_only_tuned_are_not_computed_again(honest: Path) -> None:
    found = read_bundle(honest)
    first, *others = (record for record in found.records if record.status == "done")
    tuned = [record for record in found.records if record.status == "tuned"]
    published = replace(first, cell={**first.cell, "external": {}})
    diverged = replace(first, status="diverged", scores=())
    drawn = drawn_cells(replace(found, records=(published, diverged, *tuned, *others)), 9)
    assert {record.cell_id for record in drawn} == {record.cell_id for record in others}


def test_scores_of_later_evaluations_need_not_come_again(honest: Path) -> None:
    found = read_bundle(honest)
    (record,) = (each for each in found.records if each.score("voc07_map", "test") is not None)
    own = [each for each in record.scores if each.name != "voc07_map"]
    at_end = {"effective_rank": 30.0}
    assert differences(found, record, Recomputed(True, True, own, at_end)) == []
    (line,) = differences(found, record, Recomputed(True, True, own[1:], at_end))
    assert line.endswith(f"{own[0].name} on {own[0].split} did not come again")


def test_what_came_again_and_was_not_handed_in_is_told(honest: Path) -> None:
    """A low score that was left out, and a measure of the embeddings that is another."""
    found = read_bundle(honest)
    record = next(record for record in found.records if record.status == "done")
    own = [each for each in record.scores if each.name != "voc07_map"]
    again = Recomputed(True, True, own, {"effective_rank": 30.0})
    lacking = replace(record, scores=tuple(own[1:]))
    (line,) = differences(found, lacking, again)
    assert line.endswith(f"{own[0].name} on {own[0].split}, which came here, is left out there")
    (line,) = differences(found, record, replace(again, at_end={"effective_rank": 31.0}))
    assert line.endswith("{'effective_rank': 30.0} at the end, and {'effective_rank': 31.0} here")
    # Elsewhere they may differ.
    elsewhere = Recomputed(True, False, own, {"effective_rank": 31.0})
    assert differences(found, record, elsewhere) == []
