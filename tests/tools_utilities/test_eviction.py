from tools_utilities.eviction import EVICTION_POLICIES, Evictable


def entry(digest: str, used_ns: int) -> Evictable:
    return Evictable(name=f"{digest}-1", digest=digest, num_bytes=1, used_ns=used_ns)


def order(policy: str, next_use: dict[str, int]) -> list[str]:
    entries = [entry("a", 3), entry("b", 1), entry("c", 2)]
    return [found.digest for found in EVICTION_POLICIES[policy](entries, next_use)]


def test_lru_goes_by_last_use_alone():
    assert order("lru", {"b": 0, "c": 9}) == ["b", "c", "a"]


def test_next_use_evicts_the_farthest_first():
    assert order("next_use", {"a": 1, "b": 7, "c": 3}) == ["b", "c", "a"]


def test_next_use_evicts_what_nobody_announced_before_anything_announced():
    assert order("next_use", {"b": 5}) == ["c", "a", "b"]
