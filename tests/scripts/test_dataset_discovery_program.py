"""dataset_discovery.py as a program, and its two documented functions, on S3 and on local folders."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import discovery_trees as trees
from tests.conftest import MakeBucket, PutObjects
from tests.fakes import Reply, Request, StubS3, xml_error
from tools_utilities.errors import AccessError, DataNotFoundError
from tools_utilities.scripts.dataset_discovery import discover, discover_shard_groups, main

CHECKOUT = Path(__file__).parents[2]
SCRIPT = CHECKOUT / "tools_utilities" / "scripts" / "dataset_discovery.py"
ROOT = "data/datasets/alphagenome/"


def objects() -> dict[str, bytes]:
    made = {f"{ROOT}train/shard_{i:05d}.jsonl": trees.jsonl(2048) for i in range(8)}
    made |= {f"{ROOT}val/shard_{i:05d}.jsonl": trees.jsonl(1100) for i in range(9)}
    return made | {f"{ROOT}train/_SUCCESS": b"", f"{ROOT}odd.jsonl": trees.jsonl(40)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    top = tmp_path / "store"
    for key, data in objects().items():
        path = top / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return top


@pytest.fixture
def bucket(
    aws_environment: pytest.MonkeyPatch,
    moto_endpoint: str,
    make_bucket: MakeBucket,
    put_objects: PutObjects,
    tmp_path: Path,
) -> str:
    """A plain bucket name on moto, found through the AWS chain."""
    name = make_bucket(moto_endpoint)
    put_objects(moto_endpoint, name, objects())
    aws_environment.setenv("AWS_ENDPOINT_URL", moto_endpoint)
    aws_environment.chdir(tmp_path)
    return name


def run(*arguments: str, script: Path = SCRIPT, env: Mapping[str, str] | None = None):
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True, text=True, check=False, timeout=60, env=env, encoding="utf-8",
    )  # fmt: skip


def test_the_documented_command_prints_a_table_in_binary_units(folder: Path):
    done = run(
        "--bucket", f"file://{folder}", "--root", ROOT, "--auto-shards", "--human", "--depth", "2"
    )

    assert (done.returncode, done.stderr) == (0, "")
    head, first, second = done.stdout.splitlines()
    assert head.split()[:4] == ["#", "prefix", "objects", "size"]
    assert first.split()[:6] == ["1", f"{ROOT}train/", "8", "16.0", "KiB", "2.0"]
    assert f"{ROOT}val/" in second
    assert "\x1b" not in done.stdout


def test_plain_output_is_one_group_a_line_in_bytes(folder: Path):
    done = run("--bucket", f"file://{folder}", "--root", ROOT.rstrip("/"), "--auto-shards")

    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[:6] for line in lines] == [
        [f"{ROOT}train/", "8", "16384", "2048", "jsonl", "train"],
        [f"{ROOT}val/", "9", "9900", "1100", "jsonl", "val"],
    ]


def test_without_auto_shards_the_folders_are_listed(folder: Path):
    done = run("--bucket", f"file://{folder}", "--root", ROOT)

    lines = [line.split()[:3] for line in done.stdout.splitlines()]
    assert lines == [
        [ROOT, "1", "40"],
        [f"{ROOT}train/", "8", "16384"],
        [f"{ROOT}val/", "9", "9900"],
    ]


def test_json_has_the_documented_keys(folder: Path):
    done = run("--bucket", f"file://{folder}", "--root", ROOT, "--auto-shards", "--json")

    data = json.loads(done.stdout)
    group = data["groups"][0]
    documented = {
        "prefix", "stem", "split", "num_objects", "total_bytes", "median_bytes", "format", "score",
        "factors", "reasons", "ignored",
    }  # fmt: skip
    assert documented <= set(group)
    assert (group["prefix"], group["num_objects"], group["ignored"]) == (f"{ROOT}train/", 8, 1)
    assert data["schema"] == 1
    assert data["ignored"] == {"marker": 1}
    assert [info["key"] for info in data["loose"]] == [f"{ROOT}odd.jsonl"]


def test_verbose_names_what_was_left_out_and_why(folder: Path):
    done = run("--bucket", f"file://{folder}", "--root", ROOT, "--auto-shards", "--verbose")

    assert f"ignored (marker): {ROOT}train/_SUCCESS" in done.stdout
    assert f"not a group: {ROOT}odd.jsonl: stands alone" in done.stdout
    assert f"score of {ROOT}train/: count" in done.stdout


def test_hostile_names_are_shown_escaped_and_whole(tmp_path: Path):
    name = "evil\x1b[31m\u202e[bold]\n" + "n" * 150
    for i in range(8):
        path = tmp_path / name / f"p-{i}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(trees.jsonl(2048))

    for flags in (["--auto-shards"], ["--auto-shards", "--human"], ["--human"]):
        done = run("--bucket", f"file://{tmp_path}", "--root", "", *flags)

        assert "\x1b" not in done.stdout
        assert "\u202e" not in done.stdout
        assert r"evil\x1b[31m\u202e[bold]\n" + "n" * 150 in done.stdout


def test_it_runs_from_a_checkout_that_is_not_installed(folder: Path, tmp_path: Path):
    """Only the third-party packages are importable; ours are found beside the script."""
    checkout = tmp_path / "checkout"
    shutil.copytree(
        CHECKOUT / "tools_utilities", checkout / "tools_utilities",
        ignore=shutil.ignore_patterns("__pycache__"),
    )  # fmt: skip
    packages = os.path.dirname(os.path.dirname(pytest.__file__))  # noqa: PTH120 - the site folder
    script = checkout / "tools_utilities" / "scripts" / "dataset_discovery.py"
    code = (
        "import runpy, sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p];"
        f"sys.path += [{str(script.parent)!r}, {packages!r}]; sys.argv = sys.argv[1:];"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, str(script), "--bucket", f"file://{folder}", "--root",
         ROOT, "--auto-shards"],
        capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path,
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")
    assert f"{ROOT}train/" in done.stdout


# On S3, through the AWS chain.


def test_a_plain_bucket_name_is_s3(bucket: str):
    groups = discover_shard_groups(bucket, ROOT)

    assert [(group.prefix, group.num_objects) for group in groups] == [
        (f"{ROOT}train/", 8),
        (f"{ROOT}val/", 9),
    ]
    assert [g.prefix for g in discover_shard_groups(f"s3://{bucket}", ROOT, min_objects=9)] == [
        f"{ROOT}val/"
    ]
    assert discover_shard_groups(bucket, ROOT, min_size_kb=4) == []


def test_discover_counts_every_folder(bucket: str):
    assert discover(bucket, depth=3) == {
        ROOT: {"objects": 1, "bytes": 40},
        f"{ROOT}train/": {"objects": 8, "bytes": 16384},
        f"{ROOT}val/": {"objects": 9, "bytes": 9900},
    }
    assert discover(bucket, depth=0, root_prefix=ROOT.rstrip("/")) == {
        ROOT: {"objects": 1, "bytes": 40}
    }


def test_discover_counts_beyond_a_page(tmp_path: Path):
    for i in range(1203):
        (tmp_path / f"p-{i:04d}.jsonl").write_bytes(b"{}\n")

    assert discover(f"file://{tmp_path}", root_prefix="") == {"": {"objects": 1203, "bytes": 3609}}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--root", "data/datasets/nothing"], 3, "data/datasets/nothing/: nothing there"),
        (["--root", ROOT, "--min-objects", "99"], 3, "no shard group"),
        (["--root", ROOT, "--min-size-kb", "9"], 3, "below 9,216 B"),
        (["--root", ROOT, "--depth", "0"], 3, "no shard group"),
    ],
)
def test_what_is_not_there_exits_3_naming_the_bucket(
    bucket: str, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
):
    assert main(["--bucket", bucket, "--auto-shards", *arguments]) == code

    shown = capsys.readouterr()
    assert shown.out == ""
    assert words in shown.err
    assert bucket in shown.err


def test_a_bucket_that_does_not_exist_exits_3(bucket: str, capsys: pytest.CaptureFixture[str]):
    assert main(["--bucket", f"{bucket}-nowhere", "--root", ROOT, "--auto-shards"]) == 3

    assert f"{bucket}-nowhere" in capsys.readouterr().err
    with pytest.raises(DataNotFoundError):
        discover(f"{bucket}-nowhere")


def test_permission_exits_4_and_is_never_no_datasets(
    aws_environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def refuse(request: Request) -> Reply | None:
        return xml_error(403, "AccessDenied", "Access Denied") if not request.key else None

    with StubS3(objects(), refuse) as server:
        aws_environment.setenv("AWS_ENDPOINT_URL", server.url)
        assert main(["--bucket", "genomes", "--root", ROOT, "--auto-shards"]) == 4
        with pytest.raises(AccessError):
            discover("genomes")

    error = capsys.readouterr().err
    assert "genomes" in error
    assert "nothing there" not in error
    assert "no shard group" not in error


@pytest.mark.parametrize("flag", [["--depth", "x"], ["--nonsense"]])
def test_misuse_exits_2(flag: list[str]):
    with pytest.raises(SystemExit) as caught:
        main(["--bucket", "b", *flag])

    assert caught.value.code == 2


def test_an_unusable_bucket_or_setting_exits_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    assert main(["--bucket", "two words"]) == 2
    assert "two words" in capsys.readouterr().err

    monkeypatch.setenv("QUARK_SEED", "many")
    assert main(["--bucket", "b"]) == 2
    assert "QUARK_SEED" in capsys.readouterr().err
