"""Predictors and teachers: what is refused, what a step does with them, and what they keep from
collapsing.
"""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from regbench.benchmark.backbones.base import BACKBONES
from regbench.benchmark.rundir.directory import write_config
from regbench.benchmark.settings.architecture import NetworkConfig, PredictorConfig, ProjectorConfig
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.stored import load_config
from regbench.benchmark.settings.sweep import load_run, load_sweep
from regbench.benchmark.training.assembly import new_network
from regbench.benchmark.training.embedding_metrics import effective_rank, feature_spread
from regbench.benchmark.training.network import Prototypes, SiameseNetwork
from regbench.benchmark.training.step import Step
from regbench.benchmark.training.teacher import Teacher
from regbench.methods import Engine, Regularizer, build
from regbench.methods.forms.targets import loss_of_targets
from regbench.sweeps.predict import predict
from tests.conftest import stripes

PREDICTOR = "network.predictor.depth=2"


def test_cells_hold_no_more_than_they_use() -> None:
    """So that those from before there were teachers keep their ids."""
    held = {}
    for teacher in ("none", "stop_gradient", "ema"):
        cell, _ = load_run(["method=vicreg", f"network.teacher={teacher}"])
        held[teacher] = cell.plain()["network"].keys() - {"backbone", "projector", "statistics"}
        assert Cell.stored(cell.plain()) == cell
    assert held == {"none": set(), "stop_gradient": {"teacher"}, "ema": {"teacher", "momentum"}}
    assert load_run(["method=vicreg"])[0].id == "4c8dcc173a5e"


def test_cells_hold_what_acts_beside_a_teacher_alone_only_where_it_acts() -> None:
    methods = {"tico": ("covariance_momentum", "f7bbeed02cfb"), "mec": ("warmup", "7758a57909e3")}
    for method, (setting, plain_id) in methods.items():
        plain, _ = load_run([f"method={method}"])
        acting, _ = load_run([f"method={method}", f"method.{setting}=0.5", "network.teacher=ema"])
        assert setting not in plain.plain()["method"]
        assert acting.plain()["method"][setting] == 0.5
        assert [Cell.stored(cell.plain()) for cell in (plain, acting)] == [plain, acting]
        assert plain.id == plain_id


HEURISTICS = Path(__file__).parents[2] / "results" / "heuristics.tar.xz"
PROTOTYPES = {"dino": "network.teacher=ema", "swav": "network.teacher=stop_gradient"}


def shipped() -> list[dict[str, Any]]:
    """Return the cells of the study of teachers, which is older than the setting of the
    prototypes.
    """
    cells = []
    with tarfile.open(HEURISTICS) as archive:
        for member in archive:
            if member.name.endswith(("/record.json", "/tuning.json")):
                cells.append(json.load(cast("IO[bytes]", archive.extractfile(member)))["cell"])
    return cells


def prototypes_of(network: SiameseNetwork) -> Tensor:
    return cast("Prototypes", network.projector[-1]).weight


def test_cells_from_before_the_setting_of_prototypes_keep_ids_and_meaning(tmp_path: Path) -> None:
    cells = [cell for cell in shipped() if cell["method"]["name"] in PROTOTYPES]
    assert len(cells) == 14
    for data in cells:
        cell = Cell.stored(data)
        assert cell.method.prototype_weights == "normal"
        assert cell.plain() == data
        write_config(tmp_path, data)
        assert load_config(tmp_path / "config.yaml")[0] == cell
    changed, _ = load_config(tmp_path / "config.yaml", ["method.prototype_weights=uniform"])
    assert changed.method.prototype_weights == "uniform"


def test_the_sweep_of_a_shipped_study_has_its_cells() -> None:
    ids = {cell.id for cell in load_sweep("heuristics", []).cells}
    assert ids == {Cell.stored(cell).id for cell in shipped() if cell["seed"] == 0}


