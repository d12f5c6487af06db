"""`why SETTING`: a value of a run, and where it came from. Pure, but for reading the run's files."""

from pathlib import Path
from typing import Any

import msgspec

from brain.ml.run_files import PLAN_FILE
from brain.ml.training_job import TrainingJob
from resource_manager.job_settings import PARTITION_OPTIONS
from resource_manager.plan import Plan, data_source_name
from resource_manager.remote_settings import REMOTE_SETTINGS, RENTED_ONLY
from resource_manager.repeating import earlier_run, job_of
from resource_manager.runs import RunInfo, list_runs, out_dir_of
from tools_utilities.console import Console
from tools_utilities.errors import ChangedError, UsageError
from tools_utilities.json_text import decode_json
from tools_utilities.private_files import read_plain
from tools_utilities.setting_keys import KEYS_BY_NAME, find_key
from tools_utilities.settings import Settings
from tools_utilities.terminal_text import Line, Span, pairs

SETTINGS_OF = {
    "processes": ("gpus",),
    "layers": ("layers", "parameters"),
    "token_ends": ("eos_id",),
    "batch_size": ("batch_size", "batch_scope"),
    "cache_bytes": ("cache_bytes", "cache_gb"),
    "checkpoints": ("checkpoint_dir",),
    "partition_options": PARTITION_OPTIONS,
    "run_dir": ("out_dir", "name"),
    "remote": ("where", *REMOTE_SETTINGS, *RENTED_ONLY),
    "train": ("train_prefix", "bucket", "data_mode"),
    "val": ("val_prefix", "bucket", "data_mode"),
}
"""Job fields that no setting of the same name decides alone."""
SAID_BY_SLOT = {
    "model": "the sentence, or the one model there is",
    "command": "`models:` of quark.yaml, for a program of one's own",
    "project_dir": "the project, for a model of one's own",
    "train": "the data that was named",
    "val": "the validation data that was named, or what lies beside the training data",
    "weights": "the sentence; without them, groups count by their size",
    "init_from": "the sentence, or the last checkpoint when finetuning",
    "evaluate_only": "the verb: evaluate measures, the others train",
    "from_step": "the sentence of a resume",
    "counts_dir": "`counts` below the cache folder (cache_dir)",
    "schema": "this version of Quark: how the file is written",
}
"""Job fields that a slot or the program decides, in words."""


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """One value and where it came from."""

    name: str
    value: Any
    why: tuple[str, ...]
    """`lr: sentence`, one for each setting that has a part in it; or how it is decided."""
    help: str = ""


def provenance(name: str, job: TrainingJob, plan: Plan) -> Provenance:
    """Return where a field of a job, or any setting, came from.

    Raises:
        UsageError: nobody knows the name; the hint names the nearest.
    """
    fields = TrainingJob.__struct_fields__
    if name not in fields:
        key = find_key(name).name
        # `gpus` is asked for as it was said, `learning_rate` as what the job calls it.
        field = next((field for field, keys in SETTINGS_OF.items() if keys[0] == key), key)
        name = field if field in fields and key == "gpus" else key
    given = {item.name: (item.value, item.why) for item in plan.settings}
    settings = [key for key in SETTINGS_OF.get(name, (name,)) if key in KEYS_BY_NAME]
    why = [f"{key}={_text(given[key][0])}: {given[key][1]}" for key in settings if key in given]
    if not why and name in SAID_BY_SLOT:
        why = [SAID_BY_SLOT[name]]
    elif not why:
        why = [_default_of(name, job)]
    value = (
        getattr(job, name) if name in fields else given.get(name, (KEYS_BY_NAME[name].default,))[0]
    )
    help_text = KEYS_BY_NAME[settings[0]].help if settings else ""
    return Provenance(name=name, value=_shown(value), why=tuple(why), help=help_text)


def provenance_lines(found: Provenance, width: int | None) -> list[Line]:
    """Return one value's provenance for people."""
    rows = [("value", _text(found.value)), *(("from", why) for why in found.why)]
    if found.help:
        rows.append(("meaning", found.help))
    return [[Span(found.name, "title")], *pairs(rows, width=width)]


def load_run_plan(info: RunInfo) -> tuple[TrainingJob, Plan]:
    """Return a run's job and plan.

    Raises:
        ChangedError: one of them is missing or of another version.
    """
    path = Path(info.path) / PLAN_FILE
    try:
        plan = decode_json(read_plain(path), type=Plan)
    except (OSError, msgspec.DecodeError) as error:
        raise ChangedError(f"{path}: {error}", hint="Ask for another run.") from error
    return job_of(info), plan


def why_command(settings: Settings, name: str, run: str | None, console: Console) -> int:
    """Print where a value of a run came from; where there is no run yet, of a setting.

    Raises:
        UsageError: nobody knows the name.
        DataNotFoundError: there is no such run.
    """
    if run is None and not list_runs(out_dir_of(settings)):
        key = find_key(name)
        found = Provenance(
            name=key.name, value=settings.value(key.name), why=(settings.source(key.name),),
            help=key.help,
        )  # fmt: skip
        title = "no run yet: what the next one would have"
    else:
        info, _ = earlier_run(settings, run)
        found = provenance(name, *load_run_plan(info))
        title = f"of run {info.name}"
    data = {"schema": 1, "of": title, **msgspec.to_builtins(found)}
    console.note(title)
    console.result(provenance_lines(found, console.result_width), data)
    return 0


def why_question(answer: str, job: TrainingJob, plan: Plan, width: int | None) -> list[Line] | None:
    """Return what `why SETTING` is answered with at a prompt; None when that was not asked."""
    words = answer.split()
    if len(words) != 2 or words[0].lower() != "why":  # noqa: PLR2004 - `why` and a name
        return None
    try:
        return provenance_lines(provenance(words[1], job, plan), width)
    except UsageError as error:
        return [f"{error} {error.hint}"]


def _default_of(name: str, job: TrainingJob) -> str:
    if name == "epochs" and job.epochs == 1:
        return "default: one pass, since no stop rule was given"
    if name == "epochs":
        return "default: none, since another stop rule was given"
    if name == "name":
        return "default: a word and a number that no other run has"
    if name == "run_dir":
        return "default: runs/ in the project's root, and the run's name"
    if name == "cache_dir" and job.cache_dir is None:
        return "default: no cache, since local data is read in place"
    return "default"


def _shown(value: Any) -> Any:
    if isinstance(value, tuple) and value and hasattr(value[0], "prefix"):
        return [data_source_name(source) for source in value]
    return msgspec.to_builtins(value)


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value) or "none"
    if isinstance(value, dict):
        return (
            ", ".join(f"{name}={item}" for name, item in value.items() if item is not None)
            or "none"
        )
    return str(value).lower() if isinstance(value, bool) else str(value)
