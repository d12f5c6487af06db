"""`python -m brain.ml.train job.yaml`: one rank of a run; every launch target starts this.

Writes events to the run's metrics.jsonl, log lines to standard error, nothing to standard output.
Exit codes: 0, or those of design: 2, 3, 4 and 6 before the first step, 1 after it, 130 interrupted
and 143 terminated, both saved. Under an agent these two are 0, and 75 asks it to start anew.
"""

import logging
import multiprocessing
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from brain.ml.failure import Failure
from brain.ml.guardians import Guardians
from brain.ml.metrics import MetricsLog
from brain.ml.process_group import ProcessGroup, World, read_world
from brain.ml.run_lock import AGAIN_SECONDS, FIRST_SECONDS, only_start
from brain.ml.session import Session
from brain.ml.stall_watch import StallWatch
from brain.ml.stop_request import ASK_AGAIN, EXIT_CODES, REGROUPED, StopRequest
from brain.ml.training_job import TrainingJob, load_job
from brain.ml.watchdog import Watchdog
from tools_utilities.errors import QuarkError, RunStoppedError, UsageError
from tools_utilities.open_files import raise_open_file_limit
from tools_utilities.process_identity import ProcessIdentity, identify
from tools_utilities.redaction import guard_process

if TYPE_CHECKING:
    from brain.ml.tracker_processes import TrackerProcesses

logger = logging.getLogger("quark")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a job file; returns the exit code."""
    guard_process()
    stop = StopRequest()
    stop.install()
    raise_open_file_limit()
    world = read_world()
    _set_up_logging(world)
    given = sys.argv[1:] if arguments is None else arguments
    try:
        if len(given) != 1:
            raise UsageError("one job file is needed", hint="python -m brain.ml.train job.yaml")
        job = _of_this_start(_read_job(Path(given[0])), world)
        with _alone(Path(job.run_dir), world):
            code = train(job, world, stop)
    except QuarkError as error:  # nothing has begun: there is no run to tell of it
        _log(error)
        return type(error).exit_code
    if not world.start or code not in EXIT_CODES.values():
        return code
    # An agent starts ranks again that end with another code than 0; who asked for the end wants none.
    return REGROUPED if stop.reason == "regroup" else 0


def _of_this_start(job: TrainingJob, world: World) -> TrainingJob:
    """Return the job as a later start of the same run has it: going on from the newest checkpoint."""
    if world.start <= 1:
        return job
    return msgspec.structs.replace(job, resume="auto", from_step=None)


def train(job: TrainingJob, world: World, stop: StopRequest) -> int:
    """Run a job as one rank; tells of its end in metrics.jsonl whatever happens."""
    run_dir = Path(job.run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    failure = Failure(run_dir, world)
    metrics = MetricsLog(run_dir, muted=lambda: failure.told)
    stall = StallWatch(
        job.stall_seconds, out=sys.stderr, tell=lambda message: _tell_stall(metrics, world, message)
    )
    watchdog = Watchdog(
        world, metrics, failure, Guardians(run_dir, _guardians(world)), stall=stall,
        # Under an agent the launcher is the agent's to watch.
        orphaned=ASK_AGAIN if world.start else signal.SIGTERM,
        leaving=lambda: _leaves_early(session),
    )  # fmt: skip
    session = Session(
        job=job,
        group=ProcessGroup(world),
        stop=stop,
        metrics=metrics,
        failure=failure,
        watchdog=watchdog,
    )
    if world.rank == 0:
        failure.clear_earlier()
    watchdog.start()
    trackers = _start_trackers(session)
    try:
        code = _run(session)
    except RunStoppedError:
        code = EXIT_CODES[stop.reason or "interrupt"]
        _tell_stopped_early(session, code)
    except Exception as error:  # noqa: BLE001 - the process's border: told, logged, made a code
        code = _fail(session, error)
    watchdog.stop()
    if trackers is not None:
        trackers.close()
    if code == 0:
        # After a failure others may be in an exchange: parting in order would wait for them.
        session.group.leave()
    return code


def _start_trackers(session: Session) -> "TrackerProcesses | None":
    """Start what is to be told of the run, if anything; only rank 0 does."""
    if not session.job.track or not session.group.is_main:
        return None
    from brain.ml.tracker_processes import TrackerProcesses

    return TrackerProcesses(session.job, lambda text: session.tell("warning", message=text))


def _run(session: Session) -> int:
    if session.job.command is not None:
        from brain.ml import command_run

        return command_run.run(session)
    with session.stop.interruptible():
        # Torch takes seconds to import; signals are heard meanwhile.
        from brain.ml import evaluation_run, training_run
    if session.job.evaluate_only:
        return evaluation_run.run(session)
    return training_run.run(session)


def _fail(session: Session, error: Exception) -> int:
    code = type(error).exit_code if isinstance(error, QuarkError) else 1
    code = 1 if session.steps_made else code
    if session.group.world_size > 1 and not isinstance(error, QuarkError):
        # A collective broke because another rank went: that rank, or the watchdog, tells why.
        session.watchdog.wait_for_cause()
        if _leaves_early(session) and not session.failure.told:
            # All ranks were asked; another one heard it first and has left.
            stopped = EXIT_CODES[session.stop.reason or "interrupt"]
            _tell_stopped_early(session, stopped)
            return stopped
    try:
        told = session.failure.tell(session.metrics, error, exit_code=code)
    except OSError:  # a full disk takes no event either
        logger.exception("the run's metrics cannot be written")
        told = True
    if told:
        _log(error)
        if not isinstance(error, QuarkError):
            logger.error("%s", "".join(traceback.format_exception(error)))
    return code


def _alone(run_dir: Path, world: World) -> AbstractContextManager[None]:
    """Return the lock of a run's folder, which rank 0 takes for all."""
    if world.rank != 0:
        return nullcontext()
    run_dir.mkdir(parents=True, exist_ok=True)
    return only_start(run_dir, AGAIN_SECONDS if world.start > 1 else FIRST_SECONDS)


