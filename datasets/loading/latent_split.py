"""Examples of a latent world, drawn when they are used: no file holds them.

Random numbers are those of `draws`, so an example does not depend on the batch that it is in,
except for the last bit of a product of matrices.
Shapes: N = examples, V = views, C = content values, S = style values, D = length of an observation,
K = clusters, U = uniform numbers of an example.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from regbench.datasets.loading import draws
from regbench.datasets.loading.crops import Ints
from regbench.datasets.sources.latents import LatentPictures, Latents
from regbench.errors import RegbenchError

LAW = 1
"""Version of the laws; it must change if the same settings give other numbers."""

# Purposes of a key, after those of `draws`.
_CONTENT, _STYLE = 4, 5
# A view's number is added to its split's, so that splits share no draws.
_VIEWS_OF_SPLIT = 1000
_SPLITS = ("unlabeled", "train", "tuning", "test")
# Share of the variance of clustered content that lies within a cluster.
_WITHIN = 0.1
_SLOPE = 0.2
# Number of batches that are drawn at once.
_AHEAD = 8
# Side of the square that a picture grows from, and of kernels; number of channels in between.
_FIRST_PX, _WIDTH = 4, 16
# Number of tabulated angles of the von Mises-Fisher law, and of halvings to find its parameter.
_ANGLES, _HALVINGS = 10_001, 60


class LatentSplit:
    """A split of a latent world.

    Attributes:
        source: Settings of the world.
        path: File of the split, whose stem is its name.
        device: Device that observations are computed on.
    """

    def __init__(self, source: Latents, path: Path, device: torch.device | str = "cpu") -> None:
        """Draw the network that mixes, and all else that the world's examples share."""
        self.source, self.path, self.device = source, path, torch.device(device)
        random = np.random.Generator(np.random.Philox(key=source.world_seed))
        widths = [source.content_dim + source.style_dim] + [source.observed_dim] * source.depth
        self._layers = []
        for width in widths[:-1]:
            basis = np.linalg.qr(random.standard_normal((source.observed_dim, width)))[0]
            self._layers.append(self._tensor(basis.T).float())
        self._centre_KC = self._tensor(
            random.standard_normal((source.clusters, source.content_dim))
        )
        towards_style = random.standard_normal((source.content_dim, source.style_dim))
        self._style_of_content_CS = F.normalize(self._tensor(towards_style), dim=0)
        self._kernels = []
        if isinstance(source, LatentPictures):
            self._kernels = self._drawn_kernels(source, random)
        falling = torch.arange(1, source.content_dim + 1, dtype=torch.float64) ** -source.decay
        self._deviation_C: Tensor | float = 1.0
        if source.prior == "anisotropic":
            self._deviation_C = (falling / falling.square().mean().sqrt()).to(self.device)

    def _tensor(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def _drawn_kernels(self, source: LatentPictures, random: np.random.Generator) -> list[Tensor]:
        """Draw the kernels that turn a vector into a square, and that into ones twice as large."""
        doublings = (source.picture_px // _FIRST_PX).bit_length() - 1
        widths = [source.observed_dim] + [_WIDTH] * doublings + [3]
        kernels = []
        for number, (width, next_width) in enumerate(itertools.pairwise(widths)):
            # After the first kernel a pixel is a sum over four, half of which leaky ReLU shrank.
            square = 2 * (1 + _SLOPE**2) * width if number else width
            kernel = random.standard_normal((width, next_width, _FIRST_PX, _FIRST_PX))
            kernels.append(self._tensor(kernel / math.sqrt(square)).float())
        return kernels

    def __len__(self) -> int:
        """Count the examples."""
        return self.source.counts[self.path.stem]

    @functools.cached_property
    def labels(self) -> Ints:
        """The class of each example, (N,): its cluster, or the signs of its first values."""
        if self.source.prior == "clusters":
            return self._clusters(self._content_draws()).cpu().numpy()
        signs = len(self.source.class_names).bit_length() - 1
        positive = (self._content_NC[:, :signs] > 0).long()
        return (positive * 2 ** torch.arange(signs, device=self.device)).sum(dim=1).cpu().numpy()

    def content(self, indices: Ints) -> Tensor:
        """Return the content of examples, (N, C) float64."""
        return self._content_NC[self._tensor(indices)]

    @functools.cached_property
    def _content_NC(self) -> Tensor:
        """The content of all examples, kept because every batch would draw it again."""
        source, width = self.source, self.source.content_dim
        u_NU = self._content_draws()
        first_NC = u_NU[:, :width]
        if source.prior == "uniform":
            return math.sqrt(3) * (2 * first_NC - 1)
        if source.prior == "laplace":
            centred_NC = first_NC - 0.5
            return -centred_NC.sign() * torch.log1p(-2 * centred_NC.abs()) / math.sqrt(2)
        pairs_NU = u_NU[:, : 2 * width]
        if source.prior == "student":
            scale = math.sqrt((source.freedom - 2) / source.freedom)
            return scale * _bell(pairs_NU, source.freedom)
        normal_NC = _bell(pairs_NU)
        if source.prior == "sphere":
            return math.sqrt(width) * F.normalize(normal_NC, dim=1)
        if source.prior == "sparse":
            present_NC = u_NU[:, 2 * width : 3 * width] < source.density
            return normal_NC * present_NC / math.sqrt(source.density)
        if source.prior == "clusters":
            centre_NC = self._centre_KC[self._clusters(u_NU)]
            return math.sqrt(1 - _WITHIN) * centre_NC + math.sqrt(_WITHIN) * normal_NC
        return normal_NC * self._deviation_C

    def style(self, content_NC: Tensor, normal_NS: Tensor) -> Tensor:
        """Return the style, (N, S), a share of which the content decides."""
        share = self.source.dependence
        if not share:
            return self.source.style_strength * normal_NS
        decided_NS = content_NC @ self._style_of_content_CS
        free = math.sqrt(1 - share**2)
        return self.source.style_strength * (share * decided_NS + free * normal_NS)

    def latents(
        self, seed: int, epoch: int, indices: Ints, views: Sequence[int]
    ) -> list[tuple[Tensor, Tensor]]:
        """Return content (N, C) and style (N, S) of each view of examples, in an epoch."""
        drawn = self._drawn(seed, epoch, indices, views)
        return [(content_NC, self.style(content_NC, normal_NS)) for content_NC, normal_NS in drawn]

    def _drawn(
        self, seed: int, epoch: int, indices: Ints, views: Sequence[int]
    ) -> list[tuple[Tensor, Tensor]]:
        """Return content (N, C) and the normal numbers of the style (N, S) of each view."""
        source, found = self.source, []
        content_NC = self.content(indices)
        for view in views:
            number = view + _VIEWS_OF_SPLIT * _SPLITS.index(self.path.stem)
            key = draws.keys(seed, epoch, indices, _STYLE, number)
            u_NU = self._tensor(draws.uniforms(key, 0, 2 * source.style_dim))
            view_NC = content_NC
            # The first view of pretraining and the one that is evaluated show the example itself.
            if source.correlation is not None and view not in (0, draws.EVALUATION_VIEW):
                count = 2 * source.content_dim + 1
                shared_NU = draws.uniforms(key, 2 * source.style_dim, count)
                view_NC = self._near(content_NC, shared_NU)
            found.append((view_NC, _bell(u_NU)))
        return found

    def observations(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Return the observations of the content and the style of views, see `latents`, float32:
        (V, N, D, 1, 1), or pictures (V, N, 3, S, S).
        """
        x_BD = torch.cat([torch.cat(pair, dim=1) for pair in pairs]).float() @ self._layers[0]
        for layer_DD in self._layers[1:]:
            x_BD = F.leaky_relu(x_BD, _SLOPE) @ layer_DD
        x_BCSS = x_BD[:, :, None, None]
        if self._kernels:
            first, *doubling = self._kernels
            x_BCSS = F.conv_transpose2d(x_BCSS, first)
            for kernel in doubling:
                x_BCSS = F.leaky_relu(x_BCSS, _SLOPE)
                x_BCSS = F.conv_transpose2d(x_BCSS, kernel, stride=2, padding=1)
        return x_BCSS.unflatten(0, (len(pairs), -1))  # type: ignore[no-any-return]

    def stream(
        self, order: Ints, batch_size: int, seed: int, epoch: int, views: Sequence[int]
    ) -> Generator[tuple[Ints, Tensor]]:
        """Yield the indices and the observations of each batch of an epoch."""
        # Many small draws take longer than few large ones. Products are computed batch by batch, as
        # their last bits depend on the size.
        for first in range(0, len(order), _AHEAD * batch_size):
            ahead = order[first : first + _AHEAD * batch_size]
            drawn = self._drawn(seed, epoch, ahead, views)
            for start in range(0, len(ahead), batch_size):
                rows, pairs = slice(start, start + batch_size), []
                for content_NC, normal_NS in drawn:
                    pairs.append((content_NC[rows], self.style(content_NC[rows], normal_NS[rows])))
                yield ahead[rows], self.observations(pairs)

    def _content_draws(self) -> Tensor:
        number = _SPLITS.index(self.path.stem)
        key = draws.keys(self.source.world_seed, 0, np.arange(len(self)), _CONTENT, number)
        return self._tensor(draws.uniforms(key, 0, 3 * self.source.content_dim + 1))

    def _clusters(self, u_NU: Tensor) -> Tensor:
        """Return the cluster of each example, by its last uniform number."""
        rank_K = torch.arange(1, self.source.clusters + 1, dtype=torch.float64, device=self.device)
        exponent = self.source.imbalance if self.path.stem == "unlabeled" else 0.0
        share_K = rank_K**-exponent
        ends_K = share_K.cumsum(0) / share_K.sum()
        return torch.searchsorted(ends_K[:-1].contiguous(), u_NU[:, -1].contiguous(), right=True)

    def _near(self, content_NC: Tensor, u_NU: draws.Floats) -> Tensor:
        """Return content near that of an example, with the same prior."""
        correlation = self.source.correlation
        assert correlation is not None
        normal_NC = _bell(self._tensor(u_NU[:, :-1]))
        if self.source.sharing == "normal":
            away = math.sqrt(1 - correlation**2)
            return correlation * content_NC + away * self._deviation_C * normal_NC
        radius = math.sqrt(self.source.content_dim)
        centre_NC = content_NC / radius
        # The direction away from the centre is uniform among those at right angles to it.
        along_N1 = (normal_NC * centre_NC).sum(dim=1, keepdim=True)
        away_NC = F.normalize(normal_NC - along_N1 * centre_NC, dim=1)
        angles, shares = self._angles
        angle_N1 = self._tensor(np.interp(u_NU[:, -1], shares, angles))[:, None]
        return radius * (angle_N1.cos() * centre_NC + angle_N1.sin() * away_NC)

    @functools.cached_property
    def _angles(self) -> tuple[draws.Floats, draws.Floats]:
        """Angles to the centre, and the share of the von Mises-Fisher law below each."""
        assert self.source.correlation is not None
        angles = np.linspace(0, np.pi, _ANGLES)
        low, high = 0.0, 1e6
        # The mean cosine grows with the concentration.
        for _ in range(_HALVINGS):
            concentration = (low + high) / 2
            density = np.exp(concentration * (np.cos(angles) - 1))
            density *= np.sin(angles) ** (self.source.content_dim - 2)
            if (density * np.cos(angles)).sum() < self.source.correlation * density.sum():
                low = concentration
            else:
                high = concentration
        # The density of very many values is too small for a float64, a very narrow one falls
        # between the angles.
        found = (density * np.cos(angles)).sum() / max(density.sum(), np.finfo(float).tiny)
        if not math.isclose(1 - found, 1 - self.source.correlation, rel_tol=1e-3):
            what = f"dataset.source.correlation={self.source.correlation} cannot be drawn for"
            what += f" {self.source.content_dim} content values"
            raise RegbenchError(f"{what}; choose a smaller one, or a smaller content_dim")
        shares = np.cumsum(density) - density / 2
        return angles, shares / density.sum()


def _bell(u_NU: Tensor, freedom: float | None = None) -> Tensor:
    """Turn pairs of uniform numbers into normal ones, (N, U / 2), or into those of Student's t.

    Box and Muller, Annals of Mathematical Statistics 1958; Bailey, Mathematics of Computation 1994.
    """
    radius_NX, turn_NX = u_NU.chunk(2, dim=1)
    if freedom is None:
        square_NX = radius_NX.neg().log1p_().mul_(-2)
    else:
        square_NX = freedom * ((1 - radius_NX) ** (-2 / freedom) - 1)
    return square_NX.sqrt_().mul_((2 * math.pi * turn_NX).cos_())
