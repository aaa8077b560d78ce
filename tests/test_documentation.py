"""What the documents show works."""

from __future__ import annotations

import functools
import importlib
import os
import re
import shlex
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import click
import pytest
import torch
import yaml

import regbench
from regbench import RegbenchError, methods
from regbench.benchmark.settings.listing import listing
from regbench.benchmark.settings.presets import sweep_names
from regbench.benchmark.settings.sweep import load_rows, load_run, load_sweep, read_rows
from regbench.cli import main
from regbench.instruments.conformance import CHECKS, run_check
from regbench.settings import plain
from regbench.sweeps.search import propose
from tests.command import done
from tests.ranks import as_one_process, launch
from tests.test_own_images import QUICK, draw

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = (
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "results/README.md"),
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
)


def blocks(document: str, language: str) -> list[str]:
    """The fenced code blocks of a document in one language ("" for none)."""
    text = (ROOT / document).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_snippets_run() -> None:
    (readme,), (_, page, *_) = blocks("README.md", "python"), blocks("docs/python.md", "python")
    for snippet, name in ((readme, "vicreg"), (page, "sfrik")):
        names: dict[str, Any] = {}
        exec(snippet, names)
        assert names["loss"].ndim == 0
        method = names.get(name) or methods.build(name)
        terms = method(names["z1"], names["z2"]).terms
        torch.testing.assert_close(names["loss"], sum(terms.values()))


def test_the_snippet_of_modules_runs() -> None:
    names: dict[str, Any] = {}
    exec(blocks("docs/python.md", "python")[2], names)
    assert names["total"].requires_grad


@pytest.mark.slow
def test_the_snippet_of_the_commands_runs(
    tiny: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    train, sweep = regbench.train, regbench.sweep
    monkeypatch.setattr(regbench, "train", lambda given, **more: train([*tiny, *given], **more))
    monkeypatch.setattr(regbench, "sweep", lambda name, **more: sweep(name, tiny, **more))
    monkeypatch.setenv("REGBENCH_RUNS_DIR", str(tmp_path / "runs"))
    snippet, *_ = blocks("docs/python.md", "python")
    names: dict[str, Any] = {}
    exec(snippet, names)
    assert len(names["frame"]["cell_id"].unique()) == 2
    page = tmp_path / "runs" / "losses" / "report" / "index.html"
    assert capsys.readouterr().out.splitlines()[-1] == str(page)


@pytest.fixture
def one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[float]:
    """The losses of the distributed example on one process, which leaves its weights in
    `1-0.pt`.
    """
    as_one_process(monkeypatch)
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path)])
    exec(distributed_example(), {"__name__": "example"})
    return [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]


def distributed_example() -> str:
    """The code of docs/python.md, which saves its weights too."""
    *_, example = blocks("docs/python.md", "python")
    end = "dist.destroy_process_group()\n"
    assert example.endswith(end)
    save = "torch.save(network.module.state_dict(), sys.argv[1] + f'/{world}-{rank}.pt')\n"
    return f"import sys\n{example.removesuffix(end)}{save}{end}"


def test_the_distributed_example_lowers_its_loss(one_process: list[float]) -> None:
    assert len(one_process) == 5
    assert one_process[-1] < one_process[0]


@pytest.mark.slow
def test_the_distributed_example_gives_the_same_on_two_processes(
    one_process: list[float], tmp_path: Path
) -> None:
    processes = launch(2, distributed_example(), str(tmp_path))
    for process in processes:
        assert process.returncode == 0, process.stderr
        assert "Warning" not in process.stderr
    shared = [float(line.split()[-1]) for line in processes[0].stdout.splitlines()]
    assert shared == pytest.approx(one_process, rel=1e-5)
    files = (tmp_path / f"{name}.pt" for name in ("1-0", "2-0", "2-1"))
    weights, *others = (torch.load(file, weights_only=True) for file in files)
    for other in others:
        torch.testing.assert_close(other, weights, rtol=1e-4, atol=1e-6)


