"""From settings to the fields of a TrainingJob, and to the settings a plan shows. Pure."""

from typing import Any

from brain.ml.dataset_shards.partition_strategy import find_strategy
from brain.ml.hf_folder import TOKENIZER_FILE, hf_folder, read_config
from brain.ml.model_name import is_hf
from brain.ml.model_shape import layers_for
from brain.ml.tokenizer import BYTES, FileTokenizer, load_tokenizer
from brain.ml.tracker_processes import check_trackers
from brain.ml.training_job import Every, TrainingJob
from resource_manager.plan import PlannedSetting
from resource_manager.remote_settings import changed_place, remote_of
from tools_utilities.decode_probe import ProbeRules
from tools_utilities.errors import UsageError
from tools_utilities.settings import Settings
from tools_utilities.shard_format import ReadOptions
from tools_utilities.shard_formats.tokens import likely_dtype

SAME_NAME = (
    "cache_policy", "prefetch", "fetch_concurrency", "workers", "shuffle", "shuffle_mb", "seed",
    "mix_stop", "stall_seconds", "partition", "equalize", "max_drop", "on_bad", "bad_budget", "on_missing", "allow_changed", "allow_nan",
    "strict", "text_key", "template", "tokenizer", "vocab_size", "token_dtype", "seq_len", "pad_id", "eos_id", "overlong",
    "layers", "lora_rank", "lora_alpha", "max_steps", "max_tokens", "max_samples", "max_seconds", "early_stop", "grad_accum", "lr",
    "schedule", "warmup_steps", "optimizer", "weight_decay", "grad_clip", "precision", "compile",
    "parallel", "tensor_parallel", "device", "nodes", "min_nodes", "rendezvous", "max_restarts", "rejoin_seconds", "sample_log", "keep",
)  # fmt: skip
"""Settings that a job holds under the same name."""
STOP_RULES = ("max_steps", "max_tokens", "max_samples", "max_seconds")
PARTITION_OPTIONS = ("num_partitions", "hash_seed", "ranges", "partition_key")
_NEAREST = ("--override", "sentence")


def job_fields(settings: Settings, model: str = "quark") -> dict[str, Any]:
    """Return the fields of a TrainingJob that settings decide (all but name, folder and data).

    Raises:
        UsageError: a setting that only rented machines or two betas can satisfy.
    """
    fields = {name: settings.value(name) for name in SAME_NAME}
    fields["epochs"] = _epochs(settings)
    fields["processes"] = settings.value("gpus") or 1
    fields["batch_size"] = _batch_size(settings)
    fields["cache_bytes"] = settings.cache_bytes
    fields["betas"] = _betas(settings)
    fields["track"] = tuple(settings.value("track") or ())
    for name in ("checkpoint_every", "eval_every"):
        every = settings.value(name)
        fields[name] = Every(**every) if every else None
    fields["resume"] = "auto" if settings.value("resume") == "auto" else None
    fields |= hf_fields(settings, model) if is_hf(model) else _text_fields(settings)
    fields["token_ends"] = settings.is_set("eos_id")
    if model == "quark":
        fields["layers"] = _layers(settings, fields["tokenizer"])
    _refuse_other_models(settings, model)
    fields["partition_options"] = _partition_options(settings)
    fields["remote"] = remote_of(settings)
    if fields["track"] and fields["remote"] is None:
        check_trackers(fields["track"])
    find_strategy(settings.value("partition"))  # `adaptive` is not for training
    return fields


def probe_rules(settings: Settings) -> ProbeRules:
    """Return how the plan decodes a few records: as the run will read all of them."""
    return ProbeRules(
        options=ReadOptions(
            allow_nan=settings.value("allow_nan"),
            strict=settings.value("strict"),
            seq_len=settings.value("seq_len"),
            token_dtype=settings.value("token_dtype"),
            likely_token_dtype=likely_dtype(settings.value("vocab_size")),
        ),
        skip_bad=settings.value("on_bad") == "skip",
        skip_missing=settings.value("on_missing") == "skip",
    )


def planned_settings(settings: Settings) -> tuple[PlannedSetting, ...]:
    """Return every setting that somebody gave, with where it came from."""
    return tuple(
        PlannedSetting(name=name, value=value, why=source)
        for name, value, source in settings.non_defaults()
    )


