"""The process a pipeline with keys runs in: settings on stdin, the result on stdout, as JSON."""

import sys
import time
from collections.abc import Callable

import msgspec

from tools_utilities.bridge.bridge_settings import know_secrets
from tools_utilities.bridge.pipelines import Request, begin_here, run_here
from tools_utilities.errors import QuarkError, RunStoppedError
from tools_utilities.redaction import guard_process
from tools_utilities.sharded_dataset import Dealt
from tools_utilities.stop_signals import stopping_cleanly

REPORT_SECONDS = 10.0


def main() -> int:
    """Run the request; returns the exit code."""
    guard_process()
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    know_secrets(request.settings.pipeline.source_options.load_kwargs)
    try:
        with stopping_cleanly():
            reply = {"made": _carried_out(request)}
        code = 0
    except QuarkError as error:
        reply = {"error": str(error), "hint": error.hint}  # type: ignore[dict-item] # a reply is either
        code = error.exit_code
    except KeyboardInterrupt:  # Ctrl-C reaches this process too; the one that started it says so
        return RunStoppedError.exit_code
    sys.stdout.buffer.write(msgspec.json.encode(reply))
    return code


def _carried_out(request: Request) -> dict[str, object] | None:
    if request.begins:
        return begin_here(request.settings, request.prefix)
    report = reporter(sys.stderr.write) if request.reports else _quiet
    return run_here(request.settings, request.prefix, progress=request.progress, report=report)


def _quiet(_dealt: Dealt) -> None:
    """Nobody is told."""


def reporter(
    say: Callable[[str], object], clock: Callable[[], float] = time.monotonic
) -> Callable[[Dealt], None]:
    """Return what says how far a pipeline has come, every REPORT_SECONDS at most."""
    said_at = clock()

    def report(dealt: Dealt) -> None:
        nonlocal said_at
        if clock() - said_at < REPORT_SECONDS:
            return
        said_at = clock()
        share = ""
        if dealt.done_bytes and dealt.total_bytes:  # it counts whole blocks that lie behind
            share = f" · {dealt.done_bytes / dealt.total_bytes:.0%} of the source"
        say(f"{dealt.samples:,} samples{share}\n")

    return report


if __name__ == "__main__":
    sys.exit(main())
