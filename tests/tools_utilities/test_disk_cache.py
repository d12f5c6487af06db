import errno
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from tests.cache_parts import (
    MB,
    content,
    entries,
    files,
    folder_bytes,
    has,
    held,
    identity,
    lease,
    store,
)
from tools_utilities.cache_entry import entry_id
from tools_utilities.cached_file import CheckedFiles
from tools_utilities.checksum import crc32c, encode_crc32c
from tools_utilities.disk_cache import DiskCache
from tools_utilities.file_locks import HeldFile
from tools_utilities.object_store import ObjectInfo

# Names.


def test_nothing_in_a_name_comes_from_the_key(tmp_path):
    cache = DiskCache(tmp_path, 10 * MB)
    keys = ["../../../evil", "/abs", "a" * 2000, "..", "x/../y", "a\nb", "CON", "é\udcff"]
    for key in keys:
        assert store(cache, key, 100)
    for path in entries(tmp_path):
        assert path.name.isascii()
        assert len(path.name) < 255
    assert len(entries(tmp_path)) == len(keys)
    assert all(has(cache, key, 100) for key in keys)


def test_an_entry_belongs_to_one_version_of_one_object_of_one_store():
    info = ObjectInfo(key="k", size_bytes=5, etag="e")
    others = [
        ("s3://other", info),
        ("s3://bucket@host:1", info),
        ("s3://bucket", msgspec.structs.replace(info, key="K")),
        ("s3://bucket", msgspec.structs.replace(info, etag="f")),
        ("s3://bucket", msgspec.structs.replace(info, size_bytes=6)),
        # The same text, cut elsewhere.
        ("s3://bucketk", msgspec.structs.replace(info, key="")),
    ]
    found = {entry_id(endpoint, other) for endpoint, other in [("s3://bucket", info), *others]}
    assert len({entry.digest for entry in found if entry}) == len(others) + 1


def test_an_object_whose_versions_cannot_be_told_apart_has_no_entry():
    assert entry_id("s3://b", ObjectInfo(key="k", size_bytes=1)) is None


# What is read is what was written.


