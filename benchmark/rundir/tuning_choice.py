"""What a tuning chose: `tuning_choice.json` in the folder of its sweep. It opens the test split for the chosen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import FiniteFloat

from regbench.benchmark.rundir.signed_file import SignedFile

TUNING_CHOICE = "tuning_choice.json"
"""The file's name; a run's own choices are in `choice-<attempt>.json`."""

SEARCH = "search.json"
"""The name of the file that says what a search in place of a grid has proposed so far."""


@dataclass(frozen=True, kw_only=True)
class RankedConfiguration:
    """A configuration that a tuning tried.

    Attributes:
        cell_id: Of the first of its cells.
        configuration: The cell's id without its seed.
        epochs: That it was trained for: fewer than the others if a search stopped it early.
        value: Its score after these; None if a seed diverged.
        status: "tuned", "stopped" (early) or "diverged".
        hyperparameters: Those that were searched, by their full names.
    """

    cell_id: str
    configuration: str
    epochs: int
    value: FiniteFloat | None
    status: str
    hyperparameters: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ChosenConfiguration:
    """What a tuning chose for a method in one setting.

    Attributes:
        label: The method's name in tables.
        method: Its registered name.
        setting: Data set, backbone, embedding dimension, batch size and epochs.
        chosen: The cell id of the best.
        configuration: Its cell's id without the seed.
        ranking: All that were tried, the best first; what was stopped early comes after the others.
        edges: Hyperparameters beyond whose chosen value nothing was tried: full name -> "smallest" or "largest", which
            the value is of those that were tried. The optimum may lie further out.
        images: That all its trainings saw, those of shorter trainings included.
    """

    label: str
    method: str
    setting: dict[str, Any]
    chosen: str
    configuration: str
    ranking: tuple[RankedConfiguration, ...]
    edges: dict[str, str]
    images: int


@dataclass(frozen=True, kw_only=True, eq=False)
class TuningChoice(SignedFile):
    """What a tuning chose.

    Attributes:
        selected_on: The split.
        score: The name of the score that decided.
        budget: The most configurations that any method had.
        seeds: Of the grid.
        choices: What was chosen, by method and setting.
        created: When, ISO 8601.
    """

    selected_on: str
    score: str
    budget: int
    seeds: tuple[int, ...]
    choices: tuple[ChosenConfiguration, ...]
    created: str


def read_choice(folder: Path) -> TuningChoice | None:
    """Read what the tuning in a sweep's folder chose; None if it has not yet.

    Raises:
        RegbenchError: If it is not what was written.
    """
    remedy = f"remove it, and choose again: regbench tune {folder.name}"
    return TuningChoice.read_if_there(folder / TUNING_CHOICE, remedy)
