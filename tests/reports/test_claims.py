"""What `claim_misfits` says of changed bundles, to the line: all that does not fit, and nothing
of what does.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from regbench.benchmark.rundir.tuning_choice import TUNING_CHOICE
from regbench.reports.bundle.bundle import read_bundle
from regbench.reports.bundle.claims import claim_misfits
from regbench.reports.bundle.pack import submit
from tests.reports.conftest import GIVEN
from tests.reports.forging import Json, Parts, tuned_sweep
from tests.reports.test_bundle import FORGERIES

Change = Callable[[Parts], Any]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a tuning."""
    folder = tmp_path_factory.mktemp("honest")
    submit([tuned_sweep(folder / "runs")], folder / "lab.tar.xz")
    return folder / "lab.tar.xz"


def told(change: Change, honest: Path, folder: Path) -> list[str]:
    """What does not fit, without the paths, which are of files of the bundle."""
    parts = Parts(honest)
    change(parts)
    bundle = read_bundle(parts.write(folder / "changed.tar.xz"))
    lines = [line.partition(": ") for line in claim_misfits(bundle)]
    assert {path for path, _, _ in lines} <= {
        TUNING_CHOICE,
        *(str(record.path) for record in bundle.records),
    }
    return [reason for _, _, reason in lines]


def _entry(parts: Parts) -> Json:
    found: Json = parts.choices[0]["choices"][0]
    return found


def _first(parts: Parts) -> Json:
    """The best of a ranking."""
    found: Json = _entry(parts)["ranking"][0]
    return found


def _tried(parts: Parts, method: str = "vicreg") -> Json:
    """A record that was tuned and not chosen."""
    return next(
        record
        for record in parts.records
        if (record["method"], record["status"]) == (method, "tuned")
    )


def _how(record: Json) -> Json:
    found: Json = record["choice"]["hyperparameters"]
    return found


def _was_chosen(parts: Parts, **changes: object) -> None:
    """Lets a final record say otherwise how its hyperparameters were chosen."""
    parts.final[0]["choice"]["hyperparameters"] = GIVEN | changes


def _reference(parts: Parts, **cell: object) -> Json:
    """Adds a record that no tuning has chosen, with other settings."""
    made = parts.copy(parts.final[0])
    made |= {"metrics": None, "checkpoint": None, "choice": {"hyperparameters": dict(GIVEN)}}
    made["cell"] |= cell
    parts.settle(made)
    return made


def _untrained(parts: Parts) -> None:
    _reference(parts, epochs=0)["label"] = "untrained"
    made = parts.records[-1]
    made["cell"]["optimizer"] |= {"warmup_epochs": 0}
    parts.settle(made)


def _published(parts: Parts) -> None:
    nothing = dict.fromkeys(
        ("embedding_dim", "batch_size", "micro_batch_size", "epochs", "precision", "optimizer")
    )
    cell = {
        **nothing,
        "method": {"name": "external"},
        "external": {"source": "a.pt", "sha256": "0" * 64},
    }
    _reference(parts, **cell).update(label="published", method="external")


def _began(parts: Parts, time: str | None, attempts: slice = slice(None)) -> None:
    for attempt in parts.final[0]["attempts"][attempts]:
        attempt["started"] = time


def _created(parts: Parts, time: str) -> None:
    parts.choices[0]["created"] = time


def _stopped_higher(parts: Parts) -> None:
    """Adds to each method the first epoch of a training, which scored more than others after
    two.
    """
    for entry in parts.choices[0]["choices"]:
        short = parts.shorten(_tried(parts, entry["method"]), base_lr=0.7)
        parts.score(short, split="tuning")["value"] = 80.0
        step = {
            **entry["ranking"][0],
            "cell_id": short["cell_id"],
            "configuration": short["cell_id"],
        }
        entry["ranking"].append({**step, "epochs": 1, "status": "stopped", "value": 80.0})
    parts.choices[0]["budget"] = 3
    for record in parts.final:
        _how(record)["budget"] = 3


def _several_seeds(parts: Parts) -> None:
    parts.choices[0]["seeds"] = [0, 1]
    other = next(
        record for record in parts.final if record["method"] == "vicreg" and record["seed"] == 1
    )
    _entry(parts)["chosen"] = _first(parts)["cell_id"] = other["cell_id"]


def _set_loss(rows: list[Json], loss: float) -> None:
    rows[0]["loss"] = loss


