"""What `make install` calls, on machines that are pretended: their PATH holds nothing but the
commands written here.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.there import there

ROOT = Path(__file__).resolve().parents[2]

BARE = "*version_info*) echo 3.12 ;; *base_prefix*) exit 0 ;; *) exit 1 ;;"
BARE_BUT_NOT_THE_DISTRIBUTIONS = "*version_info*) echo 3.12 ;; *) exit 1 ;;"
COMPLETE = "*version_info*) echo 3.12 ;; *) exit 0 ;;"


@dataclass(frozen=True)
class Machine:
    """A folder of commands; each writes a line to `log` when it is called."""

    folder: Path

    @property
    def log(self) -> list[str]:
        log = self.folder / "log"
        return log.read_text().splitlines() if log.exists() else []

    def command(self, name: str, body: str = "", logged: bool = True) -> None:
        line = f'echo "{name} $*" >>"{self.folder}/log"\n' if logged else ""
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{line}{body}\n")
        path.chmod(0o755)

    def python(self, cases: str) -> None:
        self.command("python3", f"case $2 in {cases} esac", logged=False)

    def run(self, ffcv: str = "1") -> subprocess.CompletedProcess[str]:
        command: list[str | Path] = [ROOT / ".ci" / "system-packages", "python3", ffcv]
        how: Any = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
        return subprocess.run(command, env={"PATH": str(self.folder)}, **how)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A bare Debian without sudo; root."""
    machine = Machine(tmp_path)
    machine.python(BARE)
    machine.command("id", "echo 0", logged=False)
    machine.command("apt-get")
    (tmp_path / "env").symlink_to(there(shutil.which("env")))
    return machine


def test_root_installs_what_is_missing(machine: Machine) -> None:
    done = machine.run()
    assert (done.returncode, done.stderr) == (0, "")
    update, install = machine.log[:2]
    assert update.split()[-1] == "update"
    packages = install.partition("--no-install-recommends ")[2].split()
    needed = {"python3.12-venv", "python3.12-dev", "g++", "pkg-config"}
    assert needed | {"libturbojpeg0-dev", "libgl1"} <= set(packages)


def test_without_ffcv_only_venv_is_needed(machine: Machine) -> None:
    assert machine.run(ffcv="0").returncode == 0
    assert machine.log[1].endswith("--no-install-recommends python3.12-venv")


def test_what_is_there_is_not_installed(machine: Machine) -> None:
    machine.python(COMPLETE)
    machine.command("g++", logged=False)
    machine.command("pkg-config", logged=False)
    machine.command("id", "echo 1000", logged=False)
    done = machine.run()
    assert (done.returncode, done.stdout, done.stderr, machine.log) == (0, "", "", [])


@pytest.mark.parametrize("sudo", ["absent", "asks for a password"])
def test_user_without_rights_gets_the_command_in_one_line(machine: Machine, sudo: str) -> None:
    machine.command("id", "echo 1000", logged=False)
    if sudo != "absent":
        machine.command("sudo", "exit 1", logged=False)
    done = machine.run()
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert "apt-get install -y python3.12-venv python3.12-dev g++" in line and "FFCV=0" in line
    assert machine.log == []


def test_user_with_sudo(machine: Machine) -> None:
    machine.command("id", "echo 1000", logged=False)
    machine.command("sudo", 'if [ "$1" = -n ]; then exit 0; fi; exec "$@"')
    assert machine.run().returncode == 0
    assert any(line.startswith("apt-get") and "libgl1" in line for line in machine.log)


def test_failing_installation_stops_with_the_command(machine: Machine) -> None:
    machine.command("apt-get", "case $* in *install*) exit 100 ;; esac")
    done = machine.run()
    assert done.returncode == 1
    assert "As root: apt-get update && apt-get install -y python3.12-venv" in done.stderr


def test_missing_data_set_package_is_no_failure(machine: Machine) -> None:
    machine.command("apt-get", "case $* in *dataset-*) exit 100 ;; esac")
    assert machine.run().returncode == 0


def test_incomplete_python_of_the_users_own_is_refused(machine: Machine) -> None:
    machine.python(BARE_BUT_NOT_THE_DISTRIBUTIONS)
    done = machine.run()
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "PYTHON=/path/to/python3" in line
    assert machine.log == []


