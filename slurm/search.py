"""Optuna's TPE sampler in place of a grid: proposes the configurations that a tuning tries, equally many a method.

The space is written in the sweep's file as a grid is: `a,b,c` is a choice, `interval(a,b)` a range of real numbers and
`tag(log,interval(a,b))` one on a logarithmic scale, the grammar of Hydra's own plugins for samplers. Hyperparameters of
methods and optimizers are searched; other values separated by commas make searches of their own. A proposal depends on
the scores so far and on nothing else, so that a search goes on wherever it was stopped.
"""

from __future__ import annotations

import functools
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.types import IntervalSweep

from regbench import RegbenchError
from regbench.benchmark.rundir.record import read_tuned
from regbench.benchmark.settings.compose import row_values
from regbench.benchmark.settings.sweep import Sweep, SweepFile, load_rows, read_rows
from regbench.files import read_signed, signed, write_text
from regbench.slurm.tune import selection_score

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_ATTEMPTS = 50


@dataclass(frozen=True)
class _Space:
    """One search: settings that stay, and the distribution of each that is searched."""

    fixed: tuple[str, ...]
    searched: Mapping[str, BaseDistribution]


def propose(name: str, overrides: Sequence[str], trials: int) -> tuple[Sweep, bool]:
    """Propose the cells to try next.

    Args:
        name: The sweep.
        overrides: That change each of its rows.
        trials: Configurations for each search.

    Returns:
        All cells proposed so far, those to be tried next included; and whether they are all.

    Raises:
        RegbenchError: If Optuna is not installed, nothing is to be searched, or a space has too few points.
    """
    file = read_rows(name, overrides)
    spaces = [space for row in file.rows for space in _spaces(row)]
    if not any(space.searched for space in spaces):
        raise RegbenchError(
            f"sweep {name} has nothing to search: give values a,b,c or interval(a,b) of method.* settings"
        )
    folder = Path(_single(file, spaces[0].fixed).runtime.runs_dir) / file.name
    path = folder / "search.json"
    proposed: dict[str, list[dict[str, Any]]] = {}
    if path.exists():
        proposed = read_signed(path, "remove it, and the same command searches from the beginning")
        del proposed["sha256"]
    if all(_score(folder, entry) is not None for entries in proposed.values() for entry in entries):
        for space in spaces:
            entries = proposed.setdefault(" ".join(space.fixed), [])
            if len(entries) < (trials if space.searched else 1):
                entries.append(_next(file, space, entries, folder))
        write_text(path, signed(proposed))
    sweeps = [_single(file, tuple(entry["overrides"])) for entries in proposed.values() for entry in entries]
    complete = all(len(proposed[" ".join(space.fixed)]) >= (trials if space.searched else 1) for space in spaces)
    cells, clusters = (tuple(getattr(sweep, name)[0] for sweep in sweeps) for name in ("cells", "clusters"))
    return replace(sweeps[0], cells=cells, clusters=clusters), complete


@functools.cache
def _single(file: SweepFile, overrides: tuple[str, ...]) -> Sweep:
    """Make a sweep of one cell; composing it takes a tenth of a second, and each round asks for all."""
    return load_rows(file, [overrides])


def _next(file: SweepFile, space: _Space, entries: Sequence[Mapping[str, Any]], folder: Path) -> dict[str, Any]:
    import optuna

    if not space.searched:
        return _entry(file, space, {})
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seed = zlib.crc32(json.dumps([space.fixed, len(entries)]).encode())
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=4)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for entry in entries:
        study.add_trial(
            optuna.trial.create_trial(
                params=entry["params"], distributions=dict(space.searched), value=_score(folder, entry)
            )
        )
    for _ in range(_ATTEMPTS):
        trial = study.ask(dict(space.searched))
        proposal = _entry(file, space, trial.params)
        same = [entry for entry in entries if entry["cell_id"] == proposal["cell_id"]]
        if not same:
            return proposal
        study.tell(trial, _score(folder, same[0]))
    raise RegbenchError(
        f"{' '.join(space.fixed)}: no more than {len(entries)} configurations found; give fewer --trials"
    )


def _entry(file: SweepFile, space: _Space, params: Mapping[str, Any]) -> dict[str, Any]:
    # As it is written, so it is run: a few digits are enough, and can be repeated by hand.
    params = {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in params.items()}
    overrides = [*space.fixed, *(f"{key}={value}" for key, value in params.items())]
    (cell,) = _single(file, tuple(overrides)).cells
    return {"params": params, "overrides": overrides, "cell_id": cell.id}


def _score(folder: Path, entry: Mapping[str, Any]) -> float | None:
    """Read the score to maximise: 0 for a run that diverged, None for one that has not ended."""
    record = read_tuned(folder / entry["cell_id"])
    return None if record is None else selection_score(record) or 0.0


def _spaces(row: Sequence[str]) -> list[_Space]:
    """List the searches of a row of a sweep's file."""
    try:
        from optuna.distributions import CategoricalDistribution, FloatDistribution
    except ImportError as error:
        raise RegbenchError("--trials needs Optuna: pip install 'regbench[optuna]'") from error
    searched: dict[str, BaseDistribution] = {}
    fixed: list[list[str]] = [[]]
    for key, override, values in row_values(row):
        value = override.value()
        if isinstance(value, IntervalSweep):
            assert value.start is not None and value.end is not None
            log = "log" in value.tags
            if not 0 < value.end - value.start < math.inf or (log and value.start <= 0):
                raise RegbenchError(
                    f"{override.input_line}: give a range from a smaller to a larger number, above 0 if it is log"
                )
            searched[key] = FloatDistribution(value.start, value.end, log=log)
        elif len(values) > 1 and key.startswith(("method.", "optimizer.")):
            searched[key] = CategoricalDistribution([text.partition("=")[2] for text in values])
        else:
            fixed = [[*start, text] for start in fixed for text in values]
    return [_Space(tuple(settings), searched) for settings in fixed]
