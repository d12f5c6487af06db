"""Every command off a terminal, whatever stdin is: it ends by itself, asks nothing, sends no escape.

One process carries out all of them, one after the other: a start of the program for each would cost
a minute. That each also ends as a process of its own is in test_terminal_pipes.py.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from knowledge_hub.hub import KnowledgeHub, intents
from tests.end_to_end.test_recorded_io import SENTENCES
from tests.end_to_end.test_terminal_pipes import PREFIXES, environment
from tests.projects import END, RecordingTarget, Said, make_manager, write_group

DATA = "data/datasets/one"
LONG_ONES = ("train", "finetune", "again", "evaluate", "demo", "process", "shard", "export")
"""They would run, or write; their plans are shown here, whole runs elsewhere."""
CLAIMING: tuple[tuple[int, str, *tuple[str, ...]], ...] = (
    (0, "shard ./tasks.jsonl into 2 shards to {}"),
    (0, "claim a shard from {}, prefer shard 1"),
    (0, "shard status of {}"),
    (2, "reset shard 1 of {}"),
    (0, "reset shard 1 of {}", "--yes"),
    (0, "claim a shard from {}, prefer shard 1"),
    (0, "fail shard 1 of {}"),
    (0, "claim a shard from {}, prefer shard 1"),
    (0, "complete shard 1 of {}"),
    (5, "complete shard 0 of {}"),
    (5, "reset shard 1 of {}", "--yes"),
    (0, "claim a shard from {}"),
    (5, "claim a shard from {}"),
    (0, "shard status of {}"),
)
"""Exit code, sentence (of a queue) and flags: what claims do, one after the other."""
ACTS = ("claim", "complete", "fail", "reset_shard", "shard_status")
MORE: tuple[list[str], ...] = (
    ["--help"],
    ["--version"],
    [],
    ["help", "settings"],
    ["help", "lr"],
    ["explain", f"train quark with {DATA} frobnicate"],
    ["explain", "then then"],
    ["why", "lr"],
    ["why", "lr", "fox-1"],
    ["why", "nonsense"],
    ["train"],
    ["trian quark with data/datasets"],
    ["train quark with data/datasets for 2 steps"],
    ["train quark with data/none"],
    [f"train quark with {DATA} for 2 steps", "--override", "lr=x"],
    ["show"],
    ["show nobody"],
    ["stop everything"],
    ["list failed runs"],
    ["rm -rf /; train quark"],
    ["\x1b[31mtrain\x1b[0m"],
    ["what datasets are under data/datasets"],
    ["--frobnicate"],
    ["--override"],
    ["--from-plan", "none.json"],
    ["--install-completion", "csh"],
    ["list runs", "--out", "x"],
)
CARRY_OUT_ALL = """
import json, os, sys
from tools_utilities.scripts.quark_cli import run_program
codes = []
for argv in json.loads(sys.argv[1]):
    codes.append(run_program(argv))
    for stream in (sys.stdout, sys.stderr):
        stream.write("\\n=====\\n")
        stream.flush()
os.write(int(sys.argv[2]), json.dumps(codes).encode())
"""


def commands() -> list[list[str]]:
    planned = [
        [text, "--plan"] if name in LONG_ONES else [text]
        for name, text in SENTENCES.items()
        if name not in ACTS
    ]
    return [*planned, *MORE]


def claiming(queue: str) -> list[list[str]]:
    return [[said[1].format(f"./queues/{queue}"), *said[2:]] for said in CLAIMING]


def check_claims(codes: list[int]) -> None:
    assert codes[-len(CLAIMING) :] == [said[0] for said in CLAIMING]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with one run that has ended and groups of awkward names."""
    folder = tmp_path_factory.mktemp("quark")
    (folder / "quark.yaml").write_text("layers: 1\ncache_dir: cache\ncache_gb: 0.001\n")
    (folder / "tasks.jsonl").write_text("".join(f'{{"id": {n}}}\n' for n in range(20)))
    for prefix in (f"{DATA}/", *PREFIXES):
        write_group(folder / prefix)
    manager, *_ = make_manager(folder, RecordingTarget(END))
    assert manager.train(Said(data=[DATA], name="fox-1", layers=1)) == 0
    return folder


