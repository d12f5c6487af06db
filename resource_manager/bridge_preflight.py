"""Before a machine is rented for a pipeline: whether its keys read the source and write the output.

Asked in a process that has the keys which are sent, and no others of this machine.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from resource_manager.bridge_order import RentedPipeline
from tools_utilities.bridge.checkout import HEAD
from tools_utilities.bridge.pipelines import Request, in_own_process
from tools_utilities.errors import UsageError
from tools_utilities.process_environment import child_environment

OWN_KEYS = ("AWS_", "AZURE_", "GOOGLE_")
KEPT = ("AWS_CA_BUNDLE",)
LOOK_SECONDS = 60.0
COMMIT_LENGTHS = range(4, 41)


def begun(rented: RentedPipeline, here: Mapping[str, str]) -> dict[str, Any] | None:
    """Begin a pipeline as far as that needs no machine; returns what is finished already.

    The source is opened and read from, progress is written beside the output and found there by the machine.

    Raises:
        PipelineError: it cannot; with the exit code of what kept it.
        UsageError: the checkout that is to be run cannot be had.
    """
    if rented.order.repo_url is not None:
        check_answers(rented.order.repo_url, rented.order.repo_ref)
    request = Request(settings=rented.order.settings, begins=True)
    return in_own_process(request, foreign_environment(rented.sent.variables, here))


def foreign_environment(sent: Mapping[str, str], here: Mapping[str, str]) -> dict[str, str]:
    """Return an environment as of a machine that has the keys which are sent, and none of this one's."""
    kept = {
        name: value for name, value in here.items() if name in KEPT or not name.startswith(OWN_KEYS)
    }
    nowhere = {
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    return {**kept, **nowhere, **sent}


def check_answers(url: str, ref: str | None) -> None:
    """Ask a repository for its branches and tags; nothing is asked where there is no git here.

    Raises:
        UsageError: it does not answer, or has no such branch or tag.
    """
    git = shutil.which("git")
    if git is None:
        return
    try:
        done = subprocess.run(  # noqa: S603 - git, by a list; nobody is asked for a password
            [git, "ls-remote", "--", url],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
            timeout=LOOK_SECONDS, env=child_environment({"GIT_TERMINAL_PROMPT": "0"}),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"vast.repo_url {url}: no answer in {LOOK_SECONDS:.0f} s", hint="Check the address."
        ) from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        raise UsageError(
            f"vast.repo_url {url}: {said[-1]}",
            hint="It must be a repository that anybody may read.",
        )
    names = {line.partition("\t")[2] for line in done.stdout.splitlines()}
    wanted = ref or HEAD
    is_commit = len(wanted) in COMMIT_LENGTHS and not set(wanted) - set("0123456789abcdef")
    if not is_commit and names.isdisjoint({wanted, f"refs/heads/{wanted}", f"refs/tags/{wanted}"}):
        raise UsageError(f"vast.repo_ref {wanted}: {url} has no such branch or tag")
