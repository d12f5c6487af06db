"""The data bridge (section B): one test a row, each of what the name does."""

import importlib
import inspect
import json
import re
import signal
import sys
import threading
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tools_utilities.bridge
from tests.documented.hub_fake import Hub, stand_in
from tests.documented.row_table import ROOT, not_asserted
from tests.fakes import Reply, Request, StubCloud, StubS3
from tests.scripts.test_create_sharded_dataset import samples_of
from tests.tools_utilities.test_bridge import SETTINGS, VARIABLES, local
from tools_utilities.bridge import load_settings, run_from_file, run_pipeline
from tools_utilities.bridge.bridge_settings import R2Settings
from tools_utilities.bridge.program import main
from tools_utilities.errors import DataNotFoundError, IntegrityError
from tools_utilities.manifest import load_manifest
from tools_utilities.object_store import ObjectInfo, StoreSpec
from tools_utilities.object_stores import memory

BRIDGE = "tests/tools_utilities/test_bridge.py::"
ORDER, RENTING, START = (
    f"tests/resource_manager/test_bridge_{name}.py::" for name in ("order", "renting", "start")
)
CHECKOUT = "tests/tools_utilities/test_bridge_checkout.py::"
GUIDES = "tests/end_to_end/test_sharding_guides.py::"
ASSERTED_ELSEWHERE = {
    "${VAR} expanded, missing ones an error naming all": (
        f"{BRIDGE}test_toml_says_the_same",
        f"{BRIDGE}test_all_missing_variables_are_named",
    ),
    "unknown keys an error with the nearest": (f"{BRIDGE}test_an_unknown_key_names_the_nearest",),
    "r2.account_id is the endpoint": (f"{BRIDGE}test_every_documented_key_is_read",),
    "r2.access_key_id, secret_access_key reach the bucket": (
        f"{BRIDGE}test_keys_reach_the_bucket_by_the_environment_of_a_process",
    ),
    "init never overwrites": (f"{BRIDGE}test_init_never_overwrites",),
    "plan prints source, format, shard size, prefix, offer": (
        f"{BRIDGE}test_plan_says_what_a_run_would_do_and_no_secret",
    ),
    "pipelines webdataset, litdata, jsonl, parquet, mds": (
        f"{BRIDGE}test_each_pipeline_writes_shards_that_read_back",
    ),
    "pipeline package.module:Class": (
        f"{BRIDGE}test_a_pipeline_class_of_ones_own_is_found_in_the_working_folder",
    ),
    "pipeline.input_format": (f"{BRIDGE}test_only_files_of_the_named_format_are_input",),
    "Terraform and Ansible snippets": (
        f"{GUIDES}test_the_guides_snippets_name_what_the_bridge_reads",
    ),
    "--use-vast runs the same pipeline on the rented machine": (
        f"{ORDER}test_the_preflight_reads_the_source_and_writes_the_output",
        f"{RENTING}test_the_cheapest_offer_is_rented_used_and_destroyed",
        f"{START}test_a_pipeline_is_supervised_and_its_end_is_told",
    ),
    "every setting of vast has its effect or is refused": (
        f"{RENTING}test_every_setting_of_vast_has_its_effect",
        f"{ORDER}test_what_means_nothing_on_a_rented_machine_is_refused_by_name",
    ),
    "vast.repo_url, repo_ref": (f"{CHECKOUT}test_a_branch_a_tag_and_a_commit_are_checked_out",),
}


def test_the_rows_asserted_elsewhere_are():
    assert not_asserted(ASSERTED_ELSEWHERE) == []


# `quark-bridge init|plan|run --config F [--prefix P]` (also installed as `train-data-bridge`)


@pytest.mark.parametrize("name", ["quark-bridge", "train-data-bridge"])
def test_both_names_are_one_program(name, tmp_path, capsys):
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = scripts["scripts"][name].partition(":")
    program = getattr(importlib.import_module(module), function)
    config = str(tmp_path / "bridge.yaml")

    assert program(["init", "--config", config]) == 0
    config = str(local(tmp_path))
    assert program(["plan", "--config", config, "--prefix", "p"]) == 0
    assert program(["run", "--config", config, "--prefix", "p"]) == 0

    printed = capsys.readouterr().out
    assert f"prefix      {tmp_path}/out/p" in printed
    assert printed.endswith(f"25 samples in 3 shards: {tmp_path}/out/p\n")
    assert len(samples_of(tmp_path / "out/p")) == 25


