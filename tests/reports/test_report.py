from __future__ import annotations

import csv
import json
import re
import shutil
import stat
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from regbench import RegbenchError
from regbench.benchmark.rundir.record import Images, PastAttempt
from regbench.cli import main
from regbench.reports import write_report
from regbench.reports.page import figures
from tests.records import chosen, ranked, tuning_choice
from tests.reports.conftest import backbone, dataset, later, resign, score

Make = Callable[..., Path]

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
        if tag in VOID:
            return
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.text += data


@pytest.fixture
def sweep(record: Make) -> None:
    for seed in (0, 1):
        for i, label in enumerate(("SFRIK (L=2)", "SFRIK (L=3)", "VICReg", "SimCLR", "AUH", "RBF kernel")):
            record(label, seed, knn=70.0 + i + 0.3 * seed, linear=75.0 + i - 0.2 * seed, tuning=71.0 + i)
        record("untrained", seed, knn=65.0, linear=68.0)


@pytest.mark.usefixtures("sweep")
def test_the_files(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "report"
    report = write_report(runs, out)
    names = {path.name for path in out.iterdir()}
    stems = ("leaderboard", "accuracy", "time", "memory", "hyperparameters", "significance")
    expected = {f"{stem}.{ending}" for stem in stems for ending in ("md", "tex")}
    expected |= {
        "index.html",
        "tidy.csv",
        "tidy.parquet",
        "leaderboard.csv",
        "significance.csv",
        "accuracy_vs_time.png",
        "accuracy_vs_effective_rank.png",
    }
    assert names == expected == {path.name for path in report.files}
    assert report.page == out / "index.html"
    for quantity in ("time", "effective_rank"):
        assert (out / f"accuracy_vs_{quantity}.png").read_bytes().startswith(b"\x89PNG")
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o644 for path in out.iterdir())
    with (out / "tidy.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 12 * 3 + 2 * 2
    parquet = pd.read_parquet(out / "tidy.parquet")
    assert list(parquet.columns) == list(lines[0])
    assert list(parquet["value"]) == [float(line["value"]) for line in lines]
    (first, *_) = lines
    assert Path(first["record"]) == runs / "quickstart" / first["cell_id"] / "record.json"
    assert Path(first["config"]).exists()
    assert first["record_sha256"] == json.loads(Path(first["record"]).read_text())["sha256"]
    assert first["command"] == f"regbench train --config runs/quickstart/{first['cell_id']}/config.yaml"
    assert (first["selected_on"], first["git"], first["hardware"]) == ("given", "abc1234", "1 x Example CPU")
    assert "SFRIK (L=3)" in report.leaderboard
    assert max(map(len, report.leaderboard.splitlines())) <= 120
    assert report.skipped == ()


@pytest.mark.usefixtures("sweep")
def test_the_page_stands_alone(runs: Path, tmp_path: Path, record: Make) -> None:
    lives = [("2026-11-20T23:59:00+00:00", None), ("2026-11-23T01:00:00+00:00", "2026-11-24T05:30:00+00:00")]
    record("DCL", 5, attempts=tuple(PastAttempt(started=started, finished=finished) for started, finished in lives))
    page = Page(write_report([runs / "quickstart"], tmp_path / "report").page.read_text())
    assert page.loads
    outside = {load for load in page.loads if not load.startswith("#")}
    assert outside == {"https://example.org"}  # the link to the publication
    assert {load.removeprefix("#") for load in set(page.loads) - outside} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    text = (tmp_path / "report" / "index.html").read_text()
    assert not re.search(r"@import|url\((?!#)|https?:(?!//example.org)", text)
    assert text.count('role="img"') == 11  # two scores against two costs and the effective rank, five curves
    assert "currentColor" in text
    assert figures.INK not in text
    for word in (
        "fashion_mnist",
        "1000 training images per class",
        "resnet_tiny",
        "1 x Example CPU",
        "torch 2.14.1",
    ):
        assert word in page.text
    for word in (
        "2026-11-20 to 2026-11-24",
        "15 finished",
        "0, 1, 5",
        "abc1234",
        "somebody, 2021",
    ):
        assert word in page.text
    assert '"v":["regbench train --config runs/quickstart/' in text


def test_half_way(runs: Path, tmp_path: Path, record: Make) -> None:
    record("VICReg")
    record("AUH").write_text('{"schema_version": 1, ')
    (runs / "quickstart" / "0123456789ab").mkdir()
    (runs / "quickstart" / "0123456789ab" / "config.yaml").touch()
    report = write_report(runs, tmp_path / "report")
    page = Page(report.page.read_text())
    assert "1 file is not what was written" in page.text
    assert "1 cell of quickstart" in page.text
    assert "not valid JSON" in report.skipped[0]
    record("SimCLR")
    assert "SimCLR" in write_report(runs, tmp_path / "report").leaderboard  # the second replaces the first


def _forge(path: Path) -> None:
    path.write_text(path.read_text().replace('"value": 99.5', '"value": 96.42'))


def _add(name: str, text: str) -> Callable[[Path], None]:
    def add(path: Path) -> None:
        with path.with_name(name).open("a") as file:
            file.write(text)

    return add


def _change_config(path: Path) -> None:
    config = path.with_name("config.yaml")
    config.write_text(config.read_text().replace("warmup_epochs: 1", "warmup_epochs: 2"))


def _another_choice(path: Path) -> None:
    tuning_choice(path.parents[1])
    origin = {"selected_on": "tuning", "record": "elsewhere/choice.json", "sha256": "ab" * 32}
    resign(path, choice={"hyperparameters": origin})


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_forge, "record.json: its content is not what its sha256 was taken of"),
        (lambda path: resign(path, cell_id="0" * 12), "record.json: its cell id is 000000000000"),
        (lambda path: path.parent.rename(path.parent.with_name("f" * 12)), "the folder's name is another"),
        (lambda path: resign(path, seed=7, cell={**json.loads(path.read_text())["cell"], "seed": 7}), "its cell id is"),
        (_change_config, "config.yaml: differs from the record's cell in optimizer"),
        (_add("config.yaml", "[\n"), "config.yaml: cannot be read"),
        (_add("config.yaml", "- 1\n"), "config.yaml: cannot be read"),
        (_add("config.yaml", "more: 1\n"), "config.yaml: differs from the record's cell in more"),
        (lambda path: path.with_name("config.yaml").write_text("1"), "config.yaml: differs from the record's cell in"),
        (lambda path: path.with_name("config.yaml").write_bytes(b"\xff"), "config.yaml: cannot be read"),
        (lambda path: path.with_name("config.yaml").unlink(), "config.yaml: is missing"),
        (_add("metrics-0001.jsonl", "{}\n"), "metrics-0001.jsonl: its content is not what the record's SHA-256"),
        (lambda path: path.with_name("metrics-0001.jsonl").unlink(), "metrics-0001.jsonl: cannot be read"),
        (_another_choice, "its hyperparameters were chosen in another version of"),
    ],
)
def test_what_does_not_fit_is_in_no_table(
    runs: Path, tmp_path: Path, record: Make, spoil: Callable[[Path], None], reason: str
) -> None:
    record("AUH", linear=80.0)
    spoil(record("VICReg", linear=99.5))
    done = CliRunner().invoke(main, ["report", "quickstart", "--runs-dir", str(runs)])
    assert done.exit_code == 0
    (warning,) = done.stderr.splitlines()
    assert warning.startswith("warning: 1 file is not what was written, and left out of the report: ")
    assert reason in warning
    assert warning.endswith("`regbench report quickstart --check` tells all")
    assert "80.00*" in done.stdout
    for path in (runs / "quickstart" / "report").iterdir():
        if path.suffix in (".md", ".tex", ".csv"):
            assert "VICReg" not in path.read_text()
    page = Page((runs / "quickstart" / "report" / "index.html").read_text())
    assert "regbench report quickstart --check tells all" in page.text
    assert reason in page.text
    assert "VICReg" not in page.text


