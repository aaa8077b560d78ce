"""Configuration: Hydra overrides in, one frozen `Cell` out.

The cell holds everything that decides the outcome of a run and nothing else; where the data lies, how many workers
read it and which device computes is `Runtime`. Default values live in `conf/`, the meaning of each here.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from regbench import RegbenchError, methods, settings
from regbench.benchmark.settings.structure import Range, check_numbers, read_yaml, shown, structure, unknown
from regbench.datasets.config import AugmentationConfig, DatasetConfig, Interpolation, decisive
from regbench.datasets.fit import complete, fitting
from regbench.files import cell_id
from regbench.methods import Regularizer
from regbench.methods.engine import FORMS

log = logging.getLogger("regbench")

STAGES = ("pretrain", "tune", "final")
"""What a run goes through: training, the score that hyperparameters are chosen by, the final evaluations."""

PROTOCOLS = ("knn", "probe", "places205", "labels1", "labels10", "voc07", "measures")
"""The evaluations there are, each with its settings under `evaluation`."""


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Backbone and projector.

    Attributes:
        backbone: "resnet18", "resnet50" (torchvision's) or "resnet_tiny" (three basic blocks, for CPUs).
        stem: "imagenet" (7×7 stride 2, max-pool) or "small" (3×3 stride 1, none), for the torchvision backbones.
        hidden_dim: Width of the projector's two hidden layers; None: the embedding dimension.
    """

    backbone: str
    stem: str = "imagenet"
    hidden_dim: int | None = None


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """LARS with linear warm-up and cosine decay.

    Attributes:
        base_lr: Learning rate for a batch of 256; the peak is base_lr · batch_size / 256.
        warmup_epochs: Epochs of linear increase from 0; fractions allowed.
        final_lr_fraction: Last learning rate over the peak.
        weight_decay: Added to the gradient of tensors with two or more dimensions, before the trust ratio.
        momentum: Of the LARS update.
        trust_coefficient: η of LARS.
    """

    base_lr: float
    warmup_epochs: float = 10.0
    final_lr_fraction: float = 0.001
    weight_decay: float = 1e-6
    momentum: float = 0.9
    trust_coefficient: float = 0.001


@dataclass(frozen=True, kw_only=True)
class KNNConfig:
    """Weighted kNN: votes exp(cosine similarity / temperature) of the k nearest training images.

    Attributes:
        k: Neighbours that vote; hyperparameters are chosen by this one's top-1.
        other_k: Further numbers of neighbours to score beside it.
        temperature: Of the votes.
        interpolation: Filter of the resize before the centre crop.
    """

    k: int = 20
    other_k: tuple[int, ...] = ()
    temperature: float = 0.07
    interpolation: Interpolation = "bicubic"


@dataclass(frozen=True, kw_only=True)
class ProbeConfig:
    """Linear probing: SGD on a linear layer over the frozen backbone.

    Attributes:
        features: "augmented" (random crops and flips, the paper's protocol) or "cached" (centre crops, once).
        learning_rates: Candidates, trained side by side; the tuning split chooses.
        crop_scale: Area range of the random crops for "augmented".
        interpolation: Filter of the resizes.
        epochs: Passes over the training images.
        milestones: Epochs from which on the rate is a tenth of what it was; none: cosine decay per epoch.
        batch_norm: Whether BN without scale and shift comes before the linear layer.
        batch_size: Images a step.
        momentum: Of SGD.
        weight_decay: Of SGD.
    """

    features: str = "augmented"
    learning_rates: tuple[float, ...] = (0.02, 0.1, 0.5, 2.0, 10.0)
    crop_scale: tuple[float, float] = (0.08, 1.0)
    interpolation: Interpolation = "bilinear"
    epochs: int = 100
    milestones: tuple[int, ...] = ()
    batch_norm: bool = False
    batch_size: int = 256
    momentum: float = 0.9
    weight_decay: float = 1e-6


@dataclass(frozen=True, kw_only=True)
class TransferConfig:
    """Linear probing on another data set.

    Attributes:
        dataset: Its images and splits.
        probe: How the linear layer is trained.
    """

    dataset: DatasetConfig
    probe: ProbeConfig


@dataclass(frozen=True, kw_only=True)
class FineTuneConfig:
    """Semi-supervised learning: backbone and linear layer are trained on the few images that keep their labels.

    Attributes:
        dataset: Whose train split holds these images only.
        backbone_learning_rates: Candidates for the backbone.
        head_learning_rates: Candidates for the linear layer; the tuning split chooses a pair.
        crop_scale: Area range of the random crops.
        interpolation: Filter of the resizes.
        epochs: Passes over the images, cosine decay per epoch.
        batch_size: Images a step.
        momentum: Of SGD.
        weight_decay: Of SGD.
    """

    dataset: DatasetConfig
    backbone_learning_rates: tuple[float, ...]
    head_learning_rates: tuple[float, ...]
    crop_scale: tuple[float, float] = (0.08, 1.0)
    interpolation: Interpolation = "bilinear"
    epochs: int = 20
    batch_size: int = 256
    momentum: float = 0.9
    weight_decay: float = 0.0


