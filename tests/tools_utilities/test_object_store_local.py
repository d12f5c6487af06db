"""A folder as a store: links, traversal, hidden files, killed writes, order at scale."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tools_utilities.errors import (
    AccessError,
    ConditionFailedError,
    DataNotFoundError,
    ObjectNotFoundError,
    StoreError,
    UsageError,
)
from tools_utilities.object_store import StoreSpec, open_store
from tools_utilities.object_stores.local import LocalStore


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.fixture
def store(root) -> LocalStore:
    found = open_store(StoreSpec(uri=f"file://{root}"))
    assert isinstance(found, LocalStore)
    return found


def keys(store: LocalStore, prefix: str = "") -> list[str]:
    return [info.key for info in store.list(prefix)]


# What is listed.


def test_10_000_files_come_in_byte_order_of_whole_keys(store, root):
    # Names that begin alike, go on around the slash, and are not ASCII.
    shapes = (
        "a{}",
        "a{}-x",
        "a{}.x",
        "é{}",
        "日{}.x",
        "Z{} b",
        "b{}/x",
        "b{}-y/x",
        "b{}.y",
        "c/d/{}/e",
    )
    names = sorted((shape.format(n) for shape in shapes for n in range(1000)), key=str.encode)
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    assert keys(store) == names
    middle = len(names) // 2
    later = [info.key for info in store.list("", start_after=names[middle])]
    assert later == names[middle + 1 :]


def test_names_that_are_no_text_keep_their_bytes(store, root):
    Path(os.fsdecode(os.fsencode(root) + b"/bad\xff")).write_bytes(b"data")
    [info] = store.list("")
    assert os.fsencode(info.key) == b"bad\xff"
    assert b"".join(store.get(info.key)) == b"data"


def test_pipes_and_dangling_links_are_not_objects(store, root):
    os.mkfifo(root / "pipe")
    (root / "dangling").symlink_to("nowhere")
    (root / "file").write_bytes(b"1")
    assert keys(store) == ["file"]
    with pytest.raises(ObjectNotFoundError):
        store.get("pipe")
    with pytest.raises(ObjectNotFoundError):
        store.get("dangling")


def test_a_folder_is_no_object(store, root):
    (root / "a/b").mkdir(parents=True)
    assert keys(store) == []
    for key in ("a", "a/", "a/b"):
        with pytest.raises(ObjectNotFoundError):
            store.head(key)
    store.put("f", b"1")
    with pytest.raises(ObjectNotFoundError):
        store.get("f/below")
    with pytest.raises(StoreError):
        store.put("f/below", b"1")


def test_paths_that_the_system_would_fold_do_not_exist_as_keys(store):
    store.put("a/b", b"1")
    for key in ("a//b", "./a/b", "a/./b", "/a/b", "a/b/"):
        with pytest.raises(ObjectNotFoundError):
            store.head(key)
        with pytest.raises(UsageError):
            store.put(key, b"1")
        store.delete(key)
    assert [keys(store, prefix) for prefix in ("a//", "./", "/", "a/./")] == [[], [], [], []]
    assert keys(store) == ["a/b"]


def test_a_missing_folder_is_named(tmp_path):
    store = open_store(StoreSpec(uri=f"file://{tmp_path}/gone"))
    for ask in (lambda: list(store.list("")), lambda: store.head("k"), lambda: store.get("k")):
        with pytest.raises(DataNotFoundError, match="gone"):
            ask()
    store.put("k", b"1")
    assert store.head("k").size_bytes == 1


def test_a_local_store_is_an_absolute_folder():
    with pytest.raises(UsageError):
        open_store(StoreSpec(uri="file://relative/folder"))


# Staying inside.


@pytest.mark.parametrize("key", ["../secret", "a/../../secret", "..", "a/..", "../root/a"])
def test_dot_dot_is_refused_everywhere(store, root, key):
    (root.parent / "secret").write_bytes(b"secret")
    store.put("a", b"1")
    for act in (
        lambda: store.head(key),
        lambda: store.get(key),
        lambda: store.put(key, b"x"),
        lambda: store.put_if_absent(key, b"x"),
        lambda: store.put_if_match(key, b"x", "1"),
        lambda: store.delete(key),
        lambda: list(store.list(key + "/")),
        lambda: list(store.list_folder(key + "/")),
    ):
        with pytest.raises(UsageError, match=r"\.\."):
            act()
    assert (root.parent / "secret").read_bytes() == b"secret"


def test_links_out_of_the_folder_are_not_followed(store, root, caplog):
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    (root / "kept").write_bytes(b"1")
    assert keys(store) == ["kept"]
    assert keys(store, "folder/") == []
    assert "out of" in caplog.text
    for key in ("file", "folder/secret"):
        for act in (store.get, store.head, store.delete, lambda key: store.put(key, b"x")):
            with pytest.raises(AccessError):
                act(key)
    assert (outside / "secret").read_bytes() == b"secret"


def test_links_within_the_folder_are_followed_and_loops_end(store, root):
    store.put("data/x", b"1")
    (root / "alias").symlink_to(root / "data")
    (root / "data/up").symlink_to(root)
    (root / "data/self").symlink_to(root / "data")
    assert keys(store) == ["alias/x", "data/x"]
    assert b"".join(store.get("alias/x")) == b"1"


def test_the_folder_may_be_a_link_itself(store, root, tmp_path):
    store.put("a/b", b"1")
    (tmp_path / "link").symlink_to(root)
    linked = open_store(StoreSpec(uri=f"file://{tmp_path}/link"))
    assert [info.key for info in linked.list("")] == ["a/b"]


# Writing.


def test_locks_and_unfinished_writes_are_never_seen(store, root):
    store.put_if_absent("a/k", b"1")
    (root / "a/.quark-tmp-1-x").write_bytes(b"half")
    assert (root / ".quark-locks").is_dir()
    assert keys(store) == ["a/k"]
    assert keys(store, "a/.quark") == []
    assert keys(store, ".quark-locks/") == []
    [page] = store.list_folder("")
    assert (page.objects, page.prefixes) == ((), ("a/",))
    for key in ("a/.quark-tmp-1-x", ".quark-locks/00"):
        with pytest.raises(ObjectNotFoundError):
            store.get(key)
        with pytest.raises(UsageError):
            store.put(key, b"x")


def test_every_replacement_has_an_etag_of_its_own(store):
    etags = {store.put("k", b"same").etag for _ in range(50)}
    assert len(etags) == 50


def test_a_file_changed_in_place_has_another_etag(store, root):
    first = store.put("k", b"one").etag
    (root / "k").write_bytes(b"two")
    assert store.head("k").etag != first
    with pytest.raises(ConditionFailedError):
        store.put_if_match("k", b"three", str(first))


def test_a_body_is_the_version_that_was_opened(store):
    store.put("k", b"old" * 1_000_000)
    body = store.get("k")
    store.put("k", b"new")
    assert b"".join(body) == b"old" * 1_000_000


@pytest.mark.parametrize("end", [KeyboardInterrupt, OSError])
def test_a_get_that_is_ended_early_leaves_no_file_open(store, root, monkeypatch, end):
    store.put("a", b"123")

    def interrupted(_descriptor):
        raise end

    monkeypatch.setattr(os, "fstat", interrupted)
    with pytest.raises(
        (KeyboardInterrupt, StoreError)
    ) as raised:  # it holds the frames, as a log does
        store.get("a")
    monkeypatch.undo()
    assert raised.tb is not None
    links = list(Path("/proc/self/fd").iterdir())
    assert root / "a" not in [link.readlink() for link in links if link.is_symlink()]


def test_a_file_cut_while_it_is_read_is_an_error(store, root):
    store.put("k", b"x" * 4_000_000)
    body = store.get("k")
    pieces = iter(body)
    first = next(pieces)
    os.truncate(root / "k", 1_500_000)
    with pytest.raises(StoreError) as caught:
        list(pieces)
    assert caught.value.detail["received_bytes"] >= len(first)


KILLED_WRITER = """
import os, sys
from tools_utilities.object_store import StoreSpec, open_store

