"""What changes a bundle and computes every digest anew."""

from __future__ import annotations

import copy
import hashlib
import json
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import IO, Any, cast

import yaml

from regbench.benchmark.rundir.tuning_choice import TUNING_CHOICE
from regbench.benchmark.settings.identity import cell_id
from regbench.files import digest
from regbench.text import is_name

Json = dict[str, Any]


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
            if metrics := record["metrics"]:
                history = self.histories[metrics["sha256"]]
                files[f"{folder}/{_named(metrics['file'])}"] = history.encode()
            if (saved := record["checkpoint"]) and saved["sha256"] in self.weights:
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
