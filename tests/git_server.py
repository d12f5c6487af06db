"""A git server on loopback (`git daemon`), and repositories for it."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.servers import free_ports, running

_WHO = ("-c", "user.name=tests", "-c", "user.email=tests@example.org")


@contextmanager
def git_server(folder: Path) -> Iterator[tuple[Path, str]]:
    """Enter with a folder whose repositories are served, and the address of it."""
    if shutil.which("git") is None:
        pytest.skip("there is no git")
    found = subprocess.run(["git", "--exec-path"], capture_output=True, text=True, check=True)
    # Itself: `git daemon` starts it as a child, which outlives it.
    daemon = Path(found.stdout.strip()) / "git-daemon"
    if not daemon.is_file():
        pytest.skip("there is no git-daemon")
    folder.mkdir()
    (port,) = free_ports(1)
    log = folder.with_name("git.log")
    command = [
        str(daemon), "--verbose", "--listen=127.0.0.1", f"--port={port}", "--export-all", "--reuseaddr",
        f"--base-path={folder}", str(folder),
    ]  # fmt: skip
    with running(command, log=log, ready=lambda: "Ready to rumble" in log.read_text()):
        yield folder, f"git://127.0.0.1:{port}"


def commit(repository: Path, message: str, *, tag: str = "", branch: str = "main") -> str:
    """Commit all that lies in a folder, which becomes a repository; returns the commit."""
    git = ["git", *_WHO, "-C", str(repository)]
    if not (repository / ".git").is_dir():
        subprocess.run([*git, "init", "--quiet", "--initial-branch", branch], check=True)
    subprocess.run([*git, "add", "--all"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message", message], check=True)
    if tag:
        subprocess.run([*git, "tag", tag], check=True)
    said = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return said.stdout.strip()
