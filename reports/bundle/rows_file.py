"""The rows file of a bundle: what a bundle enters into a leaderboard, small enough to be merged by pull request.

`<name>.rows.json` lies beside `<name>.zip`. A bundle that is too large for a repository lies elsewhere, and the file
has its address.
"""

from __future__ import annotations

import http.client
import json
import shutil
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path

from regbench.errors import RegbenchError
from regbench.files import read_json
from regbench.reports.bundle.bundle import Bundle, read_bundle

SUFFIX = ".rows.json"

# A server that says nothing for so long will not.
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class EnteredRow:
    """A row as its submitter states it.

    Attributes:
        task: The task, as the leaderboard of the bundle alone names it.
        row: The method's name in tables, with the settings that vary in the task.
        settings: Hyperparameters of what was chosen, as text by their full names: those of the method, and others that
            were searched.
        tried: The number of configurations that it was chosen from, failed ones too.
        scores: Name -> seed -> leading score on the test split; None where the seed diverged.
    """

    task: str
    row: str
    settings: dict[str, str]
    tried: int
    scores: dict[str, dict[str, float | None]]

    def claims(self) -> dict[str, str | float | None]:
        """Name each thing that the row states of its method."""
        found: dict[str, str | float | None] = {"number of configurations tried": self.tried, **self.settings}
        for name, seeds in self.scores.items():
            for seed, value in seeds.items():
                found[f"{name} of seed {seed}"] = value
        return found


@dataclass(frozen=True)
class RowsFile:
    """What a rows file holds.

    Attributes:
        sha256: SHA-256 of the bundle, as `regbench verify` prints it.
        rows: All rows of the bundle.
        url: Address of the bundle; empty if it lies beside the file.
    """

    sha256: str
    rows: tuple[EnteredRow, ...]
    url: str = ""

    def text(self) -> str:
        """Return the file's content, a line for each row."""
        rows = ",\n  ".join(json.dumps(asdict(row), ensure_ascii=False) for row in self.rows)
        return f'{{\n "url": {json.dumps(self.url)},\n "sha256": "{self.sha256}",\n "rows": [\n  {rows}\n ]\n}}\n'


def read_rows_file(path: Path) -> RowsFile:
    """Read a rows file; refuse what is none."""
    return read_json(path, RowsFile, "`regbench submit` writes it beside the bundle")


def beside(path: Path) -> Path:
    """Return the place of a bundle that lies beside its rows file."""
    return path.with_name(path.name.removesuffix(".json").removesuffix(".rows") + ".zip")


def entered_bundle(path: Path, file: RowsFile, folder: Path) -> Bundle:
    """Read the bundle of a rows file.

    Args:
        path: The rows file.
        file: What it holds.
        folder: Folder to fetch the bundle into, if it lies elsewhere.

    Raises:
        RegbenchError: If it is not to be had, is no bundle, or has another SHA-256.
    """
    place = beside(path)
    if file.url:
        place = folder / place.name
        _fetch(path, file.url, place)
    elif not place.exists():
        raise RegbenchError(f"{path}: its bundle {place} is missing; put it there, or state its address as url")
    bundle = read_bundle(place)
    if bundle.sha256 != file.sha256:
        raise RegbenchError(
            f"{path}: it is of another bundle (sha256 {file.sha256:.12}) than {file.url or place} ({bundle.sha256:.12})"
            "; take both from one `regbench submit`"
        )
    return bundle


def _fetch(path: Path, url: str, place: Path) -> None:
    # Other schemes would read files of this machine.
    if not url.startswith(("https://", "http://")):
        raise RegbenchError(f"{path}: url is {url!r:.200}; it must begin with https://")
    try:
        with urllib.request.urlopen(url, timeout=_PATIENCE_S) as reply, place.open("wb") as file:
            shutil.copyfileobj(reply, file)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise RegbenchError(f"{path}: its bundle cannot be fetched from {url!r:.200}: {error}") from error
