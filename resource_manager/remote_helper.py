"""What runs on the other machine of an ssh connection: answers requests on its standard input.

Its source is sent over the connection, and nothing else is needed there but Python 3.11 and its own
library; so it imports nothing of Quark. A request is a line of JSON and, behind it, `payload` bytes;
an answer is the same. Nothing of a request is ever on a command line but the paths of a run. All
paths are below the folder of the first request (`enter`), where `~` is that machine's home.
"""

# ruff: noqa: S603 - it starts installers and the run, by lists and never by a shell

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

GREETING = "quark-helper 1"
ENVIRONMENT_FILE, SUPERVISOR_FILE, EXIT_FILE = "environment", "supervisor.json", "exit.json"
START_SECONDS, LINKED = 60.0, "_quark_inherited.pth"
Answer = tuple[dict[str, Any], bytes]


class RefusedError(Exception):
    """A request that cannot be carried out; its text is for people."""


class Helper:
    """One connection; `do_NAME` carries out the request NAME."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        self.requests, self.answers = requests, answers
        self.folder = Path("~/.quark").expanduser()
        self.started: subprocess.Popen[bytes] | None = None

    def serve(self) -> None:
        """Answer until the other side ends."""
        self.answers.write(f"{GREETING}\n".encode())
        self.answers.flush()
        while line := self.requests.readline():
            request = json.loads(line)
            payload = self.requests.read(request.pop("payload"))
            carry_out: Callable[..., Answer] = getattr(self, f"do_{request.pop('op')}")
            try:
                fields, data = carry_out(payload, **request)
            except RefusedError as error:
                fields, data = {"error": str(error)}, b""
            except OSError as error:
                named = f": {error.filename}" if error.filename else ""
                said = f"{error.strerror or error}{named}"
                fields, data = {"error": said, "errno": error.errno}, b""
            answer = json.dumps({**fields, "payload": len(data)})
            self.answers.write(answer.encode() + b"\n" + data)
            self.answers.flush()

    def path(self, name: str) -> Path:
        """Return a path below the folder; refuses one that leaves it."""
        full, root = (self.folder / name).resolve(), self.folder.resolve()
        if not full.is_relative_to(root):
            raise RefusedError(f"{name} leads out of {self.folder}")
        return full

    def do_enter(self, _payload: bytes, folder: str) -> Answer:
        """Say which folder is Quark's; always the first request."""
        home = Path.home()
        self.folder = home / Path(folder).expanduser()
        return {"folder": str(self.folder), "home": str(home)}, b""

    def do_look(self, _payload: bytes, reach: list[str]) -> Answer:
        """Say what there is; writes nothing."""
        there = next(path for path in (self.folder, *self.folder.parents) if path.is_dir())
        return {
            "python": platform.python_version(),
            "executable": sys.executable,
            "system": platform.system(),
            "machine": platform.machine(),
            "host": socket.gethostname(),
            "free_bytes": shutil.disk_usage(there).free,
            "writable": os.access(there, os.W_OK | os.X_OK),
            "cores": os.cpu_count(),
            "cards": _cards(),
            "nvidia": len(list(Path("/dev").glob("nvidia[0-9]*"))),
            "uv": shutil.which("uv"),
            "pip": _runs(sys.executable, "import pip"),
            "venv": _runs(sys.executable, "import ensurepip, venv"),
            "torch_version": _torch_version(),
            "reach": {address: _reach_problem(address) for address in reach},
        }, b""

    def do_put(self, payload: bytes, path: str, offset: int, done: bool, mode: int) -> Answer:  # noqa: FBT001 - a field of the request
        """Write a piece of a file; it has its name when the last one is there."""
        final = self.path(path)
        final.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = final.with_name(f"{final.name}.partial")
        flags = os.O_WRONLY | os.O_CREAT | (0 if offset else os.O_TRUNC)
        descriptor = os.open(partial, flags, mode)
        try:
            os.lseek(descriptor, offset, os.SEEK_SET)
            _write_all(descriptor, payload)
            os.fsync(descriptor)
        except OSError:
            partial.unlink()  # room for what says so
            raise
        finally:
            os.close(descriptor)
        if done:
            partial.chmod(mode)
            partial.replace(final)
        return {}, b""

    def do_has(self, _payload: bytes, path: str) -> Answer:  # noqa: D102 - as it says
        return {"has": self.path(path).exists()}, b""

    def do_install(self, payload: bytes, key: str, mode: str, constraints: str) -> Answer:
        """Make an environment with the requirements in `payload`, once for each key."""
        folder = self.path(f"environments/{key}")
        python = folder / "bin" / "python"
        with _locked(folder):
            if not (folder / "complete").exists():
                shutil.rmtree(folder, ignore_errors=not folder.exists())
                folder.mkdir(mode=0o700)
                _make_environment(folder, python, mode == "inherit")
                _install(folder, python, mode == "inherit", payload.decode(), constraints)
                (folder / "complete").write_text("complete\n")
        return {"python": str(python)}, b""

    def do_unpack(self, _payload: bytes, wheel: str, key: str, python: str) -> Answer:
        """Unpack a wheel that was put here, once for each content."""
        folder = self.path(f"code/{key}")
        with _locked(folder):
            if not folder.is_dir():
                partial = folder.with_name(f"{key}.partial")
                shutil.rmtree(partial, ignore_errors=True)
                has_pip = _runs(python, "import pip")
                program = [python, "-m", "pip"] if has_pip else [shutil.which("uv") or "uv", "pip"]
                options = [
                    "--quiet",
                    "--no-deps",
                    "--no-index",
                    "--no-compile",
                    "--target",
                    str(partial),
                ]
                _run([*program, "install", *options, str(self.path(wheel))])
                partial.rename(folder)
        return {"code": str(folder)}, b""

    def do_start(
        self, payload: bytes, run: str, python: str, code: str, deadline_seconds: float | None
    ) -> Answer:
        """Start the supervisor of a run in a session of its own; `payload` is its environment."""
        folder = self.path(run)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        descriptor = os.open(folder / ENVIRONMENT_FILE, flags, 0o600)
        try:
            _write_all(descriptor, payload)
        finally:
            os.close(descriptor)
        module = ["-P", "-m", "resource_manager.run_supervisor", str(folder)]
        argv = ["/usr/bin/env", f"PYTHONPATH={code}", python, *module]
        argv += [] if deadline_seconds is None else [str(deadline_seconds)]
        log_path = folder / "log"
        with log_path.open("ab") as log:
            self.started = process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder,
                start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS
        while not (folder / SUPERVISOR_FILE).exists():
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                raise RefusedError(f"the run's supervisor did not start: {_last_line(log_path)}")
            time.sleep(0.05)
        return {"pid": process.pid}, b""

    def do_read(self, _payload: bytes, run: str, metrics: int, log: int, most: int) -> Answer:
        """Return how a run stands and what its metrics and its log have beyond these offsets."""
        folder = self.path(run)
        state, code, free = _state(folder)
        # After the state: what an ended run wrote last is there by now.
        added = _tail(folder / "metrics.jsonl", metrics, most)
        said = _tail(folder / "log", log, most)
        return {
            "state": state,
            "code": code,
            "free_bytes": free,
            "metrics": len(added),
            "log": len(said),
            "checkpoints": _checkpoints(folder / "checkpoints"),
        }, added + said

    def do_file(self, _payload: bytes, path: str, offset: int, most: int) -> Answer:
        """Return a piece of a file; nothing behind its end."""
        return {}, _tail(self.path(path), offset, most)

    def do_signal(self, _payload: bytes, run: str, name: str, token: str) -> Answer:
        """Ask a run to end, once for each token: `interrupt` and `terminate` save, `kill` does not."""
        # A connection that breaks leaves open whether it was asked; twice would end it unsaved.
        folder = self.path(run)
        told = folder / f"asked-{token}"
        if told.exists() or not folder.is_dir():
            return {"asked": 0}, b""
        told.touch()
        living = _living(folder)
        supervisor = _read_json(folder / SUPERVISOR_FILE).get("process", {}).get("pid")
        number = {"interrupt": signal.SIGINT, "terminate": signal.SIGTERM}.get(name, signal.SIGKILL)
        if supervisor in living:
            # It knows every process of the run, and writes how it ended.
            living, number = [supervisor], signal.SIGUSR1 if name == "kill" else number
        for pid in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return {"asked": len(living)}, b""

    def do_living(self, _payload: bytes, run: str) -> Answer:
        """Return the processes of a run that live."""
        return {"living": _living(self.path(run))}, b""

    def do_remove(self, _payload: bytes, run: str) -> Answer:  # noqa: D102 - as it says
        shutil.rmtree(self.path(run), ignore_errors=True)
        return {}, b""


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one installer in at a time; the kernel frees the lock with its process."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make_environment(folder: Path, python: Path, inherits: bool) -> None:  # noqa: FBT001 - one of two ways
    uv = shutil.which("uv")
    if uv and not inherits:
        _run([uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(folder)])
        return
    _run([sys.executable, "-m", "venv", *(["--without-pip"] if inherits else []), str(folder)])
    if inherits:
        # Before anything is installed: what that Python has counts as there.
        program = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
        own = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
        linked = Path(own.stdout.strip(), LINKED)
        linked.write_text("".join(f"{path}\n" for path in _packages_of_this_python()))


