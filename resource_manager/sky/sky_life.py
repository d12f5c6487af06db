"""What SkyPilot has started for one run: made, asked after, ended, and read back until nothing is left.

Two kinds: a cluster of the run's own, and a managed job, whose machines SkyPilot makes anew when they
are taken away (spot). `sky down` ends with 0 when it has failed, so the end is only believed when what
SkyPilot lists, asked anew of the cloud, is free of the run's name, and its server has nothing left to do
for it: a launch that is still waiting there would make the machine after its end.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from resource_manager.launch_target import RunStatus
from resource_manager.sky import sky_words
from resource_manager.sky.sky_offer import is_place
from resource_manager.sky.sky_program import SECRETS, Answer, Sky
from resource_manager.sky.sky_task import TASK
from tools_utilities.errors import ChangedError, MachineError, StillBilledError

STARTING, RUNNING, ENDED, LOST = "starting", "running", "ended", "lost"
DONE_CODE, FAILED_CODE, GOES_ON_CODE, NO_JOB_CODE, CANCELLED_CODE = 0, 100, 101, 102, 103
"""Exit codes of `sky logs --status`."""
STOPPED = 130
DONE, CANCELLED = "SUCCEEDED", "CANCELLED"
OVER = "DONE"
"""The state of a managed job's scheduler when its machines are removed."""
UNSURE = "FAILED_CONTROLLER"
"""What SkyPilot says of a job whose machines it may have lost sight of."""
BEGINNING = ("PENDING", "SUBMITTED", "STARTING", "RECOVERING")
FAILED_WORD = "FAILED"
JOBS_REQUEST = "jobs.launch"


class SkyTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Limits, in seconds."""

    launch: float = 2400.0
    """From the command to a submitted job: machines, their beginning, files."""
    end: float = 600.0
    """From the first word of the end to the proof."""
    look: float = 5.0
    """Between two looks while something is waited for."""


class SkyLife(Protocol):
    """What one name of SkyPilot's stands for."""

    name: str
    typed: str
    """What is typed to end it."""
    machine: str
    """In words: `cluster quark-fox-1-1a2b`."""

    def launch(self, folder: Path, secrets: Mapping[str, str]) -> str:
        """Start the task of a folder, return what SkyPilot said; ends when it is submitted.

        Raises:
            MachineError: it did not start; something may be there.
        """
        ...

    def check_place(self, place: str) -> None:
        """Read back where it is.

        Raises:
            ChangedError: not where was confirmed.
        """
        ...

    def stands(self) -> RunStatus:
        """Ask how the run stands.

        Raises:
            MachineError: nobody can say.
        """
        ...

    def follow(self, *, until_end: bool) -> sky_words.Words:
        """Return the words that print all the run has printed, and what it prints until its end."""
        ...

    def stop(self, stop_file: str) -> None:
        """Ask the run to end, saving where there is a way to."""
        ...

    def there(self) -> tuple[str, ...]:
        """Read back what there is of it, and what SkyPilot's server has still to do for it.

        Raises:
            MachineError: nobody can say.
        """
        ...

    def destroy(self) -> tuple[str, ...]:
        """Ask once for the end of all there is; returns what is left of it, as read back.

        Raises:
            MachineError: nobody can say.
        """
        ...


class Cluster:
    """A cluster of the run's own, `sky launch`."""

    def __init__(self, sky: Sky, name: str, times: SkyTimes) -> None:
        self._sky, self.name, self._times = sky, name, times
        self.typed = f"sky down --yes {name}"
        self.machine = f"cluster {name}"

    def launch(self, folder: Path, secrets: Mapping[str, str]) -> str:
        """As of SkyLife."""
        words = sky_words.launch(self.name, TASK, SECRETS if secrets else None)
        return _launched(self._sky, words, folder, secrets, self._times)

    def check_place(self, place: str) -> None:
        """As of SkyLife."""
        for one in self._listed():
            cloud, region = str(one.get("cloud") or ""), str(one.get("region") or "")
            if cloud and not is_place(place, cloud, region):
                raise ChangedError(
                    f"{self.machine} is on {cloud} ({region}), {place} was confirmed; it is destroyed",
                    hint="Run the same command again to see what there is now.",
                )

    def stands(self) -> RunStatus:
        """As of SkyLife."""
        answer = self._sky.ask(sky_words.job_status(self.name))
        codes = {DONE_CODE: 0, FAILED_CODE: 1, CANCELLED_CODE: STOPPED}
        if answer.code in codes:
            return RunStatus(state=ENDED, exit_code=codes[answer.code])
        if answer.code == GOES_ON_CODE:
            return RunStatus(state=RUNNING)
        if not self._listed():
            return RunStatus(state=LOST, why=f"{self.machine} is gone")
        raise MachineError(f"sky logs: {answer.last_words}")

    def follow(self, *, until_end: bool) -> sky_words.Words:
        """As of SkyLife."""
        return sky_words.logs(self.name, follow=until_end)

    def stop(self, stop_file: str) -> None:
        """As of SkyLife: its supervisor sees the file; where nothing can be run there, it is cancelled.

        What is cancelled gets half a minute from SkyPilot.
        """
        answer = self._sky.ask(sky_words.execute(self.name, "touch", stop_file))
        if answer.code:
            _done(self._sky.ask(sky_words.cancel(self.name)), "sky cancel")

    def destroy(self) -> tuple[str, ...]:
        """As of SkyLife."""
        waiting = _waiting(self._sky, self.name)
        for number in waiting:
            self._sky.ask(sky_words.drop_request(number))
        self._sky.ask(sky_words.down(self.name), limit_seconds=self._times.end)
        return self.there()

    def there(self) -> tuple[str, ...]:
        """As of SkyLife."""
        # In this order: what is waiting no more, and made something, is in the list.
        waiting = _waiting(self._sky, self.name)
        left = [self.machine for _ in self._listed()]
        return (*left, *(f"request {number} for {self.machine}" for number in waiting))

    def _listed(self) -> list[Mapping[str, Any]]:
        found = self._sky.read(sky_words.status(self.name))
        return [one for one in found if one.get("name") == self.name]


