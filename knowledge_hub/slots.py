"""Which slots an intent can use, as sets that intents share. Pure data."""

from typing import Final

EVERYWHERE: Final = frozenset({"plan_only", "set", "then"})
"""Slots that every intent takes."""
STOP_RULES: Final = frozenset(
    ["epochs", "max_steps", "max_tokens", "max_samples", "max_seconds", "max_cost"]
)
"""The first of them that is reached ends a run."""
TRAIN_SLOTS: Final = frozenset(
    [
        "model",
        "data",
        "weights",
        "groups",
        "depth",
        "val",
        "init_from",
        "resume",
        "name",
        "epochs",
        "max_steps",
        "max_tokens",
        "max_samples",
        "max_seconds",
        "batch_size",
        "batch_scope",
        "grad_accum",
        "lr",
        "schedule",
        "warmup_steps",
        "optimizer",
        "weight_decay",
        "grad_clip",
        "precision",
        "seq_len",
        "seed",
        "parameters",
        "device",
        "gpus",
        "nodes",
        "workers",
        "partition",
        "partition_key",
        "shuffle",
        "cache_bytes",
        "cache_dir",
        "prefetch",
        "checkpoint_every",
        "eval_every",
        "keep",
        "where",
        "gpu_type",
        "spot",
        "max_price_hour",
        "max_cost",
        "detach",
    ]
)
RESUME_SLOTS: Final = (TRAIN_SLOTS - {"data", "model", "parameters", "weights", "init_from"}) | {
    "run",
    "from_step",
}
AGAIN_SLOTS: Final = TRAIN_SLOTS | {"run"}
EVALUATE_SLOTS: Final = frozenset(
    [
        "model",
        "run",
        "data",
        "groups",
        "depth",
        "batch_size",
        "batch_scope",
        "max_steps",
        "max_tokens",
        "max_samples",
        "max_seconds",
        "precision",
        "seq_len",
        "seed",
        "device",
        "gpus",
        "nodes",
        "workers",
        "cache_bytes",
        "cache_dir",
        "prefetch",
        "name",
        "where",
        "gpu_type",
        "spot",
        "max_price_hour",
        "max_cost",
        "detach",
    ]
)
SHARD_SLOTS: Final = frozenset(
    [
        "source",
        "out",
        "shards",
        "chunk_bytes",
        "samples_per_shard",
        "format",
        "compression",
        "max_samples",
        "seed",
        "shuffle",
        "workers",
        "name",
    ]
)
PROCESS_SLOTS: Final = frozenset(
    [
        "data",
        "groups",
        "function",
        "out",
        "worker",
        "workers",
        "batch_size",
        "max_samples",
        "device",
        "gpus",
    ]
)
OFFER_SLOTS: Final = frozenset(["where", "gpus", "gpu_type", "nodes", "spot", "max_price_hour"])
EXPORT_SLOTS: Final = TRAIN_SLOTS | {"run", "format", "out"}
MODEL_INTENTS: Final = frozenset({"train", "finetune", "evaluate", "estimate"})
"""The intents that take a model word after their verb."""
CONFIRM_INTENTS: Final = frozenset({"stop", "delete_run", "clean_cache", "reset_shard"})
