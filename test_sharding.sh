#!/usr/bin/env bash
# Shards 100 tasks, claims one shard, completes it, and shows what is there.
# Works in a new temporary folder; removed at the end unless KEEP is set.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python="${PYTHON:-python3}"
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"
work="$(mktemp -d)"
[ -n "${KEEP:-}" ] || trap 'rm -rf "$work"' EXIT
scripts="$here/tools_utilities/scripts"

"$python" -c '
import json, sys
with open(sys.argv[1], "w") as file:
    for number in range(100):
        file.write(json.dumps({"task_id": number, "text": "x" * 5000}) + "\n")
' "$work/tasks.jsonl"

"$python" "$scripts/create_sharded_dataset.py" \
    --input_file "$work/tasks.jsonl" --output_dir "$work/sharded" \
    --num_shards 8 --chunk_size_mb 0.1 --verbose
"$python" "$scripts/shard_manager.py" --dataset_dir "$work/sharded" --action status
"$python" "$scripts/shard_manager.py" --dataset_dir "$work/sharded" \
    --action claim --worker_id test_worker --shard_id 3
cat "$work/sharded/shard_003/metadata.json"
"$python" "$scripts/shard_manager.py" --dataset_dir "$work/sharded" --action status
"$python" "$scripts/shard_manager.py" --dataset_dir "$work/sharded" --action complete --shard_id 3
"$python" "$scripts/shard_manager.py" --dataset_dir "$work/sharded" --action status --verbose
(cd "$work/sharded" && find . -type f | sort)
echo "ok"
