from __future__ import annotations

import csv
import gc
import json
import re
import shutil
import stat
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from PIL import Image

from regbench.benchmark.rundir.record import Record
from regbench.benchmark.rundir.record_parts import ImageSource, PastAttempt
from regbench.csv_files import read_csv
from regbench.reports import WrittenReport, write_report
from regbench.reports.find.records import read_records
from regbench.reports.page import drawing
from regbench.reports.tables.details import accuracy_table
from regbench.reports.tables.hyperparameters import hyperparameters_table
from regbench.reports.tables.table import to_markdown
from tests.command import python, run
from tests.records import chosen, ranked, tuning_choice
from tests.refusals import is_refused
from tests.reports.conftest import backbone, dataset, later, resign, score
from tests.reports.forging import set_leaf
from tests.reports.reading import Make, task

VOID = {"meta", "link", "br", "hr", "img", "input", "path", "use", "rect"}


class Page(HTMLParser):
    """Checks that elements nest, and collects what a test asks for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        values = dict(attrs)
        self.ids += [str(values["id"])] if "id" in values else []
        loading = {"src", "href", "data", "poster", "action", "srcset"} & set(values)
        self.loads += [str(values[name]) for name in loading]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert tag in VOID or self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.text += data


@pytest.fixture(scope="module")
def site(
    recorder: Callable[[Path], Make], tmp_path_factory: pytest.TempPathFactory
) -> tuple[WrittenReport, Page]:
    """The report of a sweep half-way: two seeds of three methods, one damaged record, one cell
    that only began.
    """
    runs = tmp_path_factory.mktemp("site") / "runs"
    record = recorder(runs)
    for seed in (0, 1):
        for i, label in enumerate(("SFRIK (L=3)", "<script>alert(1)</script>", "AUH")):
            values = {"knn": 70.0 + i + 0.3 * seed, "linear": 75.0 + i - 0.2 * seed}
            record(label, seed, tuning=71.0 + i, **values)
        record("untrained", seed, knn=65.0, linear=68.0)
    days = [("20T23:59:00", "21T00:30:00"), ("21T01:00:00", None), ("23T01:00:00", "24T05:30:00")]
    attempts = []
    for begin, end in days:
        ended = end and f"2026-11-{end}+00:00"
        attempts.append(PastAttempt(started=f"2026-11-{begin}+00:00", finished=ended))
    record("DCL", 5, attempts=tuple(attempts))
    record("SimCLR").write_text('{"schema_version": 1, ')
    (runs / "quickstart" / "0123456789ab").mkdir()
    (runs / "quickstart" / "0123456789ab" / "config.yaml").touch()
    report = write_report([runs / "quickstart"], runs.parent / "deep" / "report")
    return report, Page(report.page.read_text())


def test_a_report_is_made_without_torch(record: Make, runs: Path) -> None:
    record()
    program = "import sys, regbench; regbench.report(sys.argv[1]); sys.exit('torch' in sys.modules)"
    python(program, str(runs / "quickstart"), check=True)


def test_the_files(site: tuple[WrittenReport, Page]) -> None:
    report, out = site[0], site[0].page.parent
    stems = ("leaderboard", "accuracy", "cost", "hyperparameters", "significance")
    expected = {f"{stem}.{ending}" for stem in stems for ending in ("md", "tex")}
    expected |= {"index.html", "tidy.csv", "tidy.parquet", "leaderboard.csv", "significance.csv"}
    expected.add("accuracy_vs_effective_rank.png")  # all have the same time
    assert expected == {path.name for path in report.files}
    assert {path.name for path in out.iterdir()} == {*expected, ".files.json"}
    # On white, for dark pages too.
    with Image.open(out / "accuracy_vs_effective_rank.png") as picture:
        assert picture.convert("RGBA").getpixel((0, 0)) == (255, 255, 255, 255)
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o644 for path in out.iterdir())
    with (out / "tidy.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 6 * 3 + 3 * 2
    parquet = pd.read_parquet(out / "tidy.parquet")
    assert list(parquet.columns) == list(lines[0])
    assert list(parquet["value"]) == [float(line["value"]) for line in lines]
    for line in lines:
        made = json.loads(Path(line["record"]).read_text())
        assert (made["cell_id"], made["sha256"]) == (line["cell_id"], line["record_sha256"])
        config = f"runs/quickstart/{line['cell_id']}/config.yaml"
        assert line["command"] == f"regbench train --config {config}"
        assert Path(line["config"]).exists()
    ends = {line["finished"] for line in lines if line["label"] == "DCL"}
    assert ends == {"2026-11-24T05:30:00+00:00"}
    seen = [lines[0][name] for name in ("selected_on", "git", "hardware")]
    assert seen == ["given", "abc1234", "1 x Example CPU"]
    assert "SFRIK (L=3)" in report.leaderboard
    assert max(map(len, report.leaderboard.splitlines())) <= 120
    assert "not valid JSON" in report.skipped[0]


def test_the_page_stands_alone(site: tuple[WrittenReport, Page]) -> None:
    report, page = site
    outside = {load for load in page.loads if not load.startswith("#")}
    assert outside == {"https://example.org"}  # the link to the publication
    assert {load.removeprefix("#") for load in set(page.loads) - outside} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    text = report.page.read_text()
    assert not re.search(r"@import|url\((?!#)|https?:(?!//example.org)", text)
    # Rows of two scores, the effective rank, five curves.
    assert text.count('role="img"') == 8
    assert "currentColor" in text
    assert drawing.INK not in text
    for word in ("2026-11-20 to 2026-11-24", "9 finished", "0, 1, 5"):
        assert word in page.text
    # of all that are trained, as the untrained are not
    assert "<dt><code>epochs</code></dt><dd>3</dd>" in text
    assert "1 file is left out of this report" in page.text
    assert "1 cell of quickstart" in page.text
    assert page.tags.count("script") == 3  # the page's own
    assert "<script>alert(1)</script>" in page.text


SPOILED = yaml.safe_load(Path(__file__).with_name("spoiled.yaml").read_text())


def spoil(record: Path, how: dict[str, Any]) -> None:
    """Spoils a run directory; only with "sign" the digest of its record is taken anew."""
    folder = record.parent
    for name, text in how.get("write", {}).items():
        (folder / name).write_bytes(text.encode("latin-1"))
    for name, text in how.get("append", {}).items():
        (folder / name).write_text((folder / name).read_text() + text)
    for name, (old, new) in how.get("replace", {}).items():
        (folder / name).write_text((folder / name).read_text().replace(old, new))
    if "cut" in how:
        (folder / how["cut"]).write_text(record.read_text()[:100])
    if "remove" in how:
        (folder / how["remove"]).unlink()
    if "folder" in how:
        (folder / how["folder"]).unlink()
        (folder / how["folder"]).mkdir()
    if "rename" in how:
        old, new = how["rename"]
        (folder / old).rename((folder / old).with_name(new))
    if "choice" in how.get("sign", {}):
        tuning_choice(folder.parent)
    if "set" in how or "sign" in how:
        data = json.loads(record.read_text())
        for path, value in (how.get("set") or how["sign"]).items():
            set_leaf(data, path.split("."), value)
        record.write_text(json.dumps(data))
        if "sign" in how:
            resign(record)


def test_what_does_not_fit_is_in_no_table(runs: Path, record: Make) -> None:
    record("AUH", linear=80.0)
    spoiled = SPOILED["in the report"]
    for seed, how in enumerate(spoiled):
        spoil(record("VICReg", seed, linear=99.5), how)
    done = run("report", "quickstart", "--runs-dir", runs)
    assert done.exit_code == 0
    (warning,) = done.stderr.splitlines()
    assert warning.startswith(f"warning: {len(spoiled)} files are left out of the report: ")
    command = f"regbench report {runs / 'quickstart'}/ --check"
    assert warning.endswith(f"`{command}` tells all")
    assert "80.00*" in done.stdout
    for path in (runs / "quickstart" / "report").iterdir():
        if path.suffix in (".md", ".tex", ".csv"):
            assert "VICReg" not in path.read_text()
    page = Page((runs / "quickstart" / "report" / "index.html").read_text())
    assert f"{command} tells all" in page.text
    assert f"{len(spoiled)} files are left out of this report" in page.text
    assert f"and {len(spoiled) - 20} more" in page.text  # they do not fill it
    assert "VICReg" not in page.text


def test_an_evaluation_or_choice_that_misfits_is_left_out_alone(runs: Path, record: Make) -> None:
    path = record("VICReg", tuning=60.0)
    evaluation = later(path, score("voc07_map", 81.25))
    choice = runs / "quickstart" / "tuning_choice.json"
    tuning_choice(choice.parent, chosen("AUH", ranked("a" * 12, 12.34)))

    def shown() -> str:
        one = task(runs)
        return to_markdown(accuracy_table(one)) + to_markdown(hyperparameters_table(one))

    assert "81.25" in shown()
    assert "configuration for each method, chosen by" in shown()
    evaluation.write_text(evaluation.read_text().replace("81.25", "91.25"))
    choice.write_text(choice.read_text().replace("12.34", "92.34"))
    assert "VICReg" in shown()
    assert not re.search("81.25|91.25|configuration for each method, chosen by", shown())
    found = read_records(runs)
    assert "2 files are left out of the report" in found.warning
    assert {misfit.path for misfit in found.skipped} == {evaluation, choice}


def test_sparse_records_make_a_report(runs: Path, tmp_path: Path, record: Make) -> None:
    """Each on a data set of its own, so that each has its tables and figures in one report."""
    nothing: dict[str, Any] = {"knn": None, "linear": None}
    cases: dict[str, dict[str, Any]] = {
        "no_score": nothing,
        "untrained_only": {"label": "untrained"},
        "no_history": {"history": []},
        "no_cost": {"cost": {"train_s": None, "peak_memory_bytes": None}},
        "large": {"cost": {"train_s": 2**63}, "environment": {"threads": 2**63}},
        "no_provenance": {"command": "", "data": ImageSource("", {}), "attempts": ()},
        "diverged": {"status": "diverged", **nothing},
    }
    cases["no_provenance"]["environment"] = {"hardware": None, "git": None}
    cases["diverged"]["history"] = [{"epoch": 1, "loss": None, "uniformity": float("nan")}]
    for name, fields in cases.items():  # a figure of each kind is enough
        if name not in ("diverged", "no_cost", "untrained_only"):
            fields = {"knn": None, "history": [{"epoch": 1, "effective_rank": 9.0}], **fields}
        record(sweep=name, **fields, cell={"dataset": dataset(name)})
    in20 = {"dataset": dataset("in20"), "network": backbone("resnet18"), "embedding_dim": 8192}
    record("SFRIK (L=3)", linear=47.0, cell={**in20, "batch_size": 2048, "epochs": 100})
    report = write_report(runs, tmp_path / "report")
    page = Page(report.page.read_text())
    assert len(page.ids) == len(set(page.ids))
    names = {path.name for path in report.files}
    assert {f"leaderboard-{name}.md" for name in cases} <= names
    timed = {name for name in cases if f"accuracy_vs_time-{name}.png" in names}
    assert timed == {"no_history", "large", "no_provenance"}
    ranked = {name for name in cases if f"accuracy_vs_effective_rank-{name}.png" in names}
    assert ranked == {"no_cost", "large", "no_provenance"}
    assert {f"beside_paper.{ending}" for ending in ("md", "tex", "csv")} <= names
    assert "Ours and the paper's" in page.text
    others = write_report(runs / "no_score", tmp_path / "other").files
    assert "beside_paper.md" not in {path.name for path in others}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_every_table_compiles(runs: Path, tmp_path: Path, record: Make) -> None:
    energy = {"energy_gpu_joules": 5e4}
    for seed in range(3):
        for label in ("I-VNE⁺ & 50 % of $x_1$ #{~^\\}", "Ω-method é", "VICReg"):
            record(label, seed, tuning=60.0 + seed, linear=70.0 + seed**2, cost=energy)
    record("AUH", status="diverged", knn=None, linear=None)
    in20 = {"dataset": dataset("in20"), "network": backbone("resnet18")}
    record("VICReg", sweep="other", cell=in20)
    report = write_report(runs, tmp_path / "report")
    tables = [path for path in report.files if path.suffix == ".tex"]
    assert len(tables) == 2 * 5
    # A page each, wide enough for any of them; pdflatex stops at the first error and leaves with 1.
    body = "\n\\newpage\n".join(f"\\input{{{path.name}}}" for path in tables)
    head = "\\documentclass{article}\n\\usepackage{booktabs}\n\\pdfpagewidth=60in\n"
    document = f"\\begin{{document}}\n{body}\n\\end{{document}}\n"
    (tmp_path / "report" / "all.tex").write_text(head + document)
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "all.tex"]
    done = subprocess.run(
        command, cwd=tmp_path / "report", capture_output=True, text=True, errors="replace"
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert f"({len(tables)} pages" in done.stdout


def test_a_failed_write_leaves_the_old_report(
    runs: Path, tmp_path: Path, record: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(knn=None, linear=None, history=[])  # with nothing to draw
    out = tmp_path / "report"
    write_report(runs, out)
    before = {path: path.read_bytes() for path in out.iterdir()}
    record("AUH", knn=None, linear=None, history=[])

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with is_refused("No space left on device"):
        write_report(runs, out)
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    with is_refused("cannot write to"):
        write_report(runs, out / "index.html")


def test_labels_are_no_formulas_of_a_spreadsheet(runs: Path, tmp_path: Path, record: Make) -> None:
    for label, method in (("=1+1", "VICReg"), ("-2+3|x", "AUH")):
        for seed in (0, 1):
            resign(record(method, seed, environment={"@head": "+y"}), label=label)
    written = write_report(runs, tmp_path / "report").files
    files = [path for path in written if path.suffix == ".csv"]
    assert {path.stem for path in files} == {"leaderboard", "significance", "tidy"}
    for path in files:
        text = path.read_text()
        cells = {cell for row in csv.reader(text.splitlines()) for cell in row}
        assert {"'=1+1", "'-2+3|x"} <= cells
        assert not any(cell.startswith(("=", "+", "@")) for cell in cells), path
        assert {"=1+1", "-2+3|x"} <= {cell for row in read_csv(text) for cell in row.values()}


def test_tasks_whose_names_differ_in_signs_have_files_of_their_own(
    runs: Path, tmp_path: Path, record: Make
) -> None:
    for name in ("my-data", "my_data"):
        record(sweep=name, cell={"dataset": dataset(name)})
    report = write_report(runs, tmp_path / "report")
    leaderboards = [path for path in report.files if path.match("leaderboard-*.csv")]
    assert len({*leaderboards}) == 2 and all(path.exists() for path in leaderboards)


def test_nothing_of_a_report_stays_in_memory(runs: Path, tmp_path: Path, record: Make) -> None:
    for seed in (0, 1, 2):
        record("VICReg", seed)
        record("AUH", seed)
    write_report(runs, tmp_path / "report")
    gc.collect()
    records = [each for each in gc.get_objects() if type(each) is Record]
    assert not any(each.path.is_relative_to(runs) for each in records)


def test_styles_are_distinct_and_stay() -> None:
    labels = [f"method {i:02}" for i in range(20)]
    style = drawing.styles(labels)
    assert len({(s.colour, s.marker) for s in style.values()}) == 20
    assert drawing.styles(reversed(labels)) == style


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ([1.0, 5.0], [1.0, 5.0]),
        ([5.0, 5.0, 5.0], [4.0, 5.0, 6.0]),
        ([0.0, 0.0], [0.0, 1.0]),
        ([10.0, 10.0, 10.0], [8.0, 9.0, 10.0]),
        ([4.9, 5.0, 5.9, 9.0], [4.2666666, 5.2666666, 6.2666666, 9.0]),
        ([5.0] * 12, list(range(12))),  # more than there is room for
    ],
)
def test_labels_are_spread_out(wanted: list[float], expected: list[float]) -> None:
    assert drawing.separated(wanted, 1.0, 10.0) == pytest.approx(expected)


def test_files_of_an_earlier_report_that_this_one_does_not_write_are_removed(
    runs: Path, record: Make, tmp_path: Path
) -> None:
    """Once there is a second task, the names end in that of the task."""
    out = tmp_path / "out"
    record("AUH")
    first = write_report(runs, out)
    (out / "mine.txt").touch()
    record("VICReg", cell={"dataset": dataset(99 * "x")})
    second = write_report(runs, out)
    assert write_report(runs, out).files == second.files
    assert out / "leaderboard.csv" in {*first.files} - {*second.files}
    kept = {"mine.txt", ".files.json"}
    assert {path.name for path in out.iterdir()} == {path.name for path in second.files} | kept
