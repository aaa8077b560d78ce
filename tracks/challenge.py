"""A challenge: a new loss is tuned and trained as the rows of a track were, and placed among them.

Everything lies in one folder below the runs folder, so that the same call goes on where an earlier
one was stopped:

- `plug_in/`: the copy of the loss.
- `track/shipped/`: the rows of the track, unpacked.
- `track/machine/repeated/`: two shipped cells, trained again on this machine.
- `<name>.yaml` and all else: the challenger's tuning, as of `regbench tune`.
- `report/`, `<name>.tar.xz`: the page, with the rows, and the bundle of the challenger's cells.

What lies in `track/` is too deep to be found as cells of the challenge.
"""

from __future__ import annotations

import errno
import logging
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from regbench.benchmark.machine.compute import usable_cpus
from regbench.benchmark.rundir.record import Record, read_record
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.runtime import STAGES
from regbench.benchmark.settings.sweep import Sweep, load_grid, load_rows
from regbench.errors import RegbenchError
from regbench.reports import write_report
from regbench.reports.bundle.bundle import SUFFIX, read_bundle
from regbench.reports.bundle.pack import submit
from regbench.reports.find.records import read_records
from regbench.reports.rows.grouping import summarize
from regbench.reports.rows.significance import MIN_PAIRS
from regbench.reports.rows.summary import Summary
from regbench.sweeps.run import Execute, refuse_unfinished, run_grid, run_tuning
from regbench.sweeps.search_spaces import fixed_settings, searches_of
from regbench.tracks.own_loss import LossFile
from regbench.tracks.placing import Placing
from regbench.tracks.smoke import SMOKE, SmokeTest, smoke_test
from regbench.tracks.stand_in import ask, compute_once, entered
from regbench.tracks.track import TRACKS, Track, write_sweep
from regbench.tracks.verdicts import verdicts
from regbench.wording import unknown

log = logging.getLogger("regbench")

# One cell could be an exception, and each further one costs a training.
_REPEATED = 2


@dataclass(frozen=True)
class Challenge:
    """A challenge that was prepared.

    Attributes:
        folder: Folder of the challenge.
        label: Name of the challenger's row.
        overrides: Settings of the runtime and the cluster.
        trials: Trainings that the challenger's search may take.
        searched: Names of the settings that it searches.
        tuning: A cell of the challenger, and the seeds of its final runs.
        shipped: Finished cells of the best rows, which are trained again here.
        repeated: The same cells, as a sweep of this machine.
    """

    folder: Path
    label: str
    overrides: Sequence[str]
    trials: int
    searched: Sequence[str]
    tuning: Sweep
    shipped: Sequence[Record]
    repeated: Sweep

    def plan(self) -> str:
        """Describe how many trainings it takes, and how long."""
        finals = len(self.tuning.final_seeds) - 1  # the search has trained one of them
        phases = [len(self.repeated.cells), self.trials, finals]
        parallel = self.tuning.runtime.parallel or usable_cpus()
        rounds = sum(math.ceil(count / parallel) for count in phases)
        took_s = []
        for record in read_records([self.folder / "track" / "shipped"]).records:
            is_whole = record.cell["epochs"] == self.tuning.cells[0].epochs
            if record.cost.train_s and is_whole and not record.is_reference:
                took_s.append(record.cost.train_s)
        # The shortest time, because other trainings may have waited for other work.
        minutes = min(took_s) / 60
        hardware = self.shipped[0].environment.get("hardware")
        return (
            f"{phases[0]} shipped cells again, a search of {' and '.join(self.searched)} with the "
            f"images of {self.trials} trainings for {self.label}, {finals} further seeds of the "
            f"best: {sum(phases)} trainings.\n"
            f"A shipped row took {minutes:.1f} minutes a training ({hardware}). At that speed, "
            f"{parallel} at a time, it is {rounds * minutes:.0f} minutes."
        )

    def run(self, execute: Execute, say: Callable[[str], None] = log.info) -> Placing | None:
        """Go on where an earlier call was stopped, until the challenger has its place.

        Args:
            execute: Runs the cells.
            say: Takes a line on what was done.

        Returns:
            The place; None if the cells go on without this process.

        Raises:
            Unfinished: If cells have ended without a record.
        """
        again = run_grid(self.repeated, execute, oversized=False)
        refuse_unfinished(again, self.repeated)
        # The file states seeds and trials, as it does for the rows: a challenger may not take more.
        path = self.folder / f"{self.folder.name}.yaml"
        final = run_tuning(str(path), self.overrides, execute, say)
        # Slurm works on both at the same time, so both are begun before this check.
        if again is None or final is None:
            return None
        statuses = execute(final, STAGES)
        refuse_unfinished(statuses, final)
        if statuses is None:
            return None
        placing = self._place()
        write_report([self.folder, self.folder / "track" / "shipped"], placing.page.parent)
        submit([self.folder], placing.bundle)
        return placing

    def _place(self) -> Placing:
        """Read what is finished and compare it with the rows."""
        summary = _summary([self.folder / "track" / "shipped", self.folder])
        # Rows of another task are in another summary, so a challenger of other settings is not in
        # this one.
        own = next((row for row in summary.rows if row.label == self.label), None)
        if own is None:
            raise RegbenchError(
                f"{self.folder}: the settings of the shipped rows are not those of this version's "
                "track"
            )
        # Further seeds, of whatever call, would be chosen by their scores.
        records = [record for record in own.records if record.seed in self.tuning.final_seeds]
        challenger = replace(own, records=tuple(records))
        name = summary.headline
        if challenger.diverged or name is None:
            raise RegbenchError(
                f"{self.label} diverged with {challenger.diverged} of its seeds, and has no place; "
                f"{self.folder}"
            )
        repeated = any(row.repeated for row in summary.rows)
        trained, untrained = {}, {}
        for row in summary.rows:
            scores = list(row.by_unit(name).values())
            # A row of fewer seeds has too uncertain a spread.
            if row is own or len(scores) < MIN_PAIRS:
                continue
            if row.untrained:
                untrained[row.name] = scores
            elif not row.is_reference:
                trained[row.name] = scores
        shifts = []
        for record in self.shipped:
            here = read_record(self.repeated.folder / record.cell_id)
            assert here is not None
            before, now = record.score(name, "test"), here.score(name, "test")
            if before is None or now is None:
                raise RegbenchError(
                    f"{record.label} diverged here, and not where the rows are from; {self.folder}"
                )
            shifts.append(now - before)
        scores = list(challenger.by_unit(name).values())
        found = verdicts(scores, trained, untrained, shifts, of_searches=repeated)
        return Placing(
            label=self.label,
            score=summary.scores[name].title,
            values=tuple(scores),
            verdicts=tuple(found),
            rivals=tuple(trained),
            shifts=tuple(shifts),
            share=summary.share(challenger, name),
            measured={
                "effective rank": (challenger.at_end("effective_rank"), ""),
                "alignment": (challenger.at_end("alignment"), ""),
                "step": (challenger.cost("step_ms"), " ms"),
                "of it the loss": (challenger.cost("loss_ms"), " ms"),
            },
            page=self.folder / "report" / "index.html",
            bundle=self.folder / f"{self.folder.name}{SUFFIX}",
        )


