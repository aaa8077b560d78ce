"""Submit cells to Slurm as job arrays, through submitit."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError
from submitit.helpers import clean_env

from regbench.benchmark.rundir.directory import write_config
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.runtime import Cluster, Runtime
from regbench.errors import RegbenchError
from regbench.files import write_text
from regbench.slurm.job import SlurmJob
from regbench.slurm.queue import SlurmError, call, note_submitted
from regbench.text import counted

log = logging.getLogger("regbench")

# How Slurm says that a limit leaves no room for an array: it takes all jobs of one, or none.
_NO_ROOM = "submit limit|SubmitJob"

# What the batch script does when a job ends:
# - One of its processes was killed, as by the kernel for want of memory or with its node: the job
#   is queued again, and goes on from its checkpoint. A job that comes no farther ends by an error.
# - It ended with an error of its own (`_error` is there): that is left to the user.
# - It never came to run our code (`_missed` is there): it is queued again once. Its node may be at
#   fault, or a controller that has just come back and takes a requeued job for a completed one. A
#   second time in a row means that the container or its Python is missing: it is not queued again.
#   Of lives that Slurm ended before, by SIGUSR2 (140) or SIGTERM (143), there may be 20 in a row.
# Only Slurm knows whether the job was cancelled, and it may be away for a while: the script asks it
# until it answers.
_OWN = "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}"
_TEARDOWN = """\
code=$?
again=
if [ -e "$regbench_job"_missed ]; then
    case $code in 140 | 143) printf . ;; *) echo ;; esac >>"$regbench_job"_missed
    read -r lines bytes < <(wc -lc <"$regbench_job"_missed)
    [ $lines -gt 1 ] || [ $bytes -gt 20 ] || again=1
elif [ $code -gt 128 ] && [ ! -e "$regbench_job"_error ]; then
    again=1
fi
if [ $code -gt 0 ] && [ "$again" ]; then
    for i in $(seq 60); do
        if state=$(scontrol show job "$SLURM_JOB_ID"); then
            [[ $state == *JobState=RUNNING* ]] || break
            scontrol requeue "$SLURM_JOB_ID" && sleep 60
        fi
        sleep 2
    done
