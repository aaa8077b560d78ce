"""Records: the signed files in which runs say what they found, and the one place that knows their schema.

A finished run leaves a `Record`, an evaluation that came later a `LaterEvaluation`. Nothing here needs torch.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

import orjson
from pydantic import AfterValidator, Field, FiniteFloat, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from regbench.benchmark.rundir.signed_file import SignedFile
from regbench.files import parse_json

LARGEST = 1e100
Number = Annotated[FiniteFloat, Field(ge=-LARGEST, le=LARGEST)]
"""What was measured. The squares of larger numbers, of which deviations are made, do not fit into a float."""

_AGAIN = "remove it, and the command that wrote it makes it again from the last checkpoint"


@dataclass(frozen=True)
class Score:
    """One number that an evaluation gave a cell, with all that tables need to show it.

    Attributes:
        name: In a record, such as "linear_top1".
        value: In `unit`.
        split: That it was measured on.
        protocol: How it was measured, in words.
        title: What tables call it, without the unit, such as "linear top-1".
        unit: Such as "%"; empty for a pure number.
        higher_is_better: None where no value is the best.
    """

    name: str
    value: Number
    split: str
    protocol: str
    title: str
    unit: str = "%"
    higher_is_better: bool | None = True

    @property
    def head(self) -> str:
        """The title with the unit, for the head of a column."""
        return f"{self.title} ({self.unit})" if self.unit else self.title

    @property
    def text(self) -> str:
        """Name, value and split in a few words, for messages."""
        value = f"{self.value:.2f} %" if self.unit == "%" else f"{self.value:.4g}"
        return f"{self.name} {value} ({self.split})"


@dataclass(frozen=True)
class Measured:
    """A score while training.

    Attributes:
        epoch: After which it was measured.
        train_s: Seconds of training until then; checkpoints and evaluations are not counted.
        score: What was measured.
    """

    epoch: int
    train_s: float
    score: Score


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a cell took; None where it was not measured, as for a network without training.

    Attributes:
        train_s: Of training; checkpoints and evaluations are not counted.
        checkpoint_s: Of writing checkpoints.
        monitor_s: Of evaluations while training.
        evaluate_s: Of all evaluations after training.
        img_per_s: Images a second in training.
        step_ms: Of a training step; here and in its parts the median over epochs of the medians over steps.
        data_ms: Of it: waiting for images.
        forward_ms: Of it: the network's forward pass.
        loss_ms: Of it: the loss with its gradient.
        backward_ms: Of it: the network's backward pass.
        optimizer_ms: Of it: the update of the weights.
        peak_memory_bytes: Of the process that needed most.
        peak_reserved_bytes: The same of what the allocator held.
        peak_memory_kind: What the two count.
        loss_extra_bytes: Peak of value and gradient of the loss alone beyond embeddings and gradients, as `regbench
            cost` measures it; of the process that needed most.
        energy_gpu_joules: Of all GPUs, in training.
        energy_cpu_joules: Of the whole machine's processors, in training.
    """

    train_s: Number | None = None
    checkpoint_s: Number | None = None
    monitor_s: Number | None = None
    evaluate_s: Number | None = None
    img_per_s: Number | None = None
    step_ms: Number | None = None
    data_ms: Number | None = None
    forward_ms: Number | None = None
    loss_ms: Number | None = None
    backward_ms: Number | None = None
    optimizer_ms: Number | None = None
    peak_memory_bytes: Number | None = None
    peak_reserved_bytes: Number | None = None
    peak_memory_kind: str | None = None
    loss_extra_bytes: Number | None = None
    energy_gpu_joules: Number | None = None
    energy_cpu_joules: Number | None = None


@dataclass(frozen=True)
class Searched:
    """A hyperparameter that a tuning of the method searches.

    Attributes:
        scale: On which its values are spread evenly, see `regbench.spaces.Range`.
        balances: Whether it weighs the method's alignment against its regularizer.
    """

    scale: Literal["log", "linear", "logit"]
    balances: bool


@dataclass(frozen=True)
class NamedFile:
    """A file beside the record that belongs to it.

    Attributes:
        file: Its name.
        sha256: Of its content.
    """

    file: str
    sha256: str


@dataclass(frozen=True)
class Saved(NamedFile):
    """A file of tensors.

    Attributes:
        step: How many steps were done when it was written; the number in its name.
    """

    step: int


@dataclass(frozen=True)
class Images:
    """The images that a cell saw.

    Attributes:
        source: Where they come from.
        content_sha256: Of each split.
    """

    source: str
    content_sha256: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class PastAttempt:
    """An attempt at a run.

    Attributes:
        number: 1 for the first.
        started: When, in ISO 8601.
        finished: When, in ISO 8601.
        ended: How.
        error: What stopped it, if something did.
        hostname: Of the machine.
        from_step: The step that it went on from.
    """

    number: int | None = None
    started: str | None = None
    finished: str | None = None
    ended: str | None = None
    error: str | None = None
    hostname: str | None = None
    from_step: int | None = None