@dataclass(frozen=True, kw_only=True)
class VOCConfig:
    """Linear SVMs on VOC2007, one for each class; the defaults are those of VISSL's benchmark.

    Attributes:
        resize: What the shorter side is resized to first, px.
        image_size: Side of the square that the whole image is then resized to, px.
        costs: Candidates for C; each class chooses its own by cross-validation on trainval.
        folds: Of the cross-validation.
        interpolation: Filter of both resizes.
        num_images: That trainval and test must have; others for a folder that is not VOC2007's.
    """

    resize: int = 256
    image_size: int = 224
    costs: tuple[float, ...] = (0.01, 0.1, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 50.0, 100.0, 1000.0)
    folds: int = 3
    interpolation: Interpolation = "bilinear"
    num_images: tuple[int, int] = (5011, 4952)


@dataclass(frozen=True, kw_only=True)
class MeasuresConfig:
    """Measures of the representation that need no labels and no training.

    Attributes:
        images: Of the split that are looked at, centre crops; fewer if it has fewer.
        view_images: Images whose augmented views alignment and LiDAR look at; LiDAR wants more than the representation
            has dimensions.
        views: Augmented views of each of them.
    """

    images: int = 5000
    view_images: int = 500
    views: int = 10


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """What is measured on the representation.

    Attributes:
        protocols: The evaluations, of `PROTOCOLS`.
        select_on: Split that everything is chosen on: "tuning", or "test" for the paper's second variant (its Table
            13), whose scores are optimistic.
        select_by: The protocols whose top-1 on that split hyperparameters are chosen by: "knn", as in the paper, or
            "knn" and "probe", the mean of both.
        batch_size: Images a step of feature extraction.
        knn: Weighted kNN.
        probe: Linear probing.
        places205: Linear probing on Places205.
        labels1: Semi-supervised learning with 1 % of the labels.
        labels10: The same with 10 %.
        voc07: Linear SVMs on VOC2007.
        measures: Measures without labels.
    """

    protocols: tuple[str, ...]
    knn: KNNConfig
    probe: ProbeConfig
    places205: TransferConfig
    labels1: FineTuneConfig
    labels10: FineTuneConfig
    voc07: VOCConfig
    measures: MeasuresConfig
    select_on: str = "tuning"
    select_by: tuple[str, ...] = ("knn",)
    batch_size: int = 256

    def __post_init__(self) -> None:
        """Refuses what cannot be evaluated.

        Raises:
            RegbenchError: Naming the setting and what it must be.
        """
        for name in self.protocols:
            if name not in PROTOCOLS:
                raise RegbenchError(f"evaluation.protocols: unknown {name!r}; known: {', '.join(PROTOCOLS)}")
        if self.select_on not in ("tuning", "test"):
            raise RegbenchError(f"evaluation.select_on={self.select_on} must be tuning or test")
        if self.select_by not in (("knn",), ("knn", "probe")):
            raise RegbenchError(f"evaluation.select_by=[{','.join(self.select_by)}] must be [knn] or [knn,probe]")
        if not self.voc07.costs:
            raise RegbenchError("evaluation.voc07.costs is empty; give at least one, such as [1,10]")
        for where, probe in {"probe": self.probe, "places205.probe": self.places205.probe}.items():
            if probe.features not in ("augmented", "cached"):
                raise RegbenchError(f"evaluation.{where}.features={probe.features} must be augmented or cached")
            if not probe.learning_rates:
                raise RegbenchError(f"evaluation.{where}.learning_rates is empty; give at least one, such as [0.2]")
            _check_order(where, probe.crop_scale)
        for where, few in {"labels1": self.labels1, "labels10": self.labels10}.items():
            for name in ("backbone_learning_rates", "head_learning_rates"):
                if not getattr(few, name):
                    raise RegbenchError(f"evaluation.{where}.{name} is empty; give at least one, such as [0.02]")
            _check_order(where, few.crop_scale)


