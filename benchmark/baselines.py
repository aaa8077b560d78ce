"""Trivial baselines: representations that nothing was trained for, which a method has to beat.

A task on which no method beats them measures no representation learning.

Shapes: N = images, D = base features, K = chosen features, C = channels, S = side of an image,
P = random patches, F = values of a patch, L = places of a patch in an image.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regbench.benchmark.evaluate.base import Evaluation
from regbench.benchmark.evaluate.features import Encoder, Features
from regbench.benchmark.evaluate.knn import KNN
from regbench.benchmark.evaluate.linear import LinearProbe
from regbench.benchmark.evaluate.subject import Subject

COMPONENTS = (16, 32, 64, 128, 256)
"""Numbers of principal components that the selection split chooses from."""

PATCHES = (200, 400, 800)
"""Numbers of random patches that the selection split chooses from."""

T = TypeVar("T")

_ALL = "all features"
_PATCH_PX = 6
# Added to a patch's variance and to the eigenvalues of the whitening, in units of the normalised
# pixels: what is flatter than this is noise.
_CONTRAST_FLOOR = 0.01
_WHITENING_FLOOR = 0.1
# A component is kept if its variance exceeds this share of the first component's.
_NO_VARIANCE = 1e-10
_WHITENED_PATCHES = 100_000
# Distances of this many images at a time take 75 MB at 32 px.
_IMAGES_AT_A_TIME = 32


def pixels(channels: int, image_size: int) -> Encoder:
    """Return the images themselves as a representation."""
    return Encoder(nn.Flatten(), channels * image_size**2)


def untrained(subject: Subject, baseline: str) -> Subject:
    """Return a subject whose encoder is a trivial baseline's.

    Args:
        subject: The images, with their pixels as the representation.
        baseline: "raw_pixels"; "pca", their whitened principal components, whose number is chosen
            by kNN; "hog", histograms of oriented gradients (Dalal and Triggs, CVPR 2005), as they
            are or whitened; "random_patches", similarities to whitened patches of training images,
            pooled in quadrants (Coates, Lee and Ng, AISTATS 2011; with random patches: Coates and
            Ng, ICML 2011), with a number of patches that is chosen, or whitened. The form of the
            last two is chosen once for kNN and once for linear probes: a strong baseline has both.
    """
    if baseline == "raw_pixels":
        return subject
    if baseline == "pca":
        return subject.of(chosen_pca(subject))
    base, sizes = (_hog(subject), ()) if baseline == "hog" else (_random_patches(subject), PATCHES)

    candidates = functools.cache(functools.partial(_forms, base, sizes))

    @functools.cache
    def chosen_by(by: str) -> Subject:
        # The judge is always the same, so that a later evaluation of the run sees the same form.
        # Its name differs from that of the cell's own evaluation, which may have other settings.
        judge: Evaluation = KNN() if by == "knn" else LinearProbe()
        what, name = f"{baseline}_for_{by}", f"{by}_of_forms"
        found = {_ALL: base.projected(nn.Identity(), base.encoder.dim)}
        if base.task.splits(name):  # else there is nothing to choose by
            found = candidates()
        return found[_choose(base, what, found, judge, name, _ALL)]

    # kNN sees one form; all other evaluations see the one that is chosen for linear probes.
    base.form_for = lambda evaluation: chosen_by("knn" if evaluation == "knn" else "probe")
    return base


def _forms(base: Subject, sizes: Sequence[int]) -> dict[str, Subject]:
    """Return by name: all features, those of the first `sizes` patches, and whitened components."""
    dim = base.encoder.dim
    found = {_ALL: base.projected(nn.Identity(), dim)}
    for size in sizes[:-1]:
        first = dim // sizes[-1] * size
        found[f"{size} patches"] = base.projected(_First(first), first)
    largest = _fitted(base.features("train", KNN().interpolation), COMPONENTS[-1])
    for components in COMPONENTS:
        if components <= len(largest.weight_KD):
            label = f"{components} whitened components"
            found[label] = base.projected(largest.first(components), components)
    return found


def _choose(
    base: Subject,
    what: str,
    candidates: Mapping[T, Subject],
    judge: Evaluation,
    name: str,
    default: T,
) -> T:
    """Choose a candidate by the judge's score, and write that down before the test split opens.

    Take the default if there is no split to choose on.
    """
    noted = base.choices.entries.get(what)
    if noted is not None:  # by an attempt before this one
        base.note(what, **noted)
        chosen: T = noted["chosen"]
        return chosen
    top1: dict[T, float] = {}
    if base.task.splits(name):
        for label, candidate in candidates.items():
            for score in judge.select(name, candidate.unrecorded())[:1]:
                top1[label] = score.value
    chosen = max(top1, key=lambda label: top1[label]) if top1 else default
    shown = {str(label): value for label, value in top1.items()}
    selected_on = base.task.select_on if top1 else "given"
    base.note(what, selected_on=selected_on, chosen=chosen, candidates=shown)
    return chosen


def _hog(subject: Subject) -> Subject:
    """Return the subject under histograms of oriented gradients."""
    side, module = subject.dataset.image_size, _Hog()
    blank = torch.zeros(1, subject.dataset.input_channels, side, side)
    return subject.of(Encoder(module, module(blank).shape[1]))


class _Hog(nn.Module):
    """Histograms of oriented gradients of each image, by scikit-image."""

    def forward(self, x_NCHW: Tensor) -> Tensor:
        # Scikit-image takes long to import, and few runs need it.
        from skimage.feature import hog

        # About eight cells along a side: cells of 4 px for images of 32 px.
        cell_px = max(x_NCHW.shape[-1] // 8, 2)
        found = []
        for image_HWC in x_NCHW.permute(0, 2, 3, 1).cpu().numpy():
            # Of the channels of a pixel, the one with the steepest gradient counts.
            found.append(hog(image_HWC, 9, (cell_px, cell_px), (2, 2), channel_axis=-1))
        return torch.from_numpy(np.stack(found)).to(x_NCHW)


def _random_patches(subject: Subject) -> Subject:
    """Return the subject under similarities to patches of its training images, drawn by its
    seed.
    """
    side, channels = subject.dataset.image_size, subject.dataset.input_channels
    x_ND = subject.features("train", KNN().interpolation).x_ND.cpu()
    x_NCSS = x_ND.unflatten(1, (channels, side, side)).numpy()
    patch_px = min(_PATCH_PX, side)
    random = np.random.default_rng(subject.seed)
    images = random.integers(len(x_NCSS), size=_WHITENED_PATCHES)
    corners = random.integers(side - patch_px + 1, size=(2, _WHITENED_PATCHES))
    windows = np.lib.stride_tricks.sliding_window_view(x_NCSS, (patch_px, patch_px), axis=(2, 3))
    drawn = windows[images, :, corners[0], corners[1]].reshape(_WHITENED_PATCHES, -1)
    module = _Patches(torch.from_numpy(drawn), PATCHES[-1], patch_px, max(side // 32, 1))
    return subject.of(Encoder(module.to(subject.compute.device), 4 * PATCHES[-1]))


class _Patches(nn.Module):
    """A layer of whitened patches with triangle activations, pooled in quadrants.

    Coates, Lee and Ng, AISTATS 2011, section 3; the patches are drawn, not learned.
    """

    mean_F: Tensor
    whitening_FF: Tensor
    patch_PF: Tensor

    def __init__(self, drawn_NF: Tensor, patches: int, patch_px: int, stride_px: int) -> None:
        super().__init__()
        self._patch_px, self._stride_px = patch_px, stride_px
        level_NF = _level(drawn_NF.double())
        mean_F = level_NF.mean(dim=0)
        eigenvalues_F, vectors_FF = torch.linalg.eigh(level_NF.T.cov())
        whitening_FF = vectors_FF / (eigenvalues_F + _WHITENING_FLOOR).sqrt() @ vectors_FF.T
        patch_PF = (level_NF[:patches] - mean_F) @ whitening_FF
        self.register_buffer("mean_F", mean_F.float())
        self.register_buffer("whitening_FF", whitening_FF.float())
        self.register_buffer("patch_PF", patch_PF.float())

    def forward(self, x_NCHW: Tensor) -> Tensor:
        found = []
        for x_BCHW in x_NCHW.split(_IMAGES_AT_A_TIME):
            columns_BFL = F.unfold(x_BCHW, self._patch_px, stride=self._stride_px)
            white_BLF = (_level(columns_BFL.mT) - self.mean_F) @ self.whitening_FF
            distance_BLP = torch.cdist(white_BLF, self.patch_PF.expand(len(x_BCHW), -1, -1))
            active_BLP = (distance_BLP.mean(dim=2, keepdim=True) - distance_BLP).relu()
            side = math.isqrt(active_BLP.shape[1])
            quadrants = F.adaptive_avg_pool2d(active_BLP.mT.unflatten(2, (side, side)), 2)
            # The features of a patch lie together, so that the first patches can be taken.
            found.append(quadrants.flatten(1))
        return torch.cat(found)


def _level(patches_NF: Tensor) -> Tensor:
    """Give each patch mean 0 and, unless it is flat, deviation 1."""
    centred_NF = patches_NF - patches_NF.mean(dim=-1, keepdim=True)
    return centred_NF / (centred_NF.square().mean(dim=-1, keepdim=True) + _CONTRAST_FLOOR).sqrt()


class _First(nn.Module):
    """Takes the first features."""

    count: Tensor

    def __init__(self, count: int) -> None:
        super().__init__()
        # A buffer, so that the fingerprint of an evaluation's kept state depends on it.
        self.register_buffer("count", torch.tensor(count))

    def forward(self, x_ND: Tensor) -> Tensor:
        return x_ND[:, : int(self.count)]


def chosen_pca(subject: Subject) -> Encoder:
    """Fit whitened principal components to raw pixels and choose their number by weighted kNN."""
    # The choice is written down before the test split opens. If there is no split to choose on, the
    # middle number of components is taken.
    largest = _fitted(subject.features("train", KNN().interpolation), COMPONENTS[-1])
    most = len(largest.weight_KD)
    numbers = [number for number in COMPONENTS if number <= most] or [most]
    candidates = {each: subject.of(Encoder(largest.first(each), each)) for each in numbers}
    middle = numbers[len(numbers) // 2]
    return candidates[_choose(subject, "pca_components", candidates, KNN(), "knn", middle)].encoder


def _fitted(train: Features, components: int) -> _Projection:
    """Fit principal components to features; fewer if there are fewer images or features."""
    # Scikit-learn takes long to import, and few runs need it.
    from sklearn.decomposition import PCA

    x_ND = train.x_ND.cpu().double().numpy()
    pca = PCA(min(components, *x_ND.shape), whiten=True, svd_solver="randomized", random_state=0)
    pca.fit(x_ND)
    # Whitening would blow up components that vary by rounding alone.
    varies_K = pca.explained_variance_ > _NO_VARIANCE * pca.explained_variance_[0]
    deviation_K = torch.from_numpy(pca.explained_variance_[varies_K]).sqrt()
    weight_KD = torch.from_numpy(pca.components_[varies_K]) / deviation_K[:, None]
    return _Projection(weight_KD.float(), torch.from_numpy(pca.mean_).float())


class _Projection(nn.Module):
    """Projects flattened images or features, less their mean, onto the rows of a matrix."""

    weight_KD: Tensor
    mean_D: Tensor

    def __init__(self, weight_KD: Tensor, mean_D: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight_KD", weight_KD)
        self.register_buffer("mean_D", mean_D)

    def forward(self, x_NCHW: Tensor) -> Tensor:
        # Kept features may lie in main memory while the images are on a GPU.
        x_ND = x_NCHW.flatten(1)
        return (x_ND - self.mean_D.to(x_ND.device)) @ self.weight_KD.to(x_ND.device).T

    def first(self, components: int) -> _Projection:
        """Return the projection onto the first components alone."""
        return _Projection(self.weight_KD[:components], self.mean_D)
