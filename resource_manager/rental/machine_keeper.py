"""What sees to a machine that is rented for a run: makes it, launches on it, destroys it with proof."""

import contextlib
import secrets
import time
from pathlib import Path

import msgspec

from brain.ml.training_job import Remote, RentalTerms, TrainingJob
from resource_manager.launch_target import RunHandle
from resource_manager.launch_targets.ssh import SshTarget
from resource_manager.remote_host import OutOfReachError
from resource_manager.remote_record import read_record, write_record
from resource_manager.rental.offers import Offer
from resource_manager.rental.rental_api import Instance, OfferTakenError, RentalApi, Wanted
from resource_manager.rental.rental_record import (
    RENTING,
    RUNNING,
    UNPROVEN,
    RentalRecord,
    note_gone,
    read_rental,
    try_rental_lock,
    write_rental,
)
from resource_manager.rental.rental_terms import cap_seconds, own_end, wish_of_terms
from resource_manager.rental.rented_run import COLLECT_SECONDS, RentedRun
from resource_manager.rental.renting import (
    GONE_WORDS,
    BootError,
    Rental,
    Times,
    Watch,
    label_of,
    still_billed,
)
from tools_utilities.errors import (
    ChangedError,
    MachineError,
    QuarkError,
    StillBilledError,
    UsageError,
)
from tools_utilities.file_locks import HeldFile  # noqa: TC001 - the style here: plain imports
from tools_utilities.run_words import said_run

MOST_LOSSES = 3
"""Machines that a run may lose before it is left to the person."""
LOST_LOOKS = 2
KNOWN_HOSTS = ".known_hosts"
USER = "root"


def lost_line(terms: RentalTerms) -> str:
    """Return what becomes of a run whose machine is taken away, for the plan."""
    return (
        f"it goes on from its last checkpoint on the next offer, at most ${terms.max_price_hour:g} an"
        f" hour and within the same cap, up to {MOST_LOSSES} times"
    )


