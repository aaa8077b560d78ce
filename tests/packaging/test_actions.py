"""The scripts of the workflow that checks what a pull request enters, and of the action for
other repositories.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]

# Stands for the program: it notes its arguments, a line each, and refuses what is named bad; silent
# says nothing.
STUB = f"""#!/bin/sh
printf '%s\\n' "$@" -- >> "$CALLS"
case "$*" in *bad*) exit 1;; *silent*) echo "2 cells check out; sha256"; exit 0; esac
echo 'cell (VICReg, seed 0): trained again, equal to the last bit'
echo '2 cells check out; sha256 {64 * "a"}'
"""


@pytest.fixture
def bash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the stub, which scripts call in place of `regbench`.

    It notes the calls in the file `calls`.
    """
    program = tmp_path / "bin" / "regbench"
    program.parent.mkdir()
    program.write_text(STUB)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return tmp_path


def run(script: str, folder: Path) -> int:
    """Runs a script as a step of a workflow does, and returns its exit code."""
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(command, cwd=folder, check=False).returncode


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def commit(folder: Path, files: Iterable[str], content: str) -> None:
    """Write files of `results/`, and commit all that has changed."""
    for name in files:
        (folder / "results" / name).write_text(content)
    git(folder, "add", ".")
    git(folder, "commit", "-m", content)


def test_the_workflow_verifies_what_a_pull_request_adds_or_changes(
    bash: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "results.yml").read_text())
    script = workflow["jobs"]["verify"]["steps"][-1]["run"]
    monkeypatch.setenv("GITHUB_BASE_REF", "main")
    clone = bash / "clone"
    (clone / "results").mkdir(parents=True)
    git(clone, "init", "-b", "main")
    commit(clone, ["old.tar.xz", "changed.tar.xz", "gone.tar.xz"], "before")
    git(clone, "update-ref", "refs/remotes/origin/main", "main")
    (clone / "results" / "gone.tar.xz").unlink()
    commit(clone, ["mine.tar.xz", "mine.py", "README.md", "changed.tar.xz"], "after")
    assert run(script, clone) == 0
    called = (bash / "calls").read_text().removesuffix("\n--\n")
    assert [call.split("\n") for call in called.split("\n--\n")] == [
        ["verify", "results/changed.tar.xz", "--recompute", "1"],
        ["verify", "results/mine.tar.xz", "--recompute", "1", "--loss", "results/mine.py"],
    ]
    for name in ("bad", "silent"):  # it is refused, or nothing is said of it
        git(clone, "checkout", "-fb", name, "main")
        commit(clone, [f"{name}.tar.xz"], name)
        assert run(script, clone) == 1


def test_the_action_audits_with_the_arguments_as_they_are_quoted(bash: Path) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    (name,) = action["inputs"]
    install, audit = (step["run"] for step in action["runs"]["steps"])
    assert install == 'python -m pip install "$GITHUB_ACTION_PATH"'
    arguments = "my_loss.py:MyLoss --claims 'simclr(temperature=0.5, detached=False)'"
    assert run(audit.replace(f"${{{{ inputs.{name} }}}}", arguments), bash) == 0
    called = (bash / "calls").read_text().splitlines()
    claims = ["--claims", "simclr(temperature=0.5, detached=False)"]
    assert called == ["audit", "my_loss.py:MyLoss", *claims, "--"]
    assert run(audit.replace(f"${{{{ inputs.{name} }}}}", "bad.py"), bash) == 1
