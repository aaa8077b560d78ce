"""What a representation holds of the known content and style of a latent world.

Shapes: N = examples, D = representation, T = targets, M = landmarks of the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regbench.benchmark.evaluate.base import Evaluation, Scores, Task, register
from regbench.benchmark.evaluate.ridge import PENALTIES, Regression, Ridge
from regbench.benchmark.evaluate.subject import Subject
from regbench.benchmark.rundir.record import Score
from regbench.datasets.loading import draws
from regbench.datasets.loading.latent_split import LatentSplit
from regbench.datasets.sources.latents import Latents
from regbench.errors import RegbenchError
from regbench.settings import AtLeastTwo, settings


@register("latents")
@settings
class LatentProbes(Evaluation):
    """Ridge regression of content and style, from the representation and from the embedding.

    R² is the mean over values, in percent, and 0 where it would be negative: `content_r2` by a
    linear regression, `content_kernel_r2` by one on Gaussian kernels about training examples, whose
    width is the median distance, `style_r2` linear. `content_mcc` is the mean correlation of each
    content value with a feature of its own, matched for the highest sum (Hyvärinen and Morioka,
    NeurIPS 2016). `cluster_accuracy` is that of a linear regression on the clusters, where there
    are any. The selection split chooses each penalty.

    Attributes:
        landmarks: Number of training examples that the kernels are about.
    """

    landmarks: AtLeastTwo = 500

    title = "content and style"
    reference = "Hyvärinen and Morioka, NeurIPS 2016; Zimmermann et al., ICML 2021"
    selects = "content_r2"

    def check(self, name: str, task: Task) -> None:
        """Refuse a data set whose content is not known."""
        if not isinstance(task.dataset.source, Latents):
            raise RegbenchError(
                f"evaluation.protocols: {name} needs examples whose content is known, and data set "
                f"{task.dataset.name!r} has none; take dataset=latents, or leave {name} out"
            )

    def select(self, name: str, subject: Subject) -> Scores:
        """Return R² of the content on the selection split."""
        splits = subject.task.splits(name)
        if not splits:
            return []
        probed = _Probed(subject, name, self.landmarks)
        predicted_NT, true_NT = probed.predictions("content", splits[0])
        value = _r2(predicted_NT, true_NT)
        return [Score("content_r2", value, splits[0], _LINEAR, "content R²")]

    def run(self, name: str, subject: Subject) -> Scores:
        """Return the scores on the test split."""
        scores = []
        for place, encoder in subject.layers.items():
            probed = _Probed(subject.of(encoder), name, self.landmarks)
            suffix, of = "", ""
            if place != "representation":
                suffix, of = f"_{place}", f" of the {place}"
            choices, candidates = probed.chosen(), list(PENALTIES)
            what, split = f"{name}_penalties_{place}", probed.selection
            subject.note(what, selected_on=split, chosen=choices, candidates=candidates)
            for short, value, how, title in probed.scores():
                score = Score(f"{short}{suffix}", value, "test", how, f"{title}{of}")
                # A representation should hold nothing of the style.
                scores.append(replace(score, higher_is_better=not short.startswith("style")))
        return scores


_LINEAR = "ridge regression, mean R² over values"


@dataclass(eq=False)
class _Probed:
    """A representation whose regressions are fitted to the training examples when asked for."""

    subject: Subject
    name: str
    landmarks: int

    def __post_init__(self) -> None:
        splits = self.subject.task.splits(self.name)
        # Without a split to choose on, training examples choose.
        self.selection = splits[0] if splits else "train"
        source = self.subject.task.dataset.source
        assert isinstance(source, Latents)
        self._source = source
        self.regressed = ["content", "content_kernel"]
        if source.style_dim:
            self.regressed.append("style")
        if source.prior == "clusters":
            self.regressed.append("cluster")

    def scores(self) -> Iterator[tuple[str, float, str, str]]:
        """Yield name, value, protocol and title of each score on the test split."""
        for what in self.regressed:
            predicted_NT, true_NT = self.predictions(what, "test")
            if what == "cluster":
                hits_N = predicted_NT.argmax(dim=1) == true_NT.argmax(dim=1)
                accuracy = 100 * hits_N.double().mean().item()
                yield "cluster_accuracy", accuracy, "ridge regression on clusters", "clusters"
                continue
            how = _LINEAR
            if what == "content_kernel":
                how = f"{_LINEAR}, on {self.landmarks} Gaussian kernels"
            yield f"{what}_r2", _r2(predicted_NT, true_NT), how, f"{what.replace('_', ' by ')} R²"
        matched = _matched(self._x_ND("test"), self._target("content", "test"))
        yield "content_mcc", matched, "mean absolute correlation after matching", "content MCC"

    def chosen(self) -> dict[str, float]:
        """Return the penalty of each regression."""
        return {what: self._fit(what)[0] for what in self.regressed}

    def predictions(self, what: str, split: str) -> tuple[Tensor, Tensor]:
        """Return a regression's predictions for a split, and the true values, (N, T) each."""
        penalty, regression = self._fit(what)
        predicted_NT = regression.predicted(penalty, self._features(what, split))
        return predicted_NT, self._target(what, split)

    def _fit(self, what: str) -> tuple[float, Regression]:
        return self.subject.once(f"{self.name} {what}", lambda: self._fitted(what))

    def _fitted(self, what: str) -> tuple[float, Regression]:
        regression = Ridge(self._features(what, "train")).of(self._target(what, "train"))
        held_out_ND = self._features(what, self.selection)
        true_NT = self._target(what, self.selection)

        def score(predicted_NT: Tensor) -> float:
            return -_unexplained(predicted_NT, true_NT)

        return regression.best_penalty(held_out_ND, score), regression

    def _x_ND(self, split: str) -> Tensor:
        # The smallest eigenvalues of features are lost in single precision.
        return self.subject.features(split, "bicubic").x_ND.cpu().double()

    def _features(self, what: str, split: str) -> Tensor:
        if what != "content_kernel":
            return self._x_ND(split)
        landmark_MD = self._x_ND("train")[: self.landmarks]
        width = torch.pdist(landmark_MD).median().clamp_min(torch.finfo(torch.float64).tiny)
        distance_NM = torch.cdist(self._x_ND(split), landmark_MD)
        kernel_NM: Tensor = (-0.5 * (distance_NM / width).square()).exp()
        return kernel_NM

    def _target(self, what: str, split: str) -> Tensor:
        world = LatentSplit(self._source, Path(f"{split}.json"))
        everything = np.arange(len(world))
        if what == "cluster":
            return F.one_hot(torch.from_numpy(world.labels), self._source.clusters).double()
        # The draws of the examples that evaluations see.
        ((content_NC, style_NS),) = world.latents(0, 0, everything, [draws.EVALUATION_VIEW])
        return style_NS if what == "style" else content_NC


