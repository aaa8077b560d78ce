"""Measures `regbench status` on a made-up sweep: python instruments/speed/status.py [CELLS]."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STATES = ("done", "running", "failed", "interrupted", "pending")


def make(folder: Path, cells: int) -> None:
    """Write run directories as training leaves them, a fifth in each state."""
    plan = []
    row = {"epoch": 1, "loss": 1.5, "terms": {f"term {i}": 0.123456789 for i in range(12)}}
    record = json.dumps({"status": "done", "scores": []}, indent=1)
    for number in range(cells):
        cell, state = f"{number:012x}", STATES[number % len(STATES)]
        plan.append({"id": cell, "label": "VICReg", "seed": number, "epochs": 100})
        attempts = folder / cell / "attempts"
        attempts.mkdir(parents=True)
        if state == "pending":
            continue
        attempt = {
            "owner": {"hostname": "elsewhere", "pid": 1},
            "heartbeat": time.time(),
            "beat": 7,
            "lease_s": 60,
            "ended": None if state == "running" else state,
            "error": "OSError: no" if state == "failed" else None,
            "progress": {"epoch": 50, "epochs": 100, "img_per_s": 1000.0, "remaining_s": 900.0},
        }
        (attempts / "0001.json").write_text(json.dumps(attempt))
        (folder / cell / "metrics-0001.jsonl").write_text((json.dumps(row) + "\n") * 50)
        if state == "done":
            (folder / cell / "record.json").write_text(record)
    (folder / "sweep.json").write_text(json.dumps({"description": "", "cells": plan}))


def main() -> None:
    """Print the seconds of three calls of the command, and its last line."""
    cells = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory() as runs:
        make(Path(runs) / "large", cells)
        command = [str(Path(sys.executable).with_name("regbench")), "status", "large", "--runs-dir", runs]
        for _ in range(3):
            began_s = time.perf_counter()
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            took_s = time.perf_counter() - began_s
            print(f"{took_s:.2f} s: {done.stdout.splitlines()[-1]}")


if __name__ == "__main__":
    main()
