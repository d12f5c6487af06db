"""Several workers of one batch job on one machine: a process each, stopped together.

Each runs `tools_utilities.scripts.process_shards` and claims shards as any other machine would. They
are sessions of their own, so that a terminal's Ctrl-C reaches them once, through their parent.
"""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO, Any

import msgspec

from tools_utilities.errors import QuarkError
from tools_utilities.json_text import decode_json
from tools_utilities.process_environment import OWN_PATH, child_environment, own_program
from tools_utilities.stop_signals import Stop

POLL_SECONDS = 0.2
GRACE_SECONDS = 30.0
SIGNALS = {130: signal.SIGINT, 143: signal.SIGTERM}


class WorkerError(QuarkError):
    """A worker process ended with an error; it has told its own."""


class WorkerProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One worker to start."""

    arguments: tuple[str, ...]
    """Of the script."""
    environment: Mapping[str, str] = {}
    """Added to this process's own; no secrets are needed here."""


def run_worker_processes(workers: Sequence[WorkerProcess], stop: Stop) -> list[dict[str, Any]]:
    """Run the workers until all have ended, and return their summaries.

    Raises:
        WorkerError: one ended with an error of its own (not: a shard failed); names its exit code.
        RunStoppedError: `stop` was asked for; every worker has given its shard back.
    """
    started = [_start(worker) for worker in workers]
    try:
        while any(process.poll() is None for process in started):
            stop.wait(POLL_SECONDS)
            if stop.asked:
                break
    finally:
        _end(started, SIGNALS.get(stop.exit_code, signal.SIGTERM))
    summaries = [_summary(process.stdout) for process in started]
    stop.check()
    for number, process in enumerate(started):
        if process.returncode not in (0, 1) or summaries[number] is None:
            raise WorkerError(
                f"worker {number} ended with {process.returncode}",
                hint="The same command goes on where this one ended.",
            )
    return [summary for summary in summaries if summary is not None]


def _start(worker: WorkerProcess) -> subprocess.Popen[bytes]:
    module = "tools_utilities.scripts.process_shards"
    return subprocess.Popen(  # noqa: S603 - our own interpreter and module, never through a shell
        own_program(module, *worker.arguments, "--json"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=child_environment({**OWN_PATH, **worker.environment}),
        start_new_session=True,
    )


def _end(started: Sequence[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    """Ask the living to stop, and end those that do not."""
    living = [process for process in started if process.poll() is None]
    for process in living:
        process.send_signal(number)
    for process in living:
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:  # its lease runs out, and another worker goes on
            process.kill()
            process.wait()


def _summary(stdout: IO[bytes] | None) -> dict[str, Any] | None:
    if stdout is None:
        return None
    with stdout:
        text = stdout.read()
    try:
        return decode_json(text, type=dict[str, Any])
    except msgspec.MsgspecError:
        return None


def merged(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the workers' summaries as one."""
    done = sorted(shard for summary in summaries for shard in summary["shards"])
    failed = {shard: why for summary in summaries for shard, why in summary["failed"].items()}
    return {
        "shards": done,
        "num_samples": sum(summary["num_samples"] for summary in summaries),
        "num_chunks_worked": sum(summary["num_chunks_worked"] for summary in summaries),
        "lost": sorted(shard for summary in summaries for shard in summary["lost"]),
        # One that failed for one worker and was done by another has not failed.
        "failed": {int(shard): why for shard, why in failed.items() if int(shard) not in done},
        "num_bad": sum(summary["num_bad"] for summary in summaries),
    }
