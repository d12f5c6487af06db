"""`aws`, `gcp`, `azure`, `k8s`, `sky:INFRA`: the run is SkyPilot's, by its own program on the PATH.

SkyPilot finds the cheapest machine within the price that was said (a dry run, when the plan is made); the
task that is launched is held to that place and that price. A spot machine is a managed job, which
SkyPilot starts again elsewhere in that place; else the machine is a cluster of the run's own, destroyed
at the end. Without the program the task is written, and the command is said.
"""

import shlex
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from brain.ml.run_files import JOB_FILE, LOG_FILE
from brain.ml.training_job import RentalTerms, TrainingJob, load_job
from resource_manager.exporting import scheduled_accelerators
from resource_manager.launch_target import LaunchPlan, LaunchTarget, Machine, RunHandle, RunStatus
from resource_manager.remote_credentials import Sent, expiry_warning, sent_variables
from resource_manager.remote_record import forget_record, try_mirror_lock
from resource_manager.remote_settings import infra_of
from resource_manager.rental.rental_record import (
    RENTING,
    RUNNING,
    RentalRecord,
    read_rental,
    spent_on,
    try_rental_lock,
)
from resource_manager.rental.rented_run import COLLECT_SECONDS, RentedRun
from resource_manager.runs import last_events
from resource_manager.sky.sky_keeper import SkyKeeper, ended, name_of, watched_run
from resource_manager.sky.sky_life import ENDED, LOST, SkyLife, SkyTimes, life_of, still_billed
from resource_manager.sky.sky_mirror import SkyMirror
from resource_manager.sky.sky_offer import SkyOffer
from resource_manager.sky.sky_packing import (
    Packed,
    check_job_there,
    cloud_terms,
    folder_there,
    packed_of,
    stop_file_in,
    write_folder,
)
from resource_manager.sky.sky_plan import cap_of, find_offer, plan_facts, price_of_plan, rate_of
from resource_manager.sky.sky_program import Sky, find_sky
from resource_manager.sky.sky_run import SkyRun, read_once, told_code
from resource_manager.sky.sky_task import SUPERVISOR, TASK, Held
from resource_manager.sky.sky_told import bring_told
from tools_utilities.errors import MachineError, StillBilledError, UsageError

RUN_GOES = "the run goes on without this program, until its end or its cap"
LEAVE_SECONDS = 660.0
"""What its end may take before nobody waits on: SkyPilot asks clouds."""
Tell = Callable[[str], None]


