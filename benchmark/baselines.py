"""Trivial baselines: representations that nothing was trained for, which a method has to beat.

A task on which no method beats them measures no representation learning.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regbench.benchmark.evaluate.features import Encoder, Features
from regbench.benchmark.evaluate.knn import KNN
from regbench.benchmark.evaluate.subject import Subject

COMPONENTS = (16, 32, 64, 128, 256)
"""Numbers of principal components that the selection split chooses from."""


def pixels(channels: int, image_size: int) -> Encoder:
    """Return the images themselves as a representation."""
    return Encoder(nn.Flatten(), channels * image_size**2)


def chosen_pca(subject: Subject) -> Encoder:
    """Fit whitened principal components to raw pixels and choose their number by weighted kNN."""
    # The choice is written down before the test split opens. Where there is no split to choose on,
    # the middle number of components is taken.
    largest = _fitted(subject.features("train", KNN().interpolation), COMPONENTS[-1])
    most = len(largest.weight_KD)
    encoders = {}
    for components in COMPONENTS:
        if components <= most:
            encoders[components] = Encoder(largest.first(components), components)
    encoders = encoders or {most: Encoder(largest, most)}
    noted = subject.choices.entries.get("pca_components")
    if noted is not None:  # by an attempt before this one
        subject.note("pca_components", **noted)
        return encoders[noted["chosen"]]
    top1 = {}
    for components, encoder in encoders.items():
        for score in KNN().select("knn", subject.of(encoder))[:1]:
            top1[components] = score.value
    middle = list(encoders)[len(encoders) // 2]
    chosen = max(top1, key=lambda components: top1[components]) if top1 else middle
    subject.note(
        "pca_components",
        selected_on=subject.task.select_on if top1 else "given",
        chosen=chosen,
        candidates={str(components): value for components, value in top1.items()},
    )
    return encoders[chosen]


def _fitted(train: Features, components: int) -> _Projection:
    """Fit principal components to raw pixels; fewer where there are fewer images or pixels."""
    # Scikit-learn takes long to import, and few runs need it.
    from sklearn.decomposition import PCA

    x_ND = train.x_ND.cpu().double().numpy()
    pca = PCA(min(components, *x_ND.shape), whiten=True, svd_solver="randomized", random_state=0)
    pca.fit(x_ND)
    deviation_K = torch.from_numpy(pca.explained_variance_).sqrt()
    weight_KD = torch.from_numpy(pca.components_) / deviation_K[:, None]
    return _Projection(weight_KD.float(), torch.from_numpy(pca.mean_).float())


class _Projection(nn.Module):
    """Projects flattened images, less their mean, onto the rows of a matrix."""

    weight_KD: Tensor
    mean_D: Tensor

    def __init__(self, weight_KD: Tensor, mean_D: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight_KD", weight_KD)
        self.register_buffer("mean_D", mean_D)

    def forward(self, x_NCHW: Tensor) -> Tensor:
        return (x_NCHW.flatten(1) - self.mean_D) @ self.weight_KD.T

    def first(self, components: int) -> _Projection:
        """Return the projection onto the first components alone."""
        return _Projection(self.weight_KD[:components], self.mean_D)
