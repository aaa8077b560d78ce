"""Optimizers and their schedule against the definition, one tensor and one number at a time."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from regbench.benchmark.training.optimizers.adam import AdamConfig
from regbench.benchmark.training.optimizers.adamw import AdamWConfig
from regbench.benchmark.training.optimizers.base import OPTIMIZERS, OptimizerConfig
from regbench.benchmark.training.optimizers.lars import LARS, LARSConfig
from regbench.benchmark.training.optimizers.sgd import SGDConfig
from tests.launches import LaunchCounter
from tests.refusals import is_refused

SHAPES = [(5, 3), (4,), (2, 3, 2, 2), (7,), (1, 1), ()]


# Other settings than the defaults of `LARSConfig`.
LARS_SETTINGS: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.5, "momentum": 0.9}
LARS_SETTINGS["trust_coefficient"] = 0.01


def draw(seed: int, shapes: list[tuple[int, ...]] = SHAPES) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]


class OneLARS:
    """LARS of one tensor.

    FACTS of the released code: decay before the norm, none in 1-D.
    """

    def __init__(self, p: Tensor, config: LARSConfig) -> None:
        self.p, self.config, self.m = p, config, torch.zeros_like(p)
        self.param_groups = [{"lr": 0.0}]

    @torch.no_grad()
    def step(self) -> None:
        config, p, g, lr = self.config, self.p, self.p.grad, self.param_groups[0]["lr"]
        assert g is not None
        if p.ndim >= 2 or not config.exclude_bias_and_norm:
            g = g + config.weight_decay * p
            trust = torch.tensor(1.0, dtype=p.dtype)
            if p.norm() > 0 and g.norm() > 0:
                trust = config.trust_coefficient * p.norm() / g.norm()
            if config.clip_lr:
                trust = (trust / lr).clamp(max=1.0)
            g = trust * g
        self.m = config.momentum * self.m + g
        p.sub_(lr * self.m)


def alone(p: Tensor, config: OptimizerConfig) -> Any:
    """The plain optimizer of one tensor: the definition of LARS, or torch's."""
    decay = config.weight_decay if p.ndim >= 2 or not config.exclude_bias_and_norm else 0.0
    if isinstance(config, LARSConfig):
        return OneLARS(p, config)
    if isinstance(config, SGDConfig):
        options: dict[str, Any] = {"nesterov": config.nesterov, "foreach": False}
        return torch.optim.SGD([p], 0.0, config.momentum, weight_decay=decay, **options)
    assert isinstance(config, AdamConfig)
    kind = torch.optim.AdamW if isinstance(config, AdamWConfig) else torch.optim.Adam
    return kind([p], 0.0, config.betas, config.epsilon, decay, foreach=False)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *(("lars", {"weight_decay": wd, "trust_coefficient": 0.02}) for wd in (0.0, 1e-6, 0.3)),
        # Trust over the learning rate is above 1 for some of the tensors, below for others.
        ("lars", {"clip_lr": True, "trust_coefficient": 1.0}),
        ("lars", {"weight_decay": 0.3, "exclude_bias_and_norm": False, "trust_coefficient": 0.02}),
        ("sgd", {"weight_decay": 0.3}),
        ("sgd", {"weight_decay": 0.3, "nesterov": True, "momentum": 0.8}),
        ("sgd", {"momentum": 0.0}),
        *(
            (name, {"weight_decay": 0.3, "exclude_bias_and_norm": False})
            for name in ("sgd", "adamw", "adam")
        ),
        *((name, {"weight_decay": 0.3}) for name in ("adamw", "adam")),
        ("adamw", {"betas": (0.8, 0.95), "epsilon": 0.1}),
        *((name, {"clip_grad_norm": 2.0}) for name in OPTIMIZERS.names()),  # of a norm of about 5
    ],
)
def test_an_optimizer_is_its_definition(name: str, settings: dict[str, Any]) -> None:
    config = OPTIMIZERS.build(name, **settings)
    parameters, twins = ([torch.nn.Parameter(p) for p in draw(0)] for _ in range(2))
    optimizer, plain = config.build_clipping(parameters), [alone(p, config) for p in twins]
    for step in range(6):
        gradients, shrunk = draw(10 + step), 1.0
        if config.clip_grad_norm is not None:
            whole = torch.cat([gradient.flatten() for gradient in gradients]).norm().item()
            assert whole > config.clip_grad_norm
            shrunk = config.clip_grad_norm / whole
        for p, twin, gradient in zip(parameters, twins, gradients, strict=True):
            p.grad, twin.grad = gradient.clone(), gradient * shrunk
        for each in (optimizer, *plain):
            for group in each.param_groups:
                group["lr"] = 0.5 + 0.3 * step
            each.step()
    # torch adds 1e-6 to the norm that it divides by.
    rel, least = (1e-12, 1e-14) if config.clip_grad_norm is None else (1e-6, 1e-6)
    for p, twin in zip(parameters, twins, strict=True):
        torch.testing.assert_close(p, twin, rtol=rel, atol=least)


