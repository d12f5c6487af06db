"""The real program at a pseudo-terminal: picker, confirmation, live view, Ctrl-C once and twice."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pexpect
import pytest

from tests.fakes import Request, StubS3

CHECKOUT = Path(__file__).resolve().parents[2]
SIZES = [(24, 80), (12, 40)]
ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[()][A-Z0-9]|[=>78])")
LIMIT_SECONDS = 60
DOWN = "\x1b[B"


def shard(number: int) -> bytes:
    rows = ({"text": f"sample {n} of shard {number} " * 20} for n in range(200))
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def write_group(folder: Path) -> None:
    folder.mkdir(parents=True)
    for number in range(8):
        (folder / f"train-{number:05}.jsonl").write_bytes(shard(number))


@pytest.fixture
def project(tmp_path):
    (tmp_path / "quark.yaml").write_text(
        "layers: 1\nseq_len: 64\nbatch_size: 8\ndevice: cpu\nname: fox-1\n"
    )
    write_group(tmp_path / "data/datasets/one")
    write_group(tmp_path / "data/datasets/two/[a]")
    write_group(tmp_path / "data/datasets/two/b")
    return tmp_path


class Screen:
    """The program at a terminal, and everything it wrote without its escapes."""

    def __init__(
        self, project: Path, *argv: str, size=(24, 80), redirect: str = "", **changes: str
    ):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "QUARK_"))}
        for name in ("CI", "NO_COLOR", "COLUMNS", "LINES"):
            kept.pop(name, None)
        command = [sys.executable, str(CHECKOUT / "quark_cli.py"), *argv]
        if redirect:
            command = ["sh", "-c", f'exec "$@" {redirect}', "sh", *command]
        self.raw = ""
        self.child = pexpect.spawn(
            command[0], command[1:], cwd=str(project), dimensions=size, encoding="utf-8",
            timeout=LIMIT_SECONDS, env={**kept, "TERM": "xterm-256color", **changes},
        )  # fmt: skip

    @property
    def text(self) -> str:
        """Everything so far, in one line of single blanks."""
        return " ".join(ESCAPE.sub("", self.raw).split())

    def until(self, wanted: str) -> None:
        """Wait until `wanted` (blanks folded) has been written."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while wanted not in self.text:
            assert time.monotonic() < deadline, f"no {wanted!r} in {self.text!r}"
            try:
                self.raw += self.child.read_nonblocking(65536, timeout=1)
            except pexpect.TIMEOUT:
                continue
            except pexpect.EOF:
                assert wanted in self.text, f"no {wanted!r} in {self.text!r}"

    def end(self) -> int:
        """Wait for the end; returns the exit code."""
        while True:
            try:
                self.raw += self.child.read_nonblocking(65536, timeout=LIMIT_SECONDS)
            except pexpect.EOF:
                break
        self.child.wait()
        assert self.child.exitstatus is not None, f"died of signal {self.child.signalstatus}"
        return int(self.child.exitstatus)

    def send(self, text: str) -> None:
        self.child.send(text)


