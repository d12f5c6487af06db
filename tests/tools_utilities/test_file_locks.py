import os
import signal
import subprocess
import sys

import pytest

from tools_utilities.file_locks import HeldFile

FLAGS = os.O_RDWR | os.O_CREAT
HOLD = """
import os, sys, time
from pathlib import Path
from tools_utilities.file_locks import HeldFile
file = HeldFile(Path(sys.argv[1]), os.O_RDWR | os.O_CREAT)
assert file.try_lock(exclusive=True)
print("held", flush=True)
time.sleep(60)
"""


def test_two_openings_exclude_each_other_in_one_process(tmp_path):
    with HeldFile(tmp_path / "l", FLAGS) as one, HeldFile(tmp_path / "l", FLAGS) as two:
        assert one.try_lock(exclusive=True)
        assert not two.try_lock(exclusive=True)
        assert not two.try_lock(exclusive=False)
        one.close()
        assert two.try_lock(exclusive=True)


def test_readers_share_and_keep_writers_out(tmp_path):
    with (
        HeldFile(tmp_path / "l", FLAGS) as one,
        HeldFile(tmp_path / "l", FLAGS) as two,
        HeldFile(tmp_path / "l", FLAGS) as writer,
    ):
        assert one.try_lock(exclusive=False)
        assert two.try_lock(exclusive=False)
        assert not writer.try_lock(exclusive=True)


def test_a_killed_owner_frees_its_lock(tmp_path):
    owner = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "l")], stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    with owner, HeldFile(tmp_path / "l", FLAGS) as mine:
        assert owner.stdout.readline() == b"held\n"
        assert not mine.try_lock(exclusive=True)
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        assert mine.try_lock(exclusive=True)


def test_a_forked_child_neither_keeps_nor_frees_the_lock_of_its_parent(tmp_path):
    held = HeldFile(tmp_path / "l", FLAGS)
    assert held.try_lock(exclusive=True)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        held.close()  # the child's copy: must not unlock the parent's
        os.read(read_end, 1)
        os._exit(0)
    try:
        with HeldFile(tmp_path / "l", FLAGS) as other:
            assert not other.try_lock(exclusive=True)
            held.close()
            assert other.try_lock(exclusive=True)  # though the child is alive
    finally:
        os.write(write_end, b"x")
        os.waitpid(child, 0)
        os.close(read_end)
        os.close(write_end)


def test_a_link_is_never_followed(tmp_path):
    (tmp_path / "theirs").write_bytes(b"x")
    (tmp_path / "l").symlink_to(tmp_path / "theirs")
    with pytest.raises(OSError, match="symbolic"):
        HeldFile(tmp_path / "l", FLAGS)


def test_a_deleted_name_is_noticed(tmp_path):
    with HeldFile(tmp_path / "l", FLAGS) as one:
        assert one.is_at(tmp_path / "l")
        (tmp_path / "l").unlink()
        assert not one.is_at(tmp_path / "l")
        (tmp_path / "l").write_bytes(b"")
        assert not one.is_at(tmp_path / "l")


def test_waiting_for_a_lock_ends(tmp_path):
    with HeldFile(tmp_path / "l", FLAGS) as one, HeldFile(tmp_path / "l", FLAGS) as two:
        one.lock(0)
        with pytest.raises(TimeoutError):
            two.lock(0.05)