def _repeated(parts: Parts) -> None:
    """Repeats the tuning with a second seed, in which all score one point more."""
    parts.choices[0]["seeds"] = [0, 1000]
    for entry in tuple(parts.choices[0]["choices"]):
        again = copy.deepcopy(entry)
        entry["setting"]["search"], again["setting"]["search"] = 0, 1
        for ranked in again["ranking"]:
            ranked["value"] += 1.0
        parts.choices[0]["choices"].append(again)
    for number, record in enumerate([each for each in parts.records if each["seed"] == 0]):
        other = parts.copy(record)
        other |= {"seed": 1000, "checkpoint": None}
        other["cell"]["seed"] = 1000
        parts.settle(other)
        parts.history(other, partial(_set_loss, loss=100.0 + number))
        parts.score(other, split="tuning")["value"] += 1.0


def _repeated_otherwise(parts: Parts) -> None:
    """Lets the second search of one method prefer what the first did not."""
    _repeated(parts)
    entry = next(each for each in parts.choices[0]["choices"][2:] if each["label"] == "VICReg")
    entry["ranking"].reverse()
    best = entry["ranking"][0]
    best["value"] = 90.0
    entry["chosen"] = entry["configuration"] = best["cell_id"]
    rate = best["hyperparameters"]["optimizer.base_lr"]
    for record in parts.records:
        same = (record["seed"], record["method"], record["cell"]["optimizer"]["base_lr"]) == (
            1000,
            "vicreg",
            rate,
        )
        if same:
            parts.score(record, split="tuning")["value"] = 90.0


def _never(parts: Parts) -> None:
    for ranked in _entry(parts)["ranking"]:
        ranked |= {"status": "diverged", "value": None}


def _valueless(parts: Parts) -> None:
    for ranked in _entry(parts)["ranking"]:
        ranked["value"] = None


def _other_rate(parts: Parts) -> None:
    record = next(record for record in parts.final if record["seed"] == 1)
    record["cell"]["optimizer"]["base_lr"] = 0.2
    parts.settle(record)


def _unmeasured(parts: Parts) -> None:
    _tried(parts)["scores"].clear()


def _hidden_behind_an_order(parts: Parts) -> None:
    FORGERIES["a smaller budget for one method"][0](parts)
    entry = parts.choices[0]["choices"][1]
    entry["setting"] = dict(reversed(entry["setting"].items()))


def _hidden_in_another_setting(parts: Parts) -> None:
    FORGERIES["a smaller budget for one method"][0](parts)
    parts.choices[0]["choices"][1]["setting"]["batch_size"] = 64


def _rate(parts: Parts, chosen: object, candidates: object) -> None:
    parts.final[0]["choice"]["probe_learning_rate"].update(chosen=chosen, candidates=candidates)


def _top(parts: Parts, **values: float) -> None:
    for name, value in values.items():
        parts.score(parts.final[0], name)["value"] = value


def _diverged(parts: Parts, *, history: bool) -> None:
    record = parts.final[-1]
    record |= {"status": "diverged", "scores": [], "choice": {}, "checkpoint": None}
    parts.history(record, lambda rows: rows.pop())
    if not history:
        record["metrics"] = None


def _cost(parts: Parts, factor: float) -> None:
    parts.final[0]["cost"]["train_s"] *= factor


def _command(parts: Parts, text: str) -> None:
    parts.final[0]["command"] = text


def _in_words(record: Json, parts: Parts) -> None:
    del parts.histories[record["metrics"]["sha256"]]
    record["metrics"]["sha256"] = hashlib.sha256(b"words").hexdigest()
    parts.histories[record["metrics"]["sha256"]] = "words"


def _set_cell(parts: Parts, **settings: object) -> None:
    record = next(record for record in parts.final if record["seed"] == 1)
    record["cell"] |= settings
    parts.settle(record)


def _row(parts: Parts, row: Any) -> None:
    """Lets the last line of a history be something else."""
    parts.history(parts.final[0], lambda rows: rows.__setitem__(-1, row))