class SkyTarget:
    """SkyPilot for the time of one command; a run that goes on is found again by its run folder."""

    name = "sky"

    def __init__(
        self,
        tell: Tell = lambda _line: None,
        *,
        times: SkyTimes | None = None,
        found: Callable[[], Path | None] = find_sky,
    ) -> None:
        """`times`: limits of the phases; `found`: finds the program."""
        self._tell, self._times, self._found = tell, times or SkyTimes(), found
        self._offer: SkyOffer | None = None
        self._packed: Packed | None = None
        self._runs: list[RentedRun] = []
        self._keepers: list[SkyKeeper | SkyLook] = []

    def for_command(self, tell: Tell, *, may_ask: bool = True) -> "SkyTarget":  # noqa: ARG002
        """As of LaunchTarget."""
        return SkyTarget(tell, times=self._times, found=self._found)

    def plan(self, job: TrainingJob) -> LaunchPlan:
        """As of LaunchTarget; the price is of what a look has found."""
        terms = cloud_terms(job)
        check_job_there(job)
        run = f"{folder_there(job)}/runs/{job.name}"
        return LaunchPlan(
            job=job,
            argv=("python", "-m", SUPERVISOR, f"{run}/{JOB_FILE}"),
            environment={},
            log_path=Path(job.run_dir) / LOG_FILE,
            price=price_of_plan(job, terms, self._offer, _spent(job)),
        )

    def look(self, job: TrainingJob) -> Machine:
        """As of LaunchTarget: what SkyPilot would take; nothing is made by looking."""
        terms, sent = cloud_terms(job), sent_variables(job)
        packed = self._pack(job, terms, sent)
        path = self._found()
        if path is not None:
            sky = Sky(path)
            sky.check_version()
            with tempfile.TemporaryDirectory() as folder:
                self._offer = find_offer(sky, packed, Path(folder) / TASK)
            packed = _held_to(packed, self._offer)
        self._packed = packed
        price = price_of_plan(job, terms, self._offer, _spent(job))
        expiry = expiry_warning(sent, price.max_seconds)
        return Machine(
            accelerators=scheduled_accelerators(terms.gpus or 0),
            facts=plan_facts(packed, self._offer, price, _spent(job)),
            warnings=(expiry,) if expiry else (),
            price=price if price.dollars_per_hour else None,
            starts=path is not None,
        )

    def _pack(self, job: TrainingJob, terms: RentalTerms, sent: Sent) -> Packed:
        remote = job.remote
        where = "" if remote is None else remote.where
        cap = cap_of(job, terms, rate_of(terms, None), _spent(job))
        held = Held(
            infra=infra_of(where),
            price_hour=terms.max_price_hour,
            seconds=max(1.0, cap - COLLECT_SECONDS),
            disk_gb=terms.disk_gb,
            managed=terms.spot,
            python="python3" if remote is None else remote.python,
            folder=folder_there(job),
        )
        return packed_of(job, held, sent, terms, where)

    def written(self, job: TrainingJob, folder: Path) -> str:
        """Write the task and what goes with it into a new folder; returns the command to type."""
        packed = self._packed or self._pack(job, cloud_terms(job), sent_variables(job))
        write_folder(folder, packed, packed.held)
        start = "jobs launch --name" if packed.held.managed else "launch --cluster"
        secrets = "".join(f" --secret {name}" for name in sorted(packed.sent.variables))
        typed = f"sky {start} {name_of(job.name)}{secrets} {TASK}"
        return f"cd {shlex.quote(str(folder))} && {typed}"

    def launch(self, plan: LaunchPlan) -> RunHandle:
        """As of LaunchTarget: returns at once, before anything is made, unless it is detached."""
        path = self._found()
        if self._offer is None or self._packed is None or path is None:
            raise UsageError("sky: nothing was looked at", hint="Run the command again.")
        job, run_dir = plan.job, Path(plan.job.run_dir)
        before = read_rental(run_dir)
        if before is not None and not before.is_over:
            self._tell(ended(self._life(before), run_dir, self._times))
        forget_record(run_dir)
        packed = msgspec.structs.replace(self._packed, job=job)
        terms = packed.terms
        cap = cap_of(job, terms, rate_of(terms, self._offer), _spent(job))
        keeper = SkyKeeper(packed, self._offer, cap, Sky(path), self._times)
        run = RentedRun(keeper, leave_seconds=LEAVE_SECONDS)
        self._runs.append(run)
        self._keepers.append(keeper)
        run.start()
        if job.detach:
            run.await_detached(self._tell)
        return run

    def attach(self, run_dir: Path) -> RunHandle:
        """As of LaunchTarget."""
        _running(run_dir)
        look = SkyLook(self, run_dir)
        self._keepers.append(look)
        return RentedRun(look, looks_on=True).start()

    def status(self, run_dir: Path) -> RunStatus:
        """As of LaunchTarget; of one that has ended, and that nobody watches, nothing is left after it."""
        record = _record_of(run_dir)
        if record.is_over:
            return _as_told(run_dir, record)
        lock = try_rental_lock(run_dir)
        if lock is None:
            return RunStatus(state="running" if record.state == RUNNING else "starting")
        try:
            return self._unwatched(run_dir, record)
        finally:
            lock.close()

    def _unwatched(self, run_dir: Path, record: RentalRecord) -> RunStatus:
        life = self._life(record)
        if record.state != RUNNING:
            self._tell(ended(life, run_dir, self._times))
            why = "its launcher ended before the run began" if record.state == RENTING else ""
            return msgspec.structs.replace(_as_told(run_dir, record), why=why)
        try:
            status = life.stands()
        except MachineError as error:
            return RunStatus(state="unreachable", why=str(error))
        over = status.state in (ENDED, LOST)
        self._bring(run_dir, record, life, over=over)
        if not over:
            return RunStatus(state="running")
        self._tell(ended(life, run_dir, self._times))
        told = _as_told(run_dir, record)
        if told.state == ENDED:
            return told
        code = told_code(run_dir, record.began_at, status.exit_code, None)
        return msgspec.structs.replace(status, exit_code=code)

    def _bring(self, run_dir: Path, record: RentalRecord, life: SkyLife, *, over: bool) -> None:
        lock = try_mirror_lock(run_dir)
        if lock is None:
            return
        mirror = SkyMirror(run_dir, log_base=record.log_base)
        with lock:
            read_once(self._sky(), life, mirror)
            if over and _as_told(run_dir, record).state == LOST:
                # Nothing that came says how it ended; its machine may be gone for long.
                mirror.begin()
                bring_told(load_job(run_dir / JOB_FILE), record.began_at, mirror)

    def collect(self, run_dir: Path) -> None:
        """As of LaunchTarget: its checkpoints are in the store."""

    def logs(self, run_dir: Path) -> Path:
        """As of LaunchTarget."""
        status = self.status(run_dir)
        if status.state == "unreachable":
            self._tell(f"{status.why}; this is the log as far as it is here")
        return run_dir / LOG_FILE

    def stop(self, run_dir: Path) -> None:
        """As of LaunchTarget; `status` sees to its machines when the run has ended."""
        _running(run_dir)
        self._life(_record_of(run_dir)).stop(stop_file_in(run_dir))

    def remove(self, run_dir: Path) -> None:
        """As of LaunchTarget: nothing of it is left but machines, if there are any."""
        record = _record_of(run_dir)
        if not record.is_over:
            self._tell(ended(self._life(record), run_dir, self._times))

    def verify_gone(self, run_dir: Path) -> tuple[str, ...]:
        """As of LaunchTarget: what SkyPilot lists, after it was asked to end it."""
        record = _record_of(run_dir)
        return () if record.is_over else self._life(record).there()

    def close(self) -> None:
        """As of LaunchTarget; what no run is on yet is destroyed first."""
        try:
            for run in self._runs:
                run.leave()
        finally:
            for one in self._keepers:
                one.leave()
            self._runs.clear()
            self._keepers.clear()

    def end(self, run_dir: Path) -> str:
        """Destroy what a run has that nobody else watches; returns what to say."""
        lock = try_rental_lock(run_dir)
        if lock is None:
            return ""
        try:
            record = _record_of(run_dir)
            return "" if record.is_over else ended(self._life(record), run_dir, self._times)
        finally:
            lock.close()

    def handle(self, run_dir: Path) -> SkyRun:
        """Return a handle on a run that was launched before."""
        record = _record_of(run_dir)
        ends_at = record.began_at + record.cap_seconds - COLLECT_SECONDS
        return watched_run(self._sky(), self._life(record), run_dir, record, ends_at)

    def unproven(self, run_dir: Path) -> StillBilledError:
        """Return what to say of machines whose end nobody has waited for."""
        return still_billed(self._life(_record_of(run_dir)), "its end was not seen in time")

    def _life(self, record: RentalRecord) -> SkyLife:
        return life_of(self._sky(), record.label, self._times, managed=record.managed)

    def _sky(self) -> Sky:
        path = self._found()
        if path is None:
            raise MachineError(
                "sky is not on the PATH, and the run is SkyPilot's",
                hint="Put SkyPilot's environment on the PATH; `sky status` and `sky jobs queue` show it.",
            )
        return Sky(path)


