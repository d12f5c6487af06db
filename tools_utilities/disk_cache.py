"""DiskCache: verified objects on a local disk, shared by all processes of a machine.

An entry is one file whose name holds the hash of (endpoint, key, etag, size), the size and the
CRC-32C of its content: nothing of it comes from the key, and its one rename is the whole commit.
Readers hold a shared lock on the entry they map; an entry can be evicted when its exclusive lock is
free. Costs a folder listing (1/16 of the entries) a first opening, a walk over all an eviction.
"""

import errno
import logging
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, suppress
from operator import attrgetter
from pathlib import Path
from threading import Lock

from tools_utilities.cache_entry import EntryId
from tools_utilities.cache_folder import SharedModes, sync_folder
from tools_utilities.cache_ledger import (
    LOCK_SECONDS,
    CacheFile,
    CacheLayout,
    Ledger,
    evict_file,
    is_spare,
    locked_ledger,
    parse_entry,
)
from tools_utilities.cached_file import CachedFile, CheckedFiles, LentFile, touch, why_wrong
from tools_utilities.disk_space import DiskSpace, RealDisk, is_no_room
from tools_utilities.eviction import EVICTION_POLICIES, NEVER
from tools_utilities.file_locks import HeldFile, closed_on_error
from tools_utilities.use_order import UseOrder
from tools_utilities.use_plan import UsePlan

_LOGGER = logging.getLogger(__name__)
_NOT_OURS = {errno.ENOENT, errno.ELOOP, errno.EACCES, errno.EPERM}
_ANNOUNCE_SECONDS = 0.05
_FREE_SHARE = 0.05
"""Of the disk, left to everybody else."""
_SPARE_SHARE = 1 / 256
"""Of the budget: so much more goes in a walk over all entries, so that of small objects not each costs one."""


class Reservation:
    """Room in the cache for one object, and the file to write it to. Publish it or discard it."""

    def __init__(self, cache: "DiskCache", entry: EntryId, file: HeldFile) -> None:
        self.entry = entry
        self.file = file
        self._cache = cache

    def write(self, offset: int, piece: bytes | memoryview) -> None:
        """Write a piece at its place.

        Raises:
            OSError: ENOSPC where room could not be set aside before.
        """
        view = memoryview(piece)
        while view:
            written = os.pwrite(self.file.fd, view, offset)
            offset, view = offset + written, view[written:]

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return bytes that were written before."""
        return os.pread(self.file.fd, num_bytes, offset)

    def lend(self) -> CachedFile:
        """Let this process read what was written and verified; `publish` or `discard` comes later."""
        return self._cache.lend(self)

    def publish(self, crc32c: int) -> CachedFile:
        """Make it the object's entry, durable and under its final name at once."""
        return self._cache.publish(self, crc32c)

    def discard(self) -> None:
        """Give the room back."""
        self._cache.discard(self)