def events_of(project: Path) -> list[dict[str, Any]]:
    text = (project / "runs/fox-1/metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def descendants_of(project: Path) -> list[str]:
    """Processes that name the project's folder, our own watcher of it aside."""
    found = subprocess.run(
        ["ps", "-ww", "-eo", "pid,args"], capture_output=True, text=True, check=True
    )
    return [line for line in found.stdout.splitlines() if f"{project}/runs" in line]


def wait_for_none_left(project: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while descendants_of(project):
        assert time.monotonic() < deadline, descendants_of(project)
        time.sleep(0.1)


@pytest.mark.parametrize("size", SIZES)
def test_picker_confirmation_no(project, size):
    screen = Screen(project, "train quark with data/datasets/two for 3 steps", size=size)
    screen.until("Which ones to train on?")
    screen.until("data/datasets/two/[a]/")
    screen.send(DOWN + "\r")
    screen.until("Start fox-1? [Y/n]")
    assert "data/datasets/two/b/" in screen.text.replace(" ", "")
    screen.send("n\n")
    assert screen.end() == 2
    assert "Nothing was started." in screen.text
    assert not (project / "runs").exists()


def test_picker_leave_starts_nothing(project):
    screen = Screen(project, "train quark with data/datasets/two for 3 steps")
    screen.until("Which ones to train on?")
    # The first paint comes before the parts of a run are loaded, and is gone again.
    assert screen.raw.startswith("\x1b[2mreading …\x1b[0m\r\x1b[K\x1b[2mlooking …\x1b[0m\r\x1b[K")
    screen.send("\x1b")
    assert screen.end() == 2
    assert "no group was chosen" in screen.text
    assert not (project / "runs").exists()


@pytest.mark.parametrize("changes", [{"TERM": "dumb"}, {"NO_COLOR": "1"}])
def test_plain_picker_without_escape_bytes(project, changes):
    screen = Screen(project, "train quark with data/datasets/two for 3 steps", "--plan", **changes)
    screen.until("Which?")
    screen.send("/[a]\n")
    screen.until("sorts]")
    screen.send("p 1\n")
    screen.until("sample 0 of shard 0")
    screen.send("1\n")
    assert screen.end() == 0
    assert "\x1b" not in screen.raw
    assert "reading …" not in screen.raw
    assert "8 shards" in screen.text


def test_b50_the_question_is_seen_when_stdout_is_a_file(project):
    screen = Screen(
        project, "train quark with data/datasets/two for 3 steps", "--plan", redirect="> plan.txt"
    )
    screen.until("Which ones to train on?")
    screen.send("1\r")
    assert screen.end() == 0
    assert "8 shards" in (project / "plan.txt").read_text()
    assert "\x1b" not in (project / "plan.txt").read_text()


@pytest.mark.parametrize("argv", [["--no-input"], []])
def test_nothing_is_asked_with_no_input_or_ci(project, argv):
    changes = {} if argv else {"CI": "1"}
    screen = Screen(project, "train quark with data/datasets/two for 3 steps", *argv, **changes)
    assert screen.end() == 2
    assert "--groups 1" in screen.text
    assert "\x1b" not in screen.raw


def end_saved(screen: Screen) -> None:
    """Send Ctrl-C to a run: it says that it saves, does so, and says how to go on."""
    screen.send("\x03")
    screen.until("Saving, then stopping.")
    assert screen.end() == 130
    assert "saved step" in screen.text
    assert "quark resume fox-1" in screen.text
    assert "Traceback" not in screen.text


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_a_run_is_seen_and_interrupted_once_saves_and_resumes(project, size):
    screen = Screen(project, "train quark with data/datasets/one for 100000 steps", size=size)
    screen.until("Start fox-1? [Y/n]")
    screen.send("\n")
    screen.until("grad norm")
    screen.until("tokens/s")
    end_saved(screen)
    wait_for_none_left(project, 2)
    metrics = events_of(project)
    saved = max(event["step"] for event in metrics if event["event"] == "checkpoint")
    last = max(event["step"] for event in metrics if event["event"] == "step")
    assert saved == last
    again = Screen(project, f"resume fox-1 for {last + 2} steps", "--yes", size=size)
    assert again.end() == 0
    assert "quark show fox-1" in again.text
    events = events_of(project)
    starts = [event for event in events if event["event"] == "start"]
    assert [start["resumed_from_step"] for start in starts] == [None, saved]
    assert events[-1]["step"] == last + 2


ASCII = {"PYTHONIOENCODING": "ascii"}
PLAIN = [
    pytest.param({"TERM": "dumb"}, id="dumb"),
    pytest.param({"NO_COLOR": "1"}, id="no colour", marks=pytest.mark.nightly),
    pytest.param(ASCII, id="ascii"),
]


@pytest.mark.slow
@pytest.mark.parametrize("changes", PLAIN)
def test_a_run_at_a_plain_terminal(project, changes):
    screen = Screen(project, "train quark with data/datasets/one for 100000 steps", **changes)
    screen.until("Start fox-1? [Y/n]")
    screen.send("why batch_size\n")
    screen.until("8")
    screen.send("y\n")
    screen.until("grad norm")
    end_saved(screen)
    if changes == ASCII:
        assert screen.raw.isascii()
    else:
        assert "\x1b" not in screen.raw


@pytest.mark.parametrize("size", SIZES)
def test_the_picker_of_a_terminal_without_utf_8(project, size):
    write_group(project / "data/datasets/two/donn\xe9es")
    screen = Screen(project, "train quark with data/datasets/two for 3 steps", size=size, **ASCII)
    screen.until("Which ones to train on?")
    screen.send("/donn\r")
    screen.until("holding")
    screen.until("donn\\xe9es")
    screen.send("\r")
    screen.until("Start fox-1? [Y/n]")
    screen.send("n\n")
    assert screen.end() == 2
    assert screen.raw.isascii()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "changes"),
    [
        ((24, 80), {}),
        pytest.param((12, 40), {}, marks=pytest.mark.nightly),
        pytest.param((12, 40), {"TERM": "dumb"}, marks=pytest.mark.nightly),
        pytest.param((24, 80), {"NO_COLOR": "1"}, marks=pytest.mark.nightly),
        pytest.param((24, 80), ASCII, marks=pytest.mark.nightly),
    ],
)
def test_ctrl_c_twice_skips_the_save(project, size, changes):
    line = "train quark with data/datasets/one for 100000 steps"
    screen = Screen(project, line, "--yes", size=size, **changes)
    screen.until("grad norm")
    screen.send("\x03")
    screen.send("\x03")
    assert screen.end() == 130
    assert "Traceback" not in screen.text
    wait_for_none_left(project, 2)


