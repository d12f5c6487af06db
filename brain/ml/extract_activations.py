"""The activation-extraction example: a model's hidden states for every sample, shared by claims.

    python -m brain.ml.extract_activations --use_sharded_dataset --sharded_dataset_dir D \
        --model_path runs/fox-12 --host_id 0

Every machine runs the same command: each claims a shard, fetches that shard's chunks alone, writes
one row a sample, and goes on until nothing is left. A row holds `id`, `num_tokens` and for each layer
asked for `layer_N`: what block N adds up to, one vector a token (or one in all, by `--pooling`).
Without `--model_path` the weights are fresh, from `--layers` and `--seed`.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import torch
from torch import Tensor, nn

from brain.ml.checkpoint import load_weights, read_state
from brain.ml.checkpoint_place import checkpoint_of
from brain.ml.model import build_model
from brain.ml.model_shape import ModelShape
from brain.ml.run_files import JOB_FILE
from brain.ml.text_rule import TOKEN_FIELDS, choose_text_rule, has_tokens
from brain.ml.tokenizer import Tokenizer, load_tokenizer
from brain.ml.training_job import TrainingJob, load_job
from tools_utilities.errors import (
    QuarkError,
    RecordError,
    RunStoppedError,
    UsageError,
    error_lines,
)
from tools_utilities.process_progress import StatusLine
from tools_utilities.redaction import guard_process
from tools_utilities.scripts.process_shards import (
    LEASE_SECONDS,
    ProcessOptions,
    process_shards,
    summary_line,
)
from tools_utilities.scripts.shard_actions import worker_name
from tools_utilities.shard_format import Sample
from tools_utilities.stop_signals import INTERRUPTED, Stop

POOLINGS = ("none", "mean", "last")
REFUSED = ("tpu", "coordinator", "topology", "mesh", "process_id", "num_processes")
"""Beginnings of flags of other launchers: claims need none of what they set up."""


class Loaded(msgspec.Struct, frozen=True):
    """A model ready to run, and how text becomes its tokens."""

    model: nn.Module
    shape: ModelShape
    tokenizer: Tokenizer
    job: TrainingJob | None = None
    """The run it comes from, if any."""


def load_model(path: Path | None, *, layers: int = 2, seed: int = 42, seq_len: int = 256) -> Loaded:
    """Return the model of a run or checkpoint folder; without one a fresh `quark`.

    Raises:
        DataNotFoundError: there is no whole checkpoint.
        DataError: the checkpoint named is damaged.
    """
    if path is None:
        tokenizer = load_tokenizer("bytes")
        shape = ModelShape(layers=layers, vocab_size=tokenizer.vocab_size, seq_len=seq_len)
        return Loaded(build_model("quark", shape, seed).eval(), shape, tokenizer)
    found = checkpoint_of(path)
    state = read_state(found)
    # A run's checkpoints may be anywhere; one that is given by itself lies in its run's folder, if any.
    job_file = (path if found != path else path.parent.parent) / JOB_FILE
    job = load_job(job_file) if job_file.is_file() else None
    model = build_model(state.model, state.shape, seed)
    load_weights(found, model)
    return Loaded(model.eval(), state.shape, load_tokenizer(job.tokenizer if job else "bytes"), job)


class ActivationExtractor:
    """Samples → rows with the hidden states after the chosen blocks; the function of the batch job."""

    def __init__(
        self, loaded: Loaded, layers: Sequence[int] | None = None, pooling: str = "none"
    ) -> None:
        count = loaded.shape.layers
        self.layers = tuple(range(count) if layers is None else layers)
        wrong = [layer for layer in self.layers if not 0 <= layer < count]
        if wrong:
            raise UsageError(f"layer {wrong[0]}", hint=f"The model's layers are 0 to {count - 1}.")
        if pooling not in POOLINGS:
            raise UsageError(f"pooling {pooling}", hint=f"Known: {', '.join(POOLINGS)}.")
        self._loaded = loaded
        self._pooling = pooling
        self._caught: dict[int, Tensor] = {}
        blocks: Any = loaded.model.blocks
        for layer in self.layers:
            blocks[layer].register_forward_hook(self._catch(layer))

    def tokens_of(self, sample: Sample) -> list[int]:
        """Return a sample's tokens: its own, or those of its text; at most the model's length."""
        job = self._loaded.job
        if has_tokens(sample):
            name = next(name for name in TOKEN_FIELDS if name in sample)
            tokens = [int(token) for token in sample[name]]
        else:
            text_key, template = (job.text_key, job.template) if job else (None, None)
            rule = choose_text_rule(sample, text_key=text_key, template=template)
            [encoded] = self._loaded.tokenizer.encode([rule.text_of(sample)])
            tokens = encoded.tolist()
        tokens = tokens[: self._loaded.shape.seq_len]
        wrong = [token for token in tokens if not 0 <= token < self._loaded.shape.vocab_size]
        if wrong or not tokens:
            what = f"token {wrong[0]} is outside the vocabulary" if wrong else "no tokens"
            raise RecordError(f"sample {sample.get('id')}: {what}")
        return tokens

    @torch.inference_mode()
    def __call__(self, samples: list[Sample]) -> list[dict[str, Any]]:
        """Return a row for each sample, in order; arrays are float32."""
        rows = [self.tokens_of(sample) for sample in samples]
        longest = max(len(row) for row in rows)
        # Padding stands to the right, where a causal model's earlier positions do not see it.
        tokens_BT = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        self._caught.clear()
        self._loaded.model(tokens_BT)
        return [
            {"id": sample.get("id"), "num_tokens": len(row)}
            | {
                f"layer_{layer}": self._pooled(self._caught[layer][at, : len(row)]).numpy()
                for layer in self.layers
            }
            for at, (sample, row) in enumerate(zip(samples, rows, strict=True))
        ]

    def _catch(self, layer: int) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
            self._caught[layer] = output

        return hook

    def _pooled(self, states_TC: Tensor) -> Tensor:
        if self._pooling == "mean":
            return states_TC.mean(0)
        return states_TC[-1] if self._pooling == "last" else states_TC


class _Parser(argparse.ArgumentParser):
    """Refuses the flags of other launchers by name."""

    def error(self, message: str) -> NoReturn:
        for word in message.split():
            if word.startswith("--") and word[2:].startswith(REFUSED):
                message = f"{word.partition('=')[0]}: not a flag here"
                hint = "machines meet at the claims in the store; run the same command on each"
                self.exit(2, f"error: {message}\nhint: {hint}\n")
        self.exit(2, f"error: {message}\nhint: --help lists the flags\n")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(description="A model's hidden states for every sample.", allow_abbrev=False)
    parser.add_argument("--use_sharded_dataset", action="store_true", help="share shards by claims")
    parser.add_argument("--sharded_dataset_dir", help="the sharded dataset: folder or store URI")
    parser.add_argument("--dataset_path", help="without shards: a file or folder of records")
    parser.add_argument("--preferred_shard_id", type=int)
    parser.add_argument("--model_path", type=Path, help="a run's or checkpoint's folder")
    parser.add_argument("--layers", type=int, default=2, help="of a fresh model")
    parser.add_argument("--seed", type=int, default=42, help="of a fresh model")
    parser.add_argument("--seq_len", type=int, default=256, help="of a fresh model")
    parser.add_argument("--layers_to_extract", type=int, nargs="+", help="default: all")
    parser.add_argument("--pooling", default="none", help="none, mean or last")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--max_samples", type=int)
    parser.add_argument("--output_dir", help="default: out/ in the dataset")
    parser.add_argument("--output_format", default="jsonl", help="jsonl or parquet")
    parser.add_argument("--upload_to_gcs", action="store_true", help="write to --gcs_bucket")
    parser.add_argument("--gcs_bucket", help="name, or a store URI")
    parser.add_argument("--host_id", type=int, help="names the worker machineX_hostY")
    parser.add_argument("--num_hosts", type=int, help="shown only: claims need no number")
    parser.add_argument("--machine_id", type=int, default=0)
    parser.add_argument("--worker_id")
    parser.add_argument("--lease", type=float, default=LEASE_SECONDS, help="seconds")
    parser.add_argument("--endpoint_url", help="S3 endpoint")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--json", action="store_true", help="the summary as JSON")
    return parser.parse_args(arguments)


def _places(options: argparse.Namespace) -> tuple[str, str | None]:
    """Return the dataset and where results go."""
    dataset = options.sharded_dataset_dir if options.use_sharded_dataset else options.dataset_path
    if dataset is None:
        raise UsageError(
            "no dataset", hint="--use_sharded_dataset --sharded_dataset_dir D, or --dataset_path F."
        )
    if options.host_id is not None and options.num_hosts is not None:  # noqa: SIM102 - reads better
        if not 0 <= options.host_id < options.num_hosts:
            raise UsageError(f"--host_id {options.host_id}: hosts are 0 to {options.num_hosts - 1}")
    if not options.upload_to_gcs:
        return dataset, options.output_dir
    if not options.gcs_bucket:
        raise UsageError("--upload_to_gcs needs --gcs_bucket")
    bucket = options.gcs_bucket if "://" in options.gcs_bucket else f"gs://{options.gcs_bucket}"
    folder = options.output_dir or f"activations/{dataset.rstrip('/').rpartition('/')[2]}"
    return dataset, f"{bucket.rstrip('/')}/{folder.strip('/')}"


def _run(options: argparse.Namespace, line: StatusLine, stop: Stop) -> int:
    dataset, out = _places(options)
    loaded = load_model(
        options.model_path, layers=options.layers, seed=options.seed, seq_len=options.seq_len
    )
    extractor = ActivationExtractor(loaded, options.layers_to_extract, options.pooling)
    # Part of the job's name: other weights, layers or pooling are another job.
    weights = options.model_path or f"layers={options.layers},seed={options.seed}"
    name = f"activations({weights};{list(extractor.layers)};{options.pooling})"

    def extract(samples: list[Sample]) -> list[dict[str, Any]]:
        return extractor(samples)

    extract.__qualname__ = name
    summary = process_shards(
        dataset,
        extract,
        out=out,
        worker_id=worker_name(options.worker_id, options.host_id, options.machine_id),
        options=ProcessOptions(
            batch_size=options.batch_size,
            preferred_shard_id=options.preferred_shard_id,
            lease_seconds=options.lease,
            endpoint_url=options.endpoint_url,
            max_samples=options.max_samples,
            output_format=options.output_format,
            progress=line.paint,
            stop=stop,
        ),
        report=line.say if options.verbose else lambda _line: None,
    )
    shown = msgspec.json.encode(summary).decode() if options.json else summary_line(summary)
    sys.stdout.write(shown + "\n")
    return 1 if summary.failed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Extract until nothing is left; the summary goes to stdout."""
    guard_process(sys.argv[1:] if arguments is None else arguments)
    options = _parse(arguments)
    line, stop = StatusLine(sys.stderr), Stop()
    try:
        with stop.on_signals(line.say), line:
            return _run(options, line, stop)
    except KeyboardInterrupt:
        sys.stderr.write(INTERRUPTED)
        return RunStoppedError.exit_code
    except QuarkError as error:
        sys.stderr.write(error_lines(error))
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
