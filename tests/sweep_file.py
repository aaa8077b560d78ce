"""The file of a sweep of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml


def write_sweep(path: Path, common: Sequence[str], cells: Sequence[str], **more: Any) -> Path:
    """Write rows of cells, with settings that are common to all of them."""
    content = {"description": "My own", "common": [*common], "cells": [*cells], **more}
    path.write_text(yaml.safe_dump(content))
    return path