def carried_out(project: Path, argvs: list[list[str]], stdin: int | None, *prefix: str):
    """Return (argv, exit code, stdout, stderr) of every command of one process."""
    read_end, write_end = os.pipe()
    command = [*prefix, sys.executable, "-c", CARRY_OUT_ALL, json.dumps(argvs), str(write_end)]
    done = subprocess.run(
        command, cwd=project, stdin=stdin, capture_output=True, timeout=110, check=False,
        env=environment(HOME=str(project)), pass_fds=[write_end],
    )  # fmt: skip
    os.close(write_end)
    with os.fdopen(read_end, "rb") as file:
        told = file.read()
    assert done.returncode == 0, done.stderr[-2000:]
    codes = json.loads(told)
    outs, errs = (text.split(b"\n=====\n")[:-1] for text in (done.stdout, done.stderr))
    assert len(codes) == len(outs) == len(errs) == len(argvs)
    return zip(argvs, codes, outs, errs, strict=True)


def check_plain(argv: list[str], code: int, out: bytes, err: bytes) -> None:
    about = (argv, code, out, err)
    assert code in {0, 2, 3, 4, 5}, about
    assert b"\x1b" not in out + err, about
    assert b"Traceback" not in err, about
    assert b"[Y/n]" not in err, about
    assert b"[y/N]" not in err, about
    assert b"[1-" not in err, about
    if code:
        assert b"error: " in err or not argv, about
        assert b"hint: " in err or not argv, about


def test_every_intent_is_among_them():
    said = {argv[0] for argv in commands() if argv}
    unsaid = {name for name, text in SENTENCES.items() if text not in said}
    assert unsaid == set(ACTS)
    hub = KnowledgeHub()
    assert {hub.read(argv[0]).intent for argv in claiming("any")} == {*ACTS, "shard"}
    assert set(SENTENCES) == set(intents()) - {"explain"}


def files(project: Path) -> set[str]:
    """What there is, but for what claims are there to leave: their queues and their tickets."""
    found = {path.relative_to(project).as_posix() for path in project.rglob("*")}
    tickets = ".local/state/quark/claims"
    left = {name for name in found if name.startswith(("queues", tickets))}
    return found - left - {".local", ".local/state", ".local/state/quark"}


def check_all(told: Iterable[tuple[list[str], int, bytes, bytes]]) -> None:
    """Check every command of a process, the claims at its end by their exit codes."""
    codes = []
    for argv, code, out, err in told:
        check_plain(argv, code, out, err)
        codes.append(code)
    check_claims(codes)


def test_stdin_is_dev_null(project):
    before = files(project)
    argvs = [*commands(), *claiming("null")]
    check_all(carried_out(project, argvs, subprocess.DEVNULL))
    assert files(project) == before


def test_stdin_is_closed(project):
    argvs = [*commands(), *claiming("closed")]
    check_all(carried_out(project, argvs, None, "sh", "-c", 'exec "$@" <&-', "sh"))


def test_stdin_is_silent(project):
    read_end, write_end = os.pipe()  # held open, and nothing comes
    try:
        check_all(carried_out(project, [*commands(), *claiming("silent")], read_end))
    finally:
        os.close(read_end)
        os.close(write_end)


def test_stdout_holds_nothing_but_json(project):
    argvs = [[*argv, "--json"] for argv in (*commands(), *claiming("json")) if argv]
    codes = []
    for argv, code, out, err in carried_out(project, argvs, subprocess.DEVNULL):
        codes.append(code)
        check_plain(argv, code, out, err)
        lines = [json.loads(line) for line in out.splitlines()]
        assert lines, argv
        assert lines[-1]["schema"] == 1 or lines[-1].get("event") == "reading", argv
        if code:
            assert (lines[-1].get("event"), lines[-1].get("exit_code")) == ("error", code), argv
    check_claims(codes)
