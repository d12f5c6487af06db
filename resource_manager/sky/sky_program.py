"""SkyPilot's program, called as a person calls it: an environment of its own, and nothing of it imported.

What is secret reaches it by `--secret-file` as a file without a name (`/dev/fd/N`): no command line, no
folder and no file that a crash could leave behind holds it.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from resource_manager.sky import sky_words
from tools_utilities.errors import MachineError, UsageError
from tools_utilities.json_text import decode_json
from tools_utilities.process_environment import environment_now

NAME = "sky"
LEAST_VERSION = (0, 14)
"""The first with a price cap (`max_hourly_cost`), secret files and answers in JSON."""
CALL_SECONDS = 180.0
"""What a question may take; SkyPilot's server may have to be started for it."""
POLL_SECONDS = 0.1
END_SECONDS = 10.0
"""From asking a program to end to ending it."""
LAST_LINES = 40
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_VERSION = re.compile(r"(\d+)\.(\d+)")


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What `sky` said."""

    code: int
    text: str
    """Output and errors, without colours."""

    @property
    def last_words(self) -> str:
        """The line that says most of why it failed: the last that names an error, else the last."""
        lines = [line.strip() for line in self.text.splitlines() if line.strip()]
        named = [line for line in lines[-LAST_LINES:] if "Error" in line or "error:" in line]
        return next(reversed(named or lines), f"it ended with exit code {self.code}")


class BrokenOffError(MachineError):
    """Somebody asked for the end while `sky` was at work."""


def find_sky(environment: Mapping[str, str] | None = None) -> Path | None:
    """Return the program; None: it is not on the PATH."""
    variables = environment_now() if environment is None else environment
    found = shutil.which(NAME, path=variables.get("PATH") or os.defpath)
    return None if found is None else Path(found)


def plain(text: str) -> str:
    """Return output as lines without colours; of a line that was painted over, its last state."""
    lines = _COLOURS.sub("", text).replace("\r\n", "\n").split("\n")
    return "\n".join(line.rsplit("\r", 1)[-1] for line in lines)


class Sky:
    """The program, for one command or one run; safe to break off from another thread."""

    def __init__(self, path: Path, *, call_seconds: float = CALL_SECONDS) -> None:
        self._path, self._call_seconds = path, call_seconds
        self._broken = threading.Event()

    def check_version(self) -> str:
        """Return the version.

        Raises:
            UsageError: it is older than what is needed to hold a price and to read back.
        """
        said = self.ask(sky_words.version()).text.strip()
        found = _VERSION.search(said)
        if found is None or (int(found[1]), int(found[2])) < LEAST_VERSION:
            raise UsageError(
                f"{self._path} is {said or 'not SkyPilot'}: it takes SkyPilot"
                f" {'.'.join(map(str, LEAST_VERSION))} or newer",
                hint="In its own environment: pip install --upgrade skypilot.",
            )
        return f"{found[1]}.{found[2]}"

    def break_off(self) -> None:
        """End what is at work, from any thread; `ask` raises BrokenOffError."""
        self._broken.set()

    def go_on(self) -> None:
        """Take questions again after `break_off`."""
        self._broken.clear()

    def ask(
        self,
        words: sky_words.Words,
        *,
        limit_seconds: float | None = None,
        folder: Path | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> Answer:
        """Return what it says to `words`; `secrets` go by the file that `words` name (SECRETS).

        Raises:
            MachineError: it took longer than it may.
            BrokenOffError: somebody asked for the end.
        """
        limit = self._call_seconds if limit_seconds is None else limit_seconds
        # Not a pipe: a server that it starts would keep that open.
        with _secret_file(secrets) as (path, passed), tempfile.TemporaryFile() as output:
            words = tuple(word if word != SECRETS else path for word in words)
            process = subprocess.Popen(  # noqa: S603 - the person's own program, no shell
                [str(self._path), *words], cwd=folder, env=environment_now(), pass_fds=passed,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
            try:
                self._wait(process, words, limit)
            finally:
                end(process)
            output.seek(0)
            text = plain(output.read().decode("utf-8", "replace"))
        return Answer(code=process.returncode, text=text)

    def _wait(
        self, process: "subprocess.Popen[bytes]", words: sky_words.Words, limit: float
    ) -> None:
        deadline = time.monotonic() + limit
        while process.poll() is None:
            if self._broken.wait(POLL_SECONDS):
                raise BrokenOffError(f"{_said(words)} was broken off")
            if time.monotonic() > deadline:
                raise MachineError(f"{_said(words)} has not ended after {limit:.0f} s")

    def read(self, words: sky_words.Words, *, limit_seconds: float | None = None) -> Any:
        """Return the JSON that it answers with.

        Raises:
            MachineError: it answers with none.
        """
        answer = self.ask(words, limit_seconds=limit_seconds)
        found = json_in(answer.text)
        if answer.code or found is None:
            raise MachineError(f"{_said(words)}: {answer.last_words}")
        return found

    def follow(self, words: sky_words.Words) -> "subprocess.Popen[bytes]":
        """Return the program at work, for whoever reads its output to the end."""
        return subprocess.Popen(  # noqa: S603 - as in `ask`
            [str(self._path), *words], env=environment_now(), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


SECRETS = "\0secrets"
"""Stands for the path of the secret file in words."""


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a program that we started, and what it started in its session, if it has not ended."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)


def json_in(text: str) -> Any:
    """Return the JSON at the end of an answer, which may begin with lines for people; None: there is none."""
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if line[:1] in ("[", "{"):
            with contextlib.suppress(msgspec.DecodeError):
                return decode_json("\n".join(lines[at:]))
    return None


def dotenv(variables: Mapping[str, str]) -> str:
    r"""Return a file for python-dotenv, by which SkyPilot reads it: what it reads is these values.

    It looks for `${…}` in quotes too, and takes a backslash before a quote for part of the value, so
    both go by an expansion's default: `${:-$}` is a dollar, `${:-\}` a backslash.
    """
    lines = []
    for name, value in variables.items():
        safe = value.replace("\\", "\0").replace("${", "${:-$}{").replace("\0", "${:-\\}")
        lines.append(f"{name}='" + safe.replace("'", "\\'") + "'\n")
    return "".join(lines)


@contextlib.contextmanager
def _secret_file(variables: Mapping[str, str] | None) -> Iterator[tuple[str, tuple[int, ...]]]:
    if not variables:
        yield "", ()
        return
    with tempfile.TemporaryFile() as file:  # without a name, its owner's alone
        file.write(dotenv(variables).encode())
        file.seek(0)
        yield f"/dev/fd/{file.fileno()}", (file.fileno(),)


def _said(words: sky_words.Words) -> str:
    return " ".join(("sky", *(word for word in words[:2] if not word.startswith("-"))))