# `from tools_utilities.bridge import run_pipeline, run_from_file, load_settings`


def test_the_three_functions(tmp_path):
    assert {"run_pipeline", "run_from_file", "load_settings"} <= set(tools_utilities.bridge.__all__)
    config = local(tmp_path)
    assert list(inspect.signature(run_from_file).parameters) == ["path", "prefix"]

    first = run_pipeline(load_settings(config), prefix="one")
    second = run_from_file(config, prefix="two")

    assert first == {"total_tasks": 25, "num_shards": 3, "output": f"{tmp_path}/out/one"}
    assert second == {**first, "output": f"{tmp_path}/out/two"}
    for place in ("one", "two"):
        assert [row["id"] for row in samples_of(tmp_path / "out" / place)] == list(range(25))


# YAML or TOML with the sections `vast`, `r2`, `pipeline` and their keys

DOCUMENTED = {
    "vast": "api_key offer_id image storage_gb max_price_usd_hour repo_url repo_ref workdir",
    "r2": "account_id access_key_id secret_access_key bucket region prefix",
    "pipeline": "name input_uri input_format samples_per_shard staging_dir source_options",
}
TOML = """
[vast]
api_key = "${VAST_API_KEY}"
offer_id = 12
image = "pytorch"
storage_gb = 50
max_price_usd_hour = 0.5
repo_url = "https://example.org/repo"
repo_ref = "main"
workdir = "/root"
[r2]
account_id = "${R2_ACCOUNT_ID}"
access_key_id = "${R2_KEY}"
secret_access_key = "${R2_SECRET}"
bucket = "bridge"
region = "auto"
prefix = "runs/one"
[pipeline]
name = "webdataset"
input_uri = "hf://org/set"
input_format = "jsonl"
samples_per_shard = 2048
staging_dir = "~/staging"
[pipeline.source_options]
split = "train"
config = "en"
load_kwargs = {revision = "main"}
transport_params = {region = "eu"}
"""


def test_yaml_and_toml_have_every_documented_key(tmp_path):
    (tmp_path / "b.yaml").write_text(SETTINGS)
    (tmp_path / "b.toml").write_text(TOML)
    settings = load_settings(tmp_path / "b.yaml", VARIABLES)
    assert load_settings(tmp_path / "b.toml", VARIABLES) == settings

    written: Any = tomllib.loads(re.sub(r"\$\{(\w+)\}", lambda v: VARIABLES[v[1]], TOML))
    held = msgspec.to_builtins(settings)
    for section, keys in DOCUMENTED.items():
        assert list(written[section]) == keys.split()
        assert {key: held[section][key] for key in keys.split()} == written[section]
    assert list(written["pipeline"]["source_options"]) == [
        "split", "config", "load_kwargs", "transport_params",
    ]  # fmt: skip


def test_source_options_reach_the_source(tmp_path, monkeypatch):
    rows = [{"id": number} for number in range(30)]
    hub = Hub({("org/set", "en", "test"): rows, ("org/set", "en", "train"): rows[:1]})
    stand_in(monkeypatch, hub)
    options = {"split": "test", "config": "en", "load_kwargs": {"revision": "v2"}}

    run_from_file(local(tmp_path, input_uri="hf://org/set", source_options=options))

    assert hub.asked == [("org/set", "en", {"revision": "v2"})]
    assert samples_of(tmp_path / "out") == rows


def test_transport_params_reach_the_inputs_store(tmp_path, aws_environment):
    with StubS3({"d/a.jsonl": b'{"id": 0}\n', "d/b.jsonl": b'{"id": 1}\n'}) as s3:
        params = {"endpoint_url": s3.url, "region": "eu-west-7"}
        options = {"transport_params": params}

        run_from_file(local(tmp_path, input_uri="s3://b/d/", source_options=options))

        signed = {request.headers["authorization"].split("/")[2] for request in s3.requests}
    assert signed == {"eu-west-7"}
    assert [row["id"] for row in samples_of(tmp_path / "out")] == [0, 1]


