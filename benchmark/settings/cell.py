"""The cell: everything that decides the outcome of a run, and nothing else."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from regbench.benchmark.evaluate.base import EVALUATIONS, Evaluation
from regbench.benchmark.settings.architecture import NetworkConfig, refuse_unmet_needs
from regbench.benchmark.settings.identity import cell_id
from regbench.benchmark.training.optimizers.base import OPTIMIZERS, OptimizerConfig
from regbench.datasets.config import UNAUGMENTED, AugmentationConfig, DatasetConfig, decisive
from regbench.datasets.sources.latents import Latents
from regbench.errors import RegbenchError
from regbench.methods import METHODS, Regularizer
from regbench.methods.forms.labelled import LOSSES_OF_LABELS
from regbench.settings import (
    AtLeastOne,
    AtLeastTwo,
    AtLeastZero,
    from_plain,
    names_in,
    plain,
    settings,
)
from regbench.wording import PlugIn, shown

Seed = Annotated[int, Field(ge=0, lt=2**32)]
"""A seed: seeds of steps are multiples of it and must fit in 64 bits."""

BASELINES = {"raw_pixels": "raw pixels", "pca": "PCA of pixels"}
BASELINES |= {"hog": "HOG", "random_patches": "random patches"}
BASELINES |= {"supervised": "supervised", "supcon": "SupCon"}
"""Baselines and their names in tables: trivial representations as a floor for methods, training
with labels as a ceiling.
"""


def _selects(name: str) -> bool:
    """Return True if hyperparameters can be chosen by an evaluation: by a score on the cell's own
    data set.
    """
    if name not in EVALUATIONS.names() or not EVALUATIONS.of(name).selects:
        return False
    return getattr(EVALUATIONS.build(name), "dataset", None) is None


@settings
class EvaluationOptions:
    """Settings that all evaluations share.

    Attributes:
        protocols: The evaluations, by name.
        select_on: Split that everything is chosen on: "tuning", or "test" for the paper's second
            variant (its Table 13), whose scores are optimistic.
        select_by: The evaluations whose top-1 on that split hyperparameters are chosen by: [knn],
            as in the paper, or several, such as [knn,probe]: their mean.
        batch_size: Images a step of feature extraction.
        precision: Precision of the frozen network's features: "fp32" or "bf16" (autocast). No
            later step is in bf16.
        while_training: The evaluations, of those that `select_by` may name, whose score on that
            split is also measured while training, for curves of accuracy.
        every_epochs: Epochs between those; the last epoch always has one.
    """

    protocols: tuple[str, ...] = ("knn", "probe", "measures")
    select_on: Literal["tuning", "test"] = "tuning"
    select_by: Annotated[tuple[str, ...], Field(min_length=1)] = ("knn",)
    batch_size: AtLeastOne = 256
    precision: Literal["fp32", "bf16"] = "fp32"
    while_training: tuple[str, ...] = ()
    every_epochs: AtLeastOne = 1

    def __post_init__(self) -> None:
        """Refuse evaluations that do not exist or cannot be used so."""
        EVALUATIONS.refuse_unknown(self.protocols, "evaluation.protocols: ")
        for setting in ("select_by", "while_training"):
            names = getattr(self, setting)
            if len(set(names)) < len(names) or not all(map(_selects, names)):
                able = ", ".join(filter(_selects, EVALUATIONS.names()))
                raise RegbenchError(
                    f"evaluation.{setting}={shown(names)} must be of {able}, each once"
                )
        if self.every_epochs > 1 and not self.while_training:
            raise RegbenchError(
                f"evaluation.every_epochs={self.every_epochs} is without effect: nothing is "
                "evaluated while training; set evaluation.while_training=[knn] too"
            )

    @property
    def used(self) -> tuple[str, ...]:
        """Names of all evaluations that decide something."""
        return tuple(dict.fromkeys((*self.select_by, *self.protocols, *self.while_training)))


@settings
class EvaluationConfig(EvaluationOptions):
    """Measurements of the representation, and their settings.

    As plain data the settings of each evaluation stand under its name, beside those that all have
    in common.

    Attributes:
        evaluations: The settings of each evaluation of `protocols`, `select_by` and
            `while_training`, by name.
    """

    evaluations: Annotated[dict[str, Evaluation], PlugIn(dict, plain)] = field(hash=False)

    def __post_init__(self) -> None:
        """Refuse to choose by images of another data set, which some evaluations may have."""
        EvaluationOptions.__post_init__(self)
        for name in self.select_by:
            if own := getattr(self.evaluations.get(name), "dataset", None):
                what = f"evaluation.{name}.dataset={own.name}: hyperparameters are chosen by"
                raise RegbenchError(f"{what} the cell's own images; leave {name} out of select_by")

    def __getitem__(self, name: str) -> Evaluation:
        """Return the settings of one evaluation."""
        return self.evaluations[name]

    def replaced(self, **changes: Any) -> EvaluationConfig:
        """Return a copy with other options, or other settings of the named evaluations."""
        own = {name: changes.pop(name) for name in EVALUATIONS.names() if name in changes}
        changed = replace(self, **changes)
        kept = {name: each for name, each in self.evaluations.items() if name in changed.used}
        # As when they are read: settings of an evaluation that is not used any more are not kept.
        return replace(changed, evaluations=kept | own)


def _read_evaluation(data: Any) -> EvaluationConfig:
    if isinstance(data, EvaluationConfig):
        return data
    if not isinstance(data, Mapping):
        raise RegbenchError(f"evaluation must be a group of settings, not {shown(data)}")
    # Settings of an evaluation that is not used decide nothing, and are not kept.
    known = EVALUATIONS.names()
    options = {name: value for name, value in data.items() if name not in known}
    common = from_plain(EvaluationOptions, options, "evaluation.")
    made = {}
    for name in common.used:
        # Without any setting of its own it has its defaults.
        own = data.get(name, {})
        if not isinstance(own, Mapping):
            raise RegbenchError(f"evaluation.{name} must be a group of settings, not {shown(own)}")
        made[name] = EVALUATIONS.from_plain({**own, "name": name}, f"evaluation.{name}.")
    return EvaluationConfig(**vars(common), evaluations=made)


def _plain_evaluation(config: EvaluationConfig) -> dict[str, Any]:
    data: dict[str, Any] = plain(config)
    data.update(data.pop("evaluations"))
    # A cell without curves keeps the id that it had before there were curves.
    if not config.while_training:
        del data["while_training"], data["every_epochs"]
    # A cell in fp32 keeps the id that it had before there was a choice of precision.
    if config.precision == "fp32":
        del data["precision"]
    return data


@settings
class Cell:
    """One point of a grid: everything that decides the outcome of a run, and nothing else.

    Attributes:
        method: The regularizer with its hyperparameters.
        embedding_dim: q, the projector's output.
        batch_size: n, images a step over all GPUs; the last short batch of an epoch is dropped.
        micro_batch_size: Images over all GPUs that pass the network at a time, for batches that do
            not fit; null: the whole batch. The loss is that of the whole batch, BN statistics are
            those of a pass.
        epochs: Passes over the training images; 0 evaluates the untrained network.
        seed: Seed of the initial weights, the order of images, the augmentation and the probe.
        precision: "bf16" (autocast; the loss stays in float32) or "fp32".
        dataset: Images and splits.
        augmentation: The views.
        network: Backbone and projector, and what else may keep them from collapsing.
        optimizer: The optimizer and its schedule.
        evaluation: Measurements of the representation, and their settings.
        baseline: Baseline in the place of a method: "raw_pixels", "pca" (their whitened principal
            components), "hog" (histograms of oriented gradients) and "random_patches" (similarities
            to patches of training images) are evaluated in place of the network, and nothing is
            trained for them; "supervised" trains the backbone and one linear layer by cross-entropy
            with the labels, "supcon" the network by the supervised contrastive loss; null: a
            method.
    """

    method: Annotated[Regularizer, METHODS.setting("method.")]
    embedding_dim: AtLeastTwo = 512
    batch_size: AtLeastTwo = 256
    micro_batch_size: AtLeastTwo | None = None
    epochs: AtLeastZero = 5
    seed: Seed = 0
    precision: Literal["bf16", "fp32"] = "bf16"
    dataset: DatasetConfig
    augmentation: AugmentationConfig
    network: NetworkConfig
    optimizer: Annotated[OptimizerConfig, OPTIMIZERS.setting("optimizer.")] = field(
        default_factory=lambda: OPTIMIZERS.build("lars")
    )
    evaluation: Annotated[EvaluationConfig, PlugIn(_read_evaluation, _plain_evaluation)] = field(
        default_factory=lambda: _read_evaluation({})
    )
    baseline: (
        Literal["raw_pixels", "pca", "hog", "random_patches", "supervised", "supcon"] | None
    ) = None

    def __post_init__(self) -> None:
        """Refuse numbers that do not fit each other."""
        if self.micro_batch_size is not None and self.batch_size % self.micro_batch_size:
            raise RegbenchError(
                f"micro_batch_size={self.micro_batch_size} must divide batch_size={self.batch_size}"
            )
        if self.baseline is not None and not self.is_supervised and self.epochs:
            raise RegbenchError(f"baseline={self.baseline} is not trained; set epochs=0 with it")
        if self.is_supervised and not self.epochs:
            raise RegbenchError(
                f"baseline={self.baseline} is trained; set epochs=1 or more with it"
            )
        if self.baseline is None:
            refuse_unmet_needs(self.network, self.method)
        elif self.network.is_asymmetric:
            raise RegbenchError(
                f"baseline={self.baseline} has no use for a predictor or a teacher; set "
                "network.predictor.depth=0 network.teacher=none with it"
            )
        self.augmentation.kinds(self.dataset.image_size)  # refuses views that cannot be cut
        if self.dataset.source.drawn_shape:
            self._refuse_images()
        # The steps of an epoch depend on the images, so a warm-up in steps is checked when they are
        # opened.
        if self.epochs and self.optimizer.warmup_steps is None:
            self.optimizer.refuse_long_warmup(1, self.epochs)
        if 0 < self.epochs < self.evaluation.every_epochs:
            raise RegbenchError(
                f"evaluation.every_epochs={self.evaluation.every_epochs} is more than the "
                f"epochs={self.epochs} of training; set {self.epochs} or fewer"
            )

    def _refuse_images(self) -> None:
        """Refuse settings that need images of a file, in a cell whose examples are drawn."""
        for kind in self.augmentation.views.values():
            if replace(kind, count=1) != UNAUGMENTED:
                raise RegbenchError(
                    f"augmentation={self.augmentation.name}: data set {self.dataset.name!r} is a "
                    "latent world, whose examples are not augmented; set augmentation=unaugmented"
                )
        if self.baseline in ("hog", "random_patches", "supcon"):
            raise RegbenchError(
                f"baseline={self.baseline} is for images with classes, and data set "
                f"{self.dataset.name!r} is a latent world; choose raw_pixels, pca or supervised"
            )

    @property
    def is_supervised(self) -> bool:
        """Whether labels train the cell instead of a method."""
        return self.baseline in LOSSES_OF_LABELS

    @property
    def is_method(self) -> bool:
        """Whether a method trains the cell: it is neither a baseline nor an untrained network."""
        return self.baseline is None and self.epochs > 0

    @property
    def output_dim(self) -> int:
        """Width of the network's output: the embedding's, a score of each prototype, a logit of
        each class, or the content of a latent world.
        """
        if self.baseline == "supervised":
            source = self.dataset.source
            return source.content_dim if isinstance(source, Latents) else self.dataset.num_classes
        if self.is_supervised:
            return self.embedding_dim
        return self.method.prototypes or self.embedding_dim

    def is_evaluated_after(self, epoch: int) -> bool:
        """Return True if an evaluation while training follows an epoch, counted from 1."""
        config = self.evaluation
        return bool(config.while_training) and (
            epoch % config.every_epochs == 0 or epoch == self.epochs
        )

    @property
    def label(self) -> str:
        """Name of the row in tables: the method's, a baseline's, or that of a network that is not
        trained.
        """
        if self.baseline is not None:
            return BASELINES[self.baseline]
        if self.epochs:
            return self.method.label
        return "untrained" if self.network.init is None else "pretrained, as it came"

    @property
    def datasets(self) -> list[DatasetConfig]:
        """The data sets that the cell trains on and is evaluated on."""
        evaluations = self.evaluation.evaluations.values()
        of_evaluations = [getattr(evaluation, "dataset", None) for evaluation in evaluations]
        return [self.dataset, *filter(None, of_evaluations)]

    def plain(self) -> dict[str, Any]:
        """Return the cell as plain data, with the settings of those evaluations that it asks
        for.
        """
        # Settings of a data set that only say what `prepare` accepts are left out.
        data: dict[str, Any] = plain(self)
        # A method's cell keeps the id that it had before there were baselines.
        if self.baseline is None:
            del data["baseline"]
        # A cell without predictor and teacher keeps the id that it had before there were any.
        for name in self.network.unused:
            del data["network"][name]
        for name, value in self.method.absent.items():
            if getattr(self.method, name) == value:
                del data["method"][name]
        for group in (data, *data["evaluation"].values()):
            dataset = group.get("dataset") if isinstance(group, dict) else None
            if isinstance(dataset, dict):
                group["dataset"] = decisive(dataset)
        return data

    @functools.cached_property
    def id(self) -> str:
        """Twelve hex digits that depend on the cell's content alone, on any machine."""
        return cell_id(self.plain())

    @classmethod
    def from_plain(cls, data: object) -> Cell:
        """Return the cell of plain data; what is left out has its default."""
        return from_plain(Cell, data)

    @classmethod
    def stored(cls, data: Any) -> Cell:
        """Return the cell of plain data in a run directory or a job.

        Refuse data that leave a setting out.
        """
        cell = cls.from_plain(data)
        absent = cell.method.absent.items()
        older = {name: value for name, value in absent if name not in data["method"]}
        if older:
            cell = replace(cell, method=replace(cell.method, **older))  # type: ignore[type-var]
        given = set(names_in(data))
        for name in names_in(cell.plain()):
            # A missing setting is not given its default, which may have changed since.
            if name not in given:
                raise RegbenchError(f"the setting {name} is missing")
        return cell
