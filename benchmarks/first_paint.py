"""CPU time of the program until a person sees something at a terminal; load of the machine says little.

    python benchmarks/first_paint.py [--children 9] [--data FOLDER]

Target: the first paint below 100 ms. Linux only: it reads a process's own time from /proc.
"""

import argparse
import os
import pty
import select
import signal
import statistics
import sys
import time
from pathlib import Path

LIMIT_SECONDS = 30.0
ASKS_CURSOR, CURSOR = b"\x1b[6n", b"\x1b[1;1R"


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process so far."""
    return int(Path(f"/proc/{pid}/schedstat").read_text("ascii").split()[0]) / 1e9


def paint(arguments: list[str], shows: bytes) -> tuple[float, float]:
    """Return the CPU seconds until the first byte at a terminal, and until `shows` is there.

    Raises:
        TimeoutError: it never comes.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        # The program beside this interpreter, as a person starts it.
        os.execv(sys.executable, [sys.executable, "-m", "quark_cli", *arguments])  # noqa: S606
    try:
        first, seen, deadline = 0.0, b"", time.monotonic() + LIMIT_SECONDS
        while shows not in seen:
            if not select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"{arguments}: {shows!r} is not shown: {seen[-200:]!r}")
            try:
                part = os.read(terminal, 65536)
            except OSError as error:  # the program has ended
                raise SystemExit(f"{arguments}: ended before {shows!r}: {seen[-400:]!r}") from error
            first = first or cpu_seconds(pid)
            seen += part
            if ASKS_CURSOR in part:
                os.write(terminal, CURSOR)
        return first, cpu_seconds(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--children", type=int, default=9)
    parser.add_argument(
        "--data", help="a folder of shards below the working one: the plan of a run over it too"
    )
    given = parser.parse_args()
    screens: dict[str, tuple[list[str], bytes]] = {
        "session": ([], b"quark>"),
        "explain": (["explain", "train quark wiht x.jsonl"], b"status"),
    }
    if given.data:
        screens["plan"] = ([f"train on {given.data} for 9 steps"], b"same as")
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in screens}
    for _ in range(given.children):
        for name, (arguments, shows) in screens.items():
            taken[name].append(paint(arguments, shows))
    for name, found in taken.items():
        first, whole = (statistics.median(times) for times in zip(*found, strict=True))
        least = min(times[0] for times in found), min(times[1] for times in found)
        sys.stdout.write(
            f"{name}: first paint {first * 1e3:.0f} ms of CPU (least {least[0] * 1e3:.0f}), "
            f"all of it {whole * 1e3:.0f} ms (least {least[1] * 1e3:.0f})\n"
        )


if __name__ == "__main__":
    main()
