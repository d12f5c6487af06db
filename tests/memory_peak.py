"""How much memory something takes at its most, by the kernel's own mark.

Not by tracemalloc: CPython may crash in `tracemalloc.stop()` while a thread of some library allocates
(github.com/python/cpython/issues/128679), and it does not see what libraries allocate themselves.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROC = Path("/proc/self")


class Peak:
    """Bytes by which this process grew at most; 0 until the block has ended."""

    num_bytes = 0


@contextmanager
def memory_peak() -> Iterator[Peak]:
    """Measure the growth of resident memory within a block, threads beside it included."""
    peak = Peak()
    (_PROC / "clear_refs").write_text("5")  # the mark falls to what is resident now
    before = _kilobytes("VmRSS")
    yield peak
    peak.num_bytes = max(0, _kilobytes("VmHWM") - before) << 10


def peak_bytes() -> int:
    """Return what this process has held at most since it began its program."""
    return _kilobytes("VmHWM") << 10


def _kilobytes(name: str) -> int:
    lines = (_PROC / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))