def changed_fields(job: TrainingJob, other: TrainingJob) -> tuple[str, ...]:
    """Return `name: before → now` for each field in which `job` differs from an earlier `other`."""
    own: tuple[str, ...] = ("name", "run_dir", "resume", "from_step", "checkpoints", "remote")
    own += ("cache_dir", "counts_dir") if job.remote != other.remote else ()  # each machine's
    return (
        *(
            f"{name}: {getattr(other, name)} → {getattr(job, name)}"
            for name in TrainingJob.__struct_fields__
            if name not in (*own, "train", "val") and getattr(job, name) != getattr(other, name)
        ),
        *changed_place(job.remote, other.remote),
    )


def _epochs(settings: Settings) -> float | None:
    epochs = settings.value("epochs")
    if epochs is not None:
        return float(epochs)
    # One pass, unless another stop rule was asked for.
    return None if any(settings.value(rule) is not None for rule in STOP_RULES) else 1.0


def _text_fields(settings: Settings) -> dict[str, Any]:
    """Return the tokenizer, a file as an absolute path, and the token that ends a document."""
    name, end_id = str(settings.value("tokenizer")), int(settings.value("eos_id"))
    if name == BYTES:
        return {"tokenizer": name, "eos_id": end_id}
    path = settings.path("tokenizer")
    tokenizer = load_tokenizer(str(path))
    own = tokenizer.end_id if isinstance(tokenizer, FileTokenizer) else None
    said = settings.is_set("eos_id") or own is None
    return {"tokenizer": str(path), "eos_id": end_id if said else own}


def hf_fields(settings: Settings, model: str) -> dict[str, Any]:
    """Return what a transformers folder says of its tokens, where nobody says something else.

    Raises:
        UsageError: it has no tokenizer and none is named, or a sequence is too long for it.
    """
    folder = hf_folder(model)
    config, file = read_config(folder), folder / TOKENIZER_FILE
    if settings.is_set("tokenizer"):
        fields = _text_fields(settings)
    elif file.is_file():
        fields = {"tokenizer": str(file), "eos_id": settings.value("eos_id")}
    else:
        raise UsageError(
            f"model {model}: no {TOKENIZER_FILE} in its folder", hint="Name one: tokenizer=PATH."
        )
    if not settings.is_set("eos_id") and config.end_id is not None:
        fields["eos_id"] = config.end_id
    if not settings.is_set("pad_id") and config.pad_token_id is not None:
        fields["pad_id"] = config.pad_token_id
    if not settings.is_set("vocab_size"):
        fields["vocab_size"] = config.vocab_size
    most, seq_len = config.most_positions, int(settings.value("seq_len"))
    if most is not None and seq_len > most:
        raise UsageError(
            f"seq_len={seq_len}: {model} was made for {most}", hint=f"Use context {most} or less."
        )
    return fields


def _refuse_other_models(settings: Settings, model: str) -> None:
    """Refuse settings that only another kind of model has.

    Raises:
        UsageError: naming the setting.
    """
    wrong = ("layers", "parameters") if is_hf(model) else ("lora_rank", "lora_alpha")
    said = [name for name in wrong if settings.source(name) in _NEAREST]
    if said:
        whose = "quark and one's own models" if is_hf(model) else "hf: models"
        raise UsageError(f"{said[0]}={settings.value(said[0])}: for {whose}", hint="Leave it out.")


def _layers(settings: Settings, tokenizer: str) -> int:
    """Return the size dial, from the number of parameters where that was said closer to the command.

    Raises:
        UsageError: both were said, one as close as the other.
    """
    layers, parameters = int(settings.value("layers")), settings.value("parameters")
    if parameters is None:
        return layers
    nearer = settings.nearer("parameters", "layers")
    if nearer is None:
        raise UsageError(
            f"layers={layers} and parameters={parameters}: one of them sizes the model",
            hint="Leave one of them out.",
        )
    if nearer == "layers":
        return layers
    vocab_size = max(int(settings.value("vocab_size") or 0), load_tokenizer(tokenizer).vocab_size)
    return layers_for(int(parameters), vocab_size, int(settings.value("seq_len")))


def _batch_size(settings: Settings) -> int:
    size = int(settings.value("batch_size"))
    if settings.value("batch_scope") == "device":
        return size * int(settings.value("gpus") or 1) * int(settings.value("nodes"))
    return size


def _betas(settings: Settings) -> tuple[float, float]:
    betas = tuple(settings.value("betas"))
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):  # noqa: PLR2004 - AdamW's two
        text = ",".join(str(beta) for beta in betas)
        raise UsageError(f"betas={text}: not two numbers from 0 to 1", hint="Try betas=0.9,0.95.")
    return betas


def _partition_options(settings: Settings) -> dict[str, Any]:
    return {name: settings.value(name) for name in PARTITION_OPTIONS if settings.is_set(name)}