@pytest.mark.slow
def test_ctrl_c_while_the_run_starts(project):
    screen = Screen(project, "train quark with data/datasets/one for 100000 steps", "--yes")
    screen.until("starting")
    screen.send("\x03")
    assert screen.end() == 130
    assert "Traceback" not in screen.text
    wait_for_none_left(project, 2)


def test_ctrl_c_at_a_question_leaves_nothing(project):
    screen = Screen(project, "train quark with data/datasets/one for 3 steps")
    screen.until("Start fox-1? [Y/n]")
    screen.send("\x03")
    assert screen.end() == 130
    assert "nothing was started" in screen.text
    assert "Traceback" not in screen.text
    assert not (project / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, None)])
def test_termination_and_a_closed_terminal_leave_no_process(project, number, code):
    screen = Screen(project, "train quark with data/datasets/one for 100000 steps", "--yes")
    screen.until("grad norm")
    os.kill(screen.child.pid, number)
    ended = screen.end()
    if code:
        assert ended == code
    wait_for_none_left(project, 10)
    assert list((project / "runs/fox-1/checkpoints").glob("step-*"))


def test_ctrl_c_during_discovery_leaves_nothing(project):
    answer = threading.Event()

    def wait(_request: Request) -> None:
        answer.wait(LIMIT_SECONDS)

    with StubS3({"data/x/train-0.jsonl": b"{}"}) as s3:
        s3.script = wait
        screen = Screen(
            project, "train quark with data/x for 3 steps", "--bucket", "slow",
            AWS_ENDPOINT_URL=s3.url, AWS_ACCESS_KEY_ID="k", AWS_SECRET_ACCESS_KEY="s",
            AWS_REGION="us-east-1", CACHE_DIR=str(project / "cache"), HOME=str(project),
        )  # fmt: skip
        while not s3.requests:
            time.sleep(0.05)
        began = time.monotonic()
        screen.send("\x03")
        assert screen.end() == 130
        assert time.monotonic() - began < 30
        answer.set()
    assert "Traceback" not in screen.text
    assert not (project / "runs").exists()
    assert not list((project / "cache").rglob("*"))


@pytest.mark.slow
def test_a_killed_program_leaves_no_run_behind(project):
    screen = Screen(project, "train quark with data/datasets/one for 100000 steps", "--yes")
    screen.until("grad norm")
    os.kill(screen.child.pid, signal.SIGKILL)
    wait_for_none_left(project, 30)


def test_corrections_and_unknown_words_are_asked_about(project):
    screen = Screen(project, "trian quark with data/datasets/one for 3 steps", "--plan")
    screen.until("Is that what you mean? [Y/n]")
    screen.send("y\n")
    assert screen.end() == 0
    screen = Screen(project, "train quark with data/datasets/one frobnicate for 3 steps", "--plan")
    screen.until("^^^^^^^^^^")
    screen.until("Ignore frobnicate? [y/N]")
    screen.send("y\n")
    assert screen.end() == 0
    assert "ignored: frobnicate" in screen.text
    screen = Screen(project, "train quark for 3 steps", "--plan")
    screen.until("? ")
    screen.send("data/datasets/one\n")
    assert screen.end() == 0
    assert "8 shards" in screen.text