def _check_order(where: str, crop_scale: tuple[float, float]) -> None:
    if crop_scale[0] > crop_scale[1]:
        raise RegbenchError(f"evaluation.{where}.crop_scale={shown(crop_scale)} must name the smaller area first")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One point of a grid: everything that decides the outcome of a run, and nothing else.

    Attributes:
        method: The regularizer with its hyperparameters.
        embedding_dim: q, the projector's output.
        batch_size: n, images a step over all GPUs; the last short batch of an epoch is dropped.
        micro_batch_size: Images over all GPUs that pass the network at a time, for batches that do not fit; None: the
            whole batch. The loss is that of the whole batch, BN statistics are those of a pass.
        epochs: Passes over the training images; 0 evaluates the untrained network.
        seed: Of the initial weights, the order of images, the augmentation and the probe.
        precision: "bf16" (autocast; the loss stays in float32) or "fp32".
        dataset: Images and splits.
        augmentation: The two views.
        network: Backbone and projector.
        optimizer: LARS and its schedule.
        evaluation: What is measured on the representation, and how.
    """

    method: Regularizer
    embedding_dim: int
    batch_size: int
    epochs: int
    seed: int
    precision: str
    dataset: DatasetConfig
    augmentation: AugmentationConfig
    network: NetworkConfig
    optimizer: OptimizerConfig
    evaluation: EvaluationConfig
    micro_batch_size: int | None = None

    def __post_init__(self) -> None:
        """Refuses numbers that cannot be run.

        Raises:
            RegbenchError: Naming the setting and what it must be.
        """
        check_numbers(self, RANGES)
        if self.micro_batch_size is not None and (self.micro_batch_size < 2 or self.batch_size % self.micro_batch_size):
            raise RegbenchError(
                f"micro_batch_size={self.micro_batch_size} must be at least 2 and divide batch_size={self.batch_size}"
            )
        if self.precision not in ("bf16", "fp32"):
            raise RegbenchError(f"precision={self.precision} must be bf16 or fp32")
        if self.epochs and self.optimizer.warmup_epochs >= self.epochs:
            raise RegbenchError(
                f"optimizer.warmup_epochs={self.optimizer.warmup_epochs:g} must be less than epochs={self.epochs}, "
                "or the learning rate never reaches its peak"
            )

    @property
    def label(self) -> str:
        """Name of the row in tables: the method's, or "untrained"."""
        return self.method.label if self.epochs else "untrained"

    @property
    def datasets(self) -> list[DatasetConfig]:
        """The data sets that it trains on and is evaluated on."""
        asked = [getattr(self.evaluation, name) for name in self.evaluation.protocols]
        return [self.dataset, *(evaluation.dataset for evaluation in asked if hasattr(evaluation, "dataset"))]

    def to_dict(self) -> dict[str, Any]:
        """The cell as plain data; `from_dict` reads it back.

        What decides nothing is left out: the settings of evaluations that are not asked for, and those of a data set
        that only say what `prepare` accepts.
        """
        data = self.complete()
        for name in _unused((*self.evaluation.select_by, *self.evaluation.protocols)):
            del data["evaluation"][name]
        for group in (data, *data["evaluation"].values()):
            if isinstance(group, dict) and (dataset := group.get("dataset")):
                group["dataset"] = decisive(dataset)
        return data

    def complete(self) -> dict[str, Any]:
        """Every setting as plain data, also those that `to_dict` leaves out."""
        method = {"name": methods.registry_name(self.method), **asdict(self.method)}  # type: ignore[call-overload]
        return {**settings.plain(self), "method": method}

    def plain(self) -> dict[str, Any]:
        """`to_dict` in the types that YAML has."""
        data: dict[str, Any] = json.loads(json.dumps(self.to_dict()))
        return data

    @property
    def id(self) -> str:
        """Twelve hex digits that depend on the cell's content alone, on any machine."""
        return cell_id(self.to_dict())

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Cell:
        """The cell of plain data.

        Raises:
            RegbenchError: If a setting is unknown, missing, of the wrong type or out of range.
        """
        chosen = data.get("method")
        if not isinstance(chosen, Mapping) or not isinstance(name := chosen.get("name"), str):
            raise RegbenchError(f"method={shown(chosen)} must be a group of settings with the method's name")
        hyperparameters = {key: value for key, value in chosen.items() if key != "name"}
        method = structure(type(methods.build(name)), {**methods.defaults(name), **hyperparameters}, "method.")
        return structure(cls, {**_with_all_evaluations(data), "method": method})


def _unused(protocols: Sequence[str]) -> list[str]:
    """Protocols other than those given, whose settings decide nothing."""
    return [name for name in PROTOCOLS if name not in protocols]


def _with_all_evaluations(data: Mapping[str, Any]) -> dict[str, Any]:
    """A cell's plain data with the package's settings of those evaluations that it leaves out."""
    given = data.get("evaluation")
    if not isinstance(given, Mapping):
        return dict(data)  # which `structure` refuses
    used = [given.get("select_by", ("knn",)), given.get("protocols", PROTOCOLS)]
    if not all(isinstance(names, list | tuple) for names in used):
        return dict(data)
    missing = [name for name in _unused([*used[0], *used[1]]) if name not in given]
    defaults = _evaluation_defaults() if missing else {}
    return {**data, "evaluation": {**given, **{name: defaults[name] for name in missing}}}


