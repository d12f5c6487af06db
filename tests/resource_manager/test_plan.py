"""The plan: figures, warnings and the screen."""

from pathlib import Path

import msgspec
import pytest

from brain.ml.training_job import DataSource, Every, TrainingJob
from resource_manager.job_settings import changed_fields, job_fields, planned_settings
from resource_manager.plan import (
    Plan,
    PlannedData,
    PlannedSetting,
    cache_warnings,
    filesystem_of,
    limits_of,
    parameters_of,
    request_warnings,
    steps_of,
)
from resource_manager.plan_screen import plan_lines
from tools_utilities.errors import UsageError
from tools_utilities.object_store import StoreSpec
from tools_utilities.settings import load_settings
from tools_utilities.terminal_text import fold_line, plain, width_of

STORE = StoreSpec(uri="s3://bucket")
LONG_PREFIX = "data/datasets/run[train]/" + "z" * 150 + "/end/"


def make_job(**fields: object) -> TrainingJob:
    base: dict[str, object] = {
        "name": "fox-1", "run_dir": "/runs/fox-1", "train": (DataSource(store=STORE, prefix="d/"),),
    }  # fmt: skip
    return TrainingJob(**{**base, **fields})  # type: ignore[arg-type]  # fields by name, as a caller gives them


def make_data(**fields: object) -> PlannedData:
    base: dict[str, object] = {
        "role": "train", "store": "s3://bucket", "prefix": LONG_PREFIX, "num_shards": 16,
        "total_bytes": 16 * 1_000_000, "median_bytes": 1_000_000.0, "format": "jsonl",
    }  # fmt: skip
    return PlannedData(**{**base, **fields})  # type: ignore[arg-type]  # fields by name, as a caller gives them


def make_plan(**fields: object) -> Plan:
    base: dict[str, object] = {
        "name": "fox-1", "run_dir": "/runs/fox-1", "model": "quark", "layers": 4,
        "parameters": 3_300_000, "data": (make_data(records_decoded=6, num_samples=4000),),
        "where": "local", "device": "cpu", "processes": 2, "nodes": 1, "precision": "fp32",
        "batch_size": 32, "seq_len": 256, "steps": 1953, "limits": ("1 epoch", "100 seconds"),
        "settings": (PlannedSetting(name="lr", value=3e-4, why="--override"),),
        "notes": ("/a/b → d/",), "warnings": ("careful",),
        "canonical": f"train quark with s3://bucket/{LONG_PREFIX} --override lr=0.0003",
    }  # fmt: skip
    return Plan(**{**base, **fields})  # type: ignore[arg-type]  # fields by name, as a caller gives them


@pytest.mark.parametrize("width", [None, 40, 80, 120])
def test_the_screen_says_everything_whole_at_any_width(width):
    lines = [plain(line) for line in plan_lines(make_plan(), width=width)]
    if width:  # the command is for copying: the terminal wraps it
        assert all(width_of(line) <= width for line in lines[:-1])
    text = "".join(lines).replace(" ", "")
    for fact in (
        LONG_PREFIX, "16 shards", "15.3 MiB", "jsonl", "about 4,000 samples", "6 records decoded",
        "3,300,000 parameters", "local · cpu · 2 processes · fp32", "about 1,953",
        "1 epoch or 100 seconds, whichever comes first", "lr=0.0003", "--override", "/a/b → d/",
        "warning: careful", 'quark "train quark with',
    ):  # fmt: skip
        assert fact.replace(" ", "") in text
    assert "validationnone" in text
    assert "…" not in text


@pytest.mark.parametrize("width", [None, 40, 80])
@pytest.mark.parametrize(
    ("canonical", "flags", "typed"),
    [
        ("train with ./d", "", "quark train with ./d"),
        ("train with s3://b/a[1]", " --groups 1", 'quark "train with s3://b/a[1]" --groups 1'),
        ('train with "a b/$x"', "", """quark 'train with "a b/$x"'"""),
        ("train with ./a&b", " --groups '1, 3'", "quark \"train with ./a&b\" --groups '1, 3'"),
    ],
)
def test_the_command_is_one_line_as_a_shell_takes_it(width, canonical, flags, typed):
    plan = make_plan(canonical=canonical + flags, flags=flags)
    lines = plan_lines(plan, width=width)
    assert [plain(line) for line in lines[-2:]] == ["same as", f"  {typed}"]
    if width:
        assert fold_line(lines[-1], 10) == [lines[-1]]


def test_a_plan_is_json_and_back():
    plan = make_plan()
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan


def test_steps_come_from_the_nearest_stop_rule():
    data = (make_data(total_bytes=1_000_000),)
    assert steps_of(make_job(epochs=None, max_steps=10), data) == (10, True)
    assert steps_of(make_job(epochs=1.0, max_steps=10), data) == (10, False)
    assert steps_of(make_job(epochs=2.0, batch_size=10, seq_len=100), data) == (2000, False)
    assert steps_of(make_job(epochs=None, max_samples=640, batch_size=32), data) == (20, False)
    assert steps_of(make_job(epochs=None, max_tokens=81920), data) == (10, False)
    assert steps_of(make_job(epochs=None, max_seconds=5.0), data) == (None, False)


