"""Agents that are killed come back; those that end by themselves end the run."""

import signal

import pytest

from brain.ml.agent_keeper import Keeper

KILLED = -signal.SIGKILL


class _Agent:
    def __init__(self) -> None:
        self.code: int | None = None
        self.signals: list[int] = []

    def poll(self) -> int | None:
        return self.code

    def send_signal(self, sig: int) -> None:
        self.signals.append(sig)


class _Node:
    """A keeper of two agents, with the time and the agents in the test's hand."""

    def __init__(self, returns: int = 3) -> None:
        self.now = 0.0
        self.agents: list[_Agent] = []
        self.keeper = Keeper(
            self._start, 2, away_seconds=10, max_returns=returns, clock=lambda: self.now
        )

    def _start(self) -> _Agent:
        self.agents.append(_Agent())
        return self.agents[-1]

    def look_at(self, now: float) -> int:
        self.now = now
        self.keeper.look()
        return len(self.agents)


@pytest.fixture
def node() -> _Node:
    return _Node()


def test_killed_agent_comes_back_after_a_while(node: _Node):
    node.agents[1].code = KILLED
    assert [node.look_at(now) for now in (0, 9.9, 10, 30)] == [2, 2, 3, 3]
    for agent in node.agents:
        agent.code = 0
    assert node.keeper.wait(lambda _: None) == 0


def test_agent_that_ends_by_itself_ends_the_run_with_its_code(node: _Node):
    node.agents[1].code = KILLED
    node.look_at(0)
    node.agents[0].code = 1
    assert node.look_at(50) == 2
    assert node.keeper.wait(lambda _: None) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_agent_that_was_asked_to_go_before_it_could_hear_does_not_come_back(
    node: _Node, number: signal.Signals
):
    node.agents[1].code = -number
    node.look_at(0)
    node.agents[0].code = 0
    assert node.look_at(50) == 2
    assert node.keeper.wait(lambda _: None) == 128 + number


def test_returns_are_counted(node: _Node):
    node = _Node(returns=1)
    for now in (0.0, 20.0, 40.0):
        node.agents[-1].code = KILLED
        node.look_at(now)
    assert len(node.agents) == 3
    node.agents[0].code = 0
    assert node.keeper.wait(lambda _: None) == 128 + signal.SIGKILL


def test_signal_is_passed_on_and_nobody_comes_back(node: _Node):
    node.keeper.end(signal.SIGTERM)
    assert [agent.signals for agent in node.agents] == [[signal.SIGTERM]] * 2
    for agent in node.agents:
        agent.code = -signal.SIGTERM
    assert node.look_at(50) == 2
    assert node.keeper.wait(lambda _: None) == 143