class LaunchKeeper:
    """Makes a machine, launches on it, and destroys it."""

    def __init__(self, job: TrainingJob, offer: Offer, api: RentalApi, times: Times) -> None:
        self._job, self._offer, self._api, self._times = job, offer, api, times
        self._remote, self._terms = terms_of(job)
        self._run_dir = Path(job.run_dir)
        before = read_rental(self._run_dir)
        self._record = self._new_record(
            cap_seconds(job, self._terms, offer.price_hour),
            0.0 if before is None else before.spent(time.time()),
        )
        self._spent_at_start = self._record.spent_before
        self._ends_at = self._record.began_at + self._record.cap_seconds
        self._rental = Rental(api, self._record.label, times=times)
        self._ssh: SshTarget | None = None
        self._lock: HeldFile | None = None
        self._tried: list[Offer] = []
        self._number = 0
        self._looked_at = time.monotonic()
        self._missing = 0

    def begin(self, run: RentedRun) -> RunHandle:
        """As of Keeper."""
        self._lock = try_rental_lock(self._run_dir)
        if self._lock is None:
            raise UsageError(f"{self._job.name}: another process watches over its machine")
        self._check_offer()
        return self._made(run)

    def _new_record(self, cap: float, spent: float) -> RentalRecord:
        return RentalRecord(
            label=label_of(self._job.name, secrets.token_hex(4)),
            offer_id=self._offer.id,
            price_hour=self._offer.price_hour,
            began_at=time.time(),
            cap_seconds=cap,
            spent_before=spent,
        )

    def _made(self, run: RentedRun) -> RunHandle:
        """Rent the offer and launch on it."""
        self._tried.append(self._offer)
        self._number, self._missing = 0, 0
        self._note(RENTING)  # before anything costs anything
        watch = Watch(cancelled=lambda: run.is_asked, tell=run.tell, noted=self._seen)
        self._rental = Rental(self._api, self._record.label, times=self._times, watch=watch)
        run.tell(f"renting offer {self._offer.id} at ${self._offer.price_hour:.3f} an hour")
        kept = self._rental.rent(self._offer, self._wanted())
        instance = self._rental.wait_running(kept.id)
        self._number = instance.id
        run.tell(f"instance {instance.id} runs, waiting for its ssh server")
        return self._launched(run, instance)

    def is_gone(self) -> bool:
        """As of Keeper: twice in a row not listed, or in a state that it does not come back from."""
        if time.monotonic() - self._looked_at < self._times.lost:
            return False
        self._looked_at = time.monotonic()
        try:
            one = self._rental.look(self._number)
        except QuarkError:
            return False  # nobody says
        lost = one is None or one.status in GONE_WORDS
        self._missing = self._missing + 1 if lost else 0
        return self._missing >= LOST_LOOKS

    def again(self, run: RentedRun) -> RunHandle:
        """As of Keeper: the cheapest offer that was not tried, from the last checkpoint."""
        run.tell(f"instance {self._number} was lost; {destroyed(self._rental, self._run_dir)}")
        name = said_run(self._job.name)
        hint = f"Its checkpoints are kept: quark resume {name}"
        if len(self._tried) > MOST_LOSSES:
            raise MachineError(f"{len(self._tried)} machines were lost in a row", hint=hint)
        numbers = {one.id for one in self._tried}
        hosts = {one.machine_id for one in self._tried} - {None}
        found = self._api.search(wish_of_terms(self._terms)).offers
        left = [one for one in found if one.id not in numbers and one.machine_id not in hosts]
        if not left:
            raise MachineError("the machine was lost, and no other offer fits now", hint=hint)
        self._offer = left[0]
        self._job = msgspec.structs.replace(self._job, resume="auto", from_step=None)
        spent = rental_of(self._run_dir).spent(time.time())
        self._record = self._new_record(self._cap_left(spent), spent)
        return self._made(run)

    def _cap_left(self, spent: float) -> float:
        """Return what is left of both caps for the next machine, in seconds.

        Raises:
            UsageError: it is not enough for anything.
        """
        terms = self._terms
        if terms.max_cost is not None:
            used = spent - self._spent_at_start
            terms = msgspec.structs.replace(terms, max_cost=max(0.0, terms.max_cost - used))
        cap = cap_seconds(self._job, terms, self._offer.price_hour)
        return min(cap, self._ends_at - time.time()) if self._job.max_seconds is not None else cap

    def cancel(self) -> None:
        """As of Keeper."""
        if self._ssh is not None:
            self._ssh.break_off()

    def seconds_left(self) -> float:
        """As of Keeper."""
        return self._record.began_at + self._record.cap_seconds - time.time()

    def unproven(self) -> StillBilledError:
        """As of Keeper."""
        record = self._record
        return still_billed(
            record.instances, "its end was not seen in time", record.label, self._api.host
        )

    def end(self) -> str:
        """As of Keeper."""
        try:
            if self._ssh is not None:
                self._ssh.close()
            if read_rental(self._run_dir) is None or self._lock is None:
                return ""  # nothing was begun
            return destroyed(self._rental, self._run_dir)
        finally:
            if self._lock is not None:
                self._lock.close()

    def _check_offer(self) -> None:
        """Look at the offer once more: a plan may have waited long for its answer.

        Raises:
            OfferTakenError, ChangedError: it is gone, or dearer.
        """
        wish = msgspec.structs.replace(wish_of_terms(self._terms), max_price_hour=None)
        now = next((o for o in self._api.search(wish).offers if o.id == self._offer.id), None)
        if now is None:
            raise OfferTakenError(
                f"offer {self._offer.id} cannot be had any more; nothing was rented",
                hint="Run the same command again: it looks for the cheapest offer anew.",
            )
        if now.price_hour > self._offer.price_hour:
            raise ChangedError(
                f"offer {now.id} costs ${now.price_hour:.3f} an hour now, ${self._offer.price_hour:.3f}"
                " was confirmed; nothing was rented",
                hint="Run the same command again to see what there is now.",
            )

    def _wanted(self) -> Wanted:
        return Wanted(
            label=self._record.label,
            image=self._terms.image,
            disk_gb=self._terms.disk_gb,
            onstart=own_end(self._record.cap_seconds, self._api.url),
            bid_hour=self._offer.bid_hour,
        )

    def _launched(self, run: RentedRun, instance: Instance) -> RunHandle:
        host = f"[{instance.ssh_host}]" if ":" in instance.ssh_host else instance.ssh_host
        remote = Remote(
            where=f"ssh:{USER}@{host}:{instance.ssh_port}",
            python=self._remote.python, packages=self._remote.packages, folder=self._remote.folder,
            credentials=self._remote.credentials, variables=self._remote.variables,
            known_hosts=str(self._run_dir / KNOWN_HOSTS),
        )  # fmt: skip
        # Another machine may have had this address before.
        (self._run_dir / KNOWN_HOSTS).unlink(missing_ok=True)
        job = msgspec.structs.replace(self._job, remote=remote, detach=False)
        left = self.seconds_left() - COLLECT_SECONDS
        self._ssh = SshTarget(run.tell, deadline_seconds=max(left, 1.0))
        self._await_ssh(run, job)
        handle = self._ssh.launch(self._ssh.plan(job))
        self._note(RUNNING)
        return handle

    def _await_ssh(self, run: RentedRun, job: TrainingJob) -> None:
        """Wait for the ssh server, and look at the machine: reach of the stores, disk, Python.

        Raises:
            BootError: it does not answer in time.
            QuarkError: the run cannot work there.
        """
        deadline = time.monotonic() + self._times.answer
        while True:
            run.check_asked()
            try:
                if self._ssh is not None:
                    self._ssh.look(job)
            except OutOfReachError as error:
                if time.monotonic() > deadline:
                    raise BootError(f"{error}; waited {self._times.answer:.0f} s") from error
                time.sleep(self._times.look)
            else:
                return

    def _seen(self, number: int) -> None:
        known = dict.fromkeys((*self._record.instances, number))
        self._record = msgspec.structs.replace(self._record, instances=tuple(known))
        self._note(self._record.state)

    def _note(self, state: str) -> None:
        self._record = msgspec.structs.replace(self._record, state=state)
        write_rental(self._run_dir, self._record)