def _is_beside(named: NamedFile) -> NamedFile:
    if named.file in ("", "..") or Path(named.file).name != named.file:
        raise ValueError(f"{named.file!r:.80} is not the name of a file beside the record")
    return named


def _within_range(score: Score) -> Score:
    if score.unit == "%" and not 0 <= score.value <= 100:
        raise ValueError(f"{score.name} on {score.split} is {score.value:g} %, outside 0 to 100 %")
    return score


def _is_cell(cell: dict[str, Any]) -> dict[str, Any]:
    try:
        texts = {"dataset.name": cell["dataset"]["name"], "network.backbone": backbone_name(cell)}
        numbers = {name: cell[name] for name in ("embedding_dim", "batch_size", "epochs")}
    except (KeyError, TypeError) as error:
        raise ValueError(f"{error} is missing") from error
    wrong = {name: value for name, value in texts.items() if not isinstance(value, str)}
    wrong |= {name: value for name, value in numbers.items() if type(value) is not int and "external" not in cell}
    for name, value in wrong.items():
        raise ValueError(f"{name} is {value!r:.40}")
    return cell


def _is_choice(choice: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    budget = choice.get("hyperparameters", {}).get("budget")
    if budget is not None and type(budget) is not int:
        raise ValueError(f"hyperparameters.budget is {budget!r:.40}")
    edges = choice.get("hyperparameters", {}).get("edges", {})
    if not isinstance(edges, dict):
        raise ValueError(f"hyperparameters.edges is {edges!r:.40}")
    return choice


_Scores = tuple[Annotated[Score, AfterValidator(_within_range)], ...]


class _Epoch(TypedDict):
    """What of a line of the history makes curves of accuracy."""

    epoch: int
    epoch_s: Number
    scores: NotRequired[_Scores]


_EPOCH = TypeAdapter(_Epoch)

_Beside = AfterValidator(_is_beside)
_Cell = Annotated[dict[str, Any], AfterValidator(_is_cell)]
_Choices = Annotated[dict[str, dict[str, Any]], AfterValidator(_is_choice)]


def backbone_name(cell: Mapping[str, Any]) -> Any:
    """Return the name of the backbone in a cell's plain data; of a library's models that of the model."""
    backbone = cell["network"]["backbone"]
    return backbone.get("model", backbone["name"])


def on_test(choice: Mapping[str, Mapping[str, Any]]) -> bool:
    """Tell whether anything was chosen on the test split."""
    return any(entry.get("selected_on") == "test" for entry in choice.values())


@dataclass(frozen=True, kw_only=True, eq=False)
class Record(SignedFile):
    """One finished cell: its `record.json`, or its `tuning.json` if it was a point of a tuning grid.

    Attributes:
        cell_id: The hash of the settings that decide the result; the name of the run's folder.
        sweep: Its name.
        label: The method's name in tables.
        method: The method's registered name.
        seed: Of all random numbers.
        status: "tuned" of a cell that has not seen the test split.
        cell: Its settings as plain data.
        scores: What evaluations gave.
        cost: What it took.
        data: The images that it saw.
        choice: What was chosen on which split among how many, by what was chosen ("hyperparameters",
            "probe_learning_rate", ...); empty where nothing was evaluated on the test split.
        regularizer: What the method says of itself, by name: reference, url, formula and so on.
        searched: Those numbers of method and optimizer that have a range in a search space, by their full names.
        spectrum: Coefficients b_0, b_1, ... of the kernel's expansion in spherical harmonics; None without a kernel.
        diverged: Where and why training diverged, if it did.
        environment: Hardware, versions, loader and the like.
        attempts: Those that led to it.
        command: The one that runs the cell again.
        metrics: The history of the training; None where no epoch was finished.
        checkpoint: The final weights; None where there are none.
    """

    cell_id: str
    sweep: str
    label: str
    method: str
    seed: int
    status: Literal["done", "diverged", "tuned"]
    cell: _Cell
    scores: _Scores
    cost: Cost
    environment: dict[str, Any]
    data: Images
    attempts: tuple[PastAttempt, ...]
    command: str
    choice: _Choices = field(default_factory=dict)
    regularizer: dict[str, str] = field(default_factory=dict)
    searched: dict[str, Searched] = field(default_factory=dict)
    spectrum: tuple[float, ...] | None = None
    diverged: dict[str, Any] | None = None
    metrics: Annotated[NamedFile, _Beside] | None = None
    checkpoint: Annotated[Saved, _Beside] | None = None

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
        """The cell's settings by their full names, in the order of these, as text: {"optimizer.base_lr": "0.3"}."""
        found: dict[str, str] = {}
        for key, value in sorted(self.cell.items()):
            found.update(_flat_part(key, orjson.dumps(value)))
        return found

    @property
    def untrained(self) -> bool:
        """Whether this is the network as initialized: no epoch of training."""
        return bool(self.cell["epochs"] == 0)

    @property
    def on_test(self) -> bool:
        """Whether something was chosen on the test split: the scores there are optimistic then."""
        evaluation = self.cell.get("evaluation")
        return on_test(self.choice) or (isinstance(evaluation, dict) and evaluation.get("select_on") == "test")

    @property
    def started(self) -> str:
        """When the first attempt began; empty where unknown."""
        return min((attempt.started for attempt in self.attempts if attempt.started), default="")

    @property
    def finished(self) -> str:
        """When the last attempt ended; empty where unknown."""
        return max((attempt.finished for attempt in self.attempts if attempt.finished), default="")

    def score(self, name: str, split: str) -> float | None:
        """Return the value of the first score of that name and split; None if it was not measured."""
        return self._values.get((name, split))

    @functools.cached_property
    def _values(self) -> dict[tuple[str, str], float]:
        return {(score.name, score.split): score.value for score in reversed(self.scores)}

    def place(self, named: NamedFile) -> Path:
        """Return where a file of the record lies."""
        return self.path.with_name(named.file)

    @functools.cached_property
    def history(self) -> list[dict[str, Any]]:
        """The numbers of each epoch of the training, by name; empty where there are none."""
        return [] if self.metrics is None else _lines(self.place(self.metrics).read_bytes().splitlines())

    @functools.cached_property
    def measured(self) -> list[Measured]:
        """The scores while training, in the order of the epochs; empty where there are none."""
        evaluation = self.cell.get("evaluation")
        if self.metrics is None or not isinstance(evaluation, dict) or not evaluation.get("while_training"):
            return []
        try:  # of thousands of records, `history` would fill the memory
            epochs = [_EPOCH.validate_json(line) for line in self.place(self.metrics).read_bytes().splitlines()]
        except ValidationError:
            return []
        found, train_s = [], 0.0
        for epoch in epochs:
            train_s += epoch["epoch_s"]
            found += [Measured(epoch["epoch"], train_s, score) for score in epoch.get("scores", ())]
        return found

    @functools.cached_property
    def at_end(self) -> dict[str, float]:
        """The numbers of the last epoch, by name, but for NaN and the like; empty where there are none."""
        if self.metrics is None:
            return {}
        last = self.place(self.metrics).read_bytes().rstrip().rpartition(b"\n")[2:]
        return {name: value for line in _lines(last) for name, value in finite_numbers(line).items()}


def finite_numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a row of a history that means can be taken of, by name."""
    numbers = ((name, value) for name, value in row.items() if isinstance(value, int | float))
    return {name: float(value) for name, value in numbers if not isinstance(value, bool) and abs(value) <= LARGEST}


def read_record(directory: Path) -> Record | None:
    """Read the record of a finished run directory; None without one.

    Raises:
        RegbenchError: If it is not what was written.
    """
    return Record.read_if_there(directory / "record.json", _AGAIN)


def read_tuned(directory: Path) -> Record | None:
    """Read the record that a tuning chooses by: that of the tuning split, or the final one; None without either.

    Raises:
        RegbenchError: If it is not what was written.
    """
    return Record.read_if_there(directory / "tuning.json", _AGAIN) or read_record(directory)


@dataclass(frozen=True, kw_only=True, eq=False)
class LaterEvaluation(SignedFile):
    """What `evaluations/<protocol>.json` adds to the record of a finished run.

    Attributes:
        cell_id: Of the record.
        protocol: The evaluation's name.
        scores: What it gave.
        environment: As of a record.
        seconds: That it took.
        choice: As of a record.
        finished: When, ISO 8601.
        command: The one that does it again.
    """

    cell_id: str
    protocol: str
    scores: _Scores
    seconds: float
    choice: _Choices
    environment: dict[str, Any]
    finished: str
    command: str


def _flat(cell: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    out: dict[str, str] = {}
    for key, value in sorted(cell.items()):
        if isinstance(value, dict):
            out.update(_flat(value, f"{prefix}{key}."))
        else:
            out[prefix + key] = value if isinstance(value, str) else json.dumps(value)
    return out


@functools.lru_cache(maxsize=4096)
def _flat_part(key: str, value: bytes) -> dict[str, str]:
    """Flatten a part of a cell; parts that thousands of cells share, such as the augmentation, are kept."""
    return _flat({key: orjson.loads(value)})


def _lines(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """Parse JSON lines; return none where one is damaged."""
    try:
        found = [parse_json(line) for line in lines]
    except ValueError:
        return []
    return found if all(isinstance(line, dict) for line in found) else []
