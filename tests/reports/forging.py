"""An honest sweep for bundles, and what changes a bundle and computes every digest anew."""

from __future__ import annotations

import copy
import hashlib
import json
import tarfile
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import IO, Any, cast

import yaml

from regbench import methods
from regbench.benchmark.rundir.record import Record, Score
from regbench.benchmark.rundir.record_parts import Cost, ImageSource, NamedFile, PastAttempt, Saved
from regbench.benchmark.rundir.tuning_choice import (
    TUNING_CHOICE,
    ChosenConfiguration,
    RankedConfiguration,
    TuningChoice,
)
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.identity import cell_id
from regbench.benchmark.settings.sweep import load_run
from regbench.files import digest
from regbench.text import is_name

Json = dict[str, Any]

STEPS = 3
RATES = {"0.1": 60.0, "0.5": 65.0}


def tuned_sweep(runs: Path, name: str = "mine", *overrides: str) -> Path:
    """Writes a finished tuning of two methods with two configurations each, and two final
    seeds, as runs leave it.
    """
    base = load_run(
        [
            *(
                "dataset=fashion_mnist",
                "augmentation=small_grey",
                "network=resnet_tiny",
                "embedding_dim=64",
            ),
            *("batch_size=32", "epochs=2", "optimizer.warmup_epochs=1"),
            "evaluation.probe.learning_rates=[0.1,0.5]",
            *overrides,
        ]
    )[0]
    split = base.evaluation.select_on
    folder, entries = runs / name, []
    for place, method in enumerate(("vicreg", "auh")):
        cells = [
            replace(
                base, method=methods.build(method), optimizer=replace(base.optimizer, base_lr=rate)
            )
            for rate in (0.5, 0.3)
        ]
        values = [70.0 + place, 66.0]
        ranking = tuple(
            RankedConfiguration(
                cell_id=cell.id,
                configuration=cell.id,
                epochs=base.epochs,
                value=value,
                status="tuned",
                hyperparameters={"optimizer.base_lr": cell.optimizer.base_lr},
            )
            for cell, value in zip(cells, values, strict=True)
        )
        _write(folder, cells[1], 66.0, "tuned", 1, {})
        setting = {
            "dataset": "fashion_mnist",
            "backbone": "resnet_tiny",
            "embedding_dim": 64,
            "batch_size": 32,
        }
        entries.append(
            ChosenConfiguration(
                label=cells[0].label,
                method=method,
                setting=setting | {"epochs": base.epochs},
                chosen=cells[0].id,
                configuration=cells[0].id,
                ranking=ranking,
                edges={},
                images=2 * STEPS * base.epochs * 32,
            )
        )
    choice = TuningChoice(
        selected_on=split,
        score="knn_top1",
        budget=2,
        seeds=(0,),
        choices=tuple(entries),
        created="2026-11-22T06:00:00+00:00",
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TUNING_CHOICE).write_text(choice.text())
    how = {
        "selected_on": split,
        "score": "knn_top1",
        "budget": 2,
        "record": f"{folder.name}/{TUNING_CHOICE}",
    }
    how["sha256"] = TuningChoice.read(folder / TUNING_CHOICE).sha256
    for place, method in enumerate(("vicreg", "auh")):
        for seed in (0, 1):
            cell = replace(
                base,
                method=methods.build(method),
                seed=seed,
                optimizer=replace(base.optimizer, base_lr=0.5),
            )
            rate = {"selected_on": split, "chosen": 0.5, "candidates": RATES}
            chosen = {"hyperparameters": {**how, "edges": {}}, "probe_learning_rate": rate}
            _write(folder, cell, 70.0 + place, "done", 3 + seed, chosen)
    return folder