def destroyed(rental: Rental, run_dir: Path) -> str:
    """Destroy what a label has, note it, and return what to say.

    Raises:
        StillBilledError: there is no proof.
    """
    try:
        numbers = rental.destroy()
    except StillBilledError:
        with contextlib.suppress(OSError):
            record = rental_of(run_dir)
            write_rental(run_dir, msgspec.structs.replace(record, state=UNPROVEN))
        raise
    note_lost(run_dir)
    note_gone(run_dir)
    if not numbers:
        return "nothing is rented"
    spent = rental_of(run_dir).spent(time.time())
    named = ", ".join(str(number) for number in numbers)
    return f"instance {named} is destroyed, as read back; it cost about ${spent:.2f}"


def note_lost(run_dir: Path) -> None:
    """A run that is not known to have ended has lost its machine."""
    record = read_record(run_dir)
    if record is not None and not record.ended:
        write_record(run_dir, msgspec.structs.replace(record, state="lost"))


def terms_of(job: TrainingJob) -> tuple[Remote, RentalTerms]:
    """Return the machine that a job names, and what it is rented for."""
    if job.remote is None or job.remote.terms is None:
        raise UsageError("this job rents nothing", hint="Say where: on vast.")
    return job.remote, job.remote.terms


def rental_of(run_dir: Path) -> RentalRecord:
    """Return what was rented for a run; UsageError: nothing."""
    record = read_rental(run_dir)
    if record is None:
        raise UsageError(f"nothing was rented for run {run_dir.name}")
    return record
