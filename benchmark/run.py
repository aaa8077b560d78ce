"""One cell from its run directory's first file to its record."""

from __future__ import annotations

import contextlib
import json
import logging
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from regbench import methods
from regbench.benchmark.evaluate.base import Task
from regbench.benchmark.evaluate.features import NotFinite
from regbench.benchmark.evaluate.subject import selection_splits
from regbench.benchmark.machine.compute import resolve
from regbench.benchmark.machine.description import environment
from regbench.benchmark.rundir.checkpoint import load_checkpoint
from regbench.benchmark.rundir.choice import GIVEN, Choices
from regbench.benchmark.rundir.directory import (
    remove_earlier_leftovers,
    run_directory,
    write_config,
)
from regbench.benchmark.rundir.interruption import Interruption
from regbench.benchmark.rundir.lease import Attempt, LeaseLost, claim
from regbench.benchmark.rundir.record import Record, Score, read_record
from regbench.benchmark.scoring import (
    SELECTION,
    cost_of,
    distinct_scores,
    images_record,
    past_attempts,
    score,
    subject_of,
)
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.runtime import STAGES, Runtime
from regbench.benchmark.training.assembly import build_network
from regbench.benchmark.training.distributed import World, connect
from regbench.benchmark.training.loop import Trained, train
from regbench.benchmark.training.run_progress import Diverged, Progress, write_metrics
from regbench.benchmark.training.sinks import require_sinks
from regbench.datasets.stored.manifest import Manifest
from regbench.errors import RegbenchError
from regbench.methods.forms.spectrum import kernel_spectrum

SPECTRUM_ORDER = 6
"""Highest order of the coefficients of a kernel that a record holds."""

log = logging.getLogger("regbench")


def run_cell(
    cell: Cell,
    runtime: Runtime,
    sweep: str,
    stages: Sequence[str] = STAGES,
    interruption: Interruption | None = None,
    how_chosen: Mapping[str, Any] = GIVEN,
) -> Record | None:
    """Make the record of a cell: train, evaluate, write.

    Go on from whatever an earlier attempt left.

    Args:
        cell: The cell.
        runtime: The settings of machine and folders.
        sweep: The folder under `runtime.runs_dir`.
        stages: The stages to finish, in the order of `STAGES`; those before them must be done.
        interruption: Answers signals; without one they act as Python has them.
        how_chosen: The way in which its hyperparameters were chosen, for the record.

    Returns:
        The record; None on ranks other than the first, and if the last stage is not asked for.

    Raises:
        RegbenchError: If the run is refused. The message is kept with the attempt.
        Interrupted: If a signal asked to stop.
        LeaseLost: If another process took over or finished the run, or the run directory was
            removed.
    """
    # One attempt at a time works in a run directory; another waits for it and takes its record.
    # Started by torchrun or as a Slurm step of several tasks, all processes train; the first alone
    # evaluates and writes.
    require_sinks(runtime.sinks)
    run = _Run(cell, runtime, sweep, interruption or Interruption(), how_chosen)
    run.directory.mkdir(parents=True, exist_ok=True)
    trained: Trained | None = None
    # The attempt outlives the connection: the other ranks leave after training, and the first
    # evaluates alone.
    with contextlib.ExitStack() as stack:
        with connect(run.compute.device) as world:
            attempt = (
                stack.enter_context(attempt_at(run.directory, runtime.lease_s))
                if world.rank == 0
                else None
            )
            if attempt is not None:
                run.begin(attempt)
            if world.from_first(attempt is not None) and "pretrain" in stages:
                trained = run.pretrain(world, attempt)
        # The other ranks would only hold their GPUs.
        if world.rank > 0:
            return None
        if attempt is not None and not attempt.finished and set(stages) != {"pretrain"}:
            run.evaluate(attempt, trained or run.load_trained(), stages)
    return read_record(run.directory)


@contextlib.contextmanager
def attempt_at(directory: Path, lease_s: float) -> Iterator[Attempt | None]:
    """Hold an attempt at the run and note how it ended; give None if the run is finished.

    Raises:
        LeaseLost: If the attempt lost the run on the way, whatever went wrong because of that.
    """
    attempt = claim(directory, lease_s)
    if attempt is None:
        yield None
        return
    remove_earlier_leftovers(directory, attempt.number)
    try:
        yield attempt
        if not attempt.finished:
            attempt.check()
    except BaseException as error:
        with contextlib.suppress(LeaseLost):
            attempt.check()
        is_stopped = isinstance(error, KeyboardInterrupt)
        if attempt.lost:
            attempt.end("superseded")
            # A successor is the reason of whatever went wrong, such as a file that is gone: say so.
            if not is_stopped and not isinstance(error, LeaseLost):
                attempt.check()
        elif is_stopped:
            attempt.end("interrupted")
        else:
            attempt.end("failed", f"{type(error).__name__}: {error}")
        raise
    attempt.end("done")


