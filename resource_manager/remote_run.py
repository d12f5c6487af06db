"""A run on another machine, watched from here: a thread talks to it, everybody else asks the thread.

The connection may break and come back; the run there knows nothing of it. What is asked of the run
(interrupt, terminate, kill) waits for the next connection, and the run counts as ended when it has
ended there and everything it wrote is here.
"""

import queue
import secrets
import threading
import time
from collections.abc import Callable

from resource_manager.launch_target import RunStatus
from resource_manager.remote_host import OutOfReachError, RemoteHost
from resource_manager.remote_mirror import RunMirror
from resource_manager.remote_record import ENDED, read_record, try_mirror_lock
from resource_manager.runs import last_events
from tools_utilities.file_locks import HeldFile  # noqa: TC001 - the style here: plain imports
from tools_utilities.run_words import said_run

POLL_SECONDS = 0.25
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 20.0
PATIENCE_SECONDS = 600.0
"""How long a machine may be out of reach before nobody waits for it any more."""
KILL_SECONDS = 10.0
"""What `kill` waits for the word to get there."""
NOTE_SECONDS = 5.0
"""Between two notes of how the run stands, for other commands."""
GONE_CODE = 1
Connect = Callable[[], RemoteHost]


class RemoteRun:
    """A handle on a run that was launched there; nothing is asked before the first `poll`."""

    def __init__(
        self,
        pid: int,
        mirror: RunMirror,
        connect: Connect,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        patience_seconds: float = PATIENCE_SECONDS,
        looks_on: bool = False,
    ) -> None:
        """Watch a run.

        `connect` opens a connection, anew each time; `looks_on`: what asks the run to end does nothing.
        """
        self._looks_on = looks_on
        self.pid = pid
        self._mirror = mirror
        self._connect = connect
        self._host: RemoteHost | None = None
        self._lock: HeldFile | None = None
        self._clock, self._sleep = clock, sleep
        self._patience_seconds = patience_seconds
        self._asked: queue.Queue[tuple[str, str]] = queue.Queue()
        self._news: queue.Queue[str] = queue.Queue()
        self._code: int | None = None
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="quark-mirror", daemon=True)

    def poll(self) -> int | None:
        """As of RunHandle."""
        self._begin()
        if not self._ended.is_set():
            return None
        if self._error is not None:
            raise self._error
        return self._code

    def wait(self, timeout_seconds: float | None = None) -> int:
        """As of RunHandle."""
        self._begin()
        if not self._ended.wait(timeout_seconds):
            raise TimeoutError(f"run {self._mirror.run_dir.name} has not ended")
        code = self.poll()
        return GONE_CODE if code is None else code

    def interrupt(self) -> None:
        """As of RunHandle."""
        self._ask("interrupt")

    def terminate(self) -> None:
        """As of RunHandle."""
        self._ask("terminate")

    def kill(self) -> None:
        """As of RunHandle; waits a little for the word to get there."""
        self._ask("kill")
        if self._looks_on:
            return
        deadline = self._clock() + KILL_SECONDS
        while not (self._asked.empty() or self._ended.is_set()) and self._clock() < deadline:
            self._sleep(POLL_SECONDS / 4)

    def news(self) -> list[str]:
        """As of RunHandle."""
        told = []
        while not self._news.empty():
            told.append(self._news.get())
        return told

    def leave(self) -> None:
        """Watch no more; the run goes on."""
        self._left.set()
        if self._thread.is_alive():
            self._thread.join(KILL_SECONDS)

    def _begin(self) -> None:
        if not self._thread.is_alive() and not self._ended.is_set():
            self._thread.start()

    def _ask(self, name: str) -> None:
        if self._looks_on:
            return
        self._asked.put((name, secrets.token_hex(8)))
        self._begin()

    def _follow(self) -> None:
        try:
            self._code = self._until_ended()
        except BaseException as error:  # noqa: BLE001 - carried to whoever polls, who would wait for ever
            self._error = error
        finally:
            self._drop_host()
            if self._lock is not None:
                self._lock.close()
            self._ended.set()

    def _until_ended(self) -> int | None:
        noted_at = self._clock() - NOTE_SECONDS
        while not self._left.is_set():
            try:
                if not self._may_fill():
                    code = self._told_by_another()
                    if code is not None:
                        return code
                    continue
                host = self._connected()
                self._pass_on(host)
                status = self._mirror.read(host)
                if status.state in ENDED:
                    return self._finish(host, status)
                if self._clock() - noted_at >= NOTE_SECONDS:
                    self._mirror.note(status)
                    noted_at = self._clock()
                if not self._mirror.bring_piece(host, all_of_them=False):
                    self._sleep(POLL_SECONDS)
            except OutOfReachError as error:
                self._reconnect(error)
        return None

    def _connected(self) -> RemoteHost:
        if self._host is None:
            self._host = self._connect()
        return self._host

    def _may_fill(self) -> bool:
        """Tell whether this process fills the run's folder: only one does at a time."""
        if self._lock is None:
            self._lock = try_mirror_lock(self._mirror.run_dir)
            if self._lock is not None:
                self._mirror.record = read_record(self._mirror.run_dir) or self._mirror.record
        return self._lock is not None

    def _told_by_another(self) -> int | None:
        """Return the exit code once the process that fills the folder has seen the end."""
        if not self._asked.empty():
            self._pass_on(self._connected())
        record = read_record(self._mirror.run_dir)
        if record is not None and record.collected:
            return GONE_CODE if record.exit_code is None else record.exit_code
        self._sleep(POLL_SECONDS)
        return None

    def _finish(self, host: RemoteHost, status: RunStatus) -> int:
        collect(self._mirror, host, status)
        if status.why:
            self._news.put(f"{self._mirror.record.remote.where}: {status.why}")
        if status.exit_code is not None:
            return status.exit_code
        # Whoever would have written its code is gone; the run itself may have ended in order.
        last = next(iter(last_events(self._mirror.run_dir)[-1:]), {})
        return int(last.get("exit_code") or GONE_CODE)

    def _pass_on(self, host: RemoteHost) -> None:
        while not self._asked.empty():
            name, token = self._asked.queue[0]
            host.ask("signal", run=self._mirror.record.run, name=name, token=token)
            self._asked.get()  # only now: a word that did not get there is said again

    def _reconnect(self, error: OutOfReachError) -> None:
        """Wait until the machine answers again.

        Raises:
            OutOfReachError: it does not for longer than anybody waits.
        """
        where = self._mirror.record.remote.where
        self._news.put(f"{error}; the run goes on there, trying again")
        began, pause = self._clock(), FIRST_PAUSE_SECONDS
        while not self._left.is_set():
            self._drop_host()
            try:
                host = self._connect()
            except OutOfReachError as again:
                if self._clock() - began + pause > self._patience_seconds:
                    raise self._given_up(again) from again
                self._sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            else:
                self._host = host
                self._news.put(f"{where}: connected again")
                return

    def _given_up(self, error: OutOfReachError) -> OutOfReachError:
        said = said_run(self._mirror.run_dir.name)
        return OutOfReachError(
            f"{error}; not reached for {self._patience_seconds:.0f} s, the run may go on there",
            hint=f"`quark attach {said}` watches it again, `quark stop {said}` ends it.",
            where=self._mirror.record.remote.where,
        )

    def _drop_host(self) -> None:
        host, self._host = self._host, None
        if host is not None:
            host.close()


def collect(mirror: RunMirror, host: RemoteHost, status: RunStatus) -> None:
    """Bring every checkpoint of a run that has ended, and note its end."""
    mirror.note(status)  # what comes next may be cut off
    while mirror.bring_piece(host, all_of_them=True):
        pass
    mirror.bring_best(host)
    mirror.bring_broken(host)
    mirror.note(status, collected=True)
