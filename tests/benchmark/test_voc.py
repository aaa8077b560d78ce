"""Average precision against plain counting and scikit-learn.

The SVMs against ones fitted directly.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from regbench.benchmark.evaluate.features import Encoder, NotFinite
from regbench.benchmark.evaluate.voc import VOC07, average_precisions, choose_costs, svm_precisions
from regbench.benchmark.settings.sweep import load_run
from regbench.datasets.stored.voc_files import CLASSES
from tests.refusals import is_refused
from tests.voc import TEST, TRAINVAL, write_voc07

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


def slow(positive: list[bool], score: list[float]) -> tuple[float, float]:
    """By the definitions: precision and recall of every threshold, the best precision from each
    recall on.
    """
    curve = []
    for threshold in sorted(set(score)):
        found = [p for p, s in zip(positive, score, strict=True) if s >= threshold]
        curve.append((sum(found), sum(found) / len(found)))
    hits = sum(positive)

    def best(least: float) -> float:
        return max((precision for count, precision in curve if count >= least - 1e-9), default=0.0)

    eleven = sum(best(hits * r / 10) for r in range(11)) / 11
    full = sum(best(count) for count in range(1, hits + 1)) / hits
    return 100 * eleven, 100 * full


def ranking(seed: int, ties: bool) -> tuple[Bools, Floats]:
    rng = np.random.default_rng(seed)
    positive = rng.random(60) < 0.3
    score = rng.normal(positive * 0.8)
    return positive, np.round(score, 1) if ties else score


@pytest.mark.parametrize("seed", range(20))
def test_average_precision_of_distinct_scores(seed: int) -> None:
    from sklearn.metrics import average_precision_score

    positive, score = ranking(seed, ties=False)
    found = average_precisions(positive, score)
    assert found == pytest.approx(slow(positive.tolist(), score.tolist()))
    # scikit-learn's is without the envelope, so never above.
    assert found[1] > 100 * average_precision_score(positive, score)


@pytest.mark.parametrize("seed", range(5))
def test_ties_count_together(seed: int) -> None:
    """A recall that is reached within a tie has the precision after it: the order of equal
    scores does not matter.
    """
    positive, score = ranking(seed, ties=True)
    found = average_precisions(positive, score)
    assert found[0] == pytest.approx(slow(positive.tolist(), score.tolist())[0])
    order = np.random.default_rng(1).permutation(60)
    assert average_precisions(positive[order], score[order]) == pytest.approx(found)


def test_average_precision_by_hand() -> None:
    """Ranks 1, 3 and 6 of 6: precisions 1, 2/3 and 1/2 from recalls 1/3, 2/3 and 1."""
    eleven, full = average_precisions(np.array([1, 0, 1, 0, 0, 1], bool), -np.arange(6.0))
    assert eleven == pytest.approx(100 * (4 * 1 + 3 * 2 / 3 + 4 * 1 / 2) / 11)
    assert full == pytest.approx(100 * (1 + 2 / 3 + 1 / 2) / 3)


def clouds(n: int, seed: int) -> tuple[Floats, npt.NDArray[np.int8]]:
    """Each image shows one class easily and perhaps another one, marked difficult or not."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(20, 12))
    first = np.arange(n) % 20
    presence = np.full((n, 20), -1, np.int8)
    presence[np.arange(n), rng.integers(0, 20, n)] = rng.choice([0, 1], n)
    presence[np.arange(n), first] = 1
    x = (presence == 1) @ centres + 0.7 * rng.normal(size=(n, 12))
    x += 0.5 * (presence == 0) @ centres
    return x / np.linalg.norm(x, axis=1, keepdims=True), presence


def dual_svm(cost: float) -> Any:
    """LIBLINEAR's dual solver, to its optimum."""
    from sklearn.svm import LinearSVC

    how = {"dual": True, "max_iter": 10**6, "tol": 1e-9, "random_state": 0}
    return LinearSVC(C=cost, class_weight={1: 2, -1: 1}, **how)