store = open_store(StoreSpec(uri="file://" + sys.argv[1]))
print("started", flush=True)
number = 0
while True:
    number += 1
    data = (b"%08d" % number) * 200_000
    store.put("d/whole", data)
    try:
        store.put_if_absent(f"d/new-{number}", data)
    except Exception as error:
        print(error, flush=True)
"""


def test_a_killed_writer_leaves_whole_objects_only(store, root, tmp_path):
    script = tmp_path / "writer.py"
    script.write_text(textwrap.dedent(KILLED_WRITER))
    for wait_seconds in (0.05, 0.12, 0.2):
        command = [sys.executable, str(script), str(root)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"started\n"
            time.sleep(wait_seconds)
            writer.send_signal(signal.SIGKILL)
        for info in store.list(""):
            data = b"".join(store.get(info.key))
            assert len(data) == info.size_bytes == 1_600_000
            assert data == data[:8] * 200_000
    # Whoever held a lock and died holds it no longer.
    start = time.monotonic()
    store.put("d/whole", b"after")
    assert time.monotonic() - start < 5
    assert b"".join(store.get("d/whole")) == b"after"


RACER = """
import sys
from tools_utilities.errors import ConditionFailedError
from tools_utilities.object_store import StoreSpec, open_store

store = open_store(StoreSpec(uri="file://" + sys.argv[1]))
for _ in range(40):
    while True:
        body = store.get("n")
        value = int(b"".join(body))
        try:
            store.put_if_match("n", b"%d" % (value + 1), body.info.etag)
            break
        except ConditionFailedError:
            continue
