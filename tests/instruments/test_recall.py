"""What the audit notices of mistakes that are made by program."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from regbench import methods
from regbench.instruments.audit.probes import PROBES
from regbench.instruments.loss_checks import draw_views
from tests.instruments.planting import TWIN, Examined, Mutant, examine, mutants

Golden = Callable[[str, str], None]


def missed(entries: list[Examined]) -> list[str]:
    """Describe mistakes of which nothing was found, and sound losses of which something was."""
    return [str(entry) for entry in entries if bool(entry.mistake) != bool(entry.found)]


def test_mutants_are_other_losses_and_the_original_is_the_method() -> None:
    views = draw_views(12, 8, 2)
    wanted = methods.build("vicreg").loss(*views).item()
    assert Mutant("vicreg")(*views).item() == pytest.approx(wanted, rel=1e-12)
    assert Mutant("vicreg", TWIN)(*views).item() == pytest.approx(3 * wanted + 1, rel=1e-12)
    made = [Mutant("vicreg", *mutant)(*views).item() for mutant in mutants("vicreg", 20)]
    # Detached parts keep the value; every other mistake of VICReg changes it.
    assert len(set(made)) >= 8


@pytest.mark.parametrize("method", ["simclr", "vicreg", "simsiam"])
def test_a_mistake_is_found_by_its_name_and_the_method_itself_is_sound(
    method: str, golden: Golden
) -> None:
    entries = list(examine(method, ("value", "gradient"), most=8))
    assert missed(entries) == []
    golden(f"recall_{method}.txt", "".join(f"{entry}\n" for entry in entries))


def test_a_probe_that_is_blind_for_a_mistake_misses_it() -> None:
    blind = list(examine("sfrik_l1", ("memory",), most=4))
    assert len(missed(blind)) == len(blind) - 2 > 0


@pytest.mark.slow
@pytest.mark.exhaustive
def test_mistakes_in_all_methods_are_found() -> None:
    """The table of docs/results/audit.md: eleven of 1,091 were missed, and no alarm was false."""
    entries: list[Examined] = []
    for method in methods.names():
        entries += examine(method, tuple(PROBES))
    failures = missed(entries)
    assert len(entries) > 1100
    assert [line for line in failures if ", nothing: " in line] == []
    assert len(failures) <= 11, failures
