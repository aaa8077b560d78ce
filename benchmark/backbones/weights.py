"""Backbones that were not trained here: torchvision's, timm's, and files of published weights.

A file holds weights in one of the forms that self-supervised methods are released in: the
backbone alone (SFRIK's `…_backbone.pth`, VICReg's `resnet50.pth`, DINO's `…_pretrain.pth`), or a
training checkpoint in which the backbone's names have a prefix ("module.backbone." in SFRIK's and
VICReg's "model", "backbone." in DINO's "teacher") beside projector and head.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import logging
import math
import pickle
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regbench.benchmark.backbones.base import Backbone, representation_dim
from regbench.benchmark.evaluate.features import Encoder
from regbench.errors import RegbenchError
from regbench.files import file_sha256, read_json
from regbench.text import few

log = logging.getLogger("regbench")

# Keys of a checkpoint that may hold the weights. The teacher comes first, since DINO evaluates it.
_CONTAINERS = ("teacher", "state_dict", "model", "model_state_dict", "network")
_HEADS = (
    *("projector", "projection", "projection_head", "expander", "predictor", "prediction_head"),
    *("head", "heads", "fc", "classifier", "prototypes"),
)
# A refusal is one line, and timm knows hundreds of names.
_SHOWN = 5

# A model, and mean and standard deviation of the images that it was trained with.
Coloured = tuple[nn.Module, tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True)
class PublishedWeights:
    """A backbone with published weights.

    Attributes:
        backbone: Backbone in evaluation mode, on the CPU.
        architecture: Name for tables.
        sha256: SHA-256 of the file, or of the weights' names and values where a library loaded
            them.
        mean: Mean of the images that it was trained with, per channel; None: as the data set says.
        std: Standard deviation of these images, likewise.
    """

    backbone: Encoder
    architecture: str
    sha256: str
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


def load_backbone(
    source: str, network: Backbone, channels: int, image_size: int
) -> PublishedWeights:
    """Load the backbone that `source` names; refuse one that cannot be had or does not fit.

    Args:
        source: "torchvision:NAME@WEIGHTS" (the newest without @WEIGHTS), "timm:NAME", "timm"
            (timm's weights of `network`), or a file.
        network: The backbone that a file's weights belong to.
        channels: Channels of the images.
        image_size: Side of the images, px.
    """
    library, colon, name = source.partition(":")
    if colon and library in ("torchvision", "timm"):
        if channels != 3:
            raise RegbenchError(
                f"{source} takes colour images and the data set has {channels} channel(s)"
            )
        if library == "torchvision":
            module, mean, std = _torchvision(source, name)
        else:
            module, mean, std = _timm(source, name, image_size)
        dim = representation_dim(source, module, channels, image_size)
        sha256 = _digest(module.state_dict())
        return PublishedWeights(Encoder(module, dim), name.partition("@")[0], sha256, mean, std)
    with torch.random.fork_rng(devices=[]):
        module, dim = network.build(channels, image_size)
    colours: dict[str, Any] = {}
    if source == "timm":
        state, colours = _own_of_timm(network, channels, image_size)
        sha256 = _digest(state)
    else:
        path = Path(source)
        state, sha256 = _read(path), file_sha256(path)
        card = path.with_suffix(".json")
        if path.suffix == ".safetensors" and card.exists():  # of `regbench export`
            stated = read_json(card, dict, "remove it")
            # A card of other weights does not apply to these.
            if stated.get("sha256") == sha256 and isinstance(stated.get("input"), dict):
                colours = stated["input"]
    fill(module, state, source, network.architecture)
    found = []
    for name in ("mean", "std"):
        values = colours.get(name)
        if values and len(values) != channels:
            values = [sum(values) / len(values)] * channels
        found.append(values and tuple(values))
    return PublishedWeights(Encoder(module, dim), network.architecture, sha256, *found)


def _own_of_timm(
    network: Backbone, channels: int, image_size: int
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the weights that timm has of a backbone, and the colours that they expect."""
    import timm

    arguments = network.timm_arguments(channels, image_size)
    if arguments is None or not timm.is_model_pretrained(arguments["model_name"]):
        what = f"timm has no weights of {network.architecture}"
        raise RegbenchError(f"{what}; give a file, or choose another network=")
    try:
        model: Any = timm.create_model(**arguments, pretrained=True)
    except (OSError, RuntimeError) as error:
        what = f"timm's weights of {network.architecture} cannot be loaded"
        raise RegbenchError(f"{what} ({_one_line(error)[:200]}); give a file") from error
    return model.state_dict(), model.pretrained_cfg


def _torchvision(source: str, name: str) -> Coloured:
    from torchvision import models

    name, _, tag = name.partition("@")
    known = models.list_models(module=models)
    if name not in known:
        raise RegbenchError(
            f"{source}: torchvision has no classifier {name!r}; it has {', '.join(known)}"
        )
    weights = models.get_model_weights(name)
    tags = [entry.name for entry in weights]
    if tag and tag not in tags:
        raise RegbenchError(
            f"{source}: torchvision has no weights {tag!r} of {name}; it has {', '.join(tags)}"
        )
    entry = weights[tag] if tag else weights.DEFAULT
    try:
        model = models.get_model(name, weights=entry)
    except (OSError, RuntimeError) as error:
        raise RegbenchError(
            f"{source} cannot be downloaded ({_one_line(error)}); put {entry.url} into "
            f"{Path(torch.hub.get_dir()) / 'checkpoints'}"
        ) from error
    # The classification layer, which is the last linear one, is taken off.
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise RegbenchError(f"{source} ends in no linear layer to take off; choose another model")
    model.set_submodule(linear[-1], nn.Identity())
    preset = entry.transforms()
    return model, tuple(preset.mean), tuple(preset.std)


def _timm(source: str, name: str, image_size: int) -> Coloured:
    import timm

    def create(**sizes: Any) -> Any:
        return timm.create_model(name, pretrained=True, num_classes=0, **sizes)

    if not timm.is_model_pretrained(name):
        family = name.partition(".")[0]
        near = ", ".join(timm.list_models(f"*{family}*", pretrained=True)[:_SHOWN])
        raise RegbenchError(f"{source}: timm has no weights of that name; near: {near or 'none'}")
    try:
        try:
            model = create(img_size=image_size)  # timm resamples positional embeddings to it
        except TypeError:  # a network that takes images of any size
            model = create()
    except (OSError, RuntimeError, AssertionError, ValueError) as error:
        raise RegbenchError(
            f"{source} cannot be loaded for images of {image_size} px: {_one_line(error)[:200]}"
        ) from error
    patch = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    if isinstance(patch, tuple) and image_size % patch[0]:
        raise RegbenchError(
            f"{source} cuts images into patches of {patch[0]} px, and {image_size} is no multiple "
            "of that; choose another dataset.image_size"
        )
    return model, tuple(model.pretrained_cfg["mean"]), tuple(model.pretrained_cfg["std"])


def _digest(state: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(state.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class _Ignored:
    """Inert stand-in for whatever a checkpoint names that is neither a tensor nor plain data."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __setstate__(self, _: object) -> None: ...


def _read(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file by name, without running anything that it names."""
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            return load(path.read_bytes())
        except (OSError, SafetensorError) as error:
            why = getattr(error, "strerror", None) or _one_line(error)
            raise RegbenchError(f"{path} cannot be read ({why}); give another file") from error
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except (RuntimeError, ValueError, pickle.UnpicklingError):
        names = []  # the file is no zip archive, and torch.load below says more
    except OSError as error:
        remedy = "give torchvision:NAME@WEIGHTS, timm:NAME or a file"
        raise RegbenchError(f"{path}: {error.strerror}; {remedy}") from error
    try:
        # Training checkpoints may name their options' class or the optimizer's functions; an inert
        # class takes their place.
        allowed: list[Any] = [argparse.Namespace, *((_Ignored, name) for name in names)]
        with torch.serialization.safe_globals(allowed), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of a file that is refused below anyway
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise RegbenchError(
            f"{path} cannot be read safely as a file of weights ({_one_line(error)[:120]}); if you "
            f"trust it, convert it: python -c \"import torch; torch.save(torch.load('{path}', "
            "weights_only=False)['state_dict'], 'weights.pth')\" (with the key that it has)"
        ) from error
    # Some keep a container in a container.
    inner = _contained(_contained(content))
    if not isinstance(inner, dict):
        raise RegbenchError(
            f"{path} holds no weights by name, but {type(inner).__name__}; save a state_dict"
        )
    tensors = {name: value for name, value in inner.items() if isinstance(value, Tensor)}
    if not tensors:
        keys = ", ".join(map(str, inner))
        raise RegbenchError(
            f"{path} holds no weights by name, but the keys {keys}; save a state_dict"
        )
    return tensors


def _contained(content: Any) -> Any:
    """Return what a checkpoint keeps the weights in, or the content itself."""
    if isinstance(content, dict):
        for key in _CONTAINERS:
            if isinstance(content.get(key), dict):
                return content[key]
    return content


def fill(module: nn.Module, state: dict[str, Tensor], source: str, architecture: str) -> None:
    """Load the weights of a backbone from those of a file.

    Apart from them, the file may only hold weights of heads. For grey images, kernels of colours
    are summed.
    """
    wanted = module.state_dict()
    prefix = _prefix(wanted, state, source, architecture)
    position = state.get(f"{prefix}pos_embed")
    if position is not None and "pos_embed" in wanted:
        state = {**state, f"{prefix}pos_embed": _resampled(position, module)}
    missing, wrong, own = [], [], {}
    for name, value in wanted.items():
        found = state.get(prefix + name)
        if found is not None:
            if value.ndim == 4 and value.shape[1] == 1 and found.shape[1:2] == (3,):
                found = found.sum(dim=1, keepdim=True)
            own[name] = found
            if found.shape != value.shape:
                wrong.append(f"{name} {tuple(found.shape)} instead of {tuple(value.shape)}")
        elif not name.endswith("num_batches_tracked"):  # old files lack it, and it decides nothing
            missing.append(name)
    of_backbone = {prefix + name for name in wanted}
    others = [name for name in state if name not in of_backbone]
    heads = [name for name in others if _part(name, prefix) in _HEADS]
    unexpected = [name for name in others if _part(name, prefix) not in _HEADS]
    faults = {"has not": missing, "has besides": unexpected, "has other shapes:": wrong}
    for what, names in faults.items():
        if names:
            raise RegbenchError(
                f"{source} is no {architecture}: it {what} {few(names)}; choose network= to fit"
            )
    if heads:
        parts = sorted({_part(name, prefix) for name in heads})
        log.info("%s: left out %d tensors of %s", source, len(heads), ", ".join(parts))
    module.load_state_dict(own, strict=False)


def _prefix(
    wanted: Mapping[str, Any], state: Mapping[str, Any], source: str, architecture: str
) -> str:
    """Find the prefix of the backbone's names: the one under which the file has most of them.

    Refuse the file if two prefixes are equally good.
    """
    first = next(iter(wanted))
    counts = {}
    for name in state:
        prefix = name.removesuffix(first)
        if name.endswith(first) and (not prefix or prefix.endswith(".")):
            counts[prefix] = sum(prefix + each in state for each in wanted)
    best = max(counts.values(), default=0)
    most = [prefix for prefix, count in counts.items() if count == best]
    if 2 * best < len(wanted):  # names of parts of another network
        most = []
    if len(most) != 1:
        what = f"no {architecture}: {few(list(state))}"
        if most:
            what = f"several networks ({', '.join(most)})"
        raise RegbenchError(
            f"{source} holds {what}; choose network= to fit, or save the backbone's state_dict "
            "alone"
        )
    return most[0]


def _resampled(found: Tensor, module: Any) -> Tensor:
    """Resample a transformer's positional embeddings to the grid of patches of its images, as
    timm does.
    """
    own: Tensor = module.pos_embed
    if found.ndim != 3 or found.shape[1] == own.shape[1] or found.shape[2] != own.shape[2]:
        return found
    from timm.layers.pos_embed import resample_abs_pos_embed

    grid = module.patch_embed.grid_size
    tokens = own.shape[1] - math.prod(grid)  # those before the patches, such as the class token
    # Tokens that are no square grid stay as they are, and `fill` refuses their shape.
    with contextlib.suppress(RuntimeError):
        found = resample_abs_pos_embed(found, list(grid), num_prefix_tokens=tokens)
        log.info("resampled positional embeddings to %d x %d patches", *grid)
    return found


def _part(name: str, prefix: str) -> str:
    """Return the part of a network that a tensor belongs to."""
    parts = name.removeprefix(prefix).split(".")
    # DataParallel and torch.compile put these before the names.
    return next(part for part in parts if part not in ("module", "_orig_mod"))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
