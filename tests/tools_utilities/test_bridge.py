"""The bridge: settings as documented, a run that leaves a verified dataset, secrets nowhere."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.scripts.test_create_sharded_dataset import samples_of, write_tasks
from tools_utilities.bridge import load_settings, run_from_file, run_pipeline
from tools_utilities.bridge.bridge_process import reporter
from tools_utilities.bridge.pipelines import run_here
from tools_utilities.bridge.program import main
from tools_utilities.errors import DataNotFoundError, UsageError
from tools_utilities.manifest import load_manifest
from tools_utilities.object_store import StoreSpec, open_store
from tools_utilities.sharded_dataset import Dealt

SETTINGS = """
vast:
  api_key: ${VAST_API_KEY}
  offer_id: 12
  image: pytorch
  storage_gb: 50
  max_price_usd_hour: 0.5
  repo_url: https://example.org/repo
  repo_ref: main
  workdir: /root
r2:
  account_id: ${R2_ACCOUNT_ID}
  access_key_id: ${R2_KEY}
  secret_access_key: ${R2_SECRET}
  bucket: bridge
  region: auto
  prefix: runs/one
pipeline:
  name: webdataset
  input_uri: hf://org/set
  input_format: jsonl
  samples_per_shard: 2048
  staging_dir: ~/staging
  source_options:
    split: train
    config: en
    load_kwargs: {revision: main}
    transport_params: {region: eu}
"""
VARIABLES = {"VAST_API_KEY": "v", "R2_ACCOUNT_ID": "acc", "R2_KEY": "k", "R2_SECRET": "s3cret"}


def local(tmp_path: Path, name: str = "jsonl", **pipeline) -> Path:
    """Write settings from a file to a folder."""
    write_tasks(tmp_path / "in.jsonl", 25)
    made = {"name": name, "input_uri": str(tmp_path / "in.jsonl"), "samples_per_shard": 10}
    path = tmp_path / "bridge.yaml"
    path.write_text(json.dumps({"output_dir": str(tmp_path / "out"), "pipeline": made | pipeline}))
    return path


def test_every_documented_key_is_read(tmp_path):
    (tmp_path / "b.yaml").write_text(SETTINGS)

    settings = load_settings(tmp_path / "b.yaml", VARIABLES)

    assert settings.r2 is not None
    assert settings.r2.endpoint == "https://acc.r2.cloudflarestorage.com"
    assert settings.vast is not None
    assert settings.vast.max_price_usd_hour == 0.5
    assert settings.pipeline.source_options.load_kwargs == {"revision": "main"}
    assert "s3cret" not in repr(settings)


def test_toml_says_the_same(tmp_path):
    (tmp_path / "b.toml").write_text(
        'output_dir = "out"\n[pipeline]\nname = "jsonl"\ninput_uri = "${PLACE}/in.jsonl"\n'
    )

    assert load_settings(tmp_path / "b.toml", {"PLACE": "/d"}).pipeline.input_uri == "/d/in.jsonl"


def test_all_missing_variables_are_named(tmp_path):
    (tmp_path / "b.yaml").write_text(SETTINGS)

    with pytest.raises(UsageError, match="R2_ACCOUNT_ID, R2_KEY, R2_SECRET, VAST_API_KEY"):
        load_settings(tmp_path / "b.yaml", {})


@pytest.mark.parametrize(
    ("old", "new", "where", "near"),
    [
        (
            "samples_per_shard",
            "samples_per_shards",
            "pipeline.samples_per_shards",
            "samples_per_shard",
        ),
        ("bucket:", "buckt:", "r2.buckt", "bucket"),
        ("split:", "splt:", "pipeline.source_options.splt", "split"),
        ("vast:", "vest:", "vest", "vast"),
    ],
)
def test_an_unknown_key_names_the_nearest(tmp_path, old, new, where, near):
    (tmp_path / "b.yaml").write_text(SETTINGS.replace(old, new))

    with pytest.raises(UsageError, match=where) as caught:
        load_settings(tmp_path / "b.yaml", VARIABLES)

    assert near in caught.value.hint


def test_what_only_a_hub_knows_is_refused_of_files(tmp_path, capsys):
    config = local(tmp_path, source_options={"split": "train"})

    for command in ("plan", "run"):
        assert main([command, "--config", str(config)]) == 2
        assert "in.jsonl: split would have no effect" in capsys.readouterr().err


def test_a_missing_file_names_init(tmp_path):
    with pytest.raises(DataNotFoundError) as caught:
        load_settings(tmp_path / "none.yaml", {})
    assert "init" in caught.value.hint


def test_init_never_overwrites(tmp_path, capsys):
    config = tmp_path / "bridge.yaml"

    assert main(["init", "--config", str(config)]) == 0
    written = config.read_text()
    config.write_text("mine: 1\n")
    assert main(["init", "--config", str(config)]) == 0

    assert config.read_text() == "mine: 1\n"
    assert "left as it is" in capsys.readouterr().err
    assert "R2_SECRET_ACCESS_KEY" in (tmp_path / ".env-example").read_text()
    config.write_text(written)
    names = ("R2_ACCOUNT_ID", "R2_ACCESS_KEY_ID", "R2_SECRET_ACCESS_KEY")
    assert load_settings(config, dict.fromkeys(names, "x")).pipeline.name == "webdataset"


def test_plan_says_what_a_run_would_do_and_no_secret(tmp_path, capsys, monkeypatch):
    (tmp_path / "b.yaml").write_text(SETTINGS)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)

    assert main(["plan", "--config", str(tmp_path / "b.yaml"), "--prefix", "runs/two"]) == 0

    out = capsys.readouterr().out
    for said in ("hf://org/set", "webdataset", "2048", "s3://bridge/runs/two", "12"):
        assert said in out
    assert "s3cret" not in out


@pytest.mark.parametrize("name", ["jsonl", "parquet", "webdataset", "litdata", "mds"])
def test_each_pipeline_writes_shards_that_read_back(tmp_path, name):
    made = run_from_file(local(tmp_path, name))

    assert (made["total_tasks"], made["num_shards"]) == (25, 3)
    manifest = load_manifest(open_store(StoreSpec(uri=f"file://{tmp_path}/out")), "")
    assert manifest is not None
    assert [shard.num_samples for shard in manifest.shards] == [10, 10, 5]
    back = samples_of(tmp_path / "out")
    if name == "webdataset":
        assert [row["__key__"] for row in back] == [f"{number:09d}" for number in range(25)]
        back = [json.loads(row["json"]) for row in back]
    assert back == samples_of(tmp_path / "in.jsonl")


PEER = {
    "mds": """
