"""What the examination of a device is made of."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from regbench.files import write_text
from regbench.instruments.processes import one_line


@dataclass(frozen=True)
class Bench:
    """Where a section works.

    Attributes:
        device: That is examined.
        small: Whether sizes are small enough for a CPU.
        folder: For files; shared by all sections of an examination.
    """

    device: torch.device
    small: bool
    folder: Path


@dataclass
class Outcome:
    """What a section found.

    Attributes:
        table: Its rows as Markdown; empty without any.
        failures: What did not hold, a line each.
        notes: What else is to be known, a line each.
    """

    table: str = ""
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


Work = Callable[[Bench], Outcome]


@dataclass(frozen=True)
class Section:
    """A part of the examination, which runs in a process of its own.

    Attributes:
        name: For the command line.
        title: For the report.
        work: What it does.
        limit_s: Seconds after which it is ended.
    """

    name: str
    title: str
    work: Work
    limit_s: float


SECTIONS: dict[str, Section] = {}
"""All sections, in the order in which they run."""


def section(title: str, limit_s: float) -> Callable[[Work], Work]:
    """Make a function a section of the same name."""

    def decorate(work: Work) -> Work:
        name = work.__name__
        SECTIONS[name] = Section(name, title, work, limit_s)
        return work

    return decorate


def work(task: str) -> None:
    """Do the work of a section in its process, and write what it found."""
    function, bench = pickle.loads(Path(task).read_bytes())
    try:
        outcome = function(bench)
    except Exception as error:  # whatever does not work is a finding
        outcome = Outcome(failures=[one_line(error)])
    write_text(Path(task).with_suffix(".json"), json.dumps(asdict(outcome)))