class SkyLook:
    """Looks on at a run of another process, and sees to its machines when nobody else does."""

    def __init__(self, target: SkyTarget, run_dir: Path) -> None:
        self._target, self._run_dir = target, run_dir
        self._handle: SkyRun | None = None

    def begin(self, _run: RentedRun) -> RunHandle:
        """As of Keeper."""
        self._handle = self._target.handle(self._run_dir)
        return self._handle

    def leave(self) -> None:
        """End what reads the run's output."""
        if self._handle is not None:
            self._handle.leave()

    def is_gone(self) -> bool:
        """As of Keeper; who watches over the run sees to that."""
        return False

    def again(self, _run: RentedRun) -> RunHandle:
        """As of Keeper."""
        raise UsageError(f"{self._run_dir.name}: another process watches over it")

    def cancel(self) -> None:
        """As of Keeper."""

    def seconds_left(self) -> float:
        """As of Keeper; who looks on ends nothing."""
        return float("inf")

    def unproven(self) -> StillBilledError:
        """As of Keeper."""
        return self._target.unproven(self._run_dir)

    def end(self) -> str:
        """As of Keeper."""
        return self._target.end(self._run_dir)


def _held_to(packed: Packed, offer: SkyOffer) -> Packed:
    """Return a run held to the place that was found, and to its price.

    A managed job is moved by SkyPilot itself later: it is held to the price that was said.
    """
    terms = packed.terms
    price = terms.max_price_hour if packed.held.managed else offer.most_hour(terms.max_price_hour)
    cap = cap_of(packed.job, terms, rate_of(terms, offer), _spent(packed.job))
    held = msgspec.structs.replace(
        packed.held, infra=offer.infra, price_hour=price, seconds=max(1.0, cap - COLLECT_SECONDS)
    )
    return msgspec.structs.replace(packed, held=held)


def _as_told(run_dir: Path, record: RentalRecord) -> RunStatus:
    last = next(iter(last_events(run_dir)[-1:]), {})
    if last.get("event") in {"end", "error"} and last.get("time", 0.0) >= record.began_at:
        return RunStatus(state=ENDED, exit_code=int(last.get("exit_code") or 0))
    return RunStatus(state=LOST)


def _spent(job: TrainingJob) -> float:
    return spent_on(Path(job.run_dir), time.time())


def _record_of(run_dir: Path) -> RentalRecord:
    record = read_rental(run_dir)
    if record is None:
        raise UsageError(f"SkyPilot knows nothing of run {run_dir.name}")
    return record


def _running(run_dir: Path) -> None:
    record = _record_of(run_dir)
    if record.state != RUNNING:
        raise UsageError(
            f"{run_dir.name}: no run is on its machines ({record.state})",
            hint="Ctrl-C where it is launched ends that; `quark list` shows how it stands.",
        )


LAUNCH_TARGET: LaunchTarget = SkyTarget()
