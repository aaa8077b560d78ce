"""One cell from its run directory's first file to its record."""

from __future__ import annotations

import contextlib
import json
import logging
import shlex
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import torch

from regbench import methods
from regbench.benchmark.compute import Compute, resolve
from regbench.benchmark.evaluate.base import Task
from regbench.benchmark.evaluate.features import Encoder, NotFinite
from regbench.benchmark.evaluate.state import state_kind
from regbench.benchmark.evaluate.subject import Subject, selection_splits
from regbench.benchmark.machine import environment
from regbench.benchmark.rundir.checkpoint import Damaged, load_checkpoint, read_saved, remove_tensors
from regbench.benchmark.rundir.choice import GIVEN, Choices
from regbench.benchmark.rundir.directory import (
    read_numbered,
    remove_earlier_leftovers,
    run_directory,
    write_config,
)
from regbench.benchmark.rundir.interruption import Interruption
from regbench.benchmark.rundir.lease import Attempt, LeaseLost, claim, now, read_attempts
from regbench.benchmark.rundir.record import (
    Cost,
    Images,
    LaterEvaluation,
    PastAttempt,
    Record,
    Score,
    Searched,
    read_record,
    read_tuned,
)
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.runtime import STAGES, Runtime
from regbench.benchmark.settings.stored import load_cell, load_config
from regbench.benchmark.training.distributed import World, connect
from regbench.benchmark.training.loop import Diverged, Progress, Trained, train, write_metrics
from regbench.benchmark.training.network import SiameseNetwork
from regbench.benchmark.training.sinks import require_sinks
from regbench.datasets.manifest import Manifest
from regbench.errors import RegbenchError
from regbench.files import signed, write_new
from regbench.methods.spectrum import kernel_spectrum
from regbench.spaces import Range

SPECTRUM_ORDER = 6

log = logging.getLogger("regbench")


def run_cell(
    cell: Cell,
    runtime: Runtime,
    sweep: str,
    stages: Sequence[str] = STAGES,
    interruption: Interruption | None = None,
    how_chosen: Mapping[str, Any] = GIVEN,
) -> Record | None:
    """Bring a cell to its record: train, evaluate, write. Go on from whatever an earlier attempt left.

    One attempt at a time works in a run directory; another waits for it and takes its record. Started by torchrun
    or as a Slurm step of several tasks, all processes train; the first alone evaluates and writes.

    Args:
        cell: What to run.
        runtime: Where and with what.
        sweep: The folder under `runtime.runs_dir`.
        stages: Those to bring to their end, in the order of `STAGES`; the ones before must be done.
        interruption: Answers signals; without one they act as Python has them.
        how_chosen: How its hyperparameters were chosen; the record says it.

    Returns:
        The record; None on ranks other than the first, and if the last stage is not asked for.

    Raises:
        RegbenchError: If the run is refused. The message is kept with the attempt.
        Interrupted: If a signal asked to stop.
        LeaseLost: If another process took over or finished the run, or the run directory was removed.
    """
    require_sinks(runtime.sinks)
    run = _Run(cell, runtime, sweep, interruption or Interruption(), how_chosen)
    run.directory.mkdir(parents=True, exist_ok=True)
    trained: Trained | None = None
    with contextlib.ExitStack() as stack:
        with connect(run.compute.device) as world:
            attempt = stack.enter_context(attempt_at(run.directory, runtime.lease_s)) if world.rank == 0 else None
            if attempt is not None:
                run.begin(attempt)
            if world.from_first(attempt is not None) and "pretrain" in stages:
                trained = run.pretrain(world, attempt)
        if world.rank > 0:
            return None
        if attempt is not None and not attempt.finished and set(stages) != {"pretrain"}:
            run.evaluate(attempt, trained or run.pretrained(), stages)
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
        stopped = isinstance(error, KeyboardInterrupt)
        if attempt.lost:
            attempt.end("superseded")
            if not stopped and not isinstance(error, LeaseLost):
                attempt.check()
        elif stopped:
            attempt.end("interrupted")
        else:
            attempt.end("failed", f"{type(error).__name__}: {error}")
        raise
    attempt.end("done")


