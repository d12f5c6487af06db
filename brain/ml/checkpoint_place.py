"""Where the checkpoints of a run are: its folder, or an object store. Imports no torch.

Ranks write their files into `hidden` in either case. In a folder, publishing is a rename; a store
has none, so there every save gives its objects names of their own (a token), and `complete.json`,
which says which token counts, is put after them and replaces the one before in one step.
"""

import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from brain.ml import checkpoint_files as files
from brain.ml.checkpoint_files import COMPLETE_FILE, LATEST_FILE, Complete, RejectedCheckpoint
from brain.ml.run_files import CHECKPOINTS_FOLDER, JOB_FILE
from brain.ml.training_job import TrainingJob, load_job
from tools_utilities.errors import (
    AccessError,
    DataError,
    DataNotFoundError,
    ObjectNotFoundError,
    StoreError,
)
from tools_utilities.fetch import Fetcher
from tools_utilities.fresh_folder import fresh_folder
from tools_utilities.json_text import decode_json
from tools_utilities.object_store import ObjectStore, open_store
from tools_utilities.patient_store import PatientStore
from tools_utilities.process_identity import this_machine


class CheckpointPlace(Protocol):
    """The checkpoints of one run. Rank 0 calls all but `hidden`, `add` and `bring`."""

    def hidden(self, step: int) -> Path:
        """Return this machine's folder for files that are being written."""
        ...

    def begin(self, step: int) -> str:
        """Make way for a save; returns its token."""
        ...

    def add(self, step: int, token: str, paths: Sequence[Path]) -> None:
        """Take files that a rank has written."""
        ...

    def publish(self, complete: Complete) -> str:
        """Make what was written the newest checkpoint; returns where it is."""
        ...

    def keep_newest(self, count: int, best: str | None = None) -> None:
        """Remove all but the newest `count` and the best, and what interrupted saves left."""
        ...

    def mark_best(self, name: str) -> None:
        """Note which checkpoint had the best validation loss."""
        ...

    def recover(self) -> None:
        """Undo what an interrupted save left; only a run that begins may, not who merely reads."""
        ...

    def names(self) -> list[str]:
        """Return the checkpoints, newest first; their content is not looked at."""
        ...

    def point_to(self, name: str) -> None:
        """Make a checkpoint the newest."""
        ...

    def bring(self, name: str) -> Path:
        """Return a folder of this machine with a checkpoint's files, every byte checked.

        Raises:
            DataError: it is not whole.
        """
        ...

    def path_of(self, name: str) -> Path:
        """Return the folder that `bring` returns on this machine."""
        ...