@functools.cache
def _evaluation_defaults() -> dict[str, Any]:
    evaluation: dict[str, Any] = settings.plain(load_run([])[0].evaluation)
    return evaluation


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """Where and with what a run is computed; none of it decides the outcome.

    Attributes:
        data_dir: Folder of prepared data sets.
        runs_dir: Folder of run directories.
        device: "auto", "cpu" or "cuda".
        loader: "auto", "ffcv" or "torchvision".
        workers: Threads (ffcv) or processes (torchvision; 1: the run itself) that load images for one run.
        threads: CPU threads that compute for one run; 0: see `default_threads` in `run`.
        loss_form: Form that the loss is computed in, see `Engine`: "auto" (the cheapest), "gram", "covariance" or
            "textbook" (the published formula under plain autograd).
        shard_optimizer: Whether the ranks of a run share the momentum of linear layers (ZeRO-1) instead of each
            keeping all of it.
        compile: Whether torch.compile builds the network.
        checkpoint_minutes: Minutes between checkpoints.
        checkpoint_epochs: Epochs between checkpoints; whichever comes first.
        lease_s: Seconds without a sign of life after which another process may take over a run.
        parallel: Runs at a time in a sweep on this machine; 0: one for each GPU, or for each core without GPUs.
    """

    data_dir: str
    runs_dir: str
    device: str
    loader: str
    workers: int
    threads: int
    loss_form: str
    shard_optimizer: bool
    compile: bool
    checkpoint_minutes: float
    checkpoint_epochs: int
    lease_s: float
    parallel: int

    def __post_init__(self) -> None:
        """Refuses what cannot be.

        Raises:
            RegbenchError: Naming the setting and what it must be.
        """
        check_numbers(self, RANGES, "runtime.")
        for name in ("data_dir", "runs_dir"):
            if not getattr(self, name):
                raise RegbenchError(f"runtime.{name} must name a folder; give . for this one")
        named = {"device": ("auto", "cpu", "cuda"), "loader": ("auto", "ffcv", "torchvision"), "loss_form": FORMS}
        for name, known in named.items():
            if (value := getattr(self, name)) not in known:
                raise RegbenchError(f"runtime.{name}={value} must be {', '.join(known[:-1])} or {known[-1]}")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Where jobs run and what one of them gets; none of it decides the outcome.

    Attributes:
        scheduler: "local" (this machine) or "slurm".
        partition: Of the jobs; None: the cluster's default, here as below.
        account: To be charged.
        qos: Quality of service.
        constraint: Features that nodes must have.
        nodes: Of one run.
        gpus: Of each node, with one process for each; 0: one process without a GPU.
        cpus: For each process.
        mem_gib: Of each node.
        time_minutes: Limit of a job; a run that is not done by then goes on in the next.
        parallel: Jobs of an array that run at a time.
        notice_s: Seconds before the limit at which a run writes its checkpoint and queues again.
        modules: Names for `module load`.
        setup: Shell lines before the run.
        container: Prefix of the Python command; None: this Python.
        extra: Other options of sbatch.
        stages: Stage -> what differs for it of the above; None: one job for all stages.
        gpu_memory_gib: What a GPU has; None: nothing is refused.
    """

    scheduler: str
    partition: str | None
    account: str | None
    qos: str | None
    constraint: str | None
    nodes: int
    gpus: int
    cpus: int
    mem_gib: float | None
    time_minutes: int
    parallel: int
    notice_s: int
    modules: tuple[str, ...]
    setup: tuple[str, ...]
    container: str | None
    extra: dict[str, Any] | None
    stages: dict[str, dict[str, Any]] | None
    gpu_memory_gib: float | None

    def __post_init__(self) -> None:
        """Refuses what no cluster can do.

        Raises:
            RegbenchError: Naming the setting and what it must be.
        """
        if self.scheduler not in ("local", "slurm"):
            raise RegbenchError(f"cluster.scheduler={self.scheduler} must be local or slurm")
        check_numbers(self, RANGES, "cluster.")
        if self.stages is not None and set(self.stages) != set(STAGES):
            given = ", ".join(self.stages) or "nothing"
            raise RegbenchError(f"cluster.stages must name {', '.join(STAGES)}, each with its settings, not {given}")

    def at(self, stage: str) -> Cluster:
        """What the job with one stage gets.

        Raises:
            RegbenchError: If a setting of the stage is unknown or of the wrong type.
        """
        if self.stages is None:
            return self
        return structure(Cluster, {**asdict(self), "stages": None, **self.stages[stage]}, f"cluster.stages.{stage}.")

    @property
    def processes(self) -> int:
        """Of one run, over all nodes."""
        return self.nodes * max(1, self.gpus)


@dataclass(frozen=True)
class Sweep:
    """A named grid.

    Attributes:
        name: Folder under `runs_dir`.
        description: One line for people.
        cells: Distinct cells in the order of the file.
        runtime: For each of them.
        clusters: Where each of them runs.
        final_seeds: For a tuning: seeds of the final runs; none: those of the cells.
    """

    name: str
    description: str
    cells: tuple[Cell, ...]
    runtime: Runtime
    clusters: tuple[Cluster, ...]
    final_seeds: tuple[int, ...] = ()

    @property
    def scheduler(self) -> str:
        """Of all cells, which cannot have different ones."""
        return self.clusters[0].scheduler


_POSITIVE, _AT_LEAST_ZERO, _AT_LEAST_ONE, _AT_LEAST_TWO = Range(0, above=True), Range(0), Range(1), Range(2)
_FRACTION, _MOMENTUM = Range(0, 1), Range(0, 1, below=True)
_TRAINING = {
    "epochs": _AT_LEAST_ONE,
    "batch_size": _AT_LEAST_ONE,
    "momentum": _MOMENTUM,
    "weight_decay": _AT_LEAST_ZERO,
    "crop_scale": Range(0, 1, above=True),
}

RANGES: dict[type, dict[str, Range]] = {
    Cell: {
        "embedding_dim": _AT_LEAST_TWO,
        "batch_size": _AT_LEAST_TWO,
        "epochs": _AT_LEAST_ZERO,
        "seed": Range(0, 2**32 - 1),  # seeds of steps are multiples of it, and have 64 bits
    },
    NetworkConfig: {"hidden_dim": _AT_LEAST_ONE},
    OptimizerConfig: {
        "base_lr": _POSITIVE,
        "warmup_epochs": _AT_LEAST_ZERO,
        "final_lr_fraction": _FRACTION,
        "weight_decay": _AT_LEAST_ZERO,
        "momentum": _MOMENTUM,
        "trust_coefficient": _POSITIVE,
    },
    EvaluationConfig: {"batch_size": _AT_LEAST_ONE},
    KNNConfig: {"k": _AT_LEAST_ONE, "other_k": _AT_LEAST_ONE, "temperature": _POSITIVE},
    ProbeConfig: {**_TRAINING, "learning_rates": _POSITIVE, "milestones": _AT_LEAST_ONE},
    FineTuneConfig: {**_TRAINING, "backbone_learning_rates": _AT_LEAST_ZERO, "head_learning_rates": _POSITIVE},
    VOCConfig: {
        "resize": _AT_LEAST_ONE,
        "image_size": _AT_LEAST_ONE,
        "costs": _POSITIVE,
        "folds": _AT_LEAST_TWO,
        "num_images": _AT_LEAST_ONE,
    },
    MeasuresConfig: {"images": _AT_LEAST_TWO, "view_images": _AT_LEAST_TWO, "views": _AT_LEAST_TWO},
    Runtime: {
        "workers": Range(1, 1024),  # more would be a slip of the hand, and may stop the machine
        "threads": Range(0, 1024),
        "checkpoint_minutes": _AT_LEAST_ZERO,
        "checkpoint_epochs": _AT_LEAST_ONE,
        "lease_s": _POSITIVE,
        "parallel": _AT_LEAST_ZERO,
    },
    Cluster: {
        "nodes": _AT_LEAST_ONE,
        "gpus": _AT_LEAST_ZERO,
        "cpus": _AT_LEAST_ONE,
        "mem_gib": _POSITIVE,
        "time_minutes": _AT_LEAST_ONE,
        "parallel": _AT_LEAST_ONE,
        "notice_s": _AT_LEAST_ONE,
        "gpu_memory_gib": _POSITIVE,
    },
}
"""What the numbers of each group of settings may be. Methods, data sets and augmentations check their own."""


def _register_methods() -> None:
    """Makes each registered method (presets included) an option of the config group `method`."""
    store = ConfigStore.instance()
    for name in methods.names():
        store.store(group="method", name=name, node={"name": name, **methods.defaults(name)}, provider="regbench")


@contextlib.contextmanager
def _hydra() -> Iterator[None]:
    """Within it Hydra finds the package's configuration."""
    _register_methods()
    with initialize_config_module("regbench.benchmark.conf", version_base="1.3", job_name="regbench"):
        yield