class _Run:
    """The stages of one cell in its directory."""

    def __init__(
        self, cell: Cell, runtime: Runtime, sweep: str, interruption: Interruption, how_chosen: Mapping[str, Any]
    ) -> None:
        self.cell, self.runtime, self.sweep = cell, runtime, sweep
        self.interruption, self.how_chosen = interruption, how_chosen
        self.directory = run_directory(runtime, sweep, cell)
        self.compute = resolve(runtime)

    def begin(self, attempt: Attempt) -> None:
        """Write down what the run is made of; refuse a run that cannot end well before it trains."""
        self.manifest = Manifest.load(self.compute.data_dir, self.cell.dataset)
        config = self.cell.evaluation
        selection_splits(config, Task(self.cell.dataset, config.select_on, self.compute.data_dir))
        if config.while_training and config.select_on == "test":
            self._choices(attempt)
        self.surroundings = {
            **environment(self.compute.device),
            "loss_form": self.runtime.loss_form,
            "compile": self.runtime.compile,
            "shard_optimizer": self.runtime.shard_optimizer,
        }
        write_config(self.directory, self.cell.plain())
        attempt.write("environment.json", json.dumps(self.surroundings, indent=2).encode())

    def pretrain(self, world: World, attempt: Attempt | None) -> Trained | None:
        """Train the network; if the run diverges, write its record and return None."""
        if attempt is not None:
            attempt.update(stage="pretrain")
        try:
            trained = train(self.cell, self.compute, self.directory, world, attempt, self.interruption)
        except Diverged as error:
            if attempt is not None:
                self._end_diverged(attempt, error)
            return None
        if world.group is None or world.rank > 0:
            return trained
        # The BN layers of the trained one belong to ranks that leave now; an evaluation could not copy them.
        network = _network(self.cell, {"network": trained.network.state_dict()}, self.compute)
        return replace(trained, network=network)

    def pretrained(self) -> Trained:
        """Load the network that an earlier job trained."""
        loaded = load_checkpoint(self.directory)
        progress = Progress(**loaded[0]["progress"]) if loaded else Progress()
        if len(progress.history) < self.cell.epochs or progress.is_unscored(self.cell):
            raise RegbenchError(f"{self.directory} is not trained to the end; run the stage pretrain first")
        network = _network(self.cell, loaded[0] if loaded else None, self.compute)
        return Trained(network=network, progress=progress, checkpoint=loaded[1] if loaded else None)

    def evaluate(self, attempt: Attempt, trained: Trained, stages: Sequence[str]) -> None:
        """Score the stages asked for and write the record of the last of them; do nothing twice."""
        choices = self._choices(attempt)
        subject = _subject(self.cell, trained.network, self.compute, choices)
        protocols = self.cell.evaluation.protocols if "final" in stages else ()
        weights = trained.checkpoint.sha256 if trained.checkpoint else None
        try:
            done = score(attempt, subject, self.cell.label, protocols, weights)
        except NotFinite as error:
            if not self.cell.epochs:
                raise
            progress = trained.progress
            diverged = Diverged(self.cell.label, progress.step, len(progress.history), str(error), progress)
            self._end_diverged(attempt, diverged)
            return
        scores = distinct_scores(done, ("selection", *protocols))
        status: Literal["done", "tuned"] = "done" if "final" in stages else "tuned"
        headlines = [score for score in scores if score.name in ("knn_top1", "linear_top1")]
        shown = ", ".join(score.text for score in headlines if score.split == "test" or status == "tuned")
        attempt.update(outcome=status, detail=shown)
        self.surroundings["loader"] = done["selection"]["loader"]
        seconds = sum(done[name]["seconds"] for name in ("selection", *protocols))
        choice = choices.entries if status == "done" else {}
        more = {"choice": choice, "checkpoint": trained.checkpoint}
        self._write_record(attempt, status, scores, trained.progress, seconds, **more)

    def _end_diverged(self, attempt: Attempt, error: Diverged) -> None:
        log.warning("%s", error)
        attempt.update(outcome="diverged", detail=str(error))
        self._write_record(attempt, "diverged", (), error.progress, diverged=error.what)

    def _choices(self, attempt: Attempt) -> Choices:
        """Write down how the cell was chosen, which opens the test split."""
        choices = Choices(attempt)
        choices.note_hyperparameters(self.how_chosen, on_test=self.cell.evaluation.select_on == "test")
        return choices

    def _write_record(
        self,
        attempt: Attempt,
        status: Literal["done", "diverged", "tuned"],
        scores: tuple[Score, ...],
        progress: Progress,
        evaluate_s: float = 0.0,
        **more: Any,
    ) -> None:
        method = self.cell.method
        attempt.beat()
        record = Record(
            cell_id=self.cell.id,
            sweep=self.sweep,
            label=self.cell.label,
            method=methods.registry_name(method),
            seed=self.cell.seed,
            status=status,
            cell=self.cell.plain(),
            regularizer={key: value for key, value in asdict(method.metadata).items() if isinstance(value, str)},
            searched=_searched(self.cell),
            spectrum=kernel_spectrum(method, self.cell.embedding_dim, SPECTRUM_ORDER),
            scores=scores,
            cost=_cost(progress, evaluate_s),
            environment={**self.surroundings, "world_size": progress.world_size},
            data=images_record(self.manifest),
            attempts=past_attempts(self.directory),
            command=shlex.join(["regbench", "train", "--config", str(self.directory / "config.yaml")]),
            metrics=write_metrics(attempt, progress),
            **more,
        )
        attempt.write_record(record.file_name, record.text())


