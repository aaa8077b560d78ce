"""Evaluations of the weights of a finished run, after its record."""

from __future__ import annotations

import functools
import logging
import shlex
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regbench.benchmark.evaluate.subject import Subject
from regbench.benchmark.machine.compute import resolve
from regbench.benchmark.machine.description import environment
from regbench.benchmark.run import attempt_at
from regbench.benchmark.rundir.checkpoint import Damaged, load_checkpoint, read_saved
from regbench.benchmark.rundir.choice import GIVEN, Choices
from regbench.benchmark.rundir.lease import now
from regbench.benchmark.rundir.record import LaterEvaluation, Score, read_record, read_tuned
from regbench.benchmark.scoring import subject_of
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.stored import load_cell, load_config
from regbench.benchmark.training.assembly import build_network
from regbench.errors import RegbenchError
from regbench.files import read_file, write_new

log = logging.getLogger("regbench")


def trained_cell(directory: Path) -> Cell:
    """Read the cell of a run directory that holds weights; refuse any other directory."""
    config = directory / "config.yaml"
    if not config.exists():
        raise RegbenchError(f"{config} is missing; give the directory of a run that has trained")
    record = read_record(directory)
    if record is not None and record.method == "external":
        raise RegbenchError(
            f"{directory} holds no weights, but scores of published ones; repeat: {record.command}"
        )
    return load_cell(config)


def evaluate_directory(
    directory: Path,
    overrides: Sequence[str],
    only: Sequence[str] = (),
    how_chosen: Mapping[str, Any] = GIVEN,
) -> list[Score]:
    """Evaluate the final weights of a run directory anew.

    What the record of a finished run does not hold is written to `evaluations/<protocol>.json`
    beside it, once, and read from there by later calls; all else is only returned.

    Args:
        directory: The run directory, with `config.yaml` and the last checkpoint.
        overrides: `evaluation.…=value` and `runtime.…=value` settings that differ from the run's
            own.
        only: The protocols; none: those of the run.
        how_chosen: See `run_cell`.

    Raises:
        RegbenchError: If the directory does not hold the final weights, or an override is refused.
    """
    for override in overrides:
        if not override.startswith(("evaluation.", "runtime.")):
            raise RegbenchError(
                f"{override}: a trained run can be given other evaluation.* settings only"
            )
    # A folder without weights is refused before anything is loaded.
    own = trained_cell(directory)
    chosen = [f"evaluation.protocols=[{','.join(only)}]"] if only else []
    cell, runtime = load_config(directory / "config.yaml", [*overrides, *chosen])
    # Scores by other settings are not the run's, so they do not collide with those that are
    # written.
    changed = [override for override in overrides if override.startswith("evaluation.")]
    to_write = _protocols_to_write(directory, own, cell)
    compute = resolve(runtime)
    network = build_network(own, compute.device, _final_state(directory, own))
    scores: list[Score] = []
    # The run's own files stay as they are: choices are written into a folder that is removed
    # afterwards.
    with (
        tempfile.TemporaryDirectory() as folder,
        attempt_at(Path(folder), runtime.lease_s) as attempt,
    ):
        assert attempt is not None
        choices = Choices(attempt)
        on_test = "test" in (own.evaluation.select_on, cell.evaluation.select_on)
        choices.note_hyperparameters(how_chosen, on_test=on_test)
        subject = subject_of(cell, network, compute, choices)
        # The score that hyperparameters are selected by is kNN's unless the cell says otherwise.
        if not only or "knn" in only:
            scores += subject.select()
        for protocol in cell.evaluation.protocols:
            path = directory / "evaluations" / f"{protocol}.json"
            is_there = path.exists()
            if protocol not in to_write or (is_there and changed):
                scores += subject.run(protocol)
                log.info("%s: shown only, nothing is written", protocol)
                continue
            if is_there:  # of an earlier call, which may have been killed after it
                log.info("%s is there already; remove it to evaluate again", path)
            else:
                command = shlex.join(
                    ["regbench", "evaluate", str(directory), "--only", protocol, *changed]
                )
                evaluation = _evaluate_later(own.id, protocol, subject, choices, command)
                path.parent.mkdir(exist_ok=True)
                # The first of two processes that evaluate at once wins.
                write_new(path, evaluation.text())
                log.info("%s: written to %s", protocol, path)
            written = functools.partial(LaterEvaluation.parse, path=path)
            scores += read_file(path, written, f"remove it to evaluate {protocol} again").scores
    return scores


def _protocols_to_write(directory: Path, own: Cell, cell: Cell) -> list[str]:
    """List the protocols whose scores are new to a finished run."""
    record = read_record(directory)
    if record is None or record.status != "done":
        return []
    return [
        protocol
        for protocol in cell.evaluation.protocols
        if protocol not in own.evaluation.protocols
    ]


def _evaluate_later(
    cell_id: str, protocol: str, subject: Subject, choices: Choices, command: str
) -> LaterEvaluation:
    before, began_s = choices.entries, time.perf_counter()
    scores = subject.run(protocol)
    # The record has its own choices; these are the ones that this evaluation made.
    choice = {"hyperparameters": choices.entries["hyperparameters"]}
    for name, entry in choices.entries.items():
        if before.get(name) != entry:
            choice[name] = entry
    return LaterEvaluation(
        cell_id=cell_id,
        protocol=protocol,
        scores=tuple(scores),
        seconds=time.perf_counter() - began_s,
        choice=choice,
        environment={**environment(subject.compute.device), "loader": subject.backend},
        finished=now(),
        command=command,
    )


def _final_state(directory: Path, cell: Cell) -> dict[str, Any] | None:
    """Read the checkpoint with the final weights of a run; None for a network without training."""
    if not cell.epochs:
        return None
    record = read_record(directory) or read_tuned(directory)
    if record is None:
        loaded = load_checkpoint(directory)
        if loaded is None or len(loaded[0]["progress"]["history"]) < cell.epochs:
            raise RegbenchError(
                f"{directory} is not trained to the end; give the directory of a run that is"
            )
        return loaded[0]
    saved = record.checkpoint
    if saved is None:
        raise RegbenchError(f"{directory} has no final weights: its status is {record.status}")
    try:
        return read_saved(directory, saved)
    except Damaged as error:
        raise RegbenchError(
            f"{directory / saved.file}, which holds the final weights, cannot be evaluated: "
            f"{error}; train them again: regbench train --config {directory / 'config.yaml'} "
            "--name again"
        ) from error
