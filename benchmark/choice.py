"""What was chosen before the test split was opened: on disk first, because the loader of that split asks for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from regbench.files import write_text


class Choices:
    """The file `choice.json` of a run directory.

    Its entry "hyperparameters" says how the cell was chosen, and there is one for each protocol that chose something
    itself, such as a learning rate: on which split, from which candidates with which scores.
    """

    def __init__(self, path: Path) -> None:
        """Continues the file, if it is there.

        Args:
            path: Of the file.
        """
        self.path = path
        self._entries: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def note(self, what: str, entry: dict[str, Any]) -> None:
        """Writes down one choice."""
        if self._entries.get(what) != entry:
            self._entries[what] = entry
            write_text(self.path, json.dumps(self._entries, indent=1))

    @property
    def entries(self) -> dict[str, Any]:
        """What was chosen so far."""
        return dict(self._entries)
