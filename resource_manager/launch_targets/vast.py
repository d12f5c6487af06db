"""`vast`: the run is on a machine that is rented for it at vast.ai, and destroyed with it.

The cheapest offer that fits is looked for when the plan is made, and that one (or none) is rented when it
is confirmed. From then on it is the ssh target's machine; what is added here is the renting, the caps
and the end: `rental/renting.py` makes and destroys, `rental/rented_run.py` watches.
"""

import time
from collections.abc import Callable
from pathlib import Path

from brain.ml.run_files import JOB_FILE, LOG_FILE
from brain.ml.training_job import TrainingJob
from resource_manager.accelerators import Accelerators
from resource_manager.launch_target import LaunchPlan, LaunchTarget, Machine, RunHandle, RunStatus
from resource_manager.launch_targets.ssh import RUNS_FOLDER, SshTarget, wheel_for
from resource_manager.remote_credentials import expiry_warning, sent_variables
from resource_manager.remote_record import ENDED, read_record
from resource_manager.remote_shipping import check_shipping
from resource_manager.rental.cargo import JobCargo, terms_of
from resource_manager.rental.launch_keeper import LaunchKeeper
from resource_manager.rental.machine_keeper import destroyed, lost_line, note_lost, rental_of
from resource_manager.rental.offers import Offer  # noqa: TC001 - the style here: plain imports
from resource_manager.rental.offers_command import offers_for, open_api
from resource_manager.rental.rental_api import RentalApi
from resource_manager.rental.rental_http import account_from
from resource_manager.rental.rental_record import (
    RENTING,
    RUNNING,
    RentalRecord,
    note_gone,
    read_rental,
    spent_on,
    try_rental_lock,
)
from resource_manager.rental.rental_terms import check_disk, price_lines, price_of, wish_of_terms
from resource_manager.rental.rented_run import RentedRun
from resource_manager.rental.renting import Rental, Times, still_billed
from tools_utilities.errors import MachineError, StillBilledError, UsageError
from tools_utilities.process_environment import environment_now
from tools_utilities.run_words import said_run
from tools_utilities.terminal_text import human_bytes

END_LINE = "all is brought into the run folder here, then the machine is destroyed"
Tell = Callable[[str], None]


