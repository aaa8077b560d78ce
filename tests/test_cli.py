"""The command line: what it prints, how it refuses, what it completes."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from regbench import RegbenchError, __version__, methods
from regbench.benchmark.rundir.directory import run_directory
from regbench.benchmark.rundir.lease import is_running, last_attempt, read_attempts
from regbench.benchmark.rundir.record import read_record
from regbench.benchmark.settings.presets import sweep_names
from regbench.benchmark.settings.sweep import load_run
from regbench.cli import main
from regbench.cli.options import PathType
from regbench.instruments.cost import losses
from regbench.instruments.cost.losses import Grid
from regbench.instruments.cost.timing import LossCost
from tests.command import done, python, refusal
from tests.command import run as call
from tests.there import there
from tests.waiting import PATIENCE_S, wait_for

SHORT = ("epochs=1", "optimizer.warmup_epochs=0", "method=vicreg")


# ------------------------------------------------------------------ listings and help


def test_version() -> None:
    assert __version__ in call("--version").output


def test_methods_are_listed_and_shown_with_their_hyperparameters() -> None:
    names = {line.split()[0] for line in call("methods").output.splitlines() if line}
    assert set(methods.names()) <= names
    output = call("methods", *methods.names()).output
    for name in methods.names():
        data = methods.build(name).metadata
        for part in (data.formula, data.latex, data.reference, data.url):
            assert part in output
        for key, value in methods.defaults(name).items():
            assert f"method.{key}={list(value) if isinstance(value, tuple) else value}" in output


def test_the_search_space_of_a_method_is_shown() -> None:
    output = call("methods", "sfrik_l2").output
    own = "method.alignment_weight: 0.03 × q to 30 × q, log scale; weighs alignment against the reg"
    assert own in output
    assert "optimizer.base_lr of lars: 0.2 to 20, log scale" in output


def test_what_a_method_shows_can_be_given_back() -> None:
    output = call("methods", "sfrik_l2").output
    overrides = [line.strip() for line in output.splitlines() if line.startswith("  method.")]
    assert load_run(["method=sfrik", *overrides])[0] == load_run(["method=sfrik_l2"])[0]


def test_sweeps_are_listed() -> None:
    output = done("sweep").output
    for name, description in sweep_names().items():
        assert f"{name} " in output
        assert description in output


def test_help_names_every_argument() -> None:
    for name, command in main.commands.items():
        words = " ".join(call(name, "--help").output.split())
        assert (command.help or "").splitlines()[0] in words
        for parameter in command.params:
            is_option = isinstance(parameter, click.Option)
            assert (parameter.opts[0] if is_option else (parameter.name or "").upper()) in words
        if {"overrides", "runs_dir"} & {parameter.name for parameter in command.params}:
            assert "--runs-dir" in words or name in ("embed", "prepare")


def test_help_shows_examples() -> None:
    assert "regbench sweep quickstart --report" in call("--help").output
    for name in ("train", "sweep"):
        assert "method.weights=[1,40,40]" in call(name, "--help").output
    for command in ([], *([name] for name in main.commands)):
        assert "\\b" not in call(*command, "--help").output
    assert "\n    regbench evaluate runs/" in call("evaluate", "--help").output


@pytest.mark.parametrize(
    ("arguments", "without"),
    [
        ("--help", {"torch", "pandas"}),
        ("methods", {"torch", "pandas"}),
        ("report nosuch/folder", {"torch", "pandas", "matplotlib"}),
    ],
)
def test_quick_commands_import_no_more_than_they_need(arguments: str, without: set[str]) -> None:
    """A slow `--help` is the first thing a newcomer meets.

    The second listing takes what the first one kept.
    """
    call("methods")
    program = f"""
import sys
from regbench.cli import main
try:
    main({arguments.split()}, standalone_mode=False)
except Exception as error:
    print(error)
