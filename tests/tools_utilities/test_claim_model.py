"""The protocol's model: no interleaving breaks it, and each broken variant is caught."""

import pytest

from tests.claim_model import Budget, Model, explore

CONFIGURATIONS = [
    # workers, shards, faults, crashes, takeovers, releases, renewals, states
    (2, 1, 1, 0, 1, 0, 1, 5_218),
    (2, 1, 1, 0, 1, 1, 0, None),
    (3, 1, 1, 0, 1, 0, 0, 12_910),
    (2, 2, 1, 0, 1, 0, 0, 14_768),
]
NIGHTLY = [
    (2, 1, 1, 1, 1, 0, 1, 124_624),
    (2, 1, 1, 1, 1, 1, 0, 403_674),
    (2, 1, 1, 0, 1, 1, 1, 123_542),
]
MUTANTS = [
    ("uncond_claim", Budget(1, 1, 1, 0)),
    ("uncond_done", Budget(1, 1, 1, 0)),
    ("no_gen", Budget(1, 1, 1, 0)),
    ("conflict_is_loss", Budget(1, 1, 1, 0)),
    ("timeout_is_success", Budget(1, 1, 1, 0)),
    ("shared_output", Budget(1, 1, 1, 0)),
    ("done_only_if_asked", Budget(2, 0, 1, 0)),
    ("readopt", Budget(2, 0, 1, 1)),
]


def check(configuration: tuple[int | None, ...]) -> None:
    workers, shards, faults, crashes, takeovers, releases, renewals, states = configuration
    budget = Budget(faults or 0, crashes or 0, takeovers or 0, releases or 0)
    result = explore(Model(workers or 0, shards or 0, budget, renewals=renewals))
    assert (result.violation, result.unfinishable) == (None, 0)
    # The counts are those of the checker this one was ported from: it explores the same protocol.
    assert states is None or result.states == states


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_no_interleaving_breaks_the_protocol(configuration):
    check(configuration)


@pytest.mark.nightly
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("configuration", NIGHTLY)
def test_no_interleaving_breaks_the_protocol_with_more_faults(configuration):
    check(configuration)


@pytest.mark.parametrize(("mutant", "budget"), MUTANTS)
def test_a_broken_protocol_is_caught(mutant, budget):
    renewals = 0 if mutant == "readopt" else 1
    assert explore(Model(2, 1, budget, renewals=renewals, mutant=mutant)).violation is not None