class DiskCache:
    """A cache folder as one process sees it; any number of threads may call it.

    Methods raise OSError when the folder cannot be used any more.
    """

    def __init__(
        self,
        folder: Path,
        budget_bytes: int,
        *,
        policy: str = "next_use",
        disk: DiskSpace | None = None,
    ) -> None:
        self.folder = folder
        self.budget_bytes = budget_bytes
        self.num_quarantined = 0
        self._order_entries = EVICTION_POLICIES[policy]
        self._by_next_use = policy == "next_use"
        self._disk = disk or RealDisk()
        self._layout = CacheLayout(folder)
        self._modes = self.create()
        self._order = UseOrder(self._layout.order, self._modes, budget_bytes)
        self._order_lock = Lock()
        self._checked = CheckedFiles()
        self._lent: dict[str, tuple[EntryId, LentFile, Path]] = {}
        """By digest: what is verified and not published yet."""
        self._lent_lock = Lock()
        self._warned = False
        with self._locked() as ledger:
            ledger.recount()

    def _locked(self, wait_seconds: float = LOCK_SECONDS) -> AbstractContextManager[Ledger]:
        return locked_ledger(self._layout, self._modes, wait_seconds)

    def create(self) -> SharedModes:
        """Make the folders that are missing; a folder of our own making is private."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        modes = SharedModes(self.folder)
        self._layout.create(modes)
        return modes

    # Reading.

    def open(self, entry: EntryId) -> CachedFile | None:
        """Return the entry, leased, its content checked once by this process; None: not there."""
        with self._lent_lock:
            known, lent, path = self._lent.get(entry.digest, (None, None, None))
            if lent is not None and path is not None and known == entry:
                return CachedFile(lent.hold(), path, entry.size_bytes)
        fan = self._layout.fan(entry.digest)
        for name in self._names_of(entry.digest, fan):
            found = self._open(entry, fan / name)
            if found is not None:
                return found
        return None

    def find(self, digest: str) -> CachedFile | None:
        """Return an entry that `keep_spare` made, as `open` does; its size is not known before."""
        fan = self._layout.fan(digest)
        for name in self._names_of(digest, fan):
            parsed = parse_entry(name)
            if parsed is not None:
                entry = EntryId(digest=digest, size_bytes=parsed[1])
                found = self._open(entry, fan / name)
                if found is not None:
                    return found
        return None

    def _names_of(self, digest: str, fan: Path) -> Iterator[str]:
        """Yield what an entry's file may be called, the known name before the folder is listed."""
        known = self._checked.name_of(digest)
        if known is not None:
            yield known
        for name in os.listdir(fan):  # noqa: PTH208 - names are enough
            if name.startswith(digest) and name != known:
                yield name

    def _open(self, entry: EntryId, path: Path) -> CachedFile | None:
        parsed = parse_entry(path.name)
        if parsed is None:
            return None
        try:
            file = HeldFile(path, os.O_RDONLY)
        except OSError as error:
            if error.errno in _NOT_OURS:
                return None  # evicted meanwhile, a link, or another user's
            raise
        # An exclusive lock is an eviction under way.
        if not file.try_lock(exclusive=False) or not file.is_at(path):
            file.close()
            return None
        _, num_bytes, promised = parsed
        status = os.fstat(file.fd)
        right = num_bytes == entry.size_bytes == status.st_size and stat.S_ISREG(status.st_mode)
        if not right or entry.crc32c not in {None, promised}:
            self._set_aside(file, path, "its size or checksum is not the object's")
            return None
        known = self._checked.has(entry.digest, path.name, status)
        reason = None if known else why_wrong(file.fd, num_bytes, promised)
        if reason is not None:
            self._set_aside(file, path, reason)
            return None
        self._checked.add(entry.digest, path.name, status)
        touch(file.fd, status)
        return CachedFile(file, path, num_bytes)

    def _set_aside(self, file: HeldFile, path: Path, reason: str) -> None:
        """Move a bad entry away, once: whoever comes second may find a good one of that name."""
        try:
            with self._locked():
                if not file.is_at(path):
                    return
                path.rename(self._layout.new_quarantine(path))
        finally:
            file.close()
        self.num_quarantined += 1
        tell = _LOGGER.info if is_spare(path.name) else _LOGGER.warning  # a power cut tears many
        tell("cache entry %s is bad (%s); it is set aside and comes anew", path, reason)

    # Writing.

    def try_turn(self, entry: EntryId) -> HeldFile | None:
        """Become the one on this machine who downloads an object; None: somebody else is.

        End the turn with `end_turn`; the kernel ends it for the dead.
        """
        path = self._layout.lock(entry.digest)
        with closed_on_error(HeldFile(path, os.O_RDWR | os.O_CREAT)) as file:
            self._modes.apply(file.fd)
            # The name may have gone with an earlier turn: then this lock excludes nobody.
            if file.try_lock(exclusive=True) and file.is_at(path):
                return file
        file.close()
        return None

    def end_turn(self, turn: HeldFile) -> None:
        """Let the next one in; the name goes first, so that nobody can lock it twice."""
        with turn:  # a disk that fails must not leave the turn taken
            turn.path.unlink(missing_ok=True)

    def reserve(
        self, entry: EntryId, *, ahead: bool = False, evict: bool = True
    ) -> Reservation | None:
        """Set room aside for an object, evicting what may go; None: there is none to be had.

        Without `evict`, for what can be made again: only room that is free. What is read `ahead`
        never evicts what is needed before it, nor anything what is needed next.
        """
        if entry.size_bytes + self._order.announced_bytes >= self.budget_bytes:
            return None
        with self._locked() as ledger:
            if not (evict or self._has_spare_room(ledger, entry.size_bytes)):
                return None
            if not self._make_room(ledger, entry, ahead=ahead):
                return None
            ledger.add(entry.size_bytes)
            file = self._new_temporary(entry)
            try:
                self._disk.allocate(file.fd, entry.size_bytes)
            except OSError as error:
                file.path.unlink()
                file.close()
                ledger.add(-entry.size_bytes)
                if not is_no_room(error):
                    raise
                if evict:
                    self.warn_full(entry.size_bytes)
                return None
        return Reservation(self, entry, file)

    def _new_temporary(self, entry: EntryId) -> HeldFile:
        path = self._layout.new_temporary(entry.digest)
        with closed_on_error(HeldFile(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)) as file:
            self._modes.apply(file.fd)
            # Unlocked ones are the dead's. Nobody looks before the ledger is free again.
            file.try_lock(exclusive=True)
            return file

    def lend(self, reservation: Reservation) -> CachedFile:
        """Let this process read a download that is complete and verified but not published yet."""
        entry, file = reservation.entry, reservation.file
        lent = LentFile(file)
        with self._lent_lock:
            self._lent[entry.digest] = (entry, lent, file.path)
        return CachedFile(lent.hold(), file.path, entry.size_bytes)

    def _end_lending(self, reservation: Reservation) -> HeldFile | LentFile:
        """Return what holds a reservation's file open: several users, where it was lent."""
        with self._lent_lock:
            lent = self._lent.pop(reservation.entry.digest, None)
        return reservation.file if lent is None else lent[1]

    def publish(
        self, reservation: Reservation, checksum: int, *, spare: bool = False
    ) -> CachedFile:
        """Rename a finished download to its entry's name; returns it leased.

        A `spare` one goes first, and may be torn when the power fails: its checksum shows that.
        """
        entry, file = reservation.entry, reservation.file
        path = self._layout.entry(entry.digest, entry.size_bytes, checksum, spare=spare)
        if not spare:
            os.fsync(file.fd)
        with self._locked() as ledger:
            replaced = path.lstat().st_size if path.exists() else 0
            file.path.rename(path)
            ledger.add(-replaced)
        if not spare:
            sync_folder(path.parent)
        file.try_lock(exclusive=False)
        self._checked.add(entry.digest, path.name, os.fstat(file.fd))
        return CachedFile(self._end_lending(reservation), path, entry.size_bytes)

    def discard(self, reservation: Reservation) -> None:
        """Delete an unfinished download; what has its entry's name already stays, and stays counted."""
        file = closing(self._end_lending(reservation))
        with file, self._locked() as ledger, suppress(FileNotFoundError):
            reservation.file.path.unlink()
            ledger.add(-reservation.entry.size_bytes)

    # Room.

    def set_order(self, digests: Sequence[str]) -> None:
        """Announce what is read next, soonest first; replaces the order before. Never waits long."""
        with self._order_lock:
            if not self._order.set(digests) or not self._by_next_use:
                return
            try:
                with self._locked(_ANNOUNCE_SECONDS) as ledger:
                    self._announce(ledger)
            except TimeoutError:
                return  # the folder is busy; the next order is announced instead

    def _announce(self, ledger: Ledger) -> None:
        before = self._order.announced_bytes
        room = self._order.max_bytes - before
        if self._shortfall(ledger, room) > 0:
            return
        # Counted before it is written, as everything is.
        ledger.add(room)
        self._order.announce()
        ledger.add(self._order.announced_bytes - before - room)

    def set_plan(self, plan: UsePlan) -> None:
        """Say when everything is used, in this epoch and the next; replaces the plan before."""
        if self._by_next_use:
            self._order.plan = plan

    def passed(self, entry: EntryId) -> None:
        """Note that an object of the announced order is being read now."""
        self._order.passed(entry.digest)

    def has_spare_room(self, num_bytes: int) -> bool:
        """Tell whether there is room for what can be made again. Never waits long."""
        with self._locked(_ANNOUNCE_SECONDS) as ledger:
            return self._has_spare_room(ledger, num_bytes)

    def _has_spare_room(self, ledger: Ledger, num_bytes: int) -> bool:
        # What a walk has freed for the objects to come is left to them.
        return self._shortfall(ledger, num_bytes + int(self.budget_bytes * _SPARE_SHARE)) <= 0

    def _shortfall(self, ledger: Ledger, num_bytes: int) -> int:
        """Return how many bytes must go before `num_bytes` may come."""
        free, total = self._disk.free_and_total_bytes(self.folder)
        for_budget = ledger.used_bytes + num_bytes - self.budget_bytes
        for_disk = num_bytes + int(total * _FREE_SHARE) - free
        return max(for_budget, for_disk)

    def _make_room(self, ledger: Ledger, entry: EntryId, *, ahead: bool) -> bool:
        num_bytes = entry.size_bytes
        if self._shortfall(ledger, num_bytes) <= 0:
            return True
        files = ledger.recount()
        if self._shortfall(ledger, num_bytes) <= 0:
            return True
        spare = int(self.budget_bytes * _SPARE_SHARE)
        for file in self._candidates(files, entry if ahead else None):
            if self._shortfall(ledger, num_bytes) <= 0:
                spare -= file.evictable.num_bytes
                if spare < 0:
                    break
            if evict_file(file):
                ledger.add(-file.evictable.num_bytes)
        if self._shortfall(ledger, num_bytes) <= 0:
            return True
        if ledger.used_bytes + num_bytes <= self.budget_bytes:
            self.warn_full(num_bytes)
        return False

    def _candidates(self, files: list[CacheFile], ahead: EntryId | None) -> list[CacheFile]:
        uses = self._order.next_uses() if self._by_next_use else {}
        soonest = uses.get(ahead.digest, 0) if ahead is not None else 0
        by_name = {file.evictable.name: file for file in files if not (file.spoiled or file.spare)}
        ordered = self._order_entries([file.evictable for file in by_name.values()], uses)
        later = [by_name[old.name] for old in ordered if uses.get(old.digest, NEVER) > soonest]
        spare = sorted((file for file in files if file.spare), key=attrgetter("evictable.used_ns"))
        return [file for file in files if file.spoiled] + spare + later

    def warn_full(self, num_bytes: int) -> None:
        """Say once that the disk, not the budget, leaves no room."""
        if self._warned:
            return
        self._warned = True
        free, _ = self._disk.free_and_total_bytes(self.folder)
        _LOGGER.warning(
            "the disk of the cache folder %s is full: %d bytes needed, %d bytes free; "
            "reading without a cache",
            self.folder,
            num_bytes,
            free,
        )

    def close(self) -> None:
        """Withdraw the announced order."""
        self._order.close()
