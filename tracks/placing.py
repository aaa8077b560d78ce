"""The outcome of a challenge, and its words."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from regbench.reports.rows.deviations import Stat
from regbench.reports.rows.significance import LEVEL
from regbench.tracks.verdicts import Verdict, select


@dataclass(frozen=True, kw_only=True)
class Placing:
    """The place of a challenger among the rows of a track.

    Attributes:
        label: Name of its row.
        score: The score in words.
        values: The score of each seed, in percent.
        verdicts: Verdict on each row except the one trained with labels.
        rivals: Names of the rows of methods: those that have places.
        shifts: Points that each repeated cell scored more on this machine.
        share: Percent of the way from the best row without training to labels.
        measured: Further measurements of its row, with the unit, by name.
        page: The report.
        bundle: The bundle of its cells.
    """

    label: str
    score: str
    values: Sequence[float]
    verdicts: Sequence[Verdict]
    rivals: Sequence[str]
    shifts: Sequence[float]
    share: float | None
    measured: Mapping[str, tuple[Stat | None, str]]
    page: Path
    bundle: Path

    @property
    def place(self) -> int:
        """Place by the means, 1 for the best."""
        return 1 + sum(verdict.difference < 0 for verdict in self._of_rivals)

    @property
    def places(self) -> tuple[int, int]:
        """The best and the worst place that the verdicts leave open."""
        # A row that is not significantly different from it may stand on either side.
        ahead = len(select(self._of_rivals, "worse than"))
        behind = len(select(self._of_rivals, "better than"))
        return 1 + ahead, 1 + len(self.rivals) - behind

    @property
    def _of_rivals(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.label in self.rivals]

    @property
    def claim(self) -> str:
        """Sentence that may be claimed."""
        beaten = ", ".join(verdict.label for verdict in select(self.verdicts, "better than"))
        held = f"{self.label} is better than {beaten}" if beaten else "better than no row"
        return f"{held} (all verdicts together hold in {100 - 100 * LEVEL:.0f} of 100 challenges)"

    def __str__(self) -> str:
        """Lay it out for a terminal."""
        rows = []
        for verdict in self.verdicts:
            middle, half = verdict.difference, verdict.half_width
            interval = f"{middle - half:+.2f} to {middle + half:+.2f}"
            rows.append([verdict.words, verdict.label, f"{middle:+.2f}", interval])
        heads = [f"{self.label} is", "row", "points", "interval"]
        # tabulate would take "+0.10" for a number, and print 0.1.
        table = tabulate(rows, heads, disable_numparse=True)
        best, worst = self.places
        mean = statistics.fmean(self.values)
        shifts = ", ".join(f"{shift:+.2f}" for shift in self.shifts)
        lines = [
            f"place {self.place} of {len(self.rivals) + 1}, by its verdicts {best} to {worst}",
            f"{self.score}: {mean:.2f} % over {len(self.values)} seeds",
            f"claim: {self.claim}",
        ]
        if self.share is not None:
            lines.append(f"share of the way to labels: {self.share:.0f} %")
        for name, (found, unit) in self.measured.items():
            if found is not None:
                lines.append(f"{name}: {found.mean:.3g}{unit}")
        lines += [
            f"repeated cells scored {shifts} points more here than where the rows are from; it is "
            "in the intervals",
            f"report: {self.page}",
            f"bundle: {self.bundle}",
        ]
        return "\n".join([table, "", *lines])


def side_by_side(placings: Mapping[str, Placing]) -> str:
    """Lay out the places in several tasks, by name, for a terminal: the difference from each
    row.
    """
    cells: dict[str, dict[str, str]] = {}
    places = {}
    for task, placing in placings.items():
        for verdict in placing.verdicts:
            star = "" if verdict.words == "not significantly different from" else "*"
            cells.setdefault(verdict.label, {})[task] = f"{verdict.difference:+.2f}{star}"
        places[task] = f"{placing.place} of {len(placing.rivals) + 1}"
    cells["place"] = places
    rows = [[label, *(found.get(task, "–") for task in placings)] for label, found in cells.items()]
    label = next(iter(placings.values())).label
    table = tabulate(rows, [f"{label} minus", *placings], disable_numparse=True)
    return f"{table}\n* significantly different, by the verdicts of each task by itself"
