"""The program in this process: every command off a terminal, every kind of bad input."""

import json
import shlex
from pathlib import Path

import pytest

from tests.fakes import Reply, StubS3
from tools_utilities.scripts.quark_cli import run_program

SMALL = ("--override", "layers=1", "seq_len=32", "device=cpu")


def records(shard: int, count: int = 40) -> bytes:
    return b"".join(
        json.dumps({"id": shard * count + n, "text": f"sample {n} of shard {shard}"}).encode()
        + b"\n"
        for n in range(count)
    )


def write_group(folder: Path, stem: str = "train-", count: int = 8) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for n in range(count):
        (folder / f"{stem}{n:05}-of-{count:05}.jsonl").write_bytes(records(n))


@pytest.fixture
def project(tmp_path, aws_environment):
    """A project folder with one dataset of one group, and one of two."""
    folder = tmp_path / "quark"
    folder.mkdir()
    (folder / "quark.yaml").write_text("seed: 7\n")
    write_group(folder / "data/datasets/one")
    write_group(folder / "data/datasets/one", "val-")
    write_group(folder / "data/datasets/two/a[b]")
    write_group(folder / "data/datasets/two/[/c]")
    (folder / "data/datasets/empty").mkdir()
    for name in ("CI", "NO_COLOR", "COLUMNS", "TERM"):
        aws_environment.delenv(name, raising=False)
    aws_environment.setenv("CACHE_DIR", str(tmp_path / "cache"))
    aws_environment.chdir(folder)
    return folder


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def check_refused(capsys, argv: list[str], code: int) -> tuple[str, str]:
    """Run, and check one line of error, one hint, the code; returns (error, hint)."""
    assert run_program(argv) == code
    done = capsys.readouterr()
    assert done.out == ""
    lines = done.err.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    hints = [line for line in lines if line.startswith("hint: ")]
    assert len(errors) == 1, done.err
    assert len(hints) == 1, done.err
    assert lines[-2:] == [errors[0], hints[0]]
    assert "Traceback" not in done.err
    assert "\x1b" not in done.err
    return errors[0], hints[0]


BAD = [
    ("train quark with data/datasets/one frobnicate", 2, "frobnicate", ""),
    ("train quark with data/datasets/nowhere for 2 steps", 3, "nowhere", ""),
    ("train quark with /no/such/place for 2 steps", 2, "/no/such/place", "root"),
    ("train quark with data/datasets/empty for 2 steps", 3, "empty", ""),
    ("train quark", 2, "", ""),
    ("train quark with data/datasets/two for 2 steps", 2, "2 shard groups", "--groups 1"),
    ("don't train quark with data/datasets/one", 2, "refused", ""),
    ("trian quark with data/datasets/one", 2, "train quark with data/datasets/one", ""),
    ("train resnet50 with data/datasets/one for 2 steps", 2, "resnet50", "quark"),
    ("train quark with .. for 2 steps", 2, "outside", ""),
    ("resume", 3, "no runs", ""),
    ("resume fox-12", 3, "fox-12", ""),
    ("show fox-12", 3, "fox-12", ""),
    ("stop fox-12", 3, "fox-12", ""),
    ("", 2, "empty sentence", ""),
]


@pytest.mark.parametrize(("sentence", "code", "error", "hint"), BAD)
def test_bad_sentences(project, capsys, sentence, code, error, hint):
    before = tree(project)
    said, next_step = check_refused(capsys, [sentence], code)
    assert error in said
    assert hint in next_step
    assert tree(project) == before


BAD_OVERRIDES = [
    ("learning_rat=1e-4", "learning_rate"),
    ("batch_size=0", "at least 1"),
    ("batch_size=-3", "at least 1"),
    ("lr=0", "more than 0"),
    ("lr=abc", "number"),
    ("max_steps=1.5", "whole number"),
    ("data_mode=cloud", "streaming"),
    ("=x", ""),
    ("lr", ""),
    ("bucket=not a bucket", ""),
    ("betas=0.9", "0.9,0.95"),
    ("where=aws", ""),
    ("where=vast", "under $2 an hour"),
]


@pytest.mark.parametrize(("override", "hint"), BAD_OVERRIDES)
def test_bad_overrides(project, capsys, override, hint):
    before = tree(project)
    argv = ["train quark with data/datasets/one for 2 steps", "--override", override]
    said, next_step = check_refused(capsys, argv, 2)
    assert hint in said + next_step
    assert tree(project) == before


def test_no_bucket(project, capsys):
    argv = ["train quark with data/datasets/one for 2 steps", "--override", "data_mode=streaming"]
    said, hint = check_refused(capsys, argv, 2)
    assert "bucket" in said
    assert "bucket=" in hint


def test_wrong_bucket(project, capsys, moto_endpoint, aws_environment):
    aws_environment.setenv("AWS_ENDPOINT_URL", moto_endpoint)
    argv = ["train quark with data/datasets/one for 2 steps", "--bucket", "no-such-bucket-here"]
    said, _ = check_refused(capsys, argv, 3)
    assert "no-such-bucket-here" in said


