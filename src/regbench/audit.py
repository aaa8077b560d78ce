"""Losses of any library as black boxes: what `regbench audit` does, and an assertion for a test of one's own."""

from __future__ import annotations

from collections.abc import Sequence

from regbench.instruments.audit.adapters import find_losses
from regbench.instruments.audit.auditor import ALL_PROBES, audit_targets
from regbench.instruments.audit.finding import Finding, Report
from regbench.instruments.audit.target import Call

__all__ = ["ALL_PROBES", "Finding", "Report", "assert_sound", "audit"]


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
        *targets: Libraries (`lightly`), one of their losses (`lightly:NTXentLoss`), or losses of one's own:
            `package.module:Class(args)`, `path/file.py:Class(args)`.
        claims: The regularizer that they say they are, such as `simclr(temperature=0.5)`; empty if there is none here.
        call: How they take views: `arguments`, `list`, `stacked`, `concatenated`, `labelled` or `each`; or a function
            of the loss and a batch, see `regbench.instruments.audit.target.Batch`.
        gathers: Whether they say that several processes share one batch.
        views: The largest number of views that they take.
        probes: Those to run; without `ranks` no process is started.

    Returns:
        What was found of each.

    Raises:
        RegbenchError: If a probe is unknown or a loss cannot be made.
    """
    losses, options = find_losses(targets, claims, call, gathers, views)
    return list(audit_targets(losses, probes, options))


def assert_sound(
    target: str,
    claims: str = "",
    *,
    call: str | Call = "arguments",
    gathers: bool = False,
    views: int = 2,
    probes: Sequence[str] = ALL_PROBES,
) -> None:
    """Audit a loss in a test of one's own, and fail if there is a defect; for the arguments see `audit`.

    Raises:
        AssertionError: If a probe finds a defect; the message lists them.
        RegbenchError: If the target or the claim cannot be made.
    """
    defects = []
    for report in audit(target, claims=claims, call=call, gathers=gathers, views=views, probes=probes):
        for finding in report.findings:
            if finding.severity == "defect":
                defects.append(f"{report.loss}: {finding.name}: {finding.text} ({finding.probe})")
    assert not defects, "\n".join(defects)
