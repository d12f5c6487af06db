"""Hostile sentences through the whole program: refused or reported in one line, nothing done."""

import json
import subprocess
import sys

import pytest

from tests.knowledge_hub.test_hostile import ACTS, HOSTILE
from tests.projects import write_group

LONG = {
    "100,000 tokens": "train on s3://b/x " + "please " * 100_000,
    "100,000 commands": "then stop everything " * 33_000,
    "100,000 commas": "train on s3://b/x groups " + "1," * 100_000,
    "list bomb": "train on s3://b/x groups " + "1,1 " * 900 + "x",
    "ors": "train on s3://b/x for 1 epoch " + "or 6 hours " * 300,
    "quoted runs": "compare " + "'a' and " * 400,
    "open bracket names": "show " + "[" * 3000,
    "deep override": "train on s3://b/x --override " + "betas=" + "0.9," * 900,
}
CHILD = """
import contextlib, io, json, sys
from tools_utilities.scripts.quark_cli import run_program
told = {}
for name, argv in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_program(argv)
    told[name] = [code, out.getvalue(), err.getvalue()]
json.dump(told, sys.stdout)
"""


@pytest.fixture
def folder(tmp_path, aws_environment):
    write_group(tmp_path / "data/one")
    aws_environment.chdir(tmp_path)
    return tmp_path


def told(calls: list[tuple[str, list[str]]]) -> dict[str, tuple[int, str, str]]:
    done = subprocess.run(
        [sys.executable, "-c", CHILD], input=json.dumps(calls), capture_output=True, text=True,
        check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, tuple[int, str, str]] = json.loads(done.stdout)
    return found


def test_nothing_is_done_and_all_is_said_in_plain_lines(folder):
    before = set(folder.rglob("*"))
    sentences = HOSTILE | LONG
    found = told([(name, [text, "--no-input"]) for name, text in sentences.items()])
    for name, (code, out, err) in found.items():
        assert code == 2, (name, err[-300:])
        assert out == "", name
        lines = err.splitlines()
        assert "Traceback" not in err, name
        assert [line.partition(":")[0] for line in lines[-2:]] == ["error", "hint"], name
        assert len(lines[-2]) < 1000, name
        assert all(line.isprintable() for line in lines), name
        assert len(err) < 30_000, name  # the sentence itself, with marks below it
    assert set(folder.rglob("*")) == before


def test_explain_never_reads_them_as_a_command_that_acts():
    found = told([(name, ["explain", text, "--json"]) for name, text in (HOSTILE | LONG).items()])
    for name, (code, out, _) in found.items():
        reading = json.loads(out)
        assert code == 0, name
        assert not (reading["status"] == "ok" and reading["intent"] in ACTS), name