class ManagedJob:
    """A managed job, `sky jobs launch`."""

    def __init__(self, sky: Sky, name: str, times: SkyTimes) -> None:
        self._sky, self.name, self._times = sky, name, times
        self.typed = f"sky jobs cancel --yes --name {name}"
        self.machine = f"managed job {name}"

    def launch(self, folder: Path, secrets: Mapping[str, str]) -> str:
        """As of SkyLife."""
        words = sky_words.launch_job(self.name, TASK, SECRETS if secrets else None)
        return _launched(self._sky, words, folder, secrets, self._times)

    def check_place(self, place: str) -> None:
        """As of SkyLife: its machines come later, and where the task says."""

    def stands(self) -> RunStatus:
        """As of SkyLife."""
        try:
            listed = self._listed()
        except MachineError:
            listed = self._listed(wake=True)  # idle, it stops, and says nothing any more
        if not listed:
            return RunStatus(state=LOST, why=f"{self.machine} is not in the list")
        status = str(listed[0].get("status"))
        if status == DONE:
            return RunStatus(state=ENDED, exit_code=0)
        if status == CANCELLED:
            return RunStatus(state=ENDED, exit_code=STOPPED)
        if status.startswith(FAILED_WORD):
            why = str(listed[0].get("failure_reason") or status)
            return RunStatus(state=ENDED, exit_code=1, why=why.splitlines()[0])
        return RunStatus(state=STARTING if status in BEGINNING else RUNNING)

    def follow(self, *, until_end: bool) -> sky_words.Words:
        """As of SkyLife."""
        return sky_words.job_logs(self.name, follow=until_end)

    def stop(self, stop_file: str) -> None:  # noqa: ARG002 - nothing can be run on its machines
        """As of SkyLife: it is cancelled, and its machines go at once; what was saved last stays."""
        _done(self._sky.ask(sky_words.cancel_job(self.name)), "sky jobs cancel")

    def destroy(self) -> tuple[str, ...]:
        """As of SkyLife."""
        if any(not _is_over(one) for one in self._listed(wake=True)):
            self._sky.ask(sky_words.cancel_job(self.name), limit_seconds=self._times.end)
        return self.there()

    def there(self) -> tuple[str, ...]:
        """As of SkyLife."""
        waiting = _waiting(self._sky, None)  # first, as for a cluster
        listed = self._listed(wake=True)
        left = [f"{self.machine} ({one.get('status')})" for one in listed if not _is_over(one)]
        if listed:
            return tuple(left)
        # Whose they are nobody can tell before they have made a job.
        return (*left, *(f"request {number} for a managed job" for number in waiting))

    def _listed(self, *, wake: bool = False) -> list[Mapping[str, Any]]:
        limit = self._times.end if wake else None
        found = self._sky.read(sky_words.jobs(wake=wake), limit_seconds=limit)
        return [one for one in found if one.get("job_name") == self.name]


def life_of(sky: Sky, name: str, times: SkyTimes, *, managed: bool) -> SkyLife:
    """Return what a name stands for."""
    return ManagedJob(sky, name, times) if managed else Cluster(sky, name, times)


def destroyed(
    life: SkyLife,
    times: SkyTimes,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Destroy all there is, and prove it.

    Raises:
        StillBilledError: there is no proof; it names what may be there and what to type.
    """
    began = clock()
    while True:
        left: tuple[str, ...] | None = None
        problem = ""
        try:
            left = life.destroy()
        except MachineError as error:
            problem = str(error)
        if left == ():
            return
        if clock() - began >= times.end:
            raise still_billed(life, problem or ", ".join(left or ()))
        sleep(times.look)


def still_billed(life: SkyLife, problem: str) -> StillBilledError:
    """Return the error that names what may still be there, and what to type."""
    return StillBilledError(
        f"SkyPilot: {life.machine} may still be there, and cost money"
        + (f": {problem}" if problem else ""),
        hint=f"`{life.typed}` ends it; `sky status --refresh` and `sky jobs queue` show what is left.",
        names=[life.name],
    )


def _is_over(one: Mapping[str, Any]) -> bool:
    return one.get("schedule_state") == OVER and one.get("status") != UNSURE


def _waiting(sky: Sky, name: str | None) -> list[str]:
    """Return the launches that SkyPilot's server has not finished."""
    found = sky.read(sky_words.requests(name))
    of_jobs = name is None
    return [
        str(one.get("request_id"))
        for one in found
        if str(one.get("name")).endswith(JOBS_REQUEST if of_jobs else "launch")
    ]


def _launched(
    sky: Sky,
    words: sky_words.Words,
    folder: Path,
    secrets: Mapping[str, str],
    times: SkyTimes,
) -> str:
    answer = sky.ask(words, limit_seconds=times.launch, folder=folder, secrets=secrets)
    _done(answer, "sky launch")
    return answer.text


def _done(answer: Answer, what: str) -> None:
    if answer.code:
        raise MachineError(f"{what}: {answer.last_words}")
