"""ResourceManager: from a command to a running job. Finds, plans, asks, starts and watches.

The path of a training run is `run_training_job`, top to bottom. Nothing is written, and no folder
made, before the plan is confirmed. Imports no torch: a run is a process of its own.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from brain.ml.model_name import is_hf
from brain.ml.training_job import TrainingJob
from resource_manager.accelerators import Accelerators, accelerators_here
from resource_manager.data_finding import DataFinder, FoundData, Limits, NoGroupsError
from resource_manager.evaluating import (
    evaluated_run,
    evaluation_data,
    evaluation_job,
    evaluation_settings,
    measured_by,
)
from resource_manager.group_choice import Chooser, choices_of, picked_flag, several_groups_error
from resource_manager.job_making import check_cache_folder, make_job, make_plan
from resource_manager.job_settings import changed_fields, probe_rules
from resource_manager.launch_target import LaunchTarget, Machine
from resource_manager.next_commands import runs_flag
from resource_manager.relative_values import make_absolute
from resource_manager.run_actions import Spoken
from resource_manager.runs import RunInfo
from resource_manager.start_actions import StartActions
from resource_manager.training_request import (
    REQUEST_SLOTS,
    TrainingRequest,
    data_targets,
    request_from,
    val_target,
)
from tools_utilities.console import Console
from tools_utilities.errors import ChangedError, UsageError
from tools_utilities.group_lines import failure_lines, folder_lines
from tools_utilities.scripts.dataset_discovery import ShardGroup
from tools_utilities.setting_keys import KEYS_BY_NAME
from tools_utilities.settings import Settings, load_settings
from tools_utilities.terminal_picker import choice_lines


class CommandOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line adds to a sentence."""

    groups: str | None = None
    """`--groups`; wins over what the sentence says."""
    plan_only: bool = False
    plan_file: Path | None = None
    """`--out`: where a plan that is only shown is kept."""
    command: str = "quark"
    """The command as typed, for hints that are ready to run."""
    notes: tuple[str, ...] = ()
    """What the plan records of how the sentence was read (ignored words)."""


