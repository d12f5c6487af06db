"""The plan of uses: what is still needed this epoch, else when the next epoch needs it."""

import numpy as np

from tools_utilities.use_plan import LATER, UsePlan

FIRST, LAST, FOLLOWING = (np.array(places) for places in ([0, 1, 2, 3], [4, 1, 2, 5], [3, 0, 2, 1]))


def order_of(plan: UsePlan) -> list[str]:
    uses = plan.next_uses()
    assert min(uses.values()) >= LATER
    return sorted(uses, key=lambda digest: uses[digest])


def test_what_has_been_read_for_the_last_time_waits_for_the_next_epoch():
    plan = UsePlan(lambda: ["a", "b", "c", "d"], lambda: (FIRST, LAST, FOLLOWING))
    assert order_of(plan) == ["a", "b", "c", "d"]
    plan.passed("a")
    plan.passed("b")
    # a comes again this epoch; b is first of the next one, after all of this.
    assert order_of(plan) == ["a", "c", "d", "b"]
    plan.passed("c")
    plan.passed("d")
    assert order_of(plan) == ["a", "d", "b", "c"]


def test_nothing_is_computed_before_it_is_needed():
    asked = []

    def digests():
        asked.append(1)
        return ["a", None, "c", "d"]

    plan = UsePlan(digests, lambda: (FIRST, LAST, FOLLOWING))
    plan.passed("unknown")
    plan.passed("c")
    assert not asked
    assert set(plan.next_uses()) == {"a", "c", "d"}
    assert plan.next_uses()
    assert asked == [1]