@pytest.mark.parametrize("kind", ["", "normal", "uniform", "unit"])
@pytest.mark.parametrize("name", PROTOTYPES)
def test_prototypes_begin_with_the_length_that_is_set(name: str, kind: str) -> None:
    given = [f"method={name}", "method.prototypes=300", "embedding_dim=64", PROTOTYPES[name]]
    given += [f"method.prototype_weights={kind}"] * bool(kind)
    cell, _ = load_run(given)
    assert Cell.stored(cell.plain()) == cell
    assert ("prototype_weights" in cell.plain()["method"]) == (kind != "normal")
    weight_KQ = prototypes_of(new_network(cell)).detach()
    lengths_K = weight_KQ.norm(dim=1)
    kind = kind or {"dino": "uniform", "swav": "unit"}[name]
    if kind == "unit":
        torch.testing.assert_close(lengths_K, torch.ones(300))
    else:
        length, most = {"normal": (8.0, 6.0), "uniform": (3**-0.5, 1 / 8)}[kind]
        assert lengths_K.mean().item() == pytest.approx(length, rel=0.02)
        assert 0.99 * most < weight_KQ.abs().max() < most or kind == "normal"


def config(teacher: str, depth: int = 0, momentum: float = 0.996) -> NetworkConfig:
    given: dict[str, Any] = {"teacher": teacher, "predictor": PredictorConfig(depth=depth)}
    given |= {"momentum": momentum, "projector": ProjectorConfig(hidden_dim=24)}
    return NetworkConfig(backbone=BACKBONES.build("resnet_tiny"), **given)


def images(count: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(16, 3, 16, 16, generator=generator) for _ in range(count)]


def step_of(
    network: SiameseNetwork, config: NetworkConfig, teacher: Teacher | None, **settings: Any
) -> Step:
    given: dict[str, Any] = {"method": build("vicreg"), "engine": Engine(), "precision": "fp32"}
    given |= {"is_asymmetric": config.is_asymmetric, "teacher": teacher}
    given["optimizer"] = torch.optim.SGD(network.parameters(), lr=0.1)
    return Step(network=network, **(given | settings))


@pytest.mark.parametrize("kind", ["none", "stop_gradient", "ema"])
@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("views", [2, 3])
def test_a_step_descends_the_loss_of_predictions_and_targets(
    kind: str, depth: int, views: int
) -> None:
    """Two global views; a third one has a prediction and is no target."""
    if kind == "none" and not depth:
        return
    settings = config(kind, depth)
    network, twin = (SiameseNetwork(settings, 12, 3, 16, 0) for _ in range(2))
    other = SiameseNetwork(config("none"), 12, 3, 16, 1)
    teacher = None if kind == "none" else Teacher(network, settings)
    if teacher is not None and teacher.network is not None:
        # So that it can be told from the network.
        teacher.network.load_state_dict(other.state_dict())
    before = torch.nn.utils.parameters_to_vector(network.parameters()).detach().clone()
    step_of(network, settings, teacher)(*images(views))
    outputs = twin(*images(views))
    targets = list(outputs[:2])
    if kind == "ema":
        targets = list(other(*images(views))[:2])
    if kind != "none":
        targets = [z.detach() for z in targets]
    loss = loss_of_targets(build("vicreg"), outputs[-views:], targets, Engine())
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
    followed_names = [name for name, _ in teacher.network.named_parameters()]
    now = torch.cat([of_student[name].detach().flatten() for name in followed_names])
    kept = 1 - 0.1 * (2**-0.5 + 1) / 2
    followed = torch.nn.utils.parameters_to_vector(teacher.parameters())
    torch.testing.assert_close(followed, kept * start + (1 - kept) * now, rtol=1e-5, atol=1e-7)
    assert not any(p.requires_grad for p in teacher.parameters())
    teacher.follow(1.0)
    assert torch.equal(torch.nn.utils.parameters_to_vector(teacher.parameters()), followed)


def test_prototypes_of_an_ema_teacher_keep_their_length() -> None:
    """Means of vectors of length 1 are shorter, and scores would be no cosines."""
    settings = config("ema", momentum=0.5)
    network = SiameseNetwork(settings, 12, 3, 16, 0, prototypes=8, prototype_weights="unit")
    teacher = Teacher(network, settings)
    with torch.no_grad():
        prototypes_of(network).copy_(F.normalize(torch.randn(8, 12), dim=1))
    assert teacher.network is not None
    before = prototypes_of(teacher.network).detach().clone()
    teacher.follow(0.0)
    now = prototypes_of(teacher.network).detach()
    assert not torch.equal(now, before)
    torch.testing.assert_close(now.norm(dim=1), torch.ones(8))