class FolderPlace:
    """A local folder, or one that all machines of the run share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def hidden(self, step: int) -> Path:
        """As of CheckpointPlace."""
        return files.hidden_folder(self.folder, step)

    def begin(self, step: int) -> str:
        """As of CheckpointPlace."""
        files.begin(self.folder, step)
        return ""

    def add(self, step: int, token: str, paths: Sequence[Path]) -> None:
        """Nothing: they are where they belong."""

    def publish(self, complete: Complete) -> str:
        """As of CheckpointPlace."""
        hidden = self.hidden(complete.step)
        missing = [name for name in complete.files if not (hidden / name).is_file()]
        if missing:
            raise StoreError(
                f"checkpoint of step {complete.step}: {missing[0]} did not come to {self.folder}",
                hint="All machines need one shared run folder, or checkpoint_dir=s3://….",
            )
        return str(files.publish(self.folder, complete))

    def keep_newest(self, count: int, best: str | None = None) -> None:
        """As of CheckpointPlace."""
        files.keep_newest(self.folder, count, best)

    def mark_best(self, name: str) -> None:
        """As of CheckpointPlace."""
        files.mark_best(self.folder, name)

    def recover(self) -> None:
        """As of CheckpointPlace."""
        files.recover(self.folder)

    def names(self) -> list[str]:
        """As of CheckpointPlace."""
        return [path.name for path in files.list_checkpoints(self.folder)]

    def point_to(self, name: str) -> None:
        """As of CheckpointPlace."""
        files.point_to(self.folder, name)

    def bring(self, name: str) -> Path:
        """As of CheckpointPlace."""
        files.check(self.folder / name)
        return self.folder / name

    def path_of(self, name: str) -> Path:
        """As of CheckpointPlace."""
        return self.folder / name


class StorePlace:
    """A prefix of an object store; files pass through a local folder, one checkpoint at a time."""

    def __init__(self, store: ObjectStore, prefix: str, passing: Path) -> None:
        """`prefix` ends in a slash; `passing`: a local folder for files on their way."""
        self._store, self._prefix, self._passing = PatientStore(store), prefix, passing
        self._fetcher = Fetcher(store)

    def hidden(self, step: int) -> Path:
        """As of CheckpointPlace."""
        return files.hidden_folder(self._passing, step)

    def begin(self, step: int) -> str:
        """As of CheckpointPlace."""
        files.begin(self._passing, step)
        return uuid.uuid4().hex[:12]

    def add(self, step: int, token: str, paths: Sequence[Path]) -> None:
        """Upload; the local files go."""
        for path in paths:
            self._store.put_file(self._key(step, token, path.name), path)
            path.unlink()

    def publish(self, complete: Complete) -> str:
        """As of CheckpointPlace."""
        name = files.checkpoint_name(complete.step)
        # complete.json after all else, the pointer last: it names complete checkpoints only.
        self._store.put(f"{self._prefix}{name}/{COMPLETE_FILE}", msgspec.json.encode(complete))
        self.point_to(name)
        shutil.rmtree(self._passing, ignore_errors=True)
        return f"{self._store.spec.uri}/{self._prefix}{name}/"

    def mark_best(self, name: str) -> None:
        """As of CheckpointPlace."""
        self._store.put(f"{self._prefix}{files.BEST_FILE}", f"{name}\n".encode())

    def keep_newest(self, count: int, best: str | None = None) -> None:
        """As of CheckpointPlace."""
        kept = [*self.names()[:count], best]
        try:
            for name in sorted({key.partition("/")[0] for key in self._keys()}):
                if files.step_of(name) is not None:
                    self._sweep(name, whole=name not in kept)
        except AccessError as error:
            raise AccessError(
                f"older checkpoints cannot be removed: {error}",
                hint=error.hint or "Allow deleting below the checkpoints, or keep=1000000.",
            ) from error

    def recover(self) -> None:
        """Nothing to undo: what is not named by a `complete.json` is swept by the next save."""

    def names(self) -> list[str]:
        """As of CheckpointPlace."""
        found = [
            key.removesuffix(f"/{COMPLETE_FILE}")
            for key in self._keys()
            if key.endswith(f"/{COMPLETE_FILE}")
        ]
        whole = [name for name in found if files.step_of(name) is not None]
        pointed = self._pointed()
        return files.newest_first(whole, pointed if pointed in whole else None)

    def point_to(self, name: str) -> None:
        """As of CheckpointPlace."""
        self._store.put(f"{self._prefix}{LATEST_FILE}", f"{name}\n".encode())

    def bring(self, name: str) -> Path:
        """As of CheckpointPlace."""
        folder = fresh_folder(self.path_of(name))
        (folder / COMPLETE_FILE).write_bytes(self._read(f"{self._prefix}{name}/{COMPLETE_FILE}"))
        complete = files.read_complete(folder)
        for file in complete.files:
            key = self._key(files.step_of(name) or 0, complete.token, file)
            try:
                info = self._store.head(key)
                with (folder / file).open("wb") as written:
                    self._fetcher.fetch(info, _FileSink(written))
            except ObjectNotFoundError as error:
                raise DataError(f"{file} is missing") from error
        files.check(folder)
        return folder

    def path_of(self, name: str) -> Path:
        """As of CheckpointPlace."""
        # Machines may share the run's folder: each fetches into one of its own.
        return self._passing / f"brought-{this_machine():x}-{name}"

    def _key(self, step: int, token: str, file: str) -> str:
        return f"{self._prefix}{files.checkpoint_name(step)}/{token}.{file}"

    def _keys(self) -> list[str]:
        start = len(self._prefix)
        return [info.key[start:] for info in self._store.list(self._prefix)]

    def _read(self, key: str) -> bytes:
        return bytes(self._fetcher.fetch_bytes(self._store.head(key))[0])

    def _pointed(self) -> str | None:
        try:
            return self._read(f"{self._prefix}{LATEST_FILE}").decode().strip()
        except (ObjectNotFoundError, UnicodeDecodeError):
            return None

    def _sweep(self, name: str, *, whole: bool) -> None:
        """Remove a checkpoint, or only the objects that none of its saves counts."""
        folder = f"{self._prefix}{name}/"
        token = ""
        if whole:
            self._store.delete(folder + COMPLETE_FILE)  # first: it must not be taken for whole
        else:
            try:
                token = decode_json(self._read(folder + COMPLETE_FILE), type=Complete).token
            except msgspec.DecodeError:
                return  # damaged: left for a person to look at
        for info in list(self._store.list(folder)):
            counted = info.key == folder + COMPLETE_FILE or info.key.startswith(f"{folder}{token}.")
            if whole or not counted:
                self._store.delete(info.key)


class _FileSink:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, offset: int, piece: bytes) -> None:
        self._file.seek(offset)
        self._file.write(piece)


def place_of(job: TrainingJob) -> CheckpointPlace:
    """Return where a job's checkpoints are."""
    run_dir = Path(job.run_dir)
    if job.checkpoints is None:
        return FolderPlace(run_dir / CHECKPOINTS_FOLDER)
    if job.checkpoints.store.uri.startswith("file://"):
        folder = Path(job.checkpoints.store.uri.removeprefix("file://")) / job.checkpoints.prefix
        return FolderPlace(folder)
    return StorePlace(
        open_store(job.checkpoints.store), job.checkpoints.prefix, run_dir / ".checkpoint"
    )