def _write(folder: Path, cell: Cell, knn: float, status: Any, hour: int, choice: Json) -> None:
    draw = int(cell.id, 16)  # no two runs take equally long
    epoch_s = [10.0 + draw % 997 / 1e3, 11.0 + draw % 991 / 1e3, 12.0][: cell.epochs]
    rows = [
        {"epoch": e, "loss": 5.0 / e, "effective_rank": 30.0, "epoch_s": s, "images": STEPS * 32}
        for e, s in enumerate(epoch_s, 1)
    ]
    history = "".join(json.dumps(row) + "\n" for row in rows)
    splits = dict.fromkeys([cell.evaluation.select_on, *(["test"] if status == "done" else [])])
    scores = [
        ("knn_top1", knn),
        ("knn_top5", 90.0),
        *([("linear_top1", 65.0)] if status == "done" else []),
    ]
    day = "2026-11-22T0{}:{:02}:00+00:00"
    attempts = [PastAttempt(number=1, started=day.format(hour, 0), finished=day.format(hour, 30))]
    if status == "done":
        attempts.append(PastAttempt(number=2, started=day.format(7, 0), finished=day.format(7, 30)))
    weights = f"weights of {cell.id}".encode()
    sha256 = hashlib.sha256(weights).hexdigest()
    steps = STEPS * cell.epochs
    saved = Saved(f"checkpoint-0001-{steps:09d}-{sha256[:16]}.pt", sha256, steps)
    record = Record(
        cell_id=cell.id,
        sweep=folder.name,
        label=cell.label,
        method=methods.registry_name(cell.method),
        seed=cell.seed,
        status=status,
        cell=cell.plain(),
        scores=tuple(
            Score(n, v, split, f"how {n} is measured", n) for n, v in scores for split in splits
        ),
        cost=Cost(train_s=sum(epoch_s), evaluate_s=1.0, step_ms=9.0, peak_memory_bytes=2**30),
        environment={
            "hardware": "1 x Example",
            "git": "abc1234",
            "torch": "2.14",
            "regbench": "0.1.0",
        },
        data=ImageSource(
            "fashion_mnist", {"train": "ab" * 32, "tuning": "ef" * 32, "test": "cd" * 32}
        ),
        attempts=tuple(attempts),
        command=f"regbench train --config runs/{folder.name}/{cell.id}/config.yaml",
        choice=choice,
        regularizer={"reference": "somebody, 2021", "formula": "a + b"},
        metrics=NamedFile("metrics-0001.jsonl", hashlib.sha256(history.encode()).hexdigest()),
        checkpoint=saved,
    )
    run = folder / cell.id
    run.mkdir(parents=True)
    (run / record.file_name).write_text(record.text())
    (run / "metrics-0001.jsonl").write_text(history)
    (run / saved.file).write_bytes(weights)
    (run / "config.yaml").write_text(yaml.safe_dump(record.cell, sort_keys=False))


