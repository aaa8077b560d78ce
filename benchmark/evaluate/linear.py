"""Linear probing: linear layers on a frozen backbone, one for each learning rate, trained side by side.

Shapes: N = images, D = representation, C = classes, H = heads (learning rates).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from tqdm import tqdm

from regbench.benchmark.config import ProbeConfig
from regbench.benchmark.evaluate.features import Batches, Features

# Images whose logits are computed at a time.
_BLOCK = 4096


class LinearHeads:
    """Linear classifiers over the same features, one for each learning rate, trained side by side.

    Each is what SGD with that learning rate alone would give: the heads share the features and nothing else.
    """

    def __init__(self, dim: int, num_classes: int, config: ProbeConfig, seed: int, device: torch.device) -> None:
        """All heads start from the same weights, drawn N(0, 0.01²) with zero bias.

        Args:
            dim: D, width of the features.
            num_classes: C.
            config: Learning rates, epochs, momentum and weight decay.
            seed: Of the initial weights.
            device: Of the features.
        """
        generator = torch.Generator().manual_seed(seed)
        weight_DC = 0.01 * torch.randn(dim, num_classes, generator=generator)
        heads = len(config.learning_rates)
        self._config = config
        self._weight_HDC = weight_DC.repeat(heads, 1, 1).to(device)
        self._bias_HC = torch.zeros(heads, 1, num_classes, device=device)
        self._rates_H = torch.tensor(config.learning_rates, device=device).view(-1, 1, 1)

    def fit(self, epochs: Callable[[int], Batches]) -> None:
        """Trains on `epochs(e)` for each epoch e, the rates decaying by a cosine per epoch."""
        config = self._config
        parameters = (self._weight_HDC, self._bias_HC)
        momenta = tuple(torch.zeros_like(p) for p in parameters)
        for epoch in tqdm(range(config.epochs), desc="linear probing", disable=not sys.stderr.isatty(), leave=False):
            rates = self._rates_H * (0.5 * (1 + math.cos(math.pi * epoch / config.epochs)))
            for x_ND, y_N in epochs(epoch):
                # The gradient of the mean cross-entropy is (softmax − one-hot)/n; heads do not mix.
                probability_HNC = self._logits(x_ND).softmax(dim=2)
                probability_HNC[:, torch.arange(len(y_N), device=y_N.device), y_N] -= 1
                gradients = (x_ND.T @ probability_HNC / len(y_N), probability_HNC.mean(dim=1, keepdim=True))
                for p, gradient, momentum in zip(parameters, gradients, momenta, strict=True):
                    momentum.mul_(config.momentum).add_(gradient + config.weight_decay * p)
                    p.sub_(rates * momentum)

    def _logits(self, x_ND: Tensor) -> Tensor:
        return x_ND @ self._weight_HDC + self._bias_HC

    def accuracies(self, features: Features, block: int = _BLOCK) -> list[tuple[float, float]]:
        """Top-1 and top-5 accuracy of each head, in per cent."""
        return _accuracies(self._weight_HDC, self._bias_HC, features, block)


def _accuracies(weight_HDC: Tensor, bias_HC: Tensor, features: Features, block: int) -> list[tuple[float, float]]:
    correct1, correct5 = torch.zeros(len(weight_HDC)), torch.zeros(len(weight_HDC))
    for x_ND, y_N in zip(features.x_ND.split(block), features.y_N.split(block), strict=True):
        logits_HNC = (x_ND @ weight_HDC + bias_HC).nan_to_num(-torch.inf)
        hits = logits_HNC.topk(min(5, logits_HNC.shape[2]), dim=2).indices == y_N[None, :, None]
        correct1 += hits[:, :, 0].sum(dim=1).cpu()
        correct5 += hits.sum(dim=(1, 2)).cpu()
    total = len(features.y_N)
    return [(100 * float(a) / total, 100 * float(b) / total) for a, b in zip(correct1, correct5, strict=True)]


def shuffled(features: Features, batch_size: int, seed: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of an epoch over features that are kept."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(len(features.y_N), generator=generator).to(features.y_N.device)
    for batch in order.split(batch_size):
        yield features.x_ND[batch], features.y_N[batch]