def test_contributing_example_is_a_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = "docs/tutorials/add_a_regularizer.md"
    (example,), (package,) = (blocks(document, each) for each in ("python", "toml"))
    module = tomllib.loads(package)["project"]["entry-points"]["regbench.methods"]["imq"]
    path = tmp_path / f"{module.replace('.', '/')}.py"
    path.parent.mkdir()
    path.write_text(example)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module(module)
    try:
        method = methods.build("imq", alignment_weight=0.0, offset=0.5)
        z = torch.randn(2, 7, 5, dtype=torch.float64, requires_grad=True)
        u = torch.nn.functional.normalize(z, dim=2)
        kernels = ((0.5 + torch.cdist(view, view).square()).rsqrt() for view in u)
        expected = 0.5 * sum(kernel.sum() for kernel in kernels) / 49
        torch.testing.assert_close(method.loss(z[0], z[1]), expected, rtol=1e-12, atol=0)
        assert torch.autograd.gradcheck(lambda x: methods.build("imq").loss(*x), z)
        for name in CHECKS:
            finding = run_check(method, name)
            assert finding is None or finding.ok, finding
    finally:
        methods.METHODS.unregister("imq")
        del sys.modules[module]


# How many code blocks a document has: each is run or loaded by a test, here or in
# tests/test_plugins.py.
RUN = {
    "python": {
        **{"README.md": 1, "docs/python.md": 4, "CONTRIBUTING.md": 4, "docs/audit.md": 1},
        **{"docs/tutorials/add_a_regularizer.md": 1, "docs/challenge.md": 1, "docs/reports.md": 1},
    },
    "yaml": {
        **{"docs/tutorials/own_images.md": 1, "docs/tutorials/cluster.md": 1, "docs/cluster.md": 1},
        **{"docs/tuning.md": 1, "docs/data.md": 1, "CONTRIBUTING.md": 2},
    },
    "toml": {"docs/tutorials/add_a_regularizer.md": 1},
}


def test_every_block_of_code_is_run_by_a_test() -> None:
    found: dict[str, dict[str, int]] = {}
    for document in DOCUMENTS:
        for language in re.findall(r"^```(\w+)\n", (ROOT / document).read_text(), re.MULTILINE):
            of_language = found.setdefault(language, {})
            of_language[document] = of_language.get(document, 0) + 1
    del found["text"]
    assert found == RUN


