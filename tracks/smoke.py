"""The track `minute`: whether a loss keeps the rules of losses and learns anything, before a
challenge of an hour.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tabulate import tabulate

from regbench.benchmark.rundir.record import Record, read_record
from regbench.benchmark.settings.sweep import Sweep, load_grid, load_rows, read_rows
from regbench.instruments.conformance import CHECKS, run_check
from regbench.methods import METHODS, Regularizer
from regbench.sweeps.run import Execute, refuse_unfinished, run_grid
from regbench.tracks.own_loss import LossFile
from regbench.tracks.stand_in import ask, compute_once, entered

log = logging.getLogger("regbench")

SMOKE = "minute"
"""The track and its preset: a row of the untrained network, and then one whose method the loss
replaces.
"""

RULES = ("gradient", "order of images", "views matter", "float32", "half precision", "finite")
"""The conformance checks that every loss has to pass.

The others test what its metadata claim.
"""

# An effective rank of 1 is a single point or line.
_COLLAPSED = 2.0


@dataclass(frozen=True)
class Smoke:
    """The outcome of the track `minute`.

    Attributes:
        findings: Findings, one for each check: whether it passed, its name and the numbers.
    """

    findings: Sequence[tuple[bool, str, str]]

    @property
    def ok(self) -> bool:
        """Whether all checks passed."""
        return all(ok for ok, _, _ in self.findings)

    def __str__(self) -> str:
        """Lay it out for a terminal."""
        rows = [["ok" if ok else "FAILS", name, text] for ok, name, text in self.findings]
        return tabulate(rows, tablefmt="plain", disable_numparse=True)


@dataclass(frozen=True)
class SmokeTest:
    """A smoke test that was prepared.

    Attributes:
        method: The stand-in for the loss, with its defaults.
        grid: The untrained network, and the loss.
        check: Function that checks the loss in a process of its own, and returns the deviation and
            its place for each of `RULES` that applies.
    """

    method: Regularizer
    grid: Sweep
    check: Callable[[], Sequence[tuple[str, float, str]]]

    def plan(self) -> str:
        """Describe what it takes."""
        return f"{len(RULES)} checks and one training of {self.method.label}, a minute or so"

    def run(self, execute: Execute, say: Callable[[str], None] = log.info) -> Smoke | None:
        """Check the loss and train it; None if the training goes on without this process.

        Raises:
            Unfinished: If the training has ended without a record.
        """
        findings = []
        for rule, error, where in self.check():
            bound = CHECKS[rule].bound
            text = f"deviation {error:.2g}, {bound:g} is allowed ({where})"
            findings.append((error <= bound, rule, text))  # not so for NaN
        statuses = run_grid(self.grid, execute, oversized=False)
        refuse_unfinished(statuses, self.grid)
        if statuses is None:
            return None
        before, after = (read_record(self.grid.folder / cell.id) for cell in self.grid.cells)
        assert before is not None and after is not None
        return Smoke([*findings, *_learned(before, after)])


def _learned(before: Record, after: Record) -> Iterator[tuple[bool, str, str]]:
    """Compare the trained loss with the untrained network."""
    # A run that diverged in its first epoch has logged no rank.
    rank = after.at_end.get("effective_rank", 0.0)
    is_spread = after.status == "done" and rank > _COLLAPSED
    yield is_spread, "not collapsed", f"{after.status}, effective rank {rank:.1f}"
    for score in before.scores:
        if score.name == "linear_top1" and score.split == "test":
            value = after.score(score.name, "test") or 0.0
            found = f"{value:.2f} %, the untrained network {score.value:.2f} %"
            yield value > score.value, f"more {score.title} than untrained", found


@contextmanager
def smoke_test(file: LossFile, overrides: Sequence[str]) -> Iterator[SmokeTest]:
    """Prepare a smoke test of a loss, with settings of the runtime and the cluster."""
    name = f"{SMOKE}_{file.module}"
    folder = Path(load_grid(overrides).runtime.runs_dir) / name / "plug_in"
    with file.on_path(folder), entered(file, folder) as method:
        preset = read_rows(SMOKE, overrides)
        untrained, trained = preset.rows
        # The preset cannot name a loss that it does not know.
        rows = [untrained, [*trained, f"method={METHODS.name(method)}"]]
        grid = replace(load_rows(preset, rows), name=name)
        sizes = grid.cells[-1].batch_size, grid.cells[-1].output_dim
        yield SmokeTest(method, grid, partial(ask, file, folder, _checked, *sizes))


def _checked(method: Regularizer, n: int, q: int) -> list[tuple[str, float, str]]:
    compute_once(method, n, q)
    results = [run_check(method, rule) for rule in RULES]
    return [(result.check, result.error, result.where) for result in results if result is not None]