def _compose(overrides: Sequence[str], *, prepared: bool = True) -> tuple[Cell, Runtime, Cluster, str]:
    """What the overrides give, and the settings that were chosen because the overrides leave them open.

    Args:
        overrides: Of the configuration.
        prepared: Whether to look for what is prepared of one's own images.
    """
    data = _composed(overrides)
    fitted: dict[str, Any] = {}
    if all(isinstance(data.get(group), dict) for group in ("dataset", "optimizer", "runtime")):  # else refused below
        given = {override.partition("=")[0].lstrip("+") for override in overrides}
        epochs, warmup = data.get("epochs"), data["optimizer"].get("warmup_epochs")
        if isinstance(epochs, int) and isinstance(warmup, int | float) and 0 < epochs < 2 * warmup:
            fitted["optimizer.warmup_epochs"] = epochs / 2
        data_dir = Path(str(data["runtime"].get("data_dir"))) if prepared else None
        fitted |= fitting(data["dataset"], data.get("batch_size"), data_dir, given)
        fitted = {name: value for name, value in fitted.items() if name not in given}
    chosen = [f"{name}={shown(value)}" for name, value in fitted.items()]
    if chosen:
        data = _composed([*overrides, *chosen])
    runtime = structure(Runtime, data.pop("runtime"), "runtime.")
    cluster = structure(Cluster, data.pop("cluster"), "cluster.")
    return Cell.from_dict(data), runtime, cluster, " ".join(chosen)


