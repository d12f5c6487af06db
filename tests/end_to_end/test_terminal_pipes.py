"""The real program off a terminal: no prompt, no escape byte, no hang, whatever stdin is."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
PROGRAM = [sys.executable, str(CHECKOUT / "quark_cli.py")]
LONG = "data/datasets/" + "y" * 160 + "/"
PREFIXES = ("data/datasets/run[train]/a/", "data/datasets/[/x]/b/", "data/datasets/[bold]c/", LONG)
LIMIT_SECONDS = 60
"""Generous: machines that run tests are busy."""


def shard(number: int) -> bytes:
    rows = ({"text": f"sample {n} of shard {number}"} for n in range(60))
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def write_group(folder: Path) -> None:
    folder.mkdir(parents=True)
    for number in range(8):
        (folder / f"train-{number:05}.jsonl").write_bytes(shard(number))


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with groups of awkward names."""
    folder = tmp_path_factory.mktemp("quark")
    (folder / "quark.yaml").write_text("")
    for prefix in (*PREFIXES, "data/datasets/donn\xe9es/"):
        write_group(folder / prefix)
    return folder


def environment(**changes: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "QUARK_"))}
    for name in ("CI", "NO_COLOR", "COLUMNS", "PYTHONIOENCODING"):
        kept.pop(name, None)
    return {**kept, "TERM": "xterm-256color", **changes}


def quark(project: Path, *argv: str, stdin=subprocess.DEVNULL, **changes: str):
    return subprocess.run(
        [*PROGRAM, *argv], cwd=project, stdin=stdin, capture_output=True, timeout=LIMIT_SECONDS,
        env=environment(**changes), check=False,
    )  # fmt: skip


TRAIN = "train quark with data/datasets for 2 steps"


def check_listed(done, project: Path) -> None:
    assert done.returncode == 2, done.stderr
    err = done.stderr.decode()
    lines = err.splitlines()
    for prefix in PREFIXES:
        [line] = [line for line in lines if prefix in line]
        assert line.split()[0].isdecimal()
    assert "--groups 1" in lines[-1]
    assert "Which" not in err
    assert "\x1b" not in err
    assert done.stdout == b""
    assert not (project / "runs").exists()


@pytest.mark.parametrize("ci", [{}, {"CI": "true"}])
def test_b50_dev_null(project, ci):
    check_listed(quark(project, TRAIN, **ci), project)


def test_b50_closed_stdin(project):
    shell = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *PROGRAM, TRAIN], cwd=project, capture_output=True,
        timeout=LIMIT_SECONDS, env=environment(), check=False,
    )  # fmt: skip
    check_listed(shell, project)


@pytest.mark.parametrize("text", [b"", b"2\n"])
def test_b50_nothing_is_read_from_a_pipe(project, text):
    read_end, write_end = os.pipe()
    try:
        os.write(write_end, text)
        began = time.monotonic()
        check_listed(quark(project, TRAIN, stdin=read_end), project)
        assert time.monotonic() - began < LIMIT_SECONDS / 2
        os.set_blocking(read_end, False)
        if text:
            assert os.read(read_end, 10) == text
    finally:
        os.close(read_end)
        os.close(write_end)


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["list runs"],
        ["stop everything"],
        [TRAIN, "--groups", "1", "--plan", "--json"],
    ],
)
def test_a_process_ends_by_itself_without_escape_bytes(project, argv):
    # All commands: test_every_command_pipes.py.
    read_end, write_end = os.pipe()  # held open, silent
    try:
        done = quark(project, *argv, stdin=read_end)
    finally:
        os.close(read_end)
        os.close(write_end)
    assert done.returncode in {0, 2, 3}, done.stderr
    assert b"\x1b" not in done.stdout + done.stderr
    assert b"Traceback" not in done.stderr
    if done.returncode:
        assert done.stdout == b""
    if "--json" in argv:
        json.loads(done.stdout)


