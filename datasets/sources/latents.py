"""Latent worlds: vectors that a fixed network mixes from content, which the views of an example
share, and style, which each view draws anew.

What a representation should hold is known here: the content, up to an invertible map, and nothing
of the style. `regbench.datasets.loading.latent_split` draws the numbers.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from regbench.datasets.sources.base import Contents, Source, register
from regbench.errors import RegbenchError
from regbench.settings import (
    AtLeastOne,
    AtLeastTwo,
    AtLeastZero,
    Fraction,
    NonNegative,
    Positive,
    settings,
)

Prior = Literal[
    "normal", "uniform", "sphere", "laplace", "student", "clusters", "anisotropic", "sparse"
]

# Settings that have an effect with one prior only, and that prior.
_OF_PRIOR = {
    "freedom": "student",
    "clusters": "clusters",
    "imbalance": "clusters",
    "decay": "anisotropic",
    "density": "sparse",
}
# Priors that a law of sharing preserves: the content of each view has the same prior.
_OF_SHARING = {"normal": ("normal", "anisotropic"), "vmf": ("sphere",)}
# Worlds without clusters have a class for each combination of signs of this many content values.
_SIGNS = 3


@register("latents")
@settings
class Latents(Source):
    """Vectors mixed of known content and style.

    An example is a pure function of the seed, its split and its number; the views of it are
    functions of the epoch too. All priors have mean 0 and variance 1, in the mean over values and,
    of clusters, over worlds.

    Attributes:
        content_dim: Number of content values.
        style_dim: Number of style values.
        observed_dim: Length of an observation.
        prior: Distribution of the content: "normal"; "uniform" in a cube; "sphere" (uniform on a
            sphere); "laplace"; "student" (heavy tails); "clusters"; "anisotropic" (normal, with
            deviations that fall); "sparse" (normal or 0).
        freedom: Degrees of freedom of "student".
        clusters: Number of clusters.
        imbalance: Exponent of imbalance: of the pretraining examples, cluster k has
            k ** -imbalance times as many as the first. All other splits are balanced.
        decay: Exponent of "anisotropic": value i has the deviation i ** -decay, up to a factor.
        density: Probability that a value of "sparse" is not 0.
        sharing: Relation between the contents of the views: "exact" (equal); "normal" (each
            correlates with that of the example, for the priors normal and anisotropic); "vmf"
            (von Mises-Fisher about that of the example, for the prior sphere).
        correlation: Mean product of a view's content with the example's, over the mean square; null
            with the sharing "exact".
        style_strength: Standard deviation of the style.
        dependence: Share of the style's deviation that the content decides.
        depth: Layers of the network that mixes: leaky ReLU between random orthogonal maps.
        world_seed: Seed of the network, of the clusters and of each example's content.
        pretraining_examples: Examples of the split "unlabeled", which methods train on.
        train_examples: Examples that read-outs are fitted to.
        tuning_examples: Examples for choices.
        test_examples: Examples for the final scores.
    """

    content_dim: AtLeastTwo = 8
    style_dim: AtLeastZero = 24
    observed_dim: AtLeastTwo = 32
    prior: Prior = "normal"
    freedom: Annotated[float, Field(gt=2)] = 4.0
    clusters: AtLeastTwo = 10
    imbalance: NonNegative = 0.0
    decay: NonNegative = 1.0
    density: Annotated[float, Field(gt=0, le=1)] = 0.25
    sharing: Literal["exact", "normal", "vmf"] = "exact"
    correlation: Annotated[float, Field(gt=0, lt=1)] | None = None
    style_strength: Positive = 2.0
    dependence: Fraction = 0.0
    depth: AtLeastOne = 3
    world_seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    pretraining_examples: AtLeastOne = 38_400
    train_examples: AtLeastTwo = 2_000
    tuning_examples: AtLeastTwo = 2_000
    test_examples: AtLeastTwo = 4_000

    title = "generated latent variables"
    own = False

    def __post_init__(self) -> None:
        """Refuse settings that do not fit each other or are without effect."""
        where = "dataset.source."
        if self.content_dim + self.style_dim > self.observed_dim:
            raise RegbenchError(
                f"{where}observed_dim={self.observed_dim} cannot hold {self.content_dim} content "
                f"and {self.style_dim} style values; set {where}style_dim="
                f"{max(self.observed_dim - self.content_dim, 0)} or a larger observed_dim"
            )
        able = _OF_SHARING.get(self.sharing, (self.prior,))
        if self.prior not in able:
            raise RegbenchError(
                f"{where}sharing={self.sharing} is for the prior {' or '.join(able)}, not "
                f"{self.prior}; set {where}sharing=exact"
            )
        if (self.correlation is None) != (self.sharing == "exact"):
            raise RegbenchError(
                f"{where}sharing={self.sharing} does not go with {where}correlation="
                f"{self.correlation}; exact needs null, the others a number below 1"
            )
        for field in dataclasses.fields(self):
            prior = _OF_PRIOR.get(field.name, self.prior)
            if prior != self.prior and getattr(self, field.name) != field.default:
                raise RegbenchError(
                    f"{where}{field.name}={getattr(self, field.name)} is without effect with "
                    f"{where}prior={self.prior}; set {where}prior={prior} too"
                )

    @property
    def drawn_shape(self) -> tuple[int, int]:
        """Channels and side of an observation, which is an image of one pixel."""
        return self.observed_dim, 1

    @property
    def counts(self) -> dict[str, int]:
        """The number of examples of each split."""
        return {
            "unlabeled": self.pretraining_examples,
            "train": self.train_examples,
            "tuning": self.tuning_examples,
            "test": self.test_examples,
        }

    @property
    def class_names(self) -> list[str]:
        """The names of the clusters, or of the combinations of signs of the first values."""
        if self.prior == "clusters":
            return [f"cluster {number}" for number in range(self.clusters)]
        signs = min(_SIGNS, self.content_dim)
        return [f"signs {number:0{signs}b}" for number in range(2**signs)]

    def open(self, folder: Path | None, downloads: Path) -> Contents:
        """Return the classes alone: examples are drawn when they are used, not stored."""
        return Contents({}, self.class_names)


@register("latent_pictures")
@settings
class LatentPictures(Latents):
    """Latent worlds seen as pictures: a fixed random deconvolution makes one of each vector.

    Attributes:
        picture_px: Side of a picture.
    """

    picture_px: Literal[8, 16, 32, 64] = 16

    title = "pictures of generated latent variables"

    @property
    def drawn_shape(self) -> tuple[int, int]:
        """Channels and side of a picture."""
        return 3, self.picture_px
