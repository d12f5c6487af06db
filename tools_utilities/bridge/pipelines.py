"""Runs a bridge's pipeline: stream, shard, upload, verify, delete the local copy, manifest.

Goes on where a killed run stopped, under the same names. Keys of the bucket reach the S3 client by
the environment of a process of its own: never by arguments, files or this process's environment.
"""

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tools_utilities.bridge.bridge_settings import BridgeSettings, load_settings
from tools_utilities.dataset_creation import (
    OutputOptions,
    begin_elsewhere,
    create_sharded_dataset,
)
from tools_utilities.errors import QuarkError, UsageError
from tools_utilities.prepared_types import prepared
from tools_utilities.process_environment import PACKAGE_ROOT, child_environment, own_program
from tools_utilities.sample_source import SourceOptions, refuse_hub_options
from tools_utilities.shard_format import shard_formats
from tools_utilities.sharded_dataset import Dealt
from tools_utilities.sharding_output import FOUND, THERE
from tools_utilities.sharding_plan import ShardingPlan

PIPELINES = ("jsonl", "parquet", "webdataset", "litdata", "mds")
_TRANSPORT = frozenset({"endpoint_url", "profile", "region"})


@prepared
class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What the process of a pipeline is asked for."""

    settings: BridgeSettings
    prefix: str | None = None
    progress: str = FOUND
    begins: bool = False
    """Only what comes before the work, which another machine does."""
    reports: bool = False
    """Its progress is said on stderr."""


class PipelineError(QuarkError):
    """The pipeline's own process failed."""


def run_from_file(path: str | Path, *, prefix: str | None = None) -> dict[str, Any]:
    """Run the pipeline of a settings file; returns what `run_pipeline` does."""
    return run_pipeline(load_settings(path), prefix=prefix)


def run_pipeline(settings: BridgeSettings, *, prefix: str | None = None) -> dict[str, Any]:
    """Run a pipeline and return `total_tasks`, `num_shards` and `output`.

    Raises:
        QuarkError: as the part that failed; a second run goes on from the last finished shard.
    """
    check_settings(settings)
    if settings.r2 is None or not settings.r2.access_key_id:
        return run_here(settings, prefix)
    return _run_with_keys(settings, prefix)


def check_settings(settings: BridgeSettings) -> None:
    """Refuse what cannot be run, before anything is read."""
    output_of(settings, None)
    pipeline = settings.pipeline
    if ":" not in pipeline.name and pipeline.name not in PIPELINES:
        raise UsageError(
            f"pipeline.name {pipeline.name}",
            hint=f"Known: {', '.join(PIPELINES)}, or package.module:Class.",
        )
    chosen = pipeline.source_options
    refuse_hub_options(pipeline.input_uri, chosen.split, chosen.config, chosen.load_kwargs)
    unknown = set(chosen.transport_params) - _TRANSPORT
    if unknown:
        raise UsageError(
            f"pipeline.source_options.transport_params: unknown key {min(unknown)}",
            hint=f"Known: {', '.join(sorted(_TRANSPORT))}.",
        )


def output_of(settings: BridgeSettings, prefix: str | None) -> tuple[str, str | None]:
    """Return the URI of the output and its endpoint."""
    if settings.r2 is None:
        if settings.output_dir is None:
            raise UsageError("no output", hint="Give a section r2, or output_dir.")
        base = settings.output_dir.rstrip("/")
        return (f"{base}/{prefix.strip('/')}" if prefix else base), None
    folder = (prefix if prefix is not None else settings.r2.prefix).strip("/")
    return f"s3://{settings.r2.bucket}/{folder}".rstrip("/"), settings.r2.endpoint


class Made(NamedTuple):
    """What a pipeline is to the maker of datasets."""

    source: str
    output: str
    plan: ShardingPlan
    options: SourceOptions
    how: OutputOptions


def run_here(
    settings: BridgeSettings,
    prefix: str | None,
    *,
    progress: str = FOUND,
    report: Callable[[Dealt], None] = lambda _dealt: None,
) -> dict[str, Any]:
    """Run a pipeline in this process, with the credentials that its environment has.

    `progress`: where it is kept (`sharding_output`); what another machine began is gone on with.
    """
    what = _made_of(settings, prefix, progress)
    made = create_sharded_dataset(
        what.source, what.output, what.plan, options=what.options, output=what.how, report=report
    )
    return {**made, "output": what.output}