def damage_flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def damage_cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def damage_zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def damage_extend(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def damage_replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(os.urandom(path.stat().st_size))
    other.rename(path)


DAMAGES = [damage_flip, damage_cut, damage_zero, damage_extend, damage_replace]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("same_process", [True, False])
def test_a_damaged_entry_is_set_aside_and_can_be_stored_again(tmp_path, damage, same_process):
    cache = DiskCache(tmp_path, 10 * MB)
    assert store(cache, "k")
    assert has(cache, "k")
    [entry] = entries(tmp_path)
    time.sleep(0.01)  # file systems may stamp coarsely
    damage(entry)
    reader = cache if same_process else DiskCache(tmp_path, 10 * MB)
    assert reader.open(identity("k")) is None
    assert reader.num_quarantined == 1
    assert not entries(tmp_path)
    assert store(reader, "k")
    assert has(reader, "k")


def test_an_entry_with_another_checksum_than_promised_is_a_bad_one(tmp_path):
    cache = DiskCache(tmp_path, 10 * MB)
    assert store(cache, "k")
    right = encode_crc32c(crc32c(content("k", MB)))
    assert cache.open(identity("k", crc32c=right)) is not None
    assert cache.open(identity("k", crc32c=encode_crc32c(1))) is None


def test_content_is_checked_once_a_process(tmp_path):
    cache = DiskCache(tmp_path, 10 * MB)
    assert store(cache, "k")
    [entry] = entries(tmp_path)
    before = entry.stat()
    damage_flip(entry)
    os.utime(entry, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert cache.open(identity("k")) is not None  # it was checked when it was written
    assert DiskCache(tmp_path, 10 * MB).open(identity("k")) is None


def broken_disk(*_args: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


def resident_kilobytes(path: Path) -> int:
    """How much of a mapped file counts as this process's memory."""
    mapped = Path("/proc/self/smaps").read_text().split(str(path))[1]
    return int(mapped.split("Rss:")[1].split()[0])


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="tells mappings apart by /proc")
def test_content_that_is_checked_does_not_come_into_memory(tmp_path):
    assert store(DiskCache(tmp_path, 20 * MB), "k", 10 * MB)
    found = DiskCache(tmp_path, 20 * MB).open(identity("k", 10 * MB))
    assert found is not None
    assert found.view[0] == content("k", 1)[0]
    assert resident_kilobytes(found.path) <= 2048  # what the kernel may map around one byte


def test_an_entry_that_the_disk_cannot_read_is_set_aside(tmp_path, monkeypatch):
    assert store(DiskCache(tmp_path, 10 * MB), "k")

    monkeypatch.setattr(os, "preadv", broken_disk)
    cache = DiskCache(tmp_path, 10 * MB)
    assert cache.open(identity("k")) is None
    assert cache.num_quarantined == 1


def test_a_download_has_its_final_name_only_when_it_is_whole(tmp_path):
    cache = DiskCache(tmp_path, 10 * MB)
    reservation = cache.reserve(identity("k", 4096))
    assert reservation is not None
    for offset in range(0, 4096, 1024):
        assert not entries(tmp_path)
        assert cache.open(identity("k", 4096)) is None
        reservation.write(offset, content("k", 4096)[offset : offset + 1024])
    reservation.publish(crc32c(content("k", 4096)))
    assert [path.stat().st_size for path in entries(tmp_path)] == [4096]


def test_content_is_on_disk_before_its_name_and_the_name_before_it_is_used(tmp_path, monkeypatch):
    cache = DiskCache(tmp_path, 10 * MB)
    done = []
    fsync = os.fsync

    def recording(fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        done.append(("folder" if path.is_dir() else path.suffix, len(entries(tmp_path))))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", recording)
    assert store(cache, "k")
    assert done == [(".tmp", 0), ("folder", 1)]


def test_slices_stay_valid_after_close_and_eviction(tmp_path):
    cache = DiskCache(tmp_path, int(1.5 * MB))
    assert store(cache, "a")
    found = lease(cache, "a")
    piece = found.view[10:20]
    found.close()
    assert store(cache, "b")
    assert held(cache, "ab") == "b"
    assert bytes(piece) == content("a", MB)[10:20]


# What is not the cache's own.


def test_files_that_the_cache_did_not_make_are_never_touched(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    folder = tmp_path / "c"
    for path in (elsewhere, folder / "mine"):
        path.mkdir(parents=True)
        for number in range(4):
            (path / f"shard_{number}.jsonl").write_bytes(content(str(number), 3 * MB))
    (folder / "linked").symlink_to(elsewhere)
    (folder / "notes.txt").write_text("keep me")
    cache = DiskCache(folder, 10 * MB, policy="lru")
    inside = folder / "quark-cache-1"
    for own in ("objects/0", "working", "quarantine", "order"):
        (inside / own / "theirs").write_bytes(b"theirs")
        # A name of ours, but a link to a file of theirs.
        name = {"objects/0": "0" * 40 + "-5-00000000", "working": "0" * 40 + ".lock"}
        if own in name:
            (inside / own / name[own]).symlink_to(elsewhere / "shard_0.jsonl")
    mine = [path for path in files(tmp_path) if path.parent.name in {"mine", "elsewhere"}]
    mine += [folder / "notes.txt", *inside.rglob("theirs")]
    before = {path: path.read_bytes() for path in mine}
    for _ in range(2):
        for number in range(8):
            assert store(DiskCache(folder, 10 * MB, policy="lru"), f"k{number}", 3 * MB)
    assert {path: path.read_bytes() for path in mine} == before
    assert sum(1 for path in inside.rglob("*") if path.is_symlink()) == 2
    assert len(entries(folder)) - 1 <= 3  # `objects/0/theirs` is one of them
    assert cache.reserve(identity("z")) is not None


# The dead.

DIE = """
import os, signal, sys
from pathlib import Path
from tests.cache_parts import MB, content, identity, store
from tools_utilities.disk_cache import DiskCache
cache = DiskCache(Path(sys.argv[1]), 4 * MB)
store(cache, "kept")
lease = cache.open(identity("kept"))
turn = cache.try_turn(identity("k"))
reservation = cache.reserve(identity("k"))
reservation.write(0, content("k", MB)[:2048])
cache.set_order([identity("kept").digest] * 3)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_nothing_behind(tmp_path):
    for _ in range(3):
        died = subprocess.run([sys.executable, "-c", DIE, str(tmp_path)], check=False)
        assert died.returncode == -signal.SIGKILL
        assert [path.suffix for path in files(tmp_path) if path.suffix == ".tmp"] == [".tmp"]
    cache = DiskCache(tmp_path, 4 * MB)
    left = [path for path in files(tmp_path) if path.name != "ledger"]
    assert left == entries(tmp_path)
    assert has(cache, "kept")
    # Its lease, its turn, its room and its announcement mean nothing any more.
    turn = cache.try_turn(identity("k"))
    assert turn is not None
    cache.end_turn(turn)
    for key in "abc":
        assert store(cache, key)
    assert store(cache, "d")
    assert len(entries(tmp_path)) == 3
    assert not has(cache, "kept")


def test_room_that_a_dead_process_held_is_found_while_others_run(tmp_path):
    cache = DiskCache(tmp_path, 4 * MB)
    subprocess.run([sys.executable, "-c", DIE, str(tmp_path)], check=False)
    leases = []
    for key in "abc":
        assert store(cache, key)
        leases.append(lease(cache, key))
    assert folder_bytes(tmp_path) <= 4 * MB


def test_a_turn_is_for_one_at_a_time(tmp_path):
    one, two = DiskCache(tmp_path, MB), DiskCache(tmp_path, MB)
    turn = one.try_turn(identity("k"))
    assert turn is not None
    assert two.try_turn(identity("k")) is None
    other = two.try_turn(identity("other"))
    assert other is not None
    one.end_turn(turn)
    again = two.try_turn(identity("k"))
    assert again is not None
    two.end_turn(again)
    two.end_turn(other)
    assert not list((tmp_path / "quark-cache-1" / "working").iterdir())


# Folders.


def test_a_turn_that_a_disk_error_ends_is_free_again(tmp_path, monkeypatch):
    cache = DiskCache(tmp_path, MB)
    with monkeypatch.context() as patched:
        patched.setattr(HeldFile, "is_at", lambda *_: broken_disk())
        with pytest.raises(OSError) as kept:
            cache.try_turn(identity("k"))
    turn = cache.try_turn(identity("k"))
    assert turn is not None
    assert kept.value.errno == errno.EIO
    cache.end_turn(turn)


def test_a_folder_of_its_own_is_private(tmp_path):
    DiskCache(tmp_path / "new" / "cache", MB)
    assert stat.S_IMODE((tmp_path / "new" / "cache").stat().st_mode) == 0o700


def test_a_folder_that_others_may_write_is_shared_with_them(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    old = os.umask(0o077)
    try:
        cache = DiskCache(folder, 4 * MB)
        assert store(cache, "a")
        turn = cache.try_turn(identity("b"))
    finally:
        os.umask(old)
    assert turn is not None
    for path in folder.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o777 if path.is_dir() else 0o666), path


def test_another_budget_on_the_same_folder_holds_too(tmp_path):
    large, small = DiskCache(tmp_path, 10 * MB), DiskCache(tmp_path, int(2.5 * MB))
    for key in "abcdef":
        assert store(large, key)
    assert store(small, "x")
    assert folder_bytes(tmp_path) <= 2.5 * MB


def test_whoever_finds_a_bad_entry_second_leaves_the_good_one_that_took_its_place(tmp_path):
    cache = DiskCache(tmp_path, 10 * MB)
    assert store(cache, "k")
    [entry] = entries(tmp_path)
    damage_flip(entry)
    late = HeldFile(entry, os.O_RDONLY)
    first = DiskCache(tmp_path, 10 * MB)
    assert first.open(identity("k")) is None
    assert first.num_quarantined == 1
    assert store(cache, "k")  # of the same name
    cache._set_aside(late, entry, "bad")
    assert cache.num_quarantined == 0
    assert has(DiskCache(tmp_path, 10 * MB), "k")


def test_of_very_many_checked_files_the_last_opened_are_known(tmp_path):
    checked, status = CheckedFiles(), tmp_path.stat()
    for number in range(20_000):
        checked.add(str(number), f"{number}-1", status)
        checked.add("first", "first-1", status)
    assert checked.has("19999", "19999-1", status)
    assert checked.has("first", "first-1", status)
    assert not checked.has("first", "first-2", status)
    assert not checked.has("0", "0-1", status)
    assert (checked.name_of("first"), checked.name_of("0")) == ("first-1", None)
    assert sys.getsizeof(checked._known) < 4_000_000
    (tmp_path / "more").mkdir()
    assert not checked.has("first", "first-1", tmp_path.stat())


def test_an_entry_that_was_opened_before_is_found_without_a_listing(tmp_path, monkeypatch):
    mine, other, listed = DiskCache(tmp_path, 10 * MB), DiskCache(tmp_path, 10 * MB), []
    listdir = os.listdir

    def recording(path: Path) -> list[str]:
        listed.append(path)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", recording)
    assert store(mine, "k")
    assert has(other, "k")
    listed.clear()
    assert has(mine, "k")
    assert has(other, "k")
    assert not listed
    # Gone, and there again under another name: the folder says so.
    [entry] = entries(tmp_path)
    entry.unlink()
    assert not has(other, "k")
    assert store(mine, "k")
    renamed = entry.with_name(entry.name[:-8] + "00000000")
    entry.rename(renamed)
    assert not has(other, "k")
    assert other.num_quarantined == 1
    assert listed


def test_a_turn_whose_name_cannot_be_removed_is_over_all_the_same(tmp_path, monkeypatch):
    cache = DiskCache(tmp_path, 10 * MB)
    turn = cache.try_turn(identity("k"))
    assert turn is not None

    def fails(*_args: object, **_options: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "unlink", fails)
        with pytest.raises(OSError, match="Input/output"):
            cache.end_turn(turn)
    assert cache.try_turn(identity("k")) is not None  # nobody waits five minutes for it
