"""The streaming guide's quick start (section G), and everything it promises by name: one test a row."""

import ast
import asyncio
import inspect
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from brain.ml.dataset_shards.stream_dataset import StreamDataset
from resource_manager.doctor import check_cache_disk
from resource_manager.plan import cache_warnings, request_warnings
from tests.brain.stream_data import folder_manager, ids
from tests.resource_manager.test_plan import make_data, make_job
from tests.stream_parts import memory_manager
from tools_utilities.errors import UsageError
from tools_utilities.scripts.s3_streaming_manager import StreamingManager
from tools_utilities.settings import load_settings
from tools_utilities.stream_statistics import StreamStatistics

CHECKOUT = Path(__file__).resolve().parents[2]
README = (CHECKOUT / "README.md").read_text(encoding="utf-8")


def put(manager: StreamingManager, prefix: str = "d/train-", count: int = 4) -> list[str]:
    """Write shards of 10 records each, ids counting on; returns their keys."""
    keys = [f"{prefix}{number:05d}.jsonl" for number in range(count)]
    for number, key in enumerate(keys):
        rows = (json.dumps({"id": 10 * number + n}) for n in range(10))
        manager.store.put(key, ("\n".join(rows) + "\n").encode())
    return keys


@pytest.fixture
def manager(tmp_path: Path) -> StreamingManager:
    return memory_manager(tmp_path, "g")


# The quick start, as README prints it


def quick_start() -> str:
    (code,) = [
        block
        for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL)
        if "StreamDataset(" in block
    ]
    return str(code)


def test_the_quick_start_prints_every_sample_once(
    aws_environment, moto_endpoint, make_bucket, put_objects, tmp_path, monkeypatch, capsys
):
    code, bucket = quick_start(), make_bucket(moto_endpoint)
    objects = {
        f"datasets/myset/train-{number:05d}.jsonl": b'{"id": %d}\n' % number for number in range(5)
    }
    put_objects(moto_endpoint, bucket, {**objects, "datasets/myset/val-0.jsonl": b'{"id": 99}\n'})
    aws_environment.setenv("AWS_ENDPOINT_URL", moto_endpoint)
    aws_environment.setenv("CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    printed_bucket = next(
        node.value
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Constant) and str(node.value).endswith("bucket")
    )
    exec(compile(code.replace(str(printed_bucket), bucket), "README", "exec"), {})  # noqa: S102 - it is what README prints
    found = sorted(ast.literal_eval(line)["id"] for line in capsys.readouterr().out.splitlines())
    assert found == list(range(5))


# `StreamingManager(bucket, *, cache_dir, cache_gb, endpoint_url, profile)`


