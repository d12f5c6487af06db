"""A run on a machine that is rented for it: made, watched and destroyed by one thread.

`launch` returns at once with such a handle, so that Ctrl-C is heard while the machine is being made. On
whatever way the thread ends, the machine is destroyed and that is read back; only a look at a run
of another process leaves one alone that goes on.
"""

import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol

from resource_manager.launch_target import RunHandle
from resource_manager.rental.renting import CancelledError
from tools_utilities.errors import MachineError, StillBilledError

POLL_SECONDS = 0.25
COLLECT_SECONDS = 300.0
"""Before the machine ends itself: for a run that was asked to end to save, and for its files to come."""
STOPPED = 130
LEAVE_SECONDS = 120.0


class Keeper(Protocol):
    """What a rented run needs of its machine."""

    def begin(self, run: "RentedRun") -> RunHandle:
        """Make the machine and launch on it; asks `run.is_asked` between its steps."""
        ...

    def is_gone(self) -> bool:
        """Whether the machine was taken away; asks the provider now and then."""
        ...

    def again(self, run: "RentedRun") -> RunHandle:
        """Go on with the run on another machine, within the same caps.

        Raises:
            QuarkError: it does not go on.
        """
        ...

    def cancel(self) -> None:
        """Break off what `begin` waits for; called from another thread."""
        ...

    def seconds_left(self) -> float:
        """Seconds until the machine ends itself."""
        ...

    def end(self) -> str:
        """Destroy what there is and prove it; returns what to say.

        Raises:
            StillBilledError: there is no proof.
        """
        ...

    def unproven(self) -> StillBilledError:
        """Return what to say of a machine whose end nobody has waited for long enough."""
        ...


