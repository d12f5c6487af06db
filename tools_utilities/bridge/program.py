"""`quark-bridge init|plan|run --config F` (also installed as `train-data-bridge`)."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

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
  source_options:
    split: train
# vast:                       # only for --use-vast
#   api_key: ${VAST_API_KEY}
"""
ENVIRONMENT_EXAMPLE = """\
R2_ACCOUNT_ID=
R2_ACCESS_KEY_ID=
R2_SECRET_ACCESS_KEY=
VAST_API_KEY=
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; results on stdout, errors on stderr. Exit codes as the program's."""
    guard_process(sys.argv[1:] if arguments is None else arguments)
    options = _parse(arguments)
    try:
        with stopping_cleanly():
            return _run(options)
    except QuarkError as error:
        sys.stderr.write(error_lines(error))
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\nhint: Run the same command again: it goes on.\n")
        return RunStoppedError.exit_code


def _run(options: argparse.Namespace) -> int:
    if options.command == "init":
        return _init(Path(options.config))
    if options.use_vast:
        raise UsageError(
            "--use-vast comes with part 7 (renting machines)",
            hint="Run without it: the pipeline then runs on this machine.",
        )
    settings = load_settings(options.config)
    check_settings(settings)
    if options.command == "plan":
        sys.stdout.write("\n".join(plan_lines(settings, options.prefix)) + "\n")
        return 0
    made = run_pipeline(settings, prefix=options.prefix)
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
