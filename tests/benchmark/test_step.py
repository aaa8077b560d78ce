"""The training step: that what it saves in memory changes no number."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torchvision.ops import FrozenBatchNorm2d

from regbench.benchmark.backbones.base import BACKBONES
from regbench.benchmark.machine.bf16 import fast_bf16
from regbench.benchmark.settings.architecture import NetworkConfig, ProjectorConfig
from regbench.benchmark.training import layers
from regbench.benchmark.training.network import SiameseNetwork
from regbench.benchmark.training.optimizers.base import OPTIMIZERS
from regbench.benchmark.training.optimizers.lars import LARS
from regbench.benchmark.training.step import Step
from regbench.methods import Engine, build, names
from regbench.methods.forms.pairwise import as_on
from tests.launches import LaunchCounter
from tests.plain_network import PlainSiameseNetwork

PROJECTOR = ProjectorConfig(hidden_dim=48)
CONFIG = NetworkConfig(backbone=BACKBONES.build("resnet18"), projector=PROJECTOR)
SETTINGS: dict[str, Any] = {"lr": 0.1, "weight_decay": 1e-6}
SETTINGS |= {"momentum": 0.9, "trust_coefficient": 0.001}


def views(seed: int, layout: torch.memory_format = torch.contiguous_format) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(16, 3, 32, 32, generator=generator) for _ in range(2)]
    return [view.to(memory_format=layout) for view in drawn]


def step_of(network: nn.Module, **changes: Any) -> Step:
    """A step of VICReg by LARS in float32, but for these changes."""
    settings: dict[str, Any] = {"method": build("vicreg"), "engine": Engine(), "precision": "fp32"}
    settings["optimizer"] = LARS(network.parameters(), **SETTINGS)
    return Step(network=network, **(settings | changes))


def gradients(
    network: SiameseNetwork, precision: str, layout: torch.memory_format, given: bool
) -> dict[str, Tensor]:
    """Of a weighted sum of the embeddings, in `network.…grad`; with the embeddings themselves."""
    network.to(memory_format=layout)
    for p in network.parameters():
        p.grad = torch.zeros_like(p) if given else None
    with (
        torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"),
        fast_bf16(torch.device("cpu"), precision),
    ):
        embeddings = network(*views(0, layout))
    weights = [torch.linspace(-1, 1, z.numel()).view_as(z).to(z.dtype) for z in embeddings]
    torch.autograd.backward(embeddings, weights)
    named = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    return named | dict(zip(("z1", "z2"), embeddings, strict=True))


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_network_equals_that_of_plain_layers(
    layout: torch.memory_format, precision: str, given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "BLOCK_ELEMENTS", 1000)
    plain = gradients(PlainSiameseNetwork(CONFIG, 96, 3, 64, 0), precision, layout, given)
    ours = gradients(SiameseNetwork(CONFIG, 96, 3, 64, 0), precision, layout, given)
    assert plain.keys() == ours.keys()
    for name, expected in plain.items():
        if "projector" in name:  # the views' gradients are added in float32, not in bf16
            error = (ours[name] - expected).norm() / expected.norm()
            assert error < (0.01 if precision == "bf16" else 1e-6), name
        else:
            assert torch.equal(ours[name], expected), name


def test_only_small_tensors_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "BLOCK_ELEMENTS", 1000)
    kept: dict[type[SiameseNetwork], list[Tensor]] = {SiameseNetwork: [], PlainSiameseNetwork: []}
    for kind, tensors in kept.items():
        network = kind(CONFIG, 96, 3, 64, 0)
        hooks = saved_tensors_hooks(lambda t, to=tensors: to.append(t) or t, lambda t: t)  # type: ignore[misc]
        with hooks, torch.autocast("cpu", torch.bfloat16):
            network(*views(0))
    shapes = ((96, 48), (48, 96))  # of the last layer's weight
    ours, plain = ({t.dtype for t in tensors if t.shape in shapes} for tensors in kept.values())
    assert ours == {torch.float32}
    assert torch.bfloat16 in plain
    assert all(t.dtype != torch.int64 for t in kept[SiameseNetwork] if t.ndim == 4)


def _train(rank: int, folder: Path) -> None:
    """Three steps of a rank of two, of networks of two kinds.

    The first rank saves their weights.
    """
    torch.set_num_threads(1)
    layers.BLOCK_ELEMENTS = 1000
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    group = dist.group.WORLD
    for name, kind in (("plain", PlainSiameseNetwork), ("ours", SiameseNetwork)):
        network: nn.Module = kind(CONFIG, 96, 3, 64, 0)
        network.to(memory_format=torch.channels_last)
        parallel = DistributedDataParallel(network, gradient_as_bucket_view=True)
        step = step_of(parallel, engine=Engine(group=group, even=True), precision="bf16")
        for number in range(3):
            step(*(x.chunk(2)[rank] for x in views(number, torch.channels_last)))
        assert all(p.grad is not None and not p.grad.any() for p in network.parameters())
        if rank == 0:
            torch.save(network.state_dict(), folder / name)
    dist.destroy_process_group()


@pytest.mark.slow
def test_ranks_take_the_step_of_plain_layers(tmp_path: Path) -> None:
    spawn(_train, (tmp_path,), nprocs=2)
    plain, ours = (torch.load(tmp_path / name) for name in ("plain", "ours"))
    start = SiameseNetwork(CONFIG, 96, 3, 64, 0).state_dict()
    moved = sum((ours[name] - start[name]).square().sum() for name in start if "weight" in name)
    apart = sum((ours[name] - plain[name]).square().sum() for name in start if "weight" in name)
    assert apart < 0.01 * moved  # bf16; a gradient that is lost or counted twice gives 0.3 and more


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_micro_batches_give_the_step_of_the_whole_batch_but_for_bn(precision: str) -> None:
    """With BN statistics that do not come from the batch, there is no difference at all."""
    updated = []
    for size in (None, 4):
        network = SiameseNetwork(CONFIG, 96, 3, 64, 0).eval()
        stepped = step_of(network, precision=precision, micro_batch_size=size)(*views(0))
        updated.append((stepped, torch.cat([p.detach().flatten() for p in network.parameters()])))
    (whole, expected), (parts, found) = updated
    begun = SiameseNetwork(CONFIG, 96, 3, 64, 0)
    start = torch.cat([p.detach().flatten() for p in begun.parameters()])
    of_weights, of_terms = (2e-2, 1e-2) if precision == "bf16" else (1e-4, 1e-5)
    assert (found - expected).norm() < of_weights * (expected - start).norm()
    for name, term in whole.terms.items():
        assert parts.terms[name].item() == pytest.approx(term.item(), rel=of_terms)


def seed_all(seed: int) -> None:
    for seeded in (torch.manual_seed, random.seed, np.random.seed):
        seeded(seed)


def test_micro_batches_draw_the_same_twice() -> None:
    """Two passes with stochastic layers against one pass that keeps the graphs of all parts.

    Views of two sizes.
    """
    options = {"depth": 2, "embed_dim": 24, "num_heads": 2, "proj_drop_rate": 0.3}
    stochastic = {"drop_path_rate": 0.5, "representation": "class_token", "options": options}
    backbone = BACKBONES.build("timm", patch_size=4, **stochastic)
    config = NetworkConfig(backbone=backbone, projector=ProjectorConfig(depth=2, norm="layer"))
    found, expected = (SiameseNetwork(config, 16, 1, 28, 0) for _ in range(2))
    for network in (found, expected):  # a layer may draw from any generator
        network.backbone.register_forward_hook(
            lambda *given: given[-1] * (random.random() + np.random.random())
        )
    start = [p.detach().clone() for p in found.parameters()]
    generator = torch.Generator().manual_seed(0)
    views = [torch.randn(12, 1, size, size, generator=generator) for size in (28, 16)]
    step = step_of(found, optimizer=torch.optim.SGD(found.parameters(), lr=1.0), micro_batch_size=4)
    seed_all(7)
    step(*views)
    seed_all(7)
    parts = [expected(*part) for part in zip(*(x.split(4) for x in views), strict=True)]
    z1, z2 = (torch.cat(view) for view in zip(*parts, strict=True))
    build("vicreg").loss(z1, z2).backward()
    again = expected(views[0][:4], views[1][:4])
    assert not torch.equal(parts[0][0], again[0])  # the layers do draw
    for p, before, twin in zip(found.parameters(), start, expected.parameters(), strict=True):
        torch.testing.assert_close(before - p, twin.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_micro_batches_count_once_in_bns_running_statistics(momentum: float | None) -> None:
    """As many updates as parts, as if each were a batch, though each passes twice.

    Without a momentum, BN takes the mean over all batches, which it counts.
    """
    network, other = (SiameseNetwork(CONFIG, 96, 3, 64, 0).train() for _ in range(2))
    for module in (*network.modules(), *other.modules()):
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = momentum
    optimizer = LARS(network.parameters(), **SETTINGS | {"lr": 0.0})
    step_of(network, optimizer=optimizer, micro_batch_size=8)(*views(0))
    for x1, x2 in zip(*(x.split(8) for x in views(0)), strict=True):
        other(x1, x2)
    for found, expected in zip(network.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(found, expected)


def test_micro_batches_pass_layers_with_fixed_statistics() -> None:
    """Such as torchvision's, which have no momentum."""
    network = SiameseNetwork(CONFIG, 96, 3, 64, 0).train()
    network.backbone.bn1 = FrozenBatchNorm2d(64)
    stepped = step_of(network, micro_batch_size=8)(*views(0))
    assert all(term.isfinite() for term in stepped.terms.values())