class RentedRun:
    """The handle of a run on a rented machine."""

    def __init__(
        self,
        keeper: Keeper,
        *,
        looks_on: bool = False,
        sleep: Callable[[float], None] = time.sleep,
        leave_seconds: float = LEAVE_SECONDS,
    ) -> None:
        """Prepare.

        Args:
            keeper: Sees to the machine.
            looks_on: It is another process's; it ends here only when it has ended.
            sleep: Waits between two looks.
            leave_seconds: What a machine gets to be gone when nobody watches on.
        """
        self._leave_seconds = leave_seconds
        self._was_told = False
        self.pid = 0
        self._keeper = keeper
        self._looks_on = looks_on
        self._sleep = sleep
        self._asked: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._was_asked = threading.Event()
        self._news: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._running = threading.Event()
        self._ended = threading.Event()
        self._inner: RunHandle | None = None
        self._code: int | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._live, name="quark-rented", daemon=True)

    def start(self) -> "RentedRun":
        """Begin; returns itself."""
        self._thread.start()
        return self

    def poll(self) -> int | None:
        """As of RunHandle."""
        if not self._ended.is_set():
            return None
        if self._error is not None:
            self._was_told = True
            raise self._error
        return self._code

    def wait(self, timeout_seconds: float | None = None) -> int:
        """As of RunHandle."""
        if not self._ended.wait(timeout_seconds):
            raise TimeoutError("the rented run has not ended")
        code = self.poll()
        return 1 if code is None else code

    def interrupt(self) -> None:
        """As of RunHandle; while the machine is being made: it is destroyed."""
        self._ask("interrupt")

    def terminate(self) -> None:
        """As of RunHandle, as `interrupt`."""
        self._ask("terminate")

    def kill(self) -> None:
        """As of RunHandle; waits until the machine is gone, which nobody else would see to."""
        self._ask("kill")
        if not self._looks_on:
            self._ended.wait(self._leave_seconds)

    def check_gone(self) -> None:
        """Say, once, what may still be billed after the run was ended.

        Raises:
            StillBilledError: the machine could not be shown to be gone, or not in time.
        """
        if not self._ended.is_set():
            raise self._keeper.unproven()
        if isinstance(self._error, StillBilledError) and not self._was_told:
            self.poll()

    def news(self) -> list[str]:
        """As of RunHandle."""
        told = []
        while not self._news.empty():
            told.append(self._news.get())
        if self._inner is not None:
            told += self._inner.news()
        return told

    @property
    def can_leave(self) -> bool:
        """Whether there is a run that goes on without this process."""
        return self._running.is_set()

    def tell(self, text: str) -> None:
        """Say something to whoever watches."""
        self._news.put(text)

    def await_running(self, tell: Callable[[str], None]) -> None:
        """Wait until the run has begun, saying how that goes; raises what kept it from that."""
        while not self._running.is_set() and not self._ended.wait(POLL_SECONDS):
            for line in self.news():
                tell(line)
        self.poll()

    def await_detached(self, tell: Callable[[str], None]) -> None:
        """As `await_running`, for a command that leaves then: what does not begin is ended, and shown to be.

        Raises:
            StillBilledError: it could not be shown to be gone.
        """
        try:
            self.await_running(tell)
        except BaseException:
            self.kill()
            self.check_gone()
            raise

    def check_asked(self) -> None:
        """Raise CancelledError when somebody asked for the end."""
        if self.is_asked:
            raise CancelledError("stopped while the machine was being made")

    @property
    def is_asked(self) -> bool:
        """Whether somebody asked for the end."""
        return self._was_asked.is_set()

    def leave(self) -> None:
        """Watch no more: a run goes on; a machine on which none is yet is destroyed.

        Raises:
            StillBilledError: it could not be shown to be gone.
        """
        if self._looks_on or (self._running.is_set() and not self._ended.is_set()):
            return
        if not self._ended.is_set():
            self.kill()
        self.check_gone()

    def _ask(self, name: str) -> None:
        if not self._looks_on:
            self._asked.put(name)
            self._was_asked.set()
            if not self._running.is_set():
                self._keeper.cancel()

    def _live(self) -> None:
        try:
            self._code = self._until_ended()
        except CancelledError:
            self._code = STOPPED
        except BaseException as error:  # noqa: BLE001 - carried to whoever polls
            # What was broken off on request is no failure.
            if self.is_asked and not self._running.is_set():
                self._code = STOPPED
            else:
                self._error = error
        try:
            if not self._looks_on or self._code is not None:
                said = self._keeper.end()
                if said:
                    self.tell(said)
        except BaseException as error:  # noqa: BLE001 - what may still be billed comes first
            self._error = error
        self._ended.set()

    def _until_ended(self) -> int:
        code = self._followed(self._keeper.begin(self))
        while code is None:  # its machine was taken away
            self._running.clear()
            self.check_asked()
            code = self._followed(self._keeper.again(self))
        return code

    def _followed(self, inner: RunHandle) -> int | None:
        """Return the exit code of a run; None: its machine is gone."""
        self._inner, self.pid = inner, inner.pid
        self._running.set()
        reminded = False
        while (code := self._polled(inner)) is None:
            while not self._asked.empty():
                getattr(inner, self._asked.get())()
            if self._keeper.is_gone():
                self._drop(inner)
                return None
            left = self._keeper.seconds_left()
            if left <= 0:
                self._drop(inner)
                self.tell("the cap is reached")
                return STOPPED
            if left <= COLLECT_SECONDS and not reminded:
                reminded = True
                self.tell("the cap is near: the run saves and ends")
                inner.terminate()
            self._sleep(POLL_SECONDS)
        return code

    def _polled(self, inner: RunHandle) -> int | None:
        """Ask the run; one that nobody can reach because its machine is gone is no failure yet."""
        try:
            return inner.poll()
        except MachineError:
            if not self._keeper.is_gone():
                raise
            return None

    def _drop(self, inner: RunHandle) -> None:
        """Watch the old run no more; it would look for its machine for long."""
        leave = getattr(inner, "leave", None)
        if leave is not None:
            leave()
