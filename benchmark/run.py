"""The run of one network, from the first file of its directory to its scores.

The network is trained here, comes from a finished run, or is published.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from regbench import methods, settings
from regbench.benchmark import scoring
from regbench.benchmark.backbones.weights import load_backbone
from regbench.benchmark.evaluate.features import Encoder, NotFinite
from regbench.benchmark.evaluate.subject import selection_splits
from regbench.benchmark.machine.compute import Compute, resolve
from regbench.benchmark.machine.description import environment, one_after_another
from regbench.benchmark.rundir.checkpoint import Damaged, load_checkpoint, read_saved
from regbench.benchmark.rundir.choice import GIVEN
from regbench.benchmark.rundir.directory import read_numbered, write_config
from regbench.benchmark.rundir.interruption import Interruption
from regbench.benchmark.rundir.lease import Attempt, attempt_at, now
from regbench.benchmark.rundir.record import LaterEvaluation, Record, Score, read_record, read_tuned
from regbench.benchmark.rundir.record_parts import Cost, ImageSource
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.identity import cell_id
from regbench.benchmark.settings.runtime import STAGES, Runtime
from regbench.benchmark.settings.stored import load_cell, load_config
from regbench.benchmark.settings.sweep import load_run
from regbench.benchmark.training.assembly import build_network
from regbench.benchmark.training.distributed import World, connect
from regbench.benchmark.training.loop import Trained, train
from regbench.benchmark.training.network import SiameseNetwork
from regbench.benchmark.training.run_progress import Diverged, Progress, write_metrics
from regbench.benchmark.training.sinks import require_sinks
from regbench.datasets.stored.manifest import Manifest
from regbench.errors import RegbenchError
from regbench.files import signed, write_new
from regbench.methods.forms.spectrum import kernel_spectrum
from regbench.text import refuse_name

METHOD = "external"
"""Method in the record of published weights."""

SPECTRUM_ORDER = 6
"""Highest order of the coefficients of a kernel that a record holds."""

# The settings that decide a training; they decide nothing if published weights are evaluated.
_OF_TRAINING = ["method", "optimizer", "embedding_dim", "batch_size", "micro_batch_size"]
_OF_TRAINING += ["epochs", "precision", "baseline"]
# The scores that the status line of a finished cell names.
_SHOWN = ("knn_top1", "linear_top1", "content_r2", "retrieval_recall1")

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
        interruption: Handler of signals; None: Python handles them.
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
    method = methods.registry_name(cell.method)
    compute = resolve(runtime)
    run = _Run(cell, compute, sweep, how_chosen, cell.plain(), cell.label, method)
    run.directory.mkdir(parents=True, exist_ok=True)
    trained: Trained | None = None
    # The attempt outlives the connection: the other ranks leave after training, and the first
    # evaluates alone.
    with contextlib.ExitStack() as stack:
        with connect(compute.device) as world:
            attempt = None
            if world.rank == 0:
                attempt = stack.enter_context(attempt_at(run.directory, runtime.lease_s))
            if attempt is not None:
                run.begin(attempt)
            if world.from_first(attempt is not None) and "pretrain" in stages:
                trained = run.pretrain(world, attempt, interruption or Interruption())
        # The other ranks would only hold their GPUs.
        if world.rank > 0:
            return None
        if attempt is not None and not attempt.finished and set(stages) != {"pretrain"}:
            trained = trained or run.load_trained()
            weights = trained.checkpoint.sha256 if trained.checkpoint else None
            run.evaluate(attempt, trained.network, weights, trained, is_final="final" in stages)
    return read_record(run.directory)


def evaluate_backbone(
    source: str,
    overrides: Sequence[str],
    *,
    label: str | None = None,
    name: str = "published",
    only: Sequence[str] = (),
) -> tuple[Path, Record]:
    """Evaluate published weights once, and write a run directory as a finished run leaves it.

    Args:
        source: The weights; see `load_backbone`.
        overrides: `dataset`, `augmentation`, `network`, `evaluation.…`, `seed` and `runtime.…`.
        label: Name of the row in tables; None: the name of the source.
        name: The folder under `runtime.runs_dir`.
        only: The protocols; none: those of the configuration.

    Returns:
        The run directory and the record.
    """
    for override in overrides:
        if override.partition("=")[0].partition(".")[0] in _OF_TRAINING:
            raise RegbenchError(
                f"{override}: published weights are not trained, so it has no effect; leave it out"
            )
    cell, runtime = load_run([*overrides, *_protocols(only)])
    compute = resolve(runtime)
    _refuse_unfit(cell, compute.data_dir)  # before the weights are downloaded
    published = load_backbone(
        source, cell.network.backbone, cell.dataset.input_channels, cell.dataset.image_size
    )
    # The weights expect the colours that they were trained with.
    mean, std = published.mean or cell.dataset.mean, published.std or cell.dataset.std
    cell = replace(cell, dataset=replace(cell.dataset, mean=mean, std=std))
    # A record names a file without its folder.
    of_library = source.startswith(("torchvision:", "timm:"))
    shown = source if of_library else Path(source).name
    label = label or shown
    backbone: dict[str, Any] = {}
    # A library's model is known by its name; the weights of a file may fit several networks.
    if not of_library:
        own = settings.plain(cell.network.backbone)
        usual = settings.plain(type(cell.network.backbone)())
        backbone = {key: value for key, value in own.items() if value != usual[key]}
    command = ["regbench", "evaluate", "--backbone", source, "--label", label, "--name", name]
    if only:
        command += ["--only", ",".join(only)]
    # The settings that decide the scores, in the form of a cell whose training is not known.
    plain = {
        **cell.plain(),
        **dict.fromkeys(_OF_TRAINING),
        "network": {"backbone": {"name": published.architecture, **backbone}},
        "method": {"name": METHOD},
        "external": {"source": shown, "sha256": published.sha256},
    }
    command += overrides
    run = _Run(cell, compute, name, GIVEN, plain, label, METHOD, command)
    with attempt_at(run.directory, runtime.lease_s) as attempt:
        if attempt is not None:
            run.begin(attempt)
            published.backbone.module.to(compute.device)
            run.evaluate(attempt, published.backbone, published.sha256)
    record = read_record(run.directory)
    assert record is not None
    return run.directory, record


def evaluate_directory(
    directory: Path,
    overrides: Sequence[str],
    only: Sequence[str] = (),
    how_chosen: Mapping[str, Any] = GIVEN,
) -> list[Score]:
    """Evaluate the final weights of a run directory anew.

    A protocol that the record of a finished run lacks is written to `evaluations/<protocol>.json`
    beside it, once, and later calls read it from there. All other scores are only returned.

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
    cell, runtime = load_config(directory / "config.yaml", [*overrides, *_protocols(only)])
    # With changed settings, scores that are already written are neither read nor replaced.
    changed = [override for override in overrides if override.startswith("evaluation.")]
    record, new = read_record(directory), set()
    compute = resolve(runtime)
    if record is not None and record.status == "done":
        here = Manifest.load(compute.data_dir, own.dataset).content_sha256
        if record.data.content_sha256.items() <= here.items():
            new = set(cell.evaluation.protocols) - set(own.evaluation.protocols)
        else:
            log.warning("%s saw other images of %s than these", directory, own.dataset.name)
    names = list(cell.evaluation.protocols)
    # The score that hyperparameters are selected by is kNN's unless the cell says otherwise.
    if not only or "knn" in only:
        names.insert(0, scoring.SELECTION)
    network = build_network(own, compute.device, final_state(directory, own))
    scores: list[Score] = []
    # The run's own files stay as they are: choices are written into a folder that is removed
    # afterwards.
    with (
        tempfile.TemporaryDirectory() as folder,
        attempt_at(Path(folder), runtime.lease_s) as attempt,
    ):
        assert attempt is not None
        on_test = own.evaluation.select_on == "test"
        choices = scoring.note_choice(attempt, cell, how_chosen, on_test=on_test)
        subject = scoring.subject_of(cell, network, compute, choices)
        for name in names:
            path, before = directory / "evaluations" / f"{name}.json", choices.entries
            if name not in new or (path.exists() and changed):
                scores += scoring.evaluated(subject, name).scores
                if name != scoring.SELECTION:
                    log.info("%s: shown only, nothing is written", name)
                continue
            if path.exists():  # of an earlier call, which may have been killed after it
                log.info("%s is there already; remove it to evaluate again", path)
            else:
                found = scoring.evaluated(subject, name)
                # The record has its own choices; these are the ones that this evaluation made.
                choice = {"hyperparameters": choices.entries["hyperparameters"]}
                for what, entry in choices.entries.items():
                    if before.get(what) != entry:
                        choice[what] = entry
                again = ["regbench", "evaluate", str(directory), "--only", name, *changed]
                evaluation = LaterEvaluation(
                    cell_id=own.id,
                    protocol=name,
                    scores=tuple(found.scores),
                    seconds=found.seconds,
                    choice=choice,
                    environment={**environment(compute.device), "loader": found.loader},
                    finished=now(),
                    command=shlex.join(again),
                )
                path.parent.mkdir(exist_ok=True)
                # The first of two processes that evaluate at once wins.
                write_new(path, evaluation.text())
                log.info("%s: written to %s", name, path)
            written = LaterEvaluation.read_if_there(path, f"remove it to evaluate {name} again")
            assert written is not None
            scores += written.scores
    return scores


