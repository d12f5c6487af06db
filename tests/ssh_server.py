"""An OpenSSH server on loopback that stands for another machine: own keys, own home, a clean environment.

The server is the system's, or Debian's package unpacked into a folder of the tests (nothing is
installed). As root, where the system has no account `sshd`, the accounts come from a file of the
tests (Debian's libnss-wrapper), in which the user that logs in has a home of its own. The client is
the system's, through a program that gives it a config of the tests: the same that a user's own
`~/.ssh/config` is to it.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tests.servers import free_ports, running
from tools_utilities.process_identity import descendants

HOST = "gpu-box"
PACKAGES = ("openssh-server", "libwrap0", "libnss-wrapper")
USER = "rented"


class NoServerError(Exception):
    """There is no ssh server to be had here."""


class Server(msgspec.Struct, frozen=True):
    """A server program and what it is started with."""

    program: Path
    libraries: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        return {} if self.libraries is None else {"LD_LIBRARY_PATH": str(self.libraries)}


class Remote:
    """The machine: its home, and the ssh that reaches it as `gpu-box`."""

    def __init__(self, folder: Path, port: int, process: "subprocess.Popen[bytes]") -> None:
        self.folder = folder
        self.home = folder / 'the home of $USER, "that\'s it"'
        self.programs = folder / "bin"
        self.port = port
        self.process = process

    @property
    def config(self) -> Path:
        return self.folder / "ssh_config"

    def break_connections(self) -> None:
        """End every connection, as a network that goes away; the server and the runs go on."""
        for pid in descendants(self.process.pid):
            if _name_of(pid).startswith("sshd"):
                _kill(pid)

    def lose(self) -> None:
        """End the machine as a host that goes away: its server and every process on it, at once."""
        sessions = descendants(self.process.pid)
        self.process.kill()
        self.process.wait()
        while left := [*filter(_lives, sessions), *_processes_at(self.home)]:
            for pid in left:
                _kill(pid)
            time.sleep(0.02)

    def let_in(self, other: "Remote") -> None:
        """Let in who has the key of another machine."""
        keys = self.folder / "authorized_keys"
        keys.write_text(keys.read_text() + (other.folder / "user_key.pub").read_text())

    def runs(self) -> list[Path]:
        folder = self.home / ".quark/runs"
        return sorted(folder.iterdir()) if folder.is_dir() else []


def find_server(folder: Path) -> Server:
    """Return a server; unpacks Debian's packages into `folder` where the system has none.

    Raises:
        NoServerError: with the reason.
    """
    if shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        raise NoServerError("there is no ssh client (Debian: openssh-client)")
    if os.geteuid() != 0:
        found = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin:" + os.defpath)
        if found is None:
            raise NoServerError("there is no ssh server (Debian: openssh-server)")
        return Server(Path(found))
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise NoServerError("the accounts of the test server come from Debian's libnss-wrapper")
    folder.mkdir()
    got = subprocess.run(
        ["apt-get", "download", *PACKAGES], cwd=folder, capture_output=True, text=True, check=False
    )
    if got.returncode:
        raise NoServerError(f"apt-get download: {(got.stderr or got.stdout).strip()[-300:]}")
    for package in sorted(folder.glob("*.deb")):
        subprocess.run(["dpkg", "-x", package, folder / "root"], check=True)
    return Server(
        folder / "root/usr/sbin/sshd", next((folder / "root/usr/lib").glob("*-linux-gnu*"))
    )


@contextmanager
def machine(folder: Path, server: Server, *, disk_bytes: int | None = None) -> Iterator[Remote]:
    """Enter with a machine that runs; `disk_bytes`: its home is a disk of that size (Linux, root)."""
    folder.mkdir(parents=True)
    (port,) = free_ports(1)
    for name in ("host_key", "user_key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True
        )
    shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
    public = (folder / "host_key.pub").read_text()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {public}")
    remote_home = Remote(folder, port, None).home  # type: ignore[arg-type]  # not started yet
    remote_home.mkdir()
    _write_programs(folder, port)
    command = [
        str(server.program),
        "-D",
        "-e",
        "-f",
        str(_server_config(folder, port, remote_home)),
    ]
    environment = {"PATH": os.defpath, **server.environment}
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
        environment |= _accounts(folder, server, remote_home)
    if disk_bytes is not None:
        script = 'mount -t tmpfs -o size="$1" none "$2" && shift 2 && exec "$@"'
        command = [
            str(shutil.which("unshare")),
            "-m",
            "sh",
            "-c",
            script,
            "sh",
            str(disk_bytes),
            str(remote_home),
            *command,
        ]
    log = folder / "sshd.log"
    with running(
        command, log=log, environ=environment, ready=lambda: "Server listening" in log.read_text()
    ) as process:
        remote = Remote(folder, port, process)
        try:
            yield remote
        finally:
            remote.break_connections()
            for run in remote.runs():
                _end_run(run)


def _write_programs(folder: Path, port: int) -> None:
    (folder / "ssh_config").write_text(
        f"Host {HOST}\n  HostName 127.0.0.1\n  Port {port}\n  User {_user()}\n"
        f"  IdentityFile {folder}/user_key\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n  GlobalKnownHostsFile none\n"
        # What people have in theirs, and a helper's connection must not trip over.
        "  RemoteCommand tmux attach\n  RequestTTY yes\n"
        # The same machine by its address, as somebody who rents it is given it.
        f"Host 127.0.0.1\n  IdentityFile {folder}/user_key\n  IdentitiesOnly yes\n"
    )
    programs = folder / "bin"
    programs.mkdir()
    ssh = programs / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F "{folder}/ssh_config" "$@"\n')
    ssh.chmod(0o755)


def _server_config(folder: Path, port: int, home: Path) -> Path:
    path = folder / "sshd_config"
    lines = [
        f"Port {port}", "ListenAddress 127.0.0.1", f"HostKey {folder}/host_key",
        f"AuthorizedKeysFile {folder}/authorized_keys", "UsePAM no", "StrictModes no",
        "PidFile none", "PasswordAuthentication no", "KbdInteractiveAuthentication no",
        "LogLevel INFO", "PermitRootLogin prohibit-password",
    ]  # fmt: skip
    if os.geteuid() != 0:
        escaped = str(home).replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'SetEnv HOME="{escaped}"')
    path.write_text("\n".join(lines) + "\n")
    return path


def _accounts(folder: Path, server: Server, home: Path) -> dict[str, str]:
    (folder / "passwd").write_text(
        f"{USER}:x:0:0::{home}:/bin/sh\nroot:x:0:0:root:{home}:/bin/sh\n"
        "sshd:x:74:65534::/nonexistent:/usr/sbin/nologin\n"
    )
    (folder / "group").write_text("root:x:0:\nnogroup:x:65534:\n")
    if server.libraries is None:
        raise NoServerError("no libnss-wrapper")
    return {
        "LD_PRELOAD": str(server.libraries / "libnss_wrapper.so"),
        "NSS_WRAPPER_PASSWD": str(folder / "passwd"),
        "NSS_WRAPPER_GROUP": str(folder / "group"),
    }


def _user() -> str:
    import getpass

    return USER if os.geteuid() == 0 else getpass.getuser()


def _end_run(folder: Path) -> None:
    """End what a run that a test left behind still has."""
    for name in ("supervisor.json", "process.json"):
        path = folder / name
        found = msgspec.json.decode(path.read_bytes()) if path.exists() else {}
        for one in (found.get("process"), *found.get("ranks", ())):
            if one:
                _kill(one["pid"])


def _processes_at(home: Path) -> list[int]:
    """Return the processes whose home folder that is, as they were started."""
    mark, found = f"HOME={home}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if mark in variables:
            found.append(int(path.parent.name))
    return found


def _lives(pid: int) -> bool:
    path = Path(f"/proc/{pid}/stat")
    return path.exists() and path.read_text().rpartition(")")[2].split()[0] != "Z"


def _name_of(pid: int) -> str:
    path = Path(f"/proc/{pid}/comm")
    return path.read_text() if path.exists() else ""


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
