"""Sharding (section S): one test a row, each of what the name does."""

import importlib
import inspect
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from brain.ml import extract_activations
from tests.cloud_credentials import point_clouds_to
from tests.documented.hub_fake import Hub, stand_in
from tests.documented.row_table import ROOT, not_asserted
from tests.fakes import StubCloud
from tests.resource_manager.test_processing import project, say
from tests.scripts.test_create_sharded_dataset import samples_of, write_tasks
from tools_utilities.errors import ClaimError
from tools_utilities.scripts.create_sharded_dataset import main as create
from tools_utilities.scripts.shard_manager import ShardManager

__all__ = ["project"]

MANAGER = "tests/scripts/test_shard_manager.py::"
EXTRACTION = "tests/brain/test_extract_activations.py::"
GUIDES = "tests/end_to_end/test_sharding_guides.py::"
OPTIONS = "tests/scripts/test_create_sharded_options.py::"
ASSERTED_ELSEWHERE = {
    'claim_shard returns a ShardClaim; shard["shard_id"], shard["chunks"] (full URIs)': (
        f"{MANAGER}test_a_claim_answers_as_documented",
    ),
    "mark_completed(id), mark_failed(id), get_shard_status()": (
        f"{MANAGER}test_metadata_is_rewritten_for_people_and_master_never",
        f"{MANAGER}test_a_failed_shard_is_free_again_and_keeps_the_reason",
        f"{MANAGER}test_only_the_holder_completes_or_fails",
    ),
    "assigned_to: the worker id given, else machine{X}_host{Y}, else the host name": (
        f"{MANAGER}test_a_claim_answers_as_documented",
        f"{MANAGER}test_the_default_worker_is_this_host_and_may_be_the_jobs_host",
    ),
    "bash test_sharding.sh": (f"{GUIDES}test_the_documented_shell_test",),
    "--use_sharded_dataset --sharded_dataset_dir --preferred_shard_id --batch_size --verbose "
    "--host_id --num_hosts": (
        f"{EXTRACTION}test_a_fresh_models_activations_are_those_of_a_direct_hook",
    ),
    "--model_path": (f"{EXTRACTION}test_a_trained_models_activations_are_those_of_a_direct_hook",),
    "TPU and coordinator flags refused by name": (
        f"{EXTRACTION}test_flags_of_other_launchers_are_refused_by_name",
    ),
    "a worker fetches only its shard's chunks": (
        "tests/scripts/test_process_attempts.py::test_a_worker_fetches_only_its_own_shards_bytes",
    ),
    "a single JSONL as output": (f"{OPTIONS}test_an_output_named_like_a_data_file_is_one_file",),
    "docs: sharding.md, quick-start.md": (
        f"{GUIDES}test_the_walk_through_with_two_processes_and_a_kill",
        f"{GUIDES}test_the_quick_start",
    ),
}


def test_the_rows_asserted_elsewhere_are():
    assert not_asserted(ASSERTED_ELSEWHERE) == []
    there = f"{MANAGER}test_exit_codes"
    assert not_asserted({"row": (f"{MANAGER}test_not_there", "tests/none.py::test_x", there)}) == [
        "tests/none.py::test_x",
        f"{MANAGER}test_not_there",
    ]


@pytest.fixture
def dataset(tmp_path: Path, aws_environment: pytest.MonkeyPatch) -> Path:
    """Eight shards of two samples each, by the script."""
    return sharded(tmp_path, samples=16, shards=8)


@pytest.fixture
def cloud(tmp_path: Path, aws_environment: pytest.MonkeyPatch) -> Iterator[StubCloud]:
    with StubCloud({}) as stub:
        point_clouds_to(stub.url, tmp_path, aws_environment)
        yield stub


def sharded(folder: Path, samples: int, shards: int, *flags: str) -> Path:
    source = folder / "tasks.jsonl"
    source.write_text("".join(f'{{"id": {number}}}\n' for number in range(samples)))
    arguments = ["--input_file", str(source), "--output_dir", str(folder / "sharded")]
    assert create([*arguments, "--num_shards", str(shards), *flags]) == 0
    return folder / "sharded"


def record(dataset: Path, shard_id: int) -> Any:
    return json.loads((dataset / f"shard_{shard_id:03d}/claim.json").read_text())


# `ShardManager(dataset_dir, worker_id=None)`