def score(
    attempt: Attempt, subject: Subject, label: str, protocols: Sequence[str], weights: str | None
) -> dict[str, dict[str, Any]]:
    """Score what hyperparameters are selected by, then the protocols; do not repeat what `scores.json` holds.

    Args:
        attempt: At the run.
        subject: The network, frozen.
        label: For the log.
        protocols: To evaluate.
        weights: What tells the network's weights from others; scores of others are not taken up.

    Returns:
        "selection" and each protocol -> its scores, the seconds it took and what read the images.
    """
    kept = read_numbered(attempt.directory, "scores.json")
    done: dict[str, dict[str, Any]] = kept["done"] if kept and kept["weights"] == weights else {}
    if done:
        attempt.began(scores=list(done))
    attempt.update(stage="tune")
    for name in ("selection", *protocols):
        if name != "selection":
            attempt.update(stage="final")
        if name in done:
            continue
        attempt.update(detail=name)
        began_s = time.perf_counter()
        found = subject.select() if name == "selection" else subject.run(name)
        done[name] = {
            "scores": [asdict(entry) for entry in found],
            "seconds": time.perf_counter() - began_s,
            "loader": subject.backend,
        }
        attempt.write("scores.json", signed({"weights": weights, "done": done}).encode())
        attempt.check()
        remove_tensors(attempt.directory, state_kind("*"), attempt.number)
        log.info("%s: %s", label, ", ".join(score.text for score in found))
    return done


def distinct_scores(done: Mapping[str, Mapping[str, Any]], names: Iterable[str]) -> tuple[Score, ...]:
    """Return the scores of some evaluations in what `score` returned; a score of two evaluations comes once."""
    scores = [Score(**entry) for name in names for entry in done[name]["scores"]]
    return tuple({(score.name, score.split): score for score in scores}.values())


def _subject(cell: Cell, network: SiameseNetwork, compute: Compute, choices: Choices) -> Subject:
    encoder = Encoder(network.backbone, network.representation_dim)
    return Subject(cell.evaluation, cell.dataset, cell.augmentation, encoder, compute, choices, cell.seed)


