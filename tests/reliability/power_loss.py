"""A disk that loses power: what was written and not synced is gone, in part, or there as zeros.

`recorded` notes what is done to files below a folder; `Disk.image` builds what such a disk may hold after
the power went at some moment: of each file what was synced, and of later writes any; of each folder the
names that were synced, and of later renames and removals any. A `lying` disk keeps nothing for sure.
"""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Event:
    """One thing done: create, write, size, sync, rename, unlink, sync folder."""

    kind: str
    inode: int = 0
    path: str = ""
    target: str = ""
    offset: int = 0
    data: bytes = b""


@dataclass
class Disk:
    """What was done, in order."""

    root: Path
    events: list[Event] = field(default_factory=list)

    def image(self, where: Path, moment: int, rng: random.Random, *, lying: bool) -> None:
        """Build what is there after the power went at an event."""
        done = self.events[:moment]
        synced, folders = self._synced(done, lying=lying)
        contents: dict[int, bytearray] = {}
        for number, event in enumerate(done):
            kept = number < synced.get(event.inode, -1) or rng.random() < 0.5
            if event.kind in {"write", "size"} and kept:
                _write(contents.setdefault(event.inode, bytearray()), event, rng)
        names: dict[str, int] = {}
        for number, event in enumerate(done):
            folder = str(Path(event.target or event.path).parent)
            durable = number < folders.get(folder, -1)
            if durable or rng.random() < 0.5:
                _name(names, event)
        for path, inode in names.items():
            place = where / os.path.relpath(path, self.root)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(bytes(contents.get(inode, b"")))

    def _synced(self, done: list[Event], *, lying: bool) -> tuple[dict[int, int], dict[str, int]]:
        """Return up to which event each file, and each folder's names, are on the disk."""
        if lying:
            return {}, {}
        files = {event.inode: number for number, event in enumerate(done) if event.kind == "sync"}
        folders = {e.path: number for number, e in enumerate(done) if e.kind == "sync folder"}
        return files, folders


def _write(content: bytearray, event: Event, rng: random.Random) -> None:
    end = event.offset + len(event.data)
    if event.kind == "size":
        content.extend(bytes(max(0, event.offset - len(content))))
        return
    content.extend(bytes(max(0, end - len(content))))
    # A torn write: pages of it, or all.
    stop = rng.choice((len(event.data), len(event.data), rng.randint(0, len(event.data))))
    content[event.offset : event.offset + stop] = event.data[:stop]


def _name(names: dict[str, int], event: Event) -> None:
    if event.kind == "create":
        names[event.path] = event.inode
    elif event.kind == "unlink":
        names.pop(event.path, None)
    elif event.kind == "rename":
        names.pop(event.path, None)
        names[event.target] = event.inode


class _Recorder:
    """Stands for the functions of `os` that the cache calls, and notes what they do below a folder."""

    NAMES = ("open", "pwrite", "fsync", "rename", "unlink", "posix_fallocate", "ftruncate")

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._below = f"{disk.root}/"
        self._ours: dict[int, tuple[int, str]] = {}
        """Descriptor → inode and path."""
        self.real = {name: getattr(os, name) for name in self.NAMES}

    def _note(self, kind: str, **about: Any) -> None:
        self._disk.events.append(Event(kind, **about))

    def open(self, path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
        text = str(path)
        ours = text.startswith(self._below)
        new = ours and flags & os.O_CREAT and not os.path.lexists(text)
        fd: int = self.real["open"](path, flags, mode, **options)
        self._ours.pop(fd, None)
        if ours:
            inode = os.fstat(fd).st_ino
            self._ours[fd] = inode, text
            if new:
                self._note("create", inode=inode, path=text)
        return fd

    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        count: int = self.real["pwrite"](fd, data, offset)
        if fd in self._ours:
            self._note("write", inode=self._ours[fd][0], offset=offset, data=bytes(data)[:count])
        return count

    def fsync(self, fd: int) -> None:
        self.real["fsync"](fd)
        if fd in self._ours:
            inode, path = self._ours[fd]
            if Path(path).is_dir():
                self._note("sync folder", path=path)
            else:
                self._note("sync", inode=inode, path=path)

    def rename(self, source: Any, target: Any, **options: Any) -> None:
        inode = os.lstat(source).st_ino
        self.real["rename"](source, target, **options)
        if str(target).startswith(self._below):
            self._note("rename", inode=inode, path=str(source), target=str(target))

    def unlink(self, path: Any, **options: Any) -> None:
        self.real["unlink"](path, **options)
        if str(path).startswith(self._below):
            self._note("unlink", path=str(path))

    def posix_fallocate(self, fd: int, offset: int, size: int) -> None:
        self.real["posix_fallocate"](fd, offset, size)
        self._sized(fd, offset + size)

    def ftruncate(self, fd: int, size: int) -> None:
        self.real["ftruncate"](fd, size)
        self._sized(fd, size)

    def _sized(self, fd: int, size: int) -> None:
        if fd in self._ours:
            self._note("size", inode=self._ours[fd][0], offset=size)


@contextmanager
def recorded(root: Path) -> Iterator[Disk]:
    """Note what this process does to files below a folder, by the calls that the cache makes."""
    disk = Disk(root)
    recorder = _Recorder(disk)
    for name in recorder.NAMES:
        setattr(os, name, getattr(recorder, name))
    try:
        yield disk
    finally:
        for name, function in recorder.real.items():
            setattr(os, name, function)
