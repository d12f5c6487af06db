"""The plan of uses: what is still needed this epoch, else when the next epoch needs it."""

import numpy as np

from tools_utilities.use_plan import LATER, OVERDUE, UsePlan

STARTS, PLACES = np.array([0, 2, 3, 4, 6]), np.array([0, 4, 1, 2, 3, 5])
FOLLOWING = np.array([3, 0, 2, 1])
USES = (STARTS, PLACES, FOLLOWING)


def order_of(plan: UsePlan) -> list[str]:
    uses = plan.next_uses()
    assert min(uses.values()) >= LATER
    return sorted(uses, key=lambda digest: uses[digest])


def test_the_next_use_is_this_epochs_and_then_the_next_epochs():
    plan = UsePlan(lambda: ["a", "b", "c", "d"], lambda: USES)
    assert order_of(plan) == ["a", "b", "c", "d"]
    plan.passed("a")
    plan.passed("b")
    # a comes again at place 4, after c and d; b is the first of the next epoch, after all of this.
    assert order_of(plan) == ["c", "d", "a", "b"]
    plan.passed("c")
    plan.passed("d")
    assert order_of(plan) == ["a", "d", "b", "c"]
    plan.passed("a")
    plan.passed("d")
    plan.passed("d")  # a retry opens it once more
    assert order_of(plan) == ["b", "d", "c", "a"]


def test_uses_that_are_long_past_are_not_waited_for():
    # Another rank's, or from before a resume: this process never opens them.
    far = 2 * OVERDUE
    starts, places = np.array([0, 2, 3]), np.array([0, far + 9, far])
    plan = UsePlan(lambda: ["mine", "late"], lambda: (starts, places, np.array([1, 0])))
    assert order_of(plan) == ["mine", "late"]
    plan.passed("late")
    assert plan.next_uses()["mine"] == LATER + far + 9


def test_nothing_is_computed_before_it_is_needed():
    asked = []

    def digests():
        asked.append(1)
        return ["a", None, "c", "d"]

    plan = UsePlan(digests, lambda: USES)
    plan.passed("unknown")
    plan.passed("c")
    assert not asked
    assert set(plan.next_uses()) == {"a", "c", "d"}
    assert plan.next_uses()
    assert asked == [1]


def test_of_many_uses_a_count_is_kept_and_no_list():
    plan = UsePlan(lambda: ["a", "b", "c", "d"], lambda: USES)
    plan.passed("b")
    for _ in range(20_000):
        plan.passed("stranger")
    assert len(plan._passed) < 20_000
    plan.passed("a")
    assert order_of(plan) == ["c", "d", "a", "b"]