@pytest.mark.parametrize(
    "changes",
    [{}, {"COLUMNS": "40"}, {"TERM": "dumb"}, {"NO_COLOR": "1"}, {"COLUMNS": "40", "TERM": "dumb"}],
)
def test_b52_prefixes_are_whole_in_a_pipe(project, changes):
    done = quark(project, "what datasets are under data/datasets", **changes)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode().splitlines()
    for prefix in (*PREFIXES, "data/datasets/donn\xe9es/"):
        assert sum(prefix in line for line in lines) == 1
    assert "…" not in done.stdout.decode()
    assert b"\x1b" not in done.stdout + done.stderr


def test_b52_ascii_output(project):
    done = quark(project, "what datasets are under data/datasets", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert b"data/datasets/donn\\xe9es/" in done.stdout
    assert done.stdout.isascii()


def test_b52_a_pipe_closed_early(project):
    line = f"{PROGRAM[0]} {PROGRAM[1]} 'what datasets are under data/datasets'"
    done = subprocess.run(
        ["bash", "-c", f"{line} | head -c 1 > /dev/null; echo ${{PIPESTATUS[0]}}"], cwd=project,
        capture_output=True, timeout=LIMIT_SECONDS, env=environment(), check=False,
    )  # fmt: skip
    assert done.stdout.split()[-1] in {b"0", b"141"}
    assert b"Traceback" not in done.stderr
    assert b"BrokenPipe" not in done.stderr


@pytest.mark.slow
def test_a_run_off_a_terminal(tmp_path):
    """A whole run by pipe: plan and progress on stderr, summary on stdout, then show and list."""
    (tmp_path / "quark.yaml").write_text("layers: 1\nseq_len: 32\nbatch_size: 4\ndevice: cpu\n")
    write_group(tmp_path / "data/datasets/one")
    done = quark(
        tmp_path, "train quark with data/datasets/one for 4 steps", "--override", "name=fox-1"
    )
    assert done.returncode == 0, done.stderr
    assert b"\x1b" not in done.stdout + done.stderr
    assert b"data/datasets/one/" in done.stderr
    assert b"steps" in done.stdout
    assert b"quark show fox-1" in done.stdout
    run_dir = tmp_path / "runs/fox-1"
    assert {"job.yaml", "plan.json", "metrics.jsonl", "log"} <= {p.name for p in run_dir.iterdir()}
    shown = quark(tmp_path, "show fox-1")
    assert shown.returncode == 0, shown.stderr
    assert b"finished" in shown.stdout
    assert b"4 of 4" in shown.stdout
    listed = json.loads(quark(tmp_path, "list runs", "--json").stdout)
    assert [run["name"] for run in listed["runs"]] == ["fox-1"]
    again = quark(
        tmp_path, "train quark with data/datasets/one for 4 steps", "--override", "name=fox-1"
    )
    assert again.returncode == 2
    assert b"fox-1 exists" in again.stderr
    finished = quark(tmp_path, "resume fox-1")
    assert finished.returncode == 2
    assert b"has finished" in finished.stderr


@pytest.mark.slow
def test_a_run_as_json_events(tmp_path):
    (tmp_path / "quark.yaml").write_text("layers: 1\nseq_len: 32\nbatch_size: 4\ndevice: cpu\n")
    write_group(tmp_path / "data/datasets/one")
    done = quark(tmp_path, "train quark with data/datasets/one for 3 steps", "--json")
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds[:2] == ["plan", "start"]
    assert kinds.count("step") == 3
    assert kinds[-1] == "end"
    assert events[0]["schema"] == events[1]["schema"] == 1


@pytest.mark.parametrize("argv", [["--help"], ["explain", "train quark on s3://b/x for 3 epochs"]])
def test_help_and_explain_load_nothing_heavy(project, argv):
    code = (
        "import sys; from tools_utilities.scripts.quark_cli import run_program\n"
        f"assert run_program({argv!r}) == 0\n"
        "heavy = {'torch', 'boto3', 'pyarrow', 'obstore', 'prompt_toolkit', 'numpy', 'rich.console'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
        "import resource; u = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print(u.ru_utime + u.ru_stime, file=sys.stderr)"
    )
    seconds = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=project, capture_output=True, text=True, check=True,
            timeout=LIMIT_SECONDS, env=environment(PYTHONPATH=str(CHECKOUT)),
        )  # fmt: skip
        heavy, used = done.stderr.splitlines()
        assert heavy == "[]"
        seconds.append(float(used))
    assert min(seconds) <= 0.35
