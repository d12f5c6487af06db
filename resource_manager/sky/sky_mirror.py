"""What a run prints through SkyPilot becomes its log and its metrics here.

SkyPilot puts a bracket with the process before each line of the run's (`(fox-1, pid=4021) …`), and lines
of its own around them, which are not kept. Its output begins anew whenever it is asked, so what is here
already is passed over; a machine that took another's place has other lines, which are added.
"""

import os
import re
from pathlib import Path

from brain.ml.run_files import LOG_FILE, METRICS_FILE
from resource_manager.sky.sky_program import plain
from resource_manager.sky.sky_task import MARK
from tools_utilities.json_text import decode_json
from tools_utilities.private_files import open_to_append

_OF_RUN = re.compile(r"^\((?:[^()]*, )?(?:rank=\d+, )?pid=\d+[^()]*\) ?")


class SkyMirror:
    """The files of one run here."""

    def __init__(self, run_dir: Path, *, log_base: int) -> None:
        """`log_base`: bytes that the log had before this launch."""
        self._run_dir, self._log_base = run_dir, log_base
        self._known_events: set[bytes] = set()
        self._here: list[bytes] = []
        """Lines of the log that SkyPilot is expected to repeat."""

    def begin(self) -> None:
        """SkyPilot tells all from the beginning from now on."""
        self._known_events = set(_bytes(self._run_dir / METRICS_FILE).splitlines())
        self._here = _bytes(self._run_dir / LOG_FILE)[self._log_base :].splitlines()[::-1]

    def take(self, line: str) -> None:
        """Take a line of output, without its end."""
        text = plain(line)
        found = _OF_RUN.match(text)
        if found is None:
            return
        text = text[found.end() :]
        if text.startswith(MARK):
            self._take_event(text.removeprefix(MARK).encode())
            return
        data = text.encode()
        if self._here and self._here[-1] == data:
            self._here.pop()
            return
        self._here = []
        _append(self._run_dir / LOG_FILE, data)

    def take_events(self, data: bytes) -> None:
        """Take a whole file of metrics."""
        for line in data.splitlines():
            self._take_event(line)

    def take_log(self, data: bytes) -> None:
        """Take a whole log, where nothing of it came any other way."""
        path = self._run_dir / LOG_FILE
        if data and len(_bytes(path)) <= self._log_base:
            _append(path, data.rstrip(b"\n"))

    def _take_event(self, event: bytes) -> None:
        if event in self._known_events:
            return
        try:
            decode_json(event)
        except ValueError:
            return  # cut on its way
        self._known_events.add(event)
        _append(self._run_dir / METRICS_FILE, event)


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _append(path: Path, line: bytes) -> None:
    descriptor = open_to_append(path)
    try:
        os.write(descriptor, line + b"\n")
    finally:
        os.close(descriptor)
