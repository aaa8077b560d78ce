"""Linear classification on VOC2007: a linear SVM for each class, scored by average precision.

As in VISSL's benchmark (Goyal et al., 2021), which the paper used (its appendix, "Linear
classification on VOC2007"): features of norm 1, L2-regularised squared hinge loss, positives
weighted twice, C chosen for each class by 3-fold cross-validation of the average precision on
trainval, the SVM trained anew on all of trainval. "Difficult" images (see
`regbench.datasets.stored.voc_files`) are negatives in training and left out of the test.

Shapes: N = images, D = representation, C = classes.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field

from regbench.benchmark.evaluate.base import Evaluation, Interpolation, Scores, Task, register
from regbench.benchmark.evaluate.features import NotFinite, progress_bar
from regbench.benchmark.evaluate.subject import Subject
from regbench.benchmark.rundir.record import Score
from regbench.datasets.loading.photometric import Normalize
from regbench.datasets.stored.voc_files import (
    CLASSES,
    VOCSplit,
    read_voc07,
    voc07_folder,
    whole_images,
)
from regbench.errors import RegbenchError
from regbench.settings import AtLeastOne, AtLeastTwo, Positive, settings

Floats = npt.NDArray[np.float64]
Presence = npt.NDArray[np.int8]

_EPSILON = 1e-5  # added to the norm that features are divided by, as VISSL does
_POSITIVE_WEIGHT = 2  # as VISSL does
# VOC2007 defines average precision by these eleven recalls; later years take the area under the
# whole curve.
_RECALLS = np.linspace(0, 1, 11)


@register("voc07")
@settings
class VOC07(Evaluation):
    """Linear SVMs on VOC2007, one for each class; the defaults are those of VISSL's benchmark.

    Attributes:
        resize: Length that the shorter side is resized to first, px.
        image_size: Side of the square that the whole image is then resized to, px.
        costs: Candidates for C; each class chooses its own by cross-validation on trainval.
        folds: Folds of the cross-validation.
        interpolation: Filter of both resizes.
        num_images: Numbers of images that trainval and test must have; change them for a folder
            that is not VOC2007's.
    """

    resize: AtLeastOne = 256
    image_size: AtLeastOne = 224
    costs: Annotated[tuple[Positive, ...], Field(min_length=1)] = (
        *(0.01, 0.1, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 50.0, 100.0, 1000.0),
    )
    folds: AtLeastTwo = 3
    interpolation: Interpolation = "bilinear"
    num_images: tuple[AtLeastOne, AtLeastOne] = (5011, 4952)

    title = "linear SVMs on VOC2007"
    needs_labels = False
    reference = "Goyal et al., VISSL, 2021"

    def check(self, name: str, task: Task) -> None:
        """Refuse if VOC2007 is not there or not complete, or the backbone takes other than
        colour images.
        """
        self._splits(name, task)

    def _splits(self, name: str, task: Task) -> dict[str, VOCSplit]:
        channels = task.dataset.input_channels
        if channels != 3:
            raise RegbenchError(
                f"VOC2007 has colour images and a backbone trained on {task.dataset.name} takes "
                f"{channels} channels; leave {name} out of evaluation.protocols"
            )
        return read_voc07(voc07_folder(task.data_dir), self.num_images)

    def run(self, name: str, subject: Subject) -> Scores:
        """Return the mean average precision on the test images, C chosen by cross-validation on
        trainval.
        """
        splits, threads = self._splits(name, subject.task), torch.get_num_threads()
        train = self._features(splits["trainval"], "trainval", subject)
        candidates = choose_costs(*train, self, threads)
        chosen = {}
        for each, precisions in candidates.items():
            # The greatest precision; of equal ones the first.
            chosen[each] = max(self.costs, key=lambda cost: precisions[f"{cost:g}"])
        subject.note(
            f"{name}_cost", selected_on="cross-validation", chosen=chosen, candidates=candidates
        )
        test = self._features(splits["test"], "test", subject)
        pairs = svm_precisions(train, test, list(chosen.values()), threads)
        eleven = sum(pair[0] for pair in pairs) / len(pairs)
        full = sum(pair[1] for pair in pairs) / len(pairs)
        costs = ", ".join(f"{cost:g}" for cost in self.costs)
        how = f"linear SVMs on VOC2007, {self.image_size} px"
        how += f", C from {costs} by {self.folds}-fold cross-validation"
        curve = f"{how}, average precision under the whole curve"
        points = f"{how}, 11-point average precision"
        return [
            Score("voc07_map", eleven, "test", points, "VOC07 mAP, 11-point"),
            Score("voc07_map_full", full, "test", curve, "VOC07 mAP"),
        ]

    def _features(self, split: VOCSplit, name: str, subject: Subject) -> tuple[Floats, Presence]:
        """Return a split's representations (n, d), each divided by its norm + 1e-5, and its
        presence (n, 20).
        """
        # The backbone knows images of its own data set's mean and standard deviation.
        dataset, compute = subject.dataset, subject.compute
        normalize = Normalize(dataset.mean, dataset.std, compute.device)
        batches = whole_images(
            split.paths,
            shorter=self.resize,
            size=self.image_size,
            interpolation=self.interpolation,
            batch_size=subject.batch_size,
            workers=compute.workers,
        )
        length = -(-len(split.paths) // subject.batch_size)
        parts = []
        for x_NCHW in progress_bar(batches, f"features of VOC2007 {name}", length):
            normal_NCHW = normalize(x_NCHW.to(compute.device, torch.float32))
            parts.append(subject.encoder.represent(normal_NCHW).cpu())
        x_ND = torch.cat(parts).double().numpy()
        norm_N1 = np.linalg.norm(x_ND, axis=1, keepdims=True)
        if not np.isfinite(norm_N1).all():
            raise NotFinite(f"the representations of VOC2007 {name} are not finite in length")
        return x_ND / (norm_N1 + _EPSILON), split.presence


def linear_svm(cost: float) -> Any:
    """Make LIBLINEAR's SVM: ½‖w‖² + cost Σᵢ cᵢ max(0, 1 − yᵢ w·xᵢ)², cᵢ = 2 for positives, the
    bias in w.
    """
    # The primal solver: VISSL's dual one has the same optimum, but does not reach it in its 2,000
    # iterations for the larger costs, and draws random numbers.
    from sklearn.svm import LinearSVC

    weights = {1: _POSITIVE_WEIGHT, -1: 1}
    return LinearSVC(C=cost, dual=False, class_weight=weights, max_iter=2000)


def choose_costs(
    x_ND: Floats, presence_NC: Presence, config: VOC07, threads: int
) -> dict[str, dict[str, float]]:
    """Return the mean average precision (%) over the folds, for each class and each candidate of
    `config.costs`.

    Folds are stratified and not shuffled, and the average precision is scikit-learn's, as in VISSL.
    A class with fewer positives, or negatives, than there are folds is refused.

    Args:
        x_ND: Normalised features of trainval.
        presence_NC: 1, 0 or -1; 0 counts as absent.
        config: Candidates and folds.
        threads: SVMs trained at the same time.
    """
    from sklearn.model_selection import cross_val_score

    y_NC = np.where(presence_NC == 1, 1, -1)
    for name, y_N in zip(CLASSES, y_NC.T, strict=True):
        positives = int((y_N == 1).sum())
        if min(positives, len(y_N) - positives) < config.folds:
            raise RegbenchError(
                f"VOC2007: {name} is in {positives} of {len(y_N)} images of trainval, too few (or "
                f"too many) for evaluation.voc07.folds={config.folds}"
            )
    jobs = list(itertools.product(range(len(CLASSES)), config.costs))

    def precision(job: tuple[int, float]) -> float:
        c, cost = job
        folds = cross_val_score(
            linear_svm(cost), x_ND, y_NC[:, c], cv=config.folds, scoring="average_precision"
        )
        return 100 * float(folds.mean())

    with ThreadPoolExecutor(threads) as pool:
        precisions = pool.map(precision, jobs)
        values = list(progress_bar(precisions, "VOC2007: choosing C", len(jobs)))
    found: dict[str, dict[str, float]] = {name: {} for name in CLASSES}
    for (c, cost), value in zip(jobs, values, strict=True):
        found[CLASSES[c]][f"{cost:g}"] = value
    return found


def svm_precisions(
    train: tuple[Floats, Presence], test: tuple[Floats, Presence], costs: list[float], threads: int
) -> list[tuple[float, float]]:
    """Return for each class the 11-point and the full average precision (%) on test images that are
    not difficult.

    Both splits are normalised features and presence; `costs` is C of each class.
    """
    (x_ND, presence_NC), (queries_ND, answers_NC) = train, test
    for name, answers_N in zip(CLASSES, answers_NC.T, strict=True):
        if not (answers_N == 1).any():
            raise RegbenchError(
                f"VOC2007: {name} is in no image of test, so it has no average precision"
            )

    def score(c: int) -> tuple[float, float]:
        svm = linear_svm(costs[c]).fit(x_ND, np.where(presence_NC[:, c] == 1, 1, -1))
        easy = answers_NC[:, c] != 0
        return average_precisions(answers_NC[easy, c] == 1, svm.decision_function(queries_ND[easy]))

    with ThreadPoolExecutor(threads) as pool:
        scores = pool.map(score, range(len(CLASSES)))
        return list(progress_bar(scores, "VOC2007: SVMs", len(CLASSES)))


def average_precisions(positive_N: npt.NDArray[np.bool_], score_N: Floats) -> tuple[float, float]:
    """Return the average precision (%) of a ranking by `score_N`, 11-point and full.

    With p(r) the best precision at any recall of at least r, the 11-point one is the mean of p over
    r = 0, 0.1, …, 1 (VOC2007's development kit), the full one is ∫ p(r) dr (that of VOC2010 on, and
    VISSL's). Images of equal score count together, so that their order does not matter.

    Args:
        positive_N: Mask of the images that show the class, at least one.
        score_N: Larger where the class is more likely.
    """
    from sklearn.metrics import precision_recall_curve

    # By falling recall, down to (0, 1).
    precision, recall, _ = precision_recall_curve(positive_N, score_N)
    precision, recall = precision[:-1], recall[:-1]
    best = np.maximum.accumulate(precision)
    # The margin keeps a recall that rounding has put just below its point.
    eleven = [best[recall >= r - 1e-12].max(initial=0.0) for r in _RECALLS]
    widths = recall - np.append(recall[1:], 0.0)
    return 100 * float(np.mean(eleven)), 100 * float(widths @ best)
