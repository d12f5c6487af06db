"""`python -m tools_utilities.bridge.rented_process FOLDER EVENTS`: a pipeline on a machine rented for it.

Its order comes in one variable of its environment, keys in others, and none of it is written anywhere.
What it says goes to its output; how it ended is the last line of EVENTS. Its progress is kept beside
its output, so that another machine goes on with it.
"""

import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tools_utilities.bridge.bridge_settings import BridgeSettings, know_secrets
from tools_utilities.bridge.checkout import check_out, install_needs
from tools_utilities.bridge.pipelines import Request, in_own_process
from tools_utilities.errors import QuarkError, RunStoppedError, UsageError
from tools_utilities.json_text import decode_json
from tools_utilities.prepared_types import prepared
from tools_utilities.process_environment import environment_now, take_environment
from tools_utilities.redaction import guard_process, redact_data
from tools_utilities.sharding_output import THERE
from tools_utilities.stop_signals import stopping_cleanly

ORDER_VARIABLE = "QUARK_BRIDGE_ORDER"
STAGING_FOLDER = "staging"


@prepared
class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the machine is rented for."""

    settings: BridgeSettings
    """Without keys, and without the section `vast`; the output is the whole of it."""
    repo_url: str | None = None
    repo_ref: str | None = None
    workdir: str | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the order of this process; returns the exit code."""
    folder, events = (Path(given) for given in (arguments or sys.argv[1:]))
    guard_process()
    # Started below a shell's background job it would be deaf to it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with stopping_cleanly():
            told: dict[str, Any] = {"event": "end", "exit_code": 0, "made": _made(folder)}
    except QuarkError as error:
        told = {"event": "error", "message": str(error), "hint": error.hint}
        told |= {"kind": type(error).__name__, "exit_code": error.exit_code}
    except KeyboardInterrupt:
        told = {"event": "end", "exit_code": RunStoppedError.exit_code}
    with events.open("ab") as file:
        file.write(msgspec.json.encode(redact_data({"time": time.time(), **told})) + b"\n")
    return int(told["exit_code"])


def _made(folder: Path) -> dict[str, Any] | None:
    order = taken_order(environment_now())
    settings = order.settings
    know_secrets(settings.pipeline.source_options.load_kwargs)
    staged = msgspec.structs.replace(settings.pipeline, staging_dir=str(folder / STAGING_FOLDER))
    root = None
    if order.repo_url is not None:
        below = Path(order.workdir or folder).expanduser()
        root = check_out(order.repo_url, order.repo_ref, Path.home() / below, _say)
        install_needs(root, hub=settings.pipeline.input_uri.startswith("hf://"))
    request = Request(
        settings=msgspec.structs.replace(settings, pipeline=staged),
        progress=THERE,
        reports=True,
    )
    return in_own_process(request, environment_now(), root=root)


def taken_order(variables: Mapping[str, str]) -> Order:
    """Return the order in an environment, which has it no more: what is started is not handed it.

    Raises:
        UsageError: there is none.
    """
    left = dict(variables)
    text = left.pop(ORDER_VARIABLE, None)
    if text is None:
        raise UsageError(f"{ORDER_VARIABLE} is not set: this is started by a machine's supervisor")
    take_environment(left)
    return decode_json(text.encode(), type=Order)


def _say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
