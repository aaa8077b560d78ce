"""Linear classification on VOC2007: a linear SVM for each class, scored by average precision.

As in VISSL's benchmark (Goyal et al., 2021), which the paper used (its appendix, "Linear classification on VOC2007"):
features of norm 1, L2-regularised squared hinge loss, positives weighted twice, C chosen for each class by 3-fold
cross-validation of the average precision on trainval, the SVM trained anew on all of trainval. "Difficult" images (see
`regbench.datasets.voc`) are negatives in training and left out of the test.

Shapes: N = images, D = representation, C = classes.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm

from regbench import RegbenchError
from regbench.benchmark.evaluate.features import Backbone
from regbench.benchmark.settings.config import VOCConfig
from regbench.benchmark.training.loop import Compute
from regbench.datasets.config import DatasetConfig
from regbench.datasets.loading.photometric import Normalize
from regbench.datasets.voc import CLASSES, VOCSplit, whole_images

Floats = npt.NDArray[np.float64]
Presence = npt.NDArray[np.int8]

_EPSILON = 1e-5  # added to the norm that features are divided by, as VISSL does
_POSITIVE_WEIGHT = 2
_RECALLS = np.linspace(0, 1, 11)


def features(
    split: VOCSplit,
    name: str,
    backbone: Backbone,
    dataset: DatasetConfig,
    config: VOCConfig,
    batch_size: int,
    compute: Compute,
) -> tuple[Floats, Presence]:
    """The representations (n, d) of a split's images, each divided by its norm + 1e-5, and its presence (n, 20).

    Args:
        split: The images.
        name: Of the split, for the progress bar.
        backbone: Gives the representations.
        dataset: That the backbone was trained on: the images get its mean and standard deviation.
        config: Sizes and filter.
        batch_size: Images a step.
        compute: Where and with how many workers.
    """
    normalize = Normalize(dataset.mean, dataset.std, compute.device)
    batches = whole_images(
        split.paths,
        shorter=config.resize,
        size=config.image_size,
        interpolation=config.interpolation,
        batch_size=batch_size,
        workers=compute.workers,
    )
    length = -(-len(split.paths) // batch_size)
    bar = tqdm(batches, f"features of VOC2007 {name}", length, disable=not sys.stderr.isatty(), leave=False)
    parts = [backbone.represent(normalize(x.to(compute.device, torch.float32))).cpu() for x in bar]
    x_ND = torch.cat(parts).double().numpy()
    return x_ND / (np.linalg.norm(x_ND, axis=1, keepdims=True) + _EPSILON), split.presence


def linear_svm(cost: float) -> Any:
    """LIBLINEAR's SVM of one class: ½‖w‖² + cost Σᵢ cᵢ max(0, 1 − yᵢ w·xᵢ)², cᵢ = 2 for positives, the bias in w.

    The primal solver: VISSL's dual one has the same optimum, but does not reach it in its 2,000 iterations for the
    larger costs, and draws random numbers.
    """
    from sklearn.svm import LinearSVC

    return LinearSVC(
        C=cost, penalty="l2", loss="squared_hinge", dual=False, class_weight={1: _POSITIVE_WEIGHT, -1: 1}, max_iter=2000
    )


def choose_costs(x_ND: Floats, presence_NC: Presence, config: VOCConfig, threads: int) -> dict[str, dict[str, float]]:
    """Mean average precision (%) over the folds, for each class and each candidate of `config.costs`.

    Folds are stratified and not shuffled, and the average precision is scikit-learn's, as in VISSL.

    Args:
        x_ND: Normalised features of trainval.
        presence_NC: 1, 0 or -1; 0 counts as absent.
        config: Candidates and folds.
        threads: SVMs trained at the same time.

    Returns:
        Class -> C (as text) -> value.

    Raises:
        RegbenchError: If a class has fewer positives, or negatives, than there are folds.
    """
    from sklearn.model_selection import cross_val_score

    y_NC = np.where(presence_NC == 1, 1, -1)
    for name, y_N in zip(CLASSES, y_NC.T, strict=True):
        positives = int((y_N == 1).sum())
        if min(positives, len(y_N) - positives) < config.folds:
            raise RegbenchError(
                f"VOC2007: {name} is in {positives} of {len(y_N)} images of trainval, too few (or too many) for "
                f"evaluation.voc07.folds={config.folds}"
            )
    jobs = [(c, cost) for c in range(len(CLASSES)) for cost in config.costs]

    def precision(job: tuple[int, float]) -> float:
        c, cost = job
        folds = cross_val_score(linear_svm(cost), x_ND, y_NC[:, c], cv=config.folds, scoring="average_precision")
        return 100 * float(folds.mean())

    with ThreadPoolExecutor(threads) as pool:
        bar = tqdm(pool.map(precision, jobs), "VOC2007: choosing C", len(jobs), disable=not sys.stderr.isatty())
        values = iter(list(bar))
    return {name: {f"{cost:g}": next(values) for cost in config.costs} for name in CLASSES}


def svm_precisions(
    train: tuple[Floats, Presence], test: tuple[Floats, Presence], costs: list[float], threads: int
) -> list[tuple[float, float]]:
    """For each class the 11-point and the full average precision (%) on the test images that are not difficult.

    Args:
        train: Normalised features and presence of trainval.
        test: The same of test.
        costs: C of each class.
        threads: SVMs trained at the same time.

    Raises:
        RegbenchError: If a class is in no image of test.
    """
    (x_ND, presence_NC), (queries_ND, answers_NC) = train, test
    for name, answers_N in zip(CLASSES, answers_NC.T, strict=True):
        if not (answers_N == 1).any():
            raise RegbenchError(f"VOC2007: {name} is in no image of test, so it has no average precision")

    def score(c: int) -> tuple[float, float]:
        svm = linear_svm(costs[c]).fit(x_ND, np.where(presence_NC[:, c] == 1, 1, -1))
        easy = answers_NC[:, c] != 0
        return average_precisions(answers_NC[easy, c] == 1, svm.decision_function(queries_ND[easy]))

    with ThreadPoolExecutor(threads) as pool:
        bar = tqdm(pool.map(score, range(len(CLASSES))), "VOC2007: SVMs", len(CLASSES), disable=not sys.stderr.isatty())
        return list(bar)


def average_precisions(positive_N: npt.NDArray[np.bool_], score_N: Floats) -> tuple[float, float]:
    """Average precision (%) of a ranking by `score_N`, 11-point and full.

    With p(r) the best precision at any recall of at least r, the 11-point one is the mean of p over r = 0, 0.1, …, 1
    (VOC2007's development kit), the full one is ∫ p(r) dr (that of VOC2010 on, and VISSL's). Images of one score count
    together, so that their order does not matter.

    Args:
        positive_N: Which images show the class, at least one.
        score_N: Larger where the class is more likely.
    """
    from sklearn.metrics import precision_recall_curve

    precision, recall, _ = precision_recall_curve(positive_N, score_N)  # by falling recall, down to (0, 1)
    precision, recall = precision[:-1], recall[:-1]
    best = np.maximum.accumulate(precision)
    eleven = [best[recall >= r - 1e-12].max(initial=0.0) for r in _RECALLS]
    widths = recall - np.append(recall[1:], 0.0)
    return 100 * float(np.mean(eleven)), 100 * float(widths @ best)
