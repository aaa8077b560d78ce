"""Records: the signed files with the results of runs, and the only definition of their schema.

A finished run leaves a `Record`, an evaluation that came later a `LaterEvaluation`. Nothing here
needs torch.
"""

from __future__ import annotations

import functools
import json
import marshal
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from regbench.benchmark.rundir.record_parts import (
    Cost,
    ImageSource,
    NamedFile,
    Number,
    PastAttempt,
    Saved,
    finite_numbers,
)
from regbench.benchmark.rundir.signed_file import SignedFile
from regbench.files import Name, parse_json
from regbench.text import A_NAME, brief, is_name

RECORDS = ("record.json", "tuning.json")
"""Names of the files of a record; the final one counts where there are both."""

_AGAIN = "remove it, and the command that wrote it makes it again from the last checkpoint"

# The name of a score that is a linear probe of a factor of the images.
_PROBE = re.compile(r"factor_(.+)_([a-z]+)")

# Version of `marshal` in which equal values are equal bytes.
_NO_REFERENCES = 2


@dataclass(frozen=True)
class Score:
    """A number that an evaluation gave a cell, with all that tables need to show it.

    Attributes:
        name: Name in a record, such as "linear_top1".
        value: The number, in `unit`.
        split: The split that it was measured on.
        protocol: The way in which it was measured, in words.
        title: Name in tables, without the unit, such as "linear top-1".
        unit: The unit, such as "%"; empty for a pure number.
        higher_is_better: None where no value is the best.
        even: The value on every second image of the split, which records of the past may have.
    """

    name: str
    value: Number
    split: str
    protocol: str
    title: str
    unit: str = "%"
    higher_is_better: bool | None = True
    even: Number | None = None

    @property
    def head(self) -> str:
        """The title with the unit, for the head of a column."""
        return f"{self.title} ({self.unit})" if self.unit else self.title

    @property
    def sign(self) -> int:
        """-1 if less is better, or else 1: the factor that makes the best score the largest."""
        return -1 if self.higher_is_better is False else 1

    @property
    def probe(self) -> tuple[str, str] | None:
        """The image factor and the network layer of a linear probe; None for any other score."""
        found = _PROBE.fullmatch(self.name)
        return None if found is None else (found[1], found[2])

    @property
    def text(self) -> str:
        """Name, value and split in a few words, for messages."""
        value = f"{self.value:.2f} %" if self.unit == "%" else f"{self.value:.4g}"
        return f"{self.name} {value} ({self.split})"


@dataclass(frozen=True)
class ScoreInTraining:
    """A score while training.

    Attributes:
        epoch: The epoch after which it was measured.
        train_s: Seconds of training until then; checkpoints and evaluations are not counted.
        score: The score.
    """

    epoch: int
    train_s: float
    score: Score


def _within_range(score: Score) -> Score:
    if score.unit == "%" and not 0 <= score.value <= 100:
        raise ValueError(
            f"{brief(score.name)} on {brief(score.split)} is {score.value:g} %, outside 0 to 100 %"
        )
    return score


def _is_cell(cell: dict[str, Any]) -> dict[str, Any]:
    """Refuse a cell without the settings that tables read.

    All others may come and go with versions.
    """
    try:
        texts = {"dataset.name": cell["dataset"]["name"], "network.backbone": backbone_name(cell)}
        numbers = {name: cell[name] for name in ("embedding_dim", "batch_size", "epochs")}
    except (KeyError, TypeError) as error:
        raise ValueError(f"{error} is missing") from error
    for name, value in texts.items():
        if not isinstance(value, str):
            raise ValueError(f"{name} is {value!r:.40}")
    if not is_name(texts["dataset.name"]):
        raise ValueError(f"dataset.name is {brief(texts['dataset.name'])!r}, not {A_NAME}")
    for name, value in numbers.items():
        # Nobody says how published weights were trained. `type`, because True is an int.
        unknown = value is None and "external" in cell
        if type(value) is not int and not unknown:
            raise ValueError(f"{name} is {value!r:.40}")
    return cell


