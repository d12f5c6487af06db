"""A checkpoint on disk: a folder that is there whole or not at all.

    checkpoints/step-00000123/
        model.safetensors  optimizer.safetensors  state.json  rank-00000.json …
        complete.json      every file's size and SHA-256, written last
    checkpoints/latest     the name of the newest, written after it

Written to a hidden folder, synced, renamed. Only safetensors and JSON: nothing is ever unpickled,
and a folder that holds anything else is refused.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tools_utilities.errors import DataError, DataNotFoundError
from tools_utilities.prepared_types import prepared

COMPLETE_FILE = "complete.json"
LATEST_FILE = "latest"
ALLOWED_SUFFIXES = (".safetensors", ".json")
_NAME = re.compile(r"step-(\d{8,})")


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
    found = [path for path in folder.iterdir() if path.is_dir() and step_of(path.name) is not None]
    return sorted(found, key=lambda path: step_of(path.name) or 0, reverse=True)


def begin(folder: Path, step: int) -> Path:
    """Return a new, empty hidden folder to write a checkpoint into."""
    hidden = hidden_folder(folder, step)
    shutil.rmtree(hidden, ignore_errors=True)
    hidden.mkdir(parents=True)
    return hidden


def hidden_folder(folder: Path, step: int) -> Path:
    """Return where a checkpoint stands while it is written."""
    return folder / f".{checkpoint_name(step)}.partial"


def publish(folder: Path, step: int) -> Path:
    """Make a written checkpoint the newest; afterwards it is on the disk, whatever happens."""
    hidden, final = hidden_folder(folder, step), folder / checkpoint_name(step)
    paths = sorted(path for path in hidden.iterdir() if path.name != COMPLETE_FILE)
    records = {path.name: _record(path) for path in paths}
    complete = Complete(step=step, files=records)
    write_file(hidden / COMPLETE_FILE, msgspec.json.encode(complete))
    _sync(hidden)
    if final.exists():
        # The same step again, after resuming from an earlier one: the new one has the same content.
        shutil.rmtree(final)
    hidden.rename(final)
    _sync(folder)
    # The pointer last: it names complete checkpoints only.
    write_file(folder / LATEST_FILE, f"{final.name}\n".encode())
    return final


def keep_newest(folder: Path, count: int) -> None:
    """Remove all but the newest `count` checkpoints, and what interrupted writes left."""
    for path in list_checkpoints(folder)[count:]:
        doomed = path.with_name(f".{path.name}.removed")
        path.rename(doomed)
    for left in (*folder.glob(".step-*.removed"), *folder.glob(".step-*.partial")):
        shutil.rmtree(left, ignore_errors=True)


def check(path: Path) -> Complete:
    """Return what a checkpoint holds after comparing every byte with its record.

    Raises:
        DataError: it is incomplete, damaged, or holds what no checkpoint holds.
    """
    try:
        complete = msgspec.json.decode((path / COMPLETE_FILE).read_bytes(), type=Complete)
    except FileNotFoundError as error:
        raise DataError(f"{COMPLETE_FILE} is missing: it was not written to its end") from error
    except msgspec.DecodeError as error:
        raise DataError(f"{COMPLETE_FILE} cannot be read: {error}") from error
    present = {entry.name for entry in path.iterdir()} - {COMPLETE_FILE}
    for name in sorted(present | complete.files.keys()):
        if name not in complete.files or not name.endswith(ALLOWED_SUFFIXES):
            raise DataError(f"{name} is no part of a checkpoint (safetensors and JSON only)")
        if name not in present:
            raise DataError(f"{name} is missing")
        if _record(path / name) != complete.files[name]:
            raise DataError(f"{name} differs from its checksum")
    return complete


def choose_checkpoint(
    folder: Path, *, from_step: int | None = None
) -> tuple[Path | None, list[RejectedCheckpoint]]:
    """Return the newest whole checkpoint (or that of a step), and the newer ones that are not whole.

    Raises:
        DataNotFoundError: `from_step` has no checkpoint; the message lists the steps there are.
        DataError: that one is damaged.
    """
    found = list_checkpoints(folder)
    if from_step is not None:
        return _that_of(found, from_step), []
    rejected = []
    for path in found:
        try:
            check(path)
        except DataError as error:
            rejected.append(RejectedCheckpoint(name=path.name, reason=str(error)))
        else:
            return path, rejected
    return None, rejected


def _that_of(found: list[Path], step: int) -> Path:
    for path in found:
        if step_of(path.name) == step:
            try:
                check(path)
            except DataError as error:
                raise DataError(
                    f"checkpoint {path.name}: {error}", hint="Choose another step."
                ) from error
            return path
    steps = ", ".join(str(step_of(path.name)) for path in found) or "none"
    raise DataNotFoundError(f"no checkpoint of step {step}", hint=f"There are: {steps}.")


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


def _record(path: Path) -> FileRecord:
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