def test_an_input_in_r2_is_where_the_section_r2_is(tmp_path, aws_environment):
    with StubCloud({"raw/a.jsonl": b'{"id": 0}\n', "raw/b.jsonl": b'{"id": 1}\n'}) as s3:
        raw = json.loads(local(tmp_path, input_uri="r2://in/raw/").read_text())
        raw["r2"] = {"bucket": "out", "endpoint_url": s3.url, "region": "weur"}
        (tmp_path / "r2.yaml").write_text(json.dumps(raw))

        run_from_file(tmp_path / "r2.yaml")

        read = [request for request in s3.requests if request.bucket == "in"]
        assert {request.headers["authorization"].split("/")[2] for request in read} == {"weur"}
        assert s3.objects["shard-00000.jsonl"].count(b"\n") == 2


@pytest.mark.parametrize(
    ("r2", "region"),
    [
        ({}, None),
        ({"account_id": "acc"}, "auto"),
        ({"account_id": "acc", "region": "weur"}, "weur"),
        ({"endpoint_url": "https://acc.eu.r2.cloudflarestorage.com"}, "auto"),
        ({"endpoint_url": "http://127.0.0.1:9000"}, None),
        ({"region": "eu-west-7"}, "eu-west-7"),
    ],
)
def test_auto_is_a_region_of_r2_alone(r2, region):
    assert R2Settings(bucket="b", **r2).signing_region == region


@pytest.mark.parametrize(
    ("r2", "region"), [({"region": "eu-west-7"}, "eu-west-7"), ({}, "us-east-1")]
)
def test_requests_are_signed_for_the_buckets_region(tmp_path, aws_environment, r2, region):
    aws_environment.setenv("AWS_REGION", "us-east-1")
    aws_environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with StubCloud({}) as s3:
        raw = json.loads(local(tmp_path, staging_dir=str(tmp_path / "s")).read_text())
        raw["r2"] = {"bucket": "b", "endpoint_url": s3.url, "prefix": "p", **r2}
        del raw["output_dir"]
        (tmp_path / "r2.yaml").write_text(json.dumps(raw))

        run_from_file(tmp_path / "r2.yaml")

        signed = {request.headers["authorization"].split("/")[2] for request in s3.requests}
        assert signed == {region}
        assert {key for key in s3.objects if key.endswith(".jsonl")} == {
            f"p/shard-0000{number}.jsonl" for number in range(3)
        }


# `vast` is optional


def test_without_vast_the_plan_says_that_it_runs_here(tmp_path, capsys):
    config = local(tmp_path)
    assert load_settings(config).vast is None

    assert main(["plan", "--config", str(config)]) == 0

    assert "offer       none: runs on this machine\n" in capsys.readouterr().out


# `run`: stream, shard, upload, verify, delete local, manifest


class WatchedStore(memory.MemoryStore):
    """Writes down what is asked of it, and how many chunks lie on this machine then."""

    def __init__(self, uri: str, staging: Path) -> None:
        super().__init__(StoreSpec(uri=uri))
        self.staging = staging
        self.log: list[tuple[str, str]] = []
        self.waiting: list[int] = []
        self._log_lock = threading.Lock()

    def put(self, key: str, data: bytes) -> ObjectInfo:
        with self._log_lock:
            self.log.append(("put", key))
            self.waiting.append(len(list(self.staging.rglob(".quark-staging/*"))))
        return super().put(key, data)

    def head(self, key: str) -> ObjectInfo:
        found = super().head(key)
        with self._log_lock:
            self.log.append(("verified", key))
        return found


class FlippingStore(WatchedStore):
    """Keeps another last byte than it was sent."""

    def put(self, key: str, data: bytes) -> ObjectInfo:
        return super().put(key, data[:-1] + b"?")


