"""`quark-bridge init|plan|run --config F` (also installed as `train-data-bridge`)."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from tools_utilities.bridge.bridge_settings import BridgeSettings, load_settings
from tools_utilities.bridge.pipelines import check_settings, output_of, run_pipeline
from tools_utilities.errors import QuarkError, RunStoppedError, UsageError, error_lines
from tools_utilities.redaction import guard_process
from tools_utilities.stop_signals import stopping_cleanly

EXAMPLE = """\
# Settings of quark-bridge. ${VAR} is taken from the environment; see .env-example.
r2:
  account_id: ${R2_ACCOUNT_ID}
  access_key_id: ${R2_ACCESS_KEY_ID}
  secret_access_key: ${R2_SECRET_ACCESS_KEY}
  bucket: my-bucket
  region: auto
  prefix: datasets/my-set
pipeline:
  name: webdataset            # jsonl, parquet, webdataset, litdata, mds, or package.module:Class
  input_uri: hf://owner/name  # or a file, a folder, https://…, s3://…
  samples_per_shard: 10000
  source_options:             # split, config, load_kwargs: of hf:// alone
    split: train
# vast:                       # only for --use-vast
#   api_key: ${VAST_API_KEY}
#   max_price_usd_hour: 0.5   # of the machine with its disk; no dearer one is rented
#   max_cost_usd: 5           # it is destroyed before it costs more; max_hours: a time instead
#   storage_gb: 50
"""
ENVIRONMENT_EXAMPLE = """\
R2_ACCOUNT_ID=
R2_ACCESS_KEY_ID=
R2_SECRET_ACCESS_KEY=
VAST_API_KEY=
"""


class Renter(Protocol):
    """Who rents machines; renting is above this layer, and is handed in (`resource_manager`)."""

    def plan_lines(self, settings: BridgeSettings, prefix: str | None) -> list[str]:
        """Return what a run on a rented machine would do; rents nothing."""
        ...

    def run(self, settings: BridgeSettings, prefix: str | None) -> dict[str, Any] | None:
        """Return what a run there made; None: it was left running."""
        ...


def main(arguments: Sequence[str] | None = None, *, renter: Renter | None = None) -> int:
    """Run a command; results on stdout, errors on stderr. Exit codes as the program's."""
    guard_process(sys.argv[1:] if arguments is None else arguments)
    options = _parse(arguments)
    try:
        with stopping_cleanly():
            return _run(options, renter)
    except QuarkError as error:
        sys.stderr.write(error_lines(error))
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\nhint: Run the same command again: it goes on.\n")
        return RunStoppedError.exit_code


def _run(options: argparse.Namespace, renter: Renter | None) -> int:
    if options.command == "init":
        return _init(Path(options.config))
    if options.use_vast and renter is None:
        raise UsageError(
            "--use-vast: this way of starting the bridge rents nothing",
            hint="Start it as quark-bridge, or python -m resource_manager.bridge_command.",
        )
    settings = load_settings(options.config)
    check_settings(settings)
    rented = renter if options.use_vast else None
    if options.command == "plan":
        lines = plan_lines if rented is None else rented.plan_lines
        sys.stdout.write("\n".join(lines(settings, options.prefix)) + "\n")
        return 0
    if rented is None:
        made: dict[str, Any] | None = run_pipeline(settings, prefix=options.prefix)
    else:
        made = rented.run(settings, options.prefix)
    if made is None:
        return 0
    sys.stdout.write(
        f"{made['total_tasks']} samples in {made['num_shards']} shards: {made['output']}\n"
    )
    return 0


def _init(config: Path) -> int:
    for path, content in (
        (config, EXAMPLE),
        (config.with_name(".env-example"), ENVIRONMENT_EXAMPLE),
    ):
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(content)
        except FileExistsError:
            sys.stderr.write(f"{path} is there already: left as it is\n")
        else:
            sys.stdout.write(f"wrote {path}\n")
    return 0


def plan_lines(settings: BridgeSettings, prefix: str | None) -> list[str]:
    """Return what a run would do, without secrets."""
    pipeline = settings.pipeline
    output, endpoint = output_of(settings, prefix)
    offer = settings.vast.offer_id if settings.vast else None
    return [
        f"source      {pipeline.input_uri}",
        f"format      {pipeline.name}",
        f"shard size  {pipeline.samples_per_shard} samples",
        f"prefix      {output}" + (f" at {endpoint}" if endpoint else ""),
        f"offer       {'none: runs on this machine' if offer is None else offer}",
    ]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="quark-bridge", description="Data to shards in a bucket.")
    parser.add_argument("command", choices=("init", "plan", "run"))
    parser.add_argument("--config", default="bridge.yaml", help="YAML or TOML")
    parser.add_argument("--prefix", help="instead of the prefix in the settings")
    parser.add_argument("--use-vast", action="store_true", help="on a rented machine")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