def test_a_manager_takes_a_folder_or_a_uri_and_a_worker_id(dataset):
    given = inspect.signature(ShardManager).parameters
    assert list(given)[:2] == ["dataset_dir", "worker_id"]
    assert given["worker_id"].default is None
    assert all(given[name].kind is inspect.Parameter.KEYWORD_ONLY for name in list(given)[2:])

    for place, worker in ((dataset, None), (str(dataset), "a"), (f"file://{dataset}", "b")):
        assert ShardManager(place, worker).claim_shard() is not None

    status = ShardManager(dataset).get_shard_status()
    assert [row["assigned_to"] for row in status["shards"][1:3]] == ["a", "b"]


# `claim_shard(preferred_shard_id=None)` returns a ShardClaim (or None)


def test_claim_shard_gives_the_preferred_one_another_or_none(dataset):
    given = inspect.signature(ShardManager.claim_shard).parameters
    assert (list(given)[1], given["preferred_shard_id"].default) == ("preferred_shard_id", None)

    manager = ShardManager(dataset, "a")
    claims = [manager.claim_shard(6), *(manager.claim_shard() for _ in range(7))]

    assert [claim and claim["shard_id"] for claim in claims] == [6, 0, 1, 2, 3, 4, 5, 7]
    assert manager.claim_shard() is None
    assert manager.claim_shard(preferred_shard_id=6) is None


# the protocol's owner uuid is separate


def test_two_workers_of_one_name_are_two_owners(dataset, tmp_path):
    first, second = (ShardManager(dataset, "w", state_dir=tmp_path / name) for name in ("s", "t"))
    for manager in (first, second):
        assert manager.claim_shard() is not None

    owners = [record(dataset, shard_id)["owner"] for shard_id in (0, 1)]
    assert owners == [first.owner, second.owner]
    ids = [UUID(owner.rpartition("/")[2]) for owner in owners]
    assert ids[0] != ids[1]
    assert all("w" not in owner.split("/") for owner in owners)
    with pytest.raises(ClaimError):
        second.mark_completed(0)


# Status words: available = free, in_use = leased, completed = done


def test_the_status_words_are_the_records_states(dataset):
    manager = ShardManager(dataset, "a")
    for shard_id in range(3):
        manager.claim_shard(shard_id)
    manager.mark_completed(1)
    manager.mark_failed(2)

    status = manager.get_shard_status()
    found = [(record(dataset, n)["state"], status["shards"][n]["status"]) for n in range(3)]

    assert found == [("leased", "in_use"), ("done", "completed"), ("free", "available")]
    assert [status[word] for word in ("total", "available", "in_use", "completed")] == [8, 6, 1, 1]
    shown = [json.loads((dataset / f"shard_00{n}/metadata.json").read_text()) for n in range(4)]
    assert [one["status"] for one in shown] == ["in_use", "completed", "available", "available"]


# Master and shard metadata (golden files)

GOLDEN = Path(__file__).parent / "golden"


def test_the_metadata_files_are_the_golden_ones(tmp_path, aws_environment):
    dataset = sharded(tmp_path, 4, 2, "--chunk_size_mb", "0.1")
    master = dataset / "master_metadata.json"
    shown = dataset / "shard_001/metadata.json"
    assert master.read_text() == (GOLDEN / "master_metadata.json").read_text()
    assert shown.read_text() == (GOLDEN / "shard_available.json").read_text()

    manager = ShardManager(dataset, "machine0_host1", wall_clock=lambda: 0.0)
    manager.claim_shard(1)
    manager.mark_completed(1)

    assert json.loads(shown.read_text()) == json.loads(
        (GOLDEN / "shard_completed.json").read_text()
    )
    assert list(json.loads(shown.read_text())) == list(
        json.loads((GOLDEN / "shard_completed.json").read_text())
    )
    assert master.read_text() == (GOLDEN / "master_metadata.json").read_text()


# `--chunk_size_mb` takes fractions


def test_chunk_size_mb_takes_fractions(tmp_path, aws_environment):
    dataset = sharded(tmp_path, 400, 2, "--chunk_size_mb", "0.0005")

    assert json.loads((dataset / "master_metadata.json").read_text())["chunk_size_mb"] == 0.0005
    for shard in ("shard_000", "shard_001"):
        shown = json.loads((dataset / shard / "metadata.json").read_text())
        sizes = [(dataset / shard / chunk["file"]).stat().st_size for chunk in shown["chunks"]]
        assert shown["num_chunks"] == len(sizes) > 3
        assert all(480 <= size <= 520 for size in sizes[:-1])
        assert [chunk["size_mb"] for chunk in shown["chunks"]] == [n / 1e6 for n in sizes]


