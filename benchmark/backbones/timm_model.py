"""Models of timm, vision transformers above all."""

from __future__ import annotations

import difflib
import inspect
from dataclasses import field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regbench.benchmark.backbones.base import Backbone, register, representation_dim
from regbench.errors import RegbenchError
from regbench.settings import AtLeastOne, Momentum, settings
from regbench.wording import shown


@register("timm")
@settings
class TimmModel(Backbone):
    """A model of timm with random weights, without its classifier.

    Vision transformers take images of any size that their patches divide: positional embeddings are
    those of the data set's size, interpolated for views of others.

    Attributes:
        model: Name in timm, such as vit_small_patch16_224 or convnext_tiny.
        patch_size: Side of the patches, px; null: the model's.
        drop_path_rate: Rate of stochastic depth (Huang et al., ECCV 2016) in the last block; it
            grows linearly from 0.
        representation: "pooled" (what the model gives its classifier), or of a vision transformer
            the "class_token", or the "mean" over the patches' tokens; both after the last norm.
        last_blocks: Blocks whose tokens, each after the last norm, make up the representation, side
            by side.
        options: Other arguments of `timm.create_model`, such as {depth: 6, embed_dim: 192}.
    """

    model: str = "vit_small_patch16_224"
    patch_size: AtLeastOne | None = None
    drop_path_rate: Momentum = 0.0
    representation: Literal["pooled", "class_token", "mean"] = "pooled"
    last_blocks: AtLeastOne = 1
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    reference = "Wightman, 2019 (timm); Dosovitskiy et al., ICLR 2021 (ViT)"

    def __post_init__(self) -> None:
        """Refuse settings that do not fit each other, and weights of a file: `build` draws them."""
        if "checkpoint_path" in self.options:
            what = "network.backbone.options.checkpoint_path reads weights of a file"
            raise RegbenchError(f"{what}; evaluate them with --backbone")
        if self.last_blocks > 1 and self.representation == "pooled":
            raise RegbenchError(
                f"network.backbone.last_blocks={self.last_blocks} needs "
                "network.backbone.representation=class_token or mean"
            )

    @property
    def architecture(self) -> str:
        """Name in timm, for tables."""
        return self.model

    def build(self, channels: int, image_size: int) -> tuple[nn.Module, int]:
        """Return the network and the width of its representation."""
        module, _ = self._create(channels, image_size)
        gives_blocks = getattr(module, "forward_intermediates", module.forward)
        takes = inspect.signature(gives_blocks).parameters
        if self.representation != "pooled" and "return_prefix_tokens" not in takes:
            raise RegbenchError(
                f"network.backbone.representation={self.representation} needs tokens, and timm "
                f"gives none of {self.model}; use pooled"
            )
        if self.representation == "class_token" and getattr(module, "cls_token", None) is None:
            raise RegbenchError(
                f"{self.model} has no class token; use network.backbone.representation=mean"
            )
        if self.last_blocks > len(getattr(module, "blocks", [])) and self.last_blocks > 1:
            raise RegbenchError(
                f"network.backbone.last_blocks={self.last_blocks}: {self.model} has fewer blocks"
            )
        # A subclass, not a module around the model: the weights keep the names that published
        # files have.
        module.__class__ = type(type(module).__name__, (_Represented, type(module)), {})

        module.representation, module.last_blocks = self.representation, self.last_blocks  # type: ignore[assignment]
        return module, representation_dim(self.model, module, channels, image_size)

    def timm_arguments(self, channels: int, image_size: int) -> dict[str, Any] | None:
        """Return the arguments for the same model with the same representation."""
        if self.last_blocks > 1:
            return None
        model, arguments = self._create(channels, image_size)
        if self.representation == "class_token":
            arguments |= {"global_pool": "token"}
        elif self.representation == "mean":
            # Without a norm of the mean, timm normalises tokens before it is taken, as here.
            norms = {"fc_norm", "use_fc_norm"} & {*inspect.signature(type(model)).parameters}
            if not norms or "fc_norm.weight" in model.state_dict():
                return None
            arguments |= {"global_pool": "avg", **dict.fromkeys(norms, False)}
        return {"model_name": self.model, "num_classes": 0, **arguments}

    def _create(self, channels: int, image_size: int) -> tuple[nn.Module, dict[str, Any]]:
        """Make the model; return it and the arguments that timm took for it."""
        import timm

        if not timm.is_model(self.model):
            near = ", ".join(difflib.get_close_matches(self.model, timm.list_models())) or "none"
            raise RegbenchError(f"network.backbone.model: timm has no {self.model!r}; near: {near}")
        # Many models take neither of the first two, so they are given only if they are set.
        options: dict[str, Any] = {}
        if self.patch_size:
            options["patch_size"] = self.patch_size
        if self.drop_path_rate:
            options["drop_path_rate"] = self.drop_path_rate
        if self.representation != "pooled":
            options["global_pool"] = ""  # the last norm then applies to all tokens
        refusal = ""
        size = {"img_size": image_size}
        # Transformers need the images' size, and some of them take other sizes too.
        for sizes in ({**size, "dynamic_img_size": True}, size, {}):
            arguments = {"in_chans": channels, **options, **sizes, **self.options}
            try:
                model: nn.Module = timm.create_model(
                    self.model, pretrained=False, num_classes=0, **arguments
                )
                return model, arguments
            except (TypeError, ValueError, AssertionError, RuntimeError) as error:
                refusal = " ".join(str(error).split())[:200]
                if not any(name in refusal for name in sizes):  # some models take none of these
                    break
        raise RegbenchError(f"timm cannot make {self.model} with {shown(arguments)}: {refusal}")


class _Represented(nn.Module):
    """Mixin that makes a model of timm return the representation."""

    representation: str
    last_blocks: int

    def forward(self, x_NCHW: Tensor) -> Tensor:
        """Return the representations (n, d) of images (n, c, h, w)."""
        patch = getattr(getattr(self, "patch_embed", None), "patch_size", None)
        if isinstance(patch, tuple) and x_NCHW.shape[-1] % patch[0]:
            raise RegbenchError(
                f"views of {x_NCHW.shape[-1]} px cannot be cut into patches of {patch[0]}; choose "
                "a size that they divide, or network.backbone.patch_size"
            )
        if self.representation == "pooled":
            out: Tensor = super().forward(x_NCHW)
            return out
        is_mean = self.representation == "mean"
        blocks = self.forward_intermediates(  # type: ignore[operator]
            x_NCHW,
            self.last_blocks,
            return_prefix_tokens=not is_mean,
            norm=True,
            output_fmt="NLC",
            intermediates_only=True,
        )
        # With prefix tokens, timm gives pairs of the patches and the tokens before them.
        parts = [block.mean(dim=1) if is_mean else block[1][:, 0] for block in blocks]
        return torch.cat(parts, dim=1)
