"""Spilled bytes read the same from memory and from the file, and leave nothing behind."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tools_utilities.spill import Spill


@pytest.mark.parametrize("memory_bytes", [0, 10, 1 << 20])
def test_what_is_written_is_read(memory_bytes: int) -> None:
    with Spill(memory_bytes=memory_bytes) as spill:
        for piece in (b"abc", b"", memoryview(b"defghij"), b"k" * 5000):
            assert spill.write(piece) == len(piece)
        view = spill.view()
        assert bytes(view) == b"abcdefghij" + b"k" * 5000
        assert view.readonly
        assert spill.size_bytes == 5010
        assert spill.held_bytes == (5010 if memory_bytes > 5010 else 0)


@pytest.mark.parametrize("memory_bytes", [0, 10, 1 << 20])
def test_pieces_are_all_of_it_and_map_nothing(memory_bytes: int) -> None:
    with Spill(memory_bytes=memory_bytes) as spill:
        for number in range(100):
            spill.write(bytes([number]) * 77)

        pieces = [bytes(piece) for piece in spill.pieces(1000)]

        assert [len(piece) for piece in pieces] == [1000] * 7 + [700]
        assert b"".join(pieces) == b"".join(bytes([number]) * 77 for number in range(100))
        assert spill._map is None


def test_a_full_temporary_folder_is_named(tmp_path: Path) -> None:
    """A file size limit stands for a full disk; only a process of its own can have one."""
    program = """
import resource, signal
from tools_utilities.errors import StoreError
from tools_utilities.spill import Spill
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    Spill(memory_bytes=100).write(bytes(50_000))
except StoreError as error:
    print(error, error.hint)
"""
    done = subprocess.run(
        # -B: a module's compiled file would be cut at the limit too, and left so for everybody.
        [sys.executable, "-B", "-c", program],
        cwd=Path(__file__).parents[2], env={"TMPDIR": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"{tmp_path}: cannot keep decoded data there: File too large" in done.stdout
    assert "Set TMPDIR" in done.stdout


def test_an_empty_spill_is_empty() -> None:
    assert bytes(Spill().view()) == b""


def test_the_file_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spill = Spill(memory_bytes=0)
    spill.write(b"x" * 100)
    assert list(tmp_path.iterdir()) == []
    view = spill.view()
    spill.close()
    spill.close()
    assert bytes(view) == b"x" * 100  # views outlive the spill


def test_letting_pages_go_keeps_the_bytes() -> None:
    spill = Spill(memory_bytes=0)
    spill.write(bytes(range(256)) * 4096)
    view = spill.view()
    for start in range(0, len(view), 64 << 10):
        assert view[start + 7] == 7
        spill.touched(1, 64 << 10, budget_bytes=1)
    assert bytes(view) == bytes(range(256)) * 4096