# `--upload_to_gcs --gcs_bucket` write to that store


def test_activations_are_written_to_the_gcs_bucket(tmp_path, cloud, capsys):
    (tmp_path / "in.jsonl").write_text(
        "".join(f'{{"id": {n}, "text": "t{n}"}}\n' for n in range(6))
    )
    dataset = str(tmp_path / "sharded")
    arguments = ["--input_file", str(tmp_path / "in.jsonl"), "--num_shards", "2"]
    assert create([*arguments, "--output_dir", dataset]) == 0
    flags = ["--use_sharded_dataset", "--sharded_dataset_dir", dataset, "--pooling", "mean"]

    code = extract_activations.main(
        [
            *flags,
            "--endpoint_url",
            cloud.url,
            "--layers",
            "1",
            "--upload_to_gcs",
            "--gcs_bucket",
            "acts",
            "--output_dir",
            "run",
        ]
    )

    assert code == 0, capsys.readouterr().err
    assert {request.bucket for request in cloud.requests} == {"acts"}
    rows = []
    for shard_id in range(2):
        output = record(tmp_path / "sharded", shard_id)["output"]
        assert output.startswith(f"gs://acts/run/shard_00{shard_id}/1-")
        key = f"{output.removeprefix('gs://acts/').rstrip('/')}/chunk_0000.jsonl"
        rows += [json.loads(line) for line in cloud.objects[key].splitlines()]
    assert sorted(row["id"] for row in rows) == list(range(6))
    (width,) = {len(row["layer_0"]) for row in rows}
    assert width > 1


# `convert_hf_to_arc_format` = `create_sharded_dataset --input_file hf://NAME --max_samples N`


@pytest.mark.parametrize("out", ["sharded", "one.jsonl"])
def test_a_hugging_face_dataset_becomes_shards_or_one_file(tmp_path, aws_environment, out):
    rows = [{"id": number, "text": f"é{number}"} for number in range(3000)]
    hub = Hub({("org/set", "en", "test"): rows})
    stand_in(aws_environment, hub)
    arguments = ["--input_file", "hf://org/set", "--output_dir", str(tmp_path / out)]

    code = create([*arguments, "--max_samples", "7", "--split", "test", "--config", "en"])

    assert code == 0
    assert sorted(samples_of(tmp_path / out), key=lambda row: row["id"]) == rows[:7]
    assert hub.asked == [("org/set", "en", {})]
    assert hub.rows_read < 3000  # it does not read on


# `gsutil cp` = `--output_dir gs://…` or `quark "upload …"`


def test_shards_are_made_in_a_bucket(tmp_path, cloud):
    source = write_tasks(tmp_path / "tasks.jsonl", 20)
    arguments = ["--input_file", str(source), "--num_shards", "2", "--chunk_size_mb", "0.001"]
    assert create([*arguments, "--output_dir", str(tmp_path / "here")]) == 0

    there = ["--output_dir", "gs://bucket/sets/one", "--output_endpoint_url", cloud.url]
    assert create([*arguments, *there]) == 0

    here = {
        f"sets/one/{path.relative_to(tmp_path / 'here')}": path.read_bytes()
        for path in (tmp_path / "here").rglob("*.json*")
        if not any(part.startswith(".") for part in path.relative_to(tmp_path / "here").parts)
    }
    assert {key: data for key, data in cloud.objects.items() if "/." not in key} == here
    assert {request.bucket for request in cloud.requests} == {"bucket"}
    puts = [request.key for request in cloud.requests if request.method == "PUT"]
    assert puts[-1] == "sets/one/master_metadata.json"


def test_a_sentence_uploads(project, cloud, capsys):
    (project / "quark.yaml").write_text(f"endpoint_url: {cloud.url}\n")

    code, said = say(capsys, "upload ./tasks.jsonl to gs://bucket/sets/two")

    assert (code, said.get("total_tasks")) == (0, 20), said
    rows = [
        json.loads(line)
        for key, data in cloud.objects.items()
        if re.fullmatch(r"sets/two/shard_\d+/chunk_\d+\.jsonl", key)
        for line in data.splitlines()
    ]
    assert sorted(row["id"] for row in rows) == list(range(20))


