"""The evaluations of one backbone, each by its name among `PROTOCOLS`."""

from __future__ import annotations

import functools
import itertools
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from regbench import RegbenchError
from regbench.benchmark.evaluate import voc
from regbench.benchmark.evaluate.features import Backbone, Features, Images
from regbench.benchmark.evaluate.finetune import FineTuned
from regbench.benchmark.evaluate.knn import check_neighbours, weighted_knn
from regbench.benchmark.evaluate.linear import LinearHeads, shuffled
from regbench.benchmark.evaluate.measures import ALPHA_RANKS, LIDAR_DELTA, measures
from regbench.benchmark.evaluate.state import State, fingerprint
from regbench.benchmark.rundir.choice import Choices
from regbench.benchmark.rundir.record import Score
from regbench.benchmark.settings.config import EvaluationConfig, FineTuneConfig, ProbeConfig, TransferConfig
from regbench.benchmark.training.loop import Compute
from regbench.datasets.config import AugmentationConfig, DatasetConfig
from regbench.datasets.loading.splits import evenly
from regbench.datasets.manifest import Manifest
from regbench.datasets.voc import VOCSplit, open_voc07

Scores = list[Score]

_TITLES = {"places205": "Places205", "labels1": "1 % labels", "labels10": "10 % labels"}
_MEASURE_TITLES = {"rankme": "RankMe", "alpha_req": "α-ReQ", "lidar": "LiDAR", "feature_spread": "feature spread"}


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
        self._features = functools.cache(functools.partial(self._extract, self._images))
        self._heads = functools.cache(self._fit_heads)  # the choice of hyperparameters and the final score share them
        self.backend = compute.loader

    def select(self) -> Scores:
        """What hyperparameters are chosen by, if there is a split to choose on.

        Returns:
            The scores of weighted kNN on that split. If `select_by` asks for linear probing too: also its scores there,
            and `selection_top1`, the mean of both top-1.
        """
        scores = [score for split in self._splits for score in self._knn(split)]
        if scores and "probe" in self._config.select_by:
            scores += self._probe("probe", self._images, self._config.probe, "linear", final=False)
            tops = [score.value for score in scores if score.name in ("knn_top1", "linear_top1")]
            how, title = "mean of knn_top1 and linear_top1", "mean of kNN and linear top-1"
            scores.append(Score("selection_top1", sum(tops) / len(tops), self._splits[0], how, title))
        return scores

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
        found = weighted_knn(bank, queries, config, self._images.dataset.num_classes, self._compute.device)
        scores = []
        for k, accuracies in found.items():
            protocol = f"weighted kNN, k={k}, temperature={config.temperature:g}"
            name, title = ("knn", "kNN") if k == config.k else (f"knn_k{k}", f"kNN (k = {k})")
            scores += _accuracy_scores(name, accuracies, split, protocol, title)
        return scores

    def probe(self) -> Scores:
        """Linear probing with the learning rate that is best on the selection split."""
        return self._probe("probe", self._images, self._config.probe, "linear")

    def places205(self) -> Scores:
        """Linear probing on Places205."""
        config = self._config.places205
        return self._probe("places205", self._other_images(config.dataset), config.probe, "places205")

    def _probe(self, protocol: str, images: Images, config: ProbeConfig, name: str, *, final: bool = True) -> Scores:
        """The scores on the split that chooses the learning rate and, if `final`, on the test split."""
        splits = _selection(self._config, protocol, self._images.dataset, self._compute.data_dir)
        heads = self._heads(protocol, images, config)

        def accuracies(split: str) -> list[tuple[float, float]]:
            return heads.accuracies(self._features_of(images, split, config.interpolation))

        found = {split: accuracies(split) for split in splits}
        labels = [f"{rate:g}" for rate in config.learning_rates]
        chosen, selected_on, candidates = _choose(found, labels)
        entry = {"selected_on": selected_on, "chosen": config.learning_rates[chosen], "candidates": candidates}
        self._choices.note(f"{protocol}_learning_rate", entry)
        if final and "test" not in found:
            found["test"] = accuracies("test")
        text = (
            f"linear probing, {config.features} features{', BN without scale and shift' * config.batch_norm}, "
            f"{config.epochs} epochs{_steps(config.milestones)}, learning rate {labels[chosen]}"
        )
        text += _chosen_from(selected_on, labels)
        title = _TITLES.get(name, name)
        return [score for split in found for score in _accuracy_scores(name, found[split][chosen], split, text, title)]

    def _fit_heads(self, protocol: str, images: Images, config: ProbeConfig) -> LinearHeads:
        """Trained linear layers."""
        device = self._compute.device
        state = self._state(protocol, images, config)
        heads = LinearHeads(self._backbone.dim, images.dataset.num_classes, config, self._seed, device)
        if config.features == "cached":
            features = self._features_of(images, "train", config.interpolation)
            heads.fit(functools.partial(shuffled, features, config.batch_size, self._seed, device), state)
        else:
            with images.augmented(config, self._seed) as epochs:
                heads.fit(lambda number: ((self._backbone.represent(x), y) for x, y in epochs(number)), state)
        return heads

    def labels1(self) -> Scores:
        """Semi-supervised learning with 1 % of the labels."""
        return self._fine_tune("labels1", self._config.labels1)

    def labels10(self) -> Scores:
        """Semi-supervised learning with 10 % of the labels."""
        return self._fine_tune("labels10", self._config.labels10)

    def _fine_tune(self, protocol: str, config: FineTuneConfig) -> Scores:
        """One training for each pair of learning rates, of which the selection split chooses."""
        splits = _selection(self._config, protocol, self._images.dataset, self._compute.data_dir)
        images = self._other_images(config.dataset)
        state = self._state(protocol, images, config)
        pairs = list(itertools.product(config.backbone_learning_rates, config.head_learning_rates))
        labels = [f"{backbone:g} and {head:g}" for backbone, head in pairs]

        def network(number: int) -> FineTuned:
            num_classes = config.dataset.num_classes
            return FineTuned(self._backbone, num_classes, config, pairs[number], self._seed, self._compute.device)

        def accuracy(tuned: FineTuned, split: str) -> tuple[float, float]:
            return tuned.accuracy(images, split, self._config.batch_size)

        found: dict[str, list[tuple[float, float]]] = {split: [] for split in splits}
        found |= state.data.get("found", {})
        with images.augmented(config, self._seed) as epochs:
            for number in range(state.data.get("tried", 0), len(pairs)):
                tuned = network(number)
                tuned.fit(epochs, state)
                for split in splits:
                    found[split].append(accuracy(tuned, split))
                is_best = _choose(found, labels[: number + 1])[0] == number
                best = tuned.state_dict() if is_best else state.data["best"]
                done = f"{number + 1} of {len(pairs)} pairs of learning rates"
                state.save(done, last=True, tried=number + 1, found=found, best=best, epoch=0)
        chosen, selected_on, candidates = _choose(found, labels)
        rates = dict(zip(("backbone", "head"), pairs[chosen], strict=True))
        entry = {"selected_on": selected_on, "chosen": rates, "candidates": candidates}
        self._choices.note(f"{protocol}_learning_rates", entry)
        results = {split: found[split][chosen] for split in splits}
        if "test" not in results:
            tuned = network(chosen)
            tuned.network.load_state_dict(state.data["best"])
            results["test"] = accuracy(tuned, "test")
        text = (
            f"fine-tuning on {config.dataset.name}, {config.epochs} epochs, "
            f"learning rates of backbone and linear layer {labels[chosen]}"
        )
        text += _chosen_from(selected_on, labels)
        title = _TITLES[protocol]
        return [score for split in results for score in _accuracy_scores(protocol, results[split], split, text, title)]

    def voc07(self) -> Scores:
        """Mean average precision of linear SVMs on VOC2007's test images, C chosen by cross-validation on trainval.

        Raises:
            RegbenchError: If VOC2007 is not there or not complete, or the backbone takes grey images.
        """
        config, dataset, compute = self._config.voc07, self._images.dataset, self._compute
        splits = _voc07(self._config, dataset, compute.data_dir)
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
            Score("voc07_map", eleven, "test", f"{protocol}, 11-point average precision", "VOC07 mAP, 11-point"),
            Score("voc07_map_full", full, "test", f"{protocol}, average precision under the whole curve", "VOC07 mAP"),
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
        return [
            Score(name, value, split, how[name], _MEASURE_TITLES.get(name, name), unit="", higher_is_better=None)
            for name, value in found.items()
        ]

    def _extract(self, images: Images, split: str, interpolation: str) -> Features:
        features, self.backend = images.features(self._backbone, split, interpolation, self._config.batch_size)
        return features

    def _features_of(self, images: Images, split: str, interpolation: str) -> Features:
        """Those of the cell's own data set are kept for further evaluations."""
        own = images is self._images
        return self._features(split, interpolation) if own else self._extract(images, split, interpolation)

    def _other_images(self, dataset: DatasetConfig) -> Images:
        return Images(dataset, self._compute, self._choices.path)

    def _state(self, protocol: str, images: Images, config: ProbeConfig | FineTuneConfig) -> State:
        """What an earlier attempt at this evaluation has done, with these settings, images and weights."""
        dataset = images.dataset
        splits = Manifest.load(self._compute.data_dir, dataset).splits
        content = {name: entry["content_sha256"] for name, entry in splits.items()}
        settings = [asdict(config), asdict(dataset), content, self._config.select_on, self._seed]
        key = fingerprint(self._backbone.module, settings)
        return State(self._choices.attempt, protocol, key, self._compute.device)


