"""An audit of losses: every probe over every target, and what may be asked of a loss in a test of one's own."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import torch

from regbench import settings
from regbench.benchmark.machine import hardware, versions
from regbench.errors import RegbenchError
from regbench.instruments.audit.adapters import targets
from regbench.instruments.audit.finding import SEVERITIES, Finding, Report
from regbench.instruments.audit.group import Ranks
from regbench.instruments.audit.probes import PROBES, run_probe
from regbench.instruments.audit.ranks import ranks
from regbench.instruments.audit.target import Adapter, Call, Target

ALL_PROBES = (*PROBES, "ranks")


def audit(
    losses: Sequence[Target],
    probes: Sequence[str] = ALL_PROBES,
    options: str = "",
    progress: Callable[[str], None] = lambda name: None,
) -> Iterator[Report]:
    """Audit losses, one after the other.

    Args:
        losses: What to audit.
        probes: Names of probes, see `ALL_PROBES`.
        options: Of the command that shows it again.
        progress: Called with the name of a probe when it is done.

    Yields:
        What was found of each.

    Raises:
        RegbenchError: If a probe is unknown or a loss cannot be made.
    """
    for name in probes:
        if name not in ALL_PROBES:
            raise RegbenchError(settings.unknown("probe", name, ALL_PROBES))
    with ExitStack() as stack:
        group = stack.enter_context(Ranks()) if "ranks" in probes else None
        for target in losses:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a library's own warnings are not what is looked for
                yield _audit_one(target, probes, group, options, progress)


def _audit_one(
    target: Target, probes: Sequence[str], group: Ranks | None, options: str, progress: Callable[[str], None]
) -> Report:
    begin_s = time.perf_counter()
    target.make(12, 4, torch.float64)  # what cannot be made is refused, not found
    findings: list[Finding] = []
    for name in probes:
        findings += ranks(target, group) if name == "ranks" and group else run_probe(target, name)
        progress(name)
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return Report(
        loss=target.name,
        version=target.version,
        claims=target.adapter.claims,
        probes=tuple(probes),
        findings=tuple(findings),
        command=" ".join(filter(None, ("regbench audit", f"'{target.name}'", options))),
        seconds_s=round(time.perf_counter() - begin_s, 2),
    )


def described_machine() -> str:
    """Say what the audit ran on."""
    packages = ", ".join(f"{name} {version}" for name, version in versions("regbench", "torch").items())
    return f"{hardware(torch.device('cpu'))}; {packages}."


def assert_sound(
    target: str,
    claims: str = "",
    *,
    call: str | Call = "arguments",
    gathers: bool = False,
    views: int = 2,
    probes: Sequence[str] = ALL_PROBES,
) -> None:
    """Audit a loss in a test of one's own, and fail if there is a defect.

    Args:
        target: `package.module:Class(args)`, `path/file.py:Class(args)`, or the name of an adapter.
        claims: The regularizer that it says it is, such as `simclr(temperature=0.5)`; empty if there is none here.
        call: How it is called, see `Adapter`.
        gathers: Whether it says that several processes share one batch.
        views: The largest number of views that it takes.
        probes: Those to run; without `ranks` no process is started.

    Raises:
        AssertionError: If a probe finds a defect; the message lists them.
        RegbenchError: If the target or the claim cannot be made.
    """
    adapter = Adapter(target=target, claims=claims, call=call, gathers=gathers, views=tuple(range(2, views + 1)))
    found = [
        f"{report.loss}: {finding.name}: {finding.text} ({finding.probe})"
        for report in audit(targets(target, adapter), probes)
        for finding in report.findings
        if finding.severity == "defect"
    ]
    assert not found, "\n".join(found)