"""


def test_no_increment_is_lost_between_processes(store, root, tmp_path):
    script = tmp_path / "racer.py"
    script.write_text(textwrap.dedent(RACER))
    store.put("n", b"0")
    racers = [subprocess.Popen([sys.executable, str(script), str(root)]) for _ in range(4)]
    assert [racer.wait(timeout=60) for racer in racers] == [0, 0, 0, 0]
    assert b"".join(store.get("n")) == b"160"


def test_a_read_only_folder_says_so(store, root):
    if os.geteuid() == 0:
        # Root may write everywhere: a file in the folder's place refuses it too.
        (root / "taken").write_bytes(b"")
        with pytest.raises(StoreError):
            store.put("taken/k", b"1")
        return
    root.chmod(0o500)
    with pytest.raises(AccessError):
        store.put("k", b"1")
    root.chmod(0o700)


# Memory, at the same scale.


def test_memory_lists_10_000_keys_in_byte_order():
    store = open_store(StoreSpec(uri="memory://ten-thousand"))
    names = [
        f"{stem}{n}"
        for stem in ("a", "a/", "a-", "é", "日", "\U0001f600", "\uffee")
        for n in range(1430)
    ]
    for name in names:
        store.put(name, b"1")
    listed = [info.key for info in store.list("")]
    assert listed == sorted(names, key=str.encode)
    assert len(listed) == 10_010
    pages = list(store.list_folder(""))
    assert sum(len(page.objects) for page in pages) == 10_010 - 1430
    assert [prefix for page in pages for prefix in page.prefixes] == ["a/"]
    assert max(len(page.objects) + len(page.prefixes) for page in pages) == 1000


def test_memory_is_shared_by_its_uri():
    open_store(StoreSpec(uri="memory://shared")).put("k", b"1")
    assert b"".join(open_store(StoreSpec(uri="memory://shared")).get("k")) == b"1"
    assert list(open_store(StoreSpec(uri="memory://other")).list("")) == []
