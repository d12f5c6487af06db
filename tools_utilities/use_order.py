"""What every process on the machine needs next, so that no one evicts what another is about to read.

Each process keeps one small file of its own in the cache: the digests of the objects it will read,
in order. The file is locked while its owner lives; a file that can be locked is a dead owner's.
"""

import os
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tools_utilities.cache_folder import SharedModes
from tools_utilities.cache_ledger import ANNOUNCEMENT
from tools_utilities.file_locks import HeldFile

if TYPE_CHECKING:
    from tools_utilities.use_plan import UsePlan

DIGEST_BYTES = 20
_MAX_ANNOUNCED = 4096
_LARGEST_SHARE = 0.001
"""Of the budget: announcements are files of the cache and count."""
_PAUSE_SECONDS = 0.25


class UseOrder:
    """Announces this process's order and reads the others'. Writing needs the cache's ledger lock."""

    def __init__(
        self,
        folder: Path,
        modes: SharedModes,
        budget_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._modes = modes
        self._max_announced = min(
            _MAX_ANNOUNCED, int(budget_bytes * _LARGEST_SHARE) // DIGEST_BYTES
        )
        self._clock = clock
        self._file: HeldFile | None = None
        self._next_use: dict[str, int] = {}
        self._announced_at = float("-inf")
        self._stale = False
        self.plan: UsePlan | None = None
        """What is known of this process's uses beyond the order."""
        self.announced_bytes = 0
        self.max_bytes = self._max_announced * DIGEST_BYTES
        """What an announcement may take."""

    def set(self, digests: Sequence[str]) -> bool:
        """Take a new order (hexadecimal digests, soonest first); say whether to announce it now."""
        next_use: dict[str, int] = {}
        for index, digest in enumerate(digests):
            next_use.setdefault(digest, index)
        self._next_use = next_use
        self._stale = True
        return self._clock() - self._announced_at >= _PAUSE_SECONDS

    def passed(self, digest: str) -> None:
        """Note that an object is being read: nobody waits for it any more."""
        self._next_use.pop(digest, None)
        if self.plan is not None:
            self.plan.passed(digest)

    def announce(self) -> None:
        """Write the order for the other processes; call with the ledger locked."""
        if not self._stale or not self._max_announced:
            return
        if self._file is None:
            self._file = self._create()
        soonest = list(self._next_use)[: self._max_announced]
        content = b"".join(bytes.fromhex(digest) for digest in soonest)
        os.pwrite(self._file.fd, content, 0)
        os.ftruncate(self._file.fd, len(content))
        self.announced_bytes = len(content)
        self._announced_at, self._stale = self._clock(), False

    def _create(self) -> HeldFile:
        path = self._folder / f"{os.getpid()}-{uuid.uuid4().hex}"
        file = HeldFile(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self._modes.apply(file.fd)
        file.try_lock(exclusive=True)
        return file

    def next_uses(self) -> dict[str, int]:
        """Return digest → the smallest index in any live process's order; ledger locked."""
        merged = {} if self.plan is None else self.plan.next_uses()
        merged.update((digest, index) for index, digest in enumerate(list(self._next_use)))
        mine = self._file.path.name if self._file is not None else None
        for name in os.listdir(self._folder):  # noqa: PTH208 - names are enough
            if name != mine and ANNOUNCEMENT.fullmatch(name):
                for index, digest in enumerate(self._read(self._folder / name)):
                    merged[digest] = min(index, merged.get(digest, index))
        return merged

    def _read(self, path: Path) -> list[str]:
        try:
            with HeldFile(path, os.O_RDONLY) as file:
                if file.try_lock(exclusive=True):
                    path.unlink(missing_ok=True)  # its owner is dead
                    return []
                content = os.pread(file.fd, _MAX_ANNOUNCED * DIGEST_BYTES, 0)
        except OSError:
            return []  # gone, or not for us to read: an announcement is only advice
        return [
            content[offset : offset + DIGEST_BYTES].hex()
            for offset in range(0, len(content) - DIGEST_BYTES + 1, DIGEST_BYTES)
        ]

    def close(self) -> None:
        """Withdraw the announcement."""
        if self._file is not None:
            self._file.path.unlink(missing_ok=True)
            self._file.close()
            self._file = None