def watched(
    kind: type[WatchedStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[WatchedStore, Path]:
    """Return a store and the settings of a run into it."""
    store = kind(f"memory://{kind.__name__}-{tmp_path.name}", tmp_path / "staging")
    monkeypatch.setitem(memory._STORES, store.spec.uri, store)
    config = local(tmp_path, staging_dir=str(tmp_path / "staging"))
    raw = json.loads(config.read_text())
    raw["output_dir"] = f"{store.spec.uri}/set"
    config.write_text(json.dumps(raw))
    return store, config


def test_run_uploads_verifies_deletes_and_writes_the_manifest_last(tmp_path, monkeypatch):
    store, config = watched(WatchedStore, tmp_path, monkeypatch)

    run_from_file(config)

    shards = [f"set/shard-0000{number}.jsonl" for number in range(3)]
    for key in shards:
        assert store.log.index(("put", key)) < store.log.index(("verified", key))
    assert store.log[-1] == ("put", "set/manifest.json")
    assert max(store.waiting[:3]) >= 1  # on this machine until it is verified
    assert store.waiting[-1] == 0
    assert not [path for path in (tmp_path / "staging").rglob("*") if path.is_file()]
    manifest = load_manifest(store, "set/")
    assert manifest is not None
    assert [shard.chunks[0].key for shard in manifest.shards] == [
        key.removeprefix("set/") for key in shards
    ]


def test_run_keeps_the_local_copy_of_what_arrived_damaged(tmp_path, monkeypatch):
    store, config = watched(FlippingStore, tmp_path, monkeypatch)

    with pytest.raises(IntegrityError, match="that were sent"):
        run_from_file(config)

    kept = [path for path in (tmp_path / "staging").rglob("*") if path.is_file()]
    assert any(path.read_bytes().startswith(b'{"id": 0,') for path in kept)
    assert not [key for _, key in store.log if key.endswith("manifest.json")]


# `.env-example`


def test_the_env_example_names_what_the_settings_use(tmp_path):
    assert main(["init", "--config", str(tmp_path / "bridge.yaml")]) == 0

    used = set(re.findall(r"\$\{([A-Z0-9_]+)\}", (tmp_path / "bridge.yaml").read_text()))
    lines = (tmp_path / ".env-example").read_text().splitlines()
    used.remove("VAR")  # of the comment that explains
    assert sorted(used) == sorted(line.removesuffix("=") for line in lines)
    assert all(line.endswith("=") for line in lines)  # names, never a value


# A missing extra is an error with the install command


def test_a_missing_extra_names_its_install_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "datasets", None)  # as when it is not installed
    config = local(tmp_path, input_uri="hf://org/set")

    assert main(["run", "--config", str(config)]) == 2

    printed = capsys.readouterr().err
    assert "hf://org/set: reading Hugging Face datasets needs the package `datasets`" in printed
    assert "hint: pip install 'quark-launcher[hf]'" in printed
    assert not (tmp_path / "out").exists()


# Exit codes: the program's, also of the process that has the keys, and of signals


def with_keys(tmp_path: Path, endpoint: str, **pipeline: Any) -> Path:
    config = local(tmp_path, staging_dir=str(tmp_path / "staging"), **pipeline)
    raw = json.loads(config.read_text())
    del raw["output_dir"]
    keys = {"access_key_id": "AKIDEXAMPLE", "secret_access_key": "hunter2hunter2"}
    raw["r2"] = {"bucket": "b", "endpoint_url": endpoint, "prefix": "p", **keys}
    config.write_text(json.dumps(raw))
    return config


def test_an_error_of_the_process_with_keys_has_its_exit_code(tmp_path, aws_environment, capsys):
    with StubCloud({}) as s3:
        config = with_keys(tmp_path, s3.url, input_uri=str(tmp_path / "nowhere"))
        assert main(["run", "--config", str(config)]) == DataNotFoundError.exit_code
    assert "no data files here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "code", "keys"),
    [
        (signal.SIGINT, 130, False),
        (signal.SIGTERM, 143, False),
        pytest.param(signal.SIGINT, 130, True, marks=pytest.mark.slow),
    ],
)
def test_a_stopped_run_says_so_and_goes_on(tmp_path, aws_environment, capsys, number, code, keys):
    stopped: list[int] = []

    def stop(request: Request) -> Reply | None:
        if request.method == "PUT" and request.key == "p/shard-00001.jsonl" and not stopped:
            stopped.append(1)
            signal.pthread_kill(threading.main_thread().ident or 0, number)
            return Reply(200, wait_seconds=0.3 if keys else 0.05)
        return None

    with StubCloud({}) as s3:
        s3.script = stop
        config = with_keys(tmp_path, s3.url)
        raw = json.loads(config.read_text())
        del raw["r2"]["access_key_id"], raw["r2"]["secret_access_key"]
        without = tmp_path / "without.yaml"
        without.write_text(json.dumps(raw))

        assert main(["run", "--config", str(config if keys else without)]) == code
        said = capsys.readouterr().err
        assert not [key for key in s3.objects if key.endswith("manifest.json")]
        assert main(["run", "--config", str(without)]) == 0

        assert "Run the same command again" in said
        assert "Traceback" not in said
        rows = b"".join(s3.objects[f"p/shard-0000{n}.jsonl"] for n in range(3)).splitlines()
    assert [json.loads(row)["id"] for row in rows] == list(range(25))
