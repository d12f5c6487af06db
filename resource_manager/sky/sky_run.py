"""A run that SkyPilot has started, watched through what it prints; `rented_run` asks it now and then.

The output may end before the run does (a connection, SkyPilot's server): SkyPilot is asked how the run
stands, and the output is taken up again from its beginning.
"""

import queue
import subprocess  # noqa: TC003 - the style here: plain imports
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from resource_manager.runs import last_events
from resource_manager.sky.sky_life import ENDED, LOST, SkyLife
from resource_manager.sky.sky_mirror import SkyMirror
from resource_manager.sky.sky_program import Sky, end
from tools_utilities.errors import MachineError

STOPPED, TERMINATED, KILLED, GONE = 130, 143, 137, 1
NEAR_SECONDS = 15.0


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was launched."""

    run_dir: Path
    """Here."""
    stop_file: str
    """There: by it the run is asked to end."""
    began_at: float
    ends_at: float
    """Unix seconds of its launch, and at which it saves and ends by itself."""


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """Limits, in seconds."""

    again: float = 5.0
    """Before output that has ended is taken up again."""
    unknown: float = 600.0
    """How long nobody may be able to say how the run stands."""


PATIENCE = Patience()


class SkyRun:
    """The handle of one run."""

    pid = 0

    def __init__(
        self,
        sky: Sky,
        life: SkyLife,
        mirror: SkyMirror,
        watched: Watched,
        *,
        patience: Patience = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Watch a run that was submitted; nothing is asked before the first `poll`."""
        self._sky, self._life, self._mirror, self._watched = sky, life, mirror, watched
        self._patience, self._clock = patience, clock
        self._output: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._silent_at: float | None = None
        """Since when nobody could say how it stands."""
        self._next_at = clock()
        self._asked: int | None = None
        self._left = False
        self._news: queue.SimpleQueue[str] = queue.SimpleQueue()

    def poll(self) -> int | None:
        """As of RunHandle."""
        if self._asked == KILLED:
            return KILLED
        if self._output is not None:
            if self._output.poll() is None:
                return None
            self._drop()
            return None if self._left else self._ended_code()
        if self._clock() >= self._next_at and not self._left:
            self._take_up()
        return None

    def wait(self, timeout_seconds: float | None = None) -> int:
        """As of RunHandle."""
        deadline = None if timeout_seconds is None else self._clock() + timeout_seconds
        while (code := self.poll()) is None:
            if deadline is not None and self._clock() >= deadline:
                raise TimeoutError(f"run {self._watched.run_dir.name} has not ended")
            time.sleep(0.1)
        return code

    def interrupt(self) -> None:
        """As of RunHandle."""
        self._stop(STOPPED)

    def terminate(self) -> None:
        """As of RunHandle; at its deadline it saves by itself, and is not cut off."""
        if time.time() >= self._watched.ends_at - NEAR_SECONDS:
            self._asked = TERMINATED
        else:
            self._stop(TERMINATED)

    def kill(self) -> None:
        """As of RunHandle; whoever keeps its machines destroys them next."""
        self._asked = KILLED
        self.leave()

    def news(self) -> list[str]:
        """As of RunHandle."""
        told = []
        while not self._news.empty():
            told.append(self._news.get())
        return told

    def leave(self) -> None:
        """Watch no more; the run goes on."""
        self._left = True
        if self._output is not None:
            end(self._output)
            self._drop()

    def _stop(self, code: int) -> None:
        self._asked = code
        try:
            self._life.stop(self._watched.stop_file)
        except MachineError as error:
            self._news.put(f"{error}; it ends when its machines do")
            self._asked = KILLED

    def _take_up(self) -> None:
        self._mirror.begin()
        self._output = self._sky.follow(self._life.follow(until_end=True))
        self._reader = threading.Thread(
            target=self._read, args=(self._output,), name="quark-sky-output", daemon=True
        )
        self._reader.start()

    def _read(self, output: "subprocess.Popen[bytes]") -> None:
        if output.stdout is None:
            return
        with output.stdout as lines:
            for line in lines:
                self._mirror.take(line.decode("utf-8", "replace").rstrip("\n"))

    def _drop(self) -> None:
        if self._reader is not None:
            self._reader.join(self._patience.again)
        self._output = self._reader = None
        self._next_at = self._clock() + self._patience.again

    def _ended_code(self) -> int | None:
        try:
            status = self._life.stands()
        except MachineError as error:
            self._unknown(error)
            return None
        self._silent_at = None
        if status.state not in (ENDED, LOST):
            self._news.put(f"{self._life.machine}: its output ended, the run goes on")
            return None
        read_once(self._sky, self._life, self._mirror)
        if status.why:
            self._news.put(status.why)
        return told_code(
            self._watched.run_dir, self._watched.began_at, status.exit_code, self._asked
        )

    def _unknown(self, error: MachineError) -> None:
        now = self._clock()
        if self._silent_at is None:
            self._silent_at = now
            self._news.put(f"{error}; the run may go on, trying again")
        if now - self._silent_at >= self._patience.unknown:
            raise error


def read_once(sky: Sky, life: SkyLife, mirror: SkyMirror) -> None:
    """Bring what the run has printed so far; what cannot be read stays away."""
    mirror.begin()
    try:
        answer = sky.ask(life.follow(until_end=False))
    except MachineError:
        return
    for line in answer.text.splitlines():
        mirror.take(line)


def told_code(run_dir: Path, since: float, told: int | None, asked: int | None) -> int:
    """Return a run's exit code: as it said itself since then, else as SkyPilot and who asked have it."""
    events = [event for event in last_events(run_dir) if event.get("time", 0.0) >= since]
    last = events[-1] if events else {}
    if last.get("event") in {"end", "error"} and last.get("exit_code") is not None:
        return int(last["exit_code"])
    if asked is not None and told != 0:
        return asked
    return GONE if told is None else told
