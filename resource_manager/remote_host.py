"""One connection to another machine: the system's ssh client, and the helper at its other end.

The client is the user's own: its config, agent, keys and known hosts decide, and nothing of them is
overruled. What it asks (a passphrase, whether a new host is to be trusted) it asks at the terminal
while the connection opens; one that is opened anew in the middle of a run must not ask.
"""

import contextlib
import inspect
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Self

import msgspec

from brain.ml.training_job import Remote
from resource_manager import remote_helper
from resource_manager.remote_settings import ssh_address
from tools_utilities.errors import MachineError, UsageError
from tools_utilities.json_text import decode_json

SSH = "ssh"
GREETING_LINES = 200
"""Lines that a login there may say before the helper speaks."""
KNOWN_HOSTS = ".known_hosts"
"""In the folder of a run on a rented machine; ssh writes to it, so no job may name another file."""
PIECE_BYTES = 1 << 20
ANSWER_BYTES, PAYLOAD_BYTES = 8 << 20, 4 * PIECE_BYTES
"""What an answer may be, and what comes behind it."""
LAST_WORDS_BYTES = 1 << 16
END_SECONDS = 5.0
# Read from standard input: nothing of it has to be quoted for whatever shell is there.
# An old Python says which one it is: it could not even read the helper.
_LOADER = (
    "import sys; i = sys.stdin.buffer; s = i.read(int(i.readline())); v = sys.version_info; "
    'exec(compile(s if v >= (3, 11) else "def serve(): print(\\"quark-python %d.%d.%d\\" % v[:3])",'
    ' "quark", "exec")); serve()'
)
_TOO_OLD = re.compile(rb"quark-python ([\d.]+)\s*")
# Ctrl-C at the terminal is for the run, not for the way to it, and ssh lets ignored signals be.
_UNDISTURBED = ("sh", "-c", 'trap "" INT HUP; exec "$@"', "sh")
_OPTIONS = (
    "-T", "-a", "-x",
    # What a config may add to a shell for people; none of it has to do with who is trusted.
    "-o", "RemoteCommand=none", "-o", "ClearAllForwardings=yes",
    # A connection that is dead must not look like a quiet one.
    "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4",
)  # fmt: skip
_HELPER = inspect.getsource(remote_helper).encode()
_REFUSALS = (
    (r"host key verification failed|remote host identification has changed",
     "its host key is not the known one, or not known yet",
     "Connect once by hand (ssh {host}) and compare the key with the machine's."),
    (r"permission denied", "it does not let you in",
     "Check that ssh {host} works: the user, the key and the agent are ssh's own matter."),
    (r"could not resolve hostname", "nobody knows that host",
     "Write it as in your ssh config, or ssh:user@host:port."),
    (r"connection refused|timed out|no route to host|network is unreachable",
     "it does not answer", "Check that it is up and that ssh {host} works."),
)  # fmt: skip
_NO_PYTHON = re.compile(r"not found|no such file|not recognized|permission denied", re.IGNORECASE)
_SHELLS_CODES = (126, 127)
"""Exit codes of a shell that could not start a program."""


class OutOfReachError(MachineError):
    """The connection could not be made, or broke; the machine and what runs there may be well."""


def remote_word(python: str) -> str:
    """Return a program for the shell of another machine; a leading `~/` stays its home folder."""
    if python.startswith("~/"):
        return "~/" + shlex.quote(python[2:])
    return shlex.quote(python)