def selection_splits(config: EvaluationConfig, dataset: DatasetConfig, data_dir: Path) -> list[str]:
    """The split that everything is chosen on, as a list; an empty one where the data set has no tuning split.

    Raises:
        RegbenchError: If one of the protocols cannot be evaluated: a data set is not prepared or has other channels,
            there is a choice to make and no split to make it on, or fewer images than kNN asks for neighbours.
    """
    check_neighbours(config.knn, Manifest.load(data_dir, dataset.name).splits["train"]["num_samples"])
    for protocol in config.protocols:
        _selection(config, protocol, dataset, data_dir)
    if "voc07" in config.protocols:
        _voc07(config, dataset, data_dir)
    return _selection(config, "knn", dataset, data_dir)


def _selection(config: EvaluationConfig, protocol: str, dataset: DatasetConfig, data_dir: Path) -> list[str]:
    """`selection_splits` of one protocol, which may have a data set of its own; `dataset` is the one of the cell."""
    settings = getattr(config, protocol)
    own: DatasetConfig = getattr(settings, "dataset", dataset)
    if own.channels != dataset.channels:
        raise RegbenchError(
            f"{protocol}: {own.name!r} has {own.channels} channels and the backbone is for the {dataset.channels} of "
            f"{dataset.name!r}; leave {protocol} out of evaluation.protocols"
        )
    if config.select_on in Manifest.load(data_dir, own).splits:
        return [config.select_on]
    where, probe = f"evaluation.{protocol}", settings
    if isinstance(settings, TransferConfig):
        where, probe = f"{where}.probe", settings.probe
    names = ("learning_rates", "backbone_learning_rates", "head_learning_rates")
    candidates = {name: rates for name in names if (rates := getattr(probe, name, None))}
    if max(map(len, candidates.values()), default=1) > 1:
        single = " ".join(f"{where}.{name}=[{rates[len(rates) // 2]:g}]" for name, rates in candidates.items())
        raise RegbenchError(
            f"data set {own.name!r} has no tuning split to choose learning rates on; give one of each: {single}"
        )
    return []


