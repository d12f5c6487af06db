"""Every setting Quark knows: its type, limits, default and meaning. Pure data and pure typing.

One table serves the language (`--override`, `key=value`), `quark.yaml`, the environment (`QUARK_…`)
and the plan. A value is typed by its key, never by its looks: `1e-4` is a float for `lr`, `no` is
text for `name`.
"""

import math
import re
from typing import Any

from tools_utilities.errors import UsageError
from tools_utilities.refused_settings import refuse_by_name
from tools_utilities.remote_keys import REMOTE_KEYS
from tools_utilities.setting_key import SettingKey
from tools_utilities.setting_key import plain_key as _key
from tools_utilities.setting_key import slot_key as _slot
from tools_utilities.simulation_keys import SIMULATION_KEYS

TRUE_WORDS = frozenset({"true", "on", "yes", "1"})
FALSE_WORDS = frozenset({"false", "off", "no", "0"})


SETTING_KEYS: tuple[SettingKey, ...] = (
    # Where the data is.
    _key("bucket", "text", "Bucket or store URI that dataset paths are mapped into."),
    _key("root", "text", "Dataset root: the folder that paths are made relative to."),
    _key("train_prefix", "text", "Prefix of the training shards; wins over the path."),
    _key("val_prefix", "text", "Prefix of the validation shards."),
    _key(
        "data_mode",
        "choice",
        "`streaming` from a bucket, `local` in place, `auto`: streaming when a bucket is known.",
        default="auto",
        choices=("auto", "local", "streaming"),
    ),
    _key("endpoint_url", "text", "S3 endpoint (R2, MinIO, SeaweedFS)."),
    _key("profile", "text", "AWS profile."),
    _key("region", "text", "Bucket's region."),
    _key("anonymous", "bool", "Send unsigned requests.", default=False),
    _key("requester_pays", "bool", "Accept the transfer charges.", default=False),
    _slot("depth", "int", "Folders to look down when discovering.", default=3, minimum=1),
    _key("min_objects", "int", "Fewest objects of a shard group.", default=8, minimum=1),
    _key("min_size_kb", "float", "Smallest median object, in KiB.", default=1.0, minimum=0),
    # How it is streamed.
    _slot(
        "cache_dir", "text", "Cache folder.", default="~/.cache/quark_stream", env=("CACHE_DIR",)
    ),
    _key(
        "cache_gb",
        "float",
        "Cache budget in GB (10^9).",
        default=20.0,
        minimum=0,
        env=("CACHE_GB",),
    ),
    _slot("cache_bytes", "int", "Cache budget in bytes; wins over cache_gb.", minimum=0),
    _key(
        "cache_policy",
        "choice",
        "What is evicted first.",
        default="next_use",
        choices=("next_use", "lru"),
    ),
    _slot("prefetch", "int", "Shards to read ahead; unset: self-tuning, 0: none.", minimum=0),
    _key(
        "fetch_concurrency",
        "int",
        "Requests in flight.",
        default=8,
        minimum=1,
        env=("AWS_MAX_CONCURRENCY",),
    ),
    _slot("workers", "int", "Loader worker processes a rank.", default=0, minimum=0),
    _slot("shuffle", "bool", "Shuffle the training data.", default=True),
    _key(
        "mix_stop",
        "choice",
        "When an epoch over several groups ends: with the last one, or the first that is through.",
        default="all_exhausted",
        choices=("all_exhausted", "first_exhausted"),
    ),
    _key(
        "stall_seconds",
        "float",
        "Nothing moved for so long: write what is waited for and all stacks to the log; 0: never.",
        default=60.0,
        minimum=0,
    ),
    _key(
        "shuffle_mb",
        "float",
        "MB of shards open at a time to mix over; unset: 75, more where files cannot be cut.",
        minimum=0,
        exclusive=True,
    ),
    _slot("seed", "int", "Seed of order and weights.", default=42, minimum=0),
    _slot(
        "partition",
        "choice",
        "How samples are dealt to ranks.",
        default="round_robin",
        choices=("round_robin", "contiguous", "hash", "range", "stratified", "adaptive", "files"),
    ),
    _slot("partition_key", "text", "Field that stratified partitioning reads."),
    _key("num_partitions", "int", "Partitions of the hash strategy.", default=16, minimum=1),
    _key("hash_seed", "int", "Seed of the hash strategy.", default=42, minimum=0),
    _key("ranges", "texts", "Half-open ranges of the range strategy: 0-250,250-500."),
    _key(
        "equalize",
        "choice",
        "What makes all ranks take the same number of steps.",
        default="drop",
        choices=("drop", "pad", "none"),
    ),
    _key(
        "max_drop",
        "float",
        "Largest share of samples a strategy may leave out.",
        default=0.01,
        minimum=0,
        maximum=1,
    ),
    _key(
        "on_bad",
        "choice",
        "A record that cannot be read: stop, or skip within bad_budget.",
        default="fail",
        choices=("fail", "skip"),
    ),
    _key(
        "bad_budget",
        "int",
        "Records that on_bad=skip may skip in an epoch; unset: 1000.",
        minimum=0,
    ),
    _key(
        "max_attempts",
        "int",
        "Workers that may die in a row at one place of a shard; then `process` leaves it alone.",
        default=3,
        minimum=1,
    ),
    _key(
        "on_missing",
        "choice",
        "An object gone since it was listed.",
        default="fail",
        choices=("fail", "skip"),
    ),
    _key("allow_changed", "bool", "Resume although the data changed.", default=False),
    _key("allow_nan", "bool", "Accept NaN and Infinity in JSON.", default=False),
    _key("strict", "bool", "Refuse what is merely suspicious.", default=False),
    # Records and tokens.
    _key("text_key", "text", "Field that holds the text."),
    _key("template", "text", "Text made of several fields: `{title}: {body}`."),
    _key("tokenizer", "text", "`bytes` or the path of a tokenizer.json.", default="bytes"),
    _key("vocab_size", "int", "Tokens of the model; unset: the tokenizer's.", minimum=3),
    _key("token_dtype", "choice", "Numbers of `.bin` token files.", choices=("uint16", "uint32")),
    _slot("seq_len", "int", "Tokens in a sequence.", default=256, minimum=2),
    _key("pad_id", "int", "Padding token.", default=0, minimum=0),
    _key("eos_id", "int", "End token.", default=2, minimum=0),
    _key(
        "overlong",
        "choice",
        "Rows longer than seq_len.",
        default="split",
        choices=("cut", "split", "error"),
    ),
    # The model and its training.
    _key("layers", "int", "The size dial of the quark model.", default=4, minimum=1),
    _slot("parameters", "int", "Size of the quark model; sets layers to the nearest.", minimum=1),
    _key("lora_rank", "int", "Train adapters of this rank on an hf: model.", minimum=1),
    _key("lora_alpha", "float", "How strongly adapters count; unset: twice the rank.", minimum=0),
    _slot("epochs", "float", "Passes over the data.", minimum=0, exclusive=True),
    _slot("max_steps", "int", "Stop after this many steps.", minimum=1, aliases=("steps",)),
    _slot("max_tokens", "int", "Stop after this many tokens.", minimum=1),
    _slot("max_samples", "int", "Stop after this many samples.", minimum=1),
    _slot("max_seconds", "float", "Stop after this long.", minimum=0, exclusive=True),
    _key("early_stop", "int", "Stop after so many evaluations with no better loss.", minimum=1),
    _slot(
        "batch_size",
        "int",
        "Samples in a batch over all ranks (per rank with batch_scope=device).",
        default=32,
        minimum=1,
        aliases=("bs",),
    ),
    _slot(
        "batch_scope",
        "choice",
        "Whether batch_size counts all ranks or each.",
        default="global",
        choices=("global", "device"),
    ),
    _slot("grad_accum", "int", "Micro-batches in a step.", default=1, minimum=1),
    _slot(
        "lr",
        "float",
        "Peak learning rate.",
        default=1e-3,
        minimum=0,
        exclusive=True,
        aliases=("learning_rate",),
    ),
    _slot(
        "schedule",
        "choice",
        "Learning-rate schedule.",
        default="cosine",
        choices=("cosine", "linear", "constant"),
    ),
    _slot("warmup_steps", "int", "Steps of linear warm-up.", default=0, minimum=0),
    _slot("optimizer", "choice", "Optimizer.", default="adamw", choices=("adamw", "sgd")),
    _slot("weight_decay", "float", "Weight decay.", default=0.1, minimum=0),
    _key("betas", "floats", "AdamW's betas.", default=(0.9, 0.95)),
    _slot("grad_clip", "float", "Largest gradient norm; 0: no clipping.", default=1.0, minimum=0),
    _slot(
        "precision",
        "choice",
        "Number format of the forward pass; unset: bf16 on cuda, else fp32.",
        choices=("bf16", "fp16", "fp32"),
    ),
    _key("compile", "bool", "Use torch.compile.", default=False),
    _key(
        "parallel", "choice", "How ranks share the model.", default="ddp", choices=("ddp", "fsdp")
    ),
    _key(
        "tensor_parallel",
        "int",
        "Ranks that share each weight and get the same data.",
        default=1,
        minimum=1,
    ),
    _slot(
        "device",
        "choice",
        "Device; unset: cuda, else mps, else cpu.",
        choices=("cpu", "cuda", "mps"),
    ),
    _slot("gpus", "int", "Processes on this node, one a device.", minimum=1),
    _slot("nodes", "int", "Machines.", default=1, minimum=1),
    _key("min_nodes", "int", "Machines with which a run goes on.", default=1, minimum=1),
    _key("rendezvous", "text", "HOST:PORT where several machines meet; unset: all on this one."),
    _key("max_restarts", "int", "Starts after a rank was lost.", default=3, minimum=0),
    _key("rejoin_seconds", "float", "How long a new start waits for machines.", default=15.0),
    _key("sample_log", "bool", "Log a hash of every sample trained on.", default=False),
    _key("track", "texts", "Trackers that are told of the run: wandb, mlflow."),
    _slot("name", "text", "Name of the run."),
    _key("out_dir", "text", "Folder that runs are kept in.", default="runs"),
    _slot("checkpoint_every", "every", "How often to save: 500, 500steps, 10m, 5000samples."),
    _slot("eval_every", "every", "How often to evaluate."),
    _key("checkpoint_dir", "text", "Folder or store URI that checkpoints go to; unset: the run's."),
    _slot("keep", "int", "Checkpoints kept.", default=3, minimum=1),
    _slot("resume", "choice", "Continue an earlier run of this name.", choices=("never", "auto")),
    *REMOTE_KEYS,
    _slot("detach", "bool", "Leave the run going in the background."),
    *SIMULATION_KEYS,
)

