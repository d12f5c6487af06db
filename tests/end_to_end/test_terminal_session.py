"""The interactive session of the real program at a pseudo-terminal."""

import threading

import pytest

from tests.end_to_end.test_terminal_pty import Screen, write_group
from tests.fakes import Request, StubS3

READY = "quark>"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "quark.yaml").write_text("layers: 1\n")
    write_group(tmp_path / "data/datasets/one")
    return tmp_path


@pytest.mark.parametrize("size", [(24, 80), (12, 40)])
def test_a_session(folder, size):
    screen = Screen(folder, size=size, HOME=str(folder), XDG_STATE_HOME=str(folder / "state"))
    screen.until(READY)
    screen.until("? shows examples")
    screen.send("list frobnicate")
    screen.until("not understood list")  # read while it is typed
    screen.send("\x03")  # Ctrl-C clears the line, and ends nothing
    screen.send("list runs\r")
    screen.until("no runs in")
    screen.send("discover data/data")
    screen.until("data/datasets/ path")  # offered while it is typed
    screen.send("\tone\r")  # taken
    screen.until("8 objects")
    screen.send("\x1b[200~list runs\nshow fox-1\n\x1b[201~\r")
    screen.until("Run these 2 commands, one after the other? [y/N]")
    screen.send("n\r")
    screen.until("Nothing was run.")
    screen.send("\x04")
    assert screen.end() == 0
    assert "Traceback" not in screen.text
    kept = (folder / "state/quark/history").read_text()
    assert "+list runs" in kept
    assert "frobnicate" not in kept


@pytest.mark.parametrize("changes", [{"TERM": "dumb"}, {"NO_COLOR": "1"}])
def test_a_dumb_terminal_has_the_plain_session(folder, changes):
    screen = Screen(folder, HOME=str(folder), **changes)
    screen.until(READY)
    screen.send("list runs\n")
    screen.until("no runs in")
    screen.send("\x04")
    assert screen.end() == 0
    assert "\x1b" not in screen.raw
    assert not (folder / ".local").exists()


@pytest.mark.parametrize("size", [(24, 80), pytest.param((12, 40), marks=pytest.mark.nightly)])
def test_a_session_without_utf_8(folder, size):
    state = {"HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")}
    screen = Screen(folder, size=size, PYTHONIOENCODING="ascii", **state)
    screen.until(READY)
    screen.until("? shows examples \\xb7")
    screen.send("discover data/data")
    screen.until("data/datasets/ path")
    screen.send("\tone\r")
    screen.until("8 objects")
    screen.send("\x04")
    assert screen.end() == 0
    assert screen.raw.isascii()
    assert "Traceback" not in screen.text


def test_a_store_that_does_not_answer_holds_no_key(folder):
    answer = threading.Event()

    def wait(_request: Request) -> None:
        answer.wait(100)

    with StubS3({"data/x/train-0.jsonl": b"{}"}, wait) as s3:
        screen = Screen(
            folder, HOME=str(folder), XDG_STATE_HOME=str(folder / "state"),
            AWS_ENDPOINT_URL=s3.url, AWS_ACCESS_KEY_ID="k", AWS_SECRET_ACCESS_KEY="s",
            AWS_REGION="us-east-1",
        )  # fmt: skip
        screen.until(READY)
        screen.send("discover s3://mine/da")
        while not s3.requests:
            screen.until("ok discover")
        screen.send("ta/y depth 5")  # read as it is typed, with the listing still on its way
        screen.until("depth=5")
        screen.send("\x03list runs\r")
        screen.until("no runs in")
        screen.send("discover s3://mine/da")
        answer.set()
        screen.until("s3://mine/data/ store")
        screen.send("\x03\x04")
        assert screen.end() == 0


def test_flags_stand_beside_a_sentence(folder):
    screen = Screen(folder, HOME=str(folder), XDG_STATE_HOME=str(folder / "state"))
    screen.until(READY)
    screen.send("train quark with data/datasets/one for 3 steps --plan")
    screen.until("ok train:")  # the flag is no unknown word
    screen.send("\r")
    screen.until("same as")
    screen.send('quark "list runs" --json\r')  # as pasted from a shell
    screen.until('"runs": []')
    screen.send("\x04")
    assert screen.end() == 0
    assert not (folder / "runs").exists()