class RemoteHost:
    """A connection, open from the first question to `close`; one question at a time."""

    def __init__(self, remote: Remote, *, may_ask: bool = False, connect_seconds: int = 20) -> None:
        """`may_ask`: ssh may ask the person at the terminal."""
        self.remote = remote
        self.where = remote.where
        self._may_ask = may_ask
        self._connect_seconds = connect_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._said: BinaryIO | None = None
        self._lock = threading.Lock()
        self.folder = self.home = ""
        """Quark's folder and the home folder there, absolute; known once it is connected."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def look(self, reach: tuple[str, ...] = ()) -> dict[str, Any]:
        """Connect, and return what there is (see `remote_helper`); writes nothing there.

        `reach`: HOST:PORT addresses that the machine is to try.
        """
        return self.ask("look", reach=list(reach))[0]

    def there(self, path: str) -> str:
        """Return a path of the other machine as an absolute one; `~` is its home folder."""
        self.enter()
        if path == "~" or path.startswith("~/"):
            return f"{self.home}{path[1:]}"
        return path if path.startswith("/") else f"{self.home}/{path}"

    def enter(self) -> None:
        """Connect, if that has not happened yet."""
        if self._process is None:
            self.ask("enter", folder=self.remote.folder)

    def ask(self, op: str, payload: bytes = b"", **fields: Any) -> tuple[dict[str, Any], bytes]:
        """Carry out one request there; returns its answer and the bytes behind it.

        Raises:
            OutOfReachError: the connection cannot be made, or broke.
            MachineError: it was refused there.
        """
        with self._lock:
            process = self._process or self._connect()
            request = msgspec.json.encode({"op": op, **fields, "payload": len(payload)})
            try:
                answer, data = _exchange(process, request + b"\n" + payload)
            except (OSError, EOFError, ValueError) as error:
                raise self._broken(process, op) from error
        if "error" in answer:
            raise self._refused(op, answer)
        return answer, data

    def put(self, path: str, data: BinaryIO, mode: int = 0o600) -> None:
        """Write a file below Quark's folder there, piece by piece; it appears when it is whole."""
        offset = 0
        while True:
            piece = data.read(PIECE_BYTES)
            done = len(piece) < PIECE_BYTES
            self.ask("put", piece, path=path, offset=offset, done=done, mode=mode)
            offset += len(piece)
            if done:
                return

    def close(self) -> None:
        """End the connection; what was started there goes on."""
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._forget_words()

    def break_off(self) -> None:
        """End the connection now, from any thread: who waits for an answer gets OutOfReachError."""
        process = self._process
        if process is not None:
            process.kill()

    def _connect(self) -> "subprocess.Popen[bytes]":
        program = shutil.which(SSH)
        if program is None:
            raise UsageError("there is no ssh program", hint="Install the OpenSSH client.")
        options = [*_OPTIONS, "-o", f"ConnectTimeout={self._connect_seconds}"]
        if not self._may_ask:
            options += ["-o", "BatchMode=yes"]
        if self.remote.known_hosts is not None:
            if Path(self.remote.known_hosts).name != KNOWN_HOSTS:
                raise UsageError(f"{self.remote.known_hosts}: no file for the keys of machines")
            file = self.remote.known_hosts.replace("%", "%%")
            options += [
                "-o",
                "StrictHostKeyChecking=accept-new",
                "-o",
                f'UserKnownHostsFile="{file}"',
            ]
        command = f"exec {remote_word(self.remote.python)} -c {shlex.quote(_LOADER)}"
        said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the connection
        self._said = said
        self._process = process = subprocess.Popen(  # noqa: S603 - the user's own ssh
            [*_UNDISTURBED, program, *options, *ssh_address(self.where).arguments, command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said,
            # Only at its terminal can it ask anything.
            start_new_session=not self._may_ask,
        )  # fmt: skip
        try:
            _write(process, b"%d\n" % len(_HELPER) + _HELPER)
            old = _await_greeting(process)
            if old:
                self.close()
                raise self._too_old(old)
            first = {"op": "enter", "folder": self.remote.folder, "payload": 0}
            answer, _ = _exchange(process, msgspec.json.encode(first) + b"\n")
            self.folder, self.home = _two_paths(answer)
        except (OSError, EOFError, ValueError) as error:
            raise self._broken(process, "connect") from error
        self._may_ask = False  # whatever comes later is in the middle of something
        return process

    def _broken(self, process: "subprocess.Popen[bytes]", phase: str) -> MachineError:
        """Return what to say of a connection that ended; it is closed."""
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            code = process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        words = self._last_words()
        self._process = None
        self._forget_words()
        host = ssh_address(self.where).destination
        if phase == "connect" and code in _SHELLS_CODES and _NO_PYTHON.search(words):
            return MachineError(
                f"{self.where}: there is no {self.remote.python}",
                hint="Install Python 3.11 or newer there, or name it: remote_python=PATH.",
                where=self.where, phase=phase,
            )  # fmt: skip
        for pattern, what, hint in _REFUSALS:
            if re.search(pattern, words, re.IGNORECASE):
                return OutOfReachError(
                    f"{self.where}: {what}: {_last_line(words)}",
                    hint=hint.format(host=host), where=self.where, phase=phase,
                )  # fmt: skip
        said = _last_line(words) or f"ssh ended with {code}"
        return OutOfReachError(
            f"{self.where}: the connection ended: {said}",
            hint=f"Check that ssh {host} works.", where=self.where, phase=phase,
        )  # fmt: skip

    def _too_old(self, version: str) -> MachineError:
        return MachineError(
            f"{self.where}: {self.remote.python} is Python {version}; 3.11 or newer is needed",
            hint="Name a newer one there: remote_python=PATH.", where=self.where, phase="connect",
        )  # fmt: skip

    def _refused(self, op: str, answer: Mapping[str, Any]) -> MachineError:
        full = answer.get("errno") in {28, 122}  # ENOSPC, EDQUOT: the same everywhere Quark runs
        hint = "`quark logs` shows what the run said."
        if full:
            hint = f"Make room in {self.folder or self.remote.folder} there, or name another place: remote_folder=PATH."
        elif op in {"install", "unpack"}:
            hint = (
                "Mend that over there, or use what its Python has: remote_packages=inherit"
                " (and remote_python=PATH)."
            )
        return MachineError(
            f"{self.where}: {answer['error']}", hint=hint, where=self.where, phase=op,
            errno=answer.get("errno"),
        )  # fmt: skip

    def _last_words(self) -> str:
        if self._said is None:
            return ""
        end = self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, end - LAST_WORDS_BYTES))
        return self._said.read().decode("utf-8", "backslashreplace")

    def _forget_words(self) -> None:
        if self._said is not None:
            self._said.close()
            self._said = None