KEYS_BY_NAME: dict[str, SettingKey] = {
    name: key for key in SETTING_KEYS for name in (key.name, *key.aliases)
}

_INTEGER = re.compile(r"[+-]?\d[\d_]*")
_FLOAT = re.compile(r"[+-]?(\d[\d_]*(\.[\d_]*)?|\.\d+)([eE][+-]?\d+)?")
_EVERY = re.compile(r"(\d+(?:\.\d+)?)\s*(steps?|samples?|s|sec|seconds?|m|min|minutes?|h|hours?)?")
_SECONDS = {"s": 1, "m": 60, "h": 3600}


def _number(key: SettingKey, text: str) -> float:
    if not _FLOAT.fullmatch(text):
        raise _bad(key, text, "a number")
    return float(text.replace("_", ""))


def _whole(key: SettingKey, text: str) -> int:
    # `010` is ten, as written; hexadecimal is refused.
    if _INTEGER.fullmatch(text):
        return int(text.replace("_", ""), 10)
    number = _number(key, text)
    if not math.isfinite(number) or not number.is_integer():
        raise _bad(key, text, "a whole number")
    return int(number)


def _flag(key: SettingKey, text: str) -> bool:
    word = text.lower()
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise _bad(key, text, "true or false")


def _choice(key: SettingKey, text: str) -> str:
    word = text.lower()
    if word not in key.choices:
        raise _bad(key, text, "one of " + ", ".join(key.choices))
    return word


