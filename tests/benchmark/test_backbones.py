"""Published weights: the forms they come in, what is left out and what is refused.

Models of timm to train.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import logging
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor, nn
from torchvision.models import resnet18

from regbench.benchmark.backbones.base import BACKBONES
from regbench.benchmark.backbones.weights import PublishedWeights, load_backbone
from tests.refusals import is_refused

TINY, RESNET18 = BACKBONES.build("resnet_tiny"), BACKBONES.build("resnet18")
IMAGES = torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(0))
Weights = dict[str, Tensor]


def shaken(network: nn.Module) -> nn.Module:
    """A network with statistics and scales of its own, as after training, in evaluation mode."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                for values in (module.running_mean, module.running_var, module.weight):
                    assert values is not None
                    values += torch.rand(values.shape, generator=generator)
    return network.eval()


@pytest.fixture(scope="module")
def model() -> nn.Module:
    """The network that the files hold."""
    return shaken(TINY.build(3, 24)[0])


@pytest.fixture(scope="module")
def model18() -> nn.Module:
    """torchvision's ResNet-18 without the classifier."""
    network = shaken(resnet18(weights=None))
    network.fc = nn.Identity()
    return network


def load(path: Path) -> PublishedWeights:
    """The weights of a file for the tiny network."""
    return load_backbone(str(path), TINY, 3, 24)


def assert_same(published: PublishedWeights, network: nn.Module) -> None:
    found = published.backbone.represent(IMAGES)
    torch.testing.assert_close(found, network(IMAGES), rtol=1e-5, atol=1e-5)


def prefixed(state: Weights, prefix: str) -> Weights:
    return {prefix + name: value for name, value in state.items()}


def head(prefix: str) -> Weights:
    return {f"{prefix}0.weight": torch.zeros(4, 128), f"{prefix}0.bias": torch.zeros(4)}


def some_filter(p: Tensor) -> bool:
    return p.ndim == 1


# What each project saves, by the names in its code.
FORMS: dict[str, Callable[[Weights], Any]] = {
    "SFRIK, VICReg: backbone": lambda w: w,
    "SFRIK, VICReg: training": lambda w: {
        "epoch": 200,
        "model": prefixed(w, "module.backbone.") | head("module.projector."),
        # LARS keeps functions with its groups.
        "optimizer": {"param_groups": [{"lr": 0.1, "weight_decay_filter": some_filter}]},
    },
    "DINO: training": lambda w: {
        "student": prefixed({k: v + 1 for k, v in w.items()}, "module.backbone.")
        | head("module.head.mlp."),
        "teacher": prefixed(w, "backbone.") | head("head.mlp."),
        "args": argparse.Namespace(arch="resnet50", lr=0.1),
    },
    "supervised: with classifier": lambda w: (
        w | {"fc.weight": torch.zeros(10, 128), "fc.bias": torch.zeros(10)}
    ),
    "encoder and predictor": lambda w: {
        "state_dict": prefixed(w | head("fc."), "module.encoder.") | head("module.predictor.")
    },
    "compiled": lambda w: prefixed(w, "_orig_mod.backbone.") | head("_orig_mod.projector."),
    "ours": lambda w: {"network": prefixed(w, "backbone.") | head("projector."), "progress": {}},
    "no counters": lambda w: {k: v for k, v in w.items() if not k.endswith("num_batches_tracked")},
}