def _r2(predicted_NT: Tensor, true_NT: Tensor) -> float:
    """Return the mean R² over the targets that vary, in percent, at least 0."""
    return max(0.0, 100 * (1 - _unexplained(predicted_NT, true_NT)))


def _unexplained(predicted_NT: Tensor, true_NT: Tensor) -> float:
    """Return the mean of 1 − R² over the targets that vary: a cluster may have no example."""
    residual_T = (true_NT - predicted_NT).square().sum(dim=0)
    total_T = (true_NT - true_NT.mean(dim=0)).square().sum(dim=0)
    return (residual_T / total_T)[true_NT.var(dim=0) > 0].mean().item()


def _matched(x_ND: Tensor, content_NC: Tensor) -> float:
    """Return the mean absolute correlation of content values and matched features, in percent."""
    from scipy.optimize import linear_sum_assignment  # slow to import, and few runs need it

    parts = []
    for each in (content_NC, x_ND):
        centred = each - each.mean(dim=0)
        parts.append(centred / centred.norm(dim=0).clamp_min(torch.finfo(torch.float64).tiny))
    correlation_CD = (parts[0].T @ parts[1]).abs().clamp_max(1)
    rows, columns = linear_sum_assignment(correlation_CD.numpy(), maximize=True)
    # A value that finds no feature of its own counts as 0.
    total = correlation_CD[rows, columns].sum().item()
    return float(100 * total / content_NC.shape[1])
