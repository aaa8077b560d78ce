"""The command line: what it prints, how it refuses, what it completes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from regbench import RegbenchError, __version__, methods
from regbench.benchmark.rundir.directory import run_directory
from regbench.benchmark.rundir.lease import is_running, last_attempt, read_attempts
from regbench.benchmark.rundir.record import read_record
from regbench.benchmark.settings.sweep import load_run, sweep_names
from regbench.cli import main
from tests.waiting import PATIENCE_S, wait_for

SHORT = ("epochs=1", "optimizer.warmup_epochs=0", "method=vicreg")


def call(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, arguments, prog_name="regbench", env=env)


# ------------------------------------------------------------------ listings and help


def test_version() -> None:
    assert __version__ in call("--version").output


def test_methods_are_listed() -> None:
    result = call("methods")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    for name in methods.names():
        assert any(line.startswith(f"{name} ") for line in lines)
    assert "Bardes, Ponce, LeCun, ICLR 2022" in result.output


def test_methods_are_shown_with_their_hyperparameters() -> None:
    output = call("methods", *methods.names()).output
    for name in methods.names():
        data = methods.build(name).metadata
        for part in (data.formula, data.reference, data.url):
            assert part in output
        for key, value in methods.defaults(name).items():
            assert f"method.{key}={list(value) if isinstance(value, tuple) else value}" in output


def test_what_a_method_shows_can_be_given_back() -> None:
    output = call("methods", "sfrik_l2").output
    overrides = [line.strip() for line in output.splitlines() if line.startswith("  method.")]
    assert load_run(["method=sfrik", *overrides])[0] == load_run(["method=sfrik_l2"])[0]


def test_sweeps_are_listed() -> None:
    result = call("sweep")
    assert result.exit_code == 0
    for name, description in sweep_names().items():
        assert f"{name} " in result.output
        assert description in result.output


def test_help_names_every_argument() -> None:
    for name, command in main.commands.items():
        words = " ".join(call(name, "--help").output.split())
        assert (command.help or "").splitlines()[0] in words
        for parameter in command.params:
            shown = parameter.opts[0] if isinstance(parameter, click.Option) else (parameter.name or "").upper()
            assert shown in words
        if {"overrides", "runs_dir"} & {parameter.name for parameter in command.params} - {"dataset", "data"}:
            assert "--runs-dir" in words or name in ("prepare", "loader-bench")


def test_help_shows_examples() -> None:
    assert "regbench sweep quickstart --report" in call("--help").output
    for name in ("train", "sweep"):
        assert "method.weights=[1,40,40]" in call(name, "--help").output
    for command in ([], *([name] for name in main.commands)):
        assert "\\b" not in call(*command, "--help").output
    assert "\n    regbench evaluate runs/" in call("evaluate", "--help").output


def test_help_is_quick() -> None:
    """It imports neither torch nor the rest: a slow `--help` is the first thing a newcomer meets."""
    program = "import sys; from regbench.cli import main; main(['--help'], standalone_mode=False); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert "click" in loaded
    assert "torch" not in loaded


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["train", "method=vicregg"], ["unknown method 'vicregg'", "vicreg"]),
        (["train", "metod=vicreg"], ["unknown setting 'metod'", "method"]),
        (["train", "optimizer.base_lr=fast"], ["optimizer.base_lr", "fast"]),
        (["train", "seed=1,2"], ["2 cells", "regbench sweep"]),
        (["train", "dataset=in20"], ["in20", "--source-dir"]),
        (["prepare", "imagefolder"], ["imagefolder", "--source-dir"]),
        (["prepare", "mnist"], ["unknown dataset 'mnist'", "fashion_mnist"]),
        (["methods", "vicregg"], ["unknown method 'vicregg'; did you mean vicreg"]),
        (["sweep", "quikstart"], ["no sweep named 'quikstart'", "quickstart"]),
        (["sweep", "quickstart", "sed=1"], ["unknown setting 'sed'", "seed"]),
        (["status"], ["no sweep", "regbench sweep quickstart"]),
        (["status", "quickstart"], ["no sweep 'quickstart'", "none"]),
        (["report", "quickstart"], ["quickstart"]),
        (["evaluate", "."], ["config.yaml is missing"]),
        (["cost", "--n", "256,many"], ["--n must be whole numbers separated by commas", "256,many"]),
        (["cost", "--ranks", "1,,2"], ["--ranks must be"]),
        (["cost", "--memory-limit", "0"], ["--memory-limit", "0 is not a number above 0"]),
        (["cost", "--out", __file__], ["--out", "is a file"]),
        (["cost", "--out", "/proc/nowhere"], ["cannot make the folder /proc/nowhere", "--out"]),
        (["plan", "method=vicreg", "--fits", "nan"], ["--fits", "nan is not a number above 0"]),
        (["methods", "vicreg", "--out", "x.png"], ["--out", "--spectrum"]),
        (["methods", "sfrik", "--spectrum", "--out", "x.foo"], ["x.foo", ".png or .svg"]),
        (["train", "--config", "nowhere.yaml"], ["--config", "nowhere.yaml"]),
        (["train", "--config", __file__], ["test_cli.py is not YAML"]),
        (["train", "--name", "../x"], ["--name", "a folder's name"]),
        (["train", "runtime.device=tpu"], ["runtime.device=tpu must be auto, cpu or cuda"]),
        (["train", "runtime.loader=foo"], ["runtime.loader=foo must be auto, ffcv or torchvision"]),
        (["train", "--nmae", "x"], ["--nmae", "regbench train --help"]),
        (["evaluate", "--backbone", "x.pth", "--name", "a/b"], ["--name", "a folder's name"]),
        (["evaluate", ".", "--only", "knn,"], ["--only", "knn, labels1, "]),
        (["tune"], ["Missing argument 'NAME'", "regbench tune --help"]),
        (["tune", "quickstart_tuning", "--seeds", "a,b"], ["--seeds must be whole numbers separated by commas", "a,b"]),
        (["tune", "quickstart_tuning", "--leading", "0"], ["--leading", "0 is not in the range"]),
        (["report", ""], ["NAMES", "a folder's name"]),
        (["report", "--runs-dir", "/nowhere"], ["/nowhere/quickstart is not a folder"]),
        (["report", "--out", __file__], ["--out", "is a file"]),
        (["logs", "quickstart", "abc", "--lines", "-1"], ["--lines", "-1 is not in the range"]),
        (["loader-bench", "--seconds", "nan"], ["--seconds nan"]),
        (["loader-bench", "--out", "/proc/nowhere/x.csv"], ["cannot make the folder /proc/nowhere", "--out"]),
        (["evaluate", "runs/a/b", "--backbone", "x.pth"], ["runs/a/b: give a run directory or --backbone, not both"]),
        (["plan", "seed=0", "--fits"], ["'--fits' requires an argument. See: regbench plan --help"]),
        (["train", "--runs-dir", ""], ["--runs-dir must name a folder"]),
        (["train", "runtime.runs_dir="], ["runtime.runs_dir='' must be a text, not empty"]),
        (["nosuch"], ["No such command 'nosuch'", "regbench --help"]),
    ],
    ids=" ".join,
)
def test_refusals_are_one_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], parts: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGBENCH_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("REGBENCH_RUNS_DIR", str(tmp_path / "runs"))
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("regbench: ")
    for part in parts:
        assert part in line


@pytest.mark.parametrize(
    ("seeds", "refusal"),
    [("0,-1", "seed=-1 must be a whole number, at least 0 and below 4294967296"), ("1,1", "--seeds names 1 twice")],
)
def test_final_seeds_are_refused_before_a_tuning_begins(tmp_path: Path, seeds: str, refusal: str) -> None:
    sweep = tmp_path / "own.yaml"
    sweep.write_text("description: x\ncells:\n  - method=vicreg dataset=in20\n")
    result = call("tune", str(sweep), "--seeds", seeds, "--runs-dir", str(tmp_path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert refusal in result.stderr


def test_a_batch_larger_than_the_data_is_refused(tiny: list[str]) -> None:
    result = call("train", *tiny, *SHORT, "batch_size=4096")
    assert result.exit_code == 2
    assert "choose at most 120" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_data_that_is_missing_is_refused_with_the_way_to_get_it(tiny: list[str]) -> None:
    result = call("train", *tiny, "dataset.name=birds")
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert "birds" in line
    assert "--source-dir" in line


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    result = call("--debug", "methods", "vicregg")
    assert isinstance(result.exception, RegbenchError)


def test_a_full_disk_is_one_line_and_exit_code_1(tiny: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("regbench.benchmark.run.train", full)
    result = call("train", *tiny, *SHORT)
    assert result.exit_code == 1
    assert result.stderr.splitlines() == ["regbench: No space left on device"]


def test_a_folder_that_cannot_be_written_is_named(tiny: list[str]) -> None:
    result = call("train", *tiny, *SHORT, "--runs-dir", "/proc/nowhere")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == ["regbench: /proc/nowhere: No such file or directory"]


def test_memory_that_is_not_there_is_one_line(tiny: list[str]) -> None:
    result = call("train", *tiny, *SHORT, "embedding_dim=1000000000000")
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert "memory" in line
    assert "regbench plan" in line


def test_more_neighbours_than_images_are_refused_before_training(tiny: list[str], tmp_path: Path) -> None:
    for change in ("evaluation.knn.k=121", "evaluation.knn.other_k=[3,121]"):
        result = call("train", *tiny, *SHORT, change)
        assert result.exit_code == 2
        assert "=121 is larger than the 120 training images" in result.stderr
    assert not list((tmp_path / "runs").rglob("metrics.jsonl"))


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
        result = call("train", *own, *given)
        assert result.exit_code == 0, result.output
        assert (folder / "manual" / cell.id / "record.json").exists()
    assert not (tmp_path / "other").exists()
    refused = call("plan", "method=vicreg", "--runs-dir", str(tmp_path), "epochs=many")
    assert "epochs=many must be a whole number" in refused.stderr


# ------------------------------------------------------------------ completion


def complete(*words: str) -> list[str]:
    """What click offers for the last of `words`."""
    env = {
        "_REGBENCH_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["regbench", *words]),
        "COMP_CWORD": str(len(words)),
    }
    return [line.removeprefix("plain,") for line in call(env=env).output.splitlines()]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train", "method=rb"], ["method=rbf"]),
        # Bash splits words at "=" and takes the value alone.
        (["train", "method", "=", "rb"], ["rbf"]),
        (["sweep", "quickstart", "seed", "=", "3", "network", "=", "resnet18_"], ["resnet18_small"]),
        (["train", "method", "=", "vicreg", "epo"], ["epochs="]),
        (["train", "network=resnet_"], ["network=resnet_tiny"]),
        (["train", "augmentation=im"], ["augmentation=imagenet"]),
        (["train", "meth"], ["method="]),
        (["train", "optimizer.w"], ["optimizer.warmup_epochs="]),
        (["methods", "sfrik_l"], ["sfrik_l1", "sfrik_l2", "sfrik_l3"]),
        (["sweep", "in20"], ["in20_table2", "in20_table3", "in20_tuning"]),
        (["prepare", "cif"], ["cifar10", "cifar100"]),
        (["cost", "sfrik_l1", "sfrik_l"], ["sfrik_l2", "sfrik_l3"]),
        (["stat"], ["status"]),
    ],
    ids=str,
)
def test_completion(words: list[str], expected: list[str]) -> None:
    assert complete(*words) == expected


def test_completion_of_every_method_after_the_equals_sign() -> None:
    assert complete("train", "method", "=") == methods.names()
    assert complete("train", "method=") == [f"method={name}" for name in methods.names()]


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
    result = call("train", *tiny, *SHORT)
    assert result.exit_code == 0, result.output
    cell, runtime = load_run([*tiny, *SHORT])
    directory = run_directory(runtime, "manual", cell)
    record = read_record(directory)
    assert record is not None
    assert str(directory) in result.output
    for score in record.scores:
        assert f"{score.value:.2f} %" in result.output
    written_ns = (directory / "record.json").stat().st_mtime_ns
    own = [override for override in tiny if override.startswith("runtime.")]
    again = call("train", "--config", str(directory / "config.yaml"), *own)
    assert (again.exit_code, again.output) == (0, result.output)
    assert (directory / "record.json").stat().st_mtime_ns == written_ns
    anew = call("evaluate", str(directory), *own)
    assert anew.exit_code == 0
    assert anew.output in result.output
    refused = call("evaluate", str(directory), *own, "seed=1")
    assert (refused.exit_code, "evaluation.*" in refused.stderr) == (2, True)


def test_prepare_tells_where_the_files_are(tiny: list[str], tiny_source: Path, tmp_path: Path) -> None:
    overrides = [override for override in tiny if override.startswith("dataset.")]
    arguments = ["prepare", "imagefolder", *overrides, f"runtime.data_dir={tmp_path}", "--source-dir", str(tiny_source)]
    result = call(*arguments)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert {tuple(line.split()[:2]) for line in lines} == {("train:", "120"), ("tuning:", "36"), ("test:", "30")}
    assert all(Path(line.split(" in ")[1]).is_file() for line in lines)


def test_cost_prints_a_table_and_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = ["--n", "8,16", "--q", "4", "--forms", "auto,textbook", "--repeats", "1"]
    result = call("cost", "vicreg", *sizes, "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert sum(line.startswith("vicreg ") for line in result.stdout.splitlines()) == 4
    folder = tmp_path / "runs" / "cost"
    assert {path.name for path in folder.iterdir()} == {"cost.csv", "cost.md", "cost.png"}
    assert len((folder / "cost.csv").read_text().splitlines()) == 5
    assert "runs/cost/cost.csv" in result.stdout


def test_cost_sizes_in_the_help_are_the_defaults() -> None:
    from regbench.benchmark.cost.losses import Grid

    grid, text = Grid(), " ".join(call("cost", "--help").output.split())
    for sizes in (grid.n, grid.q, grid.ranks):
        assert f"[default: {','.join(map(str, sizes))}]" in text


def test_plan_runs_nothing(tiny: list[str], tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("description: x\ncommon: []\ncells:\n  - method=sfrik seed=0,1\n")
    tiny = [*tiny, "epochs=0"]
    result = call("sweep", str(own), *tiny, "--plan")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert len(lines) == 6
    assert lines[-1].startswith("2 cells, 0 done, 2 to run")
    assert all("to run" in line for line in lines[2:4])
    assert lines[2].startswith(load_run([*tiny, "method=sfrik", "seed=0"])[0].id)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("sent", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_an_interrupted_train_says_so(tiny: list[str], program: str, sent: signal.Signals) -> None:
    """Ctrl-C reaches every process of the terminal's foreground group, SIGTERM the one that it is sent to."""
    overrides = [*tiny, "method=vicreg", "epochs=4000"]  # more than it can do before it hears
    cell, runtime = load_run(overrides)
    directory = run_directory(runtime, "manual", cell)
    process = subprocess.Popen(
        [program, "train", *overrides],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_for(lambda: (directory / "metrics-0001.jsonl").exists() or process.poll() is not None)
        (os.killpg if sent == signal.SIGINT else os.kill)(process.pid, sent)
        _, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == "regbench: interrupted; the same command goes on from here"
    assert "Traceback" not in errors
    assert not is_running(last_attempt(directory))
    done = len((directory / "metrics-0001.jsonl").read_text().splitlines())
    assert 1 <= done < 4000
    assert [attempt["ended"] for attempt in read_attempts(directory)] == ["interrupted"]


# ------------------------------------------------------------------ plan


def test_plan_says_what_a_run_needs(tiny: list[str]) -> None:
    result = call("plan", "method=vicreg", *tiny, "seed=0,1", "cluster.gpus=2", "--fits", "0.006", "--savings")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    cells = [load_run([*tiny, "method=vicreg", f"seed={seed}"])[0].id for seed in (0, 1)]
    assert [line.split()[0] for line in lines[2:4]] == cells
    assert "2 cells, 0 done, 2 to run; GPU hours unknown" in result.stdout
    assert re.search(r"largest power of two for n in 90 % of 0.006 GiB: \d+", result.stdout)
    assert "momentum shared by the ranks" in result.stdout


def test_plan_marks_what_does_not_fit(tiny: list[str]) -> None:
    options = ["cluster.gpu_memory_gib=0.03", "embedding_dim=16,1024"]
    result = call("plan", "method=vicreg", *tiny, *options)
    rows = [line for line in result.stdout.splitlines() if "VICReg" in line]
    assert ["DOES NOT FIT" in row for row in rows] == [False, True]
    assert "1 do not fit" in result.stdout