def test_a_manager_takes_the_documented_names(aws_environment, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = StreamingManager(
        "some-bucket",
        cache_dir=tmp_path / "c",
        cache_gb=0.5,
        endpoint_url="http://127.0.0.1:9",
        profile="p",
    )
    assert made.spec.uri == "s3://some-bucket"
    assert (made.spec.endpoint_url, made.spec.profile) == ("http://127.0.0.1:9", "p")
    assert made.options.cache_bytes == 500_000_000
    assert made.cache_dir == tmp_path / "c"
    kinds = inspect.signature(StreamingManager).parameters
    named = ("cache_dir", "cache_gb", "endpoint_url", "profile")
    assert all(kinds[name].kind is kinds[name].KEYWORD_ONLY for name in named)
    assert all(kinds[name].default is None for name in named)


def test_open_gives_a_binary_file(manager):
    (key, *_) = put(manager)
    with manager.open(key) as file:
        assert file.readline() == b'{"id": 0}\n'
        assert file.seek(0) == 0
        assert len(file.read().splitlines()) == 10


def test_prefetch_and_aprefetch_bring_objects_near(manager):
    keys = put(manager)
    manager.prefetch(keys[:2])
    asyncio.run(manager.aprefetch(keys[2:]))
    before = manager.get_stats()["requests"]
    for key in keys[2:]:
        manager.open(key).close()
    assert manager.get_stats()["requests"] == before  # aprefetch waited for them
    for key in keys[:2]:
        manager.open(key).close()
    stats = manager.get_stats()
    assert (stats["prefetch_hits"], stats["prefetch_misses"]) == (2, 0)


# `StreamDataset(manager, prefix, *, …)` and its methods


def test_a_dataset_has_the_documented_defaults():
    given = inspect.signature(StreamDataset).parameters
    documented = {
        "deserialize": None, "shuffle": True, "seed": 42, "prefetch": "auto", "batch_size": None,
        "partition": "round_robin", "equalize": "drop",
    }  # fmt: skip
    assert {name: given[name].default for name in documented} == documented
    assert list(given)[:2] == ["manager", "prefix"]


def test_deserialize_gets_one_records_bytes(manager):
    put(manager)
    stream = StreamDataset(manager, "d/train-", deserialize=bytes)
    assert sorted(stream) == sorted(b'{"id": %d}' % number for number in range(40))


def test_set_epoch_and_reset(manager):
    put(manager)
    stream = StreamDataset(manager, "d/train-")
    first, second = ids(stream), ids(stream)
    assert first != second
    stream.set_epoch(1)
    assert ids(stream) == second
    stream.reset()
    assert ids(stream) == first


def test_len_is_this_ranks_samples_once_counts_are_known(manager):
    put(manager)
    stream = StreamDataset(manager, "d/train-", rank=0, world_size=3)
    with pytest.raises(TypeError, match="not known before it has been read once"):
        len(stream)
    found = ids(stream)
    assert len(stream) == len(found) == 13  # 40 samples, equal for all ranks


def test_is_empty(manager):
    assert StreamDataset(manager, "d/train-").is_empty
    put(manager)
    assert not StreamDataset(manager, "d/train-").is_empty


def test_validate_counts_and_names_what_is_wrong(manager):
    put(manager)
    manager.store.put("d/train-00009.jsonl", b'{"id": 1}\n{"id": \n')
    found = StreamDataset(manager, "d/train-").validate()
    assert not found.is_valid
    assert (found.num_objects, found.num_samples, found.num_problems) == (5, 41, 1)
    assert "d/train-00009.jsonl" in found.problems[0]
    assert StreamDataset(manager, "d/train-00001").validate().is_valid


def test_prefetch_fetches_the_next_epochs_first_objects(manager):
    put(manager, count=8)
    stream = StreamDataset(manager, "d/train-")
    stream.prefetch(3)
    ids(stream)
    assert manager.get_stats()["prefetch_hits"] >= 3


def test_state_dict_and_load_state_dict(manager):
    put(manager)
    stream = StreamDataset(manager, "d/train-")
    whole = ids(stream)
    stream.reset()
    samples = iter(stream)
    begun = [next(samples)["id"] for _ in range(7)]
    other = StreamDataset(manager, "d/train-")
    other.load_state_dict(json.loads(json.dumps(stream.state_dict())))
    assert begun + ids(other) == whole


def test_from_samples_has_the_same_order_and_strategies():
    samples = [{"id": number} for number in range(30)]
    stream = StreamDataset.from_samples(samples, seed=3)
    assert ids(stream) != list(range(30))
    parts = [
        ids(StreamDataset.from_samples(samples, partition="files", rank=rank, world_size=3))
        for rank in range(3)
    ]
    assert [sorted(part) for part in parts] == [list(range(rank, 30, 3)) for rank in range(3)]


def test_it_is_a_dataset_of_a_plain_dataloader(tmp_path):
    stream = StreamDataset(folder_manager(tmp_path, [10, 10]), "data/x/", batch_size=4)
    batches = [batch["id"].tolist() for batch in DataLoader(stream, batch_size=4)]
    assert sorted(number for batch in batches for number in batch) == list(range(20))


# One config value `data_mode`


def test_data_mode_is_local_streaming_or_auto(tmp_path):
    def mode(**overrides: str) -> str:
        settings = load_settings(start_dir=tmp_path, environ={}, overrides=overrides)
        return str(settings.value("data_mode"))

    assert mode() == "local"
    assert mode(bucket="b") == "streaming"
    assert mode(bucket="b", data_mode="local") == "local"
    assert mode(bucket="b", data_mode="auto") == "streaming"
    with pytest.raises(UsageError, match="data_mode=remote"):
        mode(data_mode="remote")


# `aiofiles aiohttp`: not needed


def test_streaming_loads_neither_aiofiles_nor_aiohttp():
    code = (
        "import sys, asyncio\n"
        "from tools_utilities.scripts.s3_streaming_manager import StreamingManager\n"
        "from tools_utilities.object_store import StoreSpec\n"
        "m = StreamingManager.for_store(StoreSpec(uri='memory://x'), cache_dir=None, cache_bytes=0)\n"
        "m.store.put('a', b'x')\n"
        "asyncio.run(m.aprefetch(['a']))\n"
        "assert m.open('a').read() == b'x'\n"
        "print(*{'aiofiles', 'aiohttp'} & {name.partition('.')[0] for name in sys.modules})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


# Request rate ≫ 3,000/s → bigger shards


def test_the_plan_names_the_shard_size_that_halves_the_requests():
    small = make_data(num_shards=100_000, total_bytes=100_000 * 2048, median_bytes=2048.0)
    (warning,) = request_warnings(make_job(fetch_concurrency=256), (small,))
    assert "GET/s on one prefix (over 3,000)" in warning
    assert "shards of 4 KiB halve it" in warning
    assert request_warnings(make_job(fetch_concurrency=8), (small,)) == []


def test_requests_a_second_are_in_the_statistics(manager):
    now = [100.0]
    statistics = StreamStatistics(clock=lambda: now[0])
    assert statistics.to_dict()["requests_per_second"] == 0.0
    for _ in range(5):
        statistics.add(requests=1)
        now[0] += 0.5
    assert statistics.to_dict()["requests_per_second"] == 2.0
    put(manager)
    ids(StreamDataset(manager, "d/train-"))
    assert manager.get_stats()["requests_per_second"] > 0


# Cache on a local SSD, not NFS


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
def test_doctor_and_plan_warn_of_a_cache_on_a_network_disk(tmp_path, kind):
    mounts = f"server:/x {tmp_path} {kind} rw 0 0\n"
    found = check_cache_disk(tmp_path / "cache", 1, mounts)
    assert found.state == "warn"
    assert "CACHE_DIR" in found.fix
    (warning,) = cache_warnings(str(tmp_path / "cache"), kind)
    assert f"is on {kind}" in warning
    assert cache_warnings(str(tmp_path / "cache"), "ext4") == []


# `too many open files`

OPEN_FILES = """
import json, resource, sys
from pathlib import Path
from brain.ml.dataset_shards.stream_dataset import StreamDataset
from tools_utilities.errors import QuarkError
from tools_utilities.object_store import StoreSpec
from tools_utilities.scripts.s3_streaming_manager import StreamingManager

folder = Path(sys.argv[2])
for uri in (f"file://{folder}", "memory://x"):
    manager = StreamingManager.for_store(
        StoreSpec(uri=uri), cache_dir=str(folder / "cache"), cache_bytes=10**9
    )
    for number in range(120):
        manager.store.put(f"d/train-{number:05d}.jsonl", b'{"id": 1}\\n')
    resource.setrlimit(resource.RLIMIT_NOFILE, (60, int(sys.argv[1])))
    try:
        list(StreamDataset(manager, "d/"))
    except QuarkError as error:
        print(json.dumps([str(error), error.hint]))
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[1])))
"""


def test_too_many_open_files_names_the_limit_and_prefetch(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", OPEN_FILES, "4096", str(tmp_path)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == 2  # in place, and through the cache
    for message, hint in found:
        assert message == "too many open files: this process has all 60 open that its limit allows"
        assert "prefetch=2" in hint


# `AWS_MAX_CONCURRENCY`


def test_the_other_name_of_fetch_concurrency_is_read_too(tmp_path):
    def concurrency(**environ: str) -> tuple[Any, str]:
        settings = load_settings(start_dir=tmp_path, environ=environ)
        return settings.value("fetch_concurrency"), settings.source("fetch_concurrency")

    assert concurrency(AWS_MAX_CONCURRENCY="3") == (3, "environment AWS_MAX_CONCURRENCY")
    assert concurrency(AWS_MAX_CONCURRENCY="3", QUARK_FETCH_CONCURRENCY="5")[0] == 5


# IAM: three policies


def test_the_readme_has_three_policies_that_are_policies():
    found = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", README, re.DOTALL)]
    actions: list[set[str]] = []
    for policy in found:
        assert policy["Version"] == "2012-10-17"
        said: set[str] = set()
        for statement in policy["Statement"]:
            named = statement["Action"]
            said |= {named} if isinstance(named, str) else set(named)
        actions.append(said)
    assert actions == [
        {"s3:ListBucket", "s3:GetObject"},
        {"s3:PutObject", "s3:AbortMultipartUpload"},
        {"s3:DeleteObject"},
    ]


# `pip install 'moto[all]'`: a dev extra


def test_moto_is_in_the_dev_extra():
    extras = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert any(re.match(r"moto\[.*server", line) for line in extras["dev"])


# `load_dataset('json', data_files=…, streaming=True)`


def test_the_docs_show_load_dataset_beside_ours():
    guide = (CHECKOUT / "docs/streaming.md").read_text(encoding="utf-8")
    assert re.search(r'load_dataset\("json", data_files="s3://[^"]+", streaming=True', guide)


def test_hugging_faces_json_reader_gives_the_same_records(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets", reason="needs the extra [hf]")
    folder = tmp_path / "data/d"
    folder.mkdir(parents=True)
    for number in range(3):
        rows = (json.dumps({"id": 10 * number + n, "text": f"é {n}"}) for n in range(10))
        (folder / f"train-{number}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    theirs = datasets.load_dataset(
        "json", data_files=str(folder / "*.jsonl"), split="train", streaming=True
    )
    from tools_utilities.object_store import StoreSpec

    spec = StoreSpec(uri=f"file://{tmp_path}/data")
    manager = StreamingManager.for_store(spec, cache_dir=None, cache_bytes=0)
    ours = StreamDataset(manager, "d/train-", shuffle=False)
    assert list(ours) == list(theirs)
