"""The rows file of a bundle: what a bundle enters into a leaderboard, small enough to be merged by
pull request.

`<name>.rows.json` lies beside `<name>.tar.xz`. A bundle that is too large for a repository lies
elsewhere, and the file has its address.
"""

from __future__ import annotations

import http.client
import json
import shutil
import tempfile
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path

from regbench.errors import RegbenchError
from regbench.files import read_json
from regbench.reports.bundle.bundle import SUFFIX, Bundle, read_bundle

ROWS_SUFFIX = ".rows.json"

# A server that says nothing for so long will not.
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class EnteredRow:
    """A row as its submitter states it.

    Attributes:
        task: The task, as the leaderboard of the bundle alone names it.
        row: The method's name in tables, with the settings that vary in the task.
        settings: Hyperparameters of what was chosen, as text by their full names: those of the
            method, and others that were searched.
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
        found: dict[str, str | float | None] = {
            "number of configurations tried": self.tried,
            **self.settings,
        }
        for name, seeds in self.scores.items():
            for seed, value in seeds.items():
                found[f"{name} of seed {seed}"] = value
        return found


@dataclass(frozen=True)
class RowsFile:
    """The content of a rows file.

    Attributes:
        sha256: SHA-256 of the bundle, as `regbench verify` prints it.
        rows: All rows of the bundle.
        url: Address of the bundle, for where it does not lie beside the file.
    """

    sha256: str
    rows: tuple[EnteredRow, ...]
    url: str = ""

    def text(self) -> str:
        """Return the file's content, a line for each row."""
        rows = ",\n  ".join(json.dumps(asdict(row), ensure_ascii=False) for row in self.rows)
        bundle = f'"url": {json.dumps(self.url)},\n "sha256": "{self.sha256}"'
        return f'{{\n {bundle},\n "rows": [\n  {rows}\n ]\n}}\n'


def rows_beside(bundle: Path) -> Path:
    """Return the path of the rows file of a bundle."""
    return bundle.with_name(bundle.name.removesuffix(SUFFIX) + ROWS_SUFFIX)


def bundle_beside(rows: Path) -> Path:
    """Return the path of the bundle of a rows file."""
    return rows.with_name(rows.name.removesuffix(".json").removesuffix(".rows") + SUFFIX)


def read_entered(path: Path, unpacked: Path | None = None) -> tuple[RowsFile, Bundle]:
    """Read a rows file and its bundle: the one beside it, or else the one at its address.

    Args:
        path: The rows file.
        unpacked: See `read_bundle`.

    Raises:
        RegbenchError: If the file is none, or its bundle is not to be had, is none or has another
            SHA-256.
    """
    file = read_json(path, RowsFile, "`regbench submit` writes it beside the bundle")
    place = bundle_beside(path)
    with tempfile.TemporaryDirectory() as temporary:
        if not place.exists():
            fetched = Path(temporary) / place.name
            _fetch(file.url, fetched, path)
            place = fetched
        bundle = read_bundle(place, unpacked)
    if bundle.sha256 != file.sha256:
        raise RegbenchError(
            f"{path}: it is of another bundle (sha256 {file.sha256:.12}) than {place.name} "
            f"({bundle.sha256:.12}); take both from one `regbench submit`"
        )
    return file, bundle


def _fetch(url: str, out: Path, rows: Path) -> None:
    # Other schemes would read files of this machine.
    if not url.startswith(("https://", "http://")):
        raise RegbenchError(
            f"{rows}: there is no {bundle_beside(rows)}; put it there, or give its https:// "
            "address as url"
        )
    try:
        with urllib.request.urlopen(url, timeout=_PATIENCE_S) as reply, out.open("wb") as content:
            shutil.copyfileobj(reply, content)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise RegbenchError(
            f"{rows}: its bundle cannot be fetched from {url!r:.200}: {error}"
        ) from error
