"""Losses of any library as black boxes: what `regbench audit` does, and an assertion for a test
of one's own.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from shlex import quote
from typing import Any, get_args

import torch

from regbench import wording
from regbench.errors import RegbenchError
from regbench.instruments.audit.adapters import find_losses
from regbench.instruments.audit.finding import Finding, Report, Severity
from regbench.instruments.audit.probes import PROBES, run_probe
from regbench.instruments.audit.ranks import Ranks, ranks
from regbench.instruments.audit.target import SIZE, Call, Target
from regbench.processes import FORKED, apart
from regbench.settings import from_plain

__all__ = ["ALL_PROBES", "Finding", "Report", "assert_sound", "audit"]

ALL_PROBES = (*PROBES, "ranks")
LIMIT_S = 1800.0
"""Time limit of the command for one loss; all probes together usually take twenty seconds."""


def audit(
    *targets: str,
    claims: str = "",
    call: str | Call = "arguments",
    gathers: bool = False,
    views: int = 2,
    probes: Sequence[str] = ALL_PROBES,
) -> list[Report]:
    """Audit losses, as `regbench audit` does.

    Args:
        *targets: Libraries (`lightly`), one of their losses (`lightly:NTXentLoss`), or losses of
            one's own: `package.module:Class(args)`, `path/file.py:Class(args)`.
        claims: The regularizer that they say they are, such as `simclr(temperature=0.5)`; empty if
            there is none here.
        call: Way they take views: `arguments`, `list`, `stacked`, `concatenated`, `labelled` or
            `each`; or a function of the loss and a `regbench.instruments.audit.target.Batch`.
        gathers: Whether they say that several processes share one batch.
        views: The largest number of views that they take.
        probes: Probes to run; without `ranks` no process is started.

    Returns:
        A report of each loss.

    Raises:
        RegbenchError: If a probe is unknown or a loss cannot be made.
    """
    losses, options = find_losses(targets, claims, call, gathers, views)
    return list(audit_losses(losses, probes, options))


def assert_sound(
    target: str,
    claims: str = "",
    *,
    call: str | Call = "arguments",
    gathers: bool = False,
    views: int = 2,
    probes: Sequence[str] = ALL_PROBES,
) -> None:
    """Audit a loss in a test of one's own, and fail if there is a defect; for the arguments see
    `audit`.

    Raises:
        AssertionError: If a probe finds a defect; the message lists them.
        RegbenchError: If the target or the claim cannot be made.
    """
    defects = []
    reports = audit(target, claims=claims, call=call, gathers=gathers, views=views, probes=probes)
    for report in reports:
        for finding in report.defects:
            defects.append(f"{report.loss}: {finding.name}: {finding.text} ({finding.probe})")
    assert not defects, "\n".join(defects)


def audit_losses(
    losses: Sequence[Target], probes: Sequence[str], options: str, *, separately: bool = False
) -> Iterator[Report]:
    """Audit losses, one after the other.

    Args:
        losses: The losses.
        probes: Probes to run.
        options: Options of the command that shows it again.
        separately: Whether each loss without an adapter gets a process of its own, see
            `regbench.processes.apart`.
    """
    for name in probes:
        if name not in ALL_PROBES:
            raise RegbenchError(wording.unknown("probe", name, ALL_PROBES))
    FORKED.set_forkserver_preload([__name__])
    with Ranks() as group:
        for target in losses:
            if separately and target.is_own:
                said = apart(target.name, LIMIT_S, _audited_alone, target, probes, options)
                yield from_plain(Report, said, f"{target.name}: ")
            else:
                yield _audited(target, probes, options, group)


def _audited_alone(target: Target, probes: Sequence[str], options: str) -> dict[str, Any]:
    with Ranks() as group:
        return asdict(_audited(target, probes, options, group))


def _audited(target: Target, probes: Sequence[str], options: str, group: Ranks) -> Report:
    begin_s = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a library's own warnings are not what is looked for
        target.make(*SIZE, torch.float64)  # what cannot be made is refused, not found
        assert target.dtype  # and so is what returns no scalar
        findings: list[Finding] = []
        for name in probes:
            found = ranks(target, group) if name == "ranks" else run_probe(target, name)
            findings += [replace(finding, probe=name) for finding in found]
    return Report(
        loss=target.name,
        version=target.version,
        claims=target.claims,
        probes=tuple(probes),
        findings=tuple(sorted(findings, key=lambda each: get_args(Severity).index(each.severity))),
        command=f"regbench audit {quote(target.name)} {options}".strip(),
        seconds_s=round(time.perf_counter() - begin_s, 2),
    )