@pytest.mark.parametrize("form", FORMS)
def test_weights_are_found_in_every_form(
    model: nn.Module, form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "weights.pth"
    torch.save(FORMS[form](model.state_dict()), path)
    with caplog.at_level(logging.INFO, "regbench"):
        published = load(path)
    assert published.backbone.dim == 128
    assert published.architecture == "resnet_tiny"
    assert published.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert_same(published, model)
    heads = {"projector", "head", "fc", "predictor"} & set(caplog.text.replace(",", " ").split())
    expected = dict.fromkeys(("SFRIK, VICReg: training", "compiled", "ours"), "projector")
    expected |= {"DINO: training": "head", "supervised: with classifier": "fc"}
    expected["encoder and predictor"] = "predictor fc"
    assert heads == {*expected.get(form, "").split()}


def test_the_names_of_a_resnet_are_torchvisions(model18: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    torch.save(FORMS["DINO: training"](model18.state_dict()), path)
    assert_same(load_backbone(str(path), RESNET18, 3, 24), model18)


class Trap:
    """What a malicious file would hold."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("import sys; sys.trapped = True",)


def test_nothing_in_a_file_is_run(model: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    torch.save({"model": model.state_dict(), "trap": Trap()}, path)
    assert_same(load(path), model)
    assert not hasattr(sys, "trapped")


def test_an_old_file_is_read_unless_it_would_have_to_run(tmp_path: Path, model: nn.Module) -> None:
    """Of before torch 1.6: no zip archive, so what it names cannot be listed beforehand."""
    path = tmp_path / "old.pth"
    torch.save(model.state_dict(), path, _use_new_zipfile_serialization=False)
    assert_same(load(path), model)
    content = {"state_dict": model.state_dict(), "filter": some_filter}
    torch.save(content, path, _use_new_zipfile_serialization=False)
    with is_refused(r"cannot be read safely.*convert it.*weights_only=False"):
        load(path)


def without(weights: Weights, part: str) -> Weights:
    return {name: value for name, value in weights.items() if not name.startswith(part)}


GREY_FILTERS = {"0.weight": torch.zeros(32, 1, 3, 3)}
UNFIT: dict[str, Callable[[Weights], Any]] = {
    r"no resnet_tiny: it has not 4\.conv2\.weight; choose network=": lambda w: without(
        w, "4.conv2."
    ),
    r"it has not 4\.conv1\.weight, .* and \d+ more": lambda w: without(w, "4."),
    r"it has besides layer5\.weight": lambda w: w | {"layer5.weight": torch.zeros(3)},
    r"shapes: 0\.weight \(32, 1, 3, 3\) instead of \(32, 3,": lambda w: w | GREY_FILTERS,
    r"several networks \(a\., b\.\)": lambda w: prefixed(w, "a.") | prefixed(w, "b."),
    "holds no resnet_tiny: weight": lambda w: {"model": {"weight": torch.zeros(3)}},
    "holds no weights by name, but the keys epoch, best": lambda w: {"epoch": 3, "best": 0.5},
    "holds no weights by name, but list": lambda w: [torch.zeros(3)],
}


@pytest.mark.parametrize("message", UNFIT)
def test_weights_that_do_not_fit_are_refused_with_their_names(
    model: nn.Module, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "weights.pth"
    torch.save(UNFIT[message](model.state_dict()), path)
    with is_refused(message):
        load(path)


@pytest.mark.parametrize("content", [b"", b"not weights", pickle.dumps({"a": 1})])
def test_a_file_that_holds_no_weights_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "weights.pth").write_bytes(content)
    with is_refused(r"weights\.pth"):
        load(tmp_path / "weights.pth")
    with is_refused(r"nowhere\.pth: No such file.*torchvision:NAME@WEIGHTS, timm:NAME"):
        load(Path("nowhere.pth"))


# ------------------------------------------------------------------ libraries


@pytest.fixture
def hub(model18: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's folder of downloads with ResNet-18's file in it, so that nothing is fetched."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    classifier = {"fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}
    torch.save(model18.state_dict() | classifier, folder / "resnet18-f37072fd.pth")


@pytest.mark.usefixtures("hub")
def test_a_model_of_torchvision(model18: nn.Module) -> None:
    published = load_backbone("torchvision:resnet18@IMAGENET1K_V1", TINY, 3, 24)
    torch.testing.assert_close(published.backbone.represent(IMAGES), model18(IMAGES))
    assert (published.architecture, published.backbone.dim) == ("resnet18", 512)
    assert (published.mean, published.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.mark.usefixtures("hub")
def test_the_digest_of_a_librarys_weights_is_of_their_values(tmp_path: Path) -> None:
    first = load_backbone("torchvision:resnet18@IMAGENET1K_V1", TINY, 3, 24).sha256
    assert load_backbone("torchvision:resnet18", TINY, 3, 24).sha256 == first  # its newest
    path = tmp_path / "hub" / "checkpoints" / "resnet18-f37072fd.pth"
    state = torch.load(path)
    state["layer4.1.bn2.bias"][7] += 1e-3
    torch.save(state, path)
    assert load_backbone("torchvision:resnet18", TINY, 3, 24).sha256 != first


@pytest.mark.parametrize(
    ("source", "channels", "message"),
    [
        ("resnet19", 3, "no classifier 'resnet19'; it has .*resnet18"),
        ("resnet18@V9", 3, "no weights 'V9' of resnet18; it has IMAGENET1K_V1"),
        ("resnet18", 1, "takes colour images and the data set has 1 channel"),
    ],
)
def test_what_torchvision_has_not_is_refused(source: str, channels: int, message: str) -> None:
    with is_refused(message):
        load_backbone(f"torchvision:{source}", TINY, channels, 40)


def test_a_download_that_fails_says_where_to_put_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("torch.hub.download_url_to_file", fail)
    with is_refused(r"no route to host\); put https://\S+resnet18\S+\.pth into \S+checkpoints"):
        load_backbone("torchvision:resnet18", TINY, 3, 24)


def test_a_model_of_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    import timm

    create, models = timm.create_model, []

    def untrained(name: str, *, pretrained: bool, **options: Any) -> nn.Module:
        assert pretrained
        models.append(create(name, pretrained=False, **options))
        return models[-1]

    monkeypatch.setattr(timm, "create_model", untrained)
    vit = "timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    published = load_backbone(vit, TINY, 3, 224)
    x = torch.randn(1, 3, 224, 224)
    assert published.backbone.dim == 192
    torch.testing.assert_close(published.backbone.represent(x), models[0].eval()(x))
    assert published.mean == (0.5, 0.5, 0.5)
    for source, reason in (
        (vit, "cuts images into patches of 16 px, and 24 is no multiple of that"),
        ("timm:resnet18.nothing", r"timm has no weights of that name; near: .*resnet18"),
    ):
        with is_refused(reason):
            load_backbone(source, TINY, 3, 24)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224.augreg_in21k_ft_in1k", "resnet10t.c3_in1k"])
def test_a_model_of_timm_with_images_of_another_size(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """timm resamples the positions of a transformer when it loads them.

    A file stands for the download.
    """
    import timm

    create, size = timm.create_model, 64
    model: Any = create(name.partition(".")[0], pretrained=False)
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    from_file = {"file": str(tmp_path / "weights.pth")}

    def of_file(name: str, **options: Any) -> nn.Module:
        return create(name, pretrained_cfg_overlay=from_file, **options)

    monkeypatch.setattr(timm, "create_model", of_file)
    x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(5))
    found = load_backbone(f"timm:{name}", TINY, 3, size).backbone.represent(x)
    model.reset_classifier(0)
    if "vit" in name:
        model.set_input_size(img_size=size)
    torch.testing.assert_close(found, model.eval()(x).detach())


# ------------------------------------------------------------------ models of timm


VIT: dict[str, Any] = {"patch_size": 4, "options": {"depth": 2, "embed_dim": 24, "num_heads": 2}}
GREY = torch.randn(3, 1, 28, 28, generator=torch.Generator().manual_seed(1))


def vit(**settings: Any) -> tuple[Any, int]:
    """A transformer of two blocks for grey images of 28 px, in evaluation mode, and the width
    of its representation.
    """
    torch.manual_seed(0)
    module, dim = BACKBONES.build("timm", **{**VIT, **settings}).build(1, 28)
    return module.eval(), dim


def of_timm(name: str = "vit_small_patch16_224", **options: Any) -> nn.Module:
    """What timm itself makes of it."""
    torch.manual_seed(0)
    import timm

    model: nn.Module = timm.create_model(name, num_classes=0, **options)
    return model.eval()


OF_VIT: dict[str, Any] = {"patch_size": 4, "in_chans": 1, "img_size": 28, **VIT["options"]}


def class_tokens(model: Any, x: Tensor, positions_NLC: Tensor) -> list[Tensor]:
    """The class token after each block, normalised."""
    class_token = model.cls_token.expand(len(x), -1, -1)
    tokens = torch.cat([class_token, model.patch_embed(x)], dim=1) + positions_NLC
    found = []
    for block in model.blocks:
        tokens = block(tokens)
        found.append(model.norm(tokens)[:, 0])
    return found


def test_the_representation_of_a_transformer() -> None:
    model: Any = of_timm(**OF_VIT)
    tokens = class_tokens(model, GREY, model.pos_embed)
    patches = model.forward_features(GREY)[:, 1:]
    representations: tuple[tuple[dict[str, Any], Tensor], ...] = (
        ({}, model(GREY)),
        ({"representation": "class_token"}, tokens[-1]),
        ({"representation": "mean"}, patches.mean(dim=1)),
        ({"representation": "class_token", "last_blocks": 2}, torch.cat(tokens, dim=1)),
    )
    for settings, expected in representations:
        module, dim = vit(**settings)
        assert module.state_dict().keys() == model.state_dict().keys()
        out = module(GREY)
        assert out.shape == (3, dim)
        torch.testing.assert_close(out, expected)


@pytest.mark.parametrize(
    "settings", [{}, {"options": VIT["options"] | {"class_token": False, "global_pool": "avg"}}]
)
def test_published_positions_are_resampled_to_the_images(
    settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Weights for 28 px (7 x 7 patches), images of 20 px (5 x 5), against what the network of
    28 px makes of them.
    """
    module, _ = vit(**settings)
    with torch.no_grad():
        module.pos_embed *= 50  # so that they matter beside the patches
    torch.save({"teacher": prefixed(module.state_dict(), "backbone.")}, tmp_path / "weights.pth")
    network = BACKBONES.build("timm", **{**VIT, **settings})
    small = GREY[:, :, :20, :20]
    with caplog.at_level(logging.INFO, "regbench"):
        published = load_backbone(str(tmp_path / "weights.pth"), network, 1, 20)
    torch.testing.assert_close(published.backbone.represent(small), module(small).detach())
    assert published.architecture == "vit_small_patch16_224"
    assert "resampled positional embeddings to 5 x 5 patches" in caplog.text


def test_positions_of_no_square_grid_are_refused(tmp_path: Path) -> None:
    module, _ = vit()
    path, network = tmp_path / "weights.pth", BACKBONES.build("timm", **VIT)
    for length, width in ((48, 24), (50, 32)):
        torch.save(module.state_dict() | {"pos_embed": torch.zeros(1, length, width)}, path)
        shapes = rf"pos_embed \(1, {length}, {width}\) instead of \(1, 26, 24\)"
        with is_refused(f"other shapes: {shapes}"):
            load_backbone(str(path), network, 1, 20)


def test_images_of_another_size_have_interpolated_positions() -> None:
    module, _ = vit(representation="class_token")
    model: Any = of_timm(**OF_VIT | {"img_size": (12, 20)})
    with torch.no_grad():
        module.pos_embed *= 50  # so that they matter beside the patches
    model.load_state_dict(without(module.state_dict(), "pos_embed"), strict=False)
    grid_NCHW = module.pos_embed[:, 1:].reshape(1, 7, 7, 24).permute(0, 3, 1, 2)
    grid_NCHW = F.interpolate(grid_NCHW, (3, 5), mode="bicubic", antialias=True)
    positions_NLC = torch.cat([module.pos_embed[:, :1], grid_NCHW.flatten(2).mT], dim=1)
    small = GREY[:, :, :12, :20]
    expected = class_tokens(model, small, positions_NLC)[-1]
    torch.testing.assert_close(module(small), expected)
    assert not torch.allclose(class_tokens(model, small, model.pos_embed)[-1], expected, atol=0.1)
    with is_refused("views of 10 px cannot be cut into patches of 4; choose a size"):
        module(GREY[:, :, :10, :10])


def test_a_copy_of_a_transformer_has_weights_of_its_own() -> None:
    """Fine-tuning trains a copy."""
    module, _ = vit(representation="mean")
    expected = module(GREY)
    twin = copy.deepcopy(module)
    with torch.no_grad():
        twin.norm.bias += 1
    torch.testing.assert_close(twin(GREY), expected + 1)
    assert torch.equal(module(GREY), expected)


def test_other_models_of_timm_give_what_is_pooled() -> None:
    torch.manual_seed(0)
    module, dim = BACKBONES.build("timm", model="convnext_atto", drop_path_rate=0.2).build(1, 64)
    x = torch.randn(2, 1, 64, 64)
    torch.testing.assert_close(module.eval()(x), of_timm("convnext_atto", in_chans=1)(x))
    assert dim == 320


def test_a_model_whose_patches_are_of_convolutions_takes_views_of_any_size() -> None:
    options = {"depth": 1, "embed_dim": 16, "num_heads": 2}
    module, dim = BACKBONES.build("timm", model="xcit_nano_12_p8_224", options=options).build(1, 24)
    assert module(GREY).shape == (3, dim) == (3, 16)


@pytest.mark.parametrize(
    ("model", "in_timm"),
    [
        ("beit_base_patch16_224", True),
        ("vit_small_patch16_dinov3", True),
        ("vit_relpos_small_patch16_224", False),  # which normalises the mean
    ],
)
def test_a_card_says_what_timm_makes_the_same_of(model: str, in_timm: bool) -> None:
    import timm

    options = {"depth": 1, "embed_dim": 24, "num_heads": 2}
    backbone = BACKBONES.build("timm", model=model, representation="mean", options=options)
    module, _ = backbone.build(3, 32)
    arguments = backbone.timm_arguments(3, 32)
    assert (arguments is not None) == in_timm
    if arguments is not None:
        twin = timm.create_model(**arguments)
        twin.load_state_dict(module.state_dict())
        x = torch.randn(2, 3, 32, 32)
        torch.testing.assert_close(twin.eval()(x), module.eval()(x))


TIMM_REFUSALS = yaml.safe_load(Path(__file__).with_name("timm_refusals.yaml").read_text())


@pytest.mark.parametrize(("settings", "message"), TIMM_REFUSALS)
def test_what_timm_cannot_make_is_refused(settings: dict[str, Any], message: str) -> None:
    with is_refused(message):
        vit(**settings)