def test_an_evaluation_or_choice_that_does_not_fit_is_left_out_alone(runs: Path, tmp_path: Path, record: Make) -> None:
    path = record("VICReg", tuning=60.0)
    evaluation = later(path, score("voc07_map", 81.25))
    choice = runs / "quickstart" / "choice.json"
    tuning_choice(choice.parent, chosen("AUH", ranked("a" * 12, 12.34)))

    def shown() -> str:
        report = write_report(runs, tmp_path / "report")
        return "".join(path.read_text() for path in report.files if path.suffix == ".md") + report.warning

    assert "81.25" in shown()
    assert "12.34" in shown()
    evaluation.write_text(evaluation.read_text().replace("81.25", "91.25"))
    choice.write_text(choice.read_text().replace("12.34", "92.34"))
    report = shown()
    assert "VICReg" in report
    assert "2 files are not what was written" in report
    assert not re.search("81.25|91.25|12.34|92.34", report)
    assert {line.split(": ")[0] for line in write_report(runs, tmp_path / "report").skipped} == {
        str(evaluation),
        str(choice),
    }


def test_many_that_do_not_fit_do_not_fill_the_page(runs: Path, tmp_path: Path, record: Make) -> None:
    record("AUH")
    for seed in range(22):
        _forge(record("VICReg", seed, linear=99.5))
    page = Page(write_report(runs, tmp_path / "report").page.read_text())
    assert "22 files are not what was written" in page.text
    assert "and 2 more" in page.text
    assert page.text.count("its content is not what") == 20


