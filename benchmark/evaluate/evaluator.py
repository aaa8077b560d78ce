"""The evaluations of one backbone, each by its name among `PROTOCOLS`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regbench import RegbenchError
from regbench.benchmark.choice import Choices
from regbench.benchmark.config import EvaluationConfig, ProbeConfig
from regbench.benchmark.evaluate import voc
from regbench.benchmark.evaluate.features import Backbone, Batches, Features, Images
from regbench.benchmark.evaluate.knn import weighted_knn
from regbench.benchmark.evaluate.linear import LinearHeads, shuffled
from regbench.benchmark.evaluate.measures import ALPHA_RANKS, LIDAR_DELTA, measures
from regbench.benchmark.train import Compute
from regbench.datasets.config import AugmentationConfig, DatasetConfig
from regbench.datasets.loader import evenly
from regbench.datasets.manifest import Manifest
from regbench.datasets.voc import open_voc07

Scores = list[dict[str, Any]]


class Evaluator:
    """The evaluations of one frozen backbone; features are extracted once for each way of cutting the images.

    Whatever is chosen is chosen on the split that `config.select_on` names, and noted before the test split is
    opened.

    Attributes:
        backend: What read the images ("ffcv" or "torchvision"), once some were read.
    """

    def __init__(
        self,
        config: EvaluationConfig,
        dataset: DatasetConfig,
        augmentation: AugmentationConfig,
        backbone: Backbone,
        compute: Compute,
        choices: Choices,
        seed: int,
    ) -> None:
        """Freezes the backbone.

        Args:
            config: How to evaluate.
            dataset: On what.
            augmentation: Of the views that measures look at.
            backbone: Gives the representations.
            compute: With what.
            choices: Holds how the hyperparameters were chosen; what the evaluations choose is added.
            seed: Of the linear layers' initial weights and of their images' order and augmentation.
        """
        backbone.module.requires_grad_(False)
        self._config, self._backbone, self._compute = config, backbone, compute
        self._choices, self._seed, self._augmentation = choices, seed, augmentation
        self._images = Images(dataset, compute, choices.path)
        self._splits = selection_splits(config, dataset, compute.data_dir)
        self._features = functools.cache(self._extract)
        self.backend = compute.loader

    def select(self) -> Scores:
        """What hyperparameters are chosen by: weighted kNN on the selection split, if there is one."""
        return [score for split in self._splits for score in self._knn(split)]

    def run(self, protocol: str) -> Scores:
        """The scores of one protocol, on the test split and on the one that it chose on; each is a method."""
        scores: Scores = getattr(self, protocol)()
        return scores

    def knn(self) -> Scores:
        """Weighted kNN on the test split."""
        return [] if "test" in self._splits else self._knn("test")

    def _knn(self, split: str) -> Scores:
        config = self._config.knn
        bank, queries = (self._features(name, config.interpolation) for name in ("train", split))
        top1, top5 = weighted_knn(bank, queries, config, self._images.dataset.num_classes)
        protocol = f"weighted kNN, k={config.k}, temperature={config.temperature:g}"
        return [_score("knn_top1", top1, split, protocol), _score("knn_top5", top5, split, protocol)]

    def probe(self) -> Scores:
        """Linear probing with the learning rate that is best on the selection split."""
        config, images = self._config.probe, self._images
        with contextlib.ExitStack() as stack:
            epochs: Callable[[int], Batches] = (
                functools.partial(
                    shuffled, self._features("train", config.interpolation), config.batch_size, self._seed
                )
                if config.features == "cached"
                else self._augmented_epochs(config, stack)
            )
            heads = LinearHeads(
                self._backbone.dim, images.dataset.num_classes, config, self._seed, self._compute.device
            )
            heads.fit(epochs)
        chosen, candidates = 0, {}
        accuracies = {}
        for split in self._splits:
            accuracies[split] = heads.accuracies(self._features(split, config.interpolation))
            top1_by_head = [top1 for top1, _ in accuracies[split]]
            chosen = top1_by_head.index(max(top1_by_head))
            candidates = {f"{rate:g}": top1 for rate, top1 in zip(config.learning_rates, top1_by_head, strict=True)}
        entry = {
            "selected_on": self._splits[0] if len(candidates) > 1 else "given",
            "chosen": config.learning_rates[chosen],
            "candidates": candidates,
        }
        self._choices.note("probe_learning_rate", entry)
        if "test" not in accuracies:
            accuracies["test"] = heads.accuracies(self._features("test", config.interpolation))
        protocol = (
            f"linear probing, {config.features} features, {config.epochs} epochs, "
            f"learning rate {config.learning_rates[chosen]:g}"
        )
        if len(config.learning_rates) > 1:
            rates = ", ".join(f"{rate:g}" for rate in config.learning_rates)
            protocol += f" chosen on {self._splits[0]} from {rates}"
        return [
            _score(name, value, split, protocol)
            for split, found in accuracies.items()
            for name, value in zip(("linear_top1", "linear_top5"), found[chosen], strict=True)
        ]

    def voc07(self) -> Scores:
        """Mean average precision of linear SVMs on VOC2007's test images, C chosen by cross-validation on trainval.

        Raises:
            RegbenchError: If VOC2007 is not there or not complete, or the backbone takes grey images.
        """
        config, dataset, compute = self._config.voc07, self._images.dataset, self._compute
        if dataset.channels != 3:
            raise RegbenchError(
                f"VOC2007 has colour images and a backbone trained on {dataset.name} takes grey ones; leave voc07 out "
                "of evaluation.protocols"
            )
        splits = open_voc07(compute.data_dir, config.num_images)
        train = voc.features(
            splits["trainval"], "trainval", self._backbone, dataset, config, self._config.batch_size, compute
        )
        threads = torch.get_num_threads()
        candidates = voc.choose_costs(*train, config, threads)
        chosen = {name: max(config.costs, key=lambda c: found[f"{c:g}"]) for name, found in candidates.items()}
        self._choices.note(
            "voc07_cost", {"selected_on": "cross-validation", "chosen": chosen, "candidates": candidates}
        )
        test = voc.features(splits["test"], "test", self._backbone, dataset, config, self._config.batch_size, compute)
        eleven, full = (
            sum(column) / len(column)
            for column in zip(*voc.svm_precisions(train, test, list(chosen.values()), threads), strict=True)
        )
        protocol = (
            f"linear SVMs on VOC2007, {config.image_size} px, C from {', '.join(f'{c:g}' for c in config.costs)} by "
            f"{config.folds}-fold cross-validation"
        )
        return [
            _score("voc07_map", eleven, "test", f"{protocol}, 11-point average precision"),
            _score("voc07_map_full", full, "test", f"{protocol}, average precision under the whole curve"),
        ]

    def measures(self) -> Scores:
        """Measures without labels, on the selection split (the test split where there is none)."""
        config, split = self._config.measures, (self._splits or ["test"])[0]
        x_ND = self._features(split, self._config.knn.interpolation).x_ND
        views_NVD, self.backend = self._images.views(
            self._backbone,
            self._augmentation,
            split,
            images=config.view_images,
            views=config.views,
            seed=self._seed,
            batch_size=self._config.batch_size,
        )
        x_ND = x_ND[torch.from_numpy(evenly(np.arange(len(x_ND)), config.images)).to(x_ND.device)]
        crops = f"representation of {len(x_ND):,} centre crops"
        views = f"representation of {len(views_NVD):,} images in {config.views} views"
        how = {
            "alignment": f"{views}, normalised, squared distance",
            "uniformity": f"{crops}, normalised, t = 2",
            "rankme": f"{crops}, effective rank",
            "alpha_req": f"{crops}, power law fitted to eigenvalues {ALPHA_RANKS[0]} to {ALPHA_RANKS[1]}",
            "lidar": f"{views}, δ = {LIDAR_DELTA:g}",
            "feature_spread": f"{crops}, normalised",
        }
        found = measures(x_ND, views_NVD)
        return [_score(name, value, split, how[name], unit="") for name, value in found.items()]

    def _extract(self, split: str, interpolation: str) -> Features:
        features, self.backend = self._images.features(self._backbone, split, interpolation, self._config.batch_size)
        return features

    def _augmented_epochs(self, config: ProbeConfig, stack: contextlib.ExitStack) -> Callable[[int], Batches]:
        loader = stack.enter_context(
            self._images.loader(
                "train",
                config.batch_size,
                transform="crop_flip",
                crop_scale=config.crop_scale,
                seed=self._seed,
                interpolation=config.interpolation,
            )
        )

        def epoch(number: int) -> Iterator[tuple[Tensor, Tensor]]:
            with loader.epoch(number) as batches:
                for x, y in batches:
                    yield self._backbone.represent(x), y

        return epoch


def selection_splits(config: EvaluationConfig, dataset: DatasetConfig, data_dir: Path) -> list[str]:
    """The split that everything is chosen on, as a list; an empty one where the data set has no tuning split.

    Raises:
        RegbenchError: If there is a choice to make and no tuning split to make it on.
    """
    if config.select_on in Manifest.load(data_dir, dataset.name).splits:
        return [config.select_on]
    if "probe" in config.protocols and len(config.probe.learning_rates) > 1:
        raise RegbenchError(
            f"data set {dataset.name!r} has no tuning split to choose the probe's learning rate on; "
            "give one rate: evaluation.probe.learning_rates=[0.2]"
        )
    return []


def _score(name: str, value: float, split: str, protocol: str, unit: str = "%") -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "split": split, "protocol": protocol}
