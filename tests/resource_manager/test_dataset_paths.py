"""B49 and its kin: every spelling of a path, and what it means in a store."""

from itertools import islice
from pathlib import Path

import msgspec
import pytest

from resource_manager.dataset_paths import (
    DatasetPath,
    PathContext,
    resolve_dataset_path,
)
from tools_utilities.errors import AccessError, UsageError

BUCKET = "s3://bucket"
X = "data/datasets/x/"


class Machine:
    """A home with a project `my repo/quark`, a link to it, and a bucket."""

    def __init__(self, top: Path) -> None:
        self.home = top / "home"
        self.root = top / "home" / "my repo" / "quark"
        self.link = top / "link"
        (self.root / "data" / "datasets" / "x").mkdir(parents=True)
        (self.root / "quark.yaml").touch()
        self.link.symlink_to(self.root)
        self.keys = [f"{X}train-{i}.jsonl" for i in range(3)]

    def context(self, **changes) -> PathContext:
        context = PathContext(
            root=self.root, cwd=self.root, home=self.home, store_uri=BUCKET,
            first_keys=self.first_keys,
        )  # fmt: skip
        return msgspec.structs.replace(context, **changes)

    def first_keys(self, store_uri: str, prefix: str, start_after: str) -> list[str]:
        keys = sorted(self.keys) if store_uri == BUCKET else []
        return list(islice((k for k in keys if k.startswith(prefix) and k > start_after), 20))

    def read(self, text: str, **changes) -> DatasetPath:
        return resolve_dataset_path(text, self.context(**changes))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path.resolve())


def spellings(machine: Machine) -> dict[str, tuple[str, Path]]:
    root = machine.root
    return {
        "absolute": (f"{root}/data/datasets/x", root),
        "home": ("~/my repo/quark/data/datasets/x", root),
        "relative": ("data/datasets/x", root),
        "from below": ("x", root / "data" / "datasets"),
        "dots": ("./data//datasets/x/", root),
        "up and down": ("data/datasets/../datasets/x", root),
        "through a link": (f"{machine.link}/data/datasets/x", root),
        "working directory through a link": ("data/datasets/x", machine.link),
        "file URI": (f"file://{root}/data/datasets/x", root),
        "file URI, blanks coded": (f"file://{root}/data/datasets/x/".replace(" ", "%20"), root),
        "store URI": ("s3://bucket/data/datasets/x/", root),
        "store URI without slash": ("s3://bucket/data/datasets/x", root),
    }


def test_every_spelling_of_a_folder_is_one_prefix(machine: Machine):
    found = {
        name: machine.read(text, cwd=cwd).prefix for name, (text, cwd) in spellings(machine).items()
    }

    assert found == dict.fromkeys(spellings(machine), X)


def test_a_path_points_into_the_configured_store_and_a_file_uri_does_not(machine: Machine):
    assert machine.read("data/datasets/x").store_uri == BUCKET
    assert machine.read(f"file://{machine.root}/data/datasets/x").store_uri == (
        f"file://{machine.root}"
    )


@pytest.mark.parametrize("text", ["/etc", "..", "../quark-old/data/x", "data/../../.."])
def test_outside_the_root_is_an_error_naming_the_root(machine: Machine, text: str):
    with pytest.raises(UsageError) as caught:
        machine.read(text)

    assert str(machine.root) in str(caught.value)
    assert text in str(caught.value)


def test_a_sibling_with_the_same_beginning_is_outside(machine: Machine):
    sibling = machine.root.with_name("quark-old") / "data" / "x"
    sibling.mkdir(parents=True)

    with pytest.raises(UsageError, match="outside the dataset root"):
        machine.read(str(sibling))


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_that_links_out_of_the_root_is_outside(
    machine: Machine, tmp_path: Path, *, exists: bool
):
    target = tmp_path / "elsewhere"
    if exists:
        target.mkdir()
    (machine.root / "out").symlink_to(target)

    with pytest.raises(UsageError, match="outside the dataset root"):
        machine.read("out")


@pytest.mark.parametrize("text", [".", "data/.."])
def test_the_root_itself_is_refused_unless_one_looks_around(machine: Machine, text: str):
    with pytest.raises(UsageError, match="whole bucket"):
        machine.read(text)
    with pytest.raises(UsageError, match="whole bucket"):
        machine.read(f"file://{machine.root}")

    assert machine.read(text, allow_root=True).prefix == ""


def test_a_missing_folder_below_the_root_is_accepted_with_a_note(machine: Machine):
    found = machine.read(f"{machine.root}/data/datasets/new")

    assert found.prefix == "data/datasets/new/"
    assert "not on this machine" in found.notes[0]
    assert machine.read("data/datasets/x").notes == ()


def test_a_file_is_itself_and_no_folder(machine: Machine):
    (machine.root / "data" / "one.jsonl").touch()

    found = machine.read("data/one.jsonl")

    assert (found.prefix, found.notes) == ("data/one.jsonl", ("data/one.jsonl is one file",))


def test_case_blanks_and_unicode_forms_are_kept(machine: Machine):
    for name in ("Data Sets", "cafe\u0301", "caf\u00e9", "run[1]", "a=b&c", "t\tb"):
        (machine.root / name).mkdir()
        assert machine.read(name).prefix == f"{name}/"


