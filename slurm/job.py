"""Run the stages of a cell in a submitted job."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from submitit.core.utils import DelayedSubmission

from regbench.benchmark.rundir.lease import LeaseLost, read_attempts
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.identity import cell_id
from regbench.benchmark.settings.runtime import Runtime
from regbench.errors import RegbenchError
from regbench.files import write_new
from regbench.slurm.queue import SlurmError, call

log = logging.getLogger("regbench")

# A job that begins this many times at the same place will never get further.
_FRUITLESS_ATTEMPTS = 10
# Slurm ends a job that it has requeued, cancelled or preempted; if it has not within this time, the
# job ends by itself.
_PATIENCE_S = 600
# The batch script queues a job again that ends so, and that Slurm has not ended.
_EXIT_AGAIN = 128 + signal.SIGTERM
# Asking more often does not bring a restarting controller back sooner.
_RETRY_S = 1.0


class SlurmJob:
    """The call that a process of a Slurm job makes: it runs stages of a cell, alone or with the
    job's other processes.

    Slurm sends SIGUSR2 some time before it ends a job (its time is up, or it is preempted). The job
    then writes a checkpoint and puts itself back into the queue. submitit's own handler would give
    up on jobs of less than ten minutes, because it assumes that they made no progress. On SIGTERM
    the job writes a checkpoint and leaves the rest to Slurm: only Slurm knows whether the job was
    cancelled or is queued again.

    Two files beside the logs tell the batch script whether to queue the job again: `<job>_missed`,
    which the script makes and this code removes when it begins, and `<job>_error`, the first error
    that one of the processes had of its own.
    """

    def __call__(
        self, cell: dict[str, Any], runtime: Runtime, sweep: str, stages: Sequence[str]
    ) -> None:
        """Run the stages and return when they are done.

        If interrupted, wait to be ended by Slurm.
        """
        from torch.distributed import DistNetworkError

        from regbench.benchmark.rundir.interruption import Interrupted, Interruption
        from regbench.benchmark.training.distributed import PeerLost

        interruption = Interruption()
        rank = int(os.environ["SLURM_PROCID"])
        if rank == 0:
            _own_file("missed").unlink(missing_ok=True)
        signal.signal(signal.SIGCONT, signal.SIG_IGN)
        with interruption.listening(signal.SIGUSR2, signal.SIGTERM):
            try:
                if rank == 0:
                    _refuse_fruitless(Path(runtime.runs_dir, sweep, cell_id(cell)))
                # This import takes seconds, during which signals may come.
                from regbench.sweeps.tune import run_stages

                _log_to_file()
                _export_ranks(rank)
                run_stages(Cell.stored(cell), runtime, sweep, stages, interruption)
                return
            except Interrupted as error:
                interrupted = error
            except (PeerLost, LeaseLost):
                # not this process's own error: another process was killed, or the job's next life
                # has the run
                raise
            except Exception as error:
                if isinstance(error, DistNetworkError) and "EADDRINUSE" in str(error):
                    log.warning("%s; the next life of this job takes another port", error)
                    raise SystemExit(_EXIT_AGAIN) from error
                with contextlib.suppress(OSError):
                    write_new(_own_file("error"), f"{type(error).__name__}: {error}")
                raise
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            end_s = time.monotonic() + _PATIENCE_S
            if interrupted.signal == signal.SIGUSR2 and rank == 0:
                _requeue(end_s)
            time.sleep(max(0.0, end_s - time.monotonic()))
        log.warning("%s, and Slurm did not end the job", interrupted)
        raise SystemExit(_EXIT_AGAIN)

    def checkpoint(self, *args: Any) -> DelayedSubmission:
        """Make submitit's own handler repeat this call, if the signal comes before ours listens."""
        return DelayedSubmission(self, *args)


def _own_file(what: str) -> Path:
    """Name a file of this job, beside its logs."""
    array, job = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ["SLURM_JOB_ID"]
    name = f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else job
    return Path(os.environ["SUBMITIT_FOLDER"]) / f"{name}_{what}"


def _requeue(end_s: float) -> None:
    """Put the job back into the queue.

    While Slurm's controller is away, try again until `end_s`.
    """
    log.info("putting the job back into the queue")
    while time.monotonic() < end_s:
        try:
            call("scontrol", "requeue", os.environ["SLURM_JOB_ID"])
            return
        except SlurmError as error:
            log.warning("scontrol requeue: %s; trying again", error)
            time.sleep(_RETRY_S)


def _log_to_file() -> None:
    # A job's output goes to a file; submitit's own handlers would give each line twice.
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", force=True)


def _export_ranks(rank: int) -> None:
    """Tell torch.distributed of the job's processes, as torchrun would."""
    processes = int(os.environ["SLURM_NTASKS"])
    if processes == 1:
        return
    hosts = call("scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]).split()
    # Another port for each life of a job: the one before may not be quite dead.
    life = f"{os.environ['SLURM_JOB_ID']}-{os.environ.get('SLURM_RESTART_COUNT', '0')}"
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(processes),
        LOCAL_RANK=os.environ["SLURM_LOCALID"],
        LOCAL_WORLD_SIZE=str(processes // int(os.environ["SLURM_NNODES"])),
        MASTER_ADDR=hosts[0],
        MASTER_PORT=str(20000 + zlib.crc32(life.encode()) % 12000),
    )


def _refuse_fruitless(directory: Path) -> None:
    """Refuse to restart for ever, such as a job whose time does not suffice for the first
    checkpoint.

    Raises:
        RegbenchError: If many lives of this job in a row began where the one before began, in
            training and evaluation, or ended before they began to work, such as when the time is up
            while code is loaded.
    """
    job = os.environ["SLURM_JOB_ID"]
    attempts = read_attempts(directory)
    mine = [each for each in attempts if each["owner"].get("slurm_job_id") == job]
    worked = mine[-1]["owner"].get("slurm_restarts", 0) + 1 if mine else 0
    if int(os.environ.get("SLURM_RESTART_COUNT", "0")) - worked >= _FRUITLESS_ATTEMPTS:
        raise RegbenchError(
            f"{directory}: {_FRUITLESS_ATTEMPTS} lives of this job ended before they came to work; "
            "give the same command again with more time (cluster.time_minutes, of which the last "
            "cluster.notice_s are for the end)"
        )
    last = mine[-_FRUITLESS_ATTEMPTS:]
    began = [attempt["progress"].get("began", {}) for attempt in last]
    # The user has to fix a failure, and may have done so by now.
    failed = any(attempt["ended"] == "failed" for attempt in last)
    if len(last) == _FRUITLESS_ATTEMPTS and began.count(began[0]) == len(last) and not failed:
        where = ", ".join(f"{part}: {done}" for part, done in began[0].items()) or "the beginning"
        raise RegbenchError(
            f"{directory}: {len(last)} lives of this job came no farther than {where}; give the "
            "same command again with more time (cluster.time_minutes) or more frequent "
            "checkpoints (runtime.checkpoint_minutes), or try once more as it was: regbench retry"
        )
