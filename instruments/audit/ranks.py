"""What a loss is put through on 1 to 4 gloo processes, with equal and unequal shares of the batch.

DistributedDataParallel takes the mean of the ranks' gradients. Differences of all ranks' values with respect to one
rank's rows tell what that mean should be, whatever the loss is; the single process on the whole batch tells what the
value should be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from regbench.instruments.audit.finding import Finding, Severity
from regbench.instruments.audit.group import EVEN, UNEVEN, Answer, Ranks, direction_of, views_of
from regbench.instruments.audit.probes import difference
from regbench.instruments.audit.target import Target
from regbench.processes import WorkFailed


def ranks(target: Target, group: Ranks) -> list[Finding]:
    """Compare 1 to 4 processes with one, equal shares first; then unequal ones."""
    dtype = _dtype(target)
    findings: list[Finding] = []
    for shares in (EVEN, UNEVEN):
        for rows in shares.values():
            even = len(set(rows)) == 1
            where = f"{len(rows)} processes with {', '.join(map(str, rows))} rows"
            try:
                answers = group.ask(target, rows, dtype)
            except WorkFailed as error:
                answers = [Answer(refused=str(error))]
            refusals = [answer.refused for answer in answers if answer.refused]
            # The others only miss the rank that failed first.
            refused = min(refusals, key=lambda line: "Connection" in line, default="")
            if refused:
                unequal = "mismatch between collectives" in refused
                text = f"on {where}: {'its collectives need equal shapes' if unequal else refused[:160]}"
                name, severity = ("fails on ranks", "defect") if even else ("equal shares only", "convention")
                findings.append(_found(name, severity, math.nan, text))  # type: ignore[arg-type]
                break
            new = _judge(target, rows, answers, dtype, where)
            known = {finding.name for finding in findings}
            findings += [finding for finding in new if finding.name not in known]
    return findings


def _dtype(target: Target) -> torch.dtype:
    try:
        target.value(views_of(target, EVEN[2][0], torch.float64))
    except Exception:
        return torch.float32
    return torch.float64


def _judge(
    target: Target, rows: Sequence[int], answers: Sequence[Answer], dtype: torch.dtype, where: str
) -> list[Finding]:
    world = len(rows)
    tolerance = 1e-6 if dtype == torch.float64 else 2e-2
    views = views_of(target, sum(rows), dtype)
    whole = target.value(views).item()
    values = [answer.value for answer in answers]
    floor = max(abs(whole), *map(abs, values), 1e-12)
    slope = max(abs(slope) for answer in answers for slope in answer.slopes) or 1.0

    def same(a: float, b: float, scale: float = floor) -> bool:
        return abs(a - b) <= tolerance * scale

    findings = []
    alone = all(
        same(answer.slopes[other], 0.0, slope)
        for rank, answer in enumerate(answers)
        for other in range(world)
        if other != rank
    )
    if alone and world > 1:
        return _alone(target, rows, answers, views, where, same)
    if not all(same(value, whole) for value in values):
        findings += _other_value(rows, values, whole, where, same)
    needed = _needed(target, rows, answers, views, tolerance) if world > 1 else None
    if needed is not None:
        findings += _other_gradient(needed, answers, slope, where, tolerance)
    drawn = [answer.drawn for answer in answers]
    if len({round(value / floor, 9) for value in values}) == 1 and not all(same(x, drawn[0]) for x in drawn):
        spread = (max(drawn) - min(drawn)) / floor
        text = f"on {where} each rank draws numbers of its own, and their values differ by {spread:.2g}"
        findings.append(_found("ranks draw differently", "convention", spread, text))
    return findings


def _alone(
    target: Target, rows: Sequence[int], answers: Sequence[Answer], views: list[Tensor], where: str, same: object
) -> list[Finding]:
    """Judge ranks that know nothing of each other."""
    assert callable(same)
    ends = [sum(rows[: rank + 1]) for rank in range(len(rows))]
    local = [target.value([z[end - n : end] for z in views], end - n).item() for end, n in zip(ends, rows, strict=True)]
    mean = sum(answer.value for answer in answers) / len(rows)
    if not all(same(answer.value, value) for answer, value in zip(answers, local, strict=True)):
        text = f"on {where} no rank's value depends on another's rows, although it changes with the number of ranks"
        return [_found("dropped collective result", "defect", answers[0].value / local[0], text)]
    whole = target.value(views).item()
    if target.adapter.gathers:
        text = (
            f"on {where} each value is that of the rank's own rows ({mean:.4g} in the mean, {whole:.4g} of the batch)"
        )
        return [_found("does not gather", "defect", abs(mean - whole) / max(abs(whole), 1e-12), text)]
    if same(mean, whole) or len(set(rows)) > 1:
        return []
    text = (
        f"each rank's loss is that of its own rows: {mean:.4g} in the mean on {where}, {whole:.4g} of the whole batch"
    )
    return [_found("own rows", "convention", abs(mean - whole) / max(abs(whole), 1e-12), text)]


def _other_value(rows: Sequence[int], values: Sequence[float], whole: float, where: str, same: object) -> list[Finding]:
    assert callable(same)
    world, mean = len(rows), sum(values) / len(rows)
    if same(mean, whole):
        return []  # each rank has its share of the mean
    text = f"on {where} the ranks' values are {', '.join(f'{value:.4g}' for value in values)}, and {whole:.4g} of one"
    error = abs(mean - whole) / max(abs(whole), 1e-12)
    if len(set(rows)) > 1:
        weighted = sum(n * value for n, value in zip(rows, values, strict=True)) / sum(rows)
        why = ": ranks count equally, whatever their rows" if same(weighted, whole) else ""
        return [_found("unequal shares change the value", "convention", error, text + why)]
    for factor, what in ((world, "times"), (1 / world, "divided by")):
        if world > 1 and same(mean, factor * whole):
            return [_found("value's factor", "defect", factor, f"{text}: {what} the number of ranks")]
    return [_found("statistics of own rows", "convention", error, f"{text}: some statistics are each rank's own")]


def _needed(
    target: Target, rows: Sequence[int], answers: Sequence[Answer], views: list[Tensor], tolerance: float
) -> list[float] | None:
    """Find each rank's gradient along the direction of which DistributedDataParallel's mean is right.

    It is the sum of the slopes of all ranks' values. Where a loss detaches something, so that its gradient is not that
    of its value, it is the gradient of the single process; None if the value is not that one's either.
    """
    whole, gradients = target.value_and_gradients(views)
    parts = [g * d for g, d in zip(gradients, direction_of(views), strict=True)]
    along = sum(part.sum().item() for part in parts)

    def value(shift: float) -> float:
        return target.value([z + shift * d for z, d in zip(views, direction_of(views), strict=True)]).item()

    slope = difference(value, 1e-3 if views[0].dtype == torch.float64 else 3e-2)
    if abs(slope - along) <= 10 * tolerance * max(abs(slope), abs(along)):
        return [sum(answer.slopes[rank] for answer in answers) for rank in range(len(rows))]
    mean = sum(answer.value for answer in answers) / len(rows)
    if abs(mean - whole.item()) > tolerance * abs(whole.item()):
        return None
    ends = [sum(rows[: rank + 1]) for rank in range(len(rows))]
    return [
        len(rows) * sum(part[end - n : end].sum().item() for part in parts) for end, n in zip(ends, rows, strict=True)
    ]


def _other_gradient(
    needed: list[float], answers: Sequence[Answer], slope: float, where: str, tolerance: float
) -> list[Finding]:
    """Compare each rank's gradient with the one that is needed."""
    world = len(answers)
    scale = max(max(map(abs, needed)), slope)
    loose = max(tolerance, 1e-5)
    found = [answer.gradient for answer in answers]
    if all(abs(a - b) <= loose * scale for a, b in zip(found, needed, strict=True)):
        return []
    ratio = sum(a * b for a, b in zip(found, needed, strict=True)) / max(sum(b * b for b in needed), 1e-300)
    if all(abs(a - ratio * b) <= 10 * loose * scale for a, b in zip(found, needed, strict=True)):
        words, name = f"{ratio:.4g} times", "gradient's factor on ranks"
        if math.isclose(ratio, 1 / world, rel_tol=1e-3):
            words, name = f"1/{world} of", "gradient short by the ranks"
        elif math.isclose(ratio, world, rel_tol=1e-3):
            words, name = f"{world} times", "gradient large by the ranks"
        text = f"on {where} the mean that DistributedDataParallel takes is {words} the gradient of the value"
        return [_found(name, "defect", ratio, text)]
    own = [answers[rank].slopes[rank] for rank in range(world)]
    error = math.dist(found, needed) / max(math.hypot(*needed), 1e-300)
    if all(abs(a - b) <= loose * scale for a, b in zip(found, own, strict=True)):
        text = f"on {where} rows reach other ranks' values, but no gradient comes back: {error:.2g} of it is missing"
        return [_found("not differentiated through the gather", "defect", error, text)]
    text = f"on {where} the mean that DistributedDataParallel takes is off the value's gradient by {error:.2g}"
    return [_found("gradient off on ranks", "defect", error, text)]


def _found(name: str, severity: Severity, size: float, text: str) -> Finding:
    return Finding(name=name, severity=severity, size=size, text=text, probe="ranks")