# Paths of other machines.


def test_the_longest_suffix_that_the_store_has_wins_and_is_stated(machine: Machine):
    machine.keys = [
        "data/datasets/alphagenome/train-0.jsonl",
        "alphagenome/other.jsonl",
        "datasets/alphagenome/other.jsonl",
    ]
    path = "/Users/someone/quark/data/datasets/alphagenome"

    found = machine.read(path)

    assert (found.prefix, found.found_by) == ("data/datasets/alphagenome/", "suffix")
    assert path in found.notes[0]
    assert "data/datasets/alphagenome/" in found.notes[0]
    assert BUCKET in found.notes[0]


def test_a_suffix_is_a_folder_never_the_beginning_of_a_name(machine: Machine):
    machine.keys = ["alphagenome-old/train-0.jsonl"]

    with pytest.raises(UsageError) as caught:
        machine.read("/Users/someone/alphagenome")

    assert "/Users/someone/alphagenome" in str(caught.value)
    assert BUCKET in str(caught.value)
    assert str(machine.root) in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        r"C:\Users\me\quark\data\datasets\x",
        "C:/Users/me/quark/data/datasets/x/",
        r"\\server\share\quark\data\datasets\x",
        r"data\datasets\x",
        "/mnt/c/Users/me/quark/data/datasets/x",
        "/Users/me/other/../quark/data/./datasets//x/",
        "~/elsewhere/data/datasets/x",
    ],
)
def test_paths_of_other_systems_end_in_the_same_prefix(machine: Machine, text: str):
    assert machine.read(text).prefix == X


def test_a_local_name_with_a_backslash_is_itself(machine: Machine):
    (machine.root / "a\\b").mkdir()

    assert machine.read("a\\b").prefix == "a\\b/"


def test_a_documented_relative_path_works_from_below_the_root(machine: Machine):
    found = machine.read("data/datasets/x", cwd=machine.root / "data")

    assert found.prefix == X
    assert "read from the dataset root" in found.notes[0]


def test_the_working_directory_comes_before_the_root(machine: Machine):
    machine.keys.append("data/data/datasets/x/a.jsonl")

    assert machine.read("data/datasets/x", cwd=machine.root / "data").prefix == f"data/{X}"


# URIs.


def test_a_uri_without_a_slash_is_a_literal_prefix_where_no_folder_is(machine: Machine):
    found = machine.read(f"s3://bucket/{X}train-")

    assert found.prefix == f"{X}train-"
    assert "every key that begins with it" in found.notes[0]


def test_a_uri_that_is_both_a_folder_and_a_beginning_says_so_and_lists_them(machine: Machine):
    # `-` and `.` sort before the slash, `_` after it.
    machine.keys += ["data/datasets/x-old/a.jsonl", "data/datasets/x.jsonl", "data/datasets/x_2/a"]

    found = machine.read("s3://bucket/data/datasets/x")

    assert found.prefix == X
    for key in ("x/train-0.jsonl", "x-old/a.jsonl", "x.jsonl", "x_2/a"):
        assert f"data/datasets/{key}" in found.notes[0]


def test_a_uri_of_nothing_is_the_folder_and_discovery_says_that_it_is_empty(machine: Machine):
    assert machine.read("s3://bucket/nowhere").prefix == "nowhere/"


def test_another_bucket_is_stated(machine: Machine):
    found = machine.read("s3://other/d/")

    assert (found.store_uri, found.prefix) == ("s3://other", "d/")
    assert "s3://other" in found.notes[0]
    assert BUCKET in found.notes[0]
    assert machine.read("s3://other/d/", store_uri="file:///here").notes == ()


@pytest.mark.parametrize("scheme", ["s3", "gs", "az", "r2", "memory", "http", "https"])
def test_uris_keep_their_keys_byte_for_byte(machine: Machine, scheme: str):
    key = "D ata/caf\u00e9/a%20b//[1]?*/"

    assert machine.read(f"{scheme}://b/{key}").prefix == key


@pytest.mark.parametrize("text", ["", "a\0b", "s3:///d/", "ftp://h/d/", "hf://name", "file://d/x"])
def test_what_names_no_dataset_is_refused(machine: Machine, text: str):
    with pytest.raises(UsageError):
        machine.read(text)


def test_a_name_too_long_for_the_disk_is_refused(machine: Machine):
    with pytest.raises(UsageError, match="not a usable path"):
        machine.read("/" + "n" * 5000)


def test_a_file_uri_outside_the_root_is_read_where_it_is(machine: Machine, tmp_path: Path):
    (tmp_path / "far" / "set").mkdir(parents=True)

    found = machine.read(f"file://{tmp_path.resolve()}/far/set")

    assert (found.store_uri, found.prefix) == (f"file://{tmp_path.resolve()}/far", "set/")


def test_a_refusing_store_is_not_a_missing_path(machine: Machine):
    def refuse(_store_uri: str, _prefix: str, _start_after: str) -> list[str]:
        raise AccessError("no ListBucket")

    with pytest.raises(AccessError):
        machine.read("/Users/someone/x", first_keys=refuse)
