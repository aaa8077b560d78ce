"""Linear probing: linear layers on a frozen backbone, one for each learning rate, trained side by side.

Shapes: N = images, D = representation, C = classes, H = heads (learning rates).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from regbench.benchmark.evaluate.features import Epochs, Features
from regbench.benchmark.evaluate.state import State
from regbench.benchmark.settings.config import ProbeConfig

# Images whose logits are computed at a time.
_BLOCK = 4096
_INITIAL_STD = 0.01


class LinearHeads:
    """Linear classifiers over the same features, one for each learning rate, trained side by side.

    Each is what SGD with that learning rate alone would give: the heads share the features, and BN without scale and
    shift where the configuration asks for it, and nothing else.
    """

    def __init__(self, dim: int, num_classes: int, config: ProbeConfig, seed: int, device: torch.device) -> None:
        """All heads start from the same weights, drawn N(0, 0.01²) with zero bias.

        Args:
            dim: D, width of the features.
            num_classes: C.
            config: Learning rates, schedule, epochs, momentum, weight decay and BN.
            seed: Of the initial weights.
            device: That computes.
        """
        heads = len(config.learning_rates)
        self._config, self._device = config, device
        self._weight_HDC = initial_weight(dim, num_classes, seed).T.repeat(heads, 1, 1).to(device)
        self._bias_HC = torch.zeros(heads, 1, num_classes, device=device)
        self._momenta = (torch.zeros_like(self._weight_HDC), torch.zeros_like(self._bias_HC))
        self._mean_D, self._variance_D = torch.zeros(dim, device=device), torch.ones(dim, device=device)
        self._rates_H = torch.tensor(config.learning_rates, device=device).view(-1, 1, 1)

    @torch.no_grad()
    def fit(self, epochs: Epochs, state: State | None = None) -> None:
        """Trains on the batches of `epochs(e)` for each epoch e, of which each has its own learning rate.

        With BN, a batch of one image is left out: it has no variance.

        Args:
            epochs: Features (n, d) and labels (n,) on the device.
            state: Keeps what is trained after each epoch; training goes on from what it holds.
        """
        config = self._config
        parameters = (self._weight_HDC, self._bias_HC)
        tensors = (*parameters, *self._momenta, self._mean_D, self._variance_D)
        first = 0
        if state is not None and "tensors" in state.data:
            first = state.data["epoch"]
            for tensor, saved in zip(tensors, state.data["tensors"], strict=True):
                tensor.copy_(saved)
        quiet = not sys.stderr.isatty()
        for epoch in tqdm(
            range(first, config.epochs), "linear probing", config.epochs, initial=first, disable=quiet, leave=False
        ):
            rates = self._rates_H * decay(epoch, config.epochs, config.milestones)
            for x_ND, y_N in epochs(epoch):
                if config.batch_norm and len(y_N) == 1:
                    continue
                x_ND = self._normalized(x_ND, training=True)
                # The gradient of the mean cross-entropy is (softmax − one-hot)/n; heads do not mix.
                probability_HNC = self._logits(x_ND).softmax(dim=2)
                probability_HNC[:, torch.arange(len(y_N), device=y_N.device), y_N] -= 1
                gradients = (x_ND.T @ probability_HNC / len(y_N), probability_HNC.mean(dim=1, keepdim=True))
                for p, gradient, momentum in zip(parameters, gradients, self._momenta, strict=True):
                    momentum.mul_(config.momentum).add_(gradient.add_(p, alpha=config.weight_decay))
                    p.addcmul_(rates, momentum, value=-1)
            if state is not None:
                done, last = epoch + 1, epoch + 1 == config.epochs
                state.save(f"epoch {done} of {config.epochs}", last=last, epoch=done, tensors=list(tensors))

    def _normalized(self, x_ND: Tensor, *, training: bool) -> Tensor:
        """After BN without scale and shift, if there is one; training updates its running statistics, as in torch."""
        if not self._config.batch_norm:
            return x_ND
        return F.batch_norm(x_ND, self._mean_D, self._variance_D, training=training)

    def _logits(self, x_ND: Tensor) -> Tensor:
        return x_ND @ self._weight_HDC + self._bias_HC

    @torch.no_grad()
    def accuracies(self, features: Features, block: int = _BLOCK) -> list[tuple[float, float]]:
        """Top-1 and top-5 accuracy of each head, in per cent; with BN, by its running statistics."""
        correct = torch.zeros(len(self._weight_HDC), 2, dtype=torch.int64)
        for x_ND, y_N in zip(features.x_ND.split(block), features.y_N.split(block), strict=True):
            logits_HNC = self._logits(self._normalized(x_ND.to(self._device), training=False))
            correct += correct_answers(logits_HNC, y_N.to(self._device)).cpu()
        total = len(features.y_N)
        return [(100 * top1 / total, 100 * top5 / total) for top1, top5 in correct.tolist()]


def initial_weight(dim: int, num_classes: int, seed: int) -> Tensor:
    """Weights (C, D) of a linear classifier, drawn N(0, 0.01²)."""
    return _INITIAL_STD * torch.randn(dim, num_classes, generator=torch.Generator().manual_seed(seed)).T


def decay(epoch: int, epochs: int, milestones: tuple[int, ...] = ()) -> float:
    """The learning rate of an epoch over the initial one: cosine, or a tenth from each milestone on."""
    if milestones:
        return float(0.1 ** sum(epoch >= milestone for milestone in milestones))
    return 0.5 * (1 + math.cos(math.pi * epoch / epochs))


def correct_answers(logits_HNC: Tensor, y_N: Tensor) -> Tensor:
    """How many images each head has right, (H, 2): first, and among the first five. NaN is no answer."""
    answers = logits_HNC.nan_to_num(-torch.inf, torch.inf).topk(min(5, logits_HNC.shape[2]), dim=2)
    hits = answers.indices == y_N[None, :, None]
    hits &= answers.values > -torch.inf
    return torch.stack([hits[:, :, 0].sum(dim=1), hits.sum(dim=(1, 2))], dim=1)


def shuffled(
    features: Features, batch_size: int, seed: int, device: torch.device, epoch: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of an epoch over features that are kept, on `device`."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(len(features.y_N), generator=generator).to(features.y_N.device)
    for batch in order.split(batch_size):
        yield features.x_ND[batch].to(device), features.y_N[batch].to(device)