@pytest.mark.parametrize("document", ["docs/cluster.md", "docs/tutorials/cluster.md"])
def test_the_clusters_of_the_documents_are_profiles(
    document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = preset_of(document, "cluster", tmp_path, monkeypatch)
    cluster = load_sweep("in20_table2", ["cluster=mine"]).clusters[0]
    del profile["defaults"]
    assert {name: plain(getattr(cluster, name)) for name in profile} == profile


def preset_of(
    document: str, group: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """The one YAML block of a document, made a preset of the user's with the name `mine`."""
    (preset,) = blocks(document, "yaml")
    path = folder / "regbench" / group / "mine.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(preset)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    found: dict[str, Any] = yaml.safe_load(preset)
    return found


def test_the_views_of_the_datas_page_are_a_preset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = preset_of("docs/data.md", "augmentation", tmp_path, monkeypatch)["views"]
    found = load_run(["augmentation=mine"])[0].augmentation.views
    counts = {name: kind["count"] for name, kind in views.items()}
    assert {name: kind.count for name, kind in found.items()} == counts


@pytest.mark.slow
def test_the_tutorial_on_own_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of an hour, and the first two steps by hand, on tiny images."""
    monkeypatch.chdir(tmp_path)
    draw(tmp_path / "FOLDER", 40)
    commands = "".join(blocks("docs/tutorials/own_images.md", "")).splitlines()
    plan, _, prepare, sweep, *_ = commands
    assert "What this can tell: " in done(*plan.partition("#")[0].split()[1:], *QUICK[1:]).output
    done(*prepare.split()[1:])
    done(*sweep.split()[1:], *QUICK)
    assert "records check out" in done("report", "own_images", "--check").output
    # What the page on reports reads them by.
    names: dict[str, Any] = {}
    exec(blocks("docs/reports.md", "python")[0].replace("quickstart", "own_images"), names)
    seen = set(names["frame"]["label"])
    assert seen == {"untrained", "SFRIK (L=2)", "AUH", "SimCLR", "VICReg", "Barlow Twins"}


def test_the_tutorial_on_own_images_tunes_with_equal_budgets(tmp_path: Path) -> None:
    path = tmp_path / "birds.yaml"
    path.write_text(blocks("docs/tutorials/own_images.md", "yaml")[0])
    sweep = load_sweep(str(path))
    thrice = dict.fromkeys(("SFRIK (L=3)", "AUH", "VICReg", "SimCLR"), 3)
    assert Counter(cell.label for cell in sweep.cells) == thrice
    assert sweep.final_seeds == (0, 1, 2)


@pytest.mark.slow
def test_the_audits_page_shows_a_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "losses.py").write_text(MY_LOSS)
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, Any] = {}
    (shown,) = blocks("docs/audit.md", "python")
    # without its processes
    exec(shown.replace("gathers=True", 'gathers=True, probes=("value",)'), names)
    names["test_my_loss_is_sound"]()


MY_LOSS = """
from regbench import methods


class MyLoss:
    def __init__(self, temperature):
        self.method = methods.build("simclr", temperature=temperature)

    def __call__(self, z1, z2):
        return self.method.loss(z1, z2)
"""


def test_contributing_sweep_loads(tmp_path: Path) -> None:
    sweep = blocks("CONTRIBUTING.md", "yaml")[-1]
    path = tmp_path / "sweep.yaml"
    path.write_text(sweep)
    assert len(load_sweep(str(path)).cells) == 3 * (2 * 2 + 2)
    assert yaml.safe_load(sweep)["description"]


def test_the_search_space_of_the_tunings_page_is_one(tmp_path: Path) -> None:
    (sweep,) = blocks("docs/tuning.md", "yaml")
    path = tmp_path / "space.yaml"
    path.write_text(sweep)
    trials = read_rows(str(path), []).trials
    proposed = propose(str(path), [f"runtime.runs_dir={tmp_path}"], trials)
    labels = Counter(cell.label for cell in proposed.sweep.cells)
    assert (labels, proposed.complete) == ({"SFRIK (L=2)": 8, "SFRIK (L=3)": 8, "VICReg": 8}, False)
    assert len({cell.optimizer.base_lr for cell in proposed.sweep.cells}) == 8
    assert proposed.sweep.final_seeds == (0, 1, 2)


def test_the_readme_is_short_and_shows_rows_of_the_pitchs_table() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.split()) <= 700
    shown = table(re.findall(r"<!-- result -->\n(.*?)<!-- /result -->", readme, re.DOTALL)[0])
    whole = table((ROOT / "docs" / "results" / "pitch.md").read_text())
    # The last rows, of the weakest untrained features, are left to the page.
    assert len(shown) == 10
    assert shown == [{name: row[name] for name in shown[0]} for row in whole[:10]]


def table(text: str) -> list[dict[str, str]]:
    """The rows of the first table."""
    first = re.search(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    assert first is not None
    rows = (line.strip("|").split("|") for line in first[0].splitlines())
    lines = [[cell.strip() for cell in row] for row in rows]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


def test_identities_are_those_of_tests_that_exist() -> None:
    text = (ROOT / "docs" / "identities.md").read_text()
    named = re.findall(r"\| `(test_\w+)` \|$", text, re.MULTILINE)
    tests = "\n".join(path.read_text() for path in (ROOT / "tests" / "methods").glob("test_*.py"))
    assert named
    assert set(named) <= set(re.findall(r"^def (test_\w+)", tests, re.MULTILINE))
    of_methods = set(re.findall(r"`(\w+)`", text)) - set(named)
    assert of_methods - {"pdist"} <= set(methods.names())


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere_and_make_has_its_targets(document: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = "\n".join(blocks(document, ""))
    assert set(re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)) <= targets
    for target in re.findall(r"\]\((?!https?://)([^)#]+)\)", (ROOT / document).read_text()):
        # which the site makes
        if "docs/reference/" not in str(made := (ROOT / document).parent / target):
            assert made.exists(), target


# What documents name as their reader's own.
IMAGINED = {"imq", "plants", "mine"}
PRESETS = ("method", "dataset", "augmentation", "network", "optimizer", "cluster")


@functools.cache
def setting_names() -> set[str]:
    names = {setting.name for _, settings in listing() for setting in settings}
    names |= {f"method.{key}" for name in methods.names() for key in methods.defaults(name)}
    return names | set(PRESETS) | {"network.backbone", "dataset.source"}


def prose(document: str) -> str:
    """A document without its code blocks."""
    text = (ROOT / document).read_text()
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def commands(document: str) -> list[str]:
    """What a document, or the help of a command, tells its reader to type after `regbench`."""
    if document in main.commands:
        # Two spaces lead to what is said of a command, a backslash to its next line.
        told = main.commands[document].help or ""
        return re.findall(r"^ +regbench (\S+(?: \S+)*?)(?: \\)?(?:  .*)?$", told, re.MULTILINE)
    lines = [line for block in blocks(document, "") for line in block.splitlines()]
    lines += re.findall(r"`([^`\n]+)`", prose(document))
    found = (re.match(r"(?:torchrun .*|\.venv/bin/)?regbench (.+)", line) for line in lines)
    return [match[1] for match in found if match]


@functools.cache  # many are in several documents
def understand(text: str) -> None:
    """Fail unless the command exists and has these options, and all that it sets are settings
    with possible values.
    """
    name, *rest = shlex.split(text, comments=True)
    assert name in main.commands
    words = [word for word in rest if word not in ("…", "...", "--help")]
    words = list(map(os.path.expanduser, words))  # as a shell does
    if not words:
        return
    try:
        parameters = main.commands[name].make_context(name, list(words)).params
    except click.BadParameter as error:
        if "does not exist" in str(error):  # a file or folder of the reader's
            return
        raise
    overrides = [word for word in words if re.match(r"[\w.]+=", word)]
    for override in overrides:
        setting, _, value = override.partition("=")
        assert in_listing(setting) in setting_names() or value in IMAGINED, override
    overrides += ["epochs=100"] * ("…" in rest)
    if name in ("sweep", "tune") and parameters["name"] in sweep_names():
        if not any(override.endswith(f"={one}") for override in overrides for one in IMAGINED):
            file = read_rows(parameters["name"], overrides)
            # The ranges of a search are no cells.
            if not (name == "tune" and (file.trials or file.trials_per_hyperparameter)):
                load_rows(file, file.rows)
    elif name in ("train", "evaluate") and not any(one in text for one in IMAGINED):
        load_run(overrides)


def in_listing(setting: str) -> str:
    """The name of a setting as `regbench settings` has it."""
    return re.sub(r"^(augmentation\.views)\.\w+", r"\1.KIND", setting)


@pytest.mark.parametrize("document", [*DOCUMENTS, *sorted(main.commands)])
def test_commands_are_understood(document: str) -> None:
    for command in commands(document):
        try:
            understand(command)
        except (AssertionError, RegbenchError, click.ClickException) as error:
            pytest.fail(f"regbench {command}: {error!r}")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_settings_that_are_named_exist(document: str) -> None:
    of_groups = r"`((?:network|optimizer|runtime|evaluation|dataset|augmentation|cluster)\.(?!md)[a-z][\w.]*)"
    for named in re.findall(of_groups, prose(document)):
        setting = re.sub(r"^evaluation\.\w+\.(dataset\.)", r"\1", in_listing(named.rstrip(".")))
        assert any(f"{name}.".startswith(f"{setting}.") for name in setting_names()), named