HONEST: dict[str, Change] = {
    "nothing changed": lambda parts: None,
    "published weights": _published,
    "an untrained network": _untrained,
    "an attempt of which nobody knows when it began": lambda parts: _began(parts, None, slice(1)),
    "a choice five minutes late by another clock": lambda parts: _created(
        parts, "2026-11-22T07:05:00+00:00"
    ),
    "a choice five minutes early by another clock": lambda parts: _created(
        parts, "2026-11-22T01:25:00+00:00"
    ),
    "a training that was stopped while it was the best": _stopped_higher,
    "a cell of any of the seeds as the chosen one": _several_seeds,
    "a run that diverged": lambda parts: _diverged(parts, history=True),
    "a run that diverged in its first epoch": lambda parts: _diverged(parts, history=False),
    "an attempt that was killed": lambda parts: parts.final[0]["attempts"][0].update(finished=None),
    "a history that does not count images": lambda parts: parts.history(
        parts.final[0], lambda rows: rows[0].pop("images")
    ),
    "a training time with six digits": lambda parts: _cost(parts, 1 + 9e-6),
    "no weights": lambda parts: parts.final[0].update(checkpoint=None),
    "top-1 that is top-5": lambda parts: _top(parts, knn_top1=90.0),
    "top-1 above the top-5 of another split": lambda parts: _top(
        parts, knn_top1=95.0, knn_top5=96.0
    ),
    "one of two equally good rates": lambda parts: _rate(parts, 0.1, {"0.5": 65.0, "0.1": 65.0}),
    "a rate beside one that diverged": lambda parts: _rate(parts, 0.1, {"0.5": None, "0.1": 65.0}),
    "a small rate": lambda parts: _rate(parts, 1e-05, {"0.5": 64.0, "1e-05": 65.0}),
    "a whole number as the rate": lambda parts: _rate(parts, 1, {"0.5": 64.0, "1": 65.0}),
    "several numbers chosen at once": lambda parts: _rate(parts, [1, 2], {"0.5": 64.0, "1": 65.0}),
    "candidates without scores": lambda parts: _rate(parts, 1, [0.5, 1]),
    "no candidate": lambda parts: _rate(parts, 1, {}),
    "a command with a quoted word": lambda parts: _command(parts, "regbench train 'a b'"),
    "a tuning that is repeated": _repeated,
    "a smaller budget in another setting": _hidden_in_another_setting,
    "the last bits of a mean": lambda parts: _first(parts).update(value=70.0 + 1e-9),
}


@pytest.mark.parametrize("name", HONEST)
def test_what_fits_is_not_refused(name: str, honest: Path, tmp_path: Path) -> None:
    assert told(HONEST[name], honest, tmp_path) == []


LATE = "its last attempt began at 2026-11-22T07:00:00.*, before its tuning chose at"
OTHERS = "its tuning has chosen other hyperparameters"

NO_COMMAND = ["is no command of regbench alone"]
NO_RUN = "holds what no run writes"

