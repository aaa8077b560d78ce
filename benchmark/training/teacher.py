"""The teacher: what the network's predictions are compared with, and how it follows the network.

Shapes: N = images of this rank, C = channels, H, W = pixels, Q = embedding dimension (q).
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from regbench.benchmark.settings.architecture import NetworkConfig
from regbench.benchmark.training.network import SiameseNetwork, rescale_prototypes


class Teacher(nn.Module):
    """Makes targets through which no gradient flows: of the network itself, or of a copy that
    follows it slowly.

    The copy's BN layers normalise by the batch, as in BYOL and MoCo v3. All else is in evaluation
    mode: the copy has neither stochastic depth nor dropout, as in DINO. The state is that of the
    copy and of the transform, and empty without both.

    Attributes:
        transform: Module that turns embeddings into targets and the method into a step's loss;
            None: neither changes.
        network: The copy, without the predictor; None: the targets are the network's own
            embeddings.
    """

    def __init__(
        self, student: SiameseNetwork, config: NetworkConfig, transform: nn.Module | None = None
    ) -> None:
        """Copy the network if the teacher is a moving mean of it.

        Args:
            student: Network on its device, with layers that can be copied: those of several
                processes cannot.
            config: Settings of network and teacher.
            transform: See `Regularizer.target_transform`.
        """
        super().__init__()
        self.transform = transform
        self.network: SiameseNetwork | None = None
        self._momentum = config.momentum
        if config.teacher == "ema":
            # Tensors without data, as in a plan, can be cloned but not copied.
            clones: dict[int, Any] = {id(buffer): buffer.clone() for buffer in student.buffers()}
            for weight in student.parameters():
                clones[id(weight)] = nn.Parameter(weight.detach().clone(), requires_grad=False)
            self.network = copy.deepcopy(student, clones).eval()
            self.network.predictor = None
            for module in self.network.modules():
                # Not by `train`, which would reach what a BN layer of timm holds, such as
                # DropBlock.
                module.training = hasattr(module, "running_mean")
            of_student: dict[str, Tensor] = dict(student.named_parameters())
            # A list, so that the student is no part of this module.
            self._followed = [of_student[name] for name, _ in self.network.named_parameters()]

    def momentum(self, done: float) -> float:
        """Return the share of its weights that the copy keeps, after a share `done` of the training
        (BYOL, Section 3.2).
        """
        return 1 - (1 - self._momentum) * (math.cos(math.pi * done) + 1) / 2

    @torch.no_grad()
    def follow(self, done: float) -> None:
        """Move the copy's weights towards the network's after a share `done` of the training.

        The copy keeps its own buffers.
        """
        if self.network is not None:
            own = tuple(self.network.parameters())
            torch._foreach_lerp_(own, self._followed, 1 - self.momentum(done))
            # A mean of vectors of length 1 is shorter.
            rescale_prototypes(self.network)

    def forward(self, *views_NCHW: Tensor) -> tuple[Tensor, ...]:
        """Return the copy's embeddings (n, q) of each view's images (n, c, h, w)."""
        assert self.network is not None
        views_NQ: tuple[Tensor, ...] = self.network(*views_NCHW)
        return views_NQ
