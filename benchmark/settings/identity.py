"""The id of a cell. Nothing here needs torch, or the settings' classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regbench.files import digest

_UNAUGMENTED = {"knn", "probe", "factors", "latents", "voc07", "places205", "labels1", "labels10"}
"""Evaluations whose scores do not depend on the augmentation of pretraining."""


def cell_id(cell: Mapping[str, Any]) -> str:
    """Return twelve hex digits that depend on the content of a cell alone, given as plain data."""
    if "external" in cell:
        # Published weights count by their content: whoever gives them another name scores the same
        # cell.
        deciding = {"weights": cell["external"]["sha256"]}
        for name in ("dataset", "network", "augmentation", "seed", "evaluation"):
            deciding[name] = cell[name]
        return digest(deciding)[:12]
    deciding = dict(cell)
    if "init" in deciding.get("network", {}):
        # Weights count by their content, wherever they lie.
        deciding["network"] = {**deciding["network"]}
        del deciding["network"]["init"]
    # Cells from before this setting keep their ids.
    if deciding.get("micro_batch_size") is None:
        deciding.pop("micro_batch_size", None)
    # Nothing of an untrained network depends on these, but some evaluations look at augmented
    # views.
    if deciding.get("epochs") == 0:
        for name in ("method", "optimizer"):
            deciding.pop(name, None)
        if _UNAUGMENTED.issuperset(deciding.get("evaluation", {}).get("protocols", ())):
            deciding.pop("augmentation", None)
    # Labels replace the method, and logits replace the embeddings.
    if deciding.get("baseline") in ("supervised", "supcon"):
        deciding.pop("method")
    if deciding.get("baseline") == "supervised":
        deciding.pop("embedding_dim")
    return digest(deciding)[:12]


def configuration_id(cell: Mapping[str, Any]) -> str:
    """Return the id that the cells of a configuration share: that of the one with seed 0."""
    return cell_id({**cell, "seed": 0})
