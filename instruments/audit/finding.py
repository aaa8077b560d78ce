"""The findings of an audit, and their display."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Literal

from pydantic import ConfigDict
from tabulate import tabulate

Severity = Literal["defect", "convention", "note"]
"""The worst first: the loss is not what it says, or its gradient is not that of the batch; another
choice of factors, constants or statistics; worth knowing.
"""


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Attributes:
        name: Name of the finding, a word or two; the same words for the same thing.
        severity: See `Severity`.
        size: Size, in the unit that `text` names.
        text: A sentence with the numbers.
        probe: The probe that found it; `audit_losses` fills it in.
    """

    name: str
    severity: Severity
    size: float
    text: str
    probe: str = ""

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid")  # a size may be NaN


@dataclass(frozen=True, kw_only=True)
class Report:
    """The findings of one loss, the worst first.

    Attributes:
        version: Version of the loss's package, or the digest of its file.
        command: Command that shows it again, without the probe.
    """

    loss: str
    version: str
    claims: str
    probes: tuple[str, ...]
    findings: tuple[Finding, ...]
    command: str
    seconds_s: float

    @property
    def defects(self) -> list[Finding]:
        """The findings that are defects."""
        return [finding for finding in self.findings if finding.severity == "defect"]

    def again(self, finding: Finding) -> str:
        """Return the command that shows one finding again."""
        return f"{self.command} --probe {finding.probe}"


def table(reports: Sequence[Report]) -> str:
    """Set the findings as a table for the terminal."""
    rows = []
    for report in reports:
        for each in report.findings:
            size = "" if math.isnan(each.size) else f"{each.size:.3g}"
            rows.append([report.loss, each.severity, each.name, size, each.text])
    headers = ["loss", "severity", "finding", "size", ""]
    return tabulate(
        rows, headers=headers, disable_numparse=True, maxcolwidths=[26, None, 26, None, 64]
    )


def plain(reports: Sequence[Report], machine: str) -> str:
    """Write what was found as JSON."""
    entries = []
    for report in reports:
        entry = asdict(report)
        for written, finding in zip(entry["findings"], report.findings, strict=True):
            written["command"] = report.again(finding)
            if not math.isfinite(finding.size):
                written["size"] = str(finding.size)  # JSON has no NaN
        entries.append(entry)
    return json.dumps({"machine": machine, "losses": entries}, indent=1) + "\n"


def in_words(values: Mapping[str, float], tolerance: float = 1e-5) -> str:
    """Write a number once if it is the same in all cases, as a fraction if it is one; else write it
    with its cases.
    """
    first, *others = values.values()
    if all(math.isclose(first, other, rel_tol=tolerance) for other in others):
        # Conventions differ by small whole numbers and their quotients, so a fraction shows what
        # was done.
        fraction = Fraction(first).limit_denominator(64)
        return str(fraction) if math.isclose(first, fraction, rel_tol=tolerance) else f"{first:.6g}"
    return ", ".join(f"{value:.4g} at {case}" for case, value in values.items())
