"""A machine that a run is on may be anybody's, as rented ones are: what it answers is bounded, and stays in the folder."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from brain.ml.training_job import Remote
from resource_manager.remote_host import ANSWER_BYTES, PAYLOAD_BYTES, RemoteHost, _exchange
from resource_manager.remote_mirror import MOST_LISTED, RunMirror
from resource_manager.remote_record import RemoteRecord
from tools_utilities.errors import MachineError, UsageError

RECORD = RemoteRecord(remote=Remote(where="ssh:box"), run="fox", metrics_base=0, log_base=0)


class Says:
    """A process at whose other end is whatever it likes to be."""

    def __init__(self, said: bytes) -> None:
        self.stdin = io.BytesIO()
        self.stdout = io.BytesIO(said)


@pytest.mark.parametrize(
    "said",
    [
        b"[1, 2]\n",
        b"7\n",
        b"{\n",
        b"\xff\xfe\n",
        b"[" * 200_000 + b"\n",
        b"{}\n",
        b'{"payload": -1}\n',
        b'{"payload": "all"}\n',
        b'{"payload": true}\n',
        b'{"payload": %d}\n' % (1 << 60),
        b'{"payload": %d}\n' % (PAYLOAD_BYTES + 1),
        b'{"payload": 9, "x": "' + b"y" * (ANSWER_BYTES + 9) + b'"}\n' + b"z" * 9,
    ],
)
def test_what_is_no_answer_ends_the_connection(said):
    """As an end of the connection, which is told by name: ValueError and EOFError are taken for one."""
    with pytest.raises((ValueError, EOFError)):
        _exchange(Says(said), b"?\n")  # type: ignore[arg-type] # what is used of a process


def test_keys_of_hosts_are_added_to_a_file_of_that_name_alone(tmp_path):
    """A job names it, and a job may be a stranger's: ssh would write to any file."""
    remote = Remote(where="ssh:127.0.0.1:9", known_hosts=str(tmp_path / "authorized_keys"))
    with pytest.raises(UsageError, match="no file for the keys of machines"):
        RemoteHost(remote).enter()


class Host:
    """Answers from a list; each is (answer, bytes), or what makes one of a request."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = list(answers), list[dict[str, Any]]()

    def ask(self, op: str, **fields: Any) -> tuple[dict[str, Any], bytes]:
        self.asked.append({"op": op, **fields})
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        found: tuple[dict[str, Any], bytes] = answer(fields) if callable(answer) else answer
        return found


def said(**changes: Any) -> dict[str, Any]:
    return {"state": "ended", "code": 0, "metrics": 0, "log": 0, "checkpoints": [], **changes}


@pytest.mark.parametrize(
    "answer",
    [
        {},
        said(metrics="all"),
        said(metrics=-5),
        said(log=None),
        said(state=7),
        said(code="no"),
        said(checkpoints=[["step-00000001"]]),
        said(checkpoints=[[1, 2]]),
        said(checkpoints={"a": 1}),
        said(free_bytes="none"),
    ],
)
def test_an_answer_that_makes_no_sense_is_refused(tmp_path, answer):
    mirror = RunMirror(tmp_path, RECORD)
    with pytest.raises(MachineError, match="makes no sense"):
        mirror.read(Host((answer, b"")))  # type: ignore[arg-type] # what is used of a host


def test_names_of_checkpoints_lead_nowhere(tmp_path):
    run = tmp_path / "runs/fox"
    run.mkdir(parents=True)
    names = (
        "../../outside",
        "/outside",
        "step-1",
        "step-00000001/..",
        "step-" + "9" * 5000,
        "",
    )
    mirror = RunMirror(run, RECORD)
    answer = said(checkpoints=[[name, "0" * 64] for name in names])
    assert mirror.read(Host((answer, b""))).state == "ended"  # type: ignore[arg-type]
    assert not mirror.bring_piece(Host(({}, b"x")), all_of_them=True)  # type: ignore[arg-type]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["fox", "runs"]


def bring(tmp_path: Path, files: dict[str, Any], content: bytes) -> Host:
    """Bring a checkpoint whose list names files, each of which is `content` without end."""
    mirror = RunMirror(tmp_path, RECORD)
    mirror.read(Host((said(checkpoints=[["step-00000001", "0" * 64]]), b"")))  # type: ignore[arg-type]
    listed = json.dumps({"version": 1, "step": 1, "files": files}).encode()

    def answer(fields: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        return ({}, listed if fields["path"].endswith("complete.json") else content)

    host = Host(answer)
    for _ in range(20):
        if not mirror.bring_piece(host, all_of_them=True):  # type: ignore[arg-type]
            break
    return host


def test_a_file_is_no_larger_than_it_says(tmp_path):
    record = {"size_bytes": 1500, "sha256": "0" * 64}
    host = bring(tmp_path, {"model.safetensors": record}, b"x" * (1 << 20))
    assert len(host.asked) == 2  # its list, and one piece
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("name", ["../../x.json", "/x.json", "x.sh", "a/b.json"])
def test_files_of_a_checkpoint_stay_in_its_folder(tmp_path, name):
    folder = tmp_path / "a/b"
    folder.mkdir(parents=True)
    host = bring(folder, {name: {"size_bytes": 1, "sha256": "0" * 64}}, b"x")
    assert len(host.asked) == 1
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_the_list_itself_is_bounded(tmp_path):
    mirror = RunMirror(tmp_path, RECORD)
    mirror.read(Host((said(checkpoints=[["step-00000001", "0" * 64]]), b"")))  # type: ignore[arg-type]
    piece = b"x" * (1 << 20)
    host = Host(({}, piece))
    while mirror.bring_piece(host, all_of_them=True):  # type: ignore[arg-type]
        assert len(host.asked) <= 2 * (MOST_LISTED >> 20)
    assert len(host.asked) == (MOST_LISTED >> 20) + 1