def _every(key: SettingKey, text: str) -> dict[str, float]:
    found = _EVERY.fullmatch(text.strip().lower())
    if not found:
        raise _bad(key, text, "steps, a duration or samples (500, 500steps, 10m, 5000samples)")
    amount, unit = float(found[1]), found[2] or "steps"
    whole = int(amount) if amount.is_integer() else amount
    if whole <= 0:
        raise _bad(key, text, "more than 0")
    if unit.startswith("step"):
        return {"steps": whole}
    if unit.startswith("sample"):
        return {"samples": whole}
    seconds = amount * _SECONDS[unit[0]]
    return {"seconds": int(seconds) if seconds.is_integer() else seconds}


def _list(key: SettingKey, text: str) -> list[Any]:
    parts = [part.strip() for part in text.split(",")] if text else []
    return [_number(key, part) for part in parts] if key.kind == "floats" else parts


_PARSERS = {
    "text": lambda _key, text: text,
    "int": _whole,
    "float": _number,
    "bool": _flag,
    "choice": _choice,
    "every": _every,
    "texts": _list,
    "floats": _list,
}


def _bad(key: SettingKey, value: object, accepted: str) -> UsageError:
    return UsageError(
        f"{key.name}={value}: not {accepted}",
        hint=f"{key.name} takes {accepted}.",
        key=key.name,
        value=str(value),
        accepted=accepted,
    )