def test_limits_name_every_stop_rule():
    job = make_job(epochs=3, max_steps=1000, max_samples=5, max_tokens=7, max_seconds=60.0)
    assert limits_of(job) == ("3 epochs", "1,000 steps", "5 samples", "7 tokens", "60 seconds")


def test_parameters_are_those_of_the_model_itself():
    from brain.ml.model_shape import ModelShape

    job = make_job(layers=2)
    shape = ModelShape(layers=2, vocab_size=259, seq_len=256)
    assert parameters_of(job) == shape.num_parameters > 400_000
    wide = ModelShape(layers=2, vocab_size=50_000, seq_len=256)
    assert parameters_of(make_job(layers=2, vocab_size=50_000)) == wide.num_parameters
    assert parameters_of(make_job(model="mypkg.models:build")) is None


def test_many_small_objects_on_one_prefix_are_warned_of():
    job = make_job(fetch_concurrency=8, processes=16, nodes=2)
    small = make_data(num_shards=100_000, total_bytes=100_000 * 2048, prefix="small/")
    [warning] = request_warnings(job, (small,))
    assert "small/" in warning
    assert "over 3,000" in warning
    assert "4 KiB halve it" in warning
    large = make_data(num_shards=100_000, total_bytes=100_000 * 100_000_000)
    few = make_data(num_shards=100, total_bytes=100 * 2048)
    local = make_data(num_shards=100_000, total_bytes=100_000 * 2048, store="file:///data")
    assert request_warnings(job, (large, few, local)) == []


MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/x /mnt/my\\040share nfs4 rw 0 0
//srv/y /mnt/cifs cifs rw 0 0
sshfs /mnt/remote fuse.sshfs rw 0 0
odd
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/.cache", "ext4"),
        ("/mnt/my share/cache", "nfs4"),
        ("/mnt/cifs", "cifs"),
        ("/mnt/cifsy", "ext4"),
        ("/mnt/remote/a/b", "fuse.sshfs"),
    ],
)
def test_network_file_systems_are_found(path, kind):
    assert filesystem_of(path, MOUNTS) == kind
    assert bool(cache_warnings(path, kind)) is (kind != "ext4")
    assert filesystem_of(path, "") == ""


def settings_of(tmp_path: Path, **overrides: object):
    return load_settings(start_dir=tmp_path, environ={"QUARK_SEED": "7"}, overrides=overrides)


def test_settings_become_a_job(tmp_path):
    settings = settings_of(
        tmp_path, max_steps="10", batch_size="4", batch_scope="device", gpus="2", lr="1e-4",
        checkpoint_every="10m", betas="0.8,0.9", hash_seed="3", cache_gb="0.5", resume="auto",
    )  # fmt: skip
    job = make_job(**job_fields(settings))
    assert job.epochs is None
    assert job.max_steps == 10
    assert job.batch_size == 8
    assert job.processes == 2
    assert job.lr == 1e-4
    assert job.seed == 7
    assert job.checkpoint_every == Every(seconds=600)
    assert job.betas == (0.8, 0.9)
    assert job.partition_options == {"hash_seed": 3}
    assert job.cache_bytes == 500_000_000
    assert job.resume == "auto"


def test_one_epoch_unless_another_limit_is_given(tmp_path):
    assert job_fields(settings_of(tmp_path))["epochs"] == 1.0
    assert job_fields(settings_of(tmp_path, max_seconds="5"))["epochs"] is None
    both = job_fields(settings_of(tmp_path, max_seconds="5", epochs="2"))
    assert both["epochs"] == 2.0


@pytest.mark.parametrize(
    "overrides",
    [
        {"where": "aws"},
        {"where": "vast"},
        {"where": "vast", "max_price_hour": "2"},
        {"partition": "adaptive"},
        {"gpu_type": "A100"},
        {"betas": "0.9"},
        {"betas": "0.9,1.5"},
    ],
)
def test_what_this_version_cannot_do_is_refused(tmp_path, overrides):
    with pytest.raises(UsageError):
        job_fields(settings_of(tmp_path, **overrides))


def test_the_plan_names_where_each_setting_came_from(tmp_path):
    planned = {item.name: item for item in planned_settings(settings_of(tmp_path, lr="1e-4"))}
    assert planned["lr"].why == "--override"
    assert planned["seed"].why == "environment QUARK_SEED"
    assert "keep" not in planned


def test_what_differs_from_the_last_run():
    before = make_job(lr=1e-3)
    now = make_job(lr=1e-4, name="fox-2", run_dir="/runs/fox-2")
    assert changed_fields(now, before) == ("lr: 0.001 → 0.0001",)
