"""LARS and its schedule against the definition, one tensor and one number at a time."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from regbench.benchmark.training.optimizers.lars import LARS, LARSConfig

SHAPES = [(5, 3), (4,), (2, 3, 2, 2), (7,), (1, 1), ()]


def draw(seed: int, shapes: list[tuple[int, ...]] = SHAPES) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]


class OneTensor:
    """LARS for one tensor, in Python floats (FACTS of the released code: decay before the norm, none in 1-D)."""

    def __init__(self, p: Tensor, weight_decay: float, momentum: float, trust_coefficient: float) -> None:
        self.adapted = p.ndim >= 2
        self.p = p.flatten().tolist()
        self.m = [0.0] * len(self.p)
        self.weight_decay, self.momentum, self.eta = weight_decay, momentum, trust_coefficient

    def step(self, gradient: Tensor, lr: float) -> None:
        g = gradient.flatten().tolist()
        if self.adapted:
            g = [gi + self.weight_decay * pi for gi, pi in zip(g, self.p, strict=True)]
            norm_p, norm_g = math.sqrt(sum(x * x for x in self.p)), math.sqrt(sum(x * x for x in g))
            trust = self.eta * norm_p / norm_g if norm_p > 0 and norm_g > 0 else 1.0
            g = [trust * gi for gi in g]
        self.m = [self.momentum * mi + gi for mi, gi in zip(self.m, g, strict=True)]
        self.p = [pi - lr * mi for pi, mi in zip(self.p, self.m, strict=True)]


@pytest.mark.parametrize("weight_decay", [0.0, 1e-6, 0.3])
def test_lars(weight_decay: float) -> None:
    parameters = [torch.nn.Parameter(p) for p in draw(0)]
    slow = [OneTensor(p.detach(), weight_decay, 0.9, 0.02) for p in parameters]
    optimizer = LARS(parameters, lr=0.0, weight_decay=weight_decay, momentum=0.9, trust_coefficient=0.02)
    for step in range(6):
        lr = 0.5 + 0.3 * step
        optimizer.param_groups[0]["lr"] = lr
        for p, one, gradient in zip(parameters, slow, draw(10 + step), strict=True):
            p.grad = gradient
            one.step(gradient, lr)
        optimizer.step()
    for p, one in zip(parameters, slow, strict=True):
        assert p.flatten().tolist() == pytest.approx(one.p, rel=1e-12, abs=1e-14)


def test_lars_allocates_nothing_of_the_size_of_the_model() -> None:
    """After the first step, which makes the momentum; counted from the profiler's allocations."""
    parameters = [torch.nn.Parameter(torch.randn(300, 400)) for _ in range(4)]
    optimizer = LARS(parameters, lr=0.1, weight_decay=0.5, momentum=0.9, trust_coefficient=0.01)
    for p in parameters:
        p.grad = torch.randn(300, 400)
    optimizer.step()
    with torch.profiler.profile(profile_memory=True) as profile:
        optimizer.step()
    allocated = [e.self_cpu_memory_usage for e in profile.events()]
    assert 0 < max(allocated) < 10_000  # one tensor has 480,000 bytes
    before = torch.randn(300, 400)
    with torch.profiler.profile(profile_memory=True) as profile:
        before.clone()
    assert max(e.self_cpu_memory_usage for e in profile.events()) == 480_000  # this is how it would show


def test_lars_with_zero_norms() -> None:
    zero_weight, zero_gradient, both = (
        torch.nn.Parameter(x) for x in (torch.zeros(2, 2), torch.ones(2, 2), torch.zeros(2, 2))
    )
    optimizer = LARS(
        [zero_weight, zero_gradient, both], lr=0.1, weight_decay=0.0, momentum=0.9, trust_coefficient=0.001
    )
    zero_weight.grad, zero_gradient.grad, both.grad = torch.full((2, 2), 3.0), torch.zeros(2, 2), torch.zeros(2, 2)
    optimizer.step()
    assert torch.allclose(zero_weight, torch.full((2, 2), -0.3))  # not scaled
    assert torch.equal(zero_gradient, torch.ones(2, 2))
    assert torch.equal(both, torch.zeros(2, 2))


def test_lars_decays_a_weight_without_gradient_by_its_trust() -> None:
    p = torch.nn.Parameter(torch.tensor([[3.0, 4.0]], dtype=torch.float64))
    p.grad = torch.zeros_like(p)
    LARS([p], lr=2.0, weight_decay=0.1, momentum=0.0, trust_coefficient=0.01).step()
    # g = 0.1 p, trust = 0.01 |p| / |0.1 p| = 0.1: p loses 2 · 0.1 · 0.1 of itself.
    assert p.flatten().tolist() == pytest.approx([3.0 * 0.98, 4.0 * 0.98])


def test_lars_skips_what_has_no_gradient() -> None:
    trained, frozen = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2, 2))
    trained.grad = torch.ones(3)
    LARS([trained, frozen], lr=0.5, weight_decay=0.1, momentum=0.9, trust_coefficient=0.001).step()
    assert torch.equal(trained, torch.full((3,), 0.5))
    assert torch.equal(frozen, torch.ones(2, 2))


def test_lars_goes_on_from_its_state() -> None:
    straight, halves = ([torch.nn.Parameter(p) for p in draw(3)] for _ in range(2))
    settings: dict[str, Any] = {"lr": 0.7, "weight_decay": 1e-3, "momentum": 0.9, "trust_coefficient": 0.1}
    one, first = LARS(straight, **settings), LARS(halves, **settings)
    for step in range(4):
        if step == 2:
            state = first.state_dict()
            first = LARS(halves, **settings)
            first.load_state_dict(state)
        for parameters, optimizer in ((straight, one), (halves, first)):
            for p, gradient in zip(parameters, draw(20 + step), strict=True):
                p.grad = gradient
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(straight, halves, strict=True))


CONFIG = LARSConfig(base_lr=0.8, warmup_epochs=2.0, final_lr_fraction=1e-3)


def rate(step: float, config: LARSConfig = CONFIG) -> float:
    return config.learning_rate(batch_size=512, step=step, steps_per_epoch=10, epochs=12)  # type: ignore[arg-type]


def test_learning_rate_at_its_corners() -> None:
    assert rate(0) == 0
    assert rate(10) == pytest.approx(0.8)  # half of the warm-up
    assert rate(20) == pytest.approx(1.6)  # base_lr · 512 / 256
    assert rate(70) == pytest.approx(1.6 * (0.5 + 0.5e-3))  # half of the decay
    assert rate(120) == pytest.approx(1.6e-3)
    assert max(map(rate, range(120))) == pytest.approx(1.6)


def test_learning_rate_rises_and_falls() -> None:
    rates = [rate(step) for step in range(121)]
    assert all(a < b for a, b in itertools.pairwise(rates[:21]))
    assert all(a > b for a, b in itertools.pairwise(rates[20:]))
    quarter = 20 + 25
    assert rates[quarter] == pytest.approx(1.6 * ((1 + math.sqrt(0.5)) / 2 * (1 - 1e-3) + 1e-3))


def test_learning_rate_without_warmup_begins_at_its_peak() -> None:
    config = LARSConfig(base_lr=0.5, warmup_epochs=0.0)
    assert config.learning_rate(256, 0, 4, 3) == pytest.approx(0.5)


def test_learning_rate_with_a_fraction_of_an_epoch() -> None:
    config = LARSConfig(base_lr=1.0, warmup_epochs=0.5)
    assert [config.learning_rate(256, step, 4, 3) for step in range(3)] == pytest.approx([0, 0.5, 1.0])
