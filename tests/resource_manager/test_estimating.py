"""`estimate`: bytes, steps and time, from the plan and from runs like it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from knowledge_hub.hub import KnowledgeHub
from tests.projects import END, RecordingTarget, Said, make_manager
from tests.training import events, train_here

ONE = ["data/datasets/one"]
START = {"event": "start", "time": 1.0, "total_steps": 100}
HUB = KnowledgeHub()


def ended(**changes) -> dict[str, object]:
    return {
        **END, "step": 100, "epoch": 2.0, "samples": 3200, "tokens": 800_000, "seconds": 40.0,
        **changes,
    }  # fmt: skip


def estimated(project, **slots) -> dict[str, object]:
    manager, target, out, _ = make_manager(project, json=True)
    assert manager.estimate(Said(data=ONE, **slots)) == 0
    assert target.jobs == []
    found: dict[str, object] = json.loads(out.getvalue())["estimate"]
    return found


def finished(project, end, **slots) -> None:
    """Leave a finished run whose launch took 3 s beside its training."""
    manager, target, _, _ = make_manager(project, RecordingTarget(START, end))
    manager.train(Said(data=ONE, **slots))
    job_file = f"{target.jobs[0].run_dir}/job.yaml"
    launched = float(str(end["time"])) - float(str(end["seconds"])) - 3.0
    os.utime(job_file, (launched, launched))


@pytest.mark.parametrize("length", ["2 epochs", "200 steps"])
def test_before_any_run_time_is_unknown_and_a_probe_is_offered(project, length):
    manager, target, out, _ = make_manager(project)
    reading = HUB.read(f"how long would it take to train quark on data/datasets/one for {length}")
    assert manager.estimate(reading) == 0
    text = out.getvalue()
    assert "unknown: no run like it has finished" in text
    probe = next(line for line in text.splitlines() if line.startswith("20 steps would tell"))
    assert probe.count("max_steps") == 1
    said = HUB.read(probe.partition("quark ")[2])
    assert (said.status, said.intent) == ("ok", "train")
    assert (said.slots["max_steps"], said.slots["data"]) == (20, ONE)
    assert target.jobs == []
    assert not (project / "runs").exists()


def test_bytes_are_those_of_the_passes(project):
    size = sum(path.stat().st_size for path in (project / "data/datasets/one").glob("train-*"))
    assert estimated(project, epochs=3)["bytes"] == 3 * size
    assert estimated(project, max_steps=7)["steps"] == 7


def test_time_of_a_run_like_it(project):
    finished(project, ended(time=1_000_000.0))
    found = estimated(project, epochs=4)
    # 400,000 tokens an epoch at 20,000 a second, and 3 s beside.
    assert found["tokens"] == 1_600_000
    assert found["seconds"] == pytest.approx(83.0)
    assert found["steps"] == 200
    assert found["probe"] is None
    limited = estimated(project, max_steps=50)
    assert limited["seconds"] == pytest.approx(23.0)
    assert estimated(project, epochs=4, max_seconds=30)["seconds"] == pytest.approx(30.0)


def test_time_is_not_told_by_another_model_or_a_failed_or_resumed_run(project):
    finished(project, ended(time=1_000_000.0), layers=2)
    finished(project, ended(time=1_000_000.0, exit_code=130, reason="interrupt"))
    manager, _, _, _ = make_manager(project, RecordingTarget(START, ended(), START, ended()))
    manager.train(Said(data=ONE))
    assert estimated(project, epochs=1)["seconds"] is None


def test_other_data_takes_the_speed_but_not_the_length(project):
    finished(project, ended(time=1_000_000.0, epoch=0.5))
    found = estimated(project, epochs=1)
    assert found["tokens"] != 1_600_000
    assert found["seconds"] == pytest.approx(3 + float(str(found["tokens"])) / 20_000)
    assert found["from_run"]


def test_speed_is_that_of_the_later_half(project):
    # 10 slow steps of 1 s, then 10 of 0.1 s, 1,000 tokens each.
    steps: list[dict[str, object]] = [
        {"event": "step", "step": n + 1, "tokens": 1000 * (n + 1),
         "time": 1000.0 + (n if n < 10 else 9 + (n - 9) * 0.1)}
        for n in range(20)
    ]  # fmt: skip
    end = ended(time=1012.0, step=20, tokens=20_000, epoch=1.0, seconds=11.0)
    manager, target, _, _ = make_manager(project, RecordingTarget(START, *steps, end))
    manager.train(Said(data=ONE))
    os.utime(f"{target.jobs[0].run_dir}/job.yaml", (998.0, 998.0))
    # 10,000 tokens a second; the run took 14 s, 12 of them beside that speed.
    assert estimated(project, epochs=10)["seconds"] == pytest.approx(12 + 20, rel=0.01)


def test_bytes_of_a_number_of_steps_are_those_of_the_records_read(project):
    """60 steps of the byte tokenizer: their share of an epoch, by the records that were decoded."""
    size = sum(path.stat().st_size for path in (project / "data/datasets/one").glob("train-*"))
    epoch = sum(
        len(json.loads(line)["text"].encode()) + 1
        for path in (project / "data/datasets/one").glob("train-*")
        for line in path.read_text().splitlines()
    )
    found = estimated(project, max_steps=60, batch_size=2, seq_len=64)
    assert found["bytes"] == pytest.approx(size * 60 * 2 * 64 / epoch, rel=0.05)
    manager, _, out, _ = make_manager(project)
    manager.estimate(Said(data=ONE, max_steps=60))
    assert "unknown" not in next(line for line in out.getvalue().splitlines() if "reads" in line)


@pytest.mark.parametrize(("first", "asked"), [(40, 400), (400, 60), (60, 6000)])
def test_within_a_quarter_after_one_run(project, first, asked):
    """One run by an imagined machine's clock, then what that machine takes for another length."""

    def machine(steps: int) -> tuple[list[dict[str, object]], float]:
        """5 s to start, three slow steps, then 0.25 s a step with every tenth twice as slow."""
        time, events = 5.0, []
        for n in range(steps):
            time += 2.0 if n < 3 else 0.5 if n % 10 == 0 else 0.25
            events.append(
                {"event": "step", "step": n + 1, "tokens": 8192 * (n + 1), "time": 1000.0 + time}
            )
        return events, time + 1.5  # saving at the end

    steps, seconds = machine(first)
    end = ended(
        time=1000.0 + seconds, seconds=seconds - 5.0, step=first, tokens=8192 * first, epoch=0.5
    )
    manager, target, _, _ = make_manager(project, RecordingTarget(START, *steps, end))
    manager.train(Said(data=ONE, max_steps=first))
    os.utime(f"{target.jobs[0].run_dir}/job.yaml", (1000.0, 1000.0))
    _, truth = machine(asked)
    assert estimated(project, max_steps=asked)["seconds"] == pytest.approx(truth, rel=0.25)


