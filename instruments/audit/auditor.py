"""An audit of losses: every probe over every target."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from regbench import settings
from regbench.benchmark.machine import hardware, versions
from regbench.errors import RegbenchError
from regbench.instruments.audit.finding import MEANING, Finding, Report
from regbench.instruments.audit.group import Ranks
from regbench.instruments.audit.probes import PROBES, run_probe
from regbench.instruments.audit.ranks import ranks
from regbench.instruments.audit.target import SIZE, Target

ALL_PROBES = (*PROBES, "ranks")


def audit_targets(
    losses: Sequence[Target],
    probes: Sequence[str] = ALL_PROBES,
    options: str = "",
    progress: Callable[[], object] = lambda: None,
) -> Iterator[Report]:
    """Audit losses, one after the other.

    Args:
        losses: What to audit.
        probes: Names of probes, see `ALL_PROBES`.
        options: Options of the command that shows it again.
        progress: Called when a probe is done.

    Yields:
        What was found of each.

    Raises:
        RegbenchError: If a probe is unknown or a loss cannot be made.
    """
    for name in probes:
        if name not in ALL_PROBES:
            raise RegbenchError(settings.unknown("probe", name, ALL_PROBES))
    with Ranks() as group:
        for target in losses:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a library's own warnings are not what is looked for
                yield _audit_one(target, probes, group, options, progress)


def _audit_one(
    target: Target, probes: Sequence[str], group: Ranks, options: str, progress: Callable[[], object]
) -> Report:
    begin_s = time.perf_counter()
    target.make(*SIZE, torch.float64)  # what cannot be made is refused, not found
    findings: list[Finding] = []
    for name in probes:
        if name == "ranks":
            findings += [replace(finding, probe=name) for finding in ranks(target, group)]
        else:
            findings += run_probe(target, name)
        progress()
    severities = list(MEANING)
    findings.sort(key=lambda finding: severities.index(finding.severity))
    return Report(
        loss=target.name,
        version=target.version,
        claims=target.adapter.claims,
        probes=tuple(probes),
        findings=tuple(findings),
        command=f"regbench audit '{target.name}' {options}".strip(),
        seconds_s=round(time.perf_counter() - begin_s, 2),
    )


def described_machine() -> str:
    """Say what the audit ran on."""
    packages = ", ".join(f"{name} {version}" for name, version in versions("regbench", "torch").items())
    return f"{hardware(torch.device('cpu'))}; {packages}."