def _exchange(process: "subprocess.Popen[bytes]", data: bytes) -> tuple[dict[str, Any], bytes]:
    _write(process, data)
    output: Any = process.stdout
    # The machine may be anybody's, as rented ones are: it gets no more of our memory than an answer takes.
    line = output.readline(ANSWER_BYTES)
    if not line:
        raise EOFError
    try:
        answer = decode_json(line, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
    count = answer.pop("payload", None)
    if type(count) is not int or not 0 <= count <= PAYLOAD_BYTES:
        raise ValueError(f"an answer with a payload of {count!r}")
    body = output.read(count)
    if len(body) < count:
        raise EOFError
    return answer, body


def _two_paths(answer: Mapping[str, Any]) -> tuple[str, str]:
    folder, home = answer.get("folder"), answer.get("home")
    if not isinstance(folder, str) or not isinstance(home, str):
        raise ValueError("an answer without folders")  # noqa: TRY004 - of a machine, not of our own code
    return folder, home


def _write(process: "subprocess.Popen[bytes]", data: bytes) -> None:
    stream: Any = process.stdin
    stream.write(data)
    stream.flush()


def _await_greeting(process: "subprocess.Popen[bytes]") -> str:
    """Return when the helper is there; the version of a Python that is too old to be it."""
    output: Any = process.stdout
    for _ in range(GREETING_LINES):
        line = output.readline()
        if not line:
            raise EOFError
        if line.strip() == remote_helper.GREETING.encode():
            return ""
        if old := _TOO_OLD.fullmatch(line):
            return old[1].decode()
    raise EOFError


def _last_line(words: str) -> str:
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    return lines[-1] if lines else ""
