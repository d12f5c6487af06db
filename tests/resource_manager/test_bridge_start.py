"""What a rented machine does for a pipeline, without the machine: its supervisor, as the helper starts it."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from resource_manager.bridge_start import BRIDGE_FILE, pipeline_start
from resource_manager.remote_helper import ENVIRONMENT_FILE, EXIT_FILE, SUPERVISOR_FILE
from tests.fakes import Reply, Request, StubCloud
from tests.resource_manager.test_bridge_renting import SETTINGS
from tests.training import wait_for
from tools_utilities.bridge.rented_process import ORDER_VARIABLE, Order

ROOT = Path(__file__).parents[2]
SECRETS = ("hunter2hunter2", "hub-canary-51c0ffee")


class There:
    """The folder of a pipeline on the machine, and its supervisor."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        (folder / BRIDGE_FILE).write_text("{}")
        raw: dict[str, Any] = msgspec.to_builtins(SETTINGS)
        raw["r2"] |= {"endpoint_url": url, "access_key_id": "", "secret_access_key": ""}
        raw["pipeline"] |= {"samples_per_shard": 10}
        raw["pipeline"]["source_options"] = {"transport_params": {"endpoint_url": url}}
        order = msgspec.convert({"settings": {**raw, "vast": None}}, Order)
        sent = {
            "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": SECRETS[0],
            "HF_TOKEN": SECRETS[1],
            ORDER_VARIABLE: msgspec.json.encode(order).decode(),
        }  # fmt: skip
        (folder / ENVIRONMENT_FILE).write_text(json.dumps(sent))

    def supervise(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-P", "-m", "resource_manager.run_supervisor", str(self.folder)]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder,
                env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(self.folder)},
            )  # fmt: skip

    def told(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "metrics.jsonl").read_text().splitlines()[-1]))

    def check_secrets(self) -> None:
        assert not (self.folder / ENVIRONMENT_FILE).exists()
        for path in self.folder.rglob("*"):
            if path.is_file():
                assert not [one for one in SECRETS if one.encode() in path.read_bytes()], path


def rows(count: int) -> bytes:
    return b"".join(b'{"id": %d}\n' % number for number in range(count))


@pytest.fixture
def s3():
    with StubCloud({"in/a.jsonl": rows(25)}) as cloud:
        yield cloud


def test_a_pipeline_is_supervised_and_its_end_is_told(tmp_path, s3):
    there = There(tmp_path, s3.url)
    with there.supervise() as supervisor:
        wait_for((tmp_path / SUPERVISOR_FILE).exists, 60)
        assert supervisor.wait(60) == 0, (tmp_path / "log").read_text()
    assert json.loads((tmp_path / EXIT_FILE).read_text())["code"] == 0
    told = there.told()
    assert (told["event"], told["exit_code"]) == ("end", 0)
    assert told["made"] == {"total_tasks": 25, "num_shards": 3, "output": "s3://bucket/set"}
    made = b"".join(s3.objects[f"set/shard-0000{number}.jsonl"] for number in range(3))
    assert made == rows(25)
    assert "set/.quark-progress.jsonl" not in s3.objects
    there.check_secrets()
    assert not [path for path in (tmp_path / "staging").rglob("*") if path.is_file()]


@pytest.mark.nightly
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_pipeline_that_is_asked_to_end_notes_what_it_has_done(tmp_path, s3, number, code):
    sent: list[int] = []

    def stop(request: Request) -> Reply | None:
        if request.method == "PUT" and request.key == "set/shard-00001.jsonl" and not sent:
            sent.append(1)
            supervisor.send_signal(number)
            return Reply(200, wait_seconds=3)
        return None

    s3.script = stop
    there = There(tmp_path, s3.url)
    with there.supervise() as supervisor:
        assert supervisor.wait(60) == code, (tmp_path / "log").read_text()
    assert there.told()["exit_code"] == code
    noted = s3.objects["set/.quark-progress.jsonl"].splitlines()
    assert [json.loads(line)["samples"] for line in noted[1:]] == [10]
    assert "set/shard-00002.jsonl" not in s3.objects
    there.check_secrets()


@pytest.mark.nightly
def test_an_error_is_told_with_its_code_and_without_secrets(tmp_path, s3):
    s3.objects["in/a.jsonl"] = rows(15) + b'{"id": oops\n'
    there = There(tmp_path, s3.url)
    with there.supervise() as supervisor:
        assert supervisor.wait(60) == 3
    told = there.told()
    assert (told["event"], told["exit_code"]) == ("error", 3)
    assert "a.jsonl" in told["message"]
    there.check_secrets()


def test_a_folder_of_training_is_none_of_a_pipelines(tmp_path):
    assert pipeline_start(tmp_path) is None