def _install(folder: Path, python: Path, inherits: bool, wanted: str, pins: str) -> None:  # noqa: FBT001 - one of two ways
    uv = shutil.which("uv")
    requirements, constraints = folder / "requirements.txt", folder / "constraints.txt"
    requirements.write_text(wanted)
    constraints.write_text(pins)
    if uv and not inherits:
        command = [uv, "pip", "install", "--quiet", "--python", str(python)]
    else:
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*command, "-r", str(requirements), *(["-c", str(constraints)] if pins else [])])


def _packages_of_this_python() -> list[str]:
    """Return the folders with what this Python can import beside its own library."""
    paths = sysconfig.get_paths()
    library = {Path(paths["stdlib"]).resolve(), Path(paths["platstdlib"]).resolve()}
    found = []
    for text in sys.path:
        path = Path(text)
        real = path.resolve()
        below = any(real.is_relative_to(own) for own in library)
        packages = any(part.endswith("-packages") for part in real.parts)
        if text and path.is_dir() and (packages or not below):
            found.append(text)
    return found


def _run(command: list[str]) -> None:
    """Run an installer; what it says at its end is the reason where it fails."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        text = (done.stdout + done.stderr).decode(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()]
        said = [line for line in lines if "rror" in line] or lines or ["it said nothing"]
        program = " ".join(command[:4])
        raise RefusedError(f"{program} ended with {done.returncode}: {said[-1]}")


def _runs(python: str, program: str) -> bool:
    done = subprocess.run([python, "-c", program], capture_output=True, check=False)
    return done.returncode == 0


def _cards() -> list[str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(query, capture_output=True, timeout=20, check=False)
        if not done.returncode:
            return done.stdout.decode(errors="replace").strip().splitlines()
    return []


def _torch_version() -> str:
    places = [Path(place, "torch", "version.py") for place in sys.path]
    return next((path.read_text() for path in places if path.is_file()), "")


def _reach_problem(address: str) -> str:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        return error.strerror or str(error) or "no answer"
    return ""


def _state(folder: Path) -> tuple[str, int | None, int | None]:
    """Return a run's state, its exit code, and the room that was left on its disk at the end."""
    if not folder.is_dir():
        return "none", None, None
    ended = _read_json(folder / EXIT_FILE)
    if ended:
        return "ended", ended["code"], ended["free_bytes"]
    if not (folder / SUPERVISOR_FILE).exists():
        return "starting", None, None
    if _living(folder):
        return "running", None, None
    return "lost", None, shutil.disk_usage(folder).free