def images_record(manifest: Manifest) -> Images:
    """Return what a record says of its images."""
    digests = {name: split["content_sha256"] for name, split in manifest.splits.items()}
    return Images(str(manifest.source["name"]), digests)


def past_attempts(directory: Path) -> tuple[PastAttempt, ...]:
    """Return what a record says of the attempts that led to it; the last of them is about to end."""
    attempts = read_attempts(directory)
    attempts[-1]["finished"] = now()
    return tuple(
        PastAttempt(
            **{name: entry.get(name) for name in ("number", "started", "finished", "ended", "error")},
            hostname=entry["owner"].get("hostname"),
            from_step=entry["progress"].get("began", {}).get("step"),
        )
        for entry in attempts
    )


def _searched(cell: Cell) -> dict[str, Searched]:
    """Return what a record says of the search spaces of a cell's method and optimizer."""
    spaces = {"method": cell.method.space, "optimizer": cell.optimizer.space}
    return {
        f"{group}.{name}": Searched(each.scale, each.balances)
        for group, space in spaces.items()
        for name, each in (space or {}).items()
        if isinstance(each, Range)
    }


def _cost(progress: Progress, evaluate_s: float) -> Cost:
    """Sum up time, memory and energy of training; a step's times are medians over epochs of medians over steps."""
    history = progress.history
    train_s = sum(epoch["epoch_s"] for epoch in history) + progress.epoch_s
    names = ("step_ms", "data_ms", "forward_ms", "loss_ms", "backward_ms", "optimizer_ms") if history else ()
    return Cost(
        train_s=train_s,
        checkpoint_s=progress.checkpoint_s,
        monitor_s=progress.monitor_s or None,
        evaluate_s=evaluate_s,
        img_per_s=sum(epoch["images"] for epoch in history) / train_s if history else None,
        **{name: statistics.median(epoch[name] for epoch in history) for name in names},
        peak_memory_bytes=progress.peak_memory_bytes or None,
        peak_reserved_bytes=progress.peak_reserved_bytes or None,
        peak_memory_kind=progress.peak_memory_kind,
        loss_extra_bytes=progress.loss_extra_bytes or None,
        **{f"energy_{kind}_joules": joules for kind, joules in progress.energy_joules.items()},
    )


def trained_cell(directory: Path) -> Cell:
    """Read the cell of a run directory that holds weights.

    Raises:
        RegbenchError: If it is none, or holds scores of published weights.
    """
    if not (directory / "config.yaml").exists():
        raise RegbenchError(f"{directory / 'config.yaml'} is missing; give the directory of a run that has trained")
    record = read_record(directory)
    if record is not None and record.method == "external":
        raise RegbenchError(f"{directory} holds no weights, but scores of published ones; repeat: {record.command}")
    return load_cell(directory / "config.yaml")


