"""Optimizers and their schedule against the definition, one tensor and one number at a time."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from regbench import RegbenchError
from regbench.benchmark.training.optimizers.adam import AdamConfig
from regbench.benchmark.training.optimizers.adamw import AdamWConfig
from regbench.benchmark.training.optimizers.base import OPTIMIZERS, OptimizerConfig
from regbench.benchmark.training.optimizers.lars import LARS, LARSConfig
from regbench.benchmark.training.optimizers.sgd import SGDConfig
from regbench.instruments.cost.operations import LaunchCounter

SHAPES = [(5, 3), (4,), (2, 3, 2, 2), (7,), (1, 1), ()]


def draw(seed: int, shapes: list[tuple[int, ...]] = SHAPES) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]


def norm(values: list[float]) -> float:
    return math.sqrt(sum(x * x for x in values))


class OneTensor:
    """An optimizer for one tensor, in Python floats; `update` gives what a step subtracts."""

    def __init__(self, p: Tensor, config: OptimizerConfig) -> None:
        self.matrix, self.config = p.ndim >= 2, config
        self.p = p.flatten().tolist()
        self.m, self.v = [0.0] * len(self.p), [0.0] * len(self.p)
        self.steps = 0

    def step(self, g: list[float], lr: float) -> None:
        self.steps += 1
        self.p = [pi - ui for pi, ui in zip(self.p, self.update(g, lr), strict=True)]

    def update(self, g: list[float], lr: float) -> list[float]:
        raise NotImplementedError

    def decayed(self, g: list[float]) -> list[float]:
        return [gi + self.config.weight_decay * pi for gi, pi in zip(g, self.p, strict=True)]

    def average(
        self, kept: list[float], new: list[float], beta: float, weight: float = 1.0
    ) -> list[float]:
        return [beta * old + weight * x for old, x in zip(kept, new, strict=True)]


class OneLARS(OneTensor):
    """FACTS of the released code: decay before the norm, none in 1-D."""

    config: LARSConfig

    def update(self, g: list[float], lr: float) -> list[float]:
        config = self.config
        if self.matrix or not config.exclude_bias_and_norm:
            g = self.decayed(g)
            trust = (
                config.trust_coefficient * norm(self.p) / norm(g)
                if norm(self.p) > 0 and norm(g) > 0
                else 1.0
            )
            trust = min(trust / lr, 1.0) if config.clip_lr else trust
            g = [trust * gi for gi in g]
        self.m = self.average(self.m, g, config.momentum)
        return [lr * mi for mi in self.m]


class OneSGD(OneTensor):
    """As torch's documentation states it."""

    config: SGDConfig

    def update(self, g: list[float], lr: float) -> list[float]:
        momentum = self.config.momentum
        g = self.decayed(g) if self.matrix or not self.config.exclude_bias_and_norm else g
        self.m = self.average(self.m, g, momentum)
        return [
            lr * x for x in (self.average(self.m, g, momentum) if self.config.nesterov else self.m)
        ]


class OneAdamW(OneTensor):
    """Algorithm 2 of Loshchilov and Hutter, with the schedule in the decay."""

    config: AdamWConfig

    def update(self, g: list[float], lr: float) -> list[float]:
        first, second = self.config.betas
        self.m = self.average(self.m, g, first, 1 - first)
        self.v = self.average(self.v, [gi * gi for gi in g], second, 1 - second)
        means = [mi / (1 - first**self.steps) for mi in self.m]
        roots = [math.sqrt(vi / (1 - second**self.steps)) + self.config.epsilon for vi in self.v]
        decay = (
            self.config.weight_decay
            if self.matrix or not self.config.exclude_bias_and_norm
            else 0.0
        )
        return [
            lr * (x / root + decay * pi) for x, root, pi in zip(means, roots, self.p, strict=True)
        ]


class OneAdam(OneTensor):
    """Algorithm 1 of Kingma and Ba, of the gradient with its decay."""

    config: AdamConfig

    def update(self, g: list[float], lr: float) -> list[float]:
        first, second = self.config.betas
        g = self.decayed(g) if self.matrix or not self.config.exclude_bias_and_norm else g
        self.m = self.average(self.m, g, first, 1 - first)
        self.v = self.average(self.v, [gi * gi for gi in g], second, 1 - second)
        means = [mi / (1 - first**self.steps) for mi in self.m]
        roots = [math.sqrt(vi / (1 - second**self.steps)) + self.config.epsilon for vi in self.v]
        return [lr * x / root for x, root in zip(means, roots, strict=True)]