def trained_cell(directory: Path) -> Cell:
    """Read the cell of a run directory that holds weights; refuse any other directory."""
    config = directory / "config.yaml"
    if not config.exists():
        raise RegbenchError(f"{config} is missing; give the directory of a run that has trained")
    record = read_record(directory)
    if record is not None and record.method == METHOD:
        raise RegbenchError(
            f"{directory} holds no weights, but scores of published ones; repeat: {record.command}"
        )
    return load_cell(config)


def final_state(directory: Path, cell: Cell) -> dict[str, Any] | None:
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


def _protocols(only: Sequence[str]) -> list[str]:
    """Return the override that asks for these protocols alone; no override if there are none."""
    return [f"evaluation.protocols=[{','.join(only)}]"] if only else []


def _refuse_unfit(cell: Cell, data_dir: Path) -> Manifest:
    """Refuse images that are not there, and what evaluations would refuse after the training."""
    manifest = Manifest.load(data_dir, cell.dataset)
    if cell.is_supervised and not manifest.class_names:
        what = f"baseline={cell.baseline} needs labels, and data set {cell.dataset.name!r} has none"
        raise RegbenchError(f"{what}; leave it out")
    selection_splits(cell, data_dir)
    return manifest


@dataclass(eq=False)
class _Run:
    """A cell in its directory.

    Attributes:
        cell: The cell, as it is evaluated.
        compute: The machine.
        sweep: The folder under `runtime.runs_dir`.
        how_chosen: See `run_cell`.
        plain: The cell, as the record has it.
        label: Name of the row in tables.
        method: Name of the method in the record.
        command: The words of the command that does it again; none: training from its config.
    """

    cell: Cell
    compute: Compute
    sweep: str
    how_chosen: Mapping[str, Any]
    plain: Mapping[str, Any]
    label: str
    method: str
    command: Sequence[str] = ()

    def __post_init__(self) -> None:
        refuse_name("the folder of runs", self.sweep)
        runs_dir = Path(self.compute.runtime.runs_dir)
        self.directory = runs_dir / self.sweep / cell_id(self.plain)
        self.surroundings: dict[str, Any] = {}

    def begin(self, attempt: Attempt) -> None:
        """Write down what the run is made of.

        Refuse before the training what its evaluations would refuse, and other images than those
        that the run began with.
        """
        cell, runtime = self.cell, self.compute.runtime
        self.manifest = _refuse_unfit(cell, self.compute.data_dir)
        images = self.manifest.content_sha256
        before = read_numbered(self.directory, "environment.json")
        self._refuse_others(images, before.get("content_sha256", images))
        if cell.evaluation.while_training and cell.evaluation.select_on == "test":
            # Such evaluations read the test split, which opens only after the choice.
            scoring.note_choice(attempt, cell, self.how_chosen)
        self.surroundings = environment(self.compute.device)
        if self.method != METHOD:
            self.surroundings["loss_form"] = runtime.loss_form
            self.surroundings["loss_revision"] = cell.method.revision
            self.surroundings["compile"] = runtime.compile
            if cell.network.teacher == "ema":
                self.surroundings["evaluated_network"] = "student"
        write_config(self.directory, self.plain)
        written = {**self.surroundings, "content_sha256": images}
        attempt.write("environment.json", signed(written).encode())

    def pretrain(
        self, world: World, attempt: Attempt | None, interruption: Interruption
    ) -> Trained | None:
        """Train the network; if the run diverges, write its record and return None."""
        if attempt is not None:
            attempt.update(stage="pretrain")
        given = self.cell, self.compute, self.directory, world, attempt, interruption
        try:
            trained = train(*given, {**self.surroundings, "world_size": world.size})
        except Diverged as error:
            if attempt is not None:
                self._end_diverged(attempt, error)
            return None
        if world.group is None or world.rank > 0:
            return trained
        # The trained BN layers belong to ranks that leave now; an evaluation could not copy them.
        state = {"network": trained.network.state_dict()}
        return replace(trained, network=build_network(self.cell, self.compute.device, state))

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

    def evaluate(
        self,
        attempt: Attempt,
        network: SiameseNetwork | Encoder,
        weights: str | None,
        trained: Trained | None = None,
        *,
        is_final: bool = True,
    ) -> None:
        """Score a network and write the record; do nothing twice.

        `weights` is the SHA-256 of its weights. Unless `is_final`, only the selection is scored. A
        trained network whose representations are not finite has diverged.
        """
        progress = None if trained is None else trained.progress
        # Choose.
        choices = scoring.note_choice(attempt, self.cell, self.how_chosen)
        subject = scoring.subject_of(self.cell, network, self.compute, choices)
        protocols = self.cell.evaluation.protocols if is_final else ()
        status: Literal["done", "tuned"] = "done" if is_final else "tuned"
        # Score.
        try:
            done = scoring.score(attempt, subject, self.label, protocols, weights)
        except NotFinite as error:
            # A network that was not trained cannot diverge: something is wrong with it or the
            # images.
            if progress is None or not self.cell.epochs:
                raise
            epochs = len(progress.history)
            diverged = Diverged(self.label, progress.step, epochs, str(error), progress)
            self._end_diverged(attempt, diverged)
            return
        # Each score once: the protocol knn, for example, gives one that the selection gave too.
        names = (scoring.SELECTION, *protocols)
        found: dict[tuple[str, str], Score] = {}
        for name in names:
            for entry in done[name]["scores"]:
                found[entry["name"], entry["split"]] = Score(**entry)
        # Others see these while the record is being written.
        shown = [score for score in found.values() if score.name in _SHOWN]
        headline = [score.text for score in shown if score.split == "test" or not is_final]
        attempt.update(outcome=status, detail=", ".join(headline))
        # Record.
        # An evaluation that reads no image does not know what would.
        known = [done[name]["loader"] for name in names if done[name]["loader"] != "auto"]
        self.surroundings["loader"] = known[0] if known else "auto"
        parts: dict[str, Any] = {"scores": tuple(found.values())}
        evaluate_s = sum(done[name]["seconds"] for name in names)
        if is_final:
            parts["choice"] = choices.entries
        if trained is not None:
            parts["checkpoint"] = trained.checkpoint
        self._write_record(attempt, status, progress, evaluate_s, **parts)

    def _refuse_others(self, images: Mapping[str, str], begun_with: Mapping[str, str]) -> None:
        if images != begun_with:
            raise RegbenchError(
                f"{self.directory} was begun with other images of {self.cell.dataset.name!r}: "
                "remove this folder, or give the sweep another name"
            )

    def _end_diverged(self, attempt: Attempt, error: Diverged) -> None:
        log.warning("%s", error)
        attempt.update(outcome="diverged", detail=str(error))
        parts: dict[str, Any] = {"scores": (), "diverged": error.what}
        # A report has to know that this is what a tuning chose.
        if self.how_chosen.get("sha256"):
            parts["choice"] = {"hyperparameters": dict(self.how_chosen)}
        self._write_record(attempt, "diverged", error.progress, 0.0, **parts)

    def _write_record(
        self,
        attempt: Attempt,
        status: Literal["done", "diverged", "tuned"],
        progress: Progress | None,
        evaluate_s: float,
        **parts: Any,
    ) -> None:
        # Somebody may have prepared the data set anew while this ran.
        now = Manifest.load(self.compute.data_dir, self.cell.dataset)
        self._refuse_others(now.content_sha256, self.manifest.content_sha256)
        method, cost, world_size = self.cell.method, Cost(evaluate_s=evaluate_s), 1
        surroundings = [self.surroundings]
        # The record takes its attempts from their files, so this one's must be up to date.
        attempt.beat()
        if progress is not None:
            cost, world_size = scoring.cost_of(progress, evaluate_s), progress.world_size
            surroundings = [*progress.surroundings, self.surroundings]
            parts["metrics"] = write_metrics(attempt, progress)
            parts["spectrum"] = kernel_spectrum(method, self.cell.embedding_dim, SPECTRUM_ORDER)
            metadata = asdict(method.metadata).items()
            parts["regularizer"] = {key: value for key, value in metadata if isinstance(value, str)}
        again = ["regbench", "train", "--config", str(self.directory / "config.yaml")]
        record = Record(
            cell_id=self.directory.name,
            sweep=self.sweep,
            label=self.label,
            method=self.method,
            seed=self.cell.seed,
            status=status,
            cell=dict(self.plain),
            cost=cost,
            environment={"world_size": world_size, **one_after_another(surroundings)},
            data=ImageSource(str(self.manifest.source["name"]), self.manifest.content_sha256),
            attempts=scoring.past_attempts(self.directory),
            command=shlex.join(self.command or again),
            **parts,
        )
        attempt.write_record(record.file_name, record.text())
