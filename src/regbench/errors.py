"""The one exception that users see."""

from __future__ import annotations

from typing import ClassVar


class RegbenchError(Exception):
    """A refusal: something the user gave cannot be done.

    The message is one line that says what is wrong, where, and what to do about it. The command
    line prints it without a traceback. A defect of regbench itself is never raised as this.
    Whatever reads what a user gave may raise it, so docstrings name it only in the public
    interface.
    """

    exit_code: ClassVar[int] = 2
    """The exit code of a command that raises it."""
