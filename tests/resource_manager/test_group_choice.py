"""Which groups a run trains and validates on."""

import pytest

from resource_manager.group_choice import (
    choices_of,
    choose_groups,
    several_groups_error,
    validation_siblings,
)
from tools_utilities.errors import InputNeededError, UsageError
from tools_utilities.scripts.dataset_discovery import ShardGroup


def group(
    prefix: str, split: str | None = "train", size: int = 1000, **fields: object
) -> ShardGroup:
    base: dict[str, object] = {
        "prefix": prefix, "stem": "train-", "split": split, "num_objects": 8, "total_bytes": size,
        "median_bytes": size / 8, "format": "jsonl", "score": 0.9, "factors": {}, "ignored": 0,
        "reasons": ("even sizes", "complete numbering"), "qualifies": True, "decodes": True,
        "complete_listing": True, "objects_shown": "8", "holdout": split in {"val", "test"},
    }  # fmt: skip
    return ShardGroup(**{**base, **fields})  # type: ignore[arg-type]  # fields by name, as a caller gives them


A, B, C = group("d/a/", size=10), group("d/b/", size=30), group("d/c/", size=20)


def nobody(_groups: object) -> list[ShardGroup]:
    raise InputNeededError("nobody")


def test_the_only_group_is_taken_without_asking():
    assert choose_groups([A], None, nobody) == ([A], "the only group")


def test_several_are_asked_for():
    assert choose_groups([A, B, C], None, lambda groups: groups[1:]) == ([B, C], "chosen")
    with pytest.raises(InputNeededError):
        choose_groups([A, B], None, nobody)


def test_choosing_none_starts_nothing():
    with pytest.raises(UsageError, match="nothing was started"):
        choose_groups([A, B], None, lambda _groups: [])


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"pick": [1, 3]}, [A, C]),
        ({"rule": "largest"}, [B]),
        ({"rule": "all"}, [A, B, C]),
        ({"rule": "all", "exclude": ["b"]}, [A, C]),
        ("1,3", [A, C]),
        ("largest", [B]),
        ("all", [A, B, C]),
    ],
)
def test_wanted_groups_are_taken_without_asking(wanted, expected):
    assert choose_groups([A, B, C], wanted, nobody)[0] == expected


@pytest.mark.parametrize(
    "wanted", [{"pick": [4]}, "9", "x", {"rule": "all", "exclude": ["a", "b", "c"]}]
)
def test_wanted_groups_that_are_not_there_are_refused(wanted):
    with pytest.raises(UsageError):
        choose_groups([A, B, C], wanted, nobody)


def test_exclude_knows_splits_folders_and_stems():
    by_split = group("x/held/", split="dev")
    by_stem = group("x/old-", stem="old-", split=None)
    keep = group("x/new/", split=None, stem="part-")
    wanted = {"rule": "all", "exclude": ["dev", "OLD"]}
    assert choose_groups([by_split, by_stem, keep], wanted, nobody)[0] == [keep]


def test_validation_is_the_sibling_never_the_test_split():
    train = group("x/train-")
    val, test = group("x/val-", split="val"), group("x/test-", split="test")
    other = group("y/val-", split="val")
    assert validation_siblings([train], [train, val, test, other]) == [val]
    assert validation_siblings([train], [train, test, other]) == []


def test_a_folder_next_to_the_training_folder_is_a_sibling_too():
    train, val = group("x/train/"), group("x/val/", split="val")
    far = group("z/w/val/", split="val")
    assert validation_siblings([train], [train, val, far]) == [val]
    same = group("x/train/val-", split="val")
    assert validation_siblings([train], [train, val, same]) == [same]


def test_validation_of_another_dataset_is_no_sibling():
    wiki, books = group("x/wiki-train-"), group("x/books-val-", split="val")
    assert validation_siblings([wiki], [wiki, books]) == []
    folder, far = group("x/wiki-train/"), group("x/books-val/", split="val")
    near = group("x/wiki-val/", split="val")
    assert validation_siblings([folder], [folder, far, near]) == [near]


def test_a_validation_group_that_does_not_decode_is_not_used():
    train, val = group("x/train-"), group("x/val-", split="val", decodes=False)
    assert validation_siblings([train], [train, val]) == []


def test_the_error_names_every_group_and_a_flag_that_is_ready():
    error = several_groups_error([A, B], 'quark "train on d"')
    assert error.exit_code == 2
    assert 'quark "train on d" --groups 1' in error.hint
    assert error.detail["groups"] == ["d/a/", "d/b/"]


def test_choices_show_score_facts_and_why():
    [choice] = choices_of(
        [group("d/[a]/", complete_listing=False, objects_shown="≥ 1,000, not all listed")]
    )
    assert choice.name == "d/[a]/"
    assert choice.facts == ("0.90", "≥ 1,000, not all listed objects", "≥ 1000 B", "jsonl")
    assert choice.why == "even sizes; complete numbering"