def _composed(overrides: Sequence[str]) -> dict[str, Any]:
    """The configuration as plain data."""
    own = config_folder()
    path = [f"hydra.searchpath=[file://{own}]"] if own.is_dir() else []
    names = [override.partition("=")[2] for override in overrides if override.startswith("cluster=")]
    profiles = [profile for name in names if (profile := own / "cluster" / f"{name}.yaml").is_file()]
    for profile in profiles:
        read_yaml(profile)  # which refuses more clearly than Hydra
    try:
        # Presets leave out settings that have defaults: Hydra is to add them where they are given.
        added = [f"++{override}" if _PRESET_SETTING.match(override) else override for override in overrides]
        data = OmegaConf.to_container(compose("run", [*added, *path]), resolve=True)
    except Exception as error:  # Hydra says nowhere what it raises: a ValueError for `dataset=3`, say
        if profiles and not isinstance(error, (HydraException, OmegaConfBaseException)):
            raise RegbenchError(f"{profiles[0]} is no profile of a cluster: {_first_line(error)}") from error
        raise RegbenchError(_one_line(error, overrides)) from error
    assert isinstance(data, dict)
    evaluation = data["evaluation"] if isinstance(data.get("evaluation"), dict) else {}
    for group in (data, *evaluation.values()):
        if isinstance(group, dict) and isinstance(dataset := group.get("dataset"), dict):
            group["dataset"] = complete(dataset)
    if isinstance(data.get("augmentation"), dict):
        whole = OmegaConf.merge(settings.plain(AugmentationConfig()), data["augmentation"])
        data["augmentation"] = OmegaConf.to_container(whole)
    return {str(key): value for key, value in data.items()}


_PRESET_SETTING = re.compile(r"((evaluation\.\w+\.)?dataset|augmentation)\.")


def config_folder() -> Path:
    """Where a user's own profiles of clusters lie, in `cluster/`."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "regbench"


def _one_line(error: Exception, overrides: Sequence[str]) -> str:
    """Hydra's error in one line, with the nearest names where a name is unknown."""
    values = dict(override.partition("=")[::2] for override in overrides)
    if "method" in values:
        methods.build(values["method"])  # refuses with the nearest names
    for group in ("dataset", "augmentation", "network", "cluster"):
        own = (config_folder() / group).glob("*.yaml")
        known = sorted({path.stem for path in (*_conf_files(group), *own)})
        if values.get(group, known[0]) not in known:
            return f"unknown {group} {values[group]!r}; known: {', '.join(known)}"
    settings = _settings([f"method={values['method']}"] if "method" in values else [])
    return next((unknown("setting", key, settings) for key in values if key not in settings), _first_line(error))


def _first_line(error: Exception) -> str:
    """An error's own words, with the setting that it is about."""
    key = getattr(error, "full_key", None)
    return (f"{key}: " if key else "") + str(error).strip().partition("\n")[0]


def _settings(overrides: Sequence[str]) -> list[str]:
    """All keys that can be overridden, groups included."""
    return list(_keys(OmegaConf.to_container(compose("run", list(overrides)))))


def _keys(node: object, path: str = "") -> Iterator[str]:
    if path:
        yield path
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _keys(value, f"{path}.{key}" if path else str(key))


def _conf_files(group: str) -> list[Path]:
    return sorted((Path(__file__).parents[1] / "conf" / group).glob("*.yaml"))


def sweep_names() -> dict[str, str]:
    """The sweeps that come with the package: name -> description."""
    return {path.stem: yaml.safe_load(path.read_text())["description"] for path in _conf_files("sweep")}