class VastTarget:
    """Renting for the time of one command; a run that goes on is found again by its run folder."""

    name = "vast"

    def __init__(
        self,
        tell: Tell = lambda _line: None,
        *,
        may_ask: bool = False,
        times: Times | None = None,
        opened: Callable[[], RentalApi] | None = None,
    ) -> None:
        """`times`: limits of the phases; `opened`: opens the provider, by default the environment's."""
        self._tell = tell
        self._may_ask = may_ask
        self._times = times or Times()
        self._opened = opened or (lambda: open_api(account_from(environment_now())))
        self._offer: Offer | None = None
        self._runs: list[RentedRun] = []
        self._ssh = SshTarget(tell)

    def for_command(self, tell: Tell, *, may_ask: bool = True) -> "VastTarget":
        """As of LaunchTarget."""
        return VastTarget(tell, may_ask=may_ask, times=self._times, opened=self._opened)

    def plan(self, job: TrainingJob) -> LaunchPlan:
        """As of LaunchTarget; the price is that of the offer which a look has found."""
        remote, terms = terms_of(job)
        check_shipping(job)
        check_disk(job, terms)
        run = f"{remote.folder}/{RUNS_FOLDER}/{job.name}"
        return LaunchPlan(
            job=job,
            argv=(remote.python, "-m", "brain.ml.train", f"{run}/{JOB_FILE}"),
            environment={},
            log_path=Path(job.run_dir) / LOG_FILE,
            price=price_of(job, terms, self._offer, spent_on(Path(job.run_dir), time.time())),
        )

    def look(self, job: TrainingJob) -> Machine:
        """As of LaunchTarget: the cheapest offer that fits; nothing is rented by looking."""
        _, terms = terms_of(job)
        sent = sent_variables(job)
        wheel_bytes = len(wheel_for(job).data)
        api, wish = self._opened(), wish_of_terms(terms)
        found = offers_for(api, wish)
        self._offer = offer = found.offers[0]
        spent = spent_on(Path(job.run_dir), time.time())
        price = price_of(job, terms, offer, spent)
        warnings = []
        expiry = expiry_warning(sent, price.max_seconds)
        warnings += [expiry] if expiry else []
        if offer.hours is not None and offer.hours * 3600 < (price.max_seconds or 0.0):
            warnings.append(f"offer {offer.id} ends in {offer.hours:.0f} h, before the cap")
        names = [*sorted(sent.variables)]
        names += [f"long-lived: {', '.join(sent.long_lived)}"] if sent.long_lived else []
        return Machine(
            accelerators=Accelerators(cuda=True, cards=offer.gpus, mps=False),
            facts=(
                *price_lines(price, offer, time.strftime("%H:%M:%S"), len(found.offers), spent),
                ("sends", " · ".join([f"Quark ({human_bytes(wheel_bytes)}) and the job", *names])),
                ("if lost", lost_line(terms)),
                ("at the end", END_LINE),
            ),
            warnings=tuple(warnings),
            price=price,
        )

    def launch(self, plan: LaunchPlan) -> RunHandle:
        """As of LaunchTarget: returns at once, before anything is rented, unless it is detached."""
        if self._offer is None:
            raise UsageError("vast: nothing was looked at", hint="Run the command again.")
        run_dir = Path(plan.job.run_dir)
        self._end_earlier(run_dir)
        keeper = LaunchKeeper(JobCargo(plan.job), self._offer, self._opened(), self._times)
        run = RentedRun(keeper)
        self._runs.append(run)
        run.start()
        if plan.job.detach:
            run.await_detached(self._tell)
        return run

    def attach(self, run_dir: Path) -> RunHandle:
        """As of LaunchTarget."""
        self._running(run_dir)
        run = RentedRun(LookKeeper(self, run_dir, self._ssh), looks_on=True)
        return run.start()

    def status(self, run_dir: Path) -> RunStatus:
        """As of LaunchTarget; one that has ended, and that nobody watches, is brought and destroyed."""
        rental, record = rental_of(run_dir), read_record(run_dir)
        if rental.is_over:
            known = record is not None and record.ended
            return RunStatus(
                state=record.state if record is not None and known else "lost",
                exit_code=record.exit_code if record is not None else None,
            )
        lock = try_rental_lock(run_dir)
        if lock is None:
            running = rental.state == RUNNING and record is not None
            return self._ssh.status(run_dir) if running else RunStatus(state="starting")
        try:
            return self._unwatched(run_dir, rental)
        finally:
            lock.close()

    def _unwatched(self, run_dir: Path, rental: RentalRecord) -> RunStatus:
        if rental.state != RUNNING or read_record(run_dir) is None:
            self._end_of(run_dir, rental, self._tell)
            made = rental.state == RENTING
            why = "its launcher ended while the machine was being made" if made else ""
            return RunStatus(state="lost", why=why)
        status = self._ssh.status(run_dir)
        if status.state == "unreachable" and not self.verify_gone(run_dir):
            note_lost(run_dir)
            note_gone(run_dir)
            return RunStatus(state="lost", why="its machine is gone")
        if status.state in ENDED:
            self._ssh.collect(run_dir)
            self._end_of(run_dir, rental, self._tell)
        return status

    def collect(self, run_dir: Path) -> None:
        """As of LaunchTarget; `status` has done it when the machine was destroyed."""
        if not rental_of(run_dir).is_over:
            self._ssh.collect(run_dir)

    def logs(self, run_dir: Path) -> Path:
        """As of LaunchTarget."""
        status = self.status(run_dir)
        if status.state == "unreachable":
            self._tell(f"{status.why}; this is the log as far as it is here")
        return run_dir / LOG_FILE

    def stop(self, run_dir: Path) -> None:
        """As of LaunchTarget; `status` destroys the machine when the run has saved."""
        self._running(run_dir)
        self._ssh.stop(run_dir)

    def remove(self, run_dir: Path) -> None:
        """As of LaunchTarget: nothing of it is left but a machine, if there is one."""
        self._end_earlier(run_dir)

    def verify_gone(self, run_dir: Path) -> tuple[str, ...]:
        """As of LaunchTarget: what the provider lists under the run's label."""
        label = rental_of(run_dir).label
        mine = [one for one in self._opened().instances() if one.label == label]
        return tuple(f"instance {one.id} on vast" for one in mine)

    def close(self) -> None:
        """As of LaunchTarget; a machine on which no run is yet is destroyed first."""
        try:
            for run in self._runs:
                run.leave()
        finally:
            self._runs.clear()
            self._ssh.close()

    def _end_earlier(self, run_dir: Path) -> None:
        """Destroy what an earlier launch of a run has left.

        Raises:
            UsageError: it has left nothing, it goes on: another process sees to it.
        """
        before = read_rental(run_dir)
        if before is not None and not before.is_over and not self.end(run_dir, self._tell):
            raise UsageError(
                f"{run_dir.name}: another process watches over its machine",
                hint=f"Ctrl-C where it was started, or: quark stop {said_run(run_dir.name)}",
            )

    def end(self, run_dir: Path, tell: Tell) -> bool:
        """Destroy the machine of a run that nobody else watches; False: somebody does, it is theirs."""
        lock = try_rental_lock(run_dir)
        if lock is None:
            return False
        try:
            rental = rental_of(run_dir)
            if not rental.is_over:
                self._end_of(run_dir, rental, tell)
        finally:
            lock.close()
        return True

    def _end_of(self, run_dir: Path, rental: RentalRecord, tell: Tell) -> None:
        tell(destroyed(Rental(self._opened(), rental.label, times=self._times), run_dir))

    def _running(self, run_dir: Path) -> None:
        rental = rental_of(run_dir)
        if rental.state != RUNNING:
            raise UsageError(
                f"{run_dir.name}: no run is on its machine ({rental.state})",
                hint="Ctrl-C where it is being made ends that; `quark list` shows how it stands.",
            )


