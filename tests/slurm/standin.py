"""Stand-ins for Slurm's commands, for tests on machines without it.

A folder of JSON files, one for each task of an array, takes the place of the controller. Nothing
runs: the nodes are those of a real Slurm, see `tests.slurm.testbed`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

COMMANDS = ("sacct", "sbatch", "scancel", "scontrol", "squeue", "srun")

# Python without site packages starts in hundredths of a second.
SCRIPT = (
    f"#!{sys.executable} -IS"
    + r"""
import json, os, sys, time
from pathlib import Path

here = Path(__file__).parent
command, words = Path(sys.argv[0]).name, sys.argv[1:]
options = dict(word[2:].partition("=")[::2] for word in words if word.startswith("--"))


def fail(text, code=1):
    print(f"{command}: error: {text}", file=sys.stderr)
    sys.exit(code)


def write(path, data):
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(data))
    new.replace(path)


def tasks():
    return [json.loads(path.read_text()) for path in sorted(here.glob("tasks/*.json"))]


def queue():
    return [task for task in tasks() if task["state"] not in ("ENDED", "PREEMPTED")]


def change(task, **more):
    write(here / "tasks" / f"{task['name']}.json", {**task, **more})


def named(words):
    names = []
    for word in words:
        array, bracket, indices = word.partition("_[")
        names += [f"{array}_{index}" for index in indices[:-1].split(",")] if bracket else [word]
    chosen = [task for task in queue() if {task["name"], task["raw"], task["array"]} & set(names)]
    return chosen or fail("Invalid job id specified")


away_once = here / f"{command}-away"
if away_once.exists():
    away_once.unlink()
    fail("Unable to contact slurm controller (connect failure)")

if words[:2] != ["show", "hostnames"]:
    away = here / "away"  # how many more commands the controller does not answer
    if away.exists() and (left := int(away.read_text())):
        away.write_text(str(left - 1))
        fail("Unable to contact slurm controller (connect failure)")

if command == "sbatch":
    text = Path(words[-1]).read_text()
    lines = [line[10:] for line in text.splitlines() if line.startswith("#SBATCH --")]
    asked = {key: value.strip("'") or True for key, _, value in (line.partition("=") for line in lines)}
    if asked.get("partition") == "none":
        fail("invalid partition specified: none")
    while (here / "hold").exists():
        (here / "holding").touch()
        time.sleep(0.01)
    first = 1 + max((int(path.stem) for path in here.glob("scripts/*")), default=0)
    count = int(asked["array"].partition("%")[0].partition("-")[2]) + 1 if "array" in asked else 1
    limit = here / "limit"  # how many jobs the user may have
    if limit.exists() and len(queue()) + count > int(limit.read_text()):
        fail("QOSMaxSubmitJobPerUserLimit\nJob violates accounting/QOS policy (job submit limit)")
    write(here / "environment", dict(os.environ))
    for index in range(count):
        script = here / "scripts" / str(first + index)
        script.write_text(text)
        name = f"{first}_{index}" if "array" in asked else str(first)
        write(here / "tasks" / f"{name}.json", {
            "name": name, "raw": str(first + index), "array": str(first), "index": index, "asked": asked,
            "script": str(script), "state": "PENDING", "reason": "Priority", "told": "",
        })
    if (here / "late").exists():
        fail("Batch job submission failed: Socket timed out on send/recv operation")
    print(f"Submitted batch job {first}")

elif command == "sacct":
    accounts = here / "accounts"
    print(accounts.read_text() if accounts.exists() else fail("Slurm accounting storage is disabled"))

elif command == "squeue":
    if options.get("states") == "all":
        found = [task for task in tasks() if not task.get("forgotten")]
    else:
        found = named(options["jobs"].split(",")) if "jobs" in options else queue()
    if "name" in options:
        found = [task for task in found if task["asked"]["job-name"] == options["name"]]
    found = [task for task in found if task["state"] in os.environ.get("SQUEUE_STATES", task["state"])]
    for task in found:
        line = options["format"].replace("%i", task["name"]).replace("%T", task["state"]).replace("%r", task["reason"])
        print(line.replace("%j", task["asked"]["job-name"]))

elif command == "scancel":
    with (here / "cancelled").open("a") as file:
        print(*words, file=file)
    for task in named(words):
        change(task, **({"told": "cancel"} if task["state"] == "RUNNING" else {"state": "ENDED"}))
    if (here / "late").exists():
        fail("Socket timed out on send/recv operation")

elif command == "scontrol" and words[0] == "show":
    match words[1]:
        case "config":
            print("MaxArraySize            = " + (here / "longest").read_text())
        case "hostnames":
            print("node1\nnode2" if words[2] == "node[1-2]" else "localhost")

elif command == "scontrol":
    for task in named(words[1:]):
        if "Admin" in task["reason"]:
            fail("Access/permission denied")
        change(task, **({"told": "requeue"} if words[0] == "requeue" else {"reason": "Priority"}))
"""
)


class Standin:
    """Slurm's commands in a folder that is to be the first of the PATH."""

    def __init__(self, folder: Path) -> None:
        """Makes the folder."""
        self.folder = folder
        for part in ("tasks", "scripts"):
            (folder / part).mkdir(parents=True)
        for command in COMMANDS:
            (folder / command).write_text(SCRIPT)
            (folder / command).chmod(0o755)
        (folder / "longest").write_text("1001")

    def away(self, commands: int) -> None:
        """The controller does not answer so many commands."""
        (self.folder / "away").write_text(str(commands))

    def tasks(self) -> dict[str, dict[str, Any]]:
        """All that were ever submitted, by Slurm's name of them."""
        found = (self.folder / "tasks").glob("*.json")
        paths = sorted(found, key=lambda path: path.stat().st_mtime_ns)
        return {task["name"]: task for task in (json.loads(path.read_text()) for path in paths)}

    def queued(self) -> list[str]:
        """The names of those that have not ended, in the order of their ids."""
        tasks = sorted(self.tasks().values(), key=lambda task: int(task["raw"]))
        return [task["name"] for task in tasks if task["state"] not in ("ENDED", "PREEMPTED")]

    def change(self, name: str, **more: Any) -> None:
        """Changes what the controller knows of a task."""
        path = self.folder / "tasks" / f"{name}.json"
        new = path.with_suffix(".new")
        new.write_text(json.dumps({**self.tasks()[name], **more}))
        new.replace(path)

    def lose(self, *names: str) -> None:
        """The tasks are gone, and nothing says why."""
        for name in names:
            self.change(name, state="ENDED")
