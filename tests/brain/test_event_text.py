"""What a run's log says of its events."""

from brain.ml.event_text import STEP_SECONDS, EventText

STEP = {
    "step": 3, "epoch": 0.5, "loss": 2.25, "lr": 0.001, "tokens_per_second": 12345.6,
    "data_wait_share": 0.25,
}  # fmt: skip


def test_steps_are_said_seconds_apart():
    now = [0.0]
    text = EventText(lambda: now[0])
    text.line("start", {"total_steps": 6})
    first = text.line("step", STEP)
    assert first == (
        "step 3/6 · epoch 0.50 · loss 2.25 · lr 0.001 · 12,346 tokens/s · data wait 25%"
    )
    now[0] = STEP_SECONDS - 0.1
    assert text.line("step", STEP) is None
    now[0] = STEP_SECONDS
    assert text.line("step", STEP) is not None


def test_every_other_event_is_said():
    text = EventText()
    start = text.line("start", {
        "run": "fox-1", "world_size": 2, "device": "cpu", "precision": "fp32",
        "parameters": 82496, "total_steps": 6000, "resumed_from_step": 4,
    })  # fmt: skip
    assert (
        start == "start fox-1 after step 4 · cpu, fp32, ranks 2 · 82,496 parameters · 6,000 steps"
    )
    assert text.line("evaluating", {"step": 3}) == "evaluating at step 3"
    said = text.line("eval", {"step": 3, "loss": None, "samples": 8})
    assert said == "validation at step 3 · loss - · 8 samples"
    assert text.line("checkpoint", {"step": 3, "seconds": 0.25, "path": "/r/c"}) == (
        "saved step 3 in 0.2 s: /r/c"
    )
    assert text.line("warning", {"message": "odd"}) == "odd"
    assert text.line("stopping", {"reason": "interrupt"}) == "stopping (interrupt): saving first"
    assert text.line("end", {"reason": "max_steps", "step": 6, "loss": 2.0}) == (
        "end (max_steps) · step 6 · loss 2"
    )


def test_what_is_logged_elsewhere_is_not_said_twice():
    text = EventText()
    assert text.line("error", {"message": "x"}) is None
    assert text.line("stall", {"message": "x"}) is None
