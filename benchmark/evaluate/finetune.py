"""Semi-supervised learning: a copy of the backbone and a linear layer are trained on few labelled images."""

from __future__ import annotations

import copy
import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

from regbench.benchmark.evaluate.features import Backbone, Epochs, Images
from regbench.benchmark.evaluate.linear import correct_answers, decay, initial_weight
from regbench.benchmark.evaluate.state import State
from regbench.benchmark.settings.config import FineTuneConfig


class FineTuned:
    """A copy of a backbone with a linear layer, both to be trained; the backbone itself stays as it is.

    As VICReg's published evaluation: SGD with a learning rate for each of the two, both with a cosine decay per epoch;
    BN in training mode, with the statistics of the batch; the linear layer starts from N(0, 0.01²) and zero bias.
    """

    def __init__(
        self,
        backbone: Backbone,
        num_classes: int,
        config: FineTuneConfig,
        rates: tuple[float, float],
        seed: int,
        device: torch.device,
    ) -> None:
        """Copies the backbone.

        Args:
            backbone: The pretrained one.
            num_classes: Of the linear layer.
            config: Epochs, momentum and weight decay.
            rates: Initial learning rates of backbone and linear layer.
            seed: Of the linear layer's initial weights.
            device: That computes.
        """
        self._config, self._rates, self._device = config, rates, device
        self._backbone = Backbone(copy.deepcopy(backbone.module).requires_grad_(True), backbone.dim)
        self._head = nn.Linear(backbone.dim, num_classes)
        with torch.no_grad():
            self._head.weight.copy_(initial_weight(backbone.dim, num_classes, seed))
            self._head.bias.zero_()
        self.network = nn.Sequential(self._backbone.module, self._head).to(device)
        """Images to logits."""

    def fit(self, epochs: Epochs, state: State) -> None:
        """Trains on the batches of `epochs(e)` for each epoch e; a batch of one image is left out: BN needs two.

        Args:
            epochs: Normalised images (n, c, h, w) and labels (n,) on the device.
            state: Keeps what is trained after each epoch; training goes on from what it holds.
        """
        config = self._config
        modules = (self._backbone.module, self._head)
        groups = [
            {"params": list(module.parameters()), "lr": rate} for module, rate in zip(modules, self._rates, strict=True)
        ]
        optimizer = torch.optim.SGD(groups, momentum=config.momentum, weight_decay=config.weight_decay)
        first = state.data.get("epoch", 0)
        if first:
            self.network.load_state_dict(state.data["network"])
            optimizer.load_state_dict(state.data["optimizer"])
        quiet = not sys.stderr.isatty()
        for epoch in tqdm(
            range(first, config.epochs), "fine-tuning", config.epochs, initial=first, disable=quiet, leave=False
        ):
            for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
                group["lr"] = rate * decay(epoch, config.epochs)
            self.network.train()
            for x_NCHW, y_N in epochs(epoch):
                if len(y_N) == 1:
                    continue
                optimizer.zero_grad()
                F.cross_entropy(self.network(x_NCHW), y_N).backward()
                optimizer.step()
            state.save(
                f"learning rates {self._rates[0]:g} and {self._rates[1]:g}, epoch {epoch + 1} of {config.epochs}",
                last=epoch + 1 == config.epochs,
                epoch=epoch + 1,
                network=self.network.state_dict(),
                optimizer=optimizer.state_dict(),
            )

    @torch.no_grad()
    def accuracy(self, images: Images, split: str, batch_size: int) -> tuple[float, float]:
        """Top-1 and top-5 accuracy on centre crops of a split, in per cent."""
        features, _ = images.features(self._backbone, split, self._config.interpolation, batch_size)
        correct = torch.zeros(1, 2, dtype=torch.int64)
        for x_ND, y_N in zip(features.x_ND.split(batch_size), features.y_N.split(batch_size), strict=True):
            logits_NC = self._head(x_ND.to(self._device))
            correct += correct_answers(logits_NC[None], y_N.to(self._device)).cpu()
        top1, top5 = correct[0].tolist()
        return 100 * top1 / len(features.y_N), 100 * top5 / len(features.y_N)

    def state_dict(self) -> dict[str, Any]:
        """The weights of both."""
        return self.network.state_dict()
