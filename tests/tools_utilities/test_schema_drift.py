"""What is said of columns that differ between shards: one line, which names columns and shards."""

import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tools_utilities.errors import DataError
from tools_utilities.schema_drift import SchemaCensus, SchemaDrift, tell_drift


def drift_of(*shards: tuple[tuple[str, str], ...]) -> SchemaDrift | None:
    census = SchemaCensus()
    for number, columns in enumerate(shards):
        census.add(f"s{number}.parquet", columns)
    return census.drift()


def text_of(*shards: tuple[tuple[str, str], ...]) -> str:
    found = drift_of(*shards)
    assert found is not None
    return found.text


ID, TEXT = ("id", "int64"), ("text", "string")


def test_the_order_of_columns_is_no_difference():
    assert drift_of((ID, TEXT), (TEXT, ID)) is None
    assert drift_of((ID,)) is None
    assert drift_of() is None


def test_another_type_is_told_with_the_shards_that_have_it():
    assert text_of((ID, TEXT), (ID, TEXT), (ID, TEXT), (("id", "string"), TEXT)) == (
        "columns differ between shards: id is int64 in 3 (s0.parquet, s1.parquet …), "
        "string in 1 (s3.parquet)"
    )


def test_an_extra_and_a_missing_column_are_told():
    assert text_of((ID, TEXT), (ID,), (ID,)) == (
        "columns differ between shards: text is in 1 (s0.parquet) of 3 alone"
    )
    assert text_of((ID, TEXT), (("id", "int8"), TEXT), (TEXT,)).endswith(
        "id is int64 in 1 (s0.parquet), int8 in 1 (s1.parquet), missing in 1"
    )


def test_many_columns_are_counted():
    other = tuple((f"c{n}", "int64") for n in range(9))
    text = text_of((ID,), (ID, *other))
    assert text.count("alone") == 4
    assert text.endswith("and 5 more columns")


@pytest.mark.parametrize(
    ("one", "other", "is_harmless"),
    [
        ("int32", "int64", True),
        ("uint8", "int64", True),
        ("float", "double", True),
        ("int64", "double", False),
        ("string", "large_string", True),
        ("list<element: int32>", "large_list<item: int64>", True),
        ("list<item: int32>", "fixed_size_list<item: uint16>[4]", True),
        ("list<item: int32>", "list<item: string>", False),
        ("null", "string", True),
        ("string", "dictionary<values=string, indices=int32, ordered=0>", True),
        ("int64", "string", False),
    ],
)
def test_widths_are_harmless_and_kinds_are_not(one, other, is_harmless):
    found = drift_of((("c", one),), (("c", other),))
    assert found is not None
    assert found.is_harmless is is_harmless
    assert found.columns == ("c",)


def test_a_missing_column_is_never_harmless():
    found = drift_of((ID, TEXT), (ID,))
    assert found is not None
    assert not found.is_harmless


def test_strict_refuses_and_the_default_logs(caplog):
    census = SchemaCensus()
    census.add("a.parquet", (ID,))
    assert tell_drift(census, strict=True) is None
    census.add("b.parquet", (("id", "string"),))
    with pytest.raises(DataError, match=r"id is int64 in 1 \(a.parquet\), string in 1 \(b.parqu"):
        tell_drift(census, strict=True)
    assert not caplog.records
    tell_drift(census, strict=False)
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "samples have the columns of their own shard" in record.getMessage()


def test_a_shard_met_again_counts_once():
    census = SchemaCensus()
    assert not census.add_once("a.csv", (ID,))
    assert not census.add_once("a.csv", (ID,))
    assert census.add_once("b.csv", (TEXT,))
    assert not census.add_once("b.csv", (TEXT,))
    found = census.drift()
    assert found is not None
    assert "id is in 1 (a.csv) of 2 alone" in found.text


def test_threads_that_open_shards_count_them_one_at_a_time():
    census, others = pickle.loads(pickle.dumps(SchemaCensus())), threading.Barrier(4)  # noqa: S301 - made here
    told: list[object] = []

    def open_shards(thread: int) -> None:
        others.wait()
        for number in range(50):
            columns = (("id", f"kind {thread} {number % 25}"),)
            if census.add_once(f"{thread}-{number}", columns):
                told.append(tell_drift(census, strict=False))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(open_shards, range(4)))
    finally:
        sys.setswitchinterval(before)
    assert len(told) == 99
    assert "2 (" in census.drift().text