def test_integers_of_any_size_make_a_report(runs: Path, tmp_path: Path, record: Make) -> None:
    for i, number in enumerate((2**63, 2**64, -(2**70))):
        record(f"method {i}", cost={"train_s": number}, environment={"threads": number})
    assert "method 0" in write_report(runs, tmp_path / "report").leaderboard


@pytest.mark.parametrize(
    "case", ["no score", "untrained only", "no history", "no cost", "diverged", "wide", "no provenance"]
)
def test_sparse_records_make_a_report(runs: Path, tmp_path: Path, record: Make, case: str) -> None:
    if case == "no score":
        record("VICReg", knn=None, linear=None)
    elif case == "untrained only":
        record("untrained")
    elif case == "no history":
        record("VICReg", history=[])
    elif case == "no cost":
        record("VICReg", cost={"train_s": None, "peak_memory_bytes": None})
    elif case == "wide":
        record("VICReg", cost={"train_s": 1.0})
        record("AUH", cost={"train_s": 1000.0})
    elif case == "no provenance":
        record("VICReg", command="", environment={"hardware": None, "git": None}, data=Images("", {}), attempts=())
    else:
        record(
            "VICReg",
            status="diverged",
            knn=None,
            linear=None,
            history=[{"epoch": 1, "loss": None, "uniformity": float("nan")}],
        )
    report = write_report(runs, tmp_path / "report")
    Page(report.page.read_text())
    picture = tmp_path / "report" / "accuracy_vs_time.png"
    assert picture.exists() == (case not in ("no score", "untrained only", "no cost", "diverged"))
    picture = tmp_path / "report" / "accuracy_vs_effective_rank.png"
    assert picture.exists() == (case not in ("no score", "untrained only", "no history", "diverged"))


def test_several_tasks_have_files_of_their_own(runs: Path, tmp_path: Path, record: Make) -> None:
    record("VICReg", sweep="one")
    record("VICReg", sweep="two", cell={"dataset": dataset("stl10")})
    report = write_report(runs, tmp_path / "report")
    names = {path.name for path in report.files}
    assert {"leaderboard-one.md", "leaderboard-two.md", "accuracy_vs_time-one.png", "index.html"} <= names
    assert len(Page(report.page.read_text()).ids) == len(set(Page(report.page.read_text()).ids))


def test_a_table_of_the_paper_comes_in_three_formats(runs: Path, tmp_path: Path, record: Make) -> None:
    cell = {"embedding_dim": 8192, "batch_size": 2048, "epochs": 100}
    ours = {"dataset": dataset("in20"), "network": backbone("resnet18")}
    record("SFRIK (L=3)", sweep="mine", linear=47.0, cell=cell | ours)
    record("AUH")
    report = write_report(runs, tmp_path / "report")
    names = {path.name for path in report.files}
    assert {f"paper_table{number}.{ending}" for number in (2, 3) for ending in ("md", "tex", "csv")} <= names
    assert "paper_table4.md" not in names
    assert "Table 3 of the paper, with ours" in Page(report.page.read_text()).text