def place_of_run(run_dir: Path) -> CheckpointPlace:
    """Return where the checkpoints of a run folder are, whose job file may be missing or unreadable."""
    try:
        job = load_job(run_dir / JOB_FILE)
    except (OSError, msgspec.MsgspecError):
        return FolderPlace(run_dir / CHECKPOINTS_FOLDER)
    # The folder may have been moved since.
    return place_of(msgspec.structs.replace(job, run_dir=str(run_dir)))


def choose_checkpoint(
    place: CheckpointPlace, *, from_step: int | None = None
) -> tuple[str | None, list[RejectedCheckpoint]]:
    """Return the newest whole checkpoint (or that of a step), and the newer ones that are not whole.

    Its files are on this machine then: `place.path_of` says where.

    Raises:
        DataNotFoundError: `from_step` has no checkpoint; the message lists the steps there are.
        DataError: that one is damaged.
    """
    names = place.names()
    if from_step is not None:
        return _that_of(place, names, from_step), []
    rejected = []
    for name in names:
        try:
            place.bring(name)
        except DataError as error:
            rejected.append(RejectedCheckpoint(name=name, reason=str(error)))
        else:
            return name, rejected
    return None, rejected


def checkpoint_of(path: Path) -> Path:
    """Return the folder of a checkpoint, given it or its run (its newest whole one), every byte checked.

    The checkpoints of a run are found wherever they go; they are brought to this machine.

    Raises:
        DataNotFoundError: there is no whole one; the message says what is wrong with each.
        DataError: `path` is a checkpoint, and damaged.
    """
    if (path / COMPLETE_FILE).is_file():
        files.check(path)
        return path
    place = place_of_run(path)
    name, rejected = choose_checkpoint(place) if path.is_dir() else (None, [])
    if name is None:
        reasons = "".join(f"; {one.name}: {one.reason}" for one in rejected)
        raise DataNotFoundError(
            f"{path}: no whole checkpoint there{reasons}",
            hint="Give a run's folder (runs/NAME) or one of its checkpoints.",
        )
    return place.path_of(name)


def _that_of(place: CheckpointPlace, names: Sequence[str], step: int) -> str:
    for name in names:
        if files.step_of(name) == step:
            try:
                place.bring(name)
            except DataError as error:
                raise DataError(
                    f"checkpoint {name}: {error}", hint="Choose another step."
                ) from error
            return name
    steps = ", ".join(str(files.step_of(name)) for name in names) or "none"
    raise DataNotFoundError(f"no checkpoint of step {step}", hint=f"There are: {steps}.")
