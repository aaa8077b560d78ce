"""Run all sections, each in a process of its own, and write what they found."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import torch

# Sections are registered by their modules.
import regbench.instruments.doctor.checks
import regbench.instruments.doctor.measurements  # noqa: F401
from regbench.benchmark.machine import environment
from regbench.errors import RegbenchError
from regbench.files import write_text
from regbench.instruments.doctor import section
from regbench.instruments.doctor.section import SECTIONS, Bench, Outcome, Section


@dataclass(frozen=True)
class Examined:
    """What became of a section.

    Attributes:
        name: Of the section.
        title: Likewise.
        seconds: That it took.
        outcome: What it found; a section that broke has that among its failures.
    """

    name: str
    title: str
    seconds: float
    outcome: Outcome

    @property
    def ok(self) -> bool:
        """Whether all that it looked at holds."""
        return not self.outcome.failures


def examine(
    device: str,
    out: Path,
    *,
    small: bool,
    names: Sequence[str] = (),
    tell: Callable[[Examined], None] = lambda examined: None,
) -> list[Examined]:
    """Examine a device and write `gpu.md` and `gpu.json`, anew after each section.

    A section that fails, hangs or breaks its process does not stop the others.

    Args:
        device: "cuda" or "cpu".
        out: The folder to write to.
        small: Whether to take sizes that a CPU can do.
        names: Of the sections; empty for all.
        tell: Called after each section.

    Raises:
        RegbenchError: If the device is not there, or there is no such section.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise RegbenchError("torch sees no GPU here; try it on small sizes: regbench doctor --gpu --device cpu")
    for name in names:
        if name not in SECTIONS:
            raise RegbenchError(f"unknown section {name!r}; choose {', '.join(SECTIONS)}")
    where = _machine(torch.device(device))
    found: list[Examined] = []
    with tempfile.TemporaryDirectory(prefix="regbench-doctor-") as folder:
        for name in names or SECTIONS:
            began_s = time.perf_counter()
            outcome = _in_a_process(SECTIONS[name], Bench(torch.device(device), small, Path(folder)))
            found.append(Examined(name, SECTIONS[name].title, time.perf_counter() - began_s, outcome))
            tell(found[-1])
            sections = [{**asdict(each), "ok": each.ok} for each in found]
            plain = {"machine": where, "small": small, "sections": sections}
            write_text(out / "gpu.json", json.dumps(plain, indent=2) + "\n")
            write_text(out / "gpu.md", _markdown(where, found, small=small))
    return found


def _in_a_process(part: Section, bench: Bench) -> Outcome:
    """Let a process of its own do the work, for an error of CUDA leaves nothing usable behind."""
    task = bench.folder / f"{part.name}.task"
    task.write_bytes(cloudpickle.dumps((part.work, bench)))
    command = [sys.executable, "-c", f"from {section.__name__} import work; work({str(task)!r})"]
    with task.with_suffix(".txt").open("w+") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)
        try:
            code = process.wait(part.limit_s)
        except subprocess.TimeoutExpired:
            return Outcome(failures=[f"not done after {part.limit_s:.0f} s"])
        finally:
            with contextlib.suppress(ProcessLookupError):  # those that it started, too
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said.seek(0)
        lines = said.read().strip().splitlines()
    if code:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return Outcome(failures=[f"broke with {how}: {lines[-1] if lines else 'no message'}"])
    return Outcome(**json.loads(task.with_suffix(".json").read_text()))


def _machine(device: torch.device) -> dict[str, Any]:
    """Describe the machine: versions, and each GPU with its memory."""
    gpus = []
    if device.type == "cuda":
        for number in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(number)
            gpus.append(f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB")
    cuda = {"cuda": torch.version.cuda, "gpus": gpus} if gpus else {}
    more = {**cuda, "cpu_cores": len(os.sched_getaffinity(0))}
    # The host's name says nothing about the numbers, and the report may be published.
    return {name: value for name, value in (environment(device) | more).items() if name != "hostname"}


def _markdown(where: dict[str, Any], found: Sequence[Examined], *, small: bool) -> str:
    failed = [each for each in found if not each.ok]
    lines = ["# What a device does", ""]
    lines += [f"- {name}: {', '.join(value) if isinstance(value, list) else value}" for name, value in where.items()]
    summary = f"{len(found) - len(failed)} of {len(found)} sections hold"
    lines += ["", summary + (f"; these do not: {', '.join(each.name for each in failed)}." if failed else ".")]
    if small:
        lines += ["", "**Sizes are small: the figures say that everything runs, not how fast.**"]
    for each in found:
        lines += [
            "",
            f"## {each.title}",
            "",
            f"`{each.name}`: {'holds' if each.ok else 'FAILED'}, {each.seconds:.0f} s.",
        ]
        lines += ["", *(f"- **{failure}**" for failure in each.outcome.failures)] if not each.ok else []
        lines += ["", each.outcome.table] if each.outcome.table else []
        lines += ["", *(note for note in each.outcome.notes)] if each.outcome.notes else []
    return "\n".join(lines) + "\n"
