"""What a run has told, kept in the store beside its checkpoints: its machine destroys itself, nobody need have looked.

`<prefix>told/<start>.metrics.jsonl` and `.log`, one pair a start, written anew now and then by the node of
rank 0 and at the end. A store that does not take them ends no run.
"""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from brain.ml.run_files import LOG_FILE, METRICS_FILE
from brain.ml.training_job import TrainingJob
from resource_manager.sky.sky_mirror import SkyMirror
from tools_utilities.errors import QuarkError
from tools_utilities.object_store import ObjectStore, open_store, read_object

FOLDER, METRICS, LOG = "told/", ".metrics.jsonl", ".log"
EVERY_SECONDS = 300.0
MOST_BYTES = 16 << 20
"""Of a file: of a longer one its end is kept."""
LAST_SECONDS = 60.0
"""What the last writing may take when the run has ended."""
CLOCKS_SECONDS = 600.0
"""By so much the clock of the machine may be behind ours."""


class TellsStore:
    """Writes what a run tells into its store, in a thread of its own."""

    def __init__(
        self,
        store: ObjectStore,
        prefix: str,
        run_dir: Path,
        *,
        start: float,
        tell: Callable[[str], None],
    ) -> None:
        """`prefix`: of the checkpoints; `start`: Unix seconds; `tell`: is told what the store refuses."""
        self._store, self._run_dir, self._tell = store, run_dir, tell
        self._key = f"{prefix}{FOLDER}{start:.0f}"
        self._sizes: dict[str, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write_on, name="quark-told", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Write the rest; returns when it is there, or when nobody waits any more."""
        self._over.set()
        self._thread.join(LAST_SECONDS)

    def _write_on(self) -> None:
        while not self._over.wait(EVERY_SECONDS):
            self.write()
        self.write()

    def write(self) -> None:
        """Write what has grown, if this is the node that has the metrics."""
        if not (self._run_dir / METRICS_FILE).exists():
            return
        for name, suffix in ((METRICS_FILE, METRICS), (LOG_FILE, LOG)):
            path = self._run_dir / name
            size = path.stat().st_size if path.exists() else 0
            if size == self._sizes.get(name, 0):
                continue
            try:
                self._store.put(self._key + suffix, _end_of(path))
            except (QuarkError, OSError) as error:
                self._tell(f"the store does not take {name}: {error}")
                self._over.set()
                return
            self._sizes[name] = size


def tells_store(job: TrainingJob, start: float, tell: Callable[[str], None]) -> TellsStore | None:
    """Return what tells the store of a job's checkpoints; None: it has none."""
    if job.checkpoints is None:
        return None
    store = open_store(job.checkpoints.store)
    return TellsStore(store, job.checkpoints.prefix, Path(job.run_dir), start=start, tell=tell)


def bring_told(job: TrainingJob, since: float, mirror: SkyMirror) -> None:
    """Bring what a launch has told its store; what cannot be read stays away.

    `since`: Unix seconds of the launch here.
    """
    if job.checkpoints is None:
        return
    try:
        store = open_store(job.checkpoints.store)
        for key in sorted(_keys(store, job.checkpoints.prefix + FOLDER, since)):
            data, _ = read_object(store, key)
            take = mirror.take_events if key.endswith(METRICS) else mirror.take_log
            take(data)
    except (QuarkError, OSError):
        return


def _keys(store: ObjectStore, folder: str, since: float) -> Iterator[str]:
    for info in store.list(folder):
        start = info.key.removeprefix(folder).partition(".")[0]
        if start.isdigit() and float(start) >= since - CLOCKS_SECONDS:
            yield info.key


def _end_of(path: Path) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - MOST_BYTES))
        data = file.read()
    return data if size <= MOST_BYTES else data[data.find(b"\n") + 1 :]