LOOPS: dict[str, type[OneTensor]] = {
    "lars": OneLARS,
    "sgd": OneSGD,
    "adamw": OneAdamW,
    "adam": OneAdam,
}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *(
            ("lars", {"weight_decay": decay, "trust_coefficient": 0.02})
            for decay in (0.0, 1e-6, 0.3)
        ),
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
        *((name, {"clip_grad_norm": 2.0}) for name in LOOPS),  # of a norm of about 5
    ],
)
def test_an_optimizer_is_its_definition(name: str, settings: dict[str, Any]) -> None:
    config = OPTIMIZERS.build(name, **settings)
    parameters = [torch.nn.Parameter(p) for p in draw(0)]
    slow = [LOOPS[name](p.detach(), config) for p in parameters]
    optimizer = config.build_clipping(parameters)
    for step in range(6):
        lr = 0.5 + 0.3 * step
        for group in optimizer.param_groups:
            group["lr"] = lr
        gradients = [gradient.flatten().tolist() for gradient in draw(10 + step)]
        if config.clip_grad_norm is not None:
            whole = norm([x for gradient in gradients for x in gradient])
            assert whole > config.clip_grad_norm
            gradients = [
                [x * config.clip_grad_norm / whole for x in gradient] for gradient in gradients
            ]
        for p, one, given, gradient in zip(
            parameters, slow, draw(10 + step), gradients, strict=True
        ):
            p.grad = given
            one.step(gradient, lr)
        optimizer.step()
    rel = (
        1e-6 if config.clip_grad_norm is not None else 1e-12
    )  # torch adds 1e-6 to the norm that it divides by
    for p, one in zip(parameters, slow, strict=True):
        assert p.flatten().tolist() == pytest.approx(
            one.p, rel=rel, abs=1e-14 if rel == 1e-12 else 1e-6
        )


def test_gradients_below_the_limit_are_left_alone() -> None:
    p = torch.nn.Parameter(torch.zeros(2))
    optimizer = SGDConfig(clip_grad_norm=5.1).build_clipping([p])
    p.grad = torch.tensor([3.0, 4.0])
    optimizer.step()
    assert p.grad.tolist() == [3.0, 4.0]


def test_lars_allocates_nothing_of_the_size_of_the_model() -> None:
    """After the first step, which makes the momentum; counted from the profiler's allocations."""
    parameters = [torch.nn.Parameter(torch.randn(300, 400)) for _ in range(4)]
    optimizer = LARS(parameters, lr=0.1, weight_decay=0.5, momentum=0.9, trust_coefficient=0.01)
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
    assert (
        max(e.self_cpu_memory_usage for e in profile.events()) == 480_000
    )  # this is how it would show


def test_lars_starts_a_kernel_for_each_tensor_in_one_product_alone() -> None:
    """Of each with its rate, for which torch has no common kernel."""

    def count(tensors: int) -> int:
        parameters = [torch.nn.Parameter(torch.empty(2, 3, device="meta")) for _ in range(tensors)]
        optimizer = LARS(
            parameters, lr=0.1, weight_decay=0.5, momentum=0.9, trust_coefficient=0.01, clip_lr=True
        )
        for _ in range(2):  # the first step makes the momentum
            for p in parameters:
                p.grad = torch.empty_like(p)
            with LaunchCounter() as operations:
                optimizer.step()
        return int(operations.count)

    assert count(2) < 20
    assert count(40) - count(2) == 38


def test_lars_with_zero_norms() -> None:
    zero_weight, zero_gradient, both = (
        torch.nn.Parameter(x) for x in (torch.zeros(2, 2), torch.ones(2, 2), torch.zeros(2, 2))
    )
    optimizer = LARS(
        [zero_weight, zero_gradient, both],
        lr=0.1,
        weight_decay=0.0,
        momentum=0.9,
        trust_coefficient=0.001,
    )
    zero_weight.grad, zero_gradient.grad, both.grad = (
        torch.full((2, 2), 3.0),
        torch.zeros(2, 2),
        torch.zeros(2, 2),
    )
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


# Rates of steps 0, 1, … of 2 epochs of 5 steps with a batch of 1024, base_lr 1, in quarters.
SCHEDULES: list[tuple[dict[str, Any], list[int]]] = [
    ({"lr_scaling": "linear", "schedule": "constant", "warmup_epochs": 0.0}, [16] * 10),
    ({"lr_scaling": "sqrt", "schedule": "constant", "warmup_epochs": 0.0}, [8] * 10),
    ({"lr_scaling": "none", "schedule": "constant", "warmup_epochs": 0.0}, [4] * 10),
    ({"schedule": "constant", "warmup_epochs": 0.4}, [0, 8] + [16] * 8),
    ({"schedule": "constant", "warmup_steps": 4}, [0, 4, 8, 12] + [16] * 6),
    (
        {"schedule": "constant", "warmup_steps": 4, "warmup_start_fraction": 0.5},
        [8, 10, 12, 14] + [16] * 6,
    ),
    (
        {"schedule": "wsd", "warmup_steps": 2, "decay_fraction": 0.4},
        [0, 8, 16, 16, 16, 16, 16, 12, 8, 4],
    ),
    (
        {"schedule": "wsd", "warmup_steps": 0, "decay_fraction": 0.2, "final_lr_fraction": 0.5},
        [16, 16, 16, 16, 16, 16, 16, 16, 16, 12],
    ),
    ({"schedule": "wsd", "warmup_steps": 1, "decay_fraction": 0.0}, [0] + [16] * 9),
]


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
def test_a_warmup_that_does_not_end_in_time_is_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(RegbenchError, match=message):
        AdamWConfig(**settings).refuse_long_warmup(5, 2)
