"""Generated scenes: garments in front of textured backgrounds, with every factor known.

Fashion-MNIST is too easy to rank representations: its garments are centred and upright on black, so
raw pixels are nearly as good as any network. Here each garment is coloured, scaled, turned and put
anywhere, so that pixels tell little and a representation can show what it is worth.

Shapes: N = images of a block, S = side of a scene, F = side of a foreground image, C = channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from regbench.datasets.sources.arrays import Arrays
from regbench.datasets.sources.base import (
    SOURCES,
    Contents,
    Labels,
    Pixels,
    Source,
    Split,
    register,
)
from regbench.datasets.sources.scene_pixels import (
    PATTERNS,
    Floats,
    laid_over,
    pattern,
    pink,
    rgb,
    sampled,
    to_levels,
)
from regbench.errors import RegbenchError
from regbench.settings import AtLeastOne, NonNegative, settings
from regbench.wording import shown

# A block of this size keeps all its arrays below 100 MB at 96 px.
_BLOCK = 128
# At scale 1 a garment of 28 px has its own size in a scene of 32 px.
_GARMENT_SHARE = 0.875
# A few principal components of the pixels would hold a smooth background, and leave the garment.
_ROUGHNESS = 0.3
# No number is farther from all fractions, so no other spreads its multiples as evenly.
_GOLDEN_RATIO = (math.sqrt(5) - 1) / 2
_SPLIT_NUMBERS = {"train": 0, "tuning": 1, "test": 2}
# Counts of random numbers: those of a scene, then those of each distractor, so that distractors
# change nothing else. Numbers 0 to 4, 8 and 9 are the garment's, 5, 6 and 10 to 15 the
# background's; 7 is the number of distractors.
_OF_SCENE, _OF_DISTRACTOR = 16, 8


@register("scenes")
@settings
class Scenes(Source):
    """Images of a foreground, coloured and put anywhere in front of generated backgrounds.

    A scene is a pure function of `scene_seed`, its split and its number. Tuning and test show other
    foreground images than training, and draw other random numbers.

    Attributes:
        foreground: Source of the foreground images: any that is published as arrays.
        size_px: Side of a scene.
        grey: Whether scenes are grey.
        train_images: Number of training scenes.
        tuning_images: Number of tuning scenes.
        test_images: Number of test scenes.
        patterns: Number of patterns; a class is a garment in one pattern.
        distractors: Largest number of pieces of other garments that lie about in a scene.
        scenes_per_image: Number of scenes of a split that may show the same foreground image.
        backgrounds: Number of backgrounds that scenes share, so that only the garment tells two of
            them apart; 0: each scene has its own.
        imbalance: Exponent a of the class frequencies in training: class c has a share that is
            proportional to (c + 1)^-a. Tuning and test stay balanced.
        scene_seed: Seed of all random numbers.
    """

    foreground: str = "fashion_mnist"
    size_px: Annotated[int, Field(ge=28, le=96)] = 32
    grey: bool = False
    train_images: AtLeastOne = 6000
    tuning_images: AtLeastOne = 2000
    test_images: AtLeastOne = 3000
    patterns: Annotated[int, Field(ge=1, le=len(PATTERNS))] = 1
    distractors: Annotated[int, Field(ge=0, le=8)] = 0
    scenes_per_image: AtLeastOne = 1
    backgrounds: Annotated[int, Field(ge=0, le=1000)] = 0
    imbalance: NonNegative = 0.0
    scene_seed: Annotated[int, Field(ge=0, lt=2**32)] = 0

    title = "generated scenes"
    own = False

    def __post_init__(self) -> None:
        """Refuse a foreground that is not published as arrays."""
        able = [name for name in SOURCES.names() if issubclass(SOURCES.of(name), Arrays)]
        if self.foreground not in able:
            raise RegbenchError(
                f"dataset.source.foreground={shown(self.foreground)} must be one of "
                f"{', '.join(able)}"
            )

    def open(self, folder: Path | None, downloads: Path) -> Contents:
        """Read the foreground and describe the scenes; see `Source.open`."""
        contents = SOURCES.build(self.foreground).open(folder, downloads)
        names = contents.class_names
        splits = {}
        counts = {"train": self.train_images, "tuning": self.tuning_images}
        counts["test"] = self.test_images
        for split, count in counts.items():
            imbalance = self.imbalance if split == "train" else 0.0
            labels = self._labels(count, len(names) * self.patterns, imbalance)
            scenes = _Scenes(self, split, labels, contents)
            splits[split] = Split(labels, scenes.images, factors=scenes.factors())
        if self.patterns > 1:
            pairs = product(names, PATTERNS[: self.patterns])
            names = [f"{name}, {pattern}" for name, pattern in pairs]
        return Contents(splits, names)

    def _labels(self, count: int, classes: int, imbalance: float) -> Labels:
        """Return the class of each scene, which depends on its number alone."""
        numbers = np.arange(count)
        if not imbalance:
            return numbers % classes
        shares = np.arange(1, classes + 1) ** -imbalance
        ends = np.cumsum(shares) / shares.sum()
        # Multiples of the golden ratio are spread evenly however many there are, so shares come out
        # nearly exact.
        places = (numbers * _GOLDEN_RATIO) % 1
        return np.searchsorted(ends[:-1], places, side="right").astype(np.int64)


def _random(seed: int, split: str, number: int, stream: int = 0) -> np.random.Generator:
    """Return the generator of one scene, which Philox reaches without those before it."""
    key = np.array([seed, _SPLIT_NUMBERS[split]], np.uint64)
    # Drawing increments the first word only, so that scenes and streams never overlap.
    return np.random.Generator(np.random.Philox(key=key, counter=[0, stream, number, 0]))


def _drawn(seed: int, split: str, count: int, numbers: int, stream: int = 0) -> Floats:
    """Draw random numbers of each of `count` scenes, (count, numbers), uniform in [0, 1)."""
    return np.stack([_random(seed, split, scene, stream).random(numbers) for scene in range(count)])


class _Scenes:
    """The scenes of a split, to be rendered block by block."""

    def __init__(self, source: Scenes, split: str, labels: Labels, contents: Contents) -> None:
        """Choose the foreground image of each scene, of the classes `labels`, and its factors.

        Refuse more scenes of a class than `scenes_per_image` allows.
        """
        self.source, self.split, self.labels = source, split, labels
        foreground, seed = contents.splits[split], source.scene_seed
        images = [image for image, _ in foreground.images() if isinstance(image, np.ndarray)]
        pixels = np.stack(images)
        # Colours become grey levels, from 0 to 255.
        self.grey_NFF = pixels.mean(axis=3) if pixels.ndim == 4 else pixels.astype(np.float64)
        numbers = _OF_SCENE + source.distractors * _OF_DISTRACTOR
        self.drawn = drawn = _drawn(seed, split, len(labels), numbers)
        garments = labels // source.patterns
        self.rows = np.empty(len(labels), np.intp)
        for label, name in enumerate(contents.class_names):
            scenes = np.flatnonzero(garments == label)
            rows = np.flatnonzero(foreground.labels == label)
            if len(scenes) > len(rows) * source.scenes_per_image:
                raise RegbenchError(
                    f"scenes: {split} needs {len(scenes):,} images of {name!r} and "
                    f"{source.foreground} has {len(rows):,}; give a smaller "
                    f"dataset.source.{split}_images or a larger dataset.source.scenes_per_image"
                )
            self.rows[scenes] = rows[np.arange(len(scenes)) % len(rows)]
        self.hue = drawn[:, 0]
        # A centre near the border would cut its garment off.
        self.x = 0.2 + 0.6 * drawn[:, 1]
        self.y = 0.2 + 0.6 * drawn[:, 2]
        self.scale = 0.6 + 0.4 * drawn[:, 3]
        self.angle_deg = 40 * drawn[:, 4] - 20
        # A background belongs to a scene, which its split and number identify.
        self.behind_split, self.behind, self.behind_drawn = split, np.arange(len(labels)), drawn
        if source.backgrounds:
            # Which of the shared backgrounds each scene has.
            places = _drawn(seed, split, len(labels), 1, stream=2)[:, 0]
            self.behind_split = "train"
            self.behind = (places * source.backgrounds).astype(np.intp)
            first = _drawn(seed, "train", source.backgrounds, _OF_SCENE)
            self.behind_drawn = first[self.behind]
        self.background_hue = self.behind_drawn[:, 5]
        self.grain = 1 + 5 * self.behind_drawn[:, 6]
        self.pieces = (drawn[:, 7] * (source.distractors + 1)).astype(np.int64)

    def factors(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return what each scene is made of; the unit stands in a factor's name."""
        found: dict[str, npt.NDArray[np.generic]] = {
            "class": self.labels,
            "hue_turns": self.hue,
            "x_share": self.x,
            "y_share": self.y,
            "scale": self.scale,
            "angle_deg": self.angle_deg,
        }
        if self.source.backgrounds != 1:  # what never changes cannot be predicted
            found |= {"background_hue_turns": self.background_hue, "grain_cycles": self.grain}
        if self.source.distractors:
            found["distractors"] = self.pieces
        return found

    def images(self) -> Iterator[tuple[Pixels, str]]:
        """Render all scenes, block by block."""
        for first in range(0, len(self.labels), _BLOCK):
            block = self.rendered(np.arange(first, min(first + _BLOCK, len(self.labels))))
            for number, pixels in enumerate(block, first):
                yield pixels, f"scenes {self.split}[{number}]"

    def rendered(self, scenes: npt.NDArray[np.intp]) -> Pixels:
        """Render some scenes: (N, S, S, 3), or (N, S, S) if they are grey."""
        canvas_NSSC = self._background(scenes)
        for piece in range(self.source.distractors):
            has_piece = self.pieces[scenes] > piece
            canvas_NSSC[has_piece] = self._with_piece(
                canvas_NSSC[has_piece], scenes[has_piece], piece
            )
        levels_NSS, u_NSS, v_NSS = self._placed(
            self.rows[scenes],
            self.x[scenes],
            self.y[scenes],
            self.scale[scenes],
            np.deg2rad(self.angle_deg[scenes]),
        )
        saturation, value = 0.4 + 0.6 * self.drawn[scenes, 8], 0.55 + 0.45 * self.drawn[scenes, 9]
        colour_NC = rgb(self.hue[scenes], saturation, value)
        shade_NSS = 0.35 + 0.65 * levels_NSS / 255
        shade_NSS *= pattern(self.labels[scenes] % self.source.patterns, u_NSS, v_NSS)
        canvas_NSSC = laid_over(canvas_NSSC, levels_NSS, colour_NC, shade_NSS)
        if self.source.grey:
            # These are the weights of the luma of ITU-R BT.601, as in `photometric.grey`.
            return to_levels(canvas_NSSC @ np.array([0.299, 0.587, 0.114]))
        return to_levels(canvas_NSSC)

    def _background(self, scenes: npt.NDArray[np.intp]) -> Floats:
        """Return backgrounds, (N, S, S, 3): two colours, mixed by two gratings."""
        drawn = self.behind_drawn[scenes]
        x_SS, y_SS = self._grid()
        mix_NSS = np.full((len(scenes), *x_SS.shape), 0.5)
        for direction, phase in ((10, 11), (12, 13)):
            turn = np.pi * drawn[:, direction, None, None]
            along_NSS = np.cos(turn) * x_SS + np.sin(turn) * y_SS
            turns_NSS = self.grain[scenes, None, None] * along_NSS + drawn[:, phase, None, None]
            mix_NSS += 0.3 * np.sin(2 * np.pi * turns_NSS)
        hue, value = self.background_hue[scenes], 0.35 + 0.5 * drawn[:, 14]
        first_NC = rgb(hue, np.full_like(value, 0.6), value)
        second_NC = rgb(hue + 0.12 * drawn[:, 15], np.full_like(value, 0.35), 0.6 * value)
        mix_NSS1 = np.clip(mix_NSS, 0, 1)[..., None]
        smooth_NSSC = mix_NSS1 * first_NC[:, None, None] + (1 - mix_NSS1) * second_NC[:, None, None]
        return np.clip(smooth_NSSC * (1 + _ROUGHNESS * self._texture(scenes)[..., None]), 0, 1)

    def _texture(self, scenes: npt.NDArray[np.intp]) -> Floats:
        """Return noise of mean 0 and deviation 1 in each scene, (N, S, S), coarse and fine
        alike.
        """
        side = self.source.size_px
        white_NSS = np.empty((len(scenes), side, side))
        seed = self.source.scene_seed
        for row, number in enumerate(self.behind[scenes]):
            generator = _random(seed, self.behind_split, int(number), stream=1)
            generator.standard_normal(out=white_NSS[row])
        return pink(white_NSS)

    def _with_piece(self, canvas_NSSC: Floats, scenes: npt.NDArray[np.intp], piece: int) -> Floats:
        """Put a quarter of another garment into each scene, behind its own garment."""
        first = _OF_SCENE + piece * _OF_DISTRACTOR
        drawn = self.drawn[scenes, first : first + _OF_DISTRACTOR]
        rows = (drawn[:, 0] * len(self.grey_NFF)).astype(np.intp)
        levels_NSS, u_NSS, v_NSS = self._placed(
            rows, drawn[:, 1], drawn[:, 2], 0.7 + 0.5 * drawn[:, 3], 2 * np.pi * drawn[:, 4]
        )
        left_N, top_N = (0.5 * drawn[:, 5, None, None], 0.5 * drawn[:, 6, None, None])
        inside_NSS = (u_NSS >= left_N) & (u_NSS < left_N + 0.5)
        inside_NSS &= (v_NSS >= top_N) & (v_NSS < top_N + 0.5)
        colour_NC = rgb(drawn[:, 7], np.full(len(scenes), 0.7), np.full(len(scenes), 0.8))
        shade_NSS = 0.35 + 0.65 * levels_NSS / 255
        return laid_over(canvas_NSSC, levels_NSS * inside_NSS, colour_NC, shade_NSS)

    def _grid(self) -> tuple[Floats, Floats]:
        """Return the centres of the pixels, as shares of the side."""
        centres = (np.arange(self.source.size_px) + 0.5) / self.source.size_px
        x_SS, y_SS = np.meshgrid(centres, centres)
        return x_SS, y_SS

    def _placed(
        self, rows: npt.NDArray[np.intp], x: Floats, y: Floats, scale: Floats, angle: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """Return the grey levels of turned and scaled foreground images, and their own coordinates.

        Centres are shares of the side, from the left and from the top; the angle is in radians.
        Levels go from 0 to 255 and are zero outside; coordinates go from 0 to 1 across and along
        the image. Each is (N, S, S).
        """
        x_SS, y_SS = self._grid()
        right_NSS = x_SS - x[:, None, None]
        down_NSS = y_SS - y[:, None, None]
        cos, sin = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
        side = _GARMENT_SHARE * scale[:, None, None]
        u_NSS = (cos * right_NSS + sin * down_NSS) / side + 0.5
        v_NSS = (cos * down_NSS - sin * right_NSS) / side + 0.5
        return sampled(self.grey_NFF, rows, u_NSS, v_NSS), u_NSS, v_NSS
