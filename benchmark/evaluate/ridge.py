"""Ridge regression from a representation, at several penalties.

Shapes: N = images, D = representation, T = targets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

PENALTIES = tuple(10.0**exponent for exponent in range(-6, 2))
"""Ridge penalties, as multiples of the mean variance of a feature: from tiny to strong."""


class Ridge:
    """Ridge regressions on the same features: one eigendecomposition serves all targets and
    penalties.
    """

    def __init__(self, x_ND: Tensor) -> None:
        """Take the features (N, D), float64."""
        self.mean_D = x_ND.mean(dim=0)
        self._x_ND = x_ND - self.mean_D
        self.eigenvalues_D, self.vectors_DD = torch.linalg.eigh(
            self._x_ND.T @ self._x_ND / len(x_ND)
        )

    def of(self, y_NT: Tensor) -> Regression:
        """Return the regression of some targets at any penalty."""
        # Centred, so that the penalty does not shrink the mean.
        centre_T = y_NT.mean(dim=0)
        product_DT = self.vectors_DD.T @ (self._x_ND.T @ (y_NT - centre_T)) / len(self._x_ND)
        return Regression(self, product_DT, centre_T)


@dataclass(frozen=True)
class Regression:
    """The ridge regressions of some targets.

    Attributes:
        ridge: The features' mean and eigendecomposition.
        product_DT: Covariance of features and targets, in the directions of the eigenvectors.
        centre_T: Mean of the targets.
    """

    ridge: Ridge
    product_DT: Tensor
    centre_T: Tensor

    def predicted(self, penalty: float, x_ND: Tensor) -> Tensor:
        """Predict the targets, (N, T), from other features."""
        eigenvalues_D = self.ridge.eigenvalues_D
        added = penalty * eigenvalues_D.mean()
        # A direction without variance carries nothing; without the bound it would divide by
        # rounding.
        damped_D = (eigenvalues_D.clamp_min(0) + added).clamp_min(torch.finfo(x_ND.dtype).tiny)
        weight_DT = self.ridge.vectors_DD @ (self.product_DT / damped_D[:, None])
        predicted_NT: Tensor = (x_ND - self.ridge.mean_D) @ weight_DT + self.centre_T
        return predicted_NT

    def best_penalty(self, x_ND: Tensor, score: Callable[[Tensor], float]) -> float:
        """Return the penalty whose predictions from other features have the highest score."""
        return max(PENALTIES, key=lambda penalty: score(self.predicted(penalty, x_ND)))
