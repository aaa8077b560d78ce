"""The choices of a run, on disk before the test split opens, because the loader of that split
asks for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regbench.benchmark.rundir.directory import read_numbered
from regbench.benchmark.rundir.lease import Attempt
from regbench.files import signed

GIVEN: Mapping[str, Any] = {
    "selected_on": "given",
    "score": None,
    "budget": None,
    "record": None,
    "sha256": None,
}
"""Choice of hyperparameters that the user made.

For that of a tuning see `regbench.sweeps.tune.how_chosen`.
"""


class Choices:
    """The file `choice-<attempt>.json` of a run directory.

    Its entry "hyperparameters" says how the cell was chosen, and there is one for each protocol
    that chose something itself, such as a learning rate: on which split, from which candidates with
    which scores.

    Attributes:
        attempt: The right to write into the run directory.
    """

    def __init__(self, attempt: Attempt) -> None:
        """Continue the file of the attempt before, if there is one."""
        self.attempt = attempt
        self._entries: dict[str, Any] = read_numbered(attempt.directory, "choice.json")

    @property
    def path(self) -> Path:
        """The file; it exists once something was noted."""
        return self.attempt.path("choice.json")

    def note(self, what: str, entry: dict[str, Any]) -> None:
        """Write down one choice."""
        # An attempt that took the choices over needs a file of its own, which opens the test split.
        if self._entries.get(what) != entry or not self.path.exists():
            self._entries[what] = entry
            self.attempt.write("choice.json", signed(self._entries).encode())

    @property
    def entries(self) -> dict[str, Any]:
        """The choices so far, by what was chosen."""
        return dict(self._entries)
