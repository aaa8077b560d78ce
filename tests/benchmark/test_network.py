"""Backbones and projector."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from regbench.benchmark.backbones.base import BACKBONES
from regbench.benchmark.settings.architecture import NetworkConfig, ProjectorConfig
from regbench.benchmark.settings.sweep import load_run
from regbench.benchmark.training.assembly import build_network
from regbench.benchmark.training.layers import SmallLinear
from regbench.benchmark.training.network import SiameseNetwork
from regbench.sweeps.predict import predict
from tests.refusals import is_refused


def build(
    backbone: str, stem: str = "small", channels: int = 3, seed: int = 0, q: int = 24, **more: Any
) -> SiameseNetwork:
    """More are settings of the projector."""
    settings = {} if backbone == "resnet_tiny" else {"stem": stem}
    built = BACKBONES.build(backbone, **settings)
    config = NetworkConfig(backbone=built, projector=ProjectorConfig(**more))
    return SiameseNetwork(config, q, channels, 32, seed)


@pytest.mark.parametrize(
    ("backbone", "stem", "channels", "dim"),
    [
        *(("resnet_tiny", "small", 1, 128), ("resnet_tiny", "small", 3, 128)),
        *(("resnet18", "small", 1, 512), ("resnet18", "imagenet", 1, 512)),
        *(("resnet18", "imagenet", 3, 512), ("resnet50", "imagenet", 3, 2048)),
    ],
)
def test_shapes(backbone: str, stem: str, channels: int, dim: int) -> None:
    network = build(backbone, stem=stem, channels=channels, hidden_dim=40)
    x = torch.randn(3, channels, 32, 32)
    assert network.representation_dim == dim
    assert network.backbone(x).shape == (3, dim)
    assert [z.shape for z in network(x, x)] == [(3, 24)] * 2


@pytest.mark.parametrize("hidden_dim", [None, 40])
def test_projector_has_three_layers_and_no_last_bias(hidden_dim: int | None) -> None:
    layers = list(build("resnet_tiny", hidden_dim=hidden_dim).projector.children())
    width = hidden_dim or 24
    kinds = [nn.Linear, nn.BatchNorm1d, nn.ReLU] * 2 + [nn.Linear]
    assert all(isinstance(layer, kind) for layer, kind in zip(layers, kinds, strict=True))
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    seen = [(layer.in_features, layer.out_features) for layer in linear]
    assert seen == [(128, width), (width, width), (width, 24)]
    assert [layer.bias is not None for layer in linear] == [True, True, False]


LINEAR, RELU, BATCH, LAYER = nn.Linear, nn.ReLU, nn.BatchNorm1d, nn.LayerNorm
END = nn.Identity
FORMS = [
    ({"depth": 1}, [LINEAR]),
    ({"depth": 2, "activation": "gelu"}, [LINEAR, BATCH, nn.GELU, LINEAR]),
    ({"depth": 4, "norm": "none"}, [LINEAR, RELU] * 3 + [LINEAR]),
    ({"norm": "layer"}, [LINEAR, LAYER, RELU] * 2 + [LINEAR]),
    ({"depth": 2, "norm": "none", "last_norm": "batch"}, [LINEAR, RELU, LINEAR, BATCH, END]),
    ({"depth": 1, "last_norm": "layer", "bias": True}, [LINEAR, LAYER, END]),
    ({"depth": 1, "last_norm": "plain_batch"}, [LINEAR, BATCH, END]),
]


@pytest.mark.parametrize(("settings", "kinds"), FORMS)
def test_projectors_of_other_forms(settings: dict[str, Any], kinds: list[type[nn.Module]]) -> None:
    network = build("resnet_tiny", channels=1, **settings)
    layers = list(network.projector.children())
    expected = [SmallLinear if kind is LINEAR else kind for kind in kinds]
    assert [type(layer) for layer in layers] == expected
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    assert (linear[-1].bias is not None) == settings.get("bias", False)
    affine = {layer.affine for layer in layers if isinstance(layer, nn.BatchNorm1d)}
    assert affine <= {settings.get("last_norm") != "plain_batch"}
    views = torch.randn(2, 6, 1, 28, 28) * torch.tensor([1.0, 5.0]).view(2, 1, 1, 1, 1)
    embeddings = network(*views)
    for z, x in zip(embeddings, views, strict=True):  # each view has statistics of its own
        torch.testing.assert_close(z, network.projector(network.backbone(x)))


def test_views_of_one_size_that_follow_each_other_share_statistics() -> None:
    network = build("resnet_tiny")
    network.statistics = "size"
    large = torch.randn(3, 4, 3, 32, 32) * torch.tensor([1.0, 5.0, 2.0]).view(3, 1, 1, 1, 1)
    small = torch.randn(2, 4, 3, 16, 16) * torch.tensor([1.0, 5.0]).view(2, 1, 1, 1, 1)
    embeddings = network(large[0], large[1], small[0], small[1], large[2])
    passes = (large[:2].flatten(0, 1), small.flatten(0, 1), large[2])
    alone = [network.projector(network.backbone(x)) for x in passes]
    torch.testing.assert_close(torch.cat(embeddings), torch.cat(alone))


def test_without_a_projector_the_embedding_is_the_representation() -> None:
    network = build("resnet_tiny", depth=0, q=128)
    assert not list(network.projector.parameters())
    x = torch.randn(2, 3, 3, 32, 32)
    for z, view in zip(network(*x), x, strict=True):
        assert torch.equal(z, network.backbone(view))
    with is_refused(r"embedding_dim=24 must be the representation's 128 with .*depth=0"):
        build("resnet_tiny", depth=0)


@pytest.mark.parametrize("backbone", ["resnet_tiny", "resnet18", "resnet50"])
def test_residual_branches_begin_at_zero(backbone: str) -> None:
    blocks = [m for m in build(backbone).modules() if isinstance(m, BasicBlock | Bottleneck)]
    assert len(blocks) == {"resnet_tiny": 3, "resnet18": 8, "resnet50": 16}[backbone]
    for block in blocks:
        last = block.bn3 if isinstance(block, Bottleneck) else block.bn2
        assert not last.weight.any()
        assert block.bn1.weight.all()


def test_a_resnet_as_torchvision_leaves_it_with_the_stem_of_solo_learn() -> None:
    backbone = BACKBONES.build("resnet18", stem="small", stem_padding=2, zero_init_residual=False)
    network, _ = backbone.build(3, 32)
    blocks = [module for module in network.modules() if isinstance(module, BasicBlock)]
    assert all(block.bn2.weight.all() for block in blocks)
    assert isinstance(network, ResNet)
    assert network.conv1(torch.zeros(1, 3, 32, 32)).shape == (1, 64, 34, 34)
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 512)


def weights(network: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in network.parameters()])


@pytest.mark.parametrize("backbone", ["resnet_tiny", "resnet18"])
def test_the_seed_alone_decides_the_weights(backbone: str) -> None:
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    first = weights(build(backbone, seed=3))
    assert torch.equal(torch.random.get_rng_state(), state)  # the global generator is left alone
    torch.manual_seed(6)
    assert torch.equal(weights(build(backbone, seed=3)), first)
    assert not torch.equal(weights(build(backbone, seed=4)), first)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_transformer_that_computes_its_blocks_again_gives_equal_bits(precision: str) -> None:
    found, peaks = [], []
    dropping = ("network=vit_tiny_28", "network.backbone.drop_path_rate=0.5", "precision=fp32")
    for checkpointing in (False, True):
        given = ("embedding_dim=32", f"network.checkpointing={checkpointing}")
        (cell, _) = load_run([*dropping, *given])
        network = build_network(cell, torch.device("cpu"))
        torch.manual_seed(0)
        views = torch.randn(2, 6, 1, 28, 28)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            embeddings = network(*views)
        torch.stack(embeddings).float().square().sum().backward()
        gradients = [parameters.grad for parameters in network.parameters()]
        found.append([*embeddings, *gradients, *network.buffers()])
        peaks.append(predict(cell).peak_bytes)
    assert all(torch.equal(kept, again) for kept, again in zip(*found, strict=True))
    assert peaks[1] < 0.5 * peaks[0]


@pytest.mark.parametrize(
    "backbone", ["network=resnet_tiny", "network.backbone=timm network.backbone.model=resnet10t"]
)
def test_a_network_with_bn_does_not_compute_its_blocks_again(backbone: str) -> None:
    (cell, _) = load_run([*backbone.split(), "network.checkpointing=true"])
    with is_refused(r"network\.checkpointing=true: resnet\w+ is no model of timm without batch"):
        build_network(cell, torch.device("cpu"))


def test_the_small_stem_keeps_the_resolution() -> None:
    sizes: list[int] = []
    for stem in ("small", "imagenet"):
        backbone = build("resnet18", stem=stem).backbone
        assert isinstance(backbone.layer4, nn.Module)
        backbone.layer4.register_forward_hook(lambda *given: sizes.append(given[-1].shape[-1]))
        backbone(torch.randn(2, 3, 32, 32))
    assert sizes == [4, 1]


def test_the_hidden_width_does_not_change_the_backbone() -> None:
    """Methods that are compared at several widths begin from the same backbone."""
    narrow, wide = build("resnet_tiny", hidden_dim=8), build("resnet_tiny", hidden_dim=64)
    assert torch.equal(weights(narrow.backbone), weights(wide.backbone))
