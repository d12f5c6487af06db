"""The command lines of `sky` that Quark types. Pure; every option is one of SkyPilot 0.14.

Their names are checked against SkyPilot's own program at night (`tests/resource_manager/sky/`).
"""

from typing import TypeAlias

Words: TypeAlias = tuple[str, ...]
JOB = "1"
"""A cluster is made for one run, so its job is the first."""


def version() -> Words:
    """`sky --version`."""
    return ("--version",)


def dry_run(name: str, task: str) -> Words:
    """Say what a cluster of that name would be, and make nothing."""
    return ("launch", "--yes", "--dryrun", "--cluster", name, task)


def launch(name: str, task: str, secret_file: str | None = None) -> Words:
    """Make a cluster and submit the task as its first job; returns when it is submitted."""
    return ("launch", "--yes", "--detach-run", "--cluster", name, *_secret(secret_file), task)


def launch_job(name: str, task: str, secret_file: str | None = None) -> Words:
    """Submit the task as a managed job, whose machines SkyPilot makes, replaces and removes."""
    return ("jobs", "launch", "--yes", "--detach-run", "--name", name, *_secret(secret_file), task)


def logs(name: str, *, follow: bool) -> Words:
    """All that the run has printed."""
    return ("logs", "--tail", "0", "--follow" if follow else "--no-follow", name, JOB)


def job_logs(name: str, *, follow: bool) -> Words:
    """All that the run has printed, on the machine that it is on now."""
    return ("jobs", "logs", "--tail", "0", "--follow" if follow else "--no-follow", "--name", name)


def job_status(name: str) -> Words:
    """Say by the exit code how the run stands: 0 done, 100 failed, 101 goes on, 103 cancelled."""
    return ("logs", "--status", name, JOB)


def execute(name: str, *command: str) -> Words:
    """Run a command on the first machine, beside the run."""
    return ("exec", "--detach-run", name, *command)


def cancel(name: str) -> Words:
    """End the run; its machines stay."""
    return ("cancel", "--yes", name, JOB)


def cancel_job(name: str) -> Words:
    """End a managed job and its machines."""
    return ("jobs", "cancel", "--yes", "--name", name)


def down(name: str) -> Words:
    """Destroy a cluster. Ends with 0 when that failed, too: `status` says."""
    return ("down", "--yes", name)


def status(name: str) -> Words:
    """A cluster as its cloud has it now; an empty list when there is none."""
    return ("status", "--refresh", "--output", "json", name)


def jobs(*, wake: bool = False) -> Words:
    """Every managed job there ever was; `wake`: SkyPilot's controller, which stops when it is idle."""
    refresh = ("--refresh",) if wake else ()
    return ("jobs", "queue", "--verbose", "--all", *refresh, "--output", "json")


def requests(name: str | None = None) -> Words:
    """What SkyPilot's server has still to do, for a cluster or for all."""
    return ("api", "status", *(() if name is None else ("--cluster", name)), "--output", "json")


def drop_request(number: str) -> Words:
    """Break off what SkyPilot's server is doing."""
    return ("api", "cancel", "--yes", number)


def _secret(path: str | None) -> Words:
    return () if path is None else ("--secret-file", path)