fi
exit $code
""".splitlines()


def submit(
    cells: Sequence[tuple[Cell, Cluster]], runtime: Runtime, folder: Path, stages: Sequence[str]
) -> tuple[int, list[str]]:
    """Submit cells, one job array for each distinct set of resources and each of `Cluster.jobs`.

    The process must hold the folder, see `regbench.sweeps.status.locked`.

    Args:
        cells: Cells to run, with their resources.
        runtime: Runtime of each cell.
        folder: `<runs_dir>/<sweep>`; logs, and which job has which cell, are kept in its folder
            `jobs`.
        stages: Stages to run of each cell.

    Returns:
        The number of cells for which Slurm's limits left room, and the ids of the arrays.
    """
    folder = folder.absolute()
    if bad := {"%", "\\"} & set(str(folder)):
        raise RegbenchError(
            f"{folder}: Slurm takes {bad.pop()!r} in the path of a log for a sign of its own; "
            "choose another folder (runtime.runs_dir)"
        )
    # A later call may come from another folder; jobs begin in the one that they were submitted in.
    data_dir = str(Path(runtime.data_dir).absolute())
    runtime = replace(runtime, runs_dir=str(folder.parent), data_dir=data_dir)
    groups: dict[str, tuple[Cluster, list[Cell]]] = {}
    for cell, cluster in cells:
        groups.setdefault(json.dumps(asdict(cluster)), (cluster, []))[1].append(cell)
        (folder / cell.id).mkdir(parents=True, exist_ok=True)
        write_config(folder / cell.id, cell.plain())
    # The number of tasks that the cluster lets an array have.
    config = call("scontrol", "show", "config")
    found = dict(re.findall(r"(MaxArraySize|max_array_tasks)\s*=\s*(\d+)", config))
    longest = int(found.get("MaxArraySize", 1001)) - 1
    longest = max(1, min(longest, int(found.get("max_array_tasks", longest))))
    count = 0
    arrays: list[str] = []
    for cluster, members in groups.values():
        while part := members[:longest]:
            try:
                arrays += _submit_array(part, cluster, runtime, folder, stages)
                count += len(part)
                del members[: len(part)]
            except SlurmError as error:
                longest = len(part) // 2
                if not re.search(_NO_ROOM, str(error)) or not (longest or arrays):
                    raise
    if left := len(cells) - count:
        log.warning("a limit of Slurm leaves %s to the next call", counted(left, "cell"))
    return count, arrays


def _submit_array(
    cells: Sequence[Cell], cluster: Cluster, runtime: Runtime, folder: Path, stages: Sequence[str]
) -> list[str]:
    before = ""
    arrays: list[str] = []
    for names in cluster.jobs(stages):
        # Written first: if this process is killed before it knows the job's id, the job is found by
        # its name.
        intent = folder / "jobs" / f"{uuid.uuid4().hex[:12]}.intent"
        name = f"regbench-{folder.name}-{intent.stem}"
        dependency = None
        if before:
            # In an array each job waits for the job of the same number.
            dependency = f"{'aftercorr' if len(cells) > 1 else 'afterok'}:{before}"
        place = cluster.at(names[0])
        executor = _executor(place, folder, dependency, name)
        note = {
            "name": name,
            "submitted": time.time(),
            "stages": names,
            "asked": list(stages),
            "after": before,
            "runtime": asdict(runtime),
            "cluster": asdict(cluster),
            "cells": [cell.id for cell in cells],
        }
        write_text(intent, json.dumps(note))
        used = runtime.with_gpus() if place.gpus else runtime
        # Nothing of the job in which a command is given, but what the user sets.
        users = ("SBATCH_", "SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")
        kept = {key: value for key, value in os.environ.items() if key.startswith(users)}
        try:
            same = repeat(used), repeat(folder.name), repeat(names)
            with clean_env():
                os.environ.update(kept)
                jobs = executor.map_array(SlurmJob(), [cell.plain() for cell in cells], *same)
        except (FailedJobError, FailedSubmissionError) as error:
            refusal = f"Slurm refuses the jobs: {' '.join(str(error).split())}"
            if re.search(_NO_ROOM, refusal):
                intent.unlink()
                for array in arrays:  # of earlier stages of these cells
                    call("scancel", array)
                    (folder / "jobs" / f"{array}.json").unlink()
            # What passes by itself: who waits tries again.
            passing = re.search(f"timed out|nable to contact|{_NO_ROOM}", refusal)
            raise (SlurmError if passing else RegbenchError)(refusal) from error
        before = jobs[0].job_id.partition("_")[0]
        arrays.append(before)
        note_submitted(intent, note, before)
        done, count = ", ".join(names), counted(len(cells), "cell")
        log.info("submitted job %s: %s of %s", before, done, count)
    return arrays


def _executor(cluster: Cluster, folder: Path, dependency: str | None, name: str) -> Any:
    extra = {key.replace("-", "_"): value for key, value in (cluster.extra or {}).items()}
    elsewhere = os.environ.get("SBATCH_CLUSTERS") not in (None, os.environ.get("SLURM_CLUSTERS"))
    if elsewhere or {"clusters", "M", "job_name"} & extra.keys():
        raise RegbenchError(
            "SBATCH_CLUSTERS, or clusters or job-name in cluster.extra: regbench finds its jobs "
            "by name, on the cluster of SLURM_CLUSTERS; leave it out, or export SLURM_CLUSTERS"
        )
    logs = folder / "jobs" / "logs"
    python = None if cluster.container is None else f"{cluster.container} python3"
    cpus = extra.get("cpus_per_task", cluster.cpus)
    executor = submitit.SlurmExecutor(logs, max_num_timeout=10**6, python=python)
    options: dict[str, Any] = {
        "job_name": name,
        "partition": cluster.partition,
        "account": cluster.account,
        "qos": cluster.qos,
        "constraint": cluster.constraint,
        "nodes": cluster.nodes,
        "ntasks_per_node": max(1, cluster.gpus),
        "gpus_per_node": cluster.gpus or None,
        "cpus_per_task": cluster.cpus,
        "mem": None if cluster.mem_gib is None else f"{round(cluster.mem_gib * 1024)}MB",
        "time": cluster.time_minutes,
        "array_parallelism": cluster.parallel,
        "signal_delay_s": cluster.notice_s,
        "dependency": dependency,
        "setup": [
            f"regbench_job={shlex.quote(str(logs))}/{_OWN}",
            'touch "$regbench_job"_missed',
            'rm -f "$regbench_job"_error',  # of an earlier life, after which somebody requeued it
            *(f"module load {shlex.quote(module)}" for module in cluster.modules),
            *cluster.setup,
        ],
        "teardown": _TEARDOWN,
        # From Slurm 22.05 on, srun does not take over sbatch's --cpus-per-task. The first rank may
        # end long after the others: a site's WaitTime must not count.
        "srun_args": ["--kill-on-bad-exit=1", f"--cpus-per-task={cpus}", "--wait=0"],
        "additional_parameters": {"requeue": True, "kill_on_invalid_dep": "yes", **extra},
    }
    given = {key: value for key, value in options.items() if value is not None}
    executor.update_parameters(**given)
    return executor
