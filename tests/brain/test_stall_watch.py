"""A process that gets nowhere says what it waits for and writes the stacks of all its threads."""

import threading
from dataclasses import replace

from brain.ml.stall_watch import StallWatch
from resource_manager.live_view import LiveRun
from tests.fakes import Reply, Request, StubS3
from tests.fault_store import FaultStore, whole
from tests.stream_parts import content, reader_of
from tests.training import events, make_job, text_shards, train_here, write_shards
from tools_utilities.activity import ACTIVITY, Activity
from tools_utilities.object_store import StoreSpec
from tools_utilities.terminal_text import plain


def watched(tmp_path, limit: float = 60.0):
    now = [0.0]
    activity = Activity(lambda: now[0])
    told: list[str] = []
    out = (tmp_path / "log").open("w+")
    watch = StallWatch(limit, out=out, tell=told.append, activity=activity, clock=lambda: now[0])
    return watch, activity, now, told, out


def test_a_stall_is_told_once_with_the_shard_and_all_stacks(tmp_path):
    watch, activity, now, told, out = watched(tmp_path)
    entered, let_go = threading.Event(), threading.Event()

    def stuck_here() -> None:
        with activity.waiting("d/train-00003.jsonl"):
            entered.set()
            let_go.wait()

    thread = threading.Thread(target=stuck_here)
    thread.start()
    entered.wait()
    watch.look()  # to begin to wait is to get somewhere
    now[0] = 59.0
    watch.look()
    assert told == []
    for now[0] in (60.0, 61.0, 200.0):
        watch.look()
    assert told == ["nothing moved for 60 s: waiting for d/train-00003.jsonl (60 s)"]
    let_go.set()
    thread.join()
    out.seek(0)
    stacks = out.read()
    assert "stuck_here" in stacks  # another thread's
    assert stacks.count("Current thread") == 1
    watch.look()
    now[0] = 261.0
    watch.look()
    assert told[1] == "nothing moved for 61 s: no shard is being waited for"
    out.close()


def test_movement_and_a_limit_of_zero_keep_it_quiet(tmp_path):
    watch, activity, now, told, out = watched(tmp_path)
    for now[0] in (50.0, 100.0, 150.0):
        activity.moved()
        watch.look()
    assert told == []
    never, _, now, told, other = watched(tmp_path, limit=0)
    now[0] = 1e6
    never.look()
    assert told == []
    out.close()
    other.close()


def test_a_stall_before_a_wait_does_not_hide_one_in_it(tmp_path):
    watch, activity, now, told, out = watched(tmp_path)
    now[0] = 61.0
    watch.look()
    with activity.waiting("a"):
        watch.look()
        now[0] = 122.0
        watch.look()
    assert told == [
        "nothing moved for 61 s: no shard is being waited for",
        "nothing moved for 61 s: waiting for a (61 s)",
    ]
    out.close()


def test_many_waits_are_counted(tmp_path):
    watch, activity, now, told, out = watched(tmp_path)
    with activity.waiting("a"), activity.waiting("b"), activity.waiting("c"), activity.waiting("d"):
        watch.look()
        now[0] = 70.0
        watch.look()
    assert told[0].endswith("waiting for a (70 s), b (70 s), c (70 s) and 1 more")
    out.close()


def test_an_opening_is_waited_for_while_it_lasts():
    asked, answer = threading.Event(), threading.Event()

    def hangs(body, start, end):
        asked.set()
        answer.wait()
        yield whole(body)

    store = FaultStore(hangs)
    info = store.put("stall/hung.jsonl", content("k", 1000))
    reader, before = reader_of(store), ACTIVITY.moves
    thread = threading.Thread(target=lambda: reader.open_shard(info).close())
    thread.start()
    assert asked.wait(10)
    assert "stall/hung.jsonl" in [what for what, _ in ACTIVITY.waits()]
    answer.set()
    thread.join()
    assert "stall/hung.jsonl" not in [what for what, _ in ACTIVITY.waits()]
    assert ACTIVITY.moves > before


def test_a_run_that_gets_nowhere_tells_it_in_its_metrics(aws_environment, tmp_path):
    # A run before it: imports that take long are stalls too, and one is told once.
    assert (
        train_here(make_job(tmp_path / "before", write_shards(tmp_path / "data", text_shards())))
        == 0
    )
    with StubS3(text_shards()) as stub:
        stub.script = lambda request: slow(stub, request)
        store = StoreSpec(uri="s3://my.bucket", endpoint_url=stub.url)
        # Nothing moves for longer than the watchdog's two looks a second are apart.
        job = make_job(tmp_path / "run", store, max_steps=2, val=(), stall_seconds=0.1)
        assert train_here(job) == 0
    found = events(tmp_path / "run", "stall")
    assert found
    assert found[0]["rank"] == 0
    assert any("nothing moved for 1 s: waiting for d/train/" in one["message"] for one in found)


def slow(stub: StubS3, request: Request) -> Reply | None:
    """Send the first object asked for in two halves, a while apart."""
    gets = [one for one in stub.requests if one.method == "GET" and one.key.endswith(".jsonl")]
    if request not in gets[:1]:
        return None
    reply = stub._object(request)
    half = -(-len(reply.body) // 2)
    return replace(reply, drip_bytes=half, drip_seconds=2.5)


def test_the_live_view_shows_a_stall_until_the_next_step():
    run = LiveRun("fox-1")
    run.take({"event": "stall", "rank": 1, "message": "nothing moved for 60 s: waiting for d/a"})
    assert "rank 1: nothing moved for 60 s" in " ".join(map(plain, run.lines(200, draw=False)))
    run.take({"event": "step", "step": 1, "loss": 1.0})
    assert "nothing moved" not in " ".join(map(plain, run.lines(200, draw=False)))