@contextmanager
def prepared(
    loss: object, track: Track | None, overrides: Sequence[str]
) -> Iterator[Challenge | SmokeTest]:
    """Prepare a challenge, or find one that has begun.

    The loss is a method for as long as the context lasts.

    Args:
        loss: `my_loss.py`, `my_loss.py:Name`, or a class or function that is defined in a file.
        track: The track; None: the smoke test.
        overrides: Settings of the runtime and the cluster; all others are the track's.

    Raises:
        RegbenchError: If the file holds no loss, a row of the track has its name, or the track
            decides what an override sets.
        CodeFailed: If the code of the file fails.
    """
    for override in overrides:
        if not override.startswith(("runtime.", "cluster")):
            raise RegbenchError(
                f"{override}: the track decides it; give runtime.* and cluster.* alone"
            )
    file = LossFile.of(loss)
    if track is None:
        with smoke_test(file, overrides) as begun:
            yield begun
        return
    folder = Path(load_grid(overrides).runtime.runs_dir) / f"{track.name}_{file.module}"
    rows = folder / "track" / "shipped"
    rows.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=rows.parent) as temporary:
        bundle = read_bundle(track.bundle, Path(temporary) / "rows")
        # The rows are there whole or not at all. An earlier call may have put them there, or an
        # earlier version of regbench with other cells.
        ids = {record.cell_id for record in bundle.records}
        if rows.exists() and {path.name for path in rows.glob("*/*/")} != ids:
            rows.rename(Path(temporary) / "earlier")
        try:
            (Path(temporary) / "rows").rename(rows)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
    plug_in = folder / "plug_in"
    # An earlier challenge of this process may have had a class of the same name.
    searches_of.cache_clear()
    with file.on_path(plug_in), entered(file, plug_in) as method:
        # Rows with the same label would be merged, and their seeds taken for those of one method.
        if method.label in {record.label for record in bundle.records}:
            raise RegbenchError(
                f"{file.path}: {method.label!r} is a row of the track; give it another title"
            )
        path = folder / f"{folder.name}.yaml"
        written = write_sweep(track, method, path)
        if not written.trials or len(written.final_seeds) < MIN_PAIRS:
            what = f"a track's sweep needs trials and {MIN_PAIRS} or more final_seeds"
            raise RegbenchError(f"{track.sweep}: {what}")
        tuning = load_rows(written, fixed_settings((*written.rows[0], *overrides)))
        ask(file, plug_in, compute_once, tuning.cells[0].batch_size, tuning.cells[0].output_dim)
        summary = _summary([rows])
        if all(len(row.by_unit(summary.headline or "")) < MIN_PAIRS for row in summary.methods):
            raise RegbenchError(f"{track.bundle}: no method has {MIN_PAIRS} seeds or searches")
        best = summary.methods[:_REPEATED]
        shipped = [min(row.records, key=lambda record: record.seed) for row in best]
        cells = tuple(Cell.stored(record.cell) for record in shipped)
        machine = replace(tuning.runtime, runs_dir=str(folder / "track" / "machine"))
        clusters = tuning.clusters[:1] * len(cells)
        repeated = replace(tuning, name="repeated", cells=cells, runtime=machine, clusters=clusters)
        (search,) = searches_of(written, written.rows[0])
        label, trials, searched = method.label, written.trials, tuple(search.space)
        yield Challenge(folder, label, overrides, trials, searched, tuning, shipped, repeated)


def tasks_of(track: str | Track) -> tuple[Track | None, ...]:
    """Return the tasks of a track, which may be given by its name; None is the smoke test."""
    if isinstance(track, Track):
        return (track,)
    if track == SMOKE:
        return (None,)
    if track not in TRACKS:
        raise RegbenchError(unknown("track", track, [*TRACKS, SMOKE]))
    return TRACKS[track]


def _summary(folders: Sequence[Path]) -> Summary:
    """Read the rows of a track, and of a challenger if it is of the same task."""
    found = read_records(folders)
    return summarize(found.records, found.missing, found.choices)[0]
