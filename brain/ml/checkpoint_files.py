"""A checkpoint on disk: a folder that is there whole or not at all.

    checkpoints/step-00000123/
        model.safetensors  optimizer.safetensors   of several ranks: model-00001-of-00004.safetensors …
        tensors.json       which file holds which piece of which tensor
        state.json         progress, schedule and stream, for all ranks
        rank-00000.json …  each rank's random generators
        complete.json      every file's size and SHA-256, written last
    checkpoints/latest     the name of the newest, written after it

Written to a hidden folder, synced, renamed. Only safetensors and JSON: nothing is ever unpickled,
and a folder that holds anything else is refused. The newest is the one that `latest` names; those
of later steps are of a past that was left by going back.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tools_utilities.errors import DataError
from tools_utilities.fresh_folder import fresh_folder
from tools_utilities.json_text import decode_json
from tools_utilities.prepared_types import prepared

COMPLETE_FILE = "complete.json"
BEST_FILE = "best"
"""Names the checkpoint of the best validation loss."""
LATEST_FILE = "latest"
ALLOWED_SUFFIXES = (".safetensors", ".json")
_NAME = re.compile(r"step-([0-9]{8,18})")
_REPLACED = ".replaced"


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a file must be."""

    size_bytes: int
    sha256: str


@prepared
class Complete(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `complete.json`."""

    version: int = 1
    step: int
    files: dict[str, FileRecord]
    token: str = ""
    """In a store: what stands before the names of its objects."""


class RejectedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that cannot be used, and why."""

    name: str
    reason: str


def checkpoint_name(step: int) -> str:
    """Return the folder name of a step."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """Return the step a folder name stands for, or None."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the published checkpoints, newest first; their content is not looked at."""
    if not folder.is_dir():
        return []
    names = [path.name for path in folder.iterdir() if path.is_dir()]
    found = [name for name in names if step_of(name) is not None]
    return [folder / name for name in newest_first(found, pointed_to(folder))]


def recover(folder: Path) -> None:
    """Undo a save of a step saved before that was cut off between its two renames."""
    for left in folder.glob(f".step-*{_REPLACED}"):
        final = folder / left.name[1:].removesuffix(_REPLACED)
        if not final.exists():
            left.rename(final)


def newest_first(names: list[str], pointed: str | None) -> list[str]:
    """Return names of checkpoints: the one pointed to, those of earlier steps, then all later ones."""
    limit = None if pointed is None else step_of(pointed)

    def place(name: str) -> tuple[bool, int]:
        step = step_of(name) or 0
        return (limit is None or step <= limit, step)

    return sorted(names, key=place, reverse=True)


def pointed_to(folder: Path) -> str | None:
    """Return the name in `latest`, if that checkpoint is there."""
    try:
        name = (folder / LATEST_FILE).read_text().strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return name if step_of(name) is not None and (folder / name).is_dir() else None


def point_to(folder: Path, name: str) -> None:
    """Make a checkpoint the newest."""
    write_file(folder / LATEST_FILE, f"{name}\n".encode())


def begin(folder: Path, step: int) -> Path:
    """Return a new, empty hidden folder to write a checkpoint into."""
    return fresh_folder(hidden_folder(folder, step))


def discard(hidden: Path, rank: int, *, handed_over: bool) -> None:
    """Make room after a save that failed on this rank.

    Rank 0 publishes, so it alone knows that nothing is being published: it removes everything.
    Another rank removes its own files, and those only until it has told rank 0 that they are there:
    it may be told of a failure while rank 0 publishes (a broken connection to a third one).
    """
    if rank == 0:
        shutil.rmtree(hidden, ignore_errors=True)
    elif not handed_over:
        for own in (f"*-{rank + 1:05d}-of-*.safetensors", f"*{rank_file(rank)}*"):
            for path in hidden.glob(own):
                path.unlink(missing_ok=True)


def rank_file(rank: int) -> str:
    """Return the name of the file with a rank's random generators."""
    return f"rank-{rank:05d}.json"


def hidden_folder(folder: Path, step: int) -> Path:
    """Return where a checkpoint stands while it is written."""
    return folder / f".{checkpoint_name(step)}.partial"


def publish(folder: Path, complete: Complete) -> Path:
    """Make a written checkpoint the newest; afterwards it is on the disk, whatever happens."""
    step = complete.step
    hidden, final = hidden_folder(folder, step), folder / checkpoint_name(step)
    write_file(hidden / COMPLETE_FILE, msgspec.json.encode(complete))
    _sync(hidden)
    replaced = final.with_name(f".{final.name}{_REPLACED}")
    if final.exists():
        # The same step again: it stays readable until the new one has its name.
        shutil.rmtree(replaced, ignore_errors=True)
        final.rename(replaced)
    hidden.rename(final)
    _sync(folder)
    shutil.rmtree(replaced, ignore_errors=True)
    # The pointer last: it names complete checkpoints only.
    point_to(folder, final.name)
    return final


def mark_best(folder: Path, name: str) -> None:
    """Note which checkpoint had the best validation loss."""
    write_file(folder / BEST_FILE, f"{name}\n".encode())


def keep_newest(folder: Path, count: int, best: str | None = None) -> None:
    """Remove all but the newest `count` checkpoints and the best, and what interrupted writes left."""
    for path in list_checkpoints(folder)[count:]:
        if path.name == best:
            continue
        path.rename(path.with_name(f".{path.name}.removed"))
    for ending in ("removed", "partial", "replaced"):
        for left in folder.glob(f".step-*.{ending}"):
            shutil.rmtree(left, ignore_errors=True)


def read_complete(path: Path) -> Complete:
    """Return what a checkpoint says it holds.

    Raises:
        DataError: it says nothing, or what no checkpoint says.
    """
    try:
        complete = decode_json((path / COMPLETE_FILE).read_bytes(), type=Complete)
    except FileNotFoundError as error:
        raise DataError(f"{COMPLETE_FILE} is missing: it was not written to its end") from error
    except msgspec.DecodeError as error:
        raise DataError(f"{COMPLETE_FILE} cannot be read: {error}") from error
    for name in complete.files:
        if "/" in name or not name.endswith(ALLOWED_SUFFIXES):
            raise DataError(f"{name} is no part of a checkpoint (safetensors and JSON only)")
    return complete


def check(path: Path) -> Complete:
    """Return what a checkpoint holds after comparing every byte with its record.

    Raises:
        DataError: it is incomplete, damaged, or holds what no checkpoint holds.
    """
    complete = read_complete(path)
    present = {entry.name for entry in path.iterdir()} - {COMPLETE_FILE}
    for name in sorted(present | complete.files.keys()):
        if name not in complete.files:
            raise DataError(f"{name} is no part of a checkpoint (safetensors and JSON only)")
        if name not in present:
            raise DataError(f"{name} is missing")
        if record_of(path / name) != complete.files[name]:
            raise DataError(f"{name} differs from its checksum")
    return complete


def write_file(path: Path, data: bytes) -> None:
    """Write a file atomically and to the disk."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    _sync(path.parent)


def sync_file(path: Path) -> None:
    """Bring a file that a library wrote to the disk."""
    _sync(path)


def record_of(path: Path) -> FileRecord:
    """Return a file's size and checksum, read from the disk."""
    digest, size = hashlib.sha256(), 0
    for piece in _pieces(path):
        digest.update(piece)
        size += len(piece)
    return FileRecord(size_bytes=size, sha256=digest.hexdigest())


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            yield piece


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