from streaming import StreamingDataset
rows = [dict(row) for row in StreamingDataset(local=sys.argv[1], shuffle=False, batch_size=1)]
""",
    "litdata": """
from litdata import StreamingDataset
rows = [dict(row) for row in StreamingDataset(sys.argv[1], shuffle=False)]
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PEER))
def test_the_formats_own_library_reads_the_shards_back(tmp_path, name):
    python = os.environ.get("QUARK_PEERS_PYTHON")
    if not python:
        pytest.skip("QUARK_PEERS_PYTHON names no Python that has litdata and mosaicml-streaming")
    run_from_file(local(tmp_path, name))
    program = f"import json, sys{PEER[name]}print(json.dumps([row['id'] for row in rows]))"

    done = subprocess.run(
        [python, "-c", program, str(tmp_path / "out")], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == list(range(25))


OWN_CLASS = """
class Ids:
    name = "ids"
    suffixes = (".ids",)
    compressible = False
    names = None
    def write(self, samples, file):
        count = 0
        for sample in samples:
            file.write(b"%d;" % sample["id"])
            count += 1
        return count
"""


def test_a_pipeline_class_of_ones_own_is_found_in_the_working_folder(tmp_path):
    (tmp_path / "own_pipeline.py").write_text(OWN_CLASS)
    config = local(tmp_path, "own_pipeline:Ids")
    # As the installed program starts: without the working folder on the path.
    program = "import sys; from tools_utilities.bridge.program import main; sys.exit(main())"

    done = subprocess.run(
        [sys.executable, "-P", "-c", program, "run", "--config", str(config)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    files = sorted((tmp_path / "out").glob("*.ids"))
    assert [len(path.read_bytes().split(b";")) - 1 for path in files] == [10, 10, 5]
    assert b"".join(path.read_bytes() for path in files) == b"".join(b"%d;" % n for n in range(25))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kills", "samples"), [(2, 300), pytest.param(12, 1500, marks=pytest.mark.nightly)]
)
def test_a_pipeline_killed_at_any_moment_loses_and_repeats_nothing(
    tmp_path, weed_endpoint, make_bucket, aws_environment, kills, samples
):
    bucket = make_bucket(weed_endpoint)
    config = local(tmp_path)
    write_tasks(tmp_path / "in.jsonl", samples)
    raw = json.loads(config.read_text())
    del raw["output_dir"]
    raw["r2"] = {"bucket": bucket, "endpoint_url": weed_endpoint, "prefix": "runs/killed"}
    raw["pipeline"] |= {"staging_dir": str(tmp_path / "staging"), "samples_per_shard": 3}
    config.write_text(json.dumps(raw))
    command = [sys.executable, "-m", "tools_utilities.bridge.program", "run", "--config"]
    command.append(str(config))
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    pause = random.Random(20)

    def progress() -> int:
        return sum(path.stat().st_size for path in (tmp_path / "staging").rglob("*.jsonl"))

    for _ in range(kills):
        before = progress()
        worker = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while progress() <= before:
            assert worker.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(pause.uniform(0, 0.05))
        worker.kill()
        assert worker.wait() == -signal.SIGKILL

    last = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)

    assert last.returncode == 0, last.stderr
    store = open_store(StoreSpec(uri=f"s3://{bucket}", endpoint_url=weed_endpoint))
    manifest = load_manifest(store, "runs/killed/")
    assert manifest is not None
    rows = []
    for chunk in (chunk for shard in manifest.shards for chunk in shard.chunks):
        body = store.get(f"runs/killed/{chunk.key}")
        rows += [json.loads(line) for line in b"".join(body).splitlines()]
        body.close()
    assert rows == samples_of(tmp_path / "in.jsonl")
    assert not [path for path in (tmp_path / "staging").rglob("*") if path.is_file()]


def test_a_second_run_leaves_the_first_as_it_is(tmp_path, capsys):
    config = local(tmp_path)
    assert main(["run", "--config", str(config)]) == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}

    assert main(["run", "--config", str(config)]) == 0

    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before
    assert capsys.readouterr().out.count("25 samples in 3 shards") == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "jsnol"}, "jsnol"),
        ({"name": "no.module:Here"}, "no.module"),
        ({"source_options": {"transport_params": {"speed": 1}}}, "speed"),
        ({"samples_per_shard": 0}, "samples_per_shard=0"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_written(tmp_path, change, said):
    config = local(tmp_path, **change)

    with pytest.raises(UsageError, match=said):
        run_pipeline(load_settings(config, {}))

    assert not (tmp_path / "out").exists()


def test_the_program_alone_rents_nothing_and_says_who_does(tmp_path, capsys):
    """Renting is above this layer, and handed in by `resource_manager.bridge_command`."""
    assert main(["run", "--config", str(local(tmp_path)), "--use-vast"]) == 2
    assert "python -m resource_manager.bridge_command" in capsys.readouterr().err


def test_a_token_of_the_settings_is_known_as_a_secret(tmp_path):
    from tools_utilities.redaction import redact

    config = local(tmp_path, source_options={"load_kwargs": {"token": "hub-${WORD}-1", "limit": 3}})
    load_settings(config, {"WORD": "canary"})
    assert redact("sent hub-canary-1") == "sent ***"


def test_how_far_a_pipeline_has_come_is_said_now_and_then():
    now, said = [0.0], list[str]()
    report = reporter(said.append, lambda: now[0])
    for passed, samples, done in (
        (1.0, 10, 5),
        (10.0, 1234, 50),
        (12.0, 2000, 60),
        (20.0, 9, None),
    ):
        now[0] = passed
        report(Dealt(samples=samples, done_bytes=done, total_bytes=200))
    assert said == ["1,234 samples · 25% of the source\n", "9 samples\n"]


def test_keys_reach_the_bucket_by_the_environment_of_a_process(
    tmp_path, weed_endpoint, make_bucket, aws_environment
):
    from tests.servers import ACCESS_KEY, SECRET_KEY

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        aws_environment.delenv(name)
    bucket = make_bucket(weed_endpoint)
    config = local(tmp_path)
    raw = json.loads(config.read_text())
    del raw["output_dir"]
    keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}
    raw["r2"] = {"bucket": bucket, "endpoint_url": weed_endpoint, "region": "us-east-1", **keys}
    raw["r2"]["prefix"] = "runs/one"
    raw["pipeline"]["staging_dir"] = str(tmp_path / "staging")
    config.write_text(json.dumps(raw))

    made = run_from_file(config)

    assert made["output"] == f"s3://{bucket}/runs/one"
    aws_environment.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    aws_environment.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    store = open_store(StoreSpec(uri=f"s3://{bucket}", endpoint_url=weed_endpoint))
    manifest = load_manifest(store, "runs/one/")
    assert manifest is not None
    assert manifest.num_samples == 25
    assert not [path for path in (tmp_path / "staging").rglob("*") if path.is_file()]


def test_only_files_of_the_named_format_are_input(tmp_path):
    folder = tmp_path / "mixed"
    folder.mkdir()
    write_tasks(folder / "a.jsonl", 25)
    (folder / "notes.csv").write_text("id,text\n1,a\n2,b\n")
    settings = {"input_uri": str(folder), "input_format": "jsonl"}
    run_here(load_settings(local(tmp_path, **settings)), None)
    manifest = load_manifest(open_store(StoreSpec(uri=f"file://{tmp_path}/out")), "")
    assert manifest is not None
    assert manifest.num_samples == 25
    settings["input_format"] = "parquet"
    with pytest.raises(DataNotFoundError, match="no files of the format parquet") as caught:
        run_here(load_settings(local(tmp_path, **settings)), None)
    assert caught.value.hint == "Found: csv, jsonl."
