"""The base class of evaluations: settings, a check before the training, scores afterwards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from regbench.benchmark.rundir.record import Score
from regbench.datasets.config import DatasetConfig
from regbench.datasets.config import Interpolation as Interpolation  # for all evaluations
from regbench.datasets.stored.manifest import Manifest
from regbench.errors import RegbenchError
from regbench.plugins import Registry

Scores = list[Score]


@dataclass(frozen=True)
class Task:
    """The images and splits that a backbone is evaluated on.

    Attributes:
        dataset: Data set of the cell.
        select_on: Split that everything is chosen on.
        data_dir: Folder of prepared data sets.
    """

    dataset: DatasetConfig
    select_on: str
    data_dir: Path

    def splits(self, name: str, own: DatasetConfig | None = None) -> list[str]:
        """Return the split that an evaluation chooses on, as a list; an empty one if the data set
        has no such split.

        The data set is `own`, if the evaluation has one of its own; messages call the evaluation
        `name`.
        """
        dataset = own or self.dataset
        if dataset.input_channels != self.dataset.input_channels:
            raise RegbenchError(
                f"{name}: {dataset.name!r} has {dataset.input_channels} channels and the backbone "
                f"is for the {self.dataset.input_channels} of {self.dataset.name!r}; leave {name} "
                "out of evaluation.protocols"
            )
        manifest = Manifest.load(self.data_dir, dataset)
        # Nothing is chosen by images without labels.
        can_choose = manifest.class_names and self.select_on in manifest.splits
        return [self.select_on] if can_choose else []


class Evaluation(ABC):
    """An evaluation of a frozen backbone.

    A subclass is a dataclass of its settings, decorated by `regbench.settings.settings` and by the
    `register` of this module. It states `title` and `reference` and implements `run`. It chooses
    nothing on the test split: `Task.splits` names the split to choose on, and `Subject.note` writes
    down what was chosen before the test split opens.
    """

    title: ClassVar[str]
    """Display name."""
    reference: ClassVar[str]
    """Source of the protocol: authors, venue and year."""
    needs_labels: ClassVar[bool] = True
    """Whether it needs labels of the cell's own images."""
    selects: ClassVar[str] = ""
    """Score whose highest value may choose hyperparameters, and that curves show; empty: none.

    A class that names one implements `select`.
    """

    def check(self, name: str, task: Task) -> None:
        """Refuse, before any training, what cannot be evaluated; a refusal says what to do."""
        task.splits(name, getattr(self, "dataset", None))

    @abstractmethod
    def run(self, name: str, subject: Any) -> Scores:
        """Return the scores on the test split, and those on the split that something was chosen
        on.

        `subject` is a `regbench.benchmark.evaluate.subject.Subject`.
        """

    def select(self, name: str, subject: Any) -> Scores:
        """Return the scores on the selection split; the first is the one that `selects` names."""
        raise NotImplementedError


EVALUATIONS: Registry[Evaluation] = Registry("evaluation")
"""All evaluations, by name."""

register = EVALUATIONS.register


def selection_name(select_by: Sequence[str]) -> str:
    """Return the name of the score that hyperparameters are chosen by, given
    `evaluation.select_by`.
    """
    return "selection_top1" if len(select_by) > 1 else EVALUATIONS.of(select_by[0]).selects


def accuracy_scores(
    name: str, title: str, accuracies: Sequence[float], split: str, protocol: str
) -> Scores:
    """Return the two scores `name`_top1 and `name`_top5."""
    top1, top5 = accuracies
    return [
        Score(f"{name}_top1", top1, split, protocol, f"{title} top-1"),
        Score(f"{name}_top5", top5, split, protocol, f"{title} top-5"),
    ]


def choose(
    found: dict[str, list[tuple[float, float]]], labels: list[str]
) -> tuple[int, str, dict[str, float]]:
    """Choose the best candidate by top-1 on the selection split; without such a split the first.

    Args:
        found: The selection split, if there is one -> (top-1, top-5) of each candidate.
        labels: Names of the candidates.

    Returns:
        The candidate's number, the split ("given" without a choice), and the top-1 of each
        candidate.
    """
    if not found:
        return 0, "given", {}
    ((split, accuracies),) = found.items()
    top1 = [accuracy[0] for accuracy in accuracies]
    # The first of equally good candidates wins, on any machine.
    best = top1.index(max(top1))
    return best, split if len(labels) > 1 else "given", dict(zip(labels, top1, strict=True))


def chosen_from(selected_on: str, labels: list[str]) -> str:
    """Describe the candidates of a choice, for a score's protocol."""
    return f" chosen on {selected_on} from {', '.join(labels)}" if len(labels) > 1 else ""


def refuse_choice(
    name: str, task: Task, own: DatasetConfig | None, **candidates: Sequence[float]
) -> None:
    """Refuse several candidates for a rate if there is no split to choose on.

    The data set is `own`, if the evaluation has one of its own. `candidates` maps the names of
    settings to their candidates.
    """
    if not task.splits(name, own) and max(map(len, candidates.values())) > 1:
        # The middle candidate is the likeliest: candidates reach from too small to too large.
        single = []
        for key, rates in candidates.items():
            middle = rates[len(rates) // 2]
            single.append(f"evaluation.{name}.{key}=[{middle:g}]")
        raise RegbenchError(
            f"data set {(own or task.dataset).name!r} has no tuning split to choose learning rates "
            f"on; give one of each: {' '.join(single)}"
        )
