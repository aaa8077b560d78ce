"""What a loss is put through on one process. Each probe is a function of the target that returns what it found."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from regbench.instruments.audit.explain import chance, explain, explain_random, mean_value, sample, textbook
from regbench.instruments.audit.finding import Finding, Severity
from regbench.instruments.audit.many_views import SIZE, Layout, drawn, left_out, order, values
from regbench.instruments.audit.target import Target
from regbench.instruments.conformance import corner_cases, draw_views, relative

_STEP = 1e-4
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
    samples = sample(target)
    finding = explain(samples, method)
    if by_chance is not None and finding is not None and finding.name == "another value":
        finding = by_chance
    single = [_found("float32 only", "note", math.nan, "refuses float64; all was done in float32", "value")]
    return ([finding] if finding else []) + single * samples.single


def gradient(target: Target) -> list[Finding]:
    """Compare the gradient with differences of the loss's own value, or the textbook's if it detaches something."""
    return _gradient(target, (2, 2))


def _gradient(target: Target, layout: Layout) -> list[Finding]:
    method = target.claimed
    exact = target.adapter.exact_gradient
    if exact is None:
        exact = method is None or method.metadata.exact_gradient
    try:
        if exact:
            return _against_differences(target, layout)
        assert method is not None
        return _against_textbook(target, layout)
    except Exception as error:
        return [_failed(error, "gradient")]


def _against_differences(target: Target, layout: Layout) -> list[Finding]:
    count, global_views = layout
    views, single = drawn(target, count)
    step = 1e-2 if single else _STEP
    tolerance = 0.02 if single else 1e-5
    found = target.value_and_gradients(views, global_views=global_views)[1]
    # Along each view's own gradient, where a wrong factor shows most, and along a random direction.
    generator = torch.Generator().manual_seed(3)
    pairs: list[tuple[int, float, float]] = []
    for view, gradient_NQ in enumerate(found):
        noise_NQ = torch.randn(gradient_NQ.shape, generator=generator, dtype=torch.float64).to(gradient_NQ.dtype)
        for direction_NQ in (gradient_NQ, noise_NQ):
            length = direction_NQ.norm().item()
            if length == 0:
                continue
            unit_NQ = direction_NQ / length
            numeric = difference(
                lambda shift, view=view, unit_NQ=unit_NQ: target.value(  # type: ignore[misc]
                    [z + shift * unit_NQ if v == view else z for v, z in enumerate(views)], global_views=global_views
                ).item(),
                step,
            )
            pairs.append((view, (gradient_NQ * unit_NQ).sum().item(), numeric))
    scale = max(abs(numeric) for *_, numeric in pairs) or 1.0
    if all(abs(a - b) <= tolerance * scale for _, a, b in pairs):
        return []
    stopped = [view for view, gradient_NQ in enumerate(found) if not gradient_NQ.any()]
    if stopped:
        share = max(abs(b) for view, _, b in pairs if view in stopped) / scale
        text = f"view {stopped[0] + 1} gets no gradient, although the value depends on it: it is detached"
        return [_found("detached view", "defect", share, text, "gradient")]
    ratios = [a / b for _, a, b in pairs if abs(b) > 1e-2 * scale]
    if ratios and max(ratios) - min(ratios) < 1e-3 * abs(ratios[0]):
        text = f"the gradient is {ratios[0]:.4g} times that of the value"
        return [_found("gradient's factor", "defect", ratios[0], text, "gradient")]
    worst = max(abs(a - b) for _, a, b in pairs) / scale
    why = target.adapter.detaches or "something is detached, or rounds"
    text = f"the gradient is off by {worst:.2g} of the derivative of the value: {why}"
    severity: Severity = "note" if target.claimed is None else "convention" if target.adapter.detaches else "defect"
    return [_found("gradient not the value's", severity, worst, text, "gradient")]


def _against_textbook(target: Target, layout: Layout) -> list[Finding]:
    method = target.claimed
    assert method is not None
    count, global_views = layout
    views, single = drawn(target, count)
    found_value, found = target.value_and_gradients(views, global_views=global_views)
    leaves = [z.detach().clone().requires_grad_() for z in views]
    total = textbook(method, leaves, global_views)
    wanted = torch.autograd.grad(total, leaves)
    tolerance = 1e-2 if single else 1e-5
    if abs(found_value.item() - total.item()) > tolerance * abs(total.item()):
        return []  # of another value the gradient is another, and `value` told
    error = max(relative(a, b) for a, b in zip(found, wanted, strict=True))
    if error <= tolerance:
        return []
    text = f"the value is {method.label}'s, the gradient differs from the textbook's by {error:.2g}"
    return [_found("gradient not the textbook's", "defect", error, text, "gradient")]


def views(target: Target) -> list[Finding]:
    """Give it more than two views, if it takes them: each has to count, in any order, as the textbook's do."""
    method, layouts = target.claimed, target.adapter.layouts
    found = [finding for layout in layouts for finding in left_out(target, layout)]
    if not found and method is not None:
        found = values(target, method)
    if not any(finding.severity == "defect" for finding in found):  # it would show in the order and gradient again
        found += [finding for layout in layouts for finding in order(target, layout) + _gradient(target, layout)]
    by_name = {finding.name: replace(finding, probe="views") for finding in reversed(found)}
    return list(reversed(by_name.values()))