def test_gradients_below_the_limit_are_left_alone() -> None:
    p = torch.nn.Parameter(torch.zeros(2))
    optimizer = SGDConfig(clip_grad_norm=5.1).build_clipping([p])
    p.grad = torch.tensor([3.0, 4.0])
    optimizer.step()
    assert p.grad.tolist() == [3.0, 4.0]


def test_lars_allocates_nothing_of_the_size_of_the_model() -> None:
    """After the first step, which makes the momentum; counted from the profiler's allocations."""
    parameters = [torch.nn.Parameter(torch.randn(300, 400)) for _ in range(4)]
    optimizer = LARS(parameters, **LARS_SETTINGS)
    for p in parameters:
        p.grad = torch.randn(300, 400)
    optimizer.step()
    with torch.profiler.profile(profile_memory=True, acc_events=True) as profile:
        optimizer.step()
    allocated = [e.self_cpu_memory_usage for e in profile.events()]
    assert 0 < max(allocated) < 10_000  # one tensor has 480,000 bytes
    before = torch.randn(300, 400)
    with torch.profiler.profile(profile_memory=True, acc_events=True) as profile:
        before.clone()
    # This is how it would show.
    assert max(e.self_cpu_memory_usage for e in profile.events()) == 480_000


def test_lars_starts_a_kernel_for_each_tensor_in_one_product_alone() -> None:
    """Of each with its rate, for which torch has no common kernel."""

    def count(tensors: int) -> int:
        parameters = [torch.nn.Parameter(torch.empty(2, 3, device="meta")) for _ in range(tensors)]
        optimizer = LARS(parameters, **LARS_SETTINGS, clip_lr=True)
        for _ in range(2):  # the first step makes the momentum
            for p in parameters:
                p.grad = torch.empty_like(p)
            with LaunchCounter() as operations:
                optimizer.step()
        return int(operations.count)

    assert count(2) < 20
    assert count(40) - count(2) == 38


def test_lars_with_zero_norms() -> None:
    zero_weight, zero_gradient, both = (torch.nn.Parameter(torch.zeros(2, 2)) for _ in range(3))
    zero_gradient.data.fill_(1.0)
    parameters = [zero_weight, zero_gradient, both]
    for p in parameters:
        p.grad = torch.zeros(2, 2)
    zero_weight.grad = torch.full((2, 2), 3.0)
    LARS(parameters, lr=0.1, weight_decay=0.0, momentum=0.9, trust_coefficient=0.001).step()
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


@pytest.mark.parametrize("name", OPTIMIZERS.names())
def test_an_optimizer_goes_on_from_its_state(name: str) -> None:
    straight, halves = ([torch.nn.Parameter(p) for p in draw(3)] for _ in range(2))
    config = OPTIMIZERS.build(name)
    one, first = config.build_clipping(straight), config.build_clipping(halves)
    for step in range(4):
        if step == 2:
            state = first.state_dict()
            first = config.build_clipping(halves)
            first.load_state_dict(state)
        for parameters, optimizer in ((straight, one), (halves, first)):
            for group in optimizer.param_groups:
                group["lr"] = 0.7
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


SCHEDULES = yaml.safe_load(Path(__file__).with_name("schedules.yaml").read_text())


@pytest.mark.parametrize(("settings", "quarters"), SCHEDULES)
def test_schedules(settings: dict[str, Any], quarters: list[int]) -> None:
    config = SGDConfig(**{"base_lr": 1.0, "final_lr_fraction": 0.0, **settings})
    rates = [config.learning_rate(1024, step, 5, 2) for step in range(10)]
    assert rates == pytest.approx([quarter / 4 for quarter in quarters])
    config.refuse_long_warmup(5, 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"warmup_steps": 10}, "optimizer.warmup_steps=10 must be less than the run's 10 steps"),
        ({"warmup_epochs": 2.0}, "optimizer.warmup_epochs=2 must be less than epochs=2"),
        (
            {"warmup_steps": 8, "schedule": "wsd", "decay_fraction": 0.3},
            "optimizer.warmup_steps=8 and optimizer.decay_fraction=0.3 take more than the run's 10 "
            "steps together",
        ),
    ],
)
def test_a_warmup_that_ends_too_late_is_refused(settings: dict[str, Any], message: str) -> None:
    with is_refused(message):
        AdamWConfig(**settings).refuse_long_warmup(5, 2)
