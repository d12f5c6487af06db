"""The process a pipeline with keys runs in: settings on stdin, the result on stdout, as JSON."""

import sys

import msgspec

from tools_utilities.bridge.bridge_settings import BridgeSettings
from tools_utilities.bridge.pipelines import run_here
from tools_utilities.errors import QuarkError, RunStoppedError
from tools_utilities.prepared_types import prepared
from tools_utilities.redaction import guard_process
from tools_utilities.stop_signals import stopping_cleanly


@prepared
class _Request(msgspec.Struct, frozen=True):
    settings: BridgeSettings
    prefix: str | None = None


def main() -> int:
    """Run the request; returns the exit code."""
    guard_process()
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=_Request)
    try:
        with stopping_cleanly():
            reply = {"made": run_here(request.settings, request.prefix)}
        code = 0
    except QuarkError as error:
        reply = {"error": str(error), "hint": error.hint}  # type: ignore[dict-item] # a reply is either
        code = error.exit_code
    except KeyboardInterrupt:  # Ctrl-C reaches this process too; the one that started it says so
        return RunStoppedError.exit_code
    sys.stdout.buffer.write(msgspec.json.encode(reply))
    return code


if __name__ == "__main__":
    sys.exit(main())
