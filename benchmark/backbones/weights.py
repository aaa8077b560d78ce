"""Backbones that were not trained here: torchvision's, timm's, and files of published weights.

A file is a ResNet's weights in one of the forms that self-supervised methods are released in: the backbone alone
(SFRIK's `…_backbone.pth`, VICReg's `resnet50.pth`, DINO's `…_pretrain.pth`), or a training checkpoint in which the
backbone's names have a prefix ("module.backbone." in SFRIK's and VICReg's "model", "backbone." in DINO's "teacher")
beside projector and head.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import math
import pickle
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regbench.benchmark.backbones.base import Backbone, representation_dim
from regbench.benchmark.evaluate.features import Encoder
from regbench.errors import RegbenchError

log = logging.getLogger("regbench")

# Where a checkpoint keeps the weights; DINO evaluates its teacher.
_CONTAINERS = ("teacher", "state_dict", "model", "model_state_dict", "network")
_HEADS = (
    *("projector", "projection", "projection_head", "expander", "predictor", "prediction_head"),
    *("head", "heads", "fc", "classifier", "prototypes"),
)
_SHOWN = 5


@dataclass(frozen=True)
class Published:
    """A backbone with published weights.

    Attributes:
        backbone: In evaluation mode, on the CPU.
        architecture: Its name for tables.
        sha256: SHA-256 of the file, or of the weights' names and values where a library loaded them.
        mean: Mean of the images that it was trained with, per channel; None: as the data set says.
        std: Standard deviation of these images, likewise.
    """

    backbone: Encoder
    architecture: str
    sha256: str
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


def load_backbone(source: str, network: Backbone, channels: int, image_size: int) -> Published:
    """The backbone that `source` names.

    Args:
        source: "torchvision:NAME@WEIGHTS" (the newest without @WEIGHTS), "timm:NAME", or a file.
        network: The backbone that a file's weights belong to.
        channels: Channels of the images.
        image_size: Side of the images, px.

    Raises:
        RegbenchError: If there is no such model or file, it cannot be had, or does not fit.
    """
    library, colon, name = source.partition(":")
    if colon and library in ("torchvision", "timm"):
        if channels != 3:
            raise RegbenchError(f"{source} takes colour images and the data set has {channels} channel; choose another")
        module, mean, std = _torchvision(source, name) if library == "torchvision" else _timm(source, name, image_size)
        dim = representation_dim(source, module, channels, image_size)
        architecture = name.partition("@")[0]
        return Published(Encoder(module, dim), architecture, _digest(module.state_dict()), mean, std)
    module, dim = network.build(channels, image_size)
    architecture = network.architecture
    path = Path(source)
    _fill(module, _read(path), path, architecture)
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return Published(Encoder(module, dim), architecture, sha256)


def _torchvision(source: str, name: str) -> tuple[nn.Module, tuple[float, ...], tuple[float, ...]]:
    from torchvision import models

    name, _, tag = name.partition("@")
    known = models.list_models(module=models)
    if name not in known:
        raise RegbenchError(f"{source}: torchvision has no classifier {name!r}; it has {', '.join(known)}")
    weights = models.get_model_weights(name)
    tags = [entry.name for entry in weights]
    if tag and tag not in tags:
        raise RegbenchError(f"{source}: torchvision has no weights {tag!r} of {name}; it has {', '.join(tags)}")
    entry = weights[tag] if tag else weights.DEFAULT
    try:
        model = models.get_model(name, weights=entry)
    except (OSError, RuntimeError) as error:
        raise RegbenchError(
            f"{source} cannot be downloaded ({' '.join(str(error).split())}); put {entry.url} into "
            f"{Path(torch.hub.get_dir()) / 'checkpoints'}"
        ) from error
    _behead(source, model)
    preset = entry.transforms()
    return model, tuple(preset.mean), tuple(preset.std)


def _behead(source: str, model: nn.Module) -> None:
    """Take off the classification layer, which is the last linear one."""
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise RegbenchError(f"{source} ends in no linear layer to take off; choose another model")
    parent, _, child = linear[-1].rpartition(".")
    setattr(model.get_submodule(parent), child, nn.Identity())


def _timm(source: str, name: str, image_size: int) -> tuple[nn.Module, tuple[float, ...], tuple[float, ...]]:
    import timm

    def create(**sizes: Any) -> Any:
        return timm.create_model(name, pretrained=True, num_classes=0, **sizes)

    if not timm.is_model_pretrained(name):
        near = ", ".join(timm.list_models(f"*{name.partition('.')[0]}*", pretrained=True)[:_SHOWN])
        raise RegbenchError(f"{source}: timm has no weights of that name; near: {near or 'none'}")
    try:
        try:
            model = create(img_size=image_size)  # timm resamples positional embeddings to it
        except TypeError:  # a network that takes images of any size
            model = create()
    except (OSError, RuntimeError, AssertionError, ValueError) as error:
        raise RegbenchError(
            f"{source} cannot be loaded for images of {image_size} px: {' '.join(str(error).split())[:200]}"
        ) from error
    patch = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    if patch and image_size % patch[0]:
        raise RegbenchError(
            f"{source} cuts images into patches of {patch[0]} px, and {image_size} is no multiple of that; choose "
            "another dataset.image_size"
        )
    return model, tuple(model.pretrained_cfg["mean"]), tuple(model.pretrained_cfg["std"])


def _digest(state: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(state.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class _Ignored:
    """Stands for whatever a checkpoint names that is neither a tensor nor plain data; does nothing."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __setstate__(self, _: object) -> None: ...


