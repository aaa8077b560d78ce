"""`tuning_choice.json` in the folder of a sweep: the choice that opens the test split for the
chosen cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import FiniteFloat

from regbench.benchmark.rundir.signed_file import SignedFile
from regbench.errors import RegbenchError
from regbench.files import Name, read_file, verified

TUNING_CHOICE = "tuning_choice.json"
"""The file's name; a run's own choices are in `choice-<attempt>.json`."""

SEARCH = "search.json"
"""The name of the file with what a search, in place of a grid, has proposed so far."""

APART = 1000
"""Search number k of a repeated tuning has the seeds of the first one plus k times this."""


def seed_in(search: int, seed: int) -> int:
    """Return the seed of another search that corresponds to a seed of the first one.

    Raises:
        RegbenchError: If it is so large that searches could share a seed.
    """
    if search and seed >= APART:
        raise RegbenchError(
            f"seed {seed} is too large for a tuning that is repeated; give seeds below {APART}"
        )
    return seed + APART * search


@dataclass(frozen=True, kw_only=True)
class RankedConfiguration:
    """A configuration that a tuning tried.

    Attributes:
        cell_id: The id of the first of its cells.
        configuration: The cell's id without its seed.
        epochs: Number of epochs; a search that stops a configuration early gives it fewer than the
            others.
        value: Score at the end; None if a seed diverged.
        status: "tuned", "stopped" (early) or "diverged".
        hyperparameters: The values of the searched settings, by their full names.
    """

    cell_id: Name
    configuration: Name
    epochs: int
    value: FiniteFloat | None
    status: str
    hyperparameters: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ChosenConfiguration:
    """The choice for one method in one setting.

    Attributes:
        label: The method's name in tables.
        method: Registered name of the method.
        setting: Data set, backbone, embedding dimension, batch size and epochs; of a repeated
            tuning also "search", the number of the search that chose it; where budgets follow it,
            "searched", the number of hyperparameters.
        chosen: The cell id of the best configuration.
        configuration: Id of that cell without the seed.
        ranking: All configurations, the best first; those that were stopped early come last.
        edges: Hyperparameters whose chosen value is the smallest or largest that was tried: full
            name -> "smallest" or "largest". The optimum may lie further out.
        images: The number of images that all its trainings saw together.
    """

    label: str
    method: str
    setting: dict[str, Any]
    chosen: Name
    configuration: Name
    ranking: tuple[RankedConfiguration, ...]
    edges: dict[str, str]
    images: int

    @property
    def search(self) -> int | None:
        """The number of its search, from 0; None where the tuning is not repeated."""
        return self.setting.get("search")

    def owns(self, seed: int) -> bool:
        """Return True if a seed belongs to its search."""
        # Searches share no seed, so that their results are independent.
        return self.search in (None, seed // APART)


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

    @property
    def repeated(self) -> bool:
        """Whether it holds the choices of several searches."""
        return any(entry.search is not None for entry in self.choices)

    def find(self, configuration: str, seed: int) -> ChosenConfiguration | None:
        """Return the choice that a cell belongs to, given its id without the seed, and its seed;
        None if it was not chosen.
        """
        for entry in self.choices:
            if entry.configuration == configuration and entry.owns(seed):
                return entry
        return None


def read_choice(folder: Path) -> TuningChoice | None:
    """Read the choices of the tuning in a sweep's folder; None before they are made."""
    remedy = "remove it; the same `regbench tune` command chooses again"
    return TuningChoice.read_if_there(folder / TUNING_CHOICE, remedy)


def read_search(folder: Path) -> dict[str, Any]:
    """Read what a search has tried so far, see `regbench.sweeps.search.Proposed`.

    Return an empty dictionary before it has tried anything.
    """
    path = folder / SEARCH
    if not path.exists():
        return {}
    return read_file(path, verified, "remove it; the same command writes it again")
