"""Installs into the environment of the Python that runs this: with uv where it is on the path, else
with pip.

    .venv/bin/python .ci/install.py [--pip] [--extra-index-url URL] -c constraints.txt -e '.[ffcv]'

uv takes a third of pip's time. It reads none of pip's configuration, so it is handed pip's own
indexes, folders of files, constraints and certificate.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys

# Setting of pip -> uv's option, which is repeated for each of several values.
OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--extra-index-url",
    "find-links": "--find-links",
    "constraint": "--constraints",
    "trusted-host": "--allow-insecure-host",
    "cert": "--cert",
}


def options_of_pip() -> list[str]:
    """Return what pip's files and variables configure, as options for uv."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    values: dict[str, list[str]] = {}
    # A variable replaces what a file says, and files come in the order of their weight.
    for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        values[name.rpartition(".")[2]] = ast.literal_eval(value).split()
    options = []
    for setting, option in OPTIONS.items():
        for value in values.get(setting, []):
            options += [option, value]
    return options


def main(arguments: list[str]) -> int:
    """Install; return the status."""
    uv = shutil.which("uv")
    use_pip = "--pip" in arguments or uv is None
    arguments = [argument for argument in arguments if argument != "--pip"]
    # Python compiles what is imported, once. To compile all that is installed would add a quarter
    # to the installation or more. Where Python keeps nothing that it compiles, as in many
    # containers, each start would take four seconds longer.
    compiled = "PYTHONDONTWRITEBYTECODE" in os.environ
    if use_pip:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install"]
        command.append("--compile" if compiled else "--no-compile")
    else:
        # pip takes the newest version that any of the indexes has, uv by itself that of the first.
        command = [
            str(uv),
            "pip",
            "install",
            "--python",
            sys.executable,
            "--index-strategy",
            "unsafe-best-match",
        ]
        command += [*options_of_pip(), *(["--compile-bytecode"] if compiled else [])]
    return subprocess.run([*command, *arguments]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