# They return a number, or as much as the data say; the last one, of `trace`'s derivative, reads a
# number within.
WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal"}
WAITING |= {"_linalg_check_errors", "index_fill.int_Tensor", "index_fill_.int_Tensor"}


class Waits(TorchDispatchMode):
    """Notes operations for which the host would wait for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, overload = func.overloadpacket.__name__, func._overloadname
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        by_mask = name.startswith("index") and any(each.dtype == torch.bool for each in tensors[1:])
        out = func(*args, **(kwargs or {}))
        # A number of the CPU's goes to a GPU with the operation; a tensor is copied before.
        copied = [each for each in tensors if each.device.type == "cpu" and each.ndim]
        made = (each for each in tree_leaves(out) if isinstance(each, Tensor))
        goes_over = copied and any(each.device.type != "cpu" for each in made)
        if by_mask or goes_over or name in WAITING or f"{name}.{overload}" in WAITING:
            self.found.add(name)
        return out


@pytest.mark.parametrize(
    ("method", "optimizer"),
    [("sfrik_l3", "lars"), ("kerjepa_sliced_mmd", "sgd"), ("vicreg", "adamw")],
)
def test_a_step_has_no_operation_that_a_gpus_host_waits_for(method: str, optimizer: str) -> None:
    config = NetworkConfig(backbone=BACKBONES.build("resnet_tiny"), projector=PROJECTOR)
    network = SiameseNetwork(config, 96, 3, 64, 0)
    clipping = OPTIMIZERS.build(optimizer, clip_grad_norm=1.0)
    settings: dict[str, Any] = {"optimizer": clipping.build_clipping(network.parameters())}
    settings |= {"method": build(method), "engine": Engine(even=True, draw_seed=lambda: 0)}
    settings["micro_batch_size"] = 4 if method == "vicreg" else None
    step = step_of(network, precision="bf16", **settings)
    with Waits() as waits:
        step(*torch.randn(2, 8, 3, 8, 8))
    assert not waits.found


def _refuse_to_copy(number: object, *, device: object = None, **kwargs: Any) -> Tensor:
    """Be torch.tensor, which copies numbers of the host to a device, and waits for it."""
    raise AssertionError(f"torch.tensor({number}, device={device}) makes a GPU's host wait")


@pytest.mark.parametrize("name", names())
def test_no_loss_has_many_operations_or_one_that_a_gpus_host_waits_for(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On tensors of a device that has shapes but no data: what is on the CPU beside them would
    have to be copied.
    """
    monkeypatch.setattr(torch, "tensor", _refuse_to_copy)
    for n, q in ((256, 8192), (4096, 2048), (2048, 32768)):
        z1, z2 = torch.empty(2, n, q, device="meta").requires_grad_()
        with as_on("cuda"), Waits() as waits, LaunchCounter() as operations:
            build(name).loss(z1, z2, engine=Engine(draw_seed=lambda: 0)).backward()
        # Whether a Cholesky factor was found.
        assert waits.found <= {"_linalg_check_errors"}
        assert operations.count <= 1000, (n, q)
