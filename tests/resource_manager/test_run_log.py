"""`logs`: the end of a log, and following it."""

import json

import pytest

from resource_manager.run_log import BLOCK_BYTES, added_lines, last_lines, logs_command
from tests.projects import Said, make_manager
from tools_utilities.errors import DataNotFoundError
from tools_utilities.settings import load_settings


@pytest.fixture
def logged(project):
    manager, *_ = make_manager(project)
    manager.train(Said(data=["data/datasets/one"], name="fox-1", max_steps=1))
    return project / "runs/fox-1"


def test_the_last_lines_are_shown_escaped(project, logged):
    manager, _, out, _ = make_manager(project)
    assert manager.logs(Said(lines=2)) == 0
    assert out.getvalue().splitlines() == ["two", "last words \\x1b[31m"]


def test_as_json(project, logged):
    manager, _, out, _ = make_manager(project, json=True)
    assert manager.logs(Said(run="fox-1", lines=1)) == 0
    told = json.loads(out.getvalue())
    assert told == {"schema": 1, "run": "fox-1", "lines": ["last words \x1b[31m"]}


def test_a_run_without_a_log(project, logged):
    (logged / "log").unlink()
    with pytest.raises(DataNotFoundError, match="no log yet"):
        make_manager(project)[0].logs(Said(run="fox-1"))


@pytest.mark.parametrize("count", [1, 3, 200])
def test_last_lines_over_blocks(tmp_path, count):
    path = tmp_path / "log"
    lines = [f"line {number} " + "x" * 2000 for number in range(120)]
    path.write_text("\n".join(lines))
    assert path.stat().st_size > 3 * BLOCK_BYTES
    assert last_lines(path, count) == (lines[-count:], path.stat().st_size)


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"a\xff\r\nb")
    assert last_lines(path, 5)[0] == ["a\\xff", "b"]
    path.write_bytes(b"")
    assert last_lines(path, 5) == ([], 0)


def test_following_waits_for_whole_lines_and_ends_with_the_run(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"old\n")
    pieces = [b"one\ntw", b"o\n", b"last"]
    running = iter([True, True, True, False])

    def sleep(_seconds: float) -> None:
        with path.open("ab") as file:
            file.write(pieces.pop(0))

    assert list(added_lines(path, 4, lambda: next(running), sleep)) == ["one", "two", "last"]


def test_ctrl_c_stops_looking(project, logged):
    (logged / "metrics.jsonl").unlink()  # as if it had just been launched

    def sleep(_seconds: float) -> None:
        raise KeyboardInterrupt

    manager, _, out, _ = make_manager(project)
    settings = load_settings(start_dir=project)
    assert logs_command(settings, {"follow": True}, manager.console, sleep=sleep) == 0
    assert out.getvalue().splitlines()[-1] == "last words \\x1b[31m"
