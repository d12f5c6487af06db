"""Keeps the agents of several nodes on one machine; imports no torch.

A node whose agent was killed stays away for a while, as a machine that starts again would, and comes
back; the others go on without it meanwhile. An agent that ended by itself has ended the run.
"""

import logging
import signal
import time
from collections.abc import Callable
from typing import Protocol

LOOK_SECONDS = 0.25
ASKED = (signal.SIGINT, signal.SIGTERM)
"""An agent that these end before it can hear them was asked to go, not lost."""
SIGNAL_BASE = 128

logger = logging.getLogger("quark.agent")


class AgentProcess(Protocol):
    """What is needed of a `subprocess.Popen`."""

    def poll(self) -> int | None:
        """Return the exit code, -n when signal n ended it, None while it runs."""
        ...

    def send_signal(self, sig: int) -> None:
        """Send a signal."""
        ...


class Keeper:
    """Looks after one agent a node."""

    def __init__(
        self,
        start: Callable[[], AgentProcess],
        count: int,
        *,
        away_seconds: float,
        max_returns: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the agents.

        Args:
            start: Starts one.
            count: Nodes.
            away_seconds: How long a node whose agent was killed stays away.
            max_returns: How often nodes come back, of all together.
            clock: Seconds that never go back.
        """
        self._start, self._clock, self._away_seconds = start, clock, away_seconds
        self._agents: dict[int, AgentProcess] = {number: start() for number in range(count)}
        self._away: dict[int, float] = {}
        """Nodes to come back, and when they went."""
        self._codes: list[int] = []
        self._returns_left = max_returns

    def wait(self, sleep: Callable[[float], None] = time.sleep) -> int:
        """Return the first exit code that is not 0, or 0, once no agent is left."""
        while self._agents or self._away:
            self.look()
            sleep(LOOK_SECONDS)
        return next((code for code in self._codes if code), 0)

    def end(self, number: int) -> None:
        """Pass a signal on to all agents; nobody comes back any more."""
        self._codes.append(SIGNAL_BASE + number)
        for agent in list(self._agents.values()):
            if agent.poll() is None:
                agent.send_signal(number)

    def look(self) -> None:
        """See to the agents once."""
        for number, agent in list(self._agents.items()):
            code = agent.poll()
            if code is None:
                continue
            del self._agents[number]
            if code < 0 and -code not in ASKED and not self._codes and self._returns_left:
                logger.warning("node %d: signal %d ended its agent", number, -code)
                self._returns_left -= 1
                self._away[number] = self._clock()
            else:
                self._codes.append(SIGNAL_BASE - code if code < 0 else code)
        if self._codes:  # the run is over, or about to be
            self._away.clear()
        for number, gone in list(self._away.items()):
            if self._clock() - gone >= self._away_seconds:
                logger.warning("node %d: comes back", number)
                del self._away[number]
                self._agents[number] = self._start()