class LookKeeper:
    """Looks on at a run of another process, and sees to its machine when nobody else does."""

    def __init__(self, target: VastTarget, run_dir: Path, ssh: SshTarget) -> None:
        self._target, self._run_dir, self._ssh = target, run_dir, ssh
        self._launch = ""
        """The launch that is looked at: its folder there."""

    def begin(self, _run: RentedRun) -> RunHandle:
        """As of Keeper."""
        record = read_record(self._run_dir)
        self._launch = "" if record is None else record.run
        return self._ssh.attach(self._run_dir)

    def is_gone(self) -> bool:
        """As of Keeper: who watches over the run has lost its machine, and has another or gives up."""
        record, rental = read_record(self._run_dir), read_rental(self._run_dir)
        if record is None or rental is None:
            return False
        if record.run != self._launch:
            return record.state != "starting"
        if record.state != "lost" or record.collected or not rental.is_over:
            return False
        # Whoever holds the lock is looking for the next machine.
        lock = try_rental_lock(self._run_dir)
        if lock is not None:
            lock.close()
        return lock is not None

    def again(self, run: RentedRun) -> RunHandle:
        """As of Keeper."""
        record = read_record(self._run_dir)
        if record is None or record.run == self._launch:
            raise MachineError(
                f"{self._run_dir.name}: its machine was lost, and it goes on on no other",
                hint=f"Its checkpoints are kept: quark resume {said_run(self._run_dir.name)}",
            )
        run.tell("its machine was lost; it goes on on another one")
        return self.begin(run)

    def cancel(self) -> None:
        """As of Keeper."""

    def seconds_left(self) -> float:
        """As of Keeper; who looks on ends nothing."""
        return float("inf")

    def unproven(self) -> StillBilledError:
        """As of Keeper; who looks on never waits for the end."""
        return still_billed((), "", rental_of(self._run_dir).label, "vast")

    def end(self) -> str:
        """As of Keeper."""
        said: list[str] = []
        self._target.end(self._run_dir, said.append)
        return " ".join(said)


LAUNCH_TARGET: LaunchTarget = VastTarget()
