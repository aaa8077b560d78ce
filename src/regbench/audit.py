"""Losses of any library as black boxes: what `regbench audit` does, and an assertion for a test of one's own."""

from __future__ import annotations

from collections.abc import Sequence

from regbench.instruments import audit as _audit
from regbench.instruments.audit import ALL_PROBES, assert_sound
from regbench.instruments.audit.adapters import find_losses
from regbench.instruments.audit.finding import Finding, Report

__all__ = ["ALL_PROBES", "Finding", "Report", "assert_sound", "audit"]


def audit(
    *targets: str,
    claims: str = "",
    call: str = "arguments",
    gathers: bool = False,
    views: int = 2,
    probes: Sequence[str] = ALL_PROBES,
) -> list[Report]:
    """Audit losses, as `regbench audit` does.

    Args:
        *targets: Libraries (`lightly`), one of their losses (`lightly:NTXentLoss`), or losses of one's own:
            `package.module:Class(args)`, `path/file.py:Class(args)`.
        claims: The regularizer that they say they are, such as `simclr(temperature=0.5)`; empty if there is none here.
        call: How they take views: `arguments`, `list`, `stacked`, `concatenated`, `labelled` or `each`.
        gathers: Whether they say that several processes share one batch.
        views: The largest number of views that they take.
        probes: Those to run; without `ranks` no process is started.

    Returns:
        What was found of each.

    Raises:
        RegbenchError: If a probe is unknown or a loss cannot be made.
    """
    losses, options = find_losses(targets, claims, call, gathers, views)
    return list(_audit.audit(losses, probes, options))
