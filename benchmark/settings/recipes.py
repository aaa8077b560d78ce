"""Published numbers: those of recipes, which are presets of sweeps with such numbers, and those of
the SFRIK paper.

A line of `conf/published.csv` is one printed number, or says that a cell has none. Its `cell` holds
settings, such as `method=vicreg embedding_dim=1024`: the line is about the cells of its preset that
have them, whatever their seeds. The lines of the SFRIK paper have no preset: any sweep may have
their cells.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import yaml

from regbench.benchmark.settings.presets import CONF
from regbench.csv_files import read_csv
from regbench.settings import at, from_plain, settings


@settings
class PublishedNumber:
    """One number of a publication, and the cells that it is about.

    Attributes:
        preset: Name of the sweep; empty for a number of the SFRIK paper.
        cell: Settings that only its cells of the sweep have.
        dataset: Title of the data set.
        method: Name of the method as it is published.
        setting: Setting that the preset's other numbers do not have.
        score: Name of the score on the test split that it is to be compared with.
        number: Value in the unit of that score; None: nothing is published for the cell.
        deviation: Standard deviation over seeds, where one is published.
        what: Meaning of the number: its epoch, its number of seeds, how it was chosen.
        on_test: Whether the test set chose it: "yes", "no" or "not stated".
        source: File and field, or paper and table.
    """

    preset: str
    cell: str
    dataset: str
    method: str
    setting: str
    score: str
    number: float | None
    deviation: float | None
    what: str
    on_test: str
    source: str

    def is_of(self, cell: Mapping[str, Any]) -> bool:
        """Return True if it is about a cell, given as plain data."""
        for setting in self.cell.split():
            name, _, wanted = setting.partition("=")
            value = at(cell, name.split("."))
            # A line names a method, whatever its hyperparameters are.
            if isinstance(value, Mapping) and "name" in value:
                value = value["name"]
            # What is wanted is read as an override is: 2 is a number and null is nothing.
            if value != yaml.safe_load(wanted):
                return False
        return True


def published_numbers() -> tuple[PublishedNumber, ...]:
    """Return the numbers of all recipes, in the order of the file."""
    return tuple(number for number in _all_numbers() if number.preset)


def paper_numbers() -> tuple[PublishedNumber, ...]:
    """Return the numbers of the SFRIK paper's Tables 2 to 15, in the order of the tables."""
    return tuple(number for number in _all_numbers() if not number.preset)


# Each row of a report looks through all of them.
@functools.cache
def _all_numbers() -> tuple[PublishedNumber, ...]:
    found = []
    for line in read_csv((CONF / "published.csv").read_bytes().decode()):
        fields: dict[str, Any] = dict(line)
        for key in ("number", "deviation"):
            fields[key] = float(line[key]) if line[key] else None
        found.append(from_plain(PublishedNumber, fields))
    return tuple(found)