def begin_here(settings: BridgeSettings, prefix: str | None) -> dict[str, Any] | None:
    """Do what comes before a run on another machine; returns what is finished already.

    Its source is read from, its progress written beside its output: as `begin_elsewhere`.
    """
    what = _made_of(settings, prefix, THERE)
    done = begin_elsewhere(
        what.source, what.output, what.plan, options=what.options, output=what.how
    )
    return None if done is None else {**done, "output": what.output}


def _made_of(settings: BridgeSettings, prefix: str | None, progress: str) -> Made:
    pipeline, chosen = settings.pipeline, settings.pipeline.source_options
    output, endpoint = output_of(settings, prefix)
    state = Path(pipeline.staging_dir).expanduser() if pipeline.staging_dir else None
    return Made(
        source=pipeline.input_uri,
        output=output,
        plan=ShardingPlan(
            format=_format_of(pipeline.name),
            layout="flat",
            name="shard",
            samples_per_shard=pipeline.samples_per_shard,
        ),
        options=SourceOptions(
            format_name=None if pipeline.input_uri.startswith("hf://") else pipeline.input_format,
            split=chosen.split,
            config=chosen.config,
            load_kwargs=chosen.load_kwargs,
            **transport_of(settings),
        ),
        how=OutputOptions(
            state_dir=state,
            endpoint_url=endpoint,
            region=settings.r2.signing_region if settings.r2 else None,
            progress=progress,
        ),
    )


def transport_of(settings: BridgeSettings) -> dict[str, Any]:
    """Return how the input's store is reached: as said, else `r2://` where the section r2 is."""
    said = settings.pipeline.source_options.transport_params
    if settings.r2 is None or not settings.pipeline.input_uri.startswith("r2://"):
        return said
    return {"endpoint_url": settings.r2.endpoint, "region": settings.r2.signing_region, **said}


def _format_of(name: str) -> str:
    """Return the registered format of a pipeline; a class is registered under its full name."""
    if ":" not in name:
        return name
    module, _, attribute = name.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        kind: Any = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"pipeline.name {name}: {error}",
            hint="It must be importable from the folder you are in.",
        ) from error
    made = kind()
    if not hasattr(made, "write") or not getattr(made, "suffixes", None):
        raise UsageError(
            f"pipeline.name {name}: not a shard format (suffixes, write)",
            hint="tools_utilities/shard_format.py has the contract.",
        )
    shard_formats()[name] = made
    return name


def _run_with_keys(settings: BridgeSettings, prefix: str | None) -> dict[str, Any]:
    r2 = settings.r2
    assert r2 is not None  # noqa: S101 - asked before
    keys = {
        "AWS_ACCESS_KEY_ID": r2.access_key_id,
        "AWS_SECRET_ACCESS_KEY": r2.secret_access_key,
    }
    if r2.signing_region is not None:
        keys |= dict.fromkeys(("AWS_REGION", "AWS_DEFAULT_REGION"), r2.signing_region)
    without = msgspec.structs.replace(
        settings,
        r2=msgspec.structs.replace(r2, access_key_id="", secret_access_key=""),
        vast=None,
    )
    return in_own_process(Request(settings=without, prefix=prefix), child_environment(keys)) or {}


def in_own_process(
    request: Request, environment: Mapping[str, str], *, root: Path | None = None
) -> dict[str, Any] | None:
    """Carry a request out in a process of its own, whose environment holds the keys.

    `root`: a checkout of Quark that is run in place of this one, in its folder.

    Raises:
        PipelineError: it failed; with the exit code of the error in that process.
    """
    # In front: an environment made for this process names this Quark's own folder.
    path = {
        "PYTHONPATH": os.pathsep.join(
            (str(root or PACKAGE_ROOT), environment.get("PYTHONPATH", ""))
        )
    }
    with subprocess.Popen(  # noqa: S603 - our own interpreter and module
        own_program("tools_utilities.bridge.bridge_process"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**environment, **path},
        cwd=root,
    ) as process:
        try:
            printed, _ = process.communicate(msgspec.json.encode(request))
        except BaseException:
            process.terminate()  # it removes the parts that it was sending, then ends
            process.communicate()
            raise
    reply = msgspec.json.decode(printed) if printed else {}
    if "made" in reply:
        made: dict[str, Any] | None = reply["made"]
        return made
    error = PipelineError(
        reply.get("error", f"the pipeline's process ended with {process.returncode}"),
        hint=reply.get("hint", "Run the same command again: it goes on where it stopped."),
    )
    if "error" in reply:
        error.exit_code = process.returncode  # type: ignore[misc] # as the error in that process
    raise error
