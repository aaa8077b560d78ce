"""The neutral, exact and fast benchmark of self-supervised-learning regularizers.

The code lies in the folders at the root of the repository and is imported through this one package
(``regbench.methods``, ``regbench.datasets``, ...), because a top-level package named ``datasets`` would
overwrite the one of Hugging Face.
"""

from __future__ import annotations

from importlib.metadata import version

__all__ = ["RegbenchError", "__version__"]

__version__: str = version("regbench")


class RegbenchError(Exception):
    """A refusal: something the user gave cannot be done.

    The message is one line that says what is wrong, where, and what to do about it. The command line prints
    it without a traceback and leaves with exit code 2. A defect of regbench itself is never raised as this.
    """
