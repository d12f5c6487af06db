"""Nothing is written or sent before the confirm: every intent, recorded in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from knowledge_hub.hub import KnowledgeHub, intents
from tests.fakes import StubS3
from tests.projects import Said, make_manager, write_group

DATA = "data/datasets/one"
SENTENCES = {
    "again": "again",
    "attach": "attach to fox-1",
    "claim": f"claim a shard from {DATA}/",
    "clean_cache": "clean the cache",
    "compare": "compare fox-1 and fox-2",
    "complete": f"complete shard 1 of {DATA}/",
    "delete_run": "delete fox-1",
    "demo": "demo",
    "discover": f"find datasets in {DATA}",
    "doctor": "doctor",
    "estimate": f"estimate train on {DATA} for 2 steps",
    "evaluate": f"evaluate on {DATA}",
    "export": "export fox-1 for slurm",
    "fail": f"fail shard 1 of {DATA}/",
    "finetune": f"finetune quark on {DATA} starting from fox-1",
    "help": "help train",
    "inspect": f"inspect {DATA}",
    "list": "list runs",
    "logs": "logs",
    "offers": "offers",
    "process": f"process {DATA} with pkg.mod:embed",
    "reset_shard": f"reset shard 1 of {DATA}/",
    "resume": "resume",
    "shard": f"shard {DATA} into 2 shards to ./made",
    "shard_status": f"shard status of {DATA}/",
    "show": "show fox-1",
    "simulate": f"simulate with {DATA} on 2 gpus",
    "stop": "stop fox-1",
    "train": f"train with {DATA} for 2 steps",
}
CONFIRMED = ("clean_cache", "delete_run", "reset_shard", "stop")
RECORDER = """
import contextlib, io, json, os, sys
from tools_utilities.scripts.quark_cli import run_program
watching, seen = False, []
MAKES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink",
         "os.chmod", "os.utime", "shutil.rmtree", "shutil.move")
SENDS = ("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.bind")
STARTS = ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.exec")
def hook(event, args):
    if not watching:
        return
    if event == "open":
        path, mode, flags = args
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        if writes and path != os.devnull and "__pycache__" not in str(path):
            seen.append([event, str(path)])
    elif event in MAKES + SENDS + STARTS and "__pycache__" not in str(args[0]):
        seen.append([event, repr(args[:2])])
sys.addaudithook(hook)
told = {}
for name, argv in json.loads(sys.argv[1]):
    seen.clear()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        watching = True
        code = run_program(argv)
        watching = False
    told[name] = {"code": code, "seen": list(seen), "said": said.getvalue()[-300:]}
print(json.dumps(told))
"""


@pytest.fixture
def folder(tmp_path, aws_environment):
    write_group(tmp_path / DATA)
    (tmp_path / "quark.yaml").write_text("seed: 7\n")
    aws_environment.chdir(tmp_path)
    return tmp_path


def record(calls: list[tuple[str, list[str]]]) -> dict[str, dict[str, object]]:
    command = [sys.executable, "-B", "-c", RECORDER, json.dumps(calls)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def test_the_table_holds_every_intent():
    assert set(SENTENCES) == set(intents()) - {"explain"}
    hub = KnowledgeHub()
    for name, sentence in SENTENCES.items():
        reading = hub.read(sentence)
        assert (reading.status, reading.intent) == ("ok", name), sentence


# `doctor` is the one left out: its probe for room opens nameless files, which is what it is for.
def test_a_plan_of_any_intent_writes_and_sends_nothing(folder):
    before = files(folder)
    told = record(
        [(name, [text, "--plan"]) for name, text in SENTENCES.items() if name != "doctor"]
    )
    assert {name: one for name, one in told.items() if one["seen"]} == {}
    assert told["train"]["code"] == 0
    assert files(folder) == before


def test_explain_of_any_intent_writes_and_sends_nothing(folder):
    before = files(folder)
    told = record([(name, ["explain", text, "--json"]) for name, text in SENTENCES.items()])
    assert {name: one for name, one in told.items() if one["seen"] or one["code"]} == {}
    assert files(folder) == before


def test_what_asks_and_is_not_answered_does_nothing(folder):
    before = files(folder)
    told = record([(name, [SENTENCES[name], "--no-input"]) for name in CONFIRMED])
    assert {name: one for name, one in told.items() if one["seen"]} == {}
    assert files(folder) == before


def leave_run(folder: Path, name: str, data: str = DATA) -> None:
    """Leave a run that ended, by a target that trains nothing."""
    manager, _, _, _ = make_manager(folder)
    manager.train(Said(data=[data], name=name, max_steps=2))


def test_a_plan_of_any_intent_writes_and_sends_nothing_beside_earlier_runs(folder):
    for name in ("fox-1", "fox-2"):
        leave_run(folder, name)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    plain = [(name, text) for name, text in SENTENCES.items() if name != "doctor"]
    # Consent (`--yes`) to a plan is consent to nothing, whichever way the plan was asked for.
    told = record([(name, [text, "--plan", "--yes"]) for name, text in plain])
    assert {name: one for name, one in told.items() if one["seen"]} == {}
    dry = record([(name, [f"{text}, dry run", "--yes"]) for name, text in plain if name != "help"])
    assert {name: one for name, one in dry.items() if one["seen"]} == {}
    planned = ("again", "delete_run", "estimate", "list", "logs", "show", "train")
    assert {name: told[name]["code"] for name in planned} == dict.fromkeys(planned, 0)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_plan_of_data_in_a_store_only_reads_it(folder, monkeypatch):
    rows = b"".join(b'{"text": "sample %d"}\n' % n for n in range(400))
    objects = {f"set/train-{n:05}.jsonl": rows for n in range(8)}
    remote = [name for name, text in SENTENCES.items() if DATA in text]
    with StubS3(objects) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")  # of nobody
        before = files(folder)
        quiet = record([(name, ["explain", text, "--json"]) for name, text in SENTENCES.items()])
        assert store.requests == []
        calls = [
            (name, [SENTENCES[name].replace(DATA, "s3://bucket/set"), "--plan"]) for name in remote
        ]
        told = record(calls)
        assert {request.method for request in store.requests} <= {"GET", "HEAD"}
    assert {name: one for name, one in quiet.items() if one["seen"]} == {}
    assert told["train"]["code"] == told["estimate"]["code"] == told["discover"]["code"] == 0
    sent = [event for one in told.values() for event in cast("list[list[str]]", one["seen"])]
    assert {event[0] for event in sent} <= {"socket.connect", "socket.getaddrinfo", "socket.bind"}
    assert [
        event for event in sent if not any(own in event[1] for own in ("127.0.0.1", "::1"))
    ] == []
    assert files(folder) == before