def copy_what_installs(clone: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, clone)
    shutil.copytree(ROOT / ".ci", clone / ".ci")


def make_install(clone: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "install", *options]
    return subprocess.run(command, cwd=clone, capture_output=True, text=True)


def assert_refused(clone: Path, said: str, *options: str) -> None:
    done = make_install(clone, *options)
    assert done.returncode == 2
    assert done.stderr.startswith(f"make: {said}")
    assert not (clone / ".venv").exists()


@pytest.mark.parametrize("python", ["too old", "absent"])
def test_make_refuses_another_python(tmp_path: Path, python: str) -> None:
    copy_what_installs(tmp_path)
    machine = Machine(tmp_path)
    if python == "too old":
        machine.command("some-python", "exit 1", logged=False)
    said = f"regbench needs Python 3.11 or later and '{tmp_path}/some-python' is not"
    assert_refused(tmp_path, said, f"PYTHON={tmp_path}/some-python")


def test_uv_gets_what_pip_is_configured_with(machine: Machine) -> None:
    machine.command("uv", "exit 3")
    # A variable replaces the line of a file.
    (machine.folder / "pip.conf").write_text("[global]\nfind-links = /of/the/file\ntimeout = 60\n")
    configured = {"PIP_CONFIG_FILE": f"{machine.folder}/pip.conf", "PIP_FIND_LINKS": "/one /two"}
    configured |= {"PIP_INDEX_URL": "file:///first", "PIP_EXTRA_INDEX_URL": "file:///second"}
    configured["PATH"] = str(machine.folder)
    command = [sys.executable, f"{ROOT}/.ci/install.py", "-q", "-e", "."]
    done = subprocess.run(command, env=configured, capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
    (line,) = machine.log
    assert line.startswith(f"uv pip install --python {sys.executable} ")
    indices = "--default-index file:///first --extra-index-url file:///second"
    assert f" {indices} --find-links /one --find-links /two " in line
    assert line.endswith(" -q -e .")


PRETENDED_PYTHON = """
case "$*" in
    *-m\\ venv*)
        mkdir -p .venv/bin
        cp "$0" .venv/bin/python
        case $PWD in *\\ *) begin="exec \\"" ;; *) begin="#!" ;; esac
        echo "$begin$PWD/.venv/bin/python" >.venv/bin/pip
        ;;
    *install*-e*) pwd >.venv/code ;;
    *"import torch; print"*) echo 2.10.0 ;;
    *"< (2, 11)"*) exit 1 ;;
esac
"""


def installed(clone: Path) -> str:
    """Installs into `clone` with a Python whose environments hold their paths as real ones do.

    What make says.
    """
    done = make_install(clone, f"PYTHON={clone}/some-python", "FFCV=0")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_make_refuses_a_site_whose_pytorch_is_too_old(tmp_path: Path) -> None:
    copy_what_installs(tmp_path)
    Machine(tmp_path).command("some-python", PRETENDED_PYTHON, logged=False)
    said = f"SITE=1 takes the PyTorch of '{tmp_path}/some-python', which has 2.10.0, and"
    assert_refused(tmp_path, said, f"PYTHON={tmp_path}/some-python", "SITE=1")


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="these tests run in no environment")
def test_make_refuses_a_site_that_is_a_virtual_environment(tmp_path: Path) -> None:
    copy_what_installs(tmp_path)
    said = f"SITE=1 cannot see the packages of '{sys.executable}'"
    assert_refused(tmp_path, said, f"PYTHON={sys.executable}", "SITE=1")


@pytest.mark.parametrize("name", ["clone", "a clone"])
@pytest.mark.parametrize("bring", [shutil.copytree, shutil.move])
def test_a_clone_that_was_copied_or_moved_is_installed_anew(
    name: str, bring: Callable[[Path, Path], object], tmp_path: Path
) -> None:
    original, clone = tmp_path / f"first {name}", tmp_path / name
    original.mkdir()
    copy_what_installs(original)
    Machine(original / ".ci").command("system-packages", logged=False)
    Machine(original).command("some-python", PRETENDED_PYTHON, logged=False)
    installed(original)
    bring(original, clone)
    installed(clone)
    assert (clone / ".venv" / "code").read_text() == f"{clone}\n"
    assert f"{clone}/.venv/bin/python" in (clone / ".venv" / "bin" / "pip").read_text()
    assert "Installing" not in installed(clone)
