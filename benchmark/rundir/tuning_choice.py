"""`tuning_choice.json` in the folder of a sweep: the choice that opens the test split for the chosen cells."""

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
        cell_id: The id of the first of its cells.
        configuration: The cell's id without its seed.
        epochs: Its epochs: fewer than those of the others if a search stopped it early.
        value: Its score at the end; None if a seed diverged.
        status: "tuned", "stopped" (early) or "diverged".
        hyperparameters: The values of the searched settings, by their full names.
    """

    cell_id: str
    configuration: str
    epochs: int
    value: FiniteFloat | None
    status: str
    hyperparameters: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ChosenConfiguration:
    """The choice for one method in one setting.

    Attributes:
        label: The method's name in tables.
        method: Its registered name.
        setting: Data set, backbone, embedding dimension, batch size and epochs.
        chosen: The cell id of the best configuration.
        configuration: That cell's id without the seed.
        ranking: All configurations, the best first; those that were stopped early come last.
        edges: Hyperparameters whose chosen value is the smallest or largest that was tried: full name -> "smallest" or
            "largest". The optimum may lie further out.
        images: The number of images that all its trainings saw together.
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
    """All choices of a tuning.

    Attributes:
        selected_on: The split of the scores that decided.
        score: The name of these scores.
        budget: The largest number of configurations that a method had.
        seeds: The seeds of the grid.
        choices: The choice for each method and setting.
        created: When it was made, ISO 8601.
    """

    selected_on: str
    score: str
    budget: int
    seeds: tuple[int, ...]
    choices: tuple[ChosenConfiguration, ...]
    created: str


def read_choice(folder: Path) -> TuningChoice | None:
    """Read the choices of the tuning in a sweep's folder; None before they are made."""
    remedy = f"remove it, and choose again: regbench tune {folder.name}"
    return TuningChoice.read_if_there(folder / TUNING_CHOICE, remedy)