def _is_choice(choice: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    tuned = choice.get("hyperparameters", {})
    edges = tuned.get("edges", {})
    for name in ("budget", "search"):
        if type(tuned.get(name)) not in (int, type(None)):
            raise ValueError(f"hyperparameters.{name} is {tuned[name]!r:.40}")
    if not isinstance(edges, dict):
        raise ValueError(f"hyperparameters.edges is {edges!r:.40}")
    # This path is looked up below the folder of runs, and written there from a bundle.
    if tuned.get("record") is not None and not all(map(is_name, str(tuned["record"]).split("/"))):
        raise ValueError(f"hyperparameters.record is {tuned['record']!r:.40}, no path of names")
    return choice


_Scores = tuple[Annotated[Score, AfterValidator(_within_range)], ...]


class _Epoch(TypedDict):
    epoch: int
    epoch_s: Number
    scores: NotRequired[_Scores]


_EPOCH = TypeAdapter(_Epoch)

_Cell = Annotated[dict[str, Any], AfterValidator(_is_cell)]
_Choices = Annotated[dict[str, dict[str, Any]], AfterValidator(_is_choice)]


def backbone_name(cell: Mapping[str, Any]) -> Any:
    """Return the name of the backbone in a cell's plain data.

    For a model of a library, the model's name.
    """
    backbone = cell["network"]["backbone"]
    return backbone.get("model", backbone["name"])


def on_test(choice: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return True if anything was chosen on the test split, where scores are then optimistic."""
    return any(entry.get("selected_on") == "test" for entry in choice.values())


@dataclass(frozen=True, kw_only=True, eq=False)
class Record(SignedFile):
    """One finished cell: its `record.json`, or its `tuning.json` if it was a point of a tuning
    grid.

    Attributes:
        cell_id: The hash of the settings that decide the result; the name of the run's folder.
        sweep: The sweep's name.
        label: The method's name in tables.
        method: The method's registered name.
        seed: The seed of all random numbers.
        status: The end of the run; "tuned" means that it has not seen the test split.
        cell: The settings as plain data.
        scores: The scores of its evaluations.
        cost: Time, memory and energy that it took.
        data: The images that it saw.
        choice: The way in which each thing was chosen ("hyperparameters", "probe_learning_rate",
            ...): on which split, among how many; empty where nothing was evaluated on the test
            split, but for a run that diverged with what a tuning chose.
        regularizer: The method's description of itself, by name: reference, url, formula and so on.
        spectrum: Coefficients b_0, b_1, ... of the kernel's expansion in spherical harmonics; None
            without a kernel.
        diverged: The place and reason of a divergence, if there was one.
        environment: Hardware, versions, loader and the like of training and evaluation: "A, then B"
            where a run went on in other surroundings.
        attempts: The attempts that led to the record.
        command: The command that runs the cell again.
        metrics: The history of the training; None where no epoch was finished.
        checkpoint: The final weights; None where there are none.
    """

    cell_id: Name
    sweep: Name
    label: str
    method: str
    seed: int
    status: Literal["done", "diverged", "tuned"]
    cell: _Cell
    scores: _Scores
    cost: Cost
    environment: dict[str, Any]
    data: ImageSource
    attempts: tuple[PastAttempt, ...]
    command: str
    choice: _Choices = field(default_factory=dict)
    regularizer: dict[str, str] = field(default_factory=dict)
    spectrum: tuple[float, ...] | None = None
    diverged: dict[str, Any] | None = None
    metrics: NamedFile | None = None
    checkpoint: Saved | None = None

    @property
    def file_name(self) -> str:
        """The name of its file."""
        return "tuning.json" if self.status == "tuned" else "record.json"

    @property
    def backbone(self) -> str:
        """Name of the backbone."""
        return str(backbone_name(self.cell))

    @functools.cached_property
    def settings(self) -> dict[str, str]:
        """The cell's settings as text, sorted by their full names: {"optimizer.base_lr": "0.3"}."""
        return _flat(self.cell)

    @property
    def untrained(self) -> bool:
        """Whether nothing was trained: the network as it is initialised, or a trivial baseline."""
        return bool(self.cell["epochs"] == 0)

    @property
    def is_reference(self) -> bool:
        """Whether methods are compared with it: nothing trained it, or labels did."""
        return self.untrained or self.cell.get("baseline") is not None

    @property
    def on_test(self) -> bool:
        """Whether something was chosen on the test split."""
        evaluation = self.cell.get("evaluation")
        evaluated_on_test = isinstance(evaluation, dict) and evaluation.get("select_on") == "test"
        return on_test(self.choice) or evaluated_on_test

    @property
    def search(self) -> int | None:
        """The number of its search, in a repeated tuning; None for any other record."""
        number: int | None = self.choice.get("hyperparameters", {}).get("search")
        return number

    @property
    def started(self) -> str:
        """Time at which the first attempt began; empty if unknown."""
        return min((attempt.started for attempt in self.attempts if attempt.started), default="")

    @property
    def finished(self) -> str:
        """Time at which the last attempt ended; empty if unknown."""
        return max((attempt.finished for attempt in self.attempts if attempt.finished), default="")

    def score(self, name: str, split: str) -> float | None:
        """Return the value of the first score of that name and split; None if it was not
        measured.
        """
        return self.values.get((name, split))

    @functools.cached_property
    def values(self) -> dict[tuple[str, str], float]:
        """The values of the scores, by name and split."""
        # Reversed, so that the first of equal names stays.
        return {(score.name, score.split): score.value for score in reversed(self.scores)}

    def place(self, named: NamedFile) -> Path:
        """Return the path of a file that the record names."""
        return self.path.with_name(named.file)

    @functools.cached_property
    def history(self) -> list[dict[str, Any]]:
        """The numbers of each epoch of the training, by name; empty where there are none."""
        return parse_lines(self._metrics_lines())

    @functools.cached_property
    def measured(self) -> list[ScoreInTraining]:
        """The scores while training, in the order of the epochs; empty where there are none."""
        evaluation = self.cell.get("evaluation")
        if not isinstance(evaluation, dict) or not evaluation.get("while_training"):
            return []
        try:
            # Not by way of `history`: those of thousands of records would fill the memory.
            epochs = [_EPOCH.validate_json(line) for line in self._metrics_lines()]
        except ValidationError:
            return []
        found, train_s = [], 0.0
        for epoch in epochs:
            train_s += epoch["epoch_s"]
            for score in epoch.get("scores", ()):
                found.append(ScoreInTraining(epoch["epoch"], train_s, score))
        return found

    @functools.cached_property
    def at_end(self) -> dict[str, float]:
        """The finite numbers of the last epoch, by name; empty where there are none."""
        last = parse_lines(self._metrics_lines()[-1:])
        return finite_numbers(last[0]) if last else {}

    def _metrics_lines(self) -> list[bytes]:
        if self.metrics is None:
            return []
        return self.place(self.metrics).read_bytes().splitlines()


def read_record(directory: Path) -> Record | None:
    """Read the record of a finished run directory; None without one.

    Refuse one that was changed.
    """
    return Record.read_if_there(directory / "record.json", _AGAIN)


def read_tuned(directory: Path) -> Record | None:
    """Read the record that a tuning chooses by: `tuning.json`, or else the final one; None without
    either.
    """
    return Record.read_if_there(directory / "tuning.json", _AGAIN) or read_record(directory)


@dataclass(frozen=True, kw_only=True, eq=False)
class LaterEvaluation(SignedFile):
    """The file `evaluations/<protocol>.json`, which adds to the record of a finished run.

    Attributes:
        cell_id: The record's cell id.
        protocol: The evaluation's name.
        scores: Scores of the evaluation.
        environment: See `Record`.
        seconds: The time that it took.
        choice: See `Record`.
        finished: When it ended, ISO 8601.
        command: The command that does it again.
    """

    cell_id: Name
    protocol: Name
    scores: _Scores
    seconds: float
    choice: _Choices
    environment: dict[str, Any]
    finished: str
    command: str


def _flat(group: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    out: dict[str, str] = {}
    for key, value in sorted(group.items()):
        out.update(_flat_setting(f"{prefix}{key}", marshal.dumps(value, _NO_REFERENCES)))
    return out


# Ten thousand records have mostly the same groups of settings.
@functools.lru_cache(maxsize=65536)
def _flat_setting(name: str, content: bytes) -> dict[str, str]:
    value = marshal.loads(content)
    if isinstance(value, dict):
        return _flat(value, f"{name}.")
    # Settings of all types become texts, which can be compared and sorted.
    return {name: value if isinstance(value, str) else json.dumps(value)}


def parse_lines(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """Parse JSON lines; return an empty list if one is damaged."""
    try:
        rows = [parse_json(line) for line in lines]
    except ValueError:
        return []
    return rows if all(isinstance(row, dict) for row in rows) else []