print(*sys.modules)
"""
    modules = python(program, check=True).stdout.splitlines()[-1].split()
    loaded = {name.partition(".")[0] for name in modules}
    assert "click" in loaded
    assert not without & loaded


def test_methods_are_kept_in_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = call("methods").output
    (kept,) = tmp_path.rglob("methods.json")
    kept.write_text(kept.read_text().replace("VICReg", "Stored"))
    assert call("methods").output == first.replace("VICReg", "Stored") != first


# ------------------------------------------------------------------ refusals


# A command, and what the refusal of it holds.
REFUSALS: list[tuple[list[str], list[str]]] = [
    (["cost", "--out", __file__], ["--out", "is a file"]),
    (["train", "--config", __file__], ["test_cli.py is not YAML"]),
    (
        ["train", "--name", "a\x1b[2J" + 999 * "b"],
        ["--name", r"'a\x1b[2J" + 95 * "b" + "…' must be a name"],
    ),
]
for line in Path(__file__).with_name("refusals.txt").read_text().splitlines():
    command, *held = line.split("\t")
    REFUSALS.append((shlex.split(command), held))


@pytest.mark.parametrize(("arguments", "parts"), REFUSALS, ids=" ".join)
def test_refusals_are_one_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], parts: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGBENCH_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("REGBENCH_RUNS_DIR", str(tmp_path / "runs"))
    line = refusal(*arguments)
    assert line.startswith("regbench: ")
    for part in parts:
        assert part in line


@pytest.mark.parametrize(
    "text",
    [
        "a0: &a0 [x]\n" + "\n".join(f"a{i}: &a{i} [{9 * f'*a{i - 1},'}]" for i in range(1, 30)),
        200_000 * "- ",
    ],
    ids=["aliases", "nesting"],
)
@pytest.mark.parametrize(
    "words", ["sweep FILE", "tune FILE", "plan FILE", "train --config FILE", "train network=mine"]
)
def test_yaml_of_a_stranger_is_refused_in_a_line(
    words: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "regbench" / "network" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    result = call(*words.replace("FILE", str(file)).split())
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    told = r"regbench: \S+mine.yaml is not YAML: (nested|it has more than) .*\n"
    assert re.fullmatch(told, result.stderr)


def test_every_path_of_a_command_is_of_the_type_that_refuses_an_empty_one() -> None:
    for name, command in main.commands.items():
        for parameter in command.params:
            is_path = isinstance(parameter.type, click.Path)
            if is_path or parameter.name in ("out", "runs_dir", "source_dir"):
                assert isinstance(parameter.type, PathType), (name, parameter.name)


def test_debug_shows_the_traceback() -> None:
    assert isinstance(call("--debug", "methods", "vicregg").exception, RegbenchError)


def test_a_full_disk_is_a_line_and_code_1(tiny: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("regbench.benchmark.run.train", full)
    assert refusal("train", *tiny, *SHORT, code=1) == "regbench: No space left on device"


def test_a_folder_that_cannot_be_written_is_named(tiny: list[str]) -> None:
    line = refusal("train", *tiny, *SHORT, "--runs-dir", "/proc/nowhere", code=1)
    assert line == "regbench: /proc/nowhere: No such file or directory"


def test_memory_that_is_not_there_is_one_line(tiny: list[str]) -> None:
    line = refusal("train", *tiny, *SHORT, "embedding_dim=1000000000000", code=1)
    assert "memory" in line
    assert "regbench plan" in line


def test_the_folder_of_runs_is_the_option_the_setting_or_the_environments(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = [override for override in tiny if not override.startswith("runtime.runs_dir=")]
    own += ["epochs=0", "evaluation.protocols=[knn]"]
    asked = tmp_path / "with 'quotes', (and) spaces"
    cell = load_run(own)[0]
    for given, folder in (
        (["--runs-dir", str(asked), f"runtime.runs_dir={tmp_path / 'other'}"], asked),
        ([], tmp_path / "environment"),
    ):
        monkeypatch.setenv("REGBENCH_RUNS_DIR", str(tmp_path / "environment"))
        done("train", *own, *given)
        assert (folder / "manual" / cell.id / "record.json").exists()
    assert not (tmp_path / "other").exists()
    refused = refusal("plan", "method=vicreg", "--runs-dir", tmp_path, "epochs=many")
    assert "epochs=many must be a whole number" in refused


# ------------------------------------------------------------------ completion


def complete(*words: str) -> list[str]:
    """What click offers for the last of `words`."""
    env = {"_REGBENCH_COMPLETE": "bash_complete", "COMP_CWORD": str(len(words))}
    env["COMP_WORDS"] = " ".join(["regbench", *words])
    offered = CliRunner().invoke(main, prog_name="regbench", env=env).output
    return [line.removeprefix("plain,") for line in offered.splitlines()]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["methods", "sfrik_l"], ["sfrik_l1", "sfrik_l2", "sfrik_l3"]),
        (["sweep", "in20"], ["in20_table2", "in20_table3", "in20_tuning"]),
        (["prepare", "cif"], ["cifar10", "cifar100", "cifar100_full", "cifar10_full"]),
        (["stat"], ["status"]),
    ],
    ids=str,
)
def test_completion(words: list[str], expected: list[str]) -> None:
    assert complete(*words) == expected


def test_completion_of_started_sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("widths", "weights"):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "sweep.json").write_text("{}")
    (tmp_path / "runs" / "wild").mkdir()
    assert complete("status", "w") == ["weights", "widths"]


# ------------------------------------------------------------------ runs


def test_train_prints_the_scores_and_does_not_train_twice(tiny: list[str]) -> None:
    result = done("train", *tiny, *SHORT)
    cell, runtime = load_run([*tiny, *SHORT])
    directory = run_directory(runtime, "manual", cell)
    assert str(directory) in result.output
    for score in there(read_record(directory)).scores:
        assert f"{score.value:.2f} %" in result.output
    written_ns = (directory / "record.json").stat().st_mtime_ns
    own = [override for override in tiny if override.startswith("runtime.")]
    assert done("train", "--config", directory / "config.yaml", *own).output == result.output
    assert (directory / "record.json").stat().st_mtime_ns == written_ns
    assert done("evaluate", directory, *own).output in result.output


def test_cost_prints_a_table_and_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = []

    def measure(grid: Grid) -> list[LossCost]:
        asked.append(grid)
        one = LossCost(method="vicreg", form="gram", auto=True, n=8, q=4, views=3, ranks=1)
        return [replace(one, n=n, median_ms=0.5) for n in grid.n]

    monkeypatch.setattr(losses, "measure", measure)
    options = (
        "--n 8,16 --q 4 --views 3 --ranks 1 --forms auto,textbook --repeats 2 --device cpu "
        "--budget 3 --memory-limit 0.5 --dtype float64 --threads 2"
    )
    result = done("cost", "vicreg", *options.split())
    sizes: dict[str, Any] = {"n": (8, 16), "q": (4,), "views": (3,), "ranks": (1,)}
    how: dict[str, Any] = {"repeats": 2, "budget_s": 3.0, "memory_limit_bytes": 2**29}
    where: dict[str, Any] = {"device": "cpu", "dtype": "float64", "threads": 2}
    forms = ("auto", "textbook")
    assert asked == [Grid(methods=("vicreg",), forms=forms, **sizes, **how, **where)]
    assert sum(line.startswith("vicreg ") for line in result.stdout.splitlines()) == 2
    folder = tmp_path / "runs" / "cost"
    assert [path.name for path in folder.iterdir()] == ["cost.csv"]
    assert len((folder / "cost.csv").read_text().splitlines()) == 3
    assert "runs/cost/cost.csv" in result.stdout


def test_cost_sizes_in_the_help_are_the_defaults() -> None:
    grid, text = Grid(), " ".join(call("cost", "--help").output.split())
    for sizes in (grid.n, grid.q, grid.ranks):
        assert f"[default: {','.join(map(str, sizes))}]" in text


def test_plan_runs_nothing(tiny: list[str], tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("description: x\ncommon: []\ncells:\n  - method=sfrik seed=0,1\n")
    tiny = [*tiny, "epochs=0"]
    lines = done("sweep", own, *tiny, "--plan").output.splitlines()
    assert len(lines) == 6
    assert lines[-1].startswith("2 cells, 0 done, 2 to run")
    assert all("to run" in line for line in lines[2:4])
    assert lines[2].startswith(load_run([*tiny, "method=sfrik", "seed=0"])[0].id)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("command", "said"),
    [("cost", "interrupted"), ("tune", "interrupted; the same command goes on from here")],
)
def test_an_interruption_promises_no_more_than_it_keeps(
    command: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main.commands[command], "callback", interrupt)
    result = call(command, *(["quickstart"] if command == "tune" else []))
    assert (result.exit_code, result.stderr) == (130, f"regbench: {said}\n")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["audit", "cost"])
def test_what_is_measured_lies_beside_the_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out() -> Path:
        given = ["module:loss"] if name == "audit" else []
        found: Path = main.commands[name].make_context(name, given).params["out"]
        return found

    monkeypatch.delenv("REGBENCH_RUNS_DIR", raising=False)
    assert out() == Path("runs") / name
    monkeypatch.setenv("REGBENCH_RUNS_DIR", str(tmp_path))
    assert out() == tmp_path / name


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_so(number: signal.Signals, tiny: list[str], program: str) -> None:
    """Ctrl-C reaches every process of the foreground group."""
    overrides = [*tiny, "method=vicreg", "epochs=4000"]
    cell, runtime = load_run(overrides)
    directory = run_directory(runtime, "manual", cell)
    history = directory / "metrics-0001.jsonl"
    command = [program, "train", *overrides]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        wait_for(lambda: history.exists() or process.poll() is not None)
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.terminate()
        _, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == "regbench: interrupted; the same command goes on from here"
    assert "Traceback" not in errors
    assert not is_running(last_attempt(directory))
    assert 1 <= len(history.read_text().splitlines()) < 4000
    assert [attempt["ended"] for attempt in read_attempts(directory)] == ["interrupted"]


# ------------------------------------------------------------------ plan


def test_output_ends_quietly_and_in_any_encoding(program: str, tmp_path: Path) -> None:
    shown = f"{program} methods | head -1"
    done = subprocess.run(["bash", "-c", shown], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    command = [program, "methods", "tcr"]
    subprocess.run(command, env=environment, capture_output=True, check=True, cwd=tmp_path)
    # Our own files are UTF-8 in a locale of another encoding too.
    environment |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    names = "from regbench.plugins import own_names; own_names('method')"
    page = "from regbench.reports.page.template import templates; templates()"
    for code in (names, page):
        done = python(code, env=environment)
        assert done.returncode == 0, done.stderr


def test_a_plan_ends_without_a_word(program: str, tmp_path: Path) -> None:
    """A plan imports triton, whose bindings look for what has leaked when Python ends."""
    command = [program, "plan", "method=vicreg"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_plan_says_what_runs_need_and_marks_what_does_not_fit(tiny: list[str]) -> None:
    sizes = ["embedding_dim=16,1024", "cluster.gpus=2", "cluster.gpu_memory_gib=0.03"]
    result = done("plan", "method=vicreg", *tiny, *sizes)
    lines = result.stdout.splitlines()
    cells = [load_run([*tiny, "method=vicreg", f"embedding_dim={q}"])[0].id for q in (16, 1024)]
    assert [line.split()[0] for line in lines[2:4]] == cells
    assert ["DOES NOT FIT" in line for line in lines[2:4]] == [False, True]
    assert "2 cells, 0 done, 2 to run; GPU hours unknown" in result.stdout
    assert "1 do not fit" in result.stdout