def records_of(project: Path) -> dict[str, Any]:
    """Leave 480 records without text, and a model of one's own that takes them."""
    folder = project / "data/datasets/flats"
    folder.mkdir()
    for n in range(8):
        rows = (json.dumps({"rooms": i % 7, "price": 1000.0 + 10 * i + n}) for i in range(60))
        (folder / f"train-{n:05}.jsonl").write_text("\n".join(rows) + "\n")
    (project / "flats.py").write_text("def build(config): ...\n")
    return {"model": "flats:build", "data": ["data/datasets/flats"]}


def estimate_of(project: Path, **slots: Any) -> tuple[dict[str, Any], str]:
    """Return what is said to programs, and to people."""
    said = []
    for as_json in (True, False):
        manager, _, out, _ = make_manager(project, json=as_json)
        assert manager.estimate(Said(**slots)) == 0
        said.append(out.getvalue())
    return json.loads(said[0])["estimate"], said[1]


def test_a_model_of_records_counts_samples_and_no_tokens(project):
    slots = records_of(project)
    found, text = estimate_of(project, **slots, epochs=2, batch_size=16)
    assert (found["counts"], found["samples"], found["tokens"]) == ("samples", 960, None)
    assert found["steps"] == 60
    assert "samples" in text
    assert "tokens" not in text
    limited, _ = estimate_of(project, **slots, max_steps=15, batch_size=16)
    assert (limited["samples"], limited["steps"]) == (240, 15)
    assert limited["bytes"] == pytest.approx(found["bytes"] / 4, rel=0.01)
    few, _ = estimate_of(project, **slots, max_samples=96, batch_size=16)
    assert (few["samples"], few["steps"]) == (96, 6)


def test_time_of_a_model_of_records_is_told_by_its_samples_a_second(project):
    slots = records_of(project)
    start = {**START, "counts": "samples"}
    end = ended(time=1_000_000.0, step=30, epoch=1.0, samples=480, tokens=480, seconds=24.0)
    manager, target, _, _ = make_manager(project, RecordingTarget(start, end))
    manager.train(Said(**slots, batch_size=16))
    launched = 1_000_000.0 - 24.0 - 3.0
    os.utime(f"{target.jobs[0].run_dir}/job.yaml", (launched, launched))
    found, _ = estimate_of(project, **slots, batch_size=16, epochs=3)
    # 20 samples a second, and 3 s beside.
    assert (found["samples"], found["steps"], found["tokens"]) == (1440, 90, None)
    assert found["seconds"] == pytest.approx(3 + 1440 / 20)


def test_text_counts_tokens_and_says_its_sequences(project):
    found = estimated(project, max_steps=7, batch_size=4, seq_len=64)
    assert (found["counts"], found["tokens"], found["samples"]) == ("tokens", 7 * 4 * 64, 28)


@pytest.mark.timeout(180)
def test_steps_and_tokens_are_those_of_a_real_run(project):
    """Within 15 %, before any run has told."""
    slots: dict[str, Any] = {"epochs": 2.0, "batch_size": 8, "seq_len": 64, "val": False}
    overrides = {"layers": 1, "device": "cpu"}
    found = estimated(project, overrides=overrides, **slots)
    manager, target, _, _ = make_manager(project)
    manager.train(Said(data=ONE, overrides=overrides, **slots))
    [job] = target.jobs
    (Path(job.run_dir) / "metrics.jsonl").unlink()  # what the recording target wrote is of no run
    assert train_here(job) == 0
    [end] = events(Path(job.run_dir), "end")
    assert found["steps"] == pytest.approx(end["step"], rel=0.15)
    assert found["tokens"] == pytest.approx(end["tokens"], rel=0.15)
    assert found["samples"] == pytest.approx(end["samples"], rel=0.15)
