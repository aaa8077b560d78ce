"""Checks of what a regularizer declares: its hyperparameters and its documentation."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import asdict

from regbench import methods
from regbench.benchmark.settings.architecture import needed_settings
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.sweep import load_run
from regbench.instruments.loss_checks import Outcome
from regbench.methods import Regularizer


def configuration(method: Regularizer) -> Outcome:
    """Return the number of hyperparameters that do not come back from Hydra overrides and from
    a cell's JSON.
    """
    values = asdict(method)  # type: ignore[call-overload]
    overrides = [f"method.{key}={_hydra(value)}" for key, value in values.items()]
    cell, _ = load_run(
        [f"method={methods.registry_name(method)}", *overrides, *needed_settings(method)]
    )
    # Through text and back, since a cell's file has JSON's types: a tuple comes back as a list.
    again = Cell.stored(json.loads(json.dumps(cell.plain())))
    lost = []
    for back in (cell.method, again.method):
        for key, value in values.items():
            if getattr(back, key) != value:
                lost.append(f"{key}={value!r} came back as {getattr(back, key)!r}")
    return len(lost), ", ".join(lost)


def _hydra(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{','.join(map(_hydra, value))}]"
    return json.dumps(value) if isinstance(value, bool) else str(value)


def documentation(method: Regularizer) -> Outcome:
    """Return the number of things that the docstring and the metadata leave out."""
    data, text = method.metadata, type(method).__doc__ or ""
    year = re.compile(r"\b(19|20)\d\d\b")
    published = "unpublished" not in data.reference.lower()
    # A setting that a base class brings is documented there.
    inherited = "\n".join(base.__doc__ or "" for base in type(method).__mro__)
    shapes = all(name.endswith("_NQ") for name in inspect.signature(method.terms).parameters)
    wanted = {}
    for name in ("title", "reference", "formula", "time", "memory", "published"):
        wanted[f"metadata.{name}"] = getattr(data, name)
    wanted["metadata.url with https://"] = data.url.startswith("https://") or not published
    wanted['a year, or "unpublished", in metadata.reference'] = (
        year.search(data.reference) or not published
    )
    wanted["the source with its year in the docstring"] = year.search(text) or not published
    for name in asdict(method):  # type: ignore[call-overload]
        wanted[f"{name} under Attributes"] = re.search(rf"^\s+{name}: ", inherited, re.MULTILINE)
    wanted["the shapes in terms"] = shapes or "(n, q)" in (method.terms.__doc__ or "")
    missing = [name for name, there in wanted.items() if not there]
    return len(missing), ", ".join(missing)