def test_access_denied_is_never_no_datasets(project, capsys, aws_environment):
    denied = b"<Error><Code>AccessDenied</Code><Message>no \x1b[31m</Message></Error>"
    with StubS3({"data/datasets/one/train-0.jsonl": b"{}\n"}) as s3:
        s3.script = lambda _request: Reply(403, body=denied)
        aws_environment.setenv("AWS_ENDPOINT_URL", s3.url)
        argv = ["train quark with data/datasets/one for 2 steps", "--bucket", "somewhere"]
        said, hint = check_refused(capsys, argv, 4)
    assert "somewhere" in said
    assert hint != "hint: "


def test_no_credentials(project, capsys, aws_environment, moto_endpoint):
    aws_environment.setenv("AWS_ENDPOINT_URL", moto_endpoint)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        aws_environment.delenv(name)
    argv = ["train quark with data/datasets/one for 2 steps", "--bucket", "somewhere"]
    check_refused(capsys, argv, 4)


def test_unreadable_shard_fails_before_the_launch(project, capsys):
    shard = project / "data/datasets/one/train-00000-of-00008.jsonl"
    shard.write_bytes(b'{"text": "cut' * 200)
    said, _ = check_refused(capsys, ["train quark with data/datasets/one for 2 steps"], 3)
    assert "train-" in said
    assert not (project / "runs").exists()


def test_an_explicit_cache_folder_that_is_a_file(
    project, capsys, moto_endpoint, make_bucket, put_objects, aws_environment
):
    aws_environment.setenv("AWS_ENDPOINT_URL", moto_endpoint)
    bucket = make_bucket(moto_endpoint)
    put_objects(moto_endpoint, bucket, {f"data/d/train-{n}.jsonl": records(n) for n in range(8)})
    said, _ = check_refused(
        capsys,
        [
            "train quark with data/d for 2 steps",
            "--bucket",
            bucket,
            "--override",
            "cache_dir=quark.yaml",
        ],
        2,
    )
    assert "quark.yaml" in said


def test_several_groups_are_listed_whole_with_numbers(project, capsys):
    argv = ["train quark with data/datasets/two for 2 steps"]
    assert run_program(argv) == 2
    lines = capsys.readouterr().err.splitlines()
    for prefix in ("data/datasets/two/a[b]/", "data/datasets/two/[/c]/"):
        [line] = [line for line in lines if prefix in line]
        assert line.split()[0] in {"1", "2"}
    assert f"quark '{argv[0]}' --groups 1" in lines[-1]


@pytest.mark.parametrize("flag", [["--groups", "1"], ["--groups", "largest"], ["--groups=1,2"]])
def test_the_flag_chooses(project, capsys, flag):
    argv = ["train quark with data/datasets/two for 2 steps", "--plan", *flag]
    assert run_program(argv) == 0
    assert "data/datasets/two/" in capsys.readouterr().out


def test_no_group_shows_the_folders_and_why(project, capsys):
    write_group(project / "data/datasets/few", count=3)
    assert run_program(["train quark with data/datasets/few for 2 steps"]) == 3
    err = capsys.readouterr().err
    assert "data/datasets/few/" in err
    assert "3 objects, fewer than 8" in err


def test_plan_stops_before_any_side_effect(project, capsys):
    before = tree(project.parent)
    argv = ["train quark with data/datasets/one for 5 steps", "--plan", *SMALL]
    assert run_program(argv) == 0
    done = capsys.readouterr()
    for fact in (
        "data/datasets/one/",
        "8 shards",
        "jsonl",
        "records decoded",
        "5 (5 steps)",
        "seed=7",
    ):
        assert fact in done.out
    assert "quark.yaml" in done.out
    assert "\x1b" not in done.out + done.err
    assert tree(project.parent) == before


def test_plan_as_json(project, capsys):
    argv = ["train quark with data/datasets/one for 5 steps", "--plan", "--json", *SMALL]
    assert run_program(argv) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert plan["schema"] == 1
    assert [item["role"] for item in plan["data"]] == ["train", "validation"]
    assert plan["data"][0]["num_shards"] == 8
    assert plan["steps"] == 5
    assert plan["steps_known"] is True
    assert plan["parameters"] > 10_000
    assert {item["name"]: item["why"] for item in plan["settings"]}["layers"] == "--override"


def test_no_validation(project, capsys):
    argv = ["train quark with data/datasets/one for 5 steps with no validation", "--plan", "--json"]
    assert run_program(argv) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert [item["role"] for item in plan["data"]] == ["train"]


def test_train_prefix_wins_over_the_path(project, capsys):
    argv = [
        "train quark with data/datasets/two for 5 steps", "--plan", "--json",
        "--override", "train_prefix=data/datasets/one/train-",
    ]  # fmt: skip
    assert run_program(argv) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert plan["data"][0]["prefix"] == "data/datasets/one/train-"


