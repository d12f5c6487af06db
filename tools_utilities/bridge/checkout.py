"""A checkout of Quark that a pipeline is run from, on a machine that was rented for it.

git and pip of that machine do the work. Nothing of the address is secret: it stands on their command lines.
"""

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tools_utilities.errors import MachineError, UsageError
from tools_utilities.process_environment import child_environment
from tools_utilities.redaction import redact, refuse_signed

SECURE, OPEN = "https", ("http", "git")
"""What runs over there is given keys: on the way nobody may change it, but on this machine itself."""
OWN_HOSTS = ("127.0.0.1", "::1", "localhost")
_REF = re.compile(r"(?!-)(?!.*\.\.)[A-Za-z0-9._/@+-]{1,200}")
_NAME = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,100}")
PIPELINE_FILE = "tools_utilities/bridge/bridge_process.py"
"""What makes a repository one of Quark's."""
NOT_NEEDED = frozenset({"torch", "peft", "transformers", "tokenizers"})
"""Packages of Quark that no pipeline loads; the first alone takes some GB."""
HEAD = "HEAD"


def check_repository(url: str, ref: str | None) -> None:
    """Refuse what a rented machine cannot clone, or what would be told to everybody there. Pure.

    Raises:
        UsageError: naming the setting.
    """
    refuse_signed(url, "vast.repo_url")
    parts = urlsplit(url)
    safe = parts.scheme == SECURE or (parts.scheme in OPEN and parts.hostname in OWN_HOSTS)
    if not safe or not parts.hostname or not _NAME.fullmatch(folder_name(url)):
        raise UsageError(
            f"vast.repo_url {url}: not an address that a rented machine can clone",
            hint=f"It has no key of yours: give one that anybody may read, {SECURE}://…/NAME.git.",
        )
    if ref is not None and not _REF.fullmatch(ref):
        raise UsageError(f"vast.repo_ref {ref}: not a branch, tag or commit")


def folder_name(url: str) -> str:
    """Return the name of the folder that a repository is cloned into."""
    return urlsplit(url).path.rstrip("/").rpartition("/")[2].removesuffix(".git")


def check_out(url: str, ref: str | None, below: Path, say: Callable[[str], None]) -> Path:
    """Clone a repository at a branch, tag or commit into a folder of its name; returns that.

    Raises:
        MachineError: there is no git, or it did not do it.
        UsageError: it is no checkout of Quark.
    """
    git = shutil.which("git")
    if git is None:
        raise MachineError(
            "vast.repo_url: there is no git on the machine", hint="Name an image with git."
        )
    folder = below / folder_name(url)
    folder.mkdir(parents=True, exist_ok=True)
    wanted = ref or HEAD
    _run([git, "init", "--quiet", str(folder)])
    at = [git, "-C", str(folder)]
    if _runs([*at, "fetch", "--quiet", "--depth", "1", url, wanted]):
        commit = "FETCH_HEAD"
    else:  # a server that gives no single commit
        every = ["+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*"]
        _run([*at, "fetch", "--quiet", url, *every])
        commit = next(
            (name for name in (f"refs/remotes/origin/{wanted}", f"refs/tags/{wanted}", wanted)
             if _runs([*at, "rev-parse", "--quiet", "--verify", f"{name}^{{commit}}"])),
            "",
        )  # fmt: skip
        if not commit:
            raise UsageError(f"vast.repo_ref {wanted}: {url} has no such branch, tag or commit")
    _run([*at, "checkout", "--quiet", "--detach", commit])
    if not (folder / PIPELINE_FILE).is_file():
        raise UsageError(
            f"vast.repo_url {url}: no checkout of Quark ({PIPELINE_FILE} is not there)",
            hint="Leave it out: the Quark that you run is sent.",
        )
    say(f"checked out {url} at {wanted} ({_said([*at, 'rev-parse', '--short', 'HEAD']).strip()})\n")
    return folder


def install_needs(folder: Path, *, hub: bool) -> None:
    """Install what a checkout needs into this Python's environment; nothing where all is there.

    `hub`: also what Hugging Face datasets are read with.

    Raises:
        MachineError: there is no installer, or it failed.
    """
    wanted = needs_of(folder / "pyproject.toml", hub=hub)
    pins = folder / "constraints.txt"
    options = ["-c", str(pins)] if pins.is_file() else []
    if importlib.util.find_spec("pip"):
        program = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    else:
        uv = shutil.which("uv")
        if uv is None:
            raise MachineError("there is neither pip nor uv on the machine to install with")
        program = [uv, "pip", "install", "--python", sys.executable]
    _run([*program, "--quiet", *options, *wanted])


def needs_of(project: Path, *, hub: bool) -> list[str]:
    """Return the requirements of a checkout's pipelines, from its `pyproject.toml`."""
    try:
        found: Any = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
        wanted = list(found["dependencies"])
        wanted += found.get("optional-dependencies", {}).get("hf", []) if hub else []
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"vast.repo_url: its pyproject.toml cannot be read: {error}") from error
    return [line for line in wanted if needed_name(line) not in NOT_NEEDED]


def needed_name(requirement: str) -> str:
    """Return the name of the package that a requirement is of."""
    return re.split(r"[^A-Za-z0-9._-]", requirement.strip())[0].lower()


def _runs(command: Sequence[str]) -> bool:
    return _done(command).returncode == 0


def _said(command: Sequence[str]) -> str:
    return _done(command).stdout


def _run(command: Sequence[str]) -> None:
    done = _done(command)
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        program = " ".join(
            Path(part).name if not at else part for at, part in enumerate(command[:4])
        )
        said = redact(lines[-1]) if lines else "it said nothing"
        raise MachineError(f"{program} ended with {done.returncode}: {said}")


def _done(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(  # noqa: S603 - git and pip, by lists and never by a shell
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        # Nobody is there who could be asked for a password.
        env=child_environment({"GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_NOSYSTEM": "1"}),
    )