CONFIG = VOC07(costs=(0.01, 0.5, 20.0))


def test_costs_are_chosen_as_by_hand() -> None:
    """Folds by hand, LIBLINEAR's dual solver, difficult images as negatives.

    The primal one finds the same optimum.
    """
    from sklearn.metrics import average_precision_score
    from sklearn.model_selection import StratifiedKFold

    x, presence = clouds(160, seed=0)
    found = choose_costs(x, presence, CONFIG, threads=2)
    assert list(found) == list(CLASSES)
    for c in (0, 7, 19):
        y = np.where(presence[:, c] == 1, 1, -1)
        for cost in CONFIG.costs:
            values = []
            for train, test in StratifiedKFold(3).split(x, y):
                svm = dual_svm(cost).fit(x[train], y[train])
                values.append(average_precision_score(y[test], svm.decision_function(x[test])))
            assert found[CLASSES[c]][f"{cost:g}"] == pytest.approx(100 * np.mean(values), abs=0.5)


def test_svms_are_those_of_scikit_learn_and_difficult_images_are_left_out() -> None:
    train, test = clouds(160, seed=0), clouds(120, seed=1)
    costs = [0.5] * 20
    found = svm_precisions(train, test, costs, threads=3)
    changed = 0
    for c in range(20):
        y = np.where(train[1][:, c] == 1, 1, -1)
        score, answers = dual_svm(0.5).fit(train[0], y).decision_function(test[0]), test[1][:, c]
        easy = [(a == 1, float(s)) for a, s in zip(answers, score, strict=True) if a != 0]
        assert found[c] == pytest.approx(slow(*map(list, zip(*easy, strict=True))), abs=0.5)
        with_difficult = slow((answers == 1).tolist(), score.tolist())
        changed += found[c] != pytest.approx(with_difficult, abs=0.5)
    assert changed > 5


def test_representations_that_are_not_finite_are_not_scored(tmp_path: Path) -> None:
    """As by every other evaluation; a trained network has diverged then."""
    write_voc07(tmp_path)
    dataset = load_run(["dataset=cifar10"])[0].dataset
    layer = nn.Linear(3 * 8 * 8, 2)
    nn.init.constant_(layer.weight, float("nan"))
    encoder = Encoder(nn.Sequential(nn.Flatten(), layer), 2)
    subject: Any = SimpleNamespace(dataset=dataset, encoder=encoder, batch_size=64)
    subject.task = SimpleNamespace(dataset=dataset, data_dir=tmp_path)
    subject.compute = SimpleNamespace(device=torch.device("cpu"), workers=1)
    with is_refused("of VOC2007 trainval are not finite in length") as caught:
        VOC07(image_size=8, num_images=(TRAINVAL, TEST)).run("voc07", subject)
    assert isinstance(caught.value, NotFinite)


def test_a_class_that_no_test_image_shows_is_refused() -> None:
    train, (x, presence) = clouds(160, seed=0), clouds(120, seed=1)
    presence[:, 3] = -1
    with is_refused("boat is in no image of test"):
        svm_precisions(train, (x, presence), [1.0] * 20, threads=1)


def test_a_class_with_fewer_images_than_folds_is_refused() -> None:
    x, presence = clouds(160, seed=0)
    presence[:, 3] = -1
    presence[:2, 3] = 1
    with is_refused(r"boat is in 2 of 160 images.*evaluation\.voc07\.folds=3"):
        choose_costs(x, presence, replace(CONFIG, folds=3), threads=1)


@pytest.mark.slow
def test_what_takes_long_to_import_is_imported_where_it_is_used() -> None:
    """These take seconds, and neither a sweep with nothing to run nor most runs have a use for
    them.
    """
    program = (
        "import sys, regbench.benchmark.run; from regbench.benchmark.settings.sweep import "
        "load_run; load_run(['network=vit_small']); load_run(['network=resnet_tiny']); sys.exit(', "
        "'.join({'sklearn', 'timm', 'torchvision', 'torch._dynamo'} & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parent)