@pytest.mark.parametrize("kind", ["uniform", "unit"])
def test_prototypes_learn_as_those_of_released_codes(kind: str) -> None:
    """DINO's last layer is torch's linear one with `weight_norm`; SwAV's is rescaled before each
    step.

    By AdamW, as DINO, and by SwAV's loss, whose codes need no state.
    """
    prototypes: dict[str, Any] = {"prototypes": 5, "prototype_weights": kind}
    settings, method = config("stop_gradient"), build("swav", **prototypes)
    network, theirs, begun = (SiameseNetwork(settings, 12, 3, 16, 0, **prototypes) for _ in "abc")
    linear = nn.Linear(12, 5, bias=False)
    linear.weight.data.copy_(prototypes_of(theirs))
    if kind == "uniform":
        linear = weight_norm(linear)
        length = linear.parametrizations.weight.original0.requires_grad_(False)
        length.fill_(1.0)
    theirs.projector[-1] = linear
    linear.register_forward_pre_hook(lambda _, inputs: (F.normalize(inputs[0], dim=1),))
    optimizers = [torch.optim.AdamW(each.parameters(), lr=0.01) for each in (network, theirs)]
    teacher = Teacher(network, settings)
    step = step_of(network, settings, teacher, method=method, optimizer=optimizers[0])
    for _ in range(4):
        if kind == "unit":
            linear.weight.data.copy_(F.normalize(linear.weight.data, dim=1))
        step(*images())
        scores = theirs(*images())
        loss_of_targets(method, scores, [s.detach() for s in scores], Engine()).total.backward()
        optimizers[1].step(), optimizers[1].zero_grad()
    weight_KQ = prototypes_of(network).detach()
    turned = F.normalize(linear.weight.detach(), dim=1)
    torch.testing.assert_close(F.normalize(weight_KQ, dim=1), turned, rtol=1e-3, atol=1e-5)
    assert (F.normalize(prototypes_of(begun), dim=1) * turned).sum(dim=1).max() < 0.9995
    if kind == "unit":
        torch.testing.assert_close(weight_KQ.norm(dim=1), torch.ones(5))


def test_nothing_is_random_in_an_ema_teacher() -> None:
    """As DINO's, it has no stochastic depth, which its student has; nor dropout."""
    options = {"depth": 2, "embed_dim": 24, "num_heads": 2, "proj_drop_rate": 0.3}
    backbone = BACKBONES.build("timm", patch_size=4, drop_path_rate=0.5, options=options)
    settings = replace(config("ema"), backbone=backbone)
    network = SiameseNetwork(settings, 12, 3, 16, 0)
    teacher = Teacher(network, settings)
    x_NCHW = images(1)[0]
    assert not torch.equal(*network(x_NCHW, x_NCHW))
    assert torch.equal(*teacher(x_NCHW, x_NCHW))


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
    weights = taught.checkpoint_bytes - alone.checkpoint_bytes
    assert 0 < weights < 4 * alone.parameters
    assert taught.peak_bytes - alone.peak_bytes == pytest.approx(weights, rel=0.05)
    assert taught.flop_per_step / alone.flop_per_step == pytest.approx(4 / 3, abs=0.02)


def trained(
    method: Regularizer, teacher: str, depth: int, steps: int, *, centred: bool = True
) -> tuple[float, float]:
    """Train on pictures of stripes.

    Return effective rank and feature spread of the last batch's embeddings.
    """
    settings = config(teacher, depth, momentum=0.9 if teacher == "ema" else 0.996)
    prototypes: dict[str, Any] = {"prototypes": method.prototypes}
    prototypes["prototype_weights"] = method.prototype_weights
    network = SiameseNetwork(settings, 16, 3, 16, 0, **prototypes)
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
    # Long prototypes hardly turn by SGD; short ones would have to be kept as they are at first, as
    # DINO does.
    method = build("dino", prototypes=32, warmup=0.0, prototype_weights="normal")
    rank, spread = trained(method, "ema", 0, 120)
    collapsed_rank, collapsed_spread = trained(method, "ema", 0, 120, centred=False)
    assert spread > 0.3
    assert collapsed_rank < rank and collapsed_spread < spread / 3
