"""Probes of a loss on one process.

Each probe is a function of the target that returns what it found.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regbench.instruments.audit.explain import explain, explain_random
from regbench.instruments.audit.finding import Finding, Severity
from regbench.instruments.audit.many_views import left_out, order, values
from regbench.instruments.audit.target import SIZE, Target
from regbench.instruments.audit.textbook import is_own_target, keeps_state, textbook
from regbench.instruments.audit.weights import weights
from regbench.instruments.loss_checks import (
    CHECKS,
    KEEPS_STATE,
    TWO_VIEWS,
    Layout,
    Subject,
    Views,
    cast,
    corner_cases,
    evaluate,
    failures,
    mean_value,
    of_views,
    relative,
    slopes,
)
from regbench.instruments.loss_checks import gradient as gradient_error
from regbench.processes import one_line

Probe = Callable[[Target], list[Finding]]


def value(target: Target) -> list[Finding]:
    """Compare the value with the textbook of what the loss claims to be, in float64."""
    method = target.claimed
    if method is None:
        return []
    by_chance = None
    if method.random and _is_random(target):
        by_chance = explain_random(target, method)
        if by_chance is None:
            return []
    finding = explain(target, method)
    if by_chance is not None and finding is not None and finding.name == "another value":
        finding = by_chance
    findings = [finding] if finding is not None else []
    if target.single:
        text = "refuses float64, or computes in float32 all the same; all was done in float32"
        findings.append(Finding("float32 only", "note", math.nan, text))
    return findings


def gradient(target: Target, layout: Layout = TWO_VIEWS) -> list[Finding]:
    """Compare the gradient with differences of the loss's own value, or the textbook's if it
    detaches something.
    """
    method = target.claimed
    try:
        if method is not None and (not method.metadata.exact_gradient or is_own_target(method)):
            return _against_textbook(target, layout)
        check, subject = CHECKS["gradient"], _subject(target, layout)
        error, where = gradient_error(subject)
        if error <= target.tolerance(*check.allowed):  # not so for NaN
            return []
        if where == KEEPS_STATE:
            severity: Severity = "defect" if method else "note"
            return [Finding("gradient not verifiable", severity, error, KEEPS_STATE)]
        return [_wrong_gradient(target, subject, error)]
    except Exception as error:
        return [_failed(target, error)]


def _subject(target: Target, layout: Layout = TWO_VIEWS) -> Subject:
    """Describe a black box to the checks that are asked of every loss."""

    def draw(n: int, q: int, layout: Layout) -> list[Tensor]:
        count, global_views = layout
        return target.draw(count, size=(n, q), global_views=global_views)

    def size(views: Views, **options: Any) -> float:
        # A value near 0 may be the difference of large ones, as other pairs of the views show.
        others = [views[0], views[1].roll(1, dims=0), *views[2:]]
        value, other = target.value(views, **options), target.value(others, **options)
        return max(abs(value.item()), abs(other.item()), 1e-12)

    return Subject(
        value=target.value,
        draw=draw,
        size=size,
        places=((*SIZE, layout),),
        # In single precision, differences over a smaller step would be rounding.
        step=target.tolerance(1e-4, 1e-2),
        # The gradient of a constant is rounding alone.
        floor=1e-9,
    )


def _wrong_gradient(target: Target, subject: Subject, error: float) -> Finding:
    """Find what is wrong with a gradient that differs from differences of the value."""
    ((n, q, (count, global_views)),) = subject.places
    drawn = subject.draw(n, q, (count, global_views))
    views, loss = drawn[:count], of_views(subject.value, drawn[count:], global_views)
    view_of, found, wanted = slopes(loss, views, subject.step).T
    scale = wanted.abs().max().item()
    _, gradients = evaluate(loss, views)
    stopped = [view for view, gradient_NQ in enumerate(gradients) if not gradient_NQ.any()]
    if stopped:
        missing = wanted[torch.isin(view_of, torch.tensor(stopped))].abs().max().item()
        text = (
            f"view {stopped[0] + 1} gets no gradient, although the value depends on it: it is "
            "detached"
        )
        return Finding("detached view", "defect", missing / scale, text)
    ratios = (found / wanted)[wanted.abs() > 1e-2 * scale].tolist()
    if ratios and max(ratios) - min(ratios) < 1e-3 * abs(ratios[0]):
        text = f"the gradient is {ratios[0]:.4g} times that of the value"
        return Finding("gradient's factor", "defect", ratios[0], text)
    why = target.detaches or "something is detached, or rounds"
    text = f"the gradient is off by {error:.2g} of the derivative of the value: {why}"
    severity: Severity = "convention" if target.detaches else "defect"
    if target.claimed is None:
        severity = "note"
    return Finding("gradient not the value's", severity, error, text)


def _against_textbook(target: Target, layout: Layout) -> list[Finding]:
    method = target.claimed
    assert method is not None
    count, global_views = layout
    values, tolerance = [], target.tolerance(1e-5, 1e-2)
    for seed in (9, 8, 7):
        views = target.draw(count, seed, global_views=global_views)
        value, found = evaluate(partial(target.value, global_views=global_views), views)
        wanted_value, wanted = evaluate(partial(textbook, method, global_views=global_views), views)
        values.append([value.item(), wanted_value.item()])
    # A factor is a convention, and so is a constant.
    own, published = torch.tensor(values, dtype=torch.float64).diff(dim=0).T
    other, factor = (own / published).tolist()
    # Gradients of targets are judged apart.
    error = max(relative(a, factor * b) for a, b in zip(found[:count], wanted[:count], strict=True))
    # The gradient of a value that is no multiple is another, and `value` says so.
    if abs(factor - other) > tolerance * abs(factor) or error <= tolerance:
        return []
    text = f"the value is {method.label}'s times {factor:.4g}, the gradient differs from the "
    text += f"textbook's by {error:.2g}"
    return [Finding("gradient not the textbook's", "defect", error, text)]


def targets(target: Target) -> list[Finding]:
    """Take the gradient with respect to the targets: a teacher must get none."""
    if not target.has_targets:
        return []
    _, gradients = evaluate(target.value, target.draw())
    into = torch.stack(gradients[2:]).norm().item()
    if into == 0:
        return []
    share = into / torch.stack(gradients).norm().item()
    text = f"{share:.2g} of the gradient flows to the targets: the caller has to detach them"
    return [Finding("gradient of targets", "convention", share, text)]


def views(target: Target) -> list[Finding]:
    """Give it more than two views, if it takes them: each has to count, in any order, as the
    textbook's do.
    """
    method, layouts = target.claimed, target.layouts
    found = []
    for layout in layouts:
        found += left_out(target, layout)
    if not found and method is not None:
        found = values(target, method)
    # A defect would show in the order and gradient again.
    if not any(finding.severity == "defect" for finding in found):
        for layout in layouts:
            found += order(target, layout) + gradient(target, layout)
    first_by_name: dict[str, Finding] = {}
    for finding in found:
        first_by_name.setdefault(finding.name, finding)
    return list(first_by_name.values())


def symmetry(target: Target) -> list[Finding]:
    """Permute the images and exchange the views; whether lengths matter shows in the value."""
    method = target.claimed
    names = ["order of images"]
    exchangeable = method is None or method.metadata.symmetric or is_own_target(method)
    if exchangeable or target.has_targets:
        names.append("order of views")
    findings = []
    for name in names:
        outcome = CHECKS[name].measure(_subject(target))
        assert outcome is not None
        size = outcome[0]
        # Sums in another order round differently.
        if not size <= target.tolerance(*CHECKS[name].allowed):  # NaN is found too
            noted = method is None and name == "order of views"
            text = f"the value changes by {size:.2g} when {CHECKS[name].words}"
            findings.append(Finding(name, "note" if noted else "defect", size, text))
    return findings


def finite(target: Target) -> list[Finding]:
    """Try batches that training can meet and formulas forget: collapse, duplicates, two images,
    zero vectors.
    """
    cases = corner_cases()
    if target.claimed is not None and target.claimed.prototypes:
        del cases["large"]  # scores of prototypes are cosines
    if target.has_targets:
        cases = {name: pair * 2 for name, pair in cases.items()}
    broken, hopeless, refused = [], [], []
    for name, what in failures(target.value, cases).items():
        # Nothing revives a batch that is one point, and two images lack some statistics.
        if isinstance(what, Exception):
            refused.append(f"{name} ({type(what).__name__})")
        elif name.startswith(("collapsed", "two ", "all zero")):
            hopeless.append(f"{name} ({what})")
        else:
            broken.append(f"{name} ({what})")
    findings = []
    if broken:
        text = f"NaN or infinite: {', '.join(broken)}"
        findings.append(Finding("not finite", "defect", len(broken), text))
    if hopeless:
        text = f"NaN or infinite: {', '.join(hopeless)}"
        findings.append(Finding("not finite at collapse", "note", len(hopeless), text))
    if 0 < len(refused) < len(cases):  # one that takes no batch of this size refuses all of them
        findings.append(Finding("refuses", "note", len(refused), f"raises: {', '.join(refused)}"))
    return findings


def precision(target: Target) -> list[Finding]:
    """Compare gradients in float32, bfloat16 and under autocast with those in a higher precision.

    Look for jumps.
    """
    findings: list[Finding] = []
    # The numbers of float32 are 1e-7 apart, those of half precision 1e-3.
    if not target.single and (jump := _jump(target)) > 1e-10:
        text = f"the value jumps by {jump:.1g} of itself between embeddings equal to ten digits"
        findings.append(Finding("rounds within", "defect" if jump > 1e-6 else "note", jump, text))
    single = cast(target.draw(seed=0, size=(16, 8)), torch.float32)
    if target.claimed is not None and target.claimed.metadata.scale_invariant:
        single = [torch.nn.functional.normalize(z, dim=1) for z in single]
    if isinstance(_gradients(target, single), Exception):  # which other probes report
        return findings
    half = cast(single, torch.bfloat16)
    rounded = cast(half, torch.float32)
    random = _is_random(target)  # then other precisions draw other numbers
    # float32 has seven digits, and only cancellation or overflow leaves fewer than three. bfloat16
    # has two, so a good loss keeps 95 % there, too. Autocast is tried on its own, since it casts
    # products only.
    tries: tuple[tuple[str, Views, Views, float, str, Severity], ...] = (
        ("float32", single, cast(single, torch.float64), 1e-3, "loses precision", "defect"),
        ("bfloat16", half, rounded, 0.05, "coarse in bfloat16", "note"),
        ("autocast", rounded, rounded, 0.05, "coarse in autocast", "note"),
    )
    for name, given, reference, bound, title, severity in tries:
        wanted = _gradients(target, reference)
        with torch.autocast("cpu", torch.bfloat16, enabled=name == "autocast"):
            found = _gradients(target, given)
        if isinstance(found, Exception):
            text = f"{name} raises {type(found).__name__}: {' '.join(str(found).split())[:80]}"
            findings.append(Finding(f"fails in {name}", "note", math.nan, text))
        elif isinstance(wanted, Tensor) and not random:
            loss = relative(found, wanted)
            if loss >= bound:
                text = f"{name} loses {loss:.2g} of the gradient"
                findings.append(Finding(title, severity, loss, text))
    return findings


def _jump(target: Target) -> float:
    """Find the largest jump of the value along some lines, as a share of it; 0 if it has none."""
    largest = 0.0
    for seed in range(5):
        views, directions = target.draw(2, seed), target.draw(2, 100 + seed)

        def at(steps: float, views: Views = views, directions: Views = directions) -> float:
            moved = [z + 1e-4 * steps * d for z, d in zip(views, directions, strict=True)]
            return target.value(moved).item()

        values = torch.tensor([at(steps) for steps in range(12)], dtype=torch.float64)
        scale, roughness = values.abs().max().item(), values.diff(n=4).abs()
        if not roughness.max() > 1e-11 * scale:  # not so for NaN
            continue
        # Bisection separates a jump from a kink, which vanishes over a short distance.
        slope = values.diff().median().item()
        low = float(roughness.argmax())
        high = low + 4
        for _ in range(30):
            middle = (low + high) / 2
            first = abs(at(middle) - at(low) - slope * (middle - low))
            second = abs(at(high) - at(middle) - slope * (high - middle))
            if first > second:
                high = middle
            else:
                low = middle
        largest = max(largest, abs(at(high) - at(low)) / scale)
    return largest


def _gradients(target: Target, views: Views) -> Tensor | Exception:
    try:
        _, gradients = evaluate(target.value, views)
        return torch.cat(gradients).double()
    except Exception as error:
        return error


def _is_random(target: Target) -> bool:
    """Return True if the loss draws."""
    return mean_value(target.value, target.draw())[1] > 0


def memory(target: Target) -> list[Finding]:
    """Count what the graph keeps for backward, and how it grows when n and q are doubled."""
    kept = {}
    # Large beside a few kilobytes of constants, and small enough for losses that keep n³ numbers.
    for n, q in itertools.product((32, 64), (24, 48)):
        try:
            kept[n, q] = _kept_bytes(target, n, q)
        except Exception:  # a loss of fixed sizes
            return []
    # An autograd function of the loss may keep everything where no hook sees it.
    if not min(kept.values()):
        return []
    growth = math.log2(kept[64, 48] / kept[32, 24])
    if growth < 2.5:  # n q and n² grow by 2, n² q by 3
        return []
    by_n, by_q = math.log2(kept[64, 24] / kept[32, 24]), math.log2(kept[32, 48] / kept[32, 24])
    text = (
        f"keeps {kept[64, 48] / 2**20:.2g} MiB at n = 64, q = 48 for backward, growing as "
        f"n^{by_n:.1f} q^{by_q:.1f}"
    )
    return [Finding("memory grows cubically", "note", growth, text)]


def _kept_bytes(target: Target, n: int, q: int) -> int:
    views = [z.float().requires_grad_() for z in target.draw(seed=0, size=(n, q))]
    storages: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        # while it lives, no storage gets another's address
        kept = target.value(views)  # noqa: F841
    return sum(storages.values())


def state(target: Target) -> list[Finding]:
    """Call one instance with a batch, another one and the first again, each time with the same
    random numbers, unless a state is published.
    """
    if target.claimed is not None and keeps_state(target.claimed):
        return []
    loss = target.make(*SIZE, target.dtype)
    # A state that begins with the first batch changes with another one.
    batches = (target.draw(seed=seed) for seed in (7, 8, 7))
    first, _, second = (target.value(batch, loss=loss).item() for batch in batches)
    # What is not finite is a finding of another probe.
    if first == second or not math.isfinite(first):
        return []
    size = abs(second - first) / max(abs(first), 1e-12)
    text = (
        f"a second call with the same embeddings and seed gives another value, by {size:.2g}: it "
        "keeps a state"
    )
    return [Finding("keeps a state", "note", size, text)]


PROBES: dict[str, Probe] = {
    "value": value,
    "weights": weights,
    "gradient": gradient,
    "targets": targets,
    "views": views,
    "symmetry": symmetry,
    "finite": finite,
    "precision": precision,
    "memory": memory,
    "state": state,
}
"""Probes on one process; the probe of several processes is `ranks`."""


def run_probe(target: Target, name: str) -> list[Finding]:
    """Run one probe; what the loss raises is a finding."""
    try:
        return PROBES[name](target)
    except Exception as error:
        return [_failed(target, error)]


def _failed(target: Target, error: Exception) -> Finding:
    return Finding("fails", "defect", math.nan, f"raises {one_line(error, str(target.file))}")