class Parts:
    """What a bundle holds, to be changed."""

    def __init__(self, bundle: Path) -> None:
        self.records: list[Json] = []
        self.choices: list[Json] = []
        self._tuned: list[str] = []
        self.evaluations: list[Json] = []
        self.histories: dict[str, str] = {}
        self.weights: dict[str, bytes] = {}
        self.members: dict[str, bytes | None] = {}
        """What is written in place of the above or beside it; None: nothing."""
        with tarfile.open(bundle) as archive:
            for member in archive:
                content = cast("IO[bytes]", archive.extractfile(member)).read()
                match member.name.split("/"):
                    case [_, _, "record.json" | "tuning.json"]:
                        self.records.append(json.loads(content))
                    case [sweep, "tuning_choice.json"]:
                        self.choices.append(json.loads(content))
                        self._tuned.append(sweep)
                    case [_, _, "evaluations", _]:
                        self.evaluations.append(json.loads(content))
                    case [_, _, name] if name.endswith(".jsonl"):
                        self.histories[hashlib.sha256(content).hexdigest()] = content.decode()
                    case [_, _, name] if name.endswith(".pt"):
                        self.weights[hashlib.sha256(content).hexdigest()] = content
        self._choice_sha256 = [choice["sha256"] for choice in self.choices]
        self._evaluated = [
            next(each for each in self.records if each["cell_id"] == later["cell_id"])
            for later in self.evaluations
        ]

    @property
    def final(self) -> list[Json]:
        """The records with scores of the test split."""
        return [record for record in self.records if record["status"] == "done"]

    def score(self, record: Json, name: str = "knn_top1", split: str = "test") -> Json:
        """A score of a record."""
        return next(s for s in record["scores"] if (s["name"], s["split"]) == (name, split))

    def history(self, record: Json, change: Callable[[list[Json]], object]) -> None:
        """Changes a record's history, and the digest of it that the record states."""
        rows = [json.loads(line) for line in self.histories[_history_of(record)].splitlines()]
        change(rows)
        text = "".join(json.dumps(row) + "\n" for row in rows)
        record["metrics"]["sha256"] = hashlib.sha256(text.encode()).hexdigest()
        self.histories[_history_of(record)] = text

    def settle(self, record: Json) -> None:
        """Gives a record the id of its settings."""
        record["cell_id"] = cell_id(record["cell"])
        for later, of in zip(self.evaluations, self._evaluated, strict=True):
            if of is record:
                later["cell_id"] = record["cell_id"]

    def copy(self, record: Json) -> Json:
        """Adds another record that is the same."""
        self.records.append(copy.deepcopy(record))
        return self.records[-1]

    def shorten(self, record: Json, **optimizer: float) -> Json:
        """Adds a training of an epoch less with the settings of a record, but for some of its
        optimizer.
        """
        short = self.copy(record)
        short["checkpoint"] = None
        short["cell"]["epochs"] -= 1
        short["cell"]["optimizer"] |= {"warmup_epochs": 0, **optimizer}
        self.settle(short)
        self.history(short, lambda rows: rows.pop())
        # No two trainings have one history.
        train_s = float(len(self.records))
        self.history(short, lambda rows: [row.update(epoch_s=train_s / len(rows)) for row in rows])
        short["cost"]["train_s"] = train_s
        return short

    def write(self, out: Path, *, signed: bool = True) -> Path:
        """Writes the bundle.

        Args:
            out: Where to.
            signed: Whether records, evaluations and choices get their digests anew.
        """
        if signed:
            anew = {}
            for old, choice in zip(self._choice_sha256, self.choices, strict=False):
                anew[old] = _sign(choice)
            for record in self.records:
                how = record["choice"].get("hyperparameters", {})
                how["sha256"] = anew.get(how.get("sha256"), how.get("sha256"))
                _sign(record)
            for later in self.evaluations:
                _sign(later)
            self._choice_sha256 = [choice["sha256"] for choice in self.choices]
        files: dict[str, bytes | None] = {}
        for record in self.records:
            folder = _folder(record)
            name = "tuning.json" if record["status"] == "tuned" else "record.json"
            files[f"{folder}/{name}"] = _text(record)
            config = yaml.dump(record["cell"], Dumper=yaml.CSafeDumper, sort_keys=False)
            files[f"{folder}/config.yaml"] = config.encode()
            if record["metrics"]:
                metrics = record["metrics"]
                files[f"{folder}/{_named(metrics['file'])}"] = self.histories[
                    metrics["sha256"]
                ].encode()
            if record["checkpoint"] and record["checkpoint"]["sha256"] in self.weights:
                saved = record["checkpoint"]
                files[f"{folder}/{_named(saved['file'])}"] = self.weights[saved["sha256"]]
        for later, record in zip(self.evaluations, self._evaluated, strict=True):
            files[f"{_folder(record)}/evaluations/voc07.json"] = _text(later)
        for choice, sweep in zip(self.choices, self._tuned, strict=False):
            files[f"{sweep}/{TUNING_CHOICE}"] = _text(choice)
        content = {name: each for name, each in (files | self.members).items() if each is not None}
        return write_tar(out, *((tarfile.TarInfo(name), each) for name, each in content.items()))


def set_leaf(found: Any, steps: list[str], value: Any) -> None:
    """Sets or deletes a leaf of JSON; one behind the end of a list is appended."""
    *before, last = steps
    for step in before:
        found = found[_step(found, step)]
    key = _step(found, last)
    if isinstance(key, int) and key == len(found):
        found.append(value)
    elif value == "(deleted)":
        del found[key]
    elif isinstance(value, dict) and "times" in value:
        found[key] *= value["times"]
    else:
        found[key] = value


def _step(found: Any, step: str) -> Any:
    """The key or index that a step of a path stands for: of scores their name and split."""
    if not isinstance(found, list):
        return step
    if "/" in step:
        return [f"{score['name']}/{score['split']}" for score in found].index(step)
    return int(step)


def write_tar(out: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    """Writes a tar.xz of members with their contents; of one that states a size, this alone."""
    with tarfile.open(out, "w:xz", preset=0) as archive:
        for member, content in members:
            if member.size:
                archive.addfile(member)
                continue
            member.size = len(content)
            archive.addfile(member, BytesIO(content))
            member.size = 0
    return out


def _folder(record: Json) -> str:
    return f"{_named(record['sweep'])}/{_named(record['cell_id'])}"


def _named(name: str) -> str:
    """The name; another one in place of what no file may be called."""
    return name if is_name(name) else "0" * 12


def _text(data: Json) -> bytes:
    return json.dumps(data, indent=1, sort_keys=True).encode()


def _history_of(record: Json) -> str:
    return str(record["metrics"]["sha256"])


def _sign(data: Json) -> str:
    data.pop("sha256", None)
    data["sha256"] = digest(data)
    return str(data["sha256"])
