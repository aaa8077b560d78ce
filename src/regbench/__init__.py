"""The neutral, exact and fast benchmark of self-supervised-learning regularizers.

The code lies in the folders at the root of the repository and is imported through this one package
(``regbench.methods``, ``regbench.datasets``, ...), because a top-level package named ``datasets``
would overwrite the one of Hugging Face.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from regbench import api
from regbench.api import *  # noqa: F403
from regbench.errors import RegbenchError
from regbench.version import __version__

__all__ = ["RegbenchError", "__version__", "audit", "methods"]
__all__ += api.__all__


if TYPE_CHECKING:
    from regbench import audit, methods
else:

    def __getattr__(name: str) -> object:
        """Import the other public modules when they are first used: they need torch, which takes
        seconds.
        """
        if name in ("audit", "methods"):
            return importlib.import_module(f"regbench.{name}")
        raise AttributeError(f"module 'regbench' has no attribute {name!r}")