def load_run(overrides: Sequence[str]) -> tuple[Cell, Runtime]:
    """One cell and its runtime from the defaults and Hydra overrides such as `method=vicreg`.

    Raises:
        RegbenchError: If an override is unknown, malformed, a sweep, or gives a cell that cannot be run.
    """
    sweep = _expand("manual", "one run", [list(overrides)])
    if len(sweep.cells) != 1:
        raise RegbenchError(f"the overrides give {len(sweep.cells)} cells; for a grid use: regbench sweep")
    return sweep.cells[0], sweep.runtime


def load_dataset(overrides: Sequence[str]) -> tuple[DatasetConfig, Runtime]:
    """The data set that overrides give, and the runtime, as if nothing was prepared yet.

    Raises:
        RegbenchError: If an override is refused.
    """
    (point,) = _points(overrides)
    with _hydra():
        cell, runtime, _, _ = _compose(point, prepared=False)
    return cell.dataset, runtime


def load_grid(overrides: Sequence[str]) -> Sweep:
    """The cells that overrides give, without a sweep's file.

    Raises:
        RegbenchError: If an override is refused.
    """
    return _expand("manual", "from the command line", [list(overrides)])


def load_config(path: Path, overrides: Sequence[str] = ()) -> tuple[Cell, Runtime]:
    """The cell of a run directory's `config.yaml`, changed by dotted overrides, and the runtime.

    Args:
        path: The file.
        overrides: `runtime.…=value` for the runtime, `key=value` for the cell (no groups, no sweeps).

    Raises:
        RegbenchError: If an override names an unknown setting, or the cell is refused.
    """
    own = [override for override in overrides if override.startswith("runtime.")]
    changes = [override for override in overrides if override not in own]
    config = OmegaConf.create(json.loads(json.dumps(load_cell(path).complete())))
    known = list(_keys(OmegaConf.to_container(config)))
    for change in changes:
        key, equals, _ = change.partition("=")
        if key not in known:
            raise RegbenchError(f"{path}: {unknown('setting', key, known)}")
        single = next(each for each in reversed(known) if each == key or each.startswith(f"{key}."))
        if not equals or single != key:
            raise RegbenchError(f"{change}: give single settings of this run, such as {single}=3")
    try:
        data = OmegaConf.to_container(OmegaConf.merge(config, OmegaConf.from_dotlist(changes)), resolve=True)
    except OmegaConfBaseException as error:
        raise RegbenchError(_first_line(error)) from error
    except yaml.YAMLError as error:
        raise RegbenchError(f"cannot read {' '.join(changes)}; write key=value, a list as key=[1,2]") from error
    assert isinstance(data, dict)
    return Cell.from_dict({str(key): value for key, value in data.items()}), load_run(own)[1]


def load_cell(path: Path) -> Cell:
    """The cell of a run directory's `config.yaml`.

    Raises:
        RegbenchError: If the file is not there or not a cell's.
    """
    data = read_yaml(path)
    try:
        return Cell.from_dict(data)
    except RegbenchError as error:
        raise RegbenchError(f"{path} is no config.yaml of a run of this version: {error}") from error


def plain_cluster(data: Mapping[str, Any]) -> Cluster:
    """The cluster of plain data."""
    return structure(Cluster, data, "cluster.")


def plain_runtime(data: Mapping[str, Any]) -> Runtime:
    """The runtime of plain data."""
    return structure(Runtime, data, "runtime.")


@dataclass(frozen=True)
class SweepFile:
    """A sweep's file, read but not expanded.

    Attributes:
        name: Folder under `runs_dir`.
        description: One line for people.
        rows: Overrides of each row, those common to all included.
        final_seeds: See `Sweep`.
    """

    name: str
    description: str
    rows: tuple[tuple[str, ...], ...]
    final_seeds: tuple[int, ...]


def load_sweep(name: str, overrides: Sequence[str] = ()) -> Sweep:
    """The sweep `name` (a preset, or the path of a YAML file) with each cell changed by `overrides`.

    A sweep file has a `description`, overrides `common` to all cells, and `cells`: a line of overrides each, in
    Hydra's grammar, so that `seed=0,1,2` in any of these places multiplies the cells. It may have `final_seeds` for a
    tuning.

    Raises:
        RegbenchError: If there is no such sweep, or the file or an override is refused.
    """
    file = read_rows(name, overrides)
    return load_rows(file, file.rows)


def load_rows(file: SweepFile, rows: Sequence[Sequence[str]]) -> Sweep:
    """The cells that rows of overrides give, under the name of a sweep's file.

    Raises:
        RegbenchError: If an override is refused.
    """
    return replace(_expand(file.name, file.description, rows), final_seeds=file.final_seeds)


