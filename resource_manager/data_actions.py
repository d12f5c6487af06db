"""The part of the ResourceManager that looks at data and starts nothing: discover, inspect, estimate, simulate, offers."""

import random
import re
import shlex
from typing import Any

import msgspec

from resource_manager.data_finding import DataFinder, FoundData, NoGroupsError
from resource_manager.group_choice import choices_of
from resource_manager.job_making import make_job, make_plan
from resource_manager.run_actions import RunActions, Spoken
from resource_manager.training_request import (
    TrainingRequest,
    data_targets,
    path_target,
    request_from,
)
from tools_utilities.console import SCHEMA
from tools_utilities.group_lines import detail_lines, failure_lines, folder_lines, group_lines
from tools_utilities.settings import Settings
from tools_utilities.terminal_picker import choice_lines
from tools_utilities.terminal_text import COMMAND, Line, Span

PLAIN_PATH = re.compile(r"[\w~./:-]*[\w/]")
"""A path that a sentence holds without quotes."""


def next_lines(text: str, num_groups: int) -> list[Line]:
    """Return what can be done with the groups below a path, as commands; none for an odd name."""
    if not text.isprintable() or '"' in text:
        return []
    data = text if PLAIN_PATH.fullmatch(text) else f'"{text}"'
    flags = ["--groups", "1"] if num_groups > 1 else []
    commands = [
        shlex.join(["quark", f"train quark with {data}", *flags]),
        shlex.join(["quark", f"inspect {data}", *flags]),
    ]
    return [
        [Span("      " if at else "next  ", "dim"), Span(command, COMMAND)]
        for at, command in enumerate(commands)
    ]


class DataActions(RunActions):
    """Commands on data."""

    def _finder(self, settings: Settings, request: TrainingRequest) -> DataFinder:
        raise NotImplementedError

    def _find_data(
        self, request: TrainingRequest, settings: Settings, finder: DataFinder
    ) -> FoundData:
        raise NotImplementedError

    def _wanted(self, request: TrainingRequest) -> Any:
        raise NotImplementedError

    def discover(self, reading: Spoken) -> int:
        """Show the shard groups below a path."""
        settings = self._settings_of(reading)
        request = request_from(reading.slots)
        finder = self._finder(settings, request)
        code = 0
        for text in request.data:
            target = path_target(text, settings, finder, allow_root=True)
            found = finder.discover(target)
            data = {"schema": SCHEMA, **msgspec.to_builtins(found)}
            notes = [f"note: {note}" for note in (target.note, *found.notes) if note]
            self.console.note(*notes)
            lines = (
                choice_lines(choices_of(found.groups), width=self.console.result_width)
                if self.console.result_width is not None
                else group_lines(data, human=True)
            )
            more = detail_lines(data) if self.console.about.verbose else []
            self.console.result([*lines, *more], data)
            if found.groups:
                self.console.note(*next_lines(text, len(found.groups)))
            if not found.groups:
                self.console.note(*folder_lines(data, human=True), *failure_lines(data))
                self.console.failure(
                    f"{found.store}/{found.root}: no shard group qualifies",
                    "Look deeper (depth 5) or take smaller groups (--override min_objects=1).",
                )
                code = NoGroupsError.exit_code
        return code

    def inspect(self, reading: Spoken) -> int:
        """Show fields and a few records of a dataset."""
        from resource_manager.record_view import RecordOrder, inspect_target

        settings = self._settings_of(reading)
        request = request_from(reading.slots)
        finder = self._finder(settings, request)
        order = RecordOrder(
            count=reading.slots.get("max_samples") or RecordOrder().count,
            shuffle=bool(reading.slots.get("shuffle")),
            seed=settings.value("seed"),
        )
        wanted = self._wanted(request)
        found = [
            inspect_target(target, finder, self.console, wanted=wanted, order=order)
            for target in data_targets(request, settings, finder)
        ]
        self.console.event({"schema": SCHEMA, "data": found})
        return 0

    def estimate(self, reading: Spoken) -> int:
        """Say what a run would take; starts nothing."""
        from resource_manager.estimating import as_json, estimate, estimate_lines
        from resource_manager.runs import list_runs, out_dir_of

        settings = self._settings_of(reading)
        request = request_from(reading.slots, canonical=reading.canonical)
        data = self._find_data(request, settings, self._finder(settings, request))
        job = make_job(request, settings, data, random.Random())  # noqa: S311 - as in _train
        plan = make_plan(request, settings, data, job)
        found = estimate(job, plan, list_runs(out_dir_of(settings)))
        lines = estimate_lines(found, plan, self.console.result_width)
        self.console.result(lines, as_json(found))
        return 0

    def simulate(self, reading: Spoken) -> int:
        """Play the data of a run through for its machines, links and caches; starts nothing.

        Raises:
            InputNeededError: there is neither data nor its description, or nothing tells a step's time.
        """
        from resource_manager import simulating
        from resource_manager.estimating import measured_runs
        from resource_manager.plan import epoch_steps
        from resource_manager.planned_text import planned_text
        from resource_manager.runs import list_runs, out_dir_of

        settings = self._settings_of(reading)
        request = request_from(reading.slots, canonical=reading.canonical)
        made = simulating.described_data(settings)
        if made is not None:
            job = simulating.described_job(settings)
        else:
            finder = self._finder(settings, request)
            data = self._find_data(request, settings, finder)
            job = make_job(request, settings, data, random.Random())  # noqa: S311 - as in _train
            train = [item for item in data.planned if item.role == "train"]
            steps = epoch_steps(job, train, planned_text(job, data.samples))
            objects = [finder.objects(source) for source in job.train]
            made = simulating.found_data(data, objects, steps and steps * job.batch_size)
        step = simulating.step_of(settings, measured_runs(list_runs(out_dir_of(settings)), job))
        found = simulating.simulate(made, job, settings, step)
        lines = simulating.simulation_lines(found, settings, self.console.result_width)
        self.console.result(lines, simulating.as_json(found))
        return 0

    def offers(self, reading: Spoken) -> int:
        """List machines for rent; rents nothing."""
        from resource_manager.rental.offers_command import offers_command

        return offers_command(reading.slots, self.console, plan_only=self._plans_only(reading))