def _living(folder: Path) -> list[int]:
    """Return the processes of a run that live: its supervisor, then its agent and its ranks."""
    process = _read_json(folder / "process.json")
    told = [_read_json(folder / SUPERVISOR_FILE).get("process"), process.get("agent")]
    told += process.get("ranks", [])
    return [one["pid"] for one in told if one and _alive(one["pid"], one.get("start", 0))]


def _checkpoints(folder: Path) -> list[tuple[str, str]]:
    """Return (name, identity) of each whole checkpoint, newest first, the one pointed to in front."""
    found = []
    for told in sorted(folder.glob("step-*/complete.json"), reverse=True):
        with contextlib.suppress(FileNotFoundError):  # the run keeps only so many
            found.append((told.parent.name, hashlib.sha256(told.read_bytes()).hexdigest()))
    pointed = _tail(folder / "latest", 0, 100).decode(errors="replace").strip()
    return sorted(found, key=lambda item: item[0] != pointed)


def _read_json(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads(path.read_bytes()))
    return {}


def _tail(path: Path, offset: int, most: int) -> bytes:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), path.open("rb") as file:
        file.seek(offset)
        return file.read(most)
    return b""


def _last_line(path: Path) -> str:
    text = _tail(path, 0, 1 << 20).decode(errors="replace")
    return next((line for line in reversed(text.splitlines()) if line.strip()), "it said nothing")


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _alive(pid: int, start: int) -> bool:
    """Tell whether this very process runs: numbers are given out anew, its start time is not."""
    if Path("/proc/self/stat").exists():
        try:
            text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            return False
        fields = text.rpartition(")")[2].split()
        return start in (0, int(fields[19])) and fields[0] not in {"Z", "X"}
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def serve() -> None:
    """Serve this process's standard input."""
    os.umask(0o077)  # what is made here, and by a run, is its owner's alone
    Helper(sys.stdin.buffer, sys.stdout.buffer).serve()