def evaluate_directory(
    directory: Path, overrides: Sequence[str], only: Sequence[str] = (), how_chosen: Mapping[str, Any] = GIVEN
) -> list[Score]:
    """Evaluate the final weights of a run directory anew.

    What the record of a finished run does not hold is written to `evaluations/<protocol>.json` beside it, once; all
    else is only returned.

    Args:
        directory: With `config.yaml` and the last checkpoint.
        overrides: `evaluation.…=value` and `runtime.…=value` settings that differ from the run's own.
        only: The protocols; none: those of the run.
        how_chosen: See `run_cell`.

    Returns:
        The scores.

    Raises:
        RegbenchError: If the directory does not hold the final weights, or an override is refused.
    """
    for override in overrides:
        if not override.startswith(("evaluation.", "runtime.")):
            raise RegbenchError(f"{override}: a trained run can be given other evaluation.* settings only")
    own, record = trained_cell(directory), read_record(directory)
    chosen = [f"evaluation.protocols=[{','.join(only)}]"] if only else []
    cell, runtime = load_config(directory / "config.yaml", [*overrides, *chosen])
    new = [protocol for protocol in cell.evaluation.protocols if protocol not in own.evaluation.protocols]
    there = [protocol for protocol in new if _later(directory, protocol).exists()]
    changed = [override for override in overrides if override.startswith("evaluation.")]
    if there and not changed:
        raise RegbenchError(
            f"{_later(directory, there[0])} is there already; remove it to evaluate {there[0]} again, or leave "
            f"{there[0]} out of --only"
        )
    compute = resolve(runtime)
    network = _network(own, _final_state(directory, own), compute)
    scores = []
    # The run's own files stay as they are.
    with tempfile.TemporaryDirectory() as folder, attempt_at(Path(folder), runtime.lease_s) as attempt:
        assert attempt is not None
        choices = Choices(attempt)
        on_test = "test" in (own.evaluation.select_on, cell.evaluation.select_on)
        choices.note_hyperparameters(how_chosen, on_test=on_test)
        subject = _subject(cell, network, compute, choices)
        if not only or "knn" in only:
            scores += subject.select()
        for protocol in cell.evaluation.protocols:
            before, began_s = choices.entries, time.perf_counter()
            found = subject.run(protocol)
            scores += found
            if protocol not in new or record is None or record.status != "done" or protocol in there:
                log.info("%s: shown only, nothing is written", protocol)
                continue
            noted = {name: entry for name, entry in choices.entries.items() if before.get(name) != entry}
            evaluation = LaterEvaluation(
                cell_id=own.id,
                protocol=protocol,
                scores=tuple(found),
                seconds=time.perf_counter() - began_s,
                choice={"hyperparameters": choices.entries["hyperparameters"], **noted},
                environment={**environment(compute.device), "loader": subject.backend},
                finished=now(),
                command=shlex.join(["regbench", "evaluate", str(directory), "--only", protocol, *changed]),
            )
            _later(directory, protocol).parent.mkdir(exist_ok=True)
            write_new(_later(directory, protocol), evaluation.text())
            log.info("%s: written to %s", protocol, _later(directory, protocol))
    return scores


def _network(cell: Cell, state: Mapping[str, Any] | None, compute: Compute) -> SiameseNetwork:
    """Build the network of a cell with the weights of a checkpoint, or as it is initialised, where it computes."""
    network = SiameseNetwork(
        cell.network, cell.embedding_dim, cell.dataset.channels, cell.dataset.image_size, cell.seed
    )
    if state is not None:
        network.load_state_dict(state["network"])
    # The layout of the training: the last bits of features depend on it, and on a CPU a quarter of their time.
    return network.to(compute.device, memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def _final_state(directory: Path, cell: Cell) -> dict[str, Any] | None:
    """Read the checkpoint with the final weights of a run; None for a network without training.

    Raises:
        RegbenchError: If the run has no such checkpoint, or has it no longer.
    """
    if not cell.epochs:
        return None
    record = read_record(directory) or read_tuned(directory)
    if record is None:
        loaded = load_checkpoint(directory)
        if loaded is None or len(loaded[0]["progress"]["history"]) < cell.epochs:
            raise RegbenchError(f"{directory} is not trained to the end; give the directory of a run that is")
        return loaded[0]
    if (saved := record.checkpoint) is None:
        raise RegbenchError(f"{directory} has no final weights: its status is {record.status}")
    try:
        return read_saved(directory, saved)
    except Damaged as error:
        raise RegbenchError(
            f"{directory / saved.file}, which holds the final weights, cannot be evaluated: {error}; train them "
            f"again: regbench train --config {directory / 'config.yaml'} --name again"
        ) from error


def _later(directory: Path, protocol: str) -> Path:
    """Return where an evaluation that came after the record is kept."""
    return directory / "evaluations" / f"{protocol}.json"
