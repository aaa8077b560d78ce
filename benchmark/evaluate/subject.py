"""A frozen backbone under evaluation: its images, its features, and the record of choices."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from regbench.benchmark.evaluate.base import Scores, Task
from regbench.benchmark.evaluate.features import Encoder, Features, Images, NotFinite, progress_bar
from regbench.benchmark.evaluate.state import State, fingerprint
from regbench.benchmark.machine.compute import Compute
from regbench.benchmark.rundir.choice import Choices
from regbench.benchmark.rundir.record import Score
from regbench.benchmark.settings.cell import Cell, EvaluationConfig
from regbench.datasets.config import AugmentationConfig, DatasetConfig
from regbench.datasets.loading.loaders import ViewLoader
from regbench.datasets.stored.manifest import Manifest
from regbench.errors import RegbenchError
from regbench.settings import plain
from regbench.wording import shown

T = TypeVar("T")


@dataclass(eq=False)
class Subject:
    """The network and images under evaluation; results that several evaluations need are computed
    once.

    Attributes:
        config: Settings of the evaluations.
        dataset: Data set that is evaluated on.
        augmentation: Augmentation of the views that some evaluations look at.
        encoder: The backbone, which is frozen here.
        compute: Device and folders that evaluations compute with.
        choices: Record of how the hyperparameters were chosen; choices of the evaluations are added
            to it.
        seed: Seed of all random numbers that evaluations draw.
        embedder: Function from images to embeddings; None where there is no projector, as with raw
            pixels.
        form_for: Function from the name of an evaluation to the subject that it sees in the place
            of this one; None: each sees this one.
        backend: Loader that read the images ("ffcv" or "torchvision"), once some were
            read.
    """

    config: EvaluationConfig
    dataset: DatasetConfig
    augmentation: AugmentationConfig
    encoder: Encoder
    compute: Compute
    choices: Choices
    seed: int
    embedder: Encoder | None = None
    form_for: Callable[[str], Subject] | None = None
    backend: str = field(init=False)
    _projected_from: tuple[Subject, nn.Module] | None = field(init=False, default=None)
    _is_recorded: bool = field(init=False, default=True)
    _kept: dict[str, Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Freeze the backbone, and let it compute in the precision of the evaluations."""
        self.encoder.module.requires_grad_(False)
        self.encoder = replace(self.encoder, precision=self.config.precision)
        if self.embedder is not None:
            self.embedder = replace(self.embedder, precision=self.config.precision)
        self.backend = self.compute.runtime.loader

    @property
    def task(self) -> Task:
        """The data set and the split that everything is chosen on."""
        return Task(self.dataset, self.config.select_on, self.compute.data_dir)

    @property
    def batch_size(self) -> int:
        """Images a step of feature extraction."""
        return self.config.batch_size

    @property
    def layers(self) -> dict[str, Encoder]:
        """The outputs of the network that can be probed, by name."""
        found = {"representation": self.encoder}
        if self.embedder is not None:
            found["embedding"] = self.embedder
        return found

    def of(self, encoder: Encoder) -> Subject:
        """Return the same images and choices under another encoder."""
        if encoder is self.encoder:
            return self
        other = copy.copy(self)
        other.encoder = encoder
        other._kept = {}  # features of this encoder do not fit the other
        other._projected_from = other.form_for = None
        return other

    def projected(self, projection: nn.Module, dim: int) -> Subject:
        """Return the same images and choices with a projection to `dim` features after the encoder.

        It projects the features of this subject, which are computed once for all projections.
        """
        other = self.of(Encoder(nn.Sequential(self.encoder.module, projection), dim))
        other._projected_from = (self, projection)
        return other

    def unrecorded(self) -> Subject:
        """Return the same subject; its choices are not written down and open no test split."""
        other = copy.copy(self)
        other._is_recorded = False
        return other

    def select(self) -> Scores:
        """Return the scores that hyperparameters are chosen by, if there is a split to choose on.

        Returns:
            The scores of the evaluations of `select_by` on that split. If there are several: also
            `selection_top1`, the mean of the first score of each.
        """
        names = self.config.select_by
        # All evaluations of `select_by` are of the cell's own data set, so they have the same
        # split.
        splits = self.task.splits(names[0])
        if not splits:
            return []
        scores, firsts = [], []
        for name in names:
            found = self.config[name].select(name, self._seen_by(name))
            scores += found
            firsts.append(found[0])
        if len(names) > 1:
            scores.append(_mean_score(firsts, splits[0]))
        return scores

    def run(self, name: str) -> Scores:
        """Return the scores of one evaluation, on the test split and on the one that it chose
        on.
        """
        seen = self._seen_by(name)
        scores = self.config[name].run(name, seen)
        self.backend = seen.backend
        return scores

    def _seen_by(self, name: str) -> Subject:
        return self.form_for(name) if self.form_for else self

    def images(self, dataset: DatasetConfig | None = None) -> Images:
        """Return the images of a data set, in the colours that the encoder was trained with; None:
        the cell's own.
        """
        return Images(self._in_own_colours(dataset), self.compute, self.choices.path)

    def _in_own_colours(self, dataset: DatasetConfig | None) -> DatasetConfig:
        own = self.dataset
        if dataset is None or dataset.channels != own.channels:
            return dataset or own
        return replace(dataset, mean=own.mean, std=own.std)

    def features(
        self, split: str, interpolation: str, dataset: DatasetConfig | None = None
    ) -> Features:
        """Return the representations of a split's centre crops.

        Those of the cell's own data set (None) are kept.
        """
        # `interpolation` is the filter of the resize before the crop.
        if dataset:  # not kept: one evaluation uses them, and they may fill the memory
            return self._extract(self.images(dataset), split, interpolation)
        key = f"features of {split}, {interpolation}"
        if self._projected_from is None:
            return self.once(key, lambda: self._extract(self.images(), split, interpolation))
        base, projection = self._projected_from
        found = base.features(split, interpolation)
        self.backend = base.backend
        return self.once(key, lambda: Features(projection(found.x_ND), found.y_N))

    def views(self, split: str, *, images: int, views: int) -> Tensor:
        """Return the representations (n, views, d) of augmented views of images of a split.

        Views come in pairs, of the first and of the second view's augmentation; the seed decides
        them.

        Raises:
            NotFinite: If they are not finite.
        """
        # Not kept: evaluations take different numbers of them.
        options: dict[str, Any] = self.images().reading()
        options |= {"images": images, "batch_size": self.batch_size, "seed": self.seed}
        with ViewLoader(self.dataset, self.augmentation, split, **options) as loader:
            pairs = []
            for number in progress_bar(range(-(-views // 2)), f"views of {split}"):
                batches = []
                with loader.epoch(number) as epoch:
                    for pair in epoch:
                        represented = [self.encoder.represent(x_NCHW) for x_NCHW in pair]
                        batches.append(torch.stack(represented, dim=1))
                pairs.append(torch.cat(batches))
            self.backend = loader.backend
        # An odd number of views leaves out the last view of the last pair.
        views_NVD = torch.cat(pairs, dim=1)[:, :views]
        if not views_NVD.norm(dim=2).isfinite().all():
            what = f"the representations of views of the {split} split"
            raise NotFinite(f"{what} are not finite in length")
        return views_NVD

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return the result of `make`, which is called once for each name.

        So a choice and a final score share it.
        """
        if name not in self._kept:
            self._kept[name] = make()
        kept: T = self._kept[name]
        return kept

    def note(self, what: str, *, selected_on: str, chosen: Any, candidates: Any) -> None:
        """Write down a choice, before the test split is opened."""
        if self._is_recorded:
            self.choices.note(
                what, {"selected_on": selected_on, "chosen": chosen, "candidates": candidates}
            )

    def state(self, name: str, config: Any, dataset: DatasetConfig | None = None) -> State:
        """Return what an earlier attempt at an evaluation has done, with these settings, images and
        weights.

        The data set is the cell's own if it is None.
        """
        dataset = self._in_own_colours(dataset)
        content = Manifest.load(self.compute.data_dir, dataset).content_sha256
        settings = [plain(config), plain(dataset), content, self.config.select_on, self.seed]
        key = fingerprint(self.encoder.module, settings)
        return State(self.choices.attempt, name, key, self.compute.device)

    def _extract(self, images: Images, split: str, interpolation: str) -> Features:
        features, self.backend = images.features(
            self.encoder, split, interpolation, self.batch_size
        )
        return features


def _mean_score(scores: Scores, split: str) -> Score:
    """Return the mean of several scores, which hyperparameters are then chosen by."""
    names = " and ".join(score.name for score in scores)
    titles = " and ".join(score.title.removesuffix(" top-1") for score in scores)
    mean = sum(score.value for score in scores) / len(scores)
    return Score("selection_top1", mean, split, f"mean of {names}", f"mean of {titles} top-1")


def selection_splits(cell: Cell, data_dir: Path) -> list[str]:
    """Return the split that everything of a cell is chosen on, as a list.

    The list is empty if the data set has no such split.

    Raises:
        RegbenchError: If an evaluation of the cell cannot be done on its images.
    """
    config = cell.evaluation
    task = Task(cell.dataset, config.select_on, data_dir)
    unlabelled = not Manifest.load(task.data_dir, task.dataset).class_names
    for name, evaluation in config.evaluations.items():
        evaluation.check(name, task)
        own: DatasetConfig | None = getattr(evaluation, "dataset", None)
        needs_labels = evaluation.needs_labels and own is None
        if unlabelled and needs_labels and name in config.protocols:
            what = f"evaluation.protocols: {name} needs labels, and data set {task.dataset.name!r}"
            raise RegbenchError(
                f"{what} has none; leave it out, or give some: regbench prepare --labels"
            )
        if name in config.while_training and not task.splits(name, own):
            raise RegbenchError(
                f"evaluation.while_training={shown(config.while_training)}: data set "
                f"{(own or task.dataset).name!r} has no {task.select_on} split to evaluate {name} "
                "on; prepare it with one (dataset.source.tuning_per_class), or leave the setting "
                "out"
            )
    return task.splits("knn")