MISFITS: dict[str, tuple[Change, list[str]]] = {
    "no word on what was chosen": (
        lambda parts: parts.final[0]["choice"].clear(),
        ["nothing says how its hyperparameters were chosen", "the tuning mine has not chosen it"],
    ),
    "another program's command": (lambda parts: _command(parts, "curl regbench"), NO_COMMAND),
    "a command with an open quote": (lambda parts: _command(parts, "regbench 'train"), NO_COMMAND),
    "a command in unusual spelling": (lambda parts: _command(parts, "regbench  train"), NO_COMMAND),
    "a command that cannot be read": (
        lambda parts: _command(parts, "regbench '\u202e'"),
        NO_COMMAND,
    ),
    "a beginning of another kind": (
        lambda parts: _began(parts, "2026-11-22T03:30:00+14:00", slice(1)),
        ["2026-11-22T03:30:00.14:00 is not a time as runs write it"],
    ),
    "a beginning in another spelling": (
        lambda parts: _began(parts, "2026-11-22 03:30:00+00:00", slice(1)),
        ["2026-11-22 03:30:00.00:00 is not a time as runs write it"],
    ),
    "a beginning in words": (
        lambda parts: _began(parts, "+00:00", slice(1)),
        ["^.00:00 is not a time as runs write it"],
    ),
    "no attempt": (
        lambda parts: parts.final[0]["attempts"].clear(),
        [
            "its last attempt ended at no time",
            "its last attempt began at no time, before its tuning chose",
        ],
    ),
    "chosen on tuning, called test": (
        lambda parts: _how(parts.final[0]).update(selected_on="test"),
        ["its settings choose on the tuning split, its choice says 'test'"],
    ),
    "a rate that was never tried": (
        lambda parts: _rate(parts, 0.3, {"0.1": 60.0, "0.5": 65.0}),
        ["its probe learning rate is 0.3, though 0.5 scored higher"],
    ),
    "a larger rate that was worse": (
        lambda parts: _rate(parts, 0.5, {"0.1": 65.0, "0.5": 60.0}),
        ["its probe learning rate is 0.5, though 0.1 scored higher"],
    ),
    "top-1 above the top-5 of the tuning split": (
        lambda parts: parts.score(_tried(parts), "knn_top5", "tuning").update(value=50.0),
        ["knn_top1 on tuning is 66 %, more than its top-5 of 50 %"],
    ),
    "a training that was only tuned, without a history": (
        lambda parts: _tried(parts).update(metrics=None),
        ["it has trained and names no history"],
    ),
    "no training time": (
        lambda parts: parts.final[0]["cost"].update(train_s=None),
        ["its training took None s, the epochs of its history"],
    ),
    "a training time that differs in the fifth digit": (
        lambda parts: _cost(parts, 1 + 1.1e-5),
        ["its training took .* s, the epochs of its history"],
    ),
    "weights of more steps": (
        lambda parts: parts.final[0]["checkpoint"].update(step=7),
        ["its 7 steps of 32 images are not the 192 of its history"],
    ),
    "a history with a number for a line": (lambda parts: _row(parts, 3), [f"{NO_RUN} .TypeError"]),
    "a history without its epochs": (lambda parts: _row(parts, {}), [f"{NO_RUN} .KeyError"]),
    "a history with words for seconds": (
        lambda parts: _row(parts, {"epoch": 2, "epoch_s": "x"}),
        [f"{NO_RUN} .TypeError"],
    ),
    "a history in words": (
        lambda parts: _in_words(parts.final[0], parts),
        [f"{NO_RUN} .ValueError"],
    ),
    "an evaluation that is a number": (
        lambda parts: _set_cell(parts, evaluation=3),
        ["its settings are none of a run of this version", f"{NO_RUN} .AttributeError", OTHERS],
    ),
    "a history with seconds beyond all numbers": (
        lambda parts: parts.history(
            parts.final[0], lambda rows: [row.update(epoch_s=1e308) for row in rows]
        ),
        [f"{NO_RUN} .OverflowError"],
    ),
    "a budget without a choice": (
        lambda parts: _was_chosen(parts, budget=2),
        ["its hyperparameters were chosen, and it names no choice"],
    ),
    "a split without a choice": (
        lambda parts: _was_chosen(parts, selected_on="tuning"),
        ["its hyperparameters were chosen, and it names no choice"],
    ),
    "a larger budget in one record": (
        lambda parts: _how(parts.final[0]).update(budget=12),
        ["it claims a choice among 12 by knn_top1, its tuning chose among 2 by knn_top1"],
    ),
    "a final run of another configuration": (_other_rate, [OTHERS]),
    "a final run of what another search chose": (_repeated_otherwise, [OTHERS]),
    "attempts that began at no time": (
        lambda parts: _began(parts, None),
        ["its last attempt began at no time, before its tuning chose at"],
    ),
    "a choice more than five minutes late": (
        lambda parts: _created(parts, "2026-11-22T07:05:01+00:00"),
        4 * [LATE],
    ),
    "a choice more than five minutes early": (
        lambda parts: _created(parts, "2026-11-22T01:24:59+00:00"),
        2 * ["was finished after the choice"],
    ),
    "a choice at no time": (
        lambda parts: _created(parts, "soon"),
        [*(2 * ["was finished after the choice"]), *(4 * ["before its tuning chose at soon"])],
    ),
    "a choice without a time zone": (
        lambda parts: _created(parts, "2026-11-22T06:00:00"),
        [*(2 * ["was finished after the choice"]), *(4 * [LATE])],
    ),
    "nothing but divergences": (_never, ["nothing was tried to the end for VICReg"]),
    "nothing but trainings without a value": (
        _valueless,
        ["nothing was tried to the end for VICReg"],
    ),
    "another cell as chosen": (
        lambda parts: _entry(parts).update(chosen="0" * 12),
        ["000000000000 was chosen for VICReg, though 4b97c4a2fd8b scored higher"],
    ),
    "another configuration as chosen": (
        lambda parts: _entry(parts).update(configuration="0" * 12),
        ["4b97c4a2fd8b was chosen for VICReg, though 4b97c4a2fd8b scored higher", OTHERS, OTHERS],
    ),
    "another cell as the best": (
        lambda parts: _first(parts).update(cell_id="0" * 12),
        ["4b97c4a2fd8b was chosen for VICReg, though 000000000000 scored higher"],
    ),
    "fewer epochs in the ranking": (
        lambda parts: _first(parts).update(epochs=1),
        ["ranked for VICReg after 1 epochs, trained for 2"],
    ),
    "no value in the ranking": (
        lambda parts: _entry(parts)["ranking"][1].update(value=None),
        ["ranked for VICReg with None, has 66.0 in its records"],
    ),
    "no score in the record": (
        _unmeasured,
        ["ranked for VICReg with 66.0, has None in its records"],
    ),
    "a choice that says nothing of epochs": (
        lambda parts: _entry(parts)["setting"].pop("epochs"),
        [f"{NO_RUN} .KeyError"],
    ),
    "a choice of nothing": (
        lambda parts: parts.choices[0]["choices"].clear(),
        ["it claims a budget of 2, and its longest ranking has 0", *(4 * [OTHERS])],
    ),
    "a smaller budget for one method, its setting told in another order": (
        _hidden_behind_an_order,
        ["the methods had unequal budgets, in configurations: VICReg 2, AUH 1"],
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit_is_told_and_nothing_else(
    name: str, honest: Path, tmp_path: Path
) -> None:
    change, reasons = MISFITS[name]
    lines = told(change, honest, tmp_path)
    assert len(lines) == len(reasons), lines
    assert all(map(re.search, reasons, lines)), lines