def read_rows(name: str, overrides: Sequence[str]) -> SweepFile:
    """The file of the sweep `name` with each row changed by `overrides`; see `load_sweep`.

    Raises:
        RegbenchError: If there is no such sweep, or the file is refused.
    """
    presets = sweep_names()
    if name in presets:
        path = Path(__file__).parents[1] / "conf" / "sweep" / f"{name}.yaml"
    elif Path(name).suffix in (".yaml", ".yml"):
        path = Path(name)
    else:
        raise RegbenchError(
            f"no sweep named {name!r}; known: {', '.join(presets)}, or give the path of a .yaml file of your own"
        )
    file = read_yaml(path)
    if strange := [key for key in file if key not in _SWEEP_KEYS]:
        raise RegbenchError(f"{path}: {unknown('key', strange[0], _SWEEP_KEYS)} Settings of all cells go under common")
    if not isinstance(description := file.get("description"), str):
        raise RegbenchError(f"{path}: description={shown(description)} must be a line of text")
    common = " ".join(_lines(path, "common", file.get("common") or []))
    rows = [_split(path, f"{common} {line}") for line in _lines(path, "cells", file.get("cells"))]
    final_seeds = _final_seeds(path, file.get("final_seeds") or [])
    return SweepFile(path.stem, description, tuple((*row, *overrides) for row in rows), final_seeds)


_SWEEP_KEYS = ("description", "common", "cells", "final_seeds")


def _lines(path: Path, key: str, lines: object) -> list[str]:
    """The lines of overrides in a sweep's file.

    Raises:
        RegbenchError: If they are something else.
    """
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise RegbenchError(
            f"{path}: {key}={shown(lines)} must be a list of lines of settings, such as [method=vicreg seed=0,1]"
        )
    return lines


def _split(path: Path, line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise RegbenchError(f"{path}: a quotation mark is not closed in: {line.strip()}") from error


def _final_seeds(path: Path, seeds: object) -> tuple[int, ...]:
    if not isinstance(seeds, list) or not all(type(seed) is int and seed in RANGES[Cell]["seed"] for seed in seeds):
        raise RegbenchError(f"{path}: final_seeds={shown(seeds)} must be a list of seeds, such as [0,1,2]")
    return tuple(seeds)


def _expand(name: str, description: str, rows: Sequence[Sequence[str]]) -> Sweep:
    cells: dict[str, tuple[Cell, Cluster]] = {}
    notes: dict[str, None] = {}
    with _hydra():
        for row in rows:
            for point in _points(row):
                cell, runtime, cluster, fitting = _compose(point)
                cells.setdefault(cell.id, (cell, cluster))
                notes[fitting] = None
    for note in filter(None, notes):
        log.info("chosen to fit: %s", note)
    if not cells:
        raise RegbenchError(f"sweep {name} has no cells")
    if len({cluster.scheduler for _, cluster in cells.values()}) > 1:
        raise RegbenchError(f"sweep {name}: some cells are for this machine and some for Slurm; choose one cluster=")
    chosen, clusters = zip(*cells.values(), strict=True)
    return Sweep(name, description, chosen, runtime, clusters)


def _points(overrides: Sequence[str]) -> Iterator[list[str]]:
    """The product of the overrides' values.

    Raises:
        RegbenchError: If a value is an interval, which has no end of points.
    """
    choices = []
    for _, override, values in row_values(overrides):
        if isinstance(override.value(), IntervalSweep):
            raise RegbenchError(
                f"{override.input_line} is a range, not a grid; search it: regbench tune NAME --trials 16"
            )
        choices.append(values)
    for point in product(*choices):
        yield list(point)


def row_values(overrides: Sequence[str]) -> list[tuple[str, Override, list[str]]]:
    """Key, override and its values, each as an override, of a row; an interval has none.

    A later override of a key replaces an earlier one, and that of a group drops earlier settings of the group's
    members: another method knows nothing of the hyperparameters of the one before. Profiles of clusters all have the
    same settings, so there a cell's own stay.
    """
    parsed = [_parsed(override) for override in overrides]
    last: dict[str, Override] = {}
    for override in parsed:
        if override.key_or_group != "cluster":
            group = f"{override.key_or_group}."
            last = {key: earlier for key, earlier in last.items() if not key.startswith(group)}
        last[override.key_or_group] = override
    return [
        (
            key,
            override,
            [f"{key}={value}" for value in override.sweep_string_iterator()]
            if override.is_discrete_sweep()
            else []
            if override.is_sweep_override()
            else [override.input_line or ""],
        )
        for key, override in last.items()
    ]


def _parsed(override: str) -> Override:
    try:
        (parsed,) = OverridesParser.create().parse_overrides([override])
    except HydraException as error:
        raise RegbenchError(
            f"cannot read {override!r}; write key=value, a list as key=[1,2], and quote values with other signs: "
            "key='\"a (b)\"'"
        ) from error
    if not parsed.key_or_group or parsed.key_or_group.partition(".")[0] == "hydra":
        raise RegbenchError(f"{override!r} names no setting; write key=value, such as epochs=5")
    return parsed
