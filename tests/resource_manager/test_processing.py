"""Sentences about sharded datasets: shard, claim, complete, fail, reset, status, process."""

import io
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from resource_manager.process_command import _workers
from resource_manager.processing import ShardCommands
from tests.scripts.test_process_attempts import crashed
from tools_utilities.console import Console, Surroundings
from tools_utilities.scripts.process_shards import ProcessOptions
from tools_utilities.scripts.quark_cli import run_program
from tools_utilities.scripts.shard_manager import ShardManager
from tools_utilities.settings import load_settings


@pytest.fixture
def project(tmp_path: Path, aws_environment) -> Path:
    """A project folder with a file to shard and a function to run."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "quark.yaml").write_text("seed: 7\n")
    (folder / "tasks.jsonl").write_text("".join(f'{{"id": {n}}}\n' for n in range(20)))
    (folder / "sentence_code.py").write_text("def same(samples):\n    return samples\n")
    for name in ("CI", "NO_COLOR", "COLUMNS", "TERM"):
        aws_environment.delenv(name, raising=False)
    aws_environment.chdir(folder)
    return folder


def say(capsys, *arguments: str) -> tuple[int, dict[str, Any]]:
    code = run_program([*arguments, "--json"])
    printed = capsys.readouterr()
    return code, json.loads(printed.out) if printed.out and code == 0 else {"error": printed.err}


def test_from_a_file_to_processed_shards_by_sentences(project, capsys):
    made = say(capsys, "shard ./tasks.jsonl into 4 shards to ./sharded")
    claimed = say(capsys, "claim a shard from ./sharded as worker_3, prefer shard 2")
    held = say(capsys, "shard status of ./sharded")
    failed = say(capsys, "mark shard 2 as failed in ./sharded")
    again = say(capsys, "claim a shard from ./sharded, prefer shard 2")
    done = say(capsys, "complete shard 2 in ./sharded")
    processed = say(capsys, "process ./sharded with sentence_code:same as worker_4")

    assert [made[0], claimed[0], held[0], failed[0], again[0], done[0], processed[0]] == [0] * 7
    assert (made[1]["total_tasks"], made[1]["num_shards"]) == (20, 4)
    assert claimed[1]["shard_id"] == 2
    assert held[1]["shards"][2]["assigned_to"] == "worker_3"
    assert processed[1]["num_samples"] == 15
    assert say(capsys, "claim a shard from ./sharded")[0] == 5


def test_another_workers_shard_is_refused_with_5(project, capsys):
    say(capsys, "shard ./tasks.jsonl into 2 shards to ./sharded")

    code, printed = say(capsys, "complete shard 0 in ./sharded")

    assert code == 5
    assert "holds no claim" in printed["error"]


def test_reset_asks_first(project, capsys):
    say(capsys, "shard ./tasks.jsonl into 2 shards to ./sharded")
    say(capsys, "claim a shard from ./sharded, prefer shard 1")

    refused, printed = say(capsys, "reset shard 1 in ./sharded")
    held = say(capsys, "shard status of ./sharded")[1]["in_use"]
    agreed, _ = say(capsys, "reset shard 1 in ./sharded", "--yes")

    assert (refused, held, agreed) == (2, 1, 0)
    assert "--yes" in printed["error"]
    assert say(capsys, "shard status of ./sharded")[1]["in_use"] == 0


def test_a_plan_touches_nothing(project, capsys):
    before = sorted(project.rglob("*"))

    assert say(capsys, "shard ./tasks.jsonl into 4 shards to ./sharded", "--plan")[0] == 0

    assert sorted(project.rglob("*")) == before


def test_without_a_dataset_it_is_asked_for(project, capsys):
    code, printed = say(capsys, "claim a shard")

    assert code == 2
    assert "which sharded dataset" in printed["error"]


def test_samples_each_make_flat_shards(project, capsys):
    code, made = say(capsys, "make parquet shards from ./tasks.jsonl, 8 samples each, to ./flat")

    assert (code, made["total_tasks"], made["num_shards"]) == (0, 20, 3)
    names = sorted(path.name for path in (project / "flat").glob("*.parquet"))
    assert names == [f"train-0000{number}.parquet" for number in range(3)]


CODE = """
import os
class Where:
    def __init__(self, device=None):
        self.device = device
    def __call__(self, samples):
        gpu = os.environ.get("CUDA_VISIBLE_DEVICES")
        return [{"id": s["id"], "gpu": gpu, "device": self.device} for s in samples]