def symmetry(target: Target) -> list[Finding]:
    """Permute the images and exchange the views; whether lengths matter shows in the value."""
    views, single = drawn(target, 2)
    z1, z2 = views
    tolerance = 1e-3 if single else 1e-8
    order = torch.randperm(len(z1), generator=torch.Generator().manual_seed(1))
    data = target.claimed.metadata if target.claimed else None
    wanted = mean_value(target, [z1, z2])
    floor = max(abs(wanted[0]), abs(target.value([z1, z2.roll(1, dims=0)]).item()), 1e-12)
    findings = []

    def compare(name: str, severity: Severity, what: str, pair: list[Tensor]) -> None:
        found = mean_value(target, pair)
        size = abs(found[0] - wanted[0]) / floor
        if not size <= tolerance + chance(found, wanted) / floor:
            text = f"the value changes by {size:.2g} when {what}"
            findings.append(_found(name, severity, size, text, "symmetry"))

    compare("order of images", "defect", "the images of the batch are permuted", [z1[order], z2[order]])
    if data is None or data.symmetric:
        compare("order of views", "defect" if data else "note", "the views are exchanged", [z2, z1])
    return findings


def finite(target: Target) -> list[Finding]:
    """Try batches that training can meet and formulas forget: collapse, duplicates, two images, zero vectors."""
    broken: dict[Severity, list[str]] = {"defect": [], "note": []}
    refused = []
    for name, pair in corner_cases().items():
        try:
            found, gradients = target.value_and_gradients(pair)
        except Exception as error:
            refused.append(f"{name} ({type(error).__name__})")
            continue
        what = "value" if not found.isfinite() else "gradient"
        if not all(x.isfinite().all() for x in (found, *gradients)):
            # Nothing brings back a batch that is one point; of two images some statistics do not exist.
            hopeless = name.startswith(("collapsed", "two ", "all zero"))
            broken["note" if hopeless else "defect"].append(f"{name} ({what})")
    findings = []
    for severity, cases in broken.items():
        if cases:
            name = "not finite" if severity == "defect" else "not finite at collapse"
            findings.append(_found(name, severity, len(cases), f"NaN or infinite: {', '.join(cases)}", "finite"))
    if 0 < len(refused) < len(corner_cases()):  # one that takes no batch of this size refuses all of them
        findings.append(_found("refuses", "note", len(refused), f"raises: {', '.join(refused)}", "finite"))
    return findings


