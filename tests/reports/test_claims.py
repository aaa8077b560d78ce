"""What `claim_misfits` says of changed bundles, to the line: all that does not fit, and nothing of
what does.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from regbench.errors import RegbenchError
from regbench.reports.bundle.bundle import read_bundle
from regbench.reports.bundle.claims import claim_misfits
from regbench.reports.find.records import read_records
from regbench.reports.rows.grouping import summarize
from regbench.reports.tables.details import tables_of
from regbench.reports.tables.table import to_markdown
from tests.command import run
from tests.reports.conftest import GIVEN
from tests.reports.forging import Json, Parts, set_leaf

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
    """Sets a leaf, such as "final.0.cost.train_s", or "rows.0.loss" of the first final record's
    history; "second" is the first final record with seed 1, and "tried" one that was not chosen.
    """
    name, *steps = path.split(".")
    if name == "rows":
        parts.history(parts.final[0], lambda rows: set_leaf(rows, steps, value))
        return
    named = {
        "second": lambda: next(record for record in parts.final if record["seed"] == 1),
        "tried": lambda: _tried(parts),
    }
    found: Any = named[name]() if name in named else getattr(parts, name)
    set_leaf(found, steps, value)
    if "cell" in steps and name != "records" and path not in UNDER_THE_OLD_ID:
        parts.settle(found if name in named else found[int(steps[0])])


UNDER_THE_OLD_ID = {"final.0.cell.optimizer.weight_decay"}


def rows_of(change: Callable[[list[Json]], object]) -> Change:
    """The change of a history, with the digest that the record states of it."""
    return lambda parts: parts.history(parts.final[0], change)


def _entry(parts: Parts) -> Json:
    found: Json = parts.choices[0]["choices"][0]
    return found


def _tried(parts: Parts, method: str = "vicreg") -> Json:
    """A record that was tuned and not chosen."""
    return next(one for one in parts.records if (one["method"], one["status"]) == (method, "tuned"))


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


def _published(parts: Parts, status: str = "done", **changes: object) -> None:
    cell: Json = dict.fromkeys(
        ("embedding_dim", "batch_size", "micro_batch_size", "epochs", "precision", "optimizer")
    )
    cell |= {"method": {"name": "external"}, "external": {"source": "a.pt", "sha256": "0" * 64}}
    _reference(parts, **cell | changes).update(label="published", method="external", status=status)


def _stopped_higher(parts: Parts) -> None:
    """Adds to each method the first epoch of a training, which scored more than others after
    two.
    """
    for entry in parts.choices[0]["choices"]:
        short = parts.shorten(_tried(parts, entry["method"]), base_lr=0.7)
        parts.score(short, split="tuning")["value"] = 80.0
        step = dict.fromkeys(("cell_id", "configuration"), short["cell_id"])
        step |= {"epochs": 1, "status": "stopped", "value": 80.0}
        entry["ranking"].append({**entry["ranking"][0], **step})
    _budget(parts, 3)


def _several_seeds(parts: Parts) -> None:
    parts.choices[0]["seeds"] = [0, 1]
    other = next(each for each in parts.final if (each["method"], each["seed"]) == ("vicreg", 1))
    _entry(parts)["chosen"] = _entry(parts)["ranking"][0]["cell_id"] = other["cell_id"]


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
    wanted = (1000, "vicreg", best["hyperparameters"]["optimizer.base_lr"])
    for record in parts.records:
        rate = record["cell"]["optimizer"]["base_lr"]
        if (record["seed"], record["method"], rate) == wanted:
            parts.score(record, split="tuning")["value"] = 90.0


def _another_seed(parts: Parts) -> None:
    made = parts.copy(parts.final[0])
    made["seed"] = made["cell"]["seed"] = 7
    parts.settle(made)


def _worse_chosen(parts: Parts) -> None:
    entry = _entry(parts)
    entry["ranking"].reverse()
    entry["chosen"] = entry["configuration"] = entry["ranking"][0]["cell_id"]


def _budget(parts: Parts, number: int) -> None:
    parts.choices[0]["budget"] = number
    for record in parts.final:
        record["choice"]["hyperparameters"]["budget"] = number


def _invented(parts: Parts) -> None:
    for entry in parts.choices[0]["choices"]:
        step = dict.fromkeys(("cell_id", "configuration"), "0" * 12)
        entry["ranking"].append({**entry["ranking"][1], **step, "value": 60.0})
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
    _worse_chosen(parts)
    _entry(parts)["ranking"][1]["status"] = "stopped"


def _diverged(parts: Parts, *, history: bool) -> None:
    record = parts.final[-1]
    record |= {"status": "diverged", "scores": [], "choice": {}, "checkpoint": None}
    parts.history(record, lambda rows: rows.pop())
    if not history:
        record["metrics"] = None


def _other_weights(parts: Parts) -> None:
    parts.weights[next(iter(parts.weights))] = b"others"


def _other_loss(parts: Parts) -> None:
    sha256, text = next(iter(parts.histories.items()))
    parts.histories[sha256] = text.replace('"loss": 5.0', '"loss": 1.0')


def _other_config(parts: Parts) -> None:
    record = parts.final[0]
    parts.members[f"mine/{record['cell_id']}/config.yaml"] = b"epochs: 3"


def _others_weights(parts: Parts) -> None:
    one, *others = parts.final
    other = next(each for each in others if each["method"] == one["method"])
    one["checkpoint"] = other["checkpoint"]


def _hidden_behind_an_order(parts: Parts) -> None:
    _hidden(parts)
    entry = parts.choices[0]["choices"][1]
    entry["setting"] = dict(reversed(entry["setting"].items()))


def _hidden_in_another_setting(parts: Parts) -> None:
    _hidden(parts)
    parts.choices[0]["choices"][1]["setting"]["batch_size"] = 64


def _shorter_searches(parts: Parts, rates: Sequence[tuple[str, float]]) -> None:
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


BY_CODE: dict[str, Change] = {
    "published weights": _published,
    "published weights of a tuning": partial(_published, status="tuned"),
    "published weights as an untrained network": partial(_published, epochs=0),
    "published weights as a network with labels": partial(_published, baseline="supervised"),
    "an untrained network": _untrained,
    "a training that was stopped while it was the best": _stopped_higher,
    "a search that stopped one of each method": partial(
        _shorter_searches, rates=(("vicreg", 0.1), ("auh", 0.1))
    ),
    "a cell of any of the seeds as the chosen one": _several_seeds,
    "values of seeds that a tuning did not have": _other_seeds_value,
    "a configuration of which a seed diverged": _diverged_seed,
    "a run that diverged": partial(_diverged, history=True),
    "a run that diverged in its first epoch": partial(_diverged, history=False),
    "a tuning that is repeated": _repeated,
    "a smaller budget in another setting": _hidden_in_another_setting,
    "a history, under the old digest": _other_loss,
    "other weights, under the old digest": _other_weights,
    "a file that does not belong there": lambda parts: parts.members.update({"mine/x.json": b"{}"}),
    "other settings beside the record": _other_config,
    "the same cell in two sweeps": lambda parts: parts.copy(parts.final[0]).update(sweep="other"),
    "one run as two seeds": _another_seed,
    "weights of another seed": _others_weights,
    "a worse configuration as chosen": _worse_chosen,
    "a configuration never tried": _invented,
    "a larger budget than there was": partial(_budget, number=12),
    "a smaller budget for one method": _hidden_behind_an_order,
    "fewer epochs for one method": partial(
        _shorter_searches, rates=(("vicreg", 0.1), ("vicreg", 0.2), ("auh", 0.1))
    ),
    "a configuration ranked twice": _ranked_twice,
    "a configuration of another method": _lent,
    "a full training called stopped": _stopped,
    "a final run of what another search chose": _repeated_otherwise,
    "a score twice": _twice,
}
"""Changes of more than a few leaves."""

CHANGES = yaml.safe_load(Path(__file__).with_name("forgeries.yaml").read_text())
OUTCOME = {"fits": 0, "does not fit": 1, "no bundle": 2}
CASES = [(outcome, name) for outcome, changes in CHANGES.items() for name in changes]


@pytest.mark.parametrize(("outcome", "name"), CASES)
def test_what_does_not_fit_is_told_and_nothing_else(
    outcome: str, name: str, honest: Path, tmp_path: Path
) -> None:
    case = CHANGES[outcome][name]

    def change(parts: Parts) -> None:
        for path, value in case.get("set", {}).items():
            set_at(parts, path, value)
        if name in BY_CODE:
            BY_CODE[name](parts)

    code, lines = verify(change, honest, tmp_path)
    reasons = case.get("told", [])
    assert (code, len(lines)) == (OUTCOME[outcome], len(reasons)), lines
    assert all(map(re.search, reasons, lines)), lines


def test_every_forgery_changes_something() -> None:
    names = {name for _, name in CASES}
    unchanged = {name for outcome, name in CASES if "set" not in CHANGES[outcome][name]}
    assert unchanged - {*BY_CODE} == {"nothing changed"} and {*BY_CODE} <= names


# ------------------------------------------------------------------ a forger who draws

UNCHECKED = {
    "choices.*.choices.*.images": "the note on a tuning shows it as it was counted there",
    "choices.*.choices.*.method": "tables have the records' method",
    "choices.*.choices.*.ranking.*.cell_id": "the configuration beside it says what was tried",
    "choices.*.choices.*.setting.*": "a task is what the records say; only equal settings matter",
    "choices.*.choices.*.ranking.*.hyperparameters.*": "tables have those of the records",
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
    if not isinstance(value, dict | list):
        yield path
        return
    for key, each in value.items() if isinstance(value, dict) else enumerate(value):
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
    for name in ("records", "choices", "evaluations"):
        for path in leaves(getattr(parts, name), (name,)):
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
