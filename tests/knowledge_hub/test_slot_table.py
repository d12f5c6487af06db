"""Every intent with every slot: what it can use is set, what it has no use for is reported.

The table is the language contract's, written here once more so that a change of the code alone
fails.
"""

from typing import Any

import pytest

from knowledge_hub.hub import KnowledgeHub, intents
from tests.knowledge_hub.scoring import same

HUB = KnowledgeHub()
_TRAIN = (
    "model data weights groups depth val init_from resume name epochs max_steps max_tokens "
    "max_samples max_seconds batch_size batch_scope grad_accum lr schedule warmup_steps optimizer "
    "weight_decay grad_clip precision seq_len seed parameters device gpus nodes workers partition "
    "partition_key shuffle cache_bytes cache_dir prefetch checkpoint_every eval_every keep where "
    "gpu_type spot max_price_hour max_cost detach"
)
_EVALUATE = (
    "model run data groups depth batch_size batch_scope max_steps max_tokens max_samples "
    "max_seconds precision seq_len seed device gpus nodes workers cache_bytes cache_dir prefetch "
    "name where gpu_type spot max_price_hour max_cost detach"
)
TRAIN, EVALUATE = frozenset(_TRAIN.split()), frozenset(_EVALUATE.split())
OTHERS = {
    "discover": "data depth",
    "inspect": "data depth groups max_samples seed shuffle",
    "shard": "source out shards chunk_bytes samples_per_shard format compression max_samples seed "
    "shuffle workers name",
    "claim": "data worker prefer",
    "complete": "data shard worker",
    "fail": "data shard worker",
    "reset_shard": "data shard",
    "shard_status": "data follow",
    "process": "data groups function out worker workers batch_size max_samples device gpus",
    "list": "state lines",
    "show": "run",
    "stop": "run",
    "attach": "run",
    "delete_run": "run",
    "logs": "run follow lines",
    "compare": "runs",
    "clean_cache": "cache_dir",
    "offers": "where gpus gpu_type nodes spot max_price_hour",
    "doctor": "data where cache_dir",
    "demo": "epochs max_steps max_seconds device gpus",
    "help": "topic",
}
CAN_USE = {
    **dict.fromkeys(["train", "finetune", "estimate", "simulate"], TRAIN),
    "resume": TRAIN - {"data", "model", "parameters", "weights", "init_from"}
    | {"run", "from_step"},
    "again": TRAIN | {"run"},
    "evaluate": EVALUATE,
    "export": TRAIN | {"run", "format", "out"},
    **{name: frozenset(slots.split()) for name, slots in OTHERS.items()},
}
EVERYWHERE = frozenset({"plan_only", "set"})
LEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "train": ("train quark on ./d", {"model": "quark", "data": ["./d"]}),
    "finetune": ("finetune quark on ./d", {"model": "quark", "data": ["./d"]}),
    "estimate": ("estimate quark on ./d", {"model": "quark", "data": ["./d"]}),
    "simulate": ("simulate on ./d", {"data": ["./d"]}),
    "resume": ("resume fox-12", {"run": "fox-12"}),
    "again": ("rerun fox-12", {"run": "fox-12"}),
    "evaluate": ("evaluate quark on ./d", {"model": "quark", "data": ["./d"]}),
    "discover": ("discover ./d", {"data": ["./d"]}),
    "inspect": ("inspect ./d", {"data": ["./d"]}),
    "shard": ("shard ./d", {"source": "./d"}),
    "claim": ("claim from ./d", {"data": ["./d"]}),
    "complete": ("complete shard 3", {"shard": 3}),
    "fail": ("fail shard 3", {"shard": 3}),
    "reset_shard": ("reset shard 3", {"shard": 3}),
    "shard_status": ("shard status in ./d", {"data": ["./d"]}),
    "process": ("process ./d with a.b:c", {"data": ["./d"], "function": "a.b:c"}),
    "list": ("list", {}),
    "show": ("show fox-12", {"run": "fox-12"}),
    "stop": ("stop fox-12", {"run": "fox-12"}),
    "attach": ("attach to fox-12", {"run": "fox-12"}),
    "delete_run": ("delete fox-12", {"run": "fox-12"}),
    "logs": ("logs of fox-12", {"run": "fox-12"}),
    "compare": ("compare fox-12 and owl-3", {"runs": ["fox-12", "owl-3"]}),
    "clean_cache": ("clear the cache", {}),
    "offers": ("offers", {}),
    "doctor": ("doctor", {}),
    "demo": ("demo", {}),
    "export": ("export fox-12 for slurm", {"run": "fox-12", "format": "slurm"}),
    "help": ("help train", {"topic": "train"}),
}
SAID = {
    "weights": ("with weights 0.5 and 0.5", [0.5, 0.5]),
    "groups": ("groups 1 and 2", {"pick": [1, 2]}),
    "depth": ("depth 5", 5),
    "val": ("validate on ./v", "./v"),
    "init_from": ("starting from owl-9", "owl-9"),
    "resume": ("start fresh", "never"),
    "from_step": ("from step 40", 40),
    "name": ("named genomes", "genomes"),
    "epochs": ("for 3 epochs", 3),
    "max_steps": ("for 100 steps", 100),
    "max_tokens": ("until 1 billion tokens", 10**9),
    "max_samples": ("stop after 5k samples", 5000),
    "max_seconds": ("for 2h30m", 9000),
    "batch_size": ("batches of 32", 32),
    "batch_scope": ("per gpu", "device"),
    "grad_accum": ("accumulate 4 steps", 4),
    "lr": ("lr 2e-5", 2e-5),
    "schedule": ("cosine schedule", "cosine"),
    "warmup_steps": ("200 warmup steps", 200),
    "optimizer": ("adamw", "adamw"),
    "weight_decay": ("weight decay 0.1", 0.1),
    "grad_clip": ("clip at 1.0", 1),
    "precision": ("in bf16", "bf16"),
    "seq_len": ("context 4k", 4096),
    "seed": ("seed 7", 7),
    "parameters": ("with 10M parameters", 10_000_000),
    "device": ("on cpu", "cpu"),
    "gpus": ("on 8 gpus", 8),
    "nodes": ("on 2 nodes", 2),
    "workers": ("with 4 workers", 4),
    "partition": ("hash partitioning", "hash"),
    "shuffle": ("without shuffling", False),
    "cache_bytes": ("with a 50 GB cache", 50 * 10**9),
    "cache_dir": ("cache in /mnt/q", "/mnt/q"),
    "prefetch": ("no prefetch", 0),
    "checkpoint_every": ("save every ten minutes", {"seconds": 600}),
    "eval_every": ("evaluate every 1k steps", {"steps": 1000}),
    "keep": ("keep 3 checkpoints", 3),
    "where": ("on vast", "vast"),
    "gpu_type": ("with an A100", "A100"),
    "spot": ("no spot", False),
    "max_price_hour": ("under $2 an hour", 2),
    "max_cost": ("stop after $15", 15),
    "detach": ("and detach", True),
    "plan_only": ("dry run", True),
    "shards": ("into 8 shards", 8),
    "chunk_bytes": ("100MB chunks", 10**8),
    "samples_per_shard": ("2048 samples each", 2048),
    "compression": ("compressed with zstd", "zstd"),
    "worker": ("as worker_3", "worker_3"),
    "prefer": ("prefer shard 5", 5),
    "follow": ("and follow", True),
    "lines": ("last 200 lines", 200),
    "state": ("running", "running"),
    "set": ("layers=3", {"layers": 3}),
}


def test_what_an_intent_can_use_is_what_the_contract_says():
    assert {name: intent.slots for name, intent in intents().items()} == CAN_USE


@pytest.mark.parametrize("intent", sorted(LEADS))
def test_a_slot_is_set_where_it_is_of_use_and_reported_elsewhere(intent):
    lead, slots = LEADS[intent]
    wrong = []
    for slot, (said, value) in SAID.items():
        reading = HUB.read(f"{lead}, {said}")
        is_of_use = slot in CAN_USE[intent] | EVERYWHERE
        want = ("ok", intent, {**slots, slot: value} if is_of_use else slots)
        want = want if is_of_use else ("unaccounted", *want[1:])
        got = (reading.status, reading.intent, dict(reading.slots))
        if got[:2] != want[:2] or not same(want[2], got[2]):
            wrong.append((reading.sentence, want, got))
    assert not wrong


def test_every_intent_has_a_lead():
    assert LEADS.keys() == intents().keys()