class ResourceManager(StartActions):
    """Carries commands out; constructs without arguments.

    `settings` are read anew for every command unless given. `choose_shard_groups` chooses among
    several groups; by default the person at the terminal.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        choose_shard_groups: Chooser | None = None,
        console: Console | None = None,
        *,
        start_dir: Path | None = None,
        target: LaunchTarget | None = None,
        options: CommandOptions | None = None,
        accelerators: Callable[[], Accelerators] = accelerators_here,
    ) -> None:
        self._settings = settings
        self._choose = choose_shard_groups
        self.console = console or Console()
        self._start_dir = start_dir or (settings.start_dir if settings else Path.cwd())
        self._target = target
        self._options = options or CommandOptions()
        self._accelerators = accelerators
        self._targets: dict[str, LaunchTarget] = {}
        self._machines: dict[str, Machine] = {}
        self._group_flags: set[str] = set()
        """`--groups` flags that make the choices that were made by hand."""

    def run_training_job(
        self,
        task: str = "train",
        *,
        dataset_local_path: str | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> int:
        """Train on the data below `dataset_local_path`; returns the run's exit code.

        `overrides` holds settings (text or typed) and slots of the language such as `model`.
        """
        given = dict(overrides or {})
        slots = {name: given.pop(name) for name in REQUEST_SLOTS & given.keys()}
        if dataset_local_path is not None:
            slots["data"] = [dataset_local_path]
        return self._train(request_from(slots, task=task), self._settings_for({}, given))

    def train(self, reading: Spoken) -> int:
        """Carry out a train sentence."""
        request = request_from(
            reading.slots, canonical=reading.canonical, notes=self._options.notes
        )
        return self._train(request, self._settings_of(reading))

    def _train(self, request: TrainingRequest, settings: Settings) -> int:
        if request.task not in ("train", "finetune"):
            raise UsageError(f"task {request.task}: only train and finetune start a run")
        # The folder of an hf: model holds the weights to start from.
        if request.task == "finetune" and (request.init_from or not is_hf(request.model)):
            request, settings = self._with_weights(request, settings)
        data = self._find_data(request, settings, self._finder(settings, request))
        job, request, settings = self._made(request, settings, data)
        check_cache_folder(settings, job)
        plan = make_plan(request, settings, data, job, accelerators=self._accelerators_of(job))
        return self._start(job, plan, runs_flag(settings), plan_only=request.plan_only)

    def _made(
        self, request: TrainingRequest, settings: Settings, data: FoundData
    ) -> tuple[TrainingJob, TrainingRequest, Settings]:
        """Return the job, and the request and the settings with what was asked for on the way."""

        def make(told: Settings) -> TrainingJob:
            # Not a fixed seed: two launches must not choose one name.
            return make_job(request, told, data, random.Random())  # noqa: S311

        job, settings, canonical = self._settled(make, settings, request.canonical)
        return job, msgspec.structs.replace(request, canonical=canonical), settings

    def _with_weights(
        self, request: TrainingRequest, settings: Settings
    ) -> tuple[TrainingRequest, Settings]:
        from resource_manager.starting_weights import fitted, starting_weights

        weights = starting_weights(request.init_from, settings, request.model, self.console.note)
        note = f"starts from the weights of {weights.said}"
        request = msgspec.structs.replace(
            request, init_from=weights.folder, notes=(*request.notes, note)
        )
        return request, fitted(settings, weights)

    def run_saved_plan(self, path: Path) -> int:
        """Carry out a plan exactly as it was saved.

        Raises:
            ChangedError: the file was edited, or the data or the weights are not what they were.
        """
        from resource_manager.saved_plan import check_unchanged, load_plan

        saved = load_plan(path)
        finder = self._finder(self._settings_for({}, {}), request_from({}))
        flag = runs_flag(self._settings_for({}, {}), Path(saved.job.run_dir).parent)
        check_unchanged(saved, finder.objects, flag)
        return self._start(saved.job, saved.plan, flag, plan_only=False)

    def finetune(self, reading: Spoken) -> int:
        """Train on from the weights of a checkpoint."""
        request = request_from(
            reading.slots, task="finetune", canonical=reading.canonical, notes=self._options.notes
        )
        return self._train(request, self._settings_of(reading))

    def again(self, reading: Spoken) -> int:
        """Repeat a run, with what the sentence changes."""
        from resource_manager import repeating

        told = self._settings_of(reading, keep_relative=True)
        info, before = repeating.earlier_run(told, reading.slots.get("run"))
        settings = repeating.repeated_settings(told, before, info)
        if before.evaluate_only:
            return self._evaluate(reading, settings, measured_by(before, reading.slots), before)
        request, data = self._repeated(reading, settings, info, before)
        job, request, settings = self._made(request, settings, data)
        check_cache_folder(settings, job)
        plan = msgspec.structs.replace(
            make_plan(request, settings, data, job, accelerators=self._accelerators_of(job)),
            differences=changed_fields(job, before),
        )
        return self._start(job, plan, runs_flag(settings), plan_only=request.plan_only)

    def _repeated(
        self, reading: Spoken, settings: Settings, info: RunInfo, before: TrainingJob
    ) -> tuple[TrainingRequest, FoundData]:
        """Return what a repeated run is asked for, and its data: its own, unless other is named."""
        from resource_manager import repeating

        request = request_from(
            reading.slots, canonical=reading.canonical,
            notes=(*self._options.notes, f"repeats {info.name}"),
        )  # fmt: skip
        request = repeating.repeated_request(request, reading.slots, before)
        finder = self._finder(settings, request)
        if request.data or settings.value("train_prefix") is not None:
            return request, self._find_data(request, settings, finder)
        return request, repeating.repeated_data(request, settings, finder, before)

    def export(self, reading: Spoken) -> int:
        """Write a folder from which a scheduler starts a run: a new one, or an earlier one again."""
        from resource_manager import exporting, repeating

        target = exporting.format_of(reading.slots.get("format"))
        out = reading.slots.get("out")
        if out is not None:
            exporting.check_new(Path(out).absolute())
        run = reading.slots.get("run")
        settings, asked = exporting.without_rented(
            self._settings_of(reading, keep_relative=run is not None)
        )
        if run is not None:
            info, before = repeating.earlier_run(settings, run)
            settings = repeating.repeated_settings(settings, before, info)
            request, data = self._repeated(reading, settings, info, before)
        else:
            request = request_from(reading.slots, canonical=reading.canonical)
            data = self._find_data(request, settings, self._finder(settings, request))
        job, request, settings = self._made(request, settings, data)
        asked = msgspec.structs.replace(asked, gpus=exporting.asked_gpus(job, settings))
        given = exporting.scheduled_accelerators(asked.gpus)
        plan = make_plan(request, settings, data, job, accelerators=lambda: given)
        plan = msgspec.structs.replace(plan, where=target.name)
        made = exporting.exported(job, target, asked)
        plan_only = request.plan_only or self._options.plan_only
        self._show_plan(plan, plan_only=plan_only)
        if not plan_only:
            folder = Path(out or f"{job.name}-{target.name}").absolute()
            exporting.write_export(folder, target, made)
            exporting.say_exported(self.console, folder, target, made)
        return 0

    def resume(self, reading: Spoken) -> int:
        """Continue a run from its newest checkpoint, with what the sentence changes."""
        from resource_manager.resuming import goes_on_from, resumed_plan
        from resource_manager.run_commands import resumed_job

        (job, info), settings, canonical = self._settled(
            lambda told: resumed_job(told, reading.slots, self.console.note),
            self._settings_of(reading, keep_relative=True),
            reading.canonical,
        )
        plan_only = bool(reading.slots.get("plan_only")) or self._options.plan_only
        here = self._machine(job).accelerators
        plan = resumed_plan(job, info, settings, here, canonical)
        if plan is None and job.remote is not None and job.remote.terms is not None:
            raise ChangedError(
                f"{job.name}: its plan cannot be read, and what it would cost cannot be shown",
                hint="Start it anew: quark again …",
            )
        if plan is not None:
            self._show_plan(self._checked(job, plan, plan_only=plan_only), plan_only=plan_only)
        else:
            self.console.note(f"{job.name}: goes on {goes_on_from(job, info)}")
        if plan_only:
            return 0
        if not self._confirmed(f"Resume {job.name}?", *((job, plan) if plan else ())):
            return UsageError.exit_code
        return self._launched(job, None, runs_flag(settings))

    def evaluate(self, reading: Spoken) -> int:
        """Measure the loss of a run's newest checkpoint on data; trains nothing."""
        told = self._settings_of(reading, keep_relative=True)
        measured = evaluated_run(told, reading.slots, self.console.note)
        return self._evaluate(reading, evaluation_settings(told, *measured), measured)

    def _evaluate(
        self,
        reading: Spoken,
        settings: Settings,
        measured: tuple[RunInfo, TrainingJob],
        earlier: TrainingJob | None = None,
    ) -> int:
        """Measure a run on the data that is named, else on that of an `earlier` evaluation."""
        info, before = measured
        note = f"measures {info.name} as saved at step {info.checkpoint_step}"
        request = request_from(
            {**reading.slots, "model": before.model}, task="evaluate",
            canonical=reading.canonical, notes=(*self._options.notes, note),
        )  # fmt: skip
        finder = self._finder(settings, request)
        data = evaluation_data(request, settings, finder, self._wanted(request), earlier)
        made, request, settings = self._made(request, settings, data)
        job = evaluation_job(made, info)
        check_cache_folder(settings, job)
        plan = make_plan(request, settings, data, job, accelerators=self._accelerators_of(job))
        plan = msgspec.structs.replace(plan, differences=(), earlier_seconds=None)
        return self._start(job, plan, runs_flag(settings), plan_only=request.plan_only)

    def _wanted(self, request: TrainingRequest) -> Any:
        return self._options.groups if self._options.groups is not None else request.groups

    def _settings_of(self, reading: Spoken, *, keep_relative: bool = False) -> Settings:
        overrides = {
            name: value for name, value in reading.overrides.items() if name in KEYS_BY_NAME
        }
        sentence = {
            name: value
            for name, value in reading.slots.items()
            if name in KEYS_BY_NAME and name not in overrides
        }
        return self._settings_for(sentence, overrides, keep_relative=keep_relative)

    def _settings_for(
        self,
        sentence: Mapping[str, Any],
        overrides: Mapping[str, Any],
        *,
        keep_relative: bool = False,
    ) -> Settings:
        """Return the settings of one command; the injected ones stand below what it says."""
        told = load_settings(start_dir=self._start_dir, sentence=sentence, overrides=overrides)
        if self._settings is not None:
            said = [name for name, _, source in told.non_defaults() if source in NEAREST]
            told = msgspec.structs.replace(
                self._settings,
                values=self._settings.values | {name: told.values[name] for name in said},
                sources=self._settings.sources | {name: told.sources[name] for name in said},
            )
        if keep_relative:
            return told
        defaults = {key: KEYS_BY_NAME[key].default for key in told.values}
        return msgspec.structs.replace(told, values=make_absolute(told.values, defaults.get))

    def _finder(self, settings: Settings, request: TrainingRequest) -> DataFinder:
        finder: DataFinder

        def ask(groups: Sequence[ShardGroup]) -> Sequence[ShardGroup]:
            chosen = choose(groups)
            self._group_flags.add(picked_flag(groups, chosen))
            return chosen

        def choose(groups: Sequence[ShardGroup]) -> Sequence[ShardGroup]:
            if self._choose is not None:
                return self._choose(groups)
            if not self.console.can_ask:
                self.console.note(*choice_lines(choices_of(groups), width=None))
                raise several_groups_error(groups, self._options.command)
            self.console.note(*(f"note: {note}" for note in finder.told))
            target = data_targets(request, settings, finder)[0]
            picked = self.console.pick(
                "Several shard groups qualify. Which ones to train on?",
                choices_of(groups),
                lambda index: finder.preview(target.spec, groups[index]),
            )
            return [groups[index] for index in picked]

        finder = DataFinder(
            Limits(
                depth=settings.value("depth"),
                min_objects=settings.value("min_objects"),
                min_size_kb=settings.value("min_size_kb"),
                rules=probe_rules(settings),
            ),
            ask,
            working=self.console.working,
        )
        return finder

    def _find_data(
        self, request: TrainingRequest, settings: Settings, finder: DataFinder
    ) -> FoundData:
        try:
            return finder.find(
                data_targets(request, settings, finder),
                wanted=self._wanted(request),
                val_target=val_target(request, settings, finder),
                use_siblings=request.val is not False,
            )
        except NoGroupsError as error:
            if error.discovery is not None:
                data = msgspec.to_builtins(error.discovery)
                self.console.note(*folder_lines(data, human=True), *failure_lines(data))
            raise


NEAREST = ("--override", "sentence")
