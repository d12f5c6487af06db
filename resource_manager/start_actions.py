"""The part of the ResourceManager that starts runs: the plan shown, asked about, launched and watched."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from brain.ml.training_job import TrainingJob
from resource_manager.accelerators import Accelerators, device_problem
from resource_manager.data_actions import DataActions
from resource_manager.launch_places import target_of, where_of
from resource_manager.launch_target import LaunchTarget, Machine, WritesTasks
from resource_manager.launching import start_run
from resource_manager.plan import Plan, with_groups
from resource_manager.plan_screen import plan_lines
from resource_manager.remote_settings import TermsNeededError
from resource_manager.training_request import request_from
from tools_utilities.console import SCHEMA
from tools_utilities.errors import InputNeededError, UsageError
from tools_utilities.project_file import PROJECT_FILE
from tools_utilities.settings import Settings
from tools_utilities.terminal_text import Line, with_commands

T = TypeVar("T")
SENDING = ("where", "remote_env")
"""Settings that decide who gets credentials."""


def refuse_unsaid_place(job: TrainingJob, plan: Plan) -> None:
    """Refuse to send credentials to a machine that the project alone names, where nobody is asked.

    A quark.yaml may be a stranger's; on a terminal the plan shows what is sent, and is asked about.

    Raises:
        InputNeededError: naming the setting, and how to say it.
    """
    if job.remote is None:
        return
    for setting in plan.settings:
        if setting.name in SENDING and setting.why == PROJECT_FILE:
            said = setting.value if isinstance(setting.value, str) else ",".join(setting.value)
            raise InputNeededError(
                f"{setting.name}={said} stands in {PROJECT_FILE} alone, and what this machine's stores are read"
                " with would be sent",
                hint=f"Say it yourself: --override {setting.name}={said}, or QUARK_{setting.name.upper()}.",
            )


def _cost(machine: Machine, plan: Plan) -> list[tuple[str, str]]:
    if machine.price is None:
        return []
    from resource_manager.rental.rental_terms import cost_line

    return [cost_line(machine.price, plan.earlier_seconds)]


class StartActions(DataActions):
    """From a plan to a run, on this machine or another."""

    _target: LaunchTarget | None
    """Given from outside; None: by where the job goes."""
    _accelerators: Callable[[], Accelerators]
    _group_flags: set[str]
    _targets: dict[str, LaunchTarget]
    _machines: dict[str, Machine]

    def _settled(
        self, make: Callable[[Settings], T], settings: Settings, canonical: str | None
    ) -> tuple[T, Settings, str | None]:
        """Return what `make` makes of the settings; a price that nobody said is asked for.

        What is typed is in the settings and in the command that come back.
        """
        try:
            return make(settings), settings, canonical
        except TermsNeededError:
            if not self.console.can_ask:
                raise
        from resource_manager.rental.terms_dialogue import settle_terms

        made, settings, words = settle_terms(make, settings, self.console)
        return made, settings, None if canonical is None else canonical + words

    def _start(self, job: TrainingJob, plan: Plan, flag: str, *, plan_only: bool) -> int:
        """Show the plan, ask, launch and watch; `flag`: what a command needs to find the run."""
        plan = with_groups(plan, self._options.groups, self._group_flags)
        plan_only = plan_only or self._options.plan_only
        plan = self._checked(job, plan, plan_only=plan_only)
        if plan_only and self._options.plan_file is not None:
            self._save_plan(self._options.plan_file, job, plan)
        self._show_plan(plan, plan_only=plan_only)
        if plan_only:
            return 0
        if not self._confirmed(f"Start {job.name}?", job, plan):
            return UsageError.exit_code
        return self._launched(job, plan, flag)

    def _checked(self, job: TrainingJob, plan: Plan, *, plan_only: bool) -> Plan:
        """Refuse a run that cannot be launched as it is; a plan that is only shown warns of it."""
        machine = self._machine(job)
        problem = device_problem(job, machine.accelerators, plan.canonical, plan.flags)
        plan = msgspec.structs.replace(
            plan,
            machine=(*machine.facts, *_cost(machine, plan)),
            # Once: a saved plan has them already.
            warnings=tuple(dict.fromkeys((*plan.warnings, *machine.warnings))),
        )
        try:
            self._launch_target(job).plan(job)
        except UsageError as error:
            problem = problem or error
        if problem is None:
            return plan
        if not plan_only:
            raise problem
        warning = f"{problem}; as it is, this machine refuses it"
        return msgspec.structs.replace(plan, warnings=(*plan.warnings, warning))

    def _show_plan(self, plan: Plan, *, plan_only: bool) -> None:
        data = {"schema": SCHEMA, "event": "plan", "plan": msgspec.to_builtins(plan)}
        if plan_only:
            self.console.result(plan_lines(plan, width=self.console.result_width), data)
        else:
            self.console.note(*plan_lines(plan, width=self.console.note_width))
            self.console.event(data)

    def _save_plan(self, path: Path, job: TrainingJob, plan: Plan) -> None:
        from resource_manager.saved_plan import save_plan

        finder = self._finder(self._settings_for({}, {}), request_from({}))
        save_plan(path, job, plan, finder.objects)
        command = f"quark --from-plan {shlex.quote(str(path))}"
        self.console.note(with_commands(f"saved: {path}; carry it out with: {command}"))

    def _confirmed(
        self, question: str, job: TrainingJob | None = None, plan: Plan | None = None
    ) -> bool:
        if job is not None and plan is not None and not self._asks:
            refuse_unsaid_place(job, plan)
        if self.console.about.yes:
            return True
        if not self.console.can_ask:
            # The command itself is the confirmation, but not of spending money.
            if job is not None and job.remote is not None and job.remote.terms is not None:
                raise InputNeededError(
                    f"this would start {job.name} on {where_of(job)}, which costs money",
                    hint="Add --yes to do it; --plan shows what it comes to.",
                )
            return True

        def why(answer: str) -> list[Line] | None:
            from resource_manager.provenance import why_question

            if job is None or plan is None:
                return None
            return why_question(answer, job, plan, self.console.note_width)

        if self.console.confirm(question, explain=why):
            return True
        self.console.note("Nothing was started.")
        return False

    @property
    def _asks(self) -> bool:
        return self.console.can_ask and not self.console.about.yes

    def _launched(self, job: TrainingJob, plan: Plan | None, flag: str) -> int:
        target = self._launch_target(job)
        try:
            if isinstance(target, WritesTasks) and not self._machine(job).starts:
                return self._written(job, target)
            return start_run(job, plan, target, self.console, flag=flag, left=self.note_left)
        finally:
            target.close()
            self._targets.clear()

    def _written(self, job: TrainingJob, target: WritesTasks) -> int:
        """Write what the program is given that would start the run; returns the exit code of its absence."""
        from resource_manager.exporting import check_new

        folder = Path(f"{job.name}-task").absolute()
        check_new(folder)
        command = target.written(job, folder)
        where = where_of(job)
        self.console.result(
            [f"nothing is started on {where}; {folder} holds it", with_commands(f"next: {command}")],
            {"schema": SCHEMA, "event": "task", "run": job.name, "folder": str(folder), "next": command},
        )  # fmt: skip
        return InputNeededError.exit_code

    def _launch_target(self, job: TrainingJob) -> LaunchTarget:
        """Return the target of this command; it is kept, since it may hold a connection."""
        if self._target is not None:
            return self._target
        where = where_of(job)
        if where not in self._targets:
            self._targets[where] = target_of(where).for_command(self.console.note)
        return self._targets[where]

    def _accelerators_of(self, job: TrainingJob) -> Callable[[], Accelerators]:
        return lambda: self._machine(job).accelerators

    def _machine(self, job: TrainingJob) -> Machine:
        """Return what the job's machine is; another one is looked at once a command.

        Raises:
            QuarkError: the job cannot run there.
        """
        if job.remote is None:
            return Machine(accelerators=self._accelerators())
        target = self._launch_target(job)
        where = where_of(job)
        if where not in self._machines:  # within one command nothing changes there
            target.plan(job)  # what is refused without asking anybody comes first
            with self.console.working(f"looking at {where}"):
                self._machines[where] = target.look(job)
        return self._machines[where]