def _leaves_early(session: Session) -> bool:
    """Tell whether ranks leave without agreeing on it: they do until they make steps together."""
    return session.stop.reason is not None and not session.steps_made


def _tell_stall(metrics: MetricsLog, world: World, message: str) -> None:
    """Say that this rank gets nowhere; the stacks follow in the log."""
    logger.warning("%s; the stacks of all threads:", message)
    metrics.write("stall", rank=world.rank, message=message)


def _tell_stopped_early(session: Session, code: int) -> None:
    """Say that a run was stopped before its first step: there is nothing to save."""
    if session.stop.reason == "regroup":
        return  # it has not ended: the ranks are about to start again
    session.tell(
        "end", reason=session.stop.reason, exit_code=code, step=0, epoch=0.0, loss=None,
        val_loss=None, seconds=0.0, samples=0, tokens=0, stats={},
    )  # fmt: skip


def end_process(code: int) -> NoReturn:
    """End this process and its loader workers now.

    Threads that read ahead may be waiting for a store; an ordinary exit would wait for them.
    """
    for child in multiprocessing.active_children():
        child.terminate()
    _end_fork_server()
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)


def _end_fork_server() -> None:
    """End what loader workers were forked from: by itself it takes seconds, with torch in it."""
    server: Any = forkserver
    pid = server._forkserver._forkserver_pid  # noqa: SLF001 - there is no public way
    if pid is None:
        return
    try:
        if os.waitpid(pid, os.WNOHANG) == (0, 0):
            os.kill(pid, signal.SIGTERM)
    except ChildProcessError:
        return  # of the process that this one was forked from


def _guardians(world: World) -> list[ProcessIdentity]:
    """Return the processes this one must not outlive: the agent, or the launcher and torch's own."""
    pids = [] if world.launcher_pid is None or world.start else [world.launcher_pid]
    if world.world_size > 1 or world.start:
        pids.append(os.getppid())
    return [identify(pid) for pid in pids]


def _read_job(path: Path) -> TrainingJob:
    try:
        return load_job(path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path}: {error}", hint="Write job files with Quark.") from error


def _log(error: BaseException) -> None:
    logger.error("%s: %s", type(error).__name__, error)
    if isinstance(error, QuarkError) and error.hint:
        logger.error("hint: %s", error.hint)


def _set_up_logging(world: World) -> None:
    rank = f"rank {world.rank} " if world.world_size > 1 else ""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format=f"%(asctime)s {rank}%(levelname)s %(message)s"
    )
    logging.captureWarnings(capture=True)
    warnings.simplefilter("default")


if __name__ == "__main__":
    end_process(main())