def test_errors_under_json_are_json(project, capsys):
    assert run_program(["train quark with data/datasets/two for 2 steps", "--json"]) == 2
    event = json.loads(capsys.readouterr().out)
    assert event["event"] == "error"
    assert event["exit_code"] == 2
    assert len(event["detail"]["groups"]) == 2


def test_explain(project, capsys):
    argv = ["explain", "train quark on s3://b/x for 3 epochs", "--json"]
    assert run_program(argv) == 0
    reading = json.loads(capsys.readouterr().out)
    assert reading["status"] == "ok"
    assert reading["slots"] == {"model": "quark", "data": ["s3://b/x"], "epochs": 3}
    assert run_program(["explain", "train quark on s3://b/x frobnicate"]) == 0
    drawn = capsys.readouterr().out
    assert "^^^^^^^^^^" in drawn
    assert "unaccounted" in drawn


@pytest.mark.parametrize(
    "sentence", ["-train quark on x/y", "--json please", "don't", "\x1b[31m", "a" * 5000]
)
def test_explain_takes_any_sentence_and_exits_0(project, capsys, sentence):
    before = tree(project)
    assert run_program(["explain", sentence, "--json"]) == 0
    done = capsys.readouterr()
    assert json.loads(done.out)["schema"] == 1
    assert done.err == ""
    assert tree(project) == before


def test_discover(project, capsys):
    assert run_program(["what datasets are under data/datasets"]) == 0
    out = capsys.readouterr().out
    for prefix in (
        "data/datasets/one/train-",
        "data/datasets/two/a[b]/",
        "data/datasets/two/[/c]/",
    ):
        assert prefix in out
    assert run_program(["what datasets are under data/datasets", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["groups"]) == 4
    assert run_program(["what datasets are under data/datasets/empty"]) == 3


def test_list_without_runs(project, capsys):
    assert run_program(["list runs"]) == 0
    done = capsys.readouterr()
    assert done.out == ""
    assert "no runs" in done.err
    assert run_program(["list runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"schema": 1, "runs": []}


def test_help_version_and_nothing(project, capsys):
    assert run_program(["--help"]) == 0
    assert "usage:" in capsys.readouterr().out
    assert run_program(["--version"]) == 0
    assert capsys.readouterr().out.startswith("quark 0.")
    assert run_program([]) == 2
    done = capsys.readouterr()
    assert done.out == ""
    assert "usage:" in done.err
    assert run_program(["help"]) == 0
    assert "train" in capsys.readouterr().out


def test_a_broken_project_file_is_one_line(project, capsys):
    (project / "quark.yaml").write_text("bukcet: x\n")
    said, hint = check_refused(capsys, ["train quark with data/datasets/one"], 2)
    assert "bukcet" in said
    assert "bucket" in hint


def test_verbose_adds_the_traceback(project, capsys):
    assert run_program(["train quark with data/datasets/empty", "--verbose"]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_an_unexpected_error_is_one_line_too(project, capsys):
    (project / "quark.yaml").unlink()
    (project / "quark.yaml").mkdir()  # a folder where a file belongs
    said, _ = check_refused(capsys, ["list runs"], 2)
    assert "quark.yaml" in said


B46_TRAINED = [
    'train quark with "{root}/data/my set/x"',
    "train quark with '{root}/data/my set/x'",
    "train quark with \u201c{root}/data/my set/x\u201d",
    '\ttrain quark with\u00a0"{root}/data/my set/x".\n',
    'Train Quark WITH "{root}/data/my set/x" please',
    'train quark using "{root}/data/my set/x"',
]


@pytest.mark.parametrize("sentence", B46_TRAINED)
def test_b46_a_quoted_path_is_read_byte_for_byte(project, capsys, sentence):
    write_group(project / "data/my set/x")
    assert run_program([sentence.format(root=project), "--plan", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert plan["data"][0]["prefix"] == "data/my set/x/"


@pytest.mark.parametrize("name", ["my set/x", "bob's set"])
def test_b46_an_unquoted_path_with_blanks_is_shown_quoted(project, capsys, name):
    path = f"{project}/data/{name}"
    said, hint = check_refused(capsys, [f"train quark with {path}"], 2)
    assert "not understood: set" in said
    assert shlex.split(hint.partition(": quark ")[2]) == [f'train quark with "{path}"']


B46_REFUSED = [
    (r"train quark with C:\Users\me\quark\data\x", r"C:\Users\me\quark\data\x"),
    ("train quark", "data"),
    ("", "empty"),
    ("   ", "empty"),
    ("with with /repo/data/with/x", ""),
    ("train quark with 'data/one", "quote"),
]


@pytest.mark.parametrize(("sentence", "said"), B46_REFUSED)
def test_b46_no_input_ends_in_a_traceback(project, capsys, sentence, said):
    error, _ = check_refused(capsys, [sentence], 2)
    assert said in error


def test_b46_several_arguments_are_one_sentence(project, capsys):
    write_group(project / "data/my set/x")
    argv = ["train", "quark", "with", f"{project}/data/my set/x", "--plan", "--json"]
    assert run_program(argv) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert plan["data"][0]["prefix"] == "data/my set/x/"