def test_a_sentence_uploads_shards_as_they_are(project, cloud, capsys):
    (project / "quark.yaml").write_text(f"endpoint_url: {cloud.url}\n")
    say(capsys, "shard ./tasks.jsonl into 3 shards as parquet to ./sharded")
    ShardManager(project / "sharded", "a").claim_shard()
    planned = say(capsys, "upload the shards from ./sharded to gs://bucket/sets/three", "--plan")
    assert "3 shards as they are: 20 samples" in json.dumps(planned[1])
    assert not cloud.objects

    code, said = say(capsys, "upload the shards from ./sharded to gs://bucket/sets/three")

    assert (code, said.get("num_shards")) == (0, 3), said
    for number in range(3):
        name = f"shard_00{number}/chunk_0000.parquet"
        assert cloud.objects[f"sets/three/{name}"] == (project / "sharded" / name).read_bytes()
    assert not [key for key in cloud.objects if key.endswith("claim.json")]
    status = say(capsys, "shard status of gs://bucket/sets/three")[1]
    assert (status["total"], status["available"]) == (3, 3)


# docs: `sharding.md` (a Containerfile, eight machines, four hosts with two shards each)

GUIDE = (ROOT / "docs/sharding.md").read_text(encoding="utf-8")


def test_the_containerfile_runs_a_worker(capsys):
    (recipe,) = re.findall(r"^```\n(FROM .*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)
    lines = dict(line.split(" ", 1) for line in recipe.splitlines())
    assert list(lines) == ["FROM", "COPY", "RUN", "ENTRYPOINT"]
    version = re.fullmatch(r"python:(3\.\d+)-slim", lines["FROM"])
    assert version is not None
    project_file = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needed = project_file["project"]["requires-python"].removeprefix(">=")
    assert int(version[1].split(".")[1]) >= int(needed.split(".")[1])
    python, minus_m, module = json.loads(lines["ENTRYPOINT"])
    assert (python, minus_m) == ("python", "-m")
    with pytest.raises(SystemExit) as caught:
        importlib.import_module(module).main(["--help"])
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    for flag in ("--dataset_dir", "--function", "--host_id", "--preferred_shard_id"):
        assert flag in printed


@pytest.mark.parametrize(("hosts", "each"), [(8, 1), (4, 2)])
def test_eight_machines_or_four_hosts_share_eight_shards(tmp_path, aws_environment, hosts, each):
    _, _, text = GUIDE.partition("\n## Four hosts with two shards each\n")
    assert "--host_id 0 … 3" in text
    assert "Eight machines" in text
    dataset = f"memory://hosts-{tmp_path.name}/sharded"
    source = write_tasks(tmp_path / "tasks.jsonl", 16)
    assert create(["--input_file", str(source), "--output_dir", dataset]) == 0
    managers = [ShardManager(dataset, f"machine0_host{number}") for number in range(hosts)]
    claimed: list[list[int]] = [[] for _ in managers]

    for _ in range(each):
        for manager, own in zip(managers, claimed, strict=True):
            claim = manager.claim_shard()
            assert claim is not None
            own.append(claim.shard_id)
            manager.mark_completed(claim.shard_id)

    assert [len(own) for own in claimed] == [each] * hosts
    assert sorted(shard_id for own in claimed for shard_id in own) == list(range(8))
    assert all(manager.claim_shard() is None for manager in managers)
    rows = ShardManager(dataset).get_shard_status()["shards"]
    assert {row["assigned_to"] for row in rows} == {f"machine0_host{n}" for n in range(hosts)}


# docs: `dataset-guide.md`; and for readers who come with the old names


def test_the_dataset_guide_has_the_old_names():
    guide = (ROOT / "docs/dataset-guide.md").read_text(encoding="utf-8")
    _, _, text = guide.partition("\n## Coming with other names\n")
    rows = dict(re.findall(r"^\| `(.*?)` \| (.*) \|$", text.partition("\n## ")[0], re.MULTILINE))
    ours = {
        "convert_hf_to_arc_format": ("--input_file hf://", "--max_samples", ".jsonl"),
        "gsutil cp": ("--output_dir gs://", 'quark "upload '),
        "train-data-bridge": ("quark-bridge",),
        "--tpu_name": ("refused", "claims"),
    }
    for old, names in ours.items():
        (found,) = [ours for theirs, ours in rows.items() if theirs.startswith(old)]
        assert [name for name in names if name not in found] == []