def check_limits(key: SettingKey, value: Any) -> None:
    """Raise UsageError when a typed value is out of the key's limits."""
    if key.name == "betas" and not (len(value) == 2 and all(0 <= beta < 1 for beta in value)):  # noqa: PLR2004 - AdamW's two
        raise _bad(key, ",".join(map(str, value)), "two numbers from 0 to below 1, as 0.9,0.95")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if not math.isfinite(value):
        raise _bad(key, value, "a finite number")
    if key.minimum is not None and (
        value < key.minimum or (key.exclusive and value == key.minimum)
    ):
        raise _bad(key, value, f"{'more than' if key.exclusive else 'at least'} {key.minimum:g}")
    if key.maximum is not None and value > key.maximum:
        raise _bad(key, value, f"at most {key.maximum:g}")


def parse_value(name: str, text: str) -> Any:
    """Return the value of setting `name` (or an alias of it) typed by the setting's own type.

    Raises:
        UsageError: unknown key (the hint names the nearest), or a value it does not take.
    """
    key = find_key(name)
    value = _PARSERS[key.kind](key, text)
    check_limits(key, value)
    return value


def find_key(name: str) -> SettingKey:
    """Return the setting of a name or alias.

    Raises:
        UsageError: nobody knows the key (the hint names the nearest), or it is refused by name.
    """
    key = KEYS_BY_NAME.get(name)
    if key is None:
        refuse_by_name(name)
        near = nearest_key(name)
        hint = f"Did you mean {near}?" if near else "`quark help settings` lists every key."
        raise UsageError(f"{name}: unknown setting", hint=hint, key=name, nearest=near)
    return key


def nearest_key(name: str) -> str | None:
    """Return the known key closest to `name`, or None when nothing is close."""
    from rapidfuzz import process
    from rapidfuzz.distance import OSA

    found = process.extractOne(
        name.lower(), list(KEYS_BY_NAME), scorer=OSA.distance, score_cutoff=max(1, len(name) // 3)
    )
    return str(found[0]) if found else None
