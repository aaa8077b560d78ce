"""What the audit notices of mistakes that are made by program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from regbench import methods
from regbench.instruments.audit.recall import TWIN, Mutant, examine, main, mutants, recall_table
from regbench.instruments.loss_checks import draw_views


def test_mutants_are_other_losses_and_the_original_is_the_method() -> None:
    views = draw_views(12, 8, 2)
    wanted = methods.build("vicreg").loss(*views).item()
    assert Mutant("vicreg")(*views).item() == pytest.approx(wanted, rel=1e-12)
    assert Mutant("vicreg", TWIN)(*views).item() == pytest.approx(3 * wanted + 1, rel=1e-12)
    values = {Mutant("vicreg", number, place)(*views).item() for number, place in mutants("vicreg")}
    # Detached parts keep the value; every other mistake of VICReg changes it.
    assert len(values) >= 8


def test_mistakes_are_found_by_their_kind_and_the_method_itself_is_not() -> None:
    entries = examine("sfrik_l1", ("value", "gradient"))
    assert [entry["findings"] for entry in entries if not entry["mistake"]] == [[], []]
    assert all(entry["findings"] for entry in entries if entry["mistake"])
    blind = examine("sfrik_l1", ("memory",))
    assert not any(entry["findings"] for entry in blind)
    table = recall_table([*entries, *blind]).splitlines()[-1].split("|")
    mistakes = sum(bool(entry["mistake"]) for entry in entries)
    assert [int(table[2]), int(table[5])] == [2 * mistakes, mistakes]
    assert int(table[6]) == 50


def test_mistakes_in_a_loss_of_targets_are_found_and_the_method_itself_is_not() -> None:
    entries = examine("simsiam", ("value", "gradient"))
    assert [entry["findings"] for entry in entries if not entry["mistake"]] == [[], []]
    assert len(entries) > 6
    assert all(entry["findings"] for entry in entries if entry["mistake"])


@pytest.mark.slow
def test_the_command_audits_a_sample(tmp_path: Path) -> None:
    out = tmp_path / "recall.json"
    result = CliRunner().invoke(main, ["vicreg", "tico", "--out", str(out)])
    assert result.exit_code == 0, result.output
    entries = json.loads(out.read_text())
    assert {entry["method"] for entry in entries} == {"vicreg", "tico"}
    assert "false alarm" not in result.output
