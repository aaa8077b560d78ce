"""Evaluation of a frozen backbone: weighted kNN and linear probing.

Shapes: N = images, B = block of query images, D = representation, C = classes, H = heads (learning rates).
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from regbench import RegbenchError
from regbench.benchmark.config import Cell, KNNConfig, ProbeConfig
from regbench.benchmark.network import SiameseNetwork
from regbench.benchmark.train import Compute
from regbench.datasets.loader import EvalLoader
from regbench.datasets.manifest import Manifest

# Images whose logits are computed at a time.
_BLOCK = 4096

Batches = Iterable[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Features:
    """Representations of a split: `x_ND` (n, d) float32 and labels `y_N` (n,) int64."""

    x_ND: Tensor
    y_N: Tensor


@dataclass(frozen=True)
class Probe:
    """A trained linear classifier.

    Attributes:
        weight_DC: (d, classes) float32.
        bias_C: (classes,) float32.
        protocol: How it was trained, in one line.
    """

    weight_DC: Tensor
    bias_C: Tensor
    protocol: str


class Evaluator:
    """The evaluations of one frozen backbone; features are extracted once for each way of cutting the images.

    The test split is read for final scores only; whatever is chosen is chosen on the tuning split.

    Attributes:
        backend: What read the images ("ffcv" or "torchvision"), once some were read.
    """

    def __init__(self, cell: Cell, network: SiameseNetwork, compute: Compute) -> None:
        """Freezes the backbone.

        Args:
            cell: States data set and evaluation.
            network: Whose backbone gives the representations; put in eval mode.
            compute: On what.
        """
        self._cell, self._compute = cell, compute
        self._backbone = network.backbone.eval().requires_grad_(False)
        self._dim = network.representation_dim
        self._features = functools.cache(self._extract)
        self.backend = compute.loader

    def knn(self, split: str) -> list[dict[str, Any]]:
        """Scores of weighted kNN: the training images vote on those of `split`."""
        config = self._cell.evaluation.knn
        bank, queries = (self._features(name, config.interpolation) for name in ("train", split))
        top1, top5 = weighted_knn(bank, queries, config, self._cell.dataset.num_classes)
        protocol = f"weighted kNN, k={config.k}, temperature={config.temperature:g}"
        return [_score("knn_top1", top1, split, protocol), _score("knn_top5", top5, split, protocol)]

    def probe(self) -> Probe:
        """The linear classifier with the learning rate that is best on the tuning split."""
        cell, config = self._cell, self._cell.evaluation.probe
        with contextlib.ExitStack() as stack:
            epochs: Callable[[int], Batches] = (
                functools.partial(
                    _shuffled, self._features("train", config.interpolation), config.batch_size, cell.seed
                )
                if config.features == "cached"
                else self._augmented_epochs(stack)
            )
            heads = LinearHeads(self._dim, cell.dataset.num_classes, config, cell.seed, self._compute.device)
            heads.fit(epochs)
        best, choice = 0, ""
        if len(config.learning_rates) > 1:
            top1_by_head = [top1 for top1, _ in heads.accuracies(self._features("tuning", config.interpolation))]
            best = top1_by_head.index(max(top1_by_head))
            choice = f" chosen on tuning from {', '.join(f'{rate:g}' for rate in config.learning_rates)}"
        protocol = (
            f"linear probing, {config.features} features, {config.epochs} epochs, "
            f"learning rate {config.learning_rates[best]:g}{choice}"
        )
        return heads.probe(best, protocol)

    def linear(self, probe: Probe, split: str) -> list[dict[str, Any]]:
        """Scores of linear probing on `split`."""
        features = self._features(split, self._cell.evaluation.probe.interpolation)
        weight_HDC, bias_HC = (t.to(self._compute.device)[None] for t in (probe.weight_DC, probe.bias_C[None]))
        ((top1, top5),) = _accuracies(weight_HDC, bias_HC, features, _BLOCK)
        return [
            _score("linear_top1", top1, split, probe.protocol),
            _score("linear_top5", top5, split, probe.protocol),
        ]

    def _loader(self, split: str, **options: Any) -> EvalLoader:
        cell, compute = self._cell, self._compute
        return EvalLoader(
            cell.dataset,
            split,
            data_dir=compute.data_dir,
            device=compute.device,
            backend=compute.loader,
            workers=compute.workers,
            **options,
        )

    def _extract(self, split: str, interpolation: str) -> Features:
        batch_size = self._cell.evaluation.batch_size
        with (
            self._loader(split, batch_size=batch_size, interpolation=interpolation) as loader,
            loader.epoch() as epoch,
        ):
            self.backend = loader.backend
            bar = tqdm(
                epoch,
                desc=f"features of {split}",
                total=len(loader),
                disable=not sys.stderr.isatty(),
                leave=False,
            )
            pairs = [(self._represent(x), y) for x, y in bar]
        return Features(torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs]))

    @torch.no_grad()
    def _represent(self, x_NCHW: Tensor) -> Tensor:
        features: Tensor = self._backbone(x_NCHW)
        return features.float()

    def _augmented_epochs(self, stack: contextlib.ExitStack) -> Callable[[int], Batches]:
        config = self._cell.evaluation.probe
        loader = stack.enter_context(
            self._loader(
                "train",
                batch_size=config.batch_size,
                transform="crop_flip",
                crop_scale=config.crop_scale,
                seed=self._cell.seed,
                interpolation=config.interpolation,
            )
        )

        def epoch(number: int) -> Iterator[tuple[Tensor, Tensor]]:
            with loader.epoch(number) as batches:
                for x, y in batches:
                    yield self._represent(x), y

        return epoch


def scored_splits(cell: Cell, data_dir: Path) -> list[str]:
    """The splits to score, "tuning" (where the data set has one) before "test".

    Raises:
        RegbenchError: If there is a choice to make and no tuning split to make it on.
    """
    splits: list[str] = [
        split for split in ("tuning", "test") if split in Manifest.load(data_dir, cell.dataset.name).splits
    ]
    if "tuning" not in splits and len(cell.evaluation.probe.learning_rates) > 1:
        raise RegbenchError(
            f"data set {cell.dataset.name!r} has no tuning split to choose the probe's learning rate on; "
            "give one rate: evaluation.probe.learning_rates=[0.2]"
        )
    return splits


def _score(name: str, value: float, split: str, protocol: str) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": "%", "split": split, "protocol": protocol}


def _shuffled(features: Features, batch_size: int, seed: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(len(features.y_N), generator=generator).to(features.y_N.device)
    for batch in order.split(batch_size):
        yield features.x_ND[batch], features.y_N[batch]


@torch.no_grad()
def weighted_knn(
    bank: Features, queries: Features, config: KNNConfig, num_classes: int, block: int = 1024
) -> tuple[float, float]:
    """Top-1 and top-5 accuracy of weighted kNN (Wu et al., 2018; the paper's appendix), in per cent.

    The score of class c is the sum of exp(cosine similarity / temperature) over those of the k nearest training
    images that are of class c.

    Args:
        bank: Training images, (n, d).
        queries: Images to classify.
        config: k and temperature.
        num_classes: C.
        block: Queries at a time; memory is block × n.

    Raises:
        RegbenchError: If k is larger than the bank.
    """
    if config.k > len(bank.y_N):
        raise RegbenchError(
            f"evaluation.knn.k={config.k} is larger than the {len(bank.y_N)} training images; choose fewer"
        )
    bank_ND = F.normalize(bank.x_ND, dim=1)
    correct1 = correct5 = 0
    for x_BD, y_B in zip(queries.x_ND.split(block), queries.y_N.split(block), strict=True):
        similarity_BK, index_BK = (F.normalize(x_BD, dim=1) @ bank_ND.T).topk(config.k, dim=1)
        votes_BC = similarity_BK.new_zeros(len(x_BD), num_classes)
        votes_BC.scatter_add_(1, bank.y_N[index_BK], (similarity_BK / config.temperature).exp())
        votes, classes = votes_BC.topk(min(5, num_classes), dim=1)
        hits = (classes == y_B[:, None]) & (votes > 0)  # a class without a vote is no answer
        correct1 += int(hits[:, 0].sum())
        correct5 += int(hits.sum())
    return 100 * correct1 / len(queries.y_N), 100 * correct5 / len(queries.y_N)


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

    def probe(self, head: int, protocol: str) -> Probe:
        """One of the heads."""
        return Probe(self._weight_HDC[head].cpu(), self._bias_HC[head, 0].cpu(), protocol)

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
