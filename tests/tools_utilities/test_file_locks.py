import os
import signal
import socket
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
    child_end, parent_end = socket.socketpair()
    child = os.fork()
    if child == 0:
        held.close()  # the child's copy: must not unlock the parent's
        child_end.send(b"closed")
        child_end.recv(1)
        os._exit(0)
    try:
        assert parent_end.recv(10) == b"closed"
        with HeldFile(tmp_path / "l", FLAGS) as other:
            assert not other.try_lock(exclusive=True)
            held.close()
            assert other.try_lock(exclusive=True)  # though the child is alive
    finally:
        parent_end.send(b"x")
        os.waitpid(child, 0)
        parent_end.close()
        child_end.close()


FORK_AND_DIE = """
import os, signal, sys, time
from pathlib import Path
from tools_utilities.file_locks import HeldFile
file = HeldFile(Path(sys.argv[1]), os.O_RDWR | os.O_CREAT)
assert file.try_lock(exclusive=True)
if (child := os.fork()) == 0:
    print(os.getpid(), flush=True)
    time.sleep(60)
time.sleep(0.2)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_lock_dies_with_its_owner_though_a_child_lives_on(tmp_path):
    died = subprocess.Popen(
        [sys.executable, "-c", FORK_AND_DIE, str(tmp_path / "l")], stdout=subprocess.PIPE
    )
    assert died.stdout is not None
    child = int(died.stdout.readline())
    try:
        assert died.wait() == -signal.SIGKILL
        with HeldFile(tmp_path / "l", FLAGS) as mine:
            assert mine.try_lock(exclusive=True)
    finally:
        os.kill(child, signal.SIGKILL)
        died.stdout.close()


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
