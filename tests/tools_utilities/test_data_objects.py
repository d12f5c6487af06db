"""Which keys are data, which series a name belongs to, and which split a name tells."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools_utilities.data_objects import (
    LOOSE,
    _parse_odd_name,
    assign_stems,
    differ_by_split,
    folder_stem,
    in_series,
    junk_reason,
    kind_of,
    parse_name,
    split_of,
    split_word,
)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("", "directory marker"),
        ("train/", "directory marker"),
        ("_SUCCESS", "marker"),
        ("_metadata", "hidden name"),
        (".DS_Store", "hidden name"),
        ("._part-0.parquet", "hidden name"),
        (".part-0.parquet.crc", "checksum"),
        ("part-0.parquet.crc", "checksum"),
        ("SHA256SUMS", "checksum"),
        ("manifest.json", "manifest"),
        ("shard_001/metadata.json", "manifest"),
        ("dataset_info.json", "manifest"),
        ("shard_001/claim.json", "claim"),
        (".quark-probe/ab/0", "hidden folder"),
        ("index.json", "index"),
        ("tokens.idx", "index"),
        ("index.json.zst", "index"),
        ("AUTHORS", "document"),
        ("README.md", "document"),
        ("LICENSE.txt", "document"),
        ("notes.MD", "document"),
        ("_temporary/0/part-9.parquet", "temporary"),
        ("part-0.parquet.tmp", "temporary"),
        (".ipynb_checkpoints/a.jsonl", "hidden folder"),
        ("Thumbs.db", "system file"),
    ],
)
def test_what_is_not_data_has_a_reason(key: str, reason: str):
    assert junk_reason(key) == reason


@pytest.mark.parametrize(
    "key",
    [
        "part-0.parquet", "shard_00008.jsonl", "indexed-0.jsonl", "readme-corpus-00.jsonl",
        "a", "date=2019-01-01/part-0.parquet", "./dot.jsonl", "[x].jsonl", "metadata-00.jsonl",
        "manifesto.jsonl", "authors.parquet", "index.jsonl", "index-0.json", "licences/part-0.txt", "crc-0.jsonl",
    ],
)  # fmt: skip
def test_what_may_be_data_has_none(key: str):
    assert junk_reason(key) is None


@pytest.mark.parametrize(
    ("name", "stem", "numbers", "total"),
    [
        ("train-00007-of-00064.jsonl", "train-", (7,), 64),
        ("train-00000-of-00002-2f0e1a.parquet", "train-", (0,), 2),
        ("c4-train.00000-of-01024.json.gz", "c4-train.", (0,), 1024),
        ("part-00003-ab12cd-c000.snappy.parquet", "part-", (3,), None),
        ("part-m-00003.gz", "part-m-", (3,), None),
        ("shard.00012.mds", "shard.", (12,), None),
        ("shard.00012.mds.zst", "shard.", (12,), None),
        ("chunk-0-12.bin", "chunk-", (0, 12), None),
        ("2024-01-31.jsonl", "", (2024, 1, 31), None),
        ("0007.parquet", "", (7,), None),
        ("imagenet-train-000147.tar", "imagenet-train-", (147,), None),
        ("v2-00001.jsonl", "v2-", (1,), None),
        ("train-old-3.jsonl", "train-old-", (3,), None),
        ("shard_003", "shard_", (3,), None),
        ("train-00004", "train-", (4,), None),
        ("case-043-INVALID.parquet", "case-", (43,), None),
    ],
)
def test_names_come_apart_at_the_shard_number(name: str, stem: str, numbers, total):
    found = parse_name(name)

    assert found is not None
    assert (found.stem, found.numbers, found.total) == (stem, numbers, total)


@pytest.mark.parametrize(
    "name",
    ["a.jsonl", "www_farodevigo", "data_page=1_GZIP.parquet", "clip.mp4", "clip.mp4.gz", "٣.jsonl"],
)
def test_a_name_without_a_number_has_no_stem(name: str):
    assert parse_name(name) is None


def test_a_long_hostile_name_is_taken_apart_at_once():
    started = time.perf_counter()

    for name in ("1-" * 500 + "x", "9" * 1000 + "x", "-of-1" * 200, "a1" * 500):
        parse_name(name)

    assert time.perf_counter() - started < 2


_NAMES = st.from_regex(
    r"[a-z_.-]{0,4}[0-9]{0,3}[a-z_.-]{0,3}(\.[a-z]{1,4}[0-9]?){0,2}(\.gz|\.zst|\.tgz)?",
    fullmatch=True,
)


@settings(max_examples=500, deadline=None)
@given(_NAMES)
def test_the_short_way_through_a_name_gives_what_the_long_one_does(name: str):
    assert parse_name(name) == _parse_odd_name(name)


def names(stem: str, count: int, form: str = "{}{:05d}.jsonl") -> list[str]:
    return [form.format(stem, i) for i in range(count)]


def test_two_splits_of_one_folder_are_two_series():
    found = assign_stems([*names("train-", 4), *names("val-", 1), *names("train-old-", 4)])

    assert set(found.values()) == {"train-", "val-", "train-old-"}


def test_an_odd_name_beside_a_series_is_loose():
    found = assign_stems([*names("shard-", 3), "notes.jsonl", "extra-7.jsonl"])

    assert {name for name, stem in found.items() if stem == LOOSE} == {
        "notes.jsonl",
        "extra-7.jsonl",
    }


def test_numbered_bystanders_among_many_names_are_no_series():
    bystanders = [f"bug{i}.parquet" for i in range(100, 115)]
    others = [f"case_{chr(97 + i)}{chr(97 + j)}.parquet" for i in range(10) for j in range(10)]

    assert set(assign_stems([*bystanders, *others]).values()) == {LOOSE}


def test_a_folder_of_numbered_names_is_a_series_without_padding():
    assert set(assign_stems([f"part-{i}.parquet" for i in range(8)]).values()) == {"part-"}


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("www_farodevigo", None),
        ("contest-", None),
        ("dev-clean", "val"),
        ("train_v2", "train"),
        ("training", "train"),
        ("imagenet-train-", "train"),
        ("Validation.", "val"),
        ("c4-eval.", "val"),
        ("test-other", "test"),
        ("latest", None),
        ("parquet-testing", None),
        ("testing", "test"),
    ],
)
def test_only_whole_words_tell_a_split(text: str, split: str | None):
    assert split_word(text) == split


def test_the_stem_tells_more_than_the_folder_and_the_near_folder_more_than_the_far():
    assert split_of("val/", "train-") == "train"
    assert split_of("test/train/", "part-") == "train"
    assert split_of("train/en/", "part-") == "train"
    assert split_of("en/", "part-") is None
    assert split_of("dev-clean/", "part-") == "val"
    assert split_of("val/en/", "part-") == "val"
    assert split_of("myteam-dev/alpha/", "part-") is None
    assert split_of("", "part-") is None


@pytest.mark.parametrize(
    ("held_out", "trained_on", "together"),
    [
        ("val-", "train-", True),
        ("c4-validation.", "c4-train.", True),
        ("val/", "shards/", True),
        ("dev", "train", True),
        ("books-val-", "wiki-train-", False),
        ("books-val-", "shard-", False),
        ("part-", "train-", False),
    ],
)
def test_siblings_differ_by_the_split_alone(held_out: str, trained_on: str, *, together: bool):
    assert differ_by_split(held_out, trained_on) is together


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("shard_003", "shard_"), ("0007", ""), ("12", ""), ("Part-1", "Part-"),
        ("date=2019-01-01", "date="), ("part=a", "part="),
        ("v2", None), ("run1", None), ("2019", None), ("train", None), ("=x", None),
    ],
)  # fmt: skip
def test_shard_and_partition_folders_are_told_from_datasets(name: str, stem: str | None):
    assert folder_stem(name) == stem


@pytest.mark.parametrize(
    ("key", "stem", "member"),
    [
        ("train-0001.jsonl", "train-", True),
        ("train-old-0001.jsonl", "train-", False),
        ("train-x.jsonl", "train-", False),
        ("shard_001/chunk_0000.jsonl", "shard_", True),
        ("shard_001/deep/chunk_0000.jsonl", "shard_", False),
        ("shard_x/chunk_0000.jsonl", "shard_", False),
        ("year=2019/month=10/a.parquet", "year=", True),
        ("yearly=2019/a.parquet", "year=", False),
    ],
)
def test_membership_is_by_the_whole_stem(key: str, stem: str, *, member: bool):
    assert in_series(key, stem) is member


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("d/a.jsonl", "jsonl"), ("d/a.ndjson.gz", "jsonl"), ("d/A.PARQUET", "parquet"),
        ("d/a.db", ".db"), ("d/a", ""), ("d/x.00012", ""), ("d.parquet/a.db.gz", ".db"),
    ],
)  # fmt: skip
def test_a_kind_is_a_format_or_a_suffix(key: str, kind: str):
    assert kind_of(key) == kind
