"""Watching a run: tail its metrics, show them, pass signals on, and end with its exit code.

Ctrl-C says at once that the run is saving and asks it to; a second one ends it without saving.
SIGTERM and a closed terminal (SIGHUP) ask it to save too. Nothing the watcher started is left
behind when it returns, unless somebody left it running on purpose, by a key. Who only looks on
(`attach`) leaves by any signal, and the run goes on.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from resource_manager.launch_target import RunHandle
from resource_manager.live_view import LiveRun
from resource_manager.run_events import event_of
from resource_manager.tensorboard_events import told_last
from tools_utilities.console import DEFAULT_COLUMNS, Console
from tools_utilities.errors import UsageError
from tools_utilities.terminal_keys import pressed_keys
from tools_utilities.terminal_text import Line

POLL_SECONDS = 0.1
PAINT_SECONDS = 0.25
"""At most four pictures a second."""
LOG_SECONDS = 10.0
"""Between lines where nothing can be repainted."""
LOG_TAIL_BYTES = 4096
SAYINGS = (
    "",
    "Saving, then stopping. Ctrl-C again stops without saving.",
    "Stopping without saving.",
)
"""What is said after the first and the second signal."""
NOTHING_SAVED = ("", "Stopping. Ctrl-C again stops at once.", "Stopping at once.")
"""The same of a run that has nothing to save: an evaluation."""
LEAVE_KEY = "d"
KEYS = f"{LEAVE_KEY} leaves it running in the background · Ctrl-C saves and stops"
KEYS_UNSAVED = f"{LEAVE_KEY} leaves it running in the background · Ctrl-C stops"
KEYS_RENTED = f"{LEAVE_KEY} leaves it running, and billed until its cap · Ctrl-C asks"
QUESTION = (
    "It is on a rented machine: k keeps it running (billed until its cap), s saves, stops and destroys"
    " the machine, c goes on watching. Ctrl-C again is s."
)
NOT_YET = "Its machine is still being made: there is no run to leave going yet."
KEEP_KEY, STOP_KEY, CANCEL_KEY = "k", "s", "c"
KEYS_LOOKING = "Ctrl-C ends the view; the run goes on"


class MetricsTail:
    """The events added to a metrics file since the last look; half-written lines wait."""

    def __init__(self, path: Path, *, whole: bool = False) -> None:
        self._path = path
        # A resumed run appends: what is already there was shown by the run that wrote it.
        self._offset = path.stat().st_size if path.exists() and not whole else 0
        self._rest = b""

    def read(self) -> list[dict[str, Any]]:
        """Return the new events; a line that is none is left out."""
        if not self._path.is_file():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [event for line in lines if (event := event_of(line)) is not None]


class Bond(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is to whoever watches it."""

    saves: bool = True
    """A stop saves it."""
    leave: Callable[[], None] | None = None
    """Makes it go on without this process, when the person asks for that; None: it cannot."""
    asks: bool = False
    """It costs money: Ctrl-C asks what is to become of it, where somebody can be asked."""
    looks_on: bool = False
    """It is another process's: a signal ends the looking, not the run."""
    cost: Callable[[], str] = lambda: ""
    """Tells the dollars so far and the cap; empty: nobody bills it."""


WATCHED = Bond()