"""


def results_of(out: Path) -> list[dict[str, Any]]:
    rows = []
    for path in out.glob("shard_*/claim.json"):
        folder = Path(json.loads(path.read_text())["output"].removeprefix("file://"))
        rows += [
            json.loads(line) for f in folder.glob("*.jsonl") for line in f.read_text().splitlines()
        ]
    return rows


@pytest.mark.slow
def test_several_workers_and_gpus_are_processes_of_their_own(project, capsys):
    (project / "worker_code.py").write_text(CODE)
    say(capsys, "shard ./tasks.jsonl into 4 shards to ./sharded")

    code, summary = say(capsys, "process ./sharded with worker_code:Where on 2 gpus as worker_9")

    assert code == 0
    assert (summary["shards"], summary["num_samples"]) == ([0, 1, 2, 3], 20)
    rows = results_of(project / "sharded")
    assert sorted(row["id"] for row in rows) == list(range(20))
    assert {row["gpu"] for row in rows} <= {"0", "1"}
    status = say(capsys, "shard status of ./sharded")[1]
    assert {row["assigned_to"] for row in status["shards"]} <= {"worker_9-0", "worker_9-1"}


def test_device_limit_and_groups_are_used(project, capsys):
    (project / "device_code.py").write_text(CODE)
    for stem in ("a", "b"):
        for number in range(2):
            (project / f"d/{stem}").mkdir(parents=True, exist_ok=True)
            (project / f"d/{stem}/{stem}-0000{number}.jsonl").write_text(f'{{"id": {number}}}\n')
    sentence = "process ./d with device_code:Where on cpu"

    unsure = say(capsys, f"{sentence} to ./one")
    chosen = say(capsys, f"{sentence}, group 1, to ./one")
    limited = say(capsys, f"{sentence}, groups 1 and 2, for 3 samples, to ./two")
    plain = say(capsys, "process ./tasks.jsonl with sentence_code:same on cpu to ./three")

    assert unsure[0] == 2
    assert "several groups" in unsure[1]["error"]
    assert (chosen[0], chosen[1]["num_samples"]) == (0, 2)
    assert (limited[0], limited[1]["num_samples"]) == (0, 3)
    assert {row["device"] for row in results_of(project / "one")} == {"cpu"}
    assert plain[0] == 2
    assert "takes no device" in plain[1]["error"]


def test_how_often_workers_may_die_on_a_shard_is_a_setting(project, capsys):
    say(capsys, "shard ./tasks.jsonl into 2 shards to ./sharded")
    crashed(project / "sharded", 1, crashes=0, gen=1)
    sentence = "process ./sharded with sentence_code:same"

    given_up, printed = say(capsys, f"{sentence} max_attempts=1")
    status = say(capsys, "shard status of ./sharded")[1]
    tried_again, summary = say(capsys, f"{sentence} max_attempts=2")

    assert given_up == 1
    assert "1 workers in a row ended" in printed["error"]
    assert (status["completed"], status["available"]) == (1, 1)
    assert (tried_again, summary["shards"]) == (0, [1])
    refused, printed = say(capsys, f"{sentence} max_attempts=0")
    assert refused == 2
    assert "max_attempts" in printed["error"]


def test_the_limit_reaches_worker_processes():
    options = ProcessOptions(max_attempts=7)
    (worker, _) = _workers("d", None, {"function": "m:f", "workers": 2}, options)
    at = worker.arguments.index("--max_attempts")
    assert worker.arguments[at + 1] == "7"


def test_status_may_be_followed_until_all_is_done(project, capsys):
    say(capsys, "shard ./tasks.jsonl into 2 shards to ./sharded")
    manager = ShardManager(project / "sharded", "a", state_dir=project / "state")
    manager.claim_shard(0)
    manager.mark_completed(0)
    manager.claim_shard(1)
    later = threading.Timer(0.5, manager.mark_completed, [1])
    later.start()

    code, printed = say(capsys, "follow the shard status of ./sharded")
    later.join()

    assert code == 0, printed
    assert printed["completed"] == 2


class _Terminal(io.StringIO):
    """A terminal; the person presses Ctrl-C as soon as it shows a status."""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        super().write(text)
        if "2 total" in text:
            raise KeyboardInterrupt
        return len(text)


def test_following_at_a_plain_terminal_draws_nothing_and_ctrl_c_ends_it_well(project, capsys):
    say(capsys, "shard ./tasks.jsonl into 2 shards to ./sharded")
    err = _Terminal()
    console = Console(Surroundings(term="dumb"), stdin=_Terminal(), stdout=_Terminal(), stderr=err)
    commands = ShardCommands(load_settings(start_dir=project), console)
    assert commands.act("shard_status", {"data": ["./sharded"], "follow": True}) == 0
    assert "2 total, 2 available" in err.getvalue()
    assert "\x1b" not in err.getvalue()


def test_status_of_a_second_jobs_results(project, capsys):
    say(capsys, "shard ./tasks.jsonl into 2 shards to ./sharded")
    say(capsys, "process ./sharded with sentence_code:same to ./results")
    (project / "second_code.py").write_text("def other(samples):\n    return samples\n")
    say(capsys, "process ./sharded with second_code:other to ./second")

    code, printed = say(capsys, "shard status of ./second")

    assert code == 0, printed
    assert (printed["total"], printed["completed"]) == (2, 2)
