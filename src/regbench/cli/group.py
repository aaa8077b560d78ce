"""The group of all commands: errors in one line, exit codes, the log; and `doctor`."""

from __future__ import annotations

import io
import logging
import signal
import sys
from typing import Any

import click

from regbench.errors import RegbenchError
from regbench.text import printable
from regbench.version import __version__

_RESUMED = ("challenge", "embed", "evaluate", "own", "sweep", "train", "tune")


class _Cli(click.Group):
    """Turn refusals into one line and an exit code: 2 for a refusal, 130 for an interruption, 1
    for a failure.
    """

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except RegbenchError as error:
            _fail(ctx, error, str(error), error.exit_code)
        except click.UsageError as error:  # click's own words take several lines
            where = error.ctx.command_path if error.ctx else f"regbench {ctx.invoked_subcommand}"
            _fail(ctx, error, f"{error.format_message()} See: {where} --help", 2)
        except BrokenPipeError:
            raise  # click ends quietly where nobody reads on
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            _fail(ctx, error, f"{where}{error.strerror}" if error.strerror else str(error), 1)
        except (RuntimeError, MemoryError) as error:
            if not _is_out_of_memory(error):
                raise  # a mistake of ours: its traceback is to be reported
            line = f"the memory does not suffice: {error}"
            _fail(ctx, error, f"{line[:200]}; what a run needs is said by: regbench plan", 1)
        except KeyboardInterrupt as error:
            line = "interrupted"
            if ctx.invoked_subcommand in _RESUMED:
                line += "; the same command goes on from here"
            _fail(ctx, error, line, 130)


class _Printable(logging.Formatter):
    """Formats messages, in which names of others may stand, line by line as text that can be
    printed.
    """

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(printable, super().format(record).split("\n")))


def _is_out_of_memory(error: BaseException) -> bool:
    """Return True if a GPU or this machine has no memory left, without the import of torch."""
    if type(error).__name__ in ("MemoryError", "OutOfMemoryError"):
        return True
    # torch's words on the CPU, in a RuntimeError.
    said = ("can't allocate memory", "not enough memory", "Storage size calculation overflowed")
    return any(words in str(error) for words in said)


def _fail(ctx: click.Context, error: BaseException, line: str, code: int) -> None:
    # A user is told in a line, and a developer sees where.
    if ctx.params["debug"]:
        raise error
    click.echo(f"regbench: {printable(' '.join(line.split()))}", err=True)
    ctx.exit(code)


_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True}


@click.group(cls=_Cli, context_settings=_CONTEXT)
@click.version_option(__version__)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """The neutral benchmark of regularizers for self-supervised learning.

    \b
    First steps:
      regbench methods                     what can be compared
      regbench sweep quickstart --report   train seven of them, print the leaderboard
      regbench own FOLDER                  which method suits your own images
      regbench train method=vicreg         one run
      regbench tune quickstart_tuning      choose hyperparameters, then score on the test split
      regbench status quickstart           how a sweep stands
      regbench watch quickstart            its curves as they grow
      regbench report quickstart           tables and page from what is finished
      regbench cost                        what the losses take, in time and memory

    \b
    Shell completion (bash; zsh and fish likewise), in ~/.bashrc:
      eval "$(_REGBENCH_COMPLETE=bash_source regbench)"
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal's encoding may lack a sign
            stream.reconfigure(errors="backslashreplace")
    # Output of a command goes to stdout alone, and its log to stderr.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Printable())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    # SIGTERM acts as Ctrl-C does, so that `kill` and a scheduler end a command as gently.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@main.command()
def doctor() -> None:
    """Show what this machine has and lacks, and how to get it.

    `make gpu` in a clone compares a GPU with the CPU and measures it.
    """
    from tabulate import tabulate

    from regbench.instruments.inventory import inventory

    click.echo(tabulate(list(inventory()), ("", "found", "to have it"), disable_numparse=True))