class RunWatch:
    """One watched run, from its launch to its end."""

    def __init__(
        self,
        name: str,
        metrics_path: Path,
        console: Console,
        *,
        also: Callable[[dict[str, Any]], None] = lambda _event: None,
        bond: Bond = WATCHED,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Watch one run.

        Args:
            name: The run's.
            metrics_path: What is followed.
            console: Where it is shown.
            also: Is given every event; it must not take long.
            bond: What the run is to whoever watches it.
            clock: Seconds that never go back.
            sleep: Waits.
        """
        self._sayings = SAYINGS if bond.saves else NOTHING_SAVED
        self._bond = bond
        self._keys_text = KEYS if bond.saves else KEYS_UNSAVED
        if bond.asks:
            self._keys_text = KEYS_RENTED
        self._question_open = self._answered = False
        if bond.looks_on:
            self._keys_text = KEYS_LOOKING
        self.left = False
        """Whether somebody left the run running."""
        self.run = LiveRun(name)
        self._also = also
        self.signals: list[int] = []
        """Signals received so far, in order."""
        self._tail = MetricsTail(metrics_path, whole=bond.looks_on)
        self._console = console
        self._clock = clock
        self._sleep = sleep
        self._handle: RunHandle | None = None
        self._passed_on = 0

    def follow(self, launch: Callable[[], RunHandle]) -> int:
        """Launch the run and show it until it ends; returns the exit code to pass on."""
        # Handlers first: a signal during the launch is passed on as soon as there is a run.
        with self._signal_handlers():
            self._handle = launch()
            try:
                with self._keys() as typed:
                    if self._paints:
                        with self._console.live() as paint:
                            return self._loop(self._handle, typed, paint)
                    return self._loop(self._handle, typed, None)
            except BaseException:
                if not self._bond.looks_on:
                    self._handle.kill()
                raise

    def _take(self, events: Sequence[dict[str, Any]]) -> None:
        for event in events:
            self.run.take(event)
            self._console.event(event)
            self._also(event)
            if not self._paints and event.get("event") == "warning":
                self._console.warn(str(event.get("message", "")))

    def catch_up(self) -> None:
        """Take in what the run has told so far; of its last start it is passed on too."""
        events = told_last(self._tail.read())
        begun = max((at for at, event in enumerate(events) if event["event"] == "start"), default=0)
        for at, event in enumerate(events):
            self.run.take(event)
            if at >= begun:
                self._console.event(event)

    def _keys(self) -> contextlib.AbstractContextManager[Callable[[], str]]:
        """Return what listens to single keys, where somebody is there to type them."""
        if not self._offers_keys:
            return contextlib.nullcontext(lambda: "")
        return pressed_keys(self._console.terminal()[0])

    @property
    def _paints(self) -> bool:
        return self._console.can_animate and not self._console.about.json

    @property
    def _offers_keys(self) -> bool:
        can = self._console.can_ask and not self._console.about.json
        return can and self._bond.leave is not None

    def _is_left(self, typed: str) -> bool:
        """Tell whether somebody goes, and the run goes on."""
        if self._bond.looks_on:
            self.left = bool(self.signals)
        elif self._question_open:
            self._take_answer(typed.lower())
        elif LEAVE_KEY in typed.lower() and not self.signals:
            self._leave()
        return self.left

    def _leave(self) -> None:
        """Go, and leave the run going; one on a machine that is still being made cannot be left yet."""
        if self._bond.leave is None:
            return
        if not getattr(self._handle, "can_leave", True):
            self._console.note(NOT_YET)
            return
        self._bond.leave()
        self.left = True

    def _take_answer(self, typed: str) -> None:
        """Act on the first key that answers the question; others mean nothing."""
        answers = {KEEP_KEY, STOP_KEY, CANCEL_KEY}
        answer = next((key for key in typed if key in answers), "")
        if not answer:
            return
        self._question_open = False
        if answer == CANCEL_KEY:
            self.signals.clear()
        elif answer == STOP_KEY:
            self._answered = True
        else:
            self._leave()
            if not self.left:
                self.signals.clear()

    def _asks(self) -> list[str] | None:
        """Return what to say while a Ctrl-C waits for its answer; None: it is passed on."""
        if self._question_open and len(self.signals) > 1:
            del self.signals[1:]  # again: the plain way out, which saves
            self._question_open, self._answered = False, True
        if self._answered or self.signals != [signal.SIGINT]:
            return None
        if not (self._bond.asks and self._offers_keys):
            return None
        said = [] if self._question_open else [QUESTION]
        self._question_open = True
        return said

    def _loop(
        self,
        handle: RunHandle,
        typed: Callable[[], str],
        paint: Callable[[Sequence[Line]], None] | None,
    ) -> int:
        if self._offers_keys and paint is None:
            self._console.note(self._keys_text)
        shown_at, shown = self._clock() - LOG_SECONDS, (None, False)
        while True:
            code = handle.poll()
            # Read after the poll: what an ended run wrote last is there by now.
            self._take(self._tail.read())
            said = self._pass_signals_on(handle)
            self._tell(handle.news(), painted=paint is not None)
            now = self._clock()
            if paint and (said or code is not None or now - shown_at >= PAINT_SECONDS):
                paint(self._lines())
                shown_at = now
            elif not paint:
                self._console.note(*said)
                stands = (self.run.step.get("step"), self.run.evaluating)
                if now - shown_at >= LOG_SECONDS and stands != shown:
                    self.run.cost = self._bond.cost()
                    self._console.note(f"{self.run.name}: {self.run.log_line()}")
                    shown_at, shown = now, stands
            if code is not None:
                return code
            if self._is_left(typed()):
                return 0
            self._sleep(POLL_SECONDS)

    def _lines(self) -> list[Line]:
        width = (self._console.note_width or DEFAULT_COLUMNS) - 1
        self.run.cost = self._bond.cost()
        saying = QUESTION if self._question_open else self._sayings[min(2, len(self.signals))]
        keys = self._keys_text if self._offers_keys or self._bond.looks_on else ""
        return self.run.lines(width, draw=self._console.draws_blocks, saying=saying, keys=keys)

    def _tell(self, news: list[str], *, painted: bool) -> None:
        for text in news:
            if painted:
                self.run.news = text
            else:
                self._console.note(text)

    def _pass_signals_on(self, handle: RunHandle) -> list[str]:
        """Pass on what arrived since the last look; returns what to say about it."""
        said: list[str] = []
        if self._bond.looks_on:
            return said
        asked = self._asks()
        if asked is not None:
            return asked
        for number in self.signals[self._passed_on : 2]:
            self._passed_on += 1
            said.append(self._sayings[self._passed_on])
            if self._passed_on > 1:
                handle.kill()
            elif number == signal.SIGTERM:
                handle.terminate()
            else:
                handle.interrupt()
        return said

    @contextlib.contextmanager
    def _signal_handlers(self) -> Iterator[None]:
        # Python delivers signals to the main thread only; elsewhere the caller keeps its own.
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        # Only noted here: writing or waiting inside a handler may re-enter what it interrupted.
        before = {
            number: signal.signal(number, lambda got, _frame: self.signals.append(got))
            for number in wanted
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return every event of a metrics file.

    Raises:
        UsageError: there is no such file.
    """
    if not path.exists():
        raise UsageError(f"{path}: no metrics yet", hint="The run has not reached its first step.")
    return MetricsTail(path, whole=True).read()


def last_log_lines(path: Path, count: int = 3) -> list[str]:
    """Return the last lines of a log that say something, oldest first."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
        lines = file.read().decode("utf-8", "backslashreplace").splitlines()
    return [line for line in lines if line.strip()][-count:]