def _voc07(config: EvaluationConfig, dataset: DatasetConfig, data_dir: Path) -> dict[str, VOCSplit]:
    if dataset.channels != 3:
        raise RegbenchError(
            f"VOC2007 has colour images and a backbone trained on {dataset.name} takes grey ones; leave voc07 out "
            "of evaluation.protocols"
        )
    return open_voc07(data_dir, config.voc07.num_images)


def _choose(found: dict[str, list[tuple[float, float]]], labels: list[str]) -> tuple[int, str, dict[str, float]]:
    """The best by top-1 on the selection split, the split, and the top-1 of each; without such a split the first."""
    for split, accuracies in found.items():
        top1 = [accuracy[0] for accuracy in accuracies]
        selected_on = split if len(labels) > 1 else "given"
        return top1.index(max(top1)), selected_on, dict(zip(labels, top1, strict=True))
    return 0, "given", {}


def _chosen_from(selected_on: str, labels: list[str]) -> str:
    return f" chosen on {selected_on} from {', '.join(labels)}" if len(labels) > 1 else ""


def _steps(milestones: tuple[int, ...]) -> str:
    return f" with a tenth of the rate from epochs {', '.join(map(str, milestones))} on" if milestones else ""


def _accuracy_scores(name: str, accuracies: tuple[float, float], split: str, protocol: str, title: str) -> Scores:
    """The two scores `name`_top1 and `name`_top5."""
    return [
        Score(f"{name}_top{top}", value, split, protocol, f"{title} top-{top}")
        for top, value in zip((1, 5), accuracies, strict=True)
    ]