def _read(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name, read without running anything that it names.

    Raises:
        RegbenchError: If it is no file of weights, or cannot be read safely.
    """
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except (RuntimeError, ValueError, pickle.UnpicklingError):
        names = []  # not a zip archive: torch.load below tells more
    except OSError as error:
        raise RegbenchError(
            f"--backbone {path}: {error.strerror}; give torchvision:NAME@WEIGHTS, timm:NAME or a file"
        ) from error
    try:
        # Training checkpoints name their options' class, or the optimizer's functions: something inert is put in place.
        allowed: list[Any] = [argparse.Namespace, *((_Ignored, name) for name in names)]
        with torch.serialization.safe_globals(allowed), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a file that is refused anyway
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise RegbenchError(
            f"{path} cannot be read safely as a file of weights ({' '.join(str(error).split())[:120]}); if you trust "
            f"it, convert it: python -c \"import torch; torch.save(torch.load('{path}', weights_only=False)"
            "['state_dict'], 'weights.pth')\" (with the key that it has)"
        ) from error
    for _ in range(2):
        if isinstance(content, dict):
            key = next((key for key in _CONTAINERS if isinstance(content.get(key), dict)), None)
            content = content[key] if key else content
    tensors = {k: v for k, v in content.items() if isinstance(v, Tensor)} if isinstance(content, dict) else {}
    if not tensors:
        holds = f"the keys {', '.join(map(str, content))}" if isinstance(content, dict) else type(content).__name__
        raise RegbenchError(f"{path} holds no weights by name, but {holds}; save a state_dict")
    return tensors


def _fill(module: nn.Module, state: dict[str, Tensor], path: Path, architecture: str) -> None:
    """Load the weights of a backbone from among those of a file.

    Raises:
        RegbenchError: If some are missing, of another shape, or belong neither to the backbone nor to a head.
    """
    wanted = module.state_dict()
    first = next(iter(wanted))
    counts = {
        prefix: sum(prefix + name in state for name in wanted)
        for prefix in (name.removesuffix(first) for name in state if name.endswith(first))
        if not prefix or prefix.endswith(".")
    }
    most = [prefix for prefix, count in counts.items() if count == max(counts.values())]
    if len(most) != 1:
        what = f"several networks ({', '.join(most)})" if most else f"no {architecture}: {_some(list(state))}"
        raise RegbenchError(f"{path} holds {what}; choose network= to fit, or save the backbone's state_dict alone")
    prefix = most[0]
    if (found := state.get(f"{prefix}pos_embed")) is not None and "pos_embed" in wanted:
        state = {**state, f"{prefix}pos_embed": _resampled(found, module, path)}
    missing = [name for name in wanted if prefix + name not in state and not name.endswith("num_batches_tracked")]
    others = [name for name in state if not name.startswith(prefix) or name.removeprefix(prefix) not in wanted]
    heads = [name for name in others if _part(name, prefix) in _HEADS]
    unexpected = [name for name in others if name not in heads]
    wrong = [
        f"{name} {tuple(state[prefix + name].shape)} instead of {tuple(value.shape)}"
        for name, value in wanted.items()
        if prefix + name in state and state[prefix + name].shape != value.shape
    ]
    for what, names in (("has not", missing), ("has besides", unexpected), ("has other shapes:", wrong)):
        if names:
            raise RegbenchError(f"{path} is no {architecture}: it {what} {_some(names)}; choose network= to fit")
    if heads:
        parts = sorted({_part(name, prefix) for name in heads})
        log.info("%s: left out %d tensors of %s", path, len(heads), ", ".join(parts))
    module.load_state_dict({name: state[prefix + name] for name in wanted if prefix + name in state}, strict=False)


def _resampled(found: Tensor, module: Any, path: Path) -> Tensor:
    """Resample a transformer's positional embeddings to the grid of patches of its images, as timm does.

    Those of another width are left as they are: they belong to another transformer.

    Raises:
        RegbenchError: If they are not those of a square grid.
    """
    own: Tensor = module.pos_embed
    if found.ndim != 3 or own.ndim != 3 or found.shape[1] == own.shape[1] or found.shape[2] != own.shape[2]:
        return found
    from timm.layers.pos_embed import resample_abs_pos_embed

    grid = module.patch_embed.grid_size
    tokens = own.shape[1] - math.prod(grid)  # before the patches
    side = math.isqrt(max(0, found.shape[1] - tokens))
    if not side or side**2 + tokens != found.shape[1]:
        raise RegbenchError(
            f"{path}: its {found.shape[1]} positional embeddings are not those of a square grid of patches and "
            f"{tokens} tokens before them, so they cannot be resampled to {grid[0]} x {grid[1]}; choose network= to fit"
        )
    log.info("%s: resampled the positional embeddings of %d x %d patches to %d x %d", path, side, side, *grid)
    resampled: Tensor = resample_abs_pos_embed(found, list(grid), num_prefix_tokens=tokens)
    return resampled


def _part(name: str, prefix: str) -> str:
    """The part of a network that a tensor belongs to."""
    inside = name.removeprefix(prefix) if name.startswith(prefix) else name
    return next(part for part in inside.split(".") if part not in ("module", "_orig_mod"))


def _some(names: list[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
