"""What a site knows of single cells, as scripts: each calls `receive` with its name and its data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from regbench.benchmark.rundir.record import Record
from regbench.reports.board.columns import Table, as_json, hidden, links, numbers, table, texts
from regbench.reports.board.gather import Key, Version, key_of
from regbench.reports.board.tasks import Task
from regbench.reports.rows.summary import setting_name

_PER_SCRIPT = 200  # cells, about
_OWN = ("method", "optimizer")  # groups of settings that many cells have for themselves

Versions = Mapping[Key, tuple[Version, ...]]


def cell_scripts(task: Task, cells: Versions) -> Iterator[tuple[str, bytes]]:
    """Yield the scripts of a task: a table of its cells, and each cell in full in a script that its id names.

    What many cells share, such as an augmentation, is in a script of its own; where it belongs stands {"$": its place}.
    """
    folder, shared = f"data/{task.slug}", _Shared()
    records = task.records
    digits = next(n for n in range(5) if len(records) <= _PER_SCRIPT * 16**n)
    scripts: dict[str, dict[str, Any]] = defaultdict(dict)
    for record in records:
        scripts[record.cell_id[:digits]][record.cell_id] = [_version(v, shared) for v in cells[key_of(record)]]
    yield f"{folder}/cells.js", _script("cells", _cells_table(task, cells))
    for start, content in scripts.items():
        yield f"{folder}/cells-{start}.js", _script(f"cells-{start}", content)
    yield f"{folder}/shared.js", _script("shared", {"digits": digits, "values": shared.values})


class _Shared:
    """Values that several cells have, each once."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._places: dict[bytes, int] = {}

    def place(self, value: Any) -> dict[str, int]:
        """Return what stands for a value."""
        place = self._places.setdefault(orjson.dumps(value), len(self.values))
        if place == len(self.values):
            self.values.append(value)
        return {"$": place}


def _version(version: Version, shared: _Shared) -> dict[str, Any]:
    r = version.record
    names = ("label", "method", "seed", "status", "sweep", "sha256", "command", "attempts", "on_test")
    return {
        **{name: getattr(r, name) for name in names},
        "bundles": version.bundles,
        "config": {k: shared.place(v) if isinstance(v, dict) and k not in _OWN else v for k, v in r.cell.items()},
        "scores": [[shared.place(s.head), s.value, s.unit, s.split, shared.place(s.protocol)] for s in r.scores],
        "cost": {name: value for name, value in vars(r.cost).items() if value is not None},
        "environment": shared.place(r.environment),
        "data": shared.place(r.data),
        "choice": r.choice,
        "diverged": r.diverged,
    }


def _cells_table(task: Task, cells: Versions) -> Table:
    """Make the table of a task's cells; the last column, which is not shown, is the row of the leaderboard."""
    summary = task.summary
    places = {id(record): number for number, row in enumerate(summary.rows) for record in row.records}

    def values(r: Record) -> list[Any]:
        settings = [r.settings.get(key, "") if not r.untrained else "" for key in summary.varying]
        scores = [r.score(name, "test") for name in summary.leading]
        chose = r.score(summary.selection, summary.selection_split)
        bundles = ", ".join(name for version in cells[key_of(r)] for name in version.bundles)
        settings += [r.cell["epochs"]] if summary.short else []
        shown = [[r.cell_id, f"#cell-{r.cell_id}"], r.label, *settings, r.seed, r.status, *scores, chose]
        return [*shown, r.cost.train_s, bundles, places.get(id(r), -1)]

    columns = [links("cell"), texts("method", filtered=True)]
    columns += [texts(setting_name(key), filtered=True) for key in summary.varying]
    columns += [numbers("epochs")] if summary.short else []  # of which a search's cells have different ones
    columns += [numbers("seed"), texts("status", filtered=True)]
    columns += [numbers(summary.scores[name].head, 2) for name in summary.leading]
    columns += [numbers(f"{summary.selection_title}, {summary.selection_split} (%)", 2), numbers("training (s)", 1)]
    columns += [texts("bundles", filtered=True), hidden("row")]
    return table(columns, [values(record) for record in task.records])


def _script(name: str, data: object) -> bytes:
    return f"receive({as_json(name)},{as_json(data)});\n".encode()