def precision(target: Target) -> list[Finding]:
    """Compare gradients in float32, bfloat16 and under autocast with those in a higher precision."""
    findings = []
    views = [z.float() for z in draw_views(16, 8, 2)]
    if target.claimed is not None and target.claimed.metadata.scale_invariant:
        views = [torch.nn.functional.normalize(z, dim=1) for z in views]
    single = _gradients(target, views)
    if not isinstance(single, Exception):
        double = _gradients(target, [z.double() for z in views])
        if not isinstance(double, Exception) and not _is_random(target):
            loss = relative(single, double)
            if loss >= 1e-3:
                text = f"float32 loses {loss:.2g} of the gradient"
                findings.append(_found("loses precision", "defect", loss, text, "precision"))
        half = [z.bfloat16() for z in views]
        wanted = _gradients(target, [z.float() for z in half])
        for name, automatic, given in (("bfloat16", False, half), ("autocast", True, [z.float() for z in half])):
            with torch.autocast("cpu", torch.bfloat16, enabled=automatic):
                found = _gradients(target, given)
            if isinstance(found, Exception) or isinstance(wanted, Exception):
                text = f"{name} raises {type(found).__name__}: {' '.join(str(found).split())[:80]}"
                findings.append(_found(f"fails in {name}", "note", math.nan, text, "precision"))
                continue
            loss = relative(found, wanted)
            if loss >= 0.05 and not _is_random(target):
                text = f"{name} loses {loss:.2g} of the gradient"
                findings.append(_found(f"coarse in {name}", "note", loss, text, "precision"))
    return findings


def _gradients(target: Target, views: Sequence[Tensor]) -> Tensor | Exception:
    try:
        return torch.cat([g.double().flatten() for g in target.value_and_gradients(views)[1]])
    except Exception as error:
        return error


def _is_random(target: Target) -> bool:
    """Tell whether the loss draws; then other precisions draw other numbers."""
    return mean_value(target, drawn(target, 2)[0])[1] > 0


def memory(target: Target) -> list[Finding]:
    """Count what the graph keeps for backward, and how it grows when n and q are doubled."""
    kept = {}
    for n, q in itertools.product((32, 64), (24, 48)):
        try:
            kept[n, q] = _kept_bytes(target, [z.float() for z in draw_views(n, q, 2)])
        except Exception:  # a loss of fixed sizes
            return []
    growth = math.log2(kept[64, 48] / max(kept[32, 24], 1))
    if growth < 2.5:
        return []
    by_n, by_q = (math.log2(kept[size] / kept[32, 24]) for size in ((64, 24), (32, 48)))
    text = f"keeps {kept[64, 48] / 2**20:.2g} MiB at n = 64, q = 48 for backward, growing as n^{by_n:.1f} q^{by_q:.1f}"
    return [_found("memory grows cubically", "note", growth, text, "memory")]


def _kept_bytes(target: Target, views: Sequence[Tensor]) -> int:
    storages: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        kept = target.value([z.detach().clone().requires_grad_() for z in views])  # noqa: F841  # keeps the storages
    return sum(storages.values())


def state(target: Target) -> list[Finding]:
    """Call one instance twice with the same embeddings and the same random numbers."""
    views, _ = drawn(target, 2)
    loss = target.make(*SIZE, views[0].dtype)
    first, second = (target.value(views, loss=loss).item() for _ in range(2))
    if first == second:
        return []
    size = abs(second - first) / max(abs(first), 1e-12)
    text = f"a second call with the same embeddings and seed gives another value, by {size:.2g}: it keeps a state"
    return [_found("keeps a state", "note", size, text, "state")]


PROBES: dict[str, Probe] = {
    probe.__name__: probe for probe in (value, gradient, views, symmetry, finite, precision, memory, state)
}
"""Those of one process; `ranks` is the one of several."""


def run_probe(target: Target, name: str) -> list[Finding]:
    """Run one probe; what the loss raises is a finding."""
    try:
        return PROBES[name](target)
    except Exception as error:
        return [_failed(error, name)]


def difference(function: Callable[[float], float], step: float) -> float:
    """Differentiate at 0 by differences of fourth order."""
    near, far = (function(size) - function(-size) for size in (step, 2 * step))
    return (8 * near - far) / (12 * step)


def _failed(error: Exception, probe: str) -> Finding:
    text = f"raises {type(error).__name__}: {' '.join(str(error).split())[:120]}"
    return _found("fails", "defect", math.nan, text, probe)


def _found(name: str, severity: Severity, size: float, text: str, probe: str) -> Finding:
    return Finding(name=name, severity=severity, size=size, text=text, probe=probe)
