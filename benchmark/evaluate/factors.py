"""Linear probes of the factors that images are made of: what does a representation keep?

Shapes: N = images, D = representation, T = targets (one for a quantity, sine and cosine for a place
on a circle, one for each class of a choice).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regbench.benchmark.evaluate.base import Evaluation, Interpolation, Scores, Task, register
from regbench.benchmark.evaluate.ridge import PENALTIES, Ridge
from regbench.benchmark.evaluate.subject import Subject
from regbench.benchmark.rundir.record import Score
from regbench.datasets.stored.factor_tables import read_factors
from regbench.datasets.stored.manifest import Manifest
from regbench.errors import RegbenchError
from regbench.settings import settings


@register("factors")
@settings
class FactorProbes(Evaluation):
    """Linear probes of each factor: ridge regression from the representation and from the
    embedding.

    A quantity and a place on a circle are scored by R², a choice by accuracy. The selection split
    chooses the penalty, for each factor on its own; the test split scores.

    Attributes:
        interpolation: Filter of the resize before the centre crop.
    """

    interpolation: Interpolation = "bicubic"

    title = "linear probes of factors"
    reference = "ridge regression on known factors, as in Chen, Luo and Li, NeurIPS 2021"

    def check(self, name: str, task: Task) -> None:
        """Refuse a data set that does not say what its images are made of."""
        manifest = Manifest.load(task.data_dir, task.dataset)
        if not all("factors" in entry for entry in manifest.splits.values()):
            raise RegbenchError(
                f"evaluation.protocols: {name} needs images whose factors are known, and data set "
                f"{task.dataset.name!r} has none; take dataset=scenes, or leave {name} out"
            )

    def run(self, name: str, subject: Subject) -> Scores:
        """Return the score of each factor on the test split."""
        scores = []
        for place, encoder in subject.layers.items():
            probed = subject.of(encoder)
            train = self._split(probed, "train")
            ridge = Ridge(train[0])
            selection = probed.task.splits(name)
            # With no split to choose on, training images choose, which nearly always takes the
            # smallest penalty.
            chosen_on = self._split(probed, selection[0]) if selection else train
            regressions, penalties = {}, {}
            for factor, target in train[1].items():
                regression = regressions[factor] = ridge.of(target.y_NT)
                held_out = chosen_on[1][factor]
                penalties[factor] = regression.best_penalty(chosen_on[0], held_out.score)
            split = selection[0] if selection else "train"
            what, candidates = f"{name}_penalties_{place}", list(PENALTIES)
            subject.note(what, selected_on=split, chosen=penalties, candidates=candidates)
            test_ND, targets = self._split(probed, "test")
            for factor, target in targets.items():
                predicted_NT = regressions[factor].predicted(penalties[factor], test_ND)
                how = f"ridge regression from the {place}, penalty {penalties[factor]:g}"
                # R², which may be negative, is a pure number.
                value, measure, unit = target.score(predicted_NT), "R²", ""
                if target.classes_N is not None:
                    value, measure, unit = 100 * value, "accuracy", "%"
                title = f"{factor.replace('_', ' ')} from the {place}, {measure}"
                scores.append(Score(f"factor_{factor}_{place}", value, "test", how, title, unit))
        return scores

    def _split(self, subject: Subject, split: str) -> tuple[Tensor, dict[str, _Target]]:
        """Return the features of a split in double precision, and what is to be predicted of
        each factor.
        """
        # The smallest eigenvalues of features are lost in single precision.
        x_ND = subject.features(split, self.interpolation).x_ND.cpu().double()
        factors = read_factors(subject.compute.data_dir, subject.task.dataset, split)
        return x_ND, {factor: _Target.of(factor, values) for factor, values in factors.items()}


@dataclass(frozen=True)
class _Target:
    """The values of a factor that a probe predicts.

    Attributes:
        y_NT: Values of each image, float64.
        classes_N: Class of each image, for a choice; else None.
    """

    y_NT: Tensor
    classes_N: Tensor | None = None

    @classmethod
    def of(cls, name: str, values: npt.NDArray[np.generic]) -> _Target:
        """Read a column, as `regbench.datasets.stored.factor_tables` defines it."""
        column_N = torch.from_numpy(values)
        if name.endswith("_turns"):
            # The angle itself jumps where a turn is full; its sine and cosine do not.
            angle_N = 2 * torch.pi * column_N
            return cls(torch.stack([angle_N.sin(), angle_N.cos()], dim=1))
        if column_N.is_floating_point():
            return cls(column_N[:, None])
        return cls(torch.nn.functional.one_hot(column_N).double(), column_N)

    def score(self, predicted_NT: Tensor) -> float:
        """Return R² or accuracy, at most 1."""
        if self.classes_N is not None:
            return (predicted_NT.argmax(dim=1) == self.classes_N).double().mean().item()
        residual = (self.y_NT - predicted_NT).square().sum()
        total = (self.y_NT - self.y_NT.mean(dim=0)).square().sum()
        return 1 - (residual / total).item()