class _Run:
    """The stages of one cell in its directory."""

    def __init__(
        self,
        cell: Cell,
        runtime: Runtime,
        sweep: str,
        interruption: Interruption,
        how_chosen: Mapping[str, Any],
    ) -> None:
        self.cell, self.runtime, self.sweep = cell, runtime, sweep
        self.interruption, self.how_chosen = interruption, how_chosen
        self.directory = run_directory(runtime, sweep, cell)
        self.compute = resolve(runtime)

    def begin(self, attempt: Attempt) -> None:
        """Write down what the run is made of.

        Refuse before the training what its evaluations would refuse.
        """
        self.manifest = Manifest.load(self.compute.data_dir, self.cell.dataset)
        config = self.cell.evaluation
        selection_splits(config, Task(self.cell.dataset, config.select_on, self.compute.data_dir))
        if config.while_training and config.select_on == "test":
            # Such evaluations read the test split, which opens only after the choice.
            self._note_choice(attempt)
        self.surroundings = {
            **environment(self.compute.device),
            "loss_form": self.runtime.loss_form,
            "loss_revision": self.cell.method.revision,
            "compile": self.runtime.compile,
        }
        if self.cell.network.teacher == "ema":
            self.surroundings["evaluated_network"] = "student"
        write_config(self.directory, self.cell.plain())
        attempt.write("environment.json", json.dumps(self.surroundings, indent=2).encode())

    def pretrain(self, world: World, attempt: Attempt | None) -> Trained | None:
        """Train the network; if the run diverges, write its record and return None."""
        if attempt is not None:
            attempt.update(stage="pretrain")
        try:
            trained = train(
                self.cell, self.compute, self.directory, world, attempt, self.interruption
            )
        except Diverged as error:
            if attempt is not None:
                self._end_diverged(attempt, error)
            return None
        if world.group is None or world.rank > 0:
            return trained
        # The trained BN layers belong to ranks that leave now; an evaluation could not copy them.
        network = build_network(
            self.cell, self.compute.device, {"network": trained.network.state_dict()}
        )
        return replace(trained, network=network)

    def load_trained(self) -> Trained:
        """Load the network that an earlier job trained."""
        state, saved = load_checkpoint(self.directory) or (None, None)
        progress = Progress(**state["progress"]) if state else Progress()
        if len(progress.history) < self.cell.epochs or progress.is_unscored(self.cell):
            raise RegbenchError(
                f"{self.directory} is not trained to the end; run the stage pretrain first"
            )
        network = build_network(self.cell, self.compute.device, state)
        return Trained(network=network, progress=progress, checkpoint=saved)

    def evaluate(self, attempt: Attempt, trained: Trained, stages: Sequence[str]) -> None:
        """Score the stages asked for and write the record of the last of them; do nothing twice."""
        cell, progress = self.cell, trained.progress
        is_final = "final" in stages
        choices = self._note_choice(attempt)
        subject = subject_of(cell, trained.network, self.compute, choices)
        protocols = cell.evaluation.protocols if is_final else ()
        weights = trained.checkpoint.sha256 if trained.checkpoint else None
        try:
            done = score(attempt, subject, cell.label, protocols, weights)
        except NotFinite as error:
            # A network as it is initialised has not diverged: something is wrong with it or the
            # images.
            if not cell.epochs:
                raise
            diverged = Diverged(
                cell.label, progress.step, len(progress.history), str(error), progress
            )
            self._end_diverged(attempt, diverged)
            return
        names = (SELECTION, *protocols)
        scores = distinct_scores(done, names)
        attempt.update(
            outcome="done" if is_final else "tuned", detail=_headline(scores, is_final=is_final)
        )
        self.surroundings["loader"] = done[SELECTION]["loader"]
        self._write_record(
            attempt,
            "done" if is_final else "tuned",
            progress,
            scores=scores,
            evaluate_s=sum(done[name]["seconds"] for name in names),
            choice=choices.entries if is_final else {},
            checkpoint=trained.checkpoint,
        )

    def _end_diverged(self, attempt: Attempt, error: Diverged) -> None:
        log.warning("%s", error)
        attempt.update(outcome="diverged", detail=str(error))
        self._write_record(attempt, "diverged", error.progress, diverged=error.what)

    def _note_choice(self, attempt: Attempt) -> Choices:
        """Write down how the cell was chosen, which opens the test split."""
        choices = Choices(attempt)
        choices.note_hyperparameters(
            self.how_chosen, on_test=self.cell.evaluation.select_on == "test"
        )
        return choices

    def _write_record(
        self,
        attempt: Attempt,
        status: Literal["done", "diverged", "tuned"],
        progress: Progress,
        *,
        scores: tuple[Score, ...] = (),
        evaluate_s: float = 0.0,
        **more: Any,
    ) -> None:
        cell, method = self.cell, self.cell.method
        # The record takes its attempts from their files, so this one's must be up to date.
        attempt.beat()
        metadata = {
            key: value for key, value in asdict(method.metadata).items() if isinstance(value, str)
        }
        record = Record(
            cell_id=cell.id,
            sweep=self.sweep,
            label=cell.label,
            method=methods.registry_name(method),
            seed=cell.seed,
            status=status,
            cell=cell.plain(),
            regularizer=metadata,
            spectrum=kernel_spectrum(method, cell.embedding_dim, SPECTRUM_ORDER),
            scores=scores,
            cost=cost_of(progress, evaluate_s),
            environment={**self.surroundings, "world_size": progress.world_size},
            data=images_record(self.manifest),
            attempts=past_attempts(self.directory),
            command=shlex.join(
                ["regbench", "train", "--config", str(self.directory / "config.yaml")]
            ),
            metrics=write_metrics(attempt, progress),
            **more,
        )
        attempt.write_record(record.file_name, record.text())


def _headline(scores: Sequence[Score], *, is_final: bool) -> str:
    """Return the scores that others see while the record is being written."""
    shown = []
    for entry in scores:
        if entry.name in ("knn_top1", "linear_top1") and (entry.split == "test" or not is_final):
            shown.append(entry.text)
    return ", ".join(shown)
