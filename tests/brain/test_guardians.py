"""Whom a run must not outlive, and who let it go."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from brain.ml.guardians import LET_GO_FILE, Guardians, let_go
from tools_utilities.process_identity import ProcessIdentity, identify


@pytest.fixture
def gone() -> ProcessIdentity:
    """A process that has died."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    found = identify(child.pid)
    child.communicate()
    return found


def test_a_guardian_is_missed_once_it_has_died(tmp_path: Path, gone: ProcessIdentity):
    assert not Guardians(tmp_path, [identify(os.getpid())]).missed
    assert Guardians(tmp_path, [identify(os.getpid()), gone]).missed


def test_one_that_let_the_run_go_is_not_missed(tmp_path: Path, gone: ProcessIdentity):
    let_go(tmp_path, gone)
    assert not Guardians(tmp_path, [gone]).missed
    # It may have died before its start time was looked up.
    assert not Guardians(tmp_path, [msgspec.structs.replace(gone, start=0)]).missed


def test_the_next_starts_launcher_has_a_bond_of_its_own(tmp_path: Path, gone: ProcessIdentity):
    let_go(tmp_path)
    assert Guardians(tmp_path, [gone]).missed
    again = msgspec.structs.replace(gone, start=gone.start + 1)
    let_go(tmp_path, again)  # another process of the same number
    assert Guardians(tmp_path, [gone]).missed


def test_a_broken_file_lets_nothing_go(tmp_path: Path, gone: ProcessIdentity):
    (tmp_path / LET_GO_FILE).write_text("{")
    assert Guardians(tmp_path, [gone]).missed