def test_all_tables_of_the_paper_on_request(runs: Path, tmp_path: Path, record: Make) -> None:
    record("VICReg")
    names = {path.name for path in write_report(runs, tmp_path / "report", whole_paper=True).files}
    assert {f"paper_table{number}.md" for number in range(2, 16)} <= names


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_every_table_compiles(runs: Path, tmp_path: Path, record: Make) -> None:
    energy = {"energy_gpu_joules": 5e4}
    for seed in range(3):
        for label in ("I-VNE⁺ & 50 % of $x_1$ #{~^\\}", "Ω-method é", "VICReg"):
            record(label, seed, tuning=60.0 + seed, linear=70.0 + seed**2, cost=energy)
    record("AUH", status="diverged", knn=None, linear=None)
    record("VICReg", sweep="other", cell={"dataset": dataset("in20"), "network": backbone("resnet18")})
    report = write_report(runs, tmp_path / "report", whole_paper=True)
    tables = [path for path in report.files if path.suffix == ".tex"]
    assert len(tables) == 2 * 6 + 1 + 14
    # A page each, wide enough for any of them; pdflatex stops at the first error and leaves with 1.
    body = "\n\\newpage\n".join(f"\\input{{{path.name}}}" for path in tables)
    head = "\\documentclass{article}\n\\usepackage{booktabs}\n\\pdfpagewidth=60in\n\\begin{document}\n"
    (tmp_path / "report" / "all.tex").write_text(f"{head}{body}\n\\end{{document}}\n")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path / "report", capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]
    assert f"({len(tables)} pages" in done.stdout


def test_text_from_records_is_escaped(runs: Path, tmp_path: Path, record: Make) -> None:
    record("<script>alert(1)</script>", environment={"hardware": "<b>&"})
    page = Page(write_report(runs, tmp_path / "report").page.read_text())
    assert page.tags.count("script") == 3  # the page's own
    assert "<script>alert(1)</script>" in page.text


def test_labels_are_no_formulas_in_figures(runs: Path, tmp_path: Path, record: Make) -> None:
    record("$x_1$", linear=75.0)
    record("$\\nothing{$", linear=74.0)
    text = write_report(runs, tmp_path / "report").page.read_text()
    assert ">$x_1$</text>" in text
    assert ">$\\nothing{$</text>" in text


@pytest.mark.usefixtures("sweep")
def test_where_it_cannot_write(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RegbenchError, match="cannot write to"):
        write_report(runs, tmp_path / "file")


@pytest.mark.usefixtures("sweep")
def test_a_failed_write_leaves_the_old_report(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "report"
    write_report(runs, out)
    before = {path: path.read_bytes() for path in out.iterdir()}

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RegbenchError, match="No space left on device"):
        write_report(runs, out)
    assert {path: path.read_bytes() for path in out.iterdir()} == before


def test_styles_are_distinct_and_stay() -> None:
    labels = [f"method {i:02}" for i in range(20)]
    style = figures.styles(labels)
    assert len({(s.colour, s.marker) for s in style.values()}) == 20
    assert figures.styles(reversed(labels)) == style


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ([1.0, 5.0], [1.0, 5.0]),
        ([5.0, 5.0, 5.0], [4.0, 5.0, 6.0]),
        ([0.0, 0.0], [0.0, 1.0]),
        ([10.0, 10.0, 10.0], [8.0, 9.0, 10.0]),
        ([4.9, 5.0, 5.9, 9.0], [4.2666666, 5.2666666, 6.2666666, 9.0]),
    ],
)
def test_labels_are_spread_out(wanted: list[float], expected: list[float]) -> None:
    assert figures.spread_out(wanted, 1.0, 10.0) == pytest.approx(expected)


def test_spread_labels_never_overlap() -> None:
    wanted = sorted((7.3 * i * i) % 10 for i in range(11))
    places = figures.spread_out(wanted, 0.9, 10.0)
    gaps = [b - a for a, b in pairwise(places)]
    assert min(gaps) >= 0.9 - 1e-9
    assert places[0] >= -1e-9
    assert places[-1] <= 10 + 1e-9
