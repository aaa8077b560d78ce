"""Predictors and teachers: what is refused, what a step does with them, and what they keep from collapsing."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from regbench import RegbenchError
from regbench.benchmark.backbones.base import BACKBONES
from regbench.benchmark.settings.architecture import NetworkConfig, PredictorConfig, ProjectorConfig
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.sweep import load_run
from regbench.benchmark.training.network import SiameseNetwork
from regbench.benchmark.training.spread import effective_rank, feature_spread
from regbench.benchmark.training.step import Step
from regbench.benchmark.training.teacher import Teacher
from regbench.instruments.plan import predict
from regbench.methods import Engine, Regularizer, build
from regbench.methods.targets import loss_of_targets
from tests.conftest import stripes

PREDICTOR = "network.predictor.depth=2"
REFUSED = {
    "method=byol": "BYOL collapses without predictor and ema; set network.predictor.depth=2 network.teacher=ema",
    f"method=byol network.teacher=stop_gradient {PREDICTOR}": "without predictor and ema; set network.teacher=ema",
    "method=simsiam network.teacher=stop_gradient": "set network.predictor.depth=2",
    f"method=moco_v3 {PREDICTOR}": "set network.teacher=ema",
    "baseline=supervised network.teacher=ema": "baseline=supervised has no use for a predictor or a teacher; set",
    "baseline=supcon network.teacher=ema": "baseline=supcon has no use for a predictor or a teacher; set",
    f"baseline=supervised {PREDICTOR}": "baseline=supervised has no use for a predictor",
    "method=vicreg network.predictor.hidden_dim=8": "is without effect: there is no predictor; set network.pred",
    "method=vicreg network.momentum=0.9": "is without effect with network.teacher=none; set network.teacher=ema too",
    "method=vicreg network.teacher=ema network.momentum=1.5": "network.momentum=1.5 must be",
    "method=tico method.covariance_momentum=0.9": "method.covariance_momentum=0.9 is without effect with network.tea",
    f"method=mec method.warmup=0.1 {PREDICTOR}": "method.warmup=0.1 is without effect with network.teacher=none; set",
    "method=mec method.warmup=1.5 network.teacher=ema": "warmup must be from 0 to 1",
    "method=tico method.covariance_momentum=1.0 network.teacher=ema": "covariance_momentum must be from 0 to below 1",
    "method=vicreg network.teacher=mean": "network.teacher=mean must be",
}


@pytest.mark.parametrize("overrides", REFUSED)
def test_what_is_refused(overrides: str) -> None:
    with pytest.raises(RegbenchError, match=re.escape(REFUSED[overrides])):
        load_run(overrides.split())


def test_cells_hold_no_more_than_they_use() -> None:
    """So that those from before there were teachers keep their ids."""
    held = {}
    for teacher in ("none", "stop_gradient", "ema"):
        cell, _ = load_run(["method=vicreg", f"network.teacher={teacher}"])
        held[teacher] = cell.plain()["network"].keys() - {"backbone", "projector", "statistics"}
        assert Cell.stored(cell.plain()) == cell
    assert held == {"none": set(), "stop_gradient": {"teacher"}, "ema": {"teacher", "momentum"}}
    assert load_run(["method=vicreg"])[0].id == "4c8dcc173a5e"


@pytest.mark.parametrize(("method", "setting"), [("tico", "covariance_momentum"), ("mec", "warmup")])
def test_cells_hold_what_acts_beside_a_teacher_alone_only_where_it_acts(method: str, setting: str) -> None:
    plain, _ = load_run([f"method={method}"])
    acting, _ = load_run([f"method={method}", f"method.{setting}=0.5", "network.teacher=ema"])
    assert setting not in plain.plain()["method"]
    assert acting.plain()["method"][setting] == 0.5
    assert [Cell.stored(cell.plain()) for cell in (plain, acting)] == [plain, acting]
    assert plain.id == {"tico": "f7bbeed02cfb", "mec": "7758a57909e3"}[method]


def config(teacher: str, depth: int = 0, momentum: float = 0.996) -> NetworkConfig:
    return NetworkConfig(
        backbone=BACKBONES.build("resnet_tiny"),
        projector=ProjectorConfig(hidden_dim=24),
        predictor=PredictorConfig(depth=depth),
        teacher=teacher,  # type: ignore[arg-type]
        momentum=momentum,
    )


def images(count: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(16, 3, 16, 16, generator=generator) for _ in range(count)]


def step_of(network: SiameseNetwork, config: NetworkConfig, teacher: Teacher | None, **settings: Any) -> Step:
    given: dict[str, Any] = {"optimizer": torch.optim.SGD(network.parameters(), lr=0.1), "method": build("vicreg")}
    return Step(
        network=network,
        engine=Engine(),
        precision="fp32",
        is_asymmetric=config.is_asymmetric,
        teacher=teacher,
        **(given | settings),
    )


@pytest.mark.parametrize("kind", ["none", "stop_gradient", "ema"])
@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("views", [2, 3])
def test_a_step_descends_the_loss_of_predictions_and_targets(kind: str, depth: int, views: int) -> None:
    """Two global views; a third one has a prediction and is no target."""
    if kind == "none" and not depth:
        return
    settings = config(kind, depth)
    network, twin = (SiameseNetwork(settings, 12, 3, 16, 0) for _ in range(2))
    other = SiameseNetwork(config("none"), 12, 3, 16, 1)
    teacher = None if kind == "none" else Teacher(network, settings)
    if teacher is not None and teacher.network is not None:
        teacher.network.load_state_dict(other.state_dict())  # so that it can be told from the network
    before = torch.nn.utils.parameters_to_vector(network.parameters()).detach().clone()
    step_of(network, settings, teacher)(*images(views))
    outputs = twin(*images(views))
    targets = {"none": outputs, "stop_gradient": [z.detach() for z in outputs], "ema": other(*images(views))}[kind]
    loss = loss_of_targets(
        build("vicreg"), outputs[-views:], [z.detach() if kind == "ema" else z for z in targets[:2]], Engine()
    )
    loss.total.backward()
    gradient = torch.cat([p.grad.flatten() for p in twin.parameters() if p.grad is not None])
    moved = before - torch.nn.utils.parameters_to_vector(network.parameters()).detach()
    torch.testing.assert_close(moved, 0.1 * gradient, rtol=1e-3, atol=1e-6)


def test_an_ema_teacher_follows_as_byols() -> None:
    """τ = 1 − (1 − τ₀) (cos πk/K + 1)/2 of its weights stay; its BN statistics are its own."""
    settings = config("ema", depth=2, momentum=0.9)
    network = SiameseNetwork(settings, 12, 3, 16, 0)
    teacher = Teacher(network, settings)
    assert teacher.network is not None
    assert teacher.network.predictor is None
    # As later in a training: a teacher that equals the network may follow it at any moment.
    teacher.network.load_state_dict(SiameseNetwork(config("none"), 12, 3, 16, 1).state_dict())
    start = torch.nn.utils.parameters_to_vector(teacher.parameters())
    step_of(network, settings, teacher, done=lambda: 0.25)(*images())
    of_student = dict(network.named_parameters())
    now = torch.cat([of_student[name].detach().flatten() for name, _ in teacher.network.named_parameters()])
    kept = 1 - 0.1 * (2**-0.5 + 1) / 2
    followed = torch.nn.utils.parameters_to_vector(teacher.parameters())
    torch.testing.assert_close(followed, kept * start + (1 - kept) * now, rtol=1e-5, atol=1e-7)
    assert not any(p.requires_grad for p in teacher.parameters())
    teacher.follow(1.0)
    assert torch.equal(torch.nn.utils.parameters_to_vector(teacher.parameters()), followed)


@pytest.mark.parametrize("kind", ["none", "stop_gradient", "ema"])
def test_micro_batches_give_the_step_of_the_whole_batch(kind: str) -> None:
    settings = config(kind, depth=2)
    found = []
    for size in (None, 4):
        network = SiameseNetwork(settings, 12, 3, 16, 0).eval()
        teacher = None if kind == "none" else Teacher(network, settings).eval()
        step_of(network, settings, teacher, micro_batch_size=size)(*images())
        found.append(torch.nn.utils.parameters_to_vector(network.parameters()).detach())
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-6)


def test_a_plan_counts_the_teacher() -> None:
    """Its forward pass is a third of a trained one; nothing of it is left when the loss begins."""
    cell, _ = load_run(["method=vicreg", "dataset=cifar10", "network=resnet18_small", PREDICTOR])
    alone = predict(replace(cell, network=replace(cell.network, teacher="stop_gradient")))
    taught = predict(replace(cell, network=replace(cell.network, teacher="ema")))
    weights = taught.parts_bytes["teacher"]
    assert 0 < weights < alone.parts_bytes["weights"]
    assert taught.peak_bytes - alone.peak_bytes == pytest.approx(weights, rel=0.05)
    assert taught.checkpoint_bytes - alone.checkpoint_bytes == pytest.approx(weights, rel=0.01)
    assert taught.flop_per_step / alone.flop_per_step == pytest.approx(4 / 3, abs=0.02)


def trained(method: Regularizer, teacher: str, depth: int, steps: int, *, centred: bool = True) -> tuple[float, float]:
    """Train on pictures of stripes; return effective rank and feature spread of the last batch's embeddings."""
    settings = config(teacher, depth, momentum=0.9 if teacher == "ema" else 0.996)
    network = SiameseNetwork(settings, 16, 3, 16, 0, prototypes=method.prototypes)
    transform = method.target_transform(method.prototypes) if centred else None
    own = None if teacher == "none" else Teacher(network, settings, transform)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    step = step_of(network, settings, own, method=method, optimizer=optimizer)
    pictures = [np.asarray(stripes(number % 3, number))[:16, :16] for number in range(96)]
    images_NCHW = torch.tensor(np.stack(pictures)).permute(0, 3, 1, 2) / 128 - 1
    generator = torch.Generator().manual_seed(0)

    def view(rows: Tensor) -> Tensor:
        """Another brightness of each colour, and noise."""
        noise = 0.2 * torch.randn(len(rows), 3, 16, 16, generator=generator)
        gain, shift = torch.rand(2, len(rows), 3, 1, 1, generator=generator)
        seen_NCHW: Tensor = images_NCHW[rows] * (0.6 + 0.8 * gain) + shift - 0.5 + noise
        return seen_NCHW

    for _ in range(steps):
        rows = torch.randperm(96, generator=generator)[:48]
        stepped = step(view(rows), view(rows))
    return effective_rank(stepped.views_NQ[0]), feature_spread(stepped.views_NQ[0])


@pytest.mark.slow
def test_byol_collapses_without_its_predictor_and_without_a_stopped_gradient() -> None:
    rank, spread = trained(build("byol"), "ema", 2, 60)
    assert rank > 5 and spread > 0.7
    for teacher, depth in (("ema", 0), ("none", 2)):
        collapsed_rank, collapsed_spread = trained(build("byol"), teacher, depth, 60)
        assert collapsed_rank < rank / 2 and collapsed_spread < spread / 3, (teacher, depth)
    rank, spread = trained(build("simsiam"), "stop_gradient", 2, 60)
    assert rank > 5 and spread > 0.7


@pytest.mark.slow
def test_dino_collapses_without_its_center() -> None:
    method = build("dino", prototypes=32, warmup=0.0)
    rank, spread = trained(method, "ema", 0, 120)
    collapsed_rank, collapsed_spread = trained(method, "ema", 0, 120, centred=False)
    assert spread > 0.3
    assert collapsed_rank < rank and collapsed_spread < spread / 3
