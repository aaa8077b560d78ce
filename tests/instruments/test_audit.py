"""The audit finds each planted defect by its name, and nothing in sound losses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import Result

from regbench.audit import assert_sound
from regbench.instruments.audit import adapters
from regbench.instruments.audit.finding import Finding
from regbench.instruments.audit.probes import PROBES, run_probe
from regbench.instruments.audit.ranks import Answer, Ranks, directions_of, ranks, whole_batch
from regbench.instruments.audit.target import Batch, Target
from regbench.instruments.loss_checks import evaluate
from tests.command import python, refusal, run
from tests.refusals import is_refused

FILE = Path(__file__).with_name("audited.py")
REFUSED = yaml.safe_load(FILE.with_name("refused.yaml").read_text())
SIMCLR, VICREG = "simclr(temperature=0.5)", "vicreg"


def target(expression: str, claims: str = "", **how: Any) -> Target:
    name = f"{FILE}:{expression}"
    return Target(name=name, expression=name, claims=claims, **how)


def crops(loss: Any, batch: Batch) -> Any:
    return loss(*batch.views_NQ, global_views=batch.global_views)


def planted() -> list[Any]:
    """Read planted.txt: the losses, how they are audited and what is found of them."""
    rows = []
    for line in FILE.with_name("planted.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        loss, claims, how, probe, found, *words = (cell.strip() for cell in line.split(" |"))
        marks = [pytest.mark.slow] * (words == ["slow"])
        row = (loss, claims, how, probe, found, "".join(words))
        rows.append(pytest.param(*row, marks=marks, id=f"{loss} {probe}"))
    return rows


ONE_PROCESS = [row for row in planted() if row.values[3] != "ranks"]


@pytest.mark.parametrize(("loss", "claims", "how", "probe", "found", "words"), ONE_PROCESS)
def test_what_is_wrong_is_found_by_its_name(
    loss: str, claims: str, how: str, probe: str, found: str, words: str
) -> None:
    audited = target(loss, claims, **eval(f"dict({how})"))
    probes = PROBES if probe == "all" else [probe]
    findings = [finding for name in probes for finding in run_probe(audited, name)]
    if found == "nothing":
        assert findings == []
        return
    first, *others = findings
    assert f"{first.severity} {first.name}" == found, findings
    assert words in first.text
    # One mistake among many views shows in several ways.
    assert probe == "views" or all(finding.severity == "note" for finding in others), findings


def test_a_kink_is_no_jump() -> None:
    found = run_probe(target("has_kinks"), "precision")
    assert "rounds within" not in [finding.name for finding in found]


@pytest.fixture(scope="module")
def group() -> Iterator[Ranks]:
    with Ranks() as group:
        yield group


RANKS = [row for row in planted() if row.values[3] == "ranks"]


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "claims", "how", "probe", "found", "words"), RANKS)
def test_what_is_wrong_between_ranks_is_found_by_its_name(
    group: Ranks, loss: str, claims: str, how: str, probe: str, found: str, words: str
) -> None:
    findings = ranks(target(loss, claims, **eval(f"dict({how})")), group)
    assert ", ".join(finding.name for finding in findings) == found.replace("nothing", "")


class Told(Ranks):
    """What ranks would see that each know the whole batch, by one process.

    `factor` is that of value and gradient.
    """

    def __init__(self, factor: Callable[[int], float]) -> None:
        self.factor = factor

    def look(self, target: Target, rows: Sequence[int]) -> list[Answer]:
        views, world = whole_batch(target, rows), len(rows)
        value, gradients = evaluate(target.value, views)
        along = (torch.stack(gradients) * torch.stack(directions_of(target, views))).sum(dim=(0, 2))
        seen = self.factor(world) * torch.stack([part.sum() for part in along.split(list(rows))])
        slopes = tuple(seen.tolist())
        # DistributedDataParallel takes the mean of the gradients.
        seen_value = self.factor(world) * value.item()
        answers = [Answer(seen_value, 0.0, world * slope, slopes) for slope in slopes]
        return [replace(answer, drawn=answer.value) for answer in answers]


class Alone(Told):
    """What ranks would see that each know their own rows alone."""

    def look(self, target: Target, rows: Sequence[int]) -> list[Answer]:
        parts = [view.split(list(rows)) for view in whole_batch(target, rows)]
        answers = []
        for rank, share in enumerate(zip(*parts, strict=True)):
            value = target.value(share, first=sum(rows[:rank])).item()
            slopes = tuple(float(other == rank) for other in range(len(rows)))
            answers.append(Answer(value, value, 1.0, slopes))
        return answers


@pytest.mark.parametrize(("gathers", "name"), [(True, "does not gather"), (False, "own rows")])
def test_a_state_of_each_ranks_own_rows_is_told(gathers: bool, name: str) -> None:
    """Ranks of which each has its own rows of the batches before, too."""
    found = ranks(target("Dino", "dino", call="list", gathers=gathers), Alone(lambda world: 1.0))
    assert [finding.name for finding in found] == [name]


@pytest.mark.parametrize(
    ("factor", "words"), [(lambda world: world, "times"), (lambda world: 1 / world, "divided by")]
)
def test_a_factor_between_ranks_is_told(factor: Callable[[int], float], words: str) -> None:
    found = ranks(target("simclr", gathers=True), Told(factor))
    names = [finding.name for finding in found]
    assert names == ["value's factor", "unequal shares change the value"]
    assert found[0].text.endswith(f": {words} the number of ranks")


def test_what_a_loss_detaches_is_no_defect_between_ranks() -> None:
    assert ranks(target("detaches_a_part", gathers=True), Told(lambda world: 1.0)) == []


@pytest.mark.slow
def test_ranks_get_as_many_views_as_a_loss_takes(group: Ranks) -> None:
    two, three = (
        ranks(target("gathers_two_views", gathers=True, views=views), group)[0].name
        for views in ((2,), (2, 3))
    )
    assert (two, three) == ("unequal shares change the value", "statistics of own rows")


def test_a_loss_of_ones_own_is_held_to_be_sound() -> None:
    quick = ("value", "gradient")
    assert_sound(f"{FILE}:simclr", SIMCLR, probes=quick)
    told = "negative: wrong sign: equals SimCLR's textbook times -1"
    with pytest.raises(AssertionError, match=told):
        assert_sound(f"{FILE}:negative", SIMCLR, probes=quick)


def test_pytests_plug_in_imports_nothing_until_it_is_asked_for() -> None:
    done = python("import sys, regbench.pytest_plugin; print(*sys.modules)", check=True)
    assert not {"torch", "regbench.audit"} & set(done.stdout.split())
    project = tomllib.loads((FILE.parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"regbench": "regbench.pytest_plugin"}


@pytest.mark.slow
def test_the_fixture_audits(tmp_path: Path) -> None:
    text = f"""
        def test_sound(assert_sound):
            assert_sound({str(FILE)!r} + ":simclr", {SIMCLR!r}, probes=("value",))

        def test_not_sound(assert_sound):
            assert_sound({str(FILE)!r} + ":negative", {SIMCLR!r}, probes=("value",))
    """
    (tmp_path / "test_losses.py").write_text(textwrap.dedent(text))
    is_installed = any(point.name == "regbench" for point in entry_points(group="pytest11"))
    plugin = [] if is_installed else ["-p", "regbench.pytest_plugin"]
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, *plugin, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert "1 failed, 1 passed" in result.stdout, result.stdout
    assert "wrong sign" in result.stdout


def no_json(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def audited(loss: str, options: str, folder: Path) -> tuple[Result, list[dict[str, Any]]]:
    """Run the command; return what it printed and the findings that it wrote."""
    result = run("audit", f"{FILE}:{loss}", *options.split(), "--out", folder)
    written = json.loads((folder / "audit.json").read_text(), parse_constant=no_json)
    return result, written["losses"][0]["findings"]


def test_the_command_writes_what_it_found(tmp_path: Path) -> None:
    """A size that is infinite is written as text, as JSON knows no such number."""
    result, (finding, *_) = audited("overflows", f"--claims {SIMCLR} --probe precision", tmp_path)
    assert (result.exit_code, finding["size"]) == (1, "inf")
    value = "--claims vicreg --probe value"
    result, (finding,) = audited("no_covariance", value, tmp_path)
    assert result.exit_code == 1
    assert "missing term" in result.output
    assert "defects: 1; losses: 1" in result.output
    assert (finding["name"], finding["severity"]) == ("missing term", "defect")
    again = f"regbench audit {FILE}:no_covariance --claims vicreg --probe value"
    assert finding["command"] == again
    result, findings = audited("vicreg", value, tmp_path)
    assert (result.exit_code, findings) == (0, []), result.output


def test_the_command_gives_more_than_two_views(tmp_path: Path) -> None:
    options = "--claims rbf --views 4 --probe views"
    result, (finding, *_) = audited("leaves_out_a_view", options, tmp_path)
    assert result.exit_code == 1
    assert "view left out" in result.output
    assert finding["command"].endswith("--claims rbf --views 4 --probe views")


def test_a_loss_takes_two_views_at_least() -> None:
    with is_refused(r"views=\(3,\): a loss is audited with two views first"):
        target("rbf_of_views", views=(3,))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no_library"], "no adapters of 'no_library'"),
        (["no_module:Loss"], "no_module cannot be imported"),
        (["nowhere.py:Loss"], "there is no file"),
        ([f"{FILE}:Missing"], "Missing cannot be made"),
        ([f"{FILE}:vicreg", "--claims", "no_method"], "no_method"),
        ([f"{FILE}:vicreg", "--claims", "2 +"], "'2 +' is no regularizer"),
        ([f"{FILE}:vicreg", "--call", "loudly"], "unknown call 'loudly'"),
        ([f"{FILE}:vicreg", "--probe", "teeth"], "unknown probe 'teeth'"),
    ],
)
def test_what_cannot_be_audited_is_refused(arguments: list[str], said: str, tmp_path: Path) -> None:
    assert said in refusal("audit", *arguments, "--out", tmp_path)


def test_adapters_are_read() -> None:
    """Each is checked as one is made: how it is called, and the regularizer that it claims to
    be.
    """
    read = adapters.libraries()
    assert {library: len(losses) for library, losses in read.items()} == {
        "lightly": 16,
        "pytorch-metric-learning": 2,
        "stable-pretraining": 9,
        "solo-learn": 8,
        "lejepa": 2,
        "jepa-science": 1,
        "info-nce-pytorch": 1,
        "emp-ssl-pytorch": 1,
    }
    assert read["lightly"]["MMCRLoss"].views == (2, 4)
    assert callable(read["lightly"]["TiCoLoss"].call)


@pytest.mark.slow
def test_adapters_of_libraries_that_are_installed() -> None:
    """What second opinions found by hand, found by itself."""

    def found(name: str) -> list[Finding]:
        (loss,), _ = adapters.find_losses([name])
        return run_probe(loss, "value")

    assert found("lightly:NTXentLoss") == found("pytorch-metric-learning:VICRegLoss") == []
    (rate,) = found("lightly:EMPSSLLoss")
    assert rate.severity == "defect"
    assert "times -1" in rate.text


@pytest.mark.parametrize("case", REFUSED["of the command"])
def test_whatever_a_file_does_is_one_line_of_the_command(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "while" in case["file"]:
        monkeypatch.setattr("regbench.audit.LIMIT_S", 3.0)
    (tmp_path / "own.py").write_text(case["file"])
    monkeypatch.chdir(tmp_path)
    result = run("audit", "own.py:own", "--probe", "gradient", "--out", "out")
    assert (result.exit_code, result.stderr.count("\n")) == (case["code"], 1), result.output
    assert re.search(case["told"], result.stderr), result.stderr


def test_a_file_may_have_the_name_of_a_module_of_pythons(tmp_path: Path) -> None:
    (tmp_path / "types.py").write_text("def own(z1, z2): return (z1 - z2).square().mean()")
    assert_sound(f"{tmp_path}/types.py:own", probes=["gradient"])
    assert sys.modules["types"] is types


def test_a_loss_that_is_nan_is_not_said_to_keep_a_state(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def own(z1, z2): return (z1 - z2).mean() * float('nan')")
    name = f"{tmp_path}/own.py:own"
    assert run_probe(Target(name=name, expression=name), "state") == []


@pytest.mark.parametrize("case", REFUSED["of a finding"])
def test_a_finding_says_where_a_loss_fails_and_what_to_do_about_its_state(
    case: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "own.py"
    file.write_text(case["file"])
    name = f"{file}:own"
    (found,) = run_probe(Target(name=name, expression=name), "gradient")
    assert re.search(case["told"], found.text), found.text


def test_a_file_that_cannot_be_loaded_is_refused_in_a_test_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import sys\nsys.exit(0)")
    with is_refused(r"cannot be loaded: SystemExit: 0 \(broken.py, line 2\)"):
        assert_sound(f"{tmp_path}/broken.py:own")
    (tmp_path / "lonely.py").write_text("import my_helpers")
    with is_refused(
        r"'my_helpers' \(lonely.py, line 1\); install it, or give its folder: --source"
    ):
        assert_sound(f"{tmp_path}/lonely.py:own")
