"""The interactive session through prompt-toolkit's pipe: keys in, commands and a screen out."""

import asyncio
import io
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.data_structures import Size
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import fragment_list_to_text
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input

from knowledge_hub.hub import KnowledgeHub
from knowledge_hub.phrases import phrase_table
from knowledge_hub.session import examples, phrase_starts, session_words, store_entries
from tools_utilities.errors import StoreError
from tools_utilities.settings import load_settings
from tools_utilities.terminal_completion import SentenceCompleter, SessionWords, StoreFolders
from tools_utilities.terminal_session import (
    Session,
    SessionActions,
    SessionOutput,
    history_in,
    offer_completions,
    reading_line,
)

HUB = KnowledgeHub()
PASTE_ON, PASTE_OFF = "\x1b[200~", "\x1b[201~"
WORDS = SessionWords(
    words=("train", "batch size", "learning rate"), keys=("lr", "layers"), aliases=("genomes",)
)


def read(sentence: str) -> Any:
    return HUB.read(sentence)


def completer(
    tmp_path: Path, list_folder: Callable[[str], Sequence[str]] = lambda _uri: ()
) -> SentenceCompleter:
    folders = StoreFolders(list_folder)
    return SentenceCompleter(
        WORDS, lambda: ["fox-12", "owl-3"], folders, home=tmp_path, start_dir=tmp_path
    )


def type_keys(
    tmp_path: Path, keys: str, *, history=None, codes: Sequence[int] = (), agree: bool = True
):
    """Run a session on keys; returns (commands, lines said, questions, screen)."""
    ran: list[str] = []
    said: list[str] = []
    asked: list[str] = []

    def run(line: str) -> int:
        ran.append(line)
        return codes[len(ran) - 1] if len(ran) <= len(codes) else 0

    def confirm(question: str) -> bool:
        asked.append(question)
        return agree

    screen = io.StringIO()
    output = SessionOutput(screen, lambda: Size(rows=24, columns=80), enable_cpr=False)
    actions = SessionActions(read, run, confirm, said.extend, lambda: ["  list runs"])
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=output):
        pipe.send_text(keys)
        session = Session(
            actions, completer=completer(tmp_path), history=history or InMemoryHistory(),
            keys=pipe, output=output,
        )  # fmt: skip
        assert session.loop() == 0
    return ran, said, asked, screen.getvalue()


def test_lines_are_carried_out_until_ctrl_d(tmp_path):
    ran, _, _, screen = type_keys(tmp_path, "list runs\rshow fox-12\r\x04")
    assert ran == ["list runs", "show fox-12"]
    assert "quark> " in screen
    assert "Ctrl-D leaves" in screen  # below the line


@pytest.mark.parametrize("leave", ["exit\r", "quit\r", "\x04"])
def test_ways_to_leave(tmp_path, leave):
    assert type_keys(tmp_path, leave)[0] == []


def test_ctrl_c_clears_the_line(tmp_path):
    assert type_keys(tmp_path, "delete run fox-12\x03list runs\r\x04")[0] == ["list runs"]


def test_a_failed_command_does_not_end_the_session(tmp_path):
    assert type_keys(tmp_path, "a\rb\r\x04", codes=[2, 0])[0] == ["a", "b"]


def test_an_empty_line_is_nothing(tmp_path):
    assert type_keys(tmp_path, "\r  \r\x04")[0] == []


def test_a_paste_of_one_line_waits_for_enter(tmp_path):
    ran, _, asked, _ = type_keys(tmp_path, f"{PASTE_ON}list runs{PASTE_OFF}\r\x04")
    assert ran == ["list runs"]
    assert asked == []


def test_a_paste_of_several_lines_asks_before_it_runs_them(tmp_path):
    paste = f"{PASTE_ON}list runs\nshow fox-12\n\nresume\n{PASTE_OFF}\r\x04"
    ran, said, asked, _ = type_keys(tmp_path, paste)
    assert ran == ["list runs", "show fox-12", "resume"]
    assert asked == ["Run these 3 commands, one after the other?"]
    assert said[:2] == ["  1  list runs", "  2  show fox-12"]
    ran, said, _, _ = type_keys(tmp_path, paste, agree=False)
    assert ran == []
    assert said[-1] == "Nothing was run."
    ran, said, _, _ = type_keys(tmp_path, paste, codes=[0, 3])
    assert ran == ["list runs", "show fox-12"]
    assert "1 more were not run" in said[-1]


def test_a_question_mark_shows_examples_on_an_empty_line_only(tmp_path):
    ran, said, _, _ = type_keys(tmp_path, "?what's running?\r\x04")
    assert said == ["  list runs"]
    assert ran == ["what's running?"]


def test_history_is_kept_private_and_searched(tmp_path):
    folder = tmp_path / "state/quark"
    type_keys(tmp_path, "show fox-12\rlist runs\r\x04", history=history_in(folder))
    assert (folder / "history").stat().st_mode & 0o077 == 0
    history = history_in(folder)
    ran = type_keys(tmp_path, "\x12fox\r\r\x04", history=history)[0]  # Ctrl-R
    assert ran == ["show fox-12"]
    (tmp_path / "file").write_text("")
    assert isinstance(history_in(tmp_path / "file/x"), InMemoryHistory)
    assert isinstance(history_in(None), InMemoryHistory)


def line_of(session: Session) -> str:
    """Return the line as it stands, a suggestion in brackets."""
    buffer = session._prompt.default_buffer
    suggested = buffer.suggestion.text if buffer.suggestion else ""
    return buffer.text + (f"[{suggested}]" if suggested else "")


def typed(tmp_path, history: InMemoryHistory, steps: list[tuple[str, str]]) -> list[str]:
    """Type keys, each once the line (with its suggestion) is what it should be; returns what ran.

    Suggestions and completions are made by tasks of their own, at a time of their own.
    """
    ran: list[str] = []

    def run(line: str) -> int:
        ran.append(line)
        return 0

    screen = io.StringIO()
    output = SessionOutput(screen, lambda: Size(rows=24, columns=80), enable_cpr=False)
    actions = SessionActions(read, run, bool, print)
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=output):
        session = Session(
            actions, completer=completer(tmp_path), history=history, keys=pipe, output=output
        )

        def send() -> None:
            for keys, line in steps:
                deadline = time.monotonic() + 20
                pipe.send_text(keys)
                while line_of(session) != line and time.monotonic() < deadline:
                    time.sleep(0.01)
            pipe.send_text("\r\x04")

        sender = threading.Thread(target=send)
        sender.start()
        session.loop()
        sender.join()
    return ran


def test_a_suggestion_is_taken_with_the_right_arrow(tmp_path):
    history = InMemoryHistory()
    history.append_string("train with ./data for 3 steps")
    steps = [
        ("train w", "train w[ith ./data for 3 steps]"),
        ("\x1b[C", "train with ./data for 3 steps"),
    ]
    assert typed(tmp_path, history, steps) == ["train with ./data for 3 steps"]


def texts(found) -> str:
    return fragment_list_to_text(found)


def test_the_reading_stands_below_with_unowned_words_underlined():
    assert "Ctrl-D" in texts(reading_line(read, "", 80))
    good = reading_line(read, "train with ./d for 3 steps", 80)
    assert texts(good) == "ok train: train with ./d --override max_steps=3"
    bad = reading_line(read, "train with ./d frobnicate", 80)
    assert ("class:unowned", "frobnicate") in bad
    assert texts(bad) == "not understood train: train with ./d frobnicate"
    assert texts(reading_line(read, "train", 80)).startswith("not complete train: ")
    assert texts(reading_line(read, "train; ls", 80)).startswith("refused: ")


def test_the_reading_is_one_escaped_line_that_fits():
    for text in ("train with ./d " + "word " * 60, "a\x1b[31mb\u202ec", "one\ntwo"):
        found = texts(reading_line(read, text, 40))
        assert len(found) <= 40
        assert found.isprintable()


def completions(found: SentenceCompleter, text: str) -> list[str]:
    return [one.text for one in found.get_completions(Document(text), CompleteEvent())]


def test_words_runs_aliases_and_keys(tmp_path):
    found = completer(tmp_path)
    assert completions(found, "tr") == ["train"]
    assert completions(found, "train with ge") == ["genomes"]
    assert completions(found, "train with x l") == ["learning rate", "lr=", "layers="]
    assert completions(found, "show fo") == ["fox-12"]
    assert completions(found, "train --override ") == ["lr=", "layers="]
    assert completions(found, "") == []


RUNS = ["Exp_2", "a=b", "fox-12", "genomes", "it's", "my run", "train", "v1.5", "1", "-x", 'a"b']


def test_behind_a_verb_every_run_is_offered_as_it_reads(tmp_path):
    words = session_words(load_settings(start_dir=tmp_path, environ={}))
    nothing = StoreFolders(lambda _uri: ())
    names = [*RUNS, "no\x1b", "b\"o't"]  # the last two: no sentence holds them
    found = SentenceCompleter(words, lambda: names, nothing, start_dir=tmp_path)
    for lead in ("show ", "logs of ", "delete run ", "resume ", "attach to ", "Stop "):
        offered = completions(found, lead)
        assert len(offered) == len(RUNS)
        for name, text in zip(RUNS, offered, strict=True):
            reading = HUB.read(lead + text)
            assert (reading.status, reading.slots) == ("ok", {"run": name}), lead + text
    assert completions(found, "show ge") == completions(found, "show run=ge") == ["run=genomes"]
    assert completions(found, "show exp_") == ["run=Exp_2"]
    assert completions(found, "train with ") == completions(found, "list of ") == []


def test_a_run_is_taken_by_tab(tmp_path):
    steps = [("show ow", "show ow"), ("\t", "show owl-3")]
    assert typed(tmp_path, InMemoryHistory(), steps) == ["show owl-3"]


def test_local_paths(tmp_path):
    for name in ("data/one", "data/two", ".hidden"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "data/odd\x1b").write_text("")
    found = completer(tmp_path)
    assert completions(found, "train with ./da") == ["./data/"]
    assert completions(found, "train with data/") == ["data/one/", "data/two/"]
    assert completions(found, "train with ~/d") == ["~/data/"]
    assert completions(found, f"train with {tmp_path}/data/t") == [f"{tmp_path}/data/two/"]
    assert completions(found, "train with ./.h") == ["./.hidden/"]
    assert completions(found, "train with ./nowhere/") == []


def test_store_folders_come_later_and_once(tmp_path):
    asked: list[str] = []
    answer, arrived = threading.Event(), threading.Event()

    def list_folder(uri: str) -> list[str]:
        asked.append(uri)
        answer.wait(10)
        return [f"{uri}train/", f"{uri}val/"]

    folders = StoreFolders(list_folder)
    folders.arrived = arrived.set
    found = SentenceCompleter(WORDS, list, folders, start_dir=tmp_path)
    began = time.monotonic()
    assert completions(found, "train with s3://bucket/set/t") == []
    assert completions(found, "train with s3://bucket/set/tr") == []
    assert time.monotonic() - began < 1  # the store has not answered
    answer.set()
    assert arrived.wait(10)
    assert completions(found, "train with s3://bucket/set/t") == ["s3://bucket/set/train/"]
    assert asked == ["s3://bucket/set/"]
    assert completions(found, "train with s3://") == []


def test_a_store_that_fails_offers_nothing(tmp_path):
    arrived = threading.Event()

    def list_folder(_uri: str) -> list[str]:
        raise StoreError("no answer")

    folders = StoreFolders(list_folder)
    folders.arrived = arrived.set
    assert folders.entries("s3://b/") == ()
    assert arrived.wait(10)
    assert folders.entries("s3://b/") == ()


def test_entries_of_a_store(tmp_path):
    (tmp_path / "set/train").mkdir(parents=True)
    (tmp_path / "set/train/a.jsonl").write_text("{}\n")
    (tmp_path / "set/b.jsonl").write_text("{}\n")
    settings = load_settings(start_dir=tmp_path, environ={})
    from tools_utilities.object_store import StoreSpec, open_store

    store = open_store(StoreSpec(uri="memory://session-test"))
    store.put("set/train/a.jsonl", b"{}\n")
    store.put("set/b.jsonl", b"{}\n")
    assert store_entries(settings, "memory://session-test/set/") == [
        "memory://session-test/set/train/", "memory://session-test/set/b.jsonl",
    ]  # fmt: skip


def test_folders_of_a_real_store_come_while_typing(
    tmp_path, weed_endpoint, make_bucket, put_objects, aws_environment
):
    aws_environment.setenv("AWS_ENDPOINT_URL", weed_endpoint)
    bucket = make_bucket(weed_endpoint)
    keys = ("sets/a b/train-0.jsonl", "sets/genomes/train-0.jsonl", "sets/note.txt", "other/x")
    put_objects(weed_endpoint, bucket, dict.fromkeys(keys, b"{}\n"))
    settings = load_settings(start_dir=tmp_path)
    arrived = threading.Event()
    folders = StoreFolders(lambda uri: store_entries(settings, uri))
    folders.arrived = arrived.set
    found = SentenceCompleter(WORDS, list, folders, start_dir=tmp_path)
    for typed_so_far, offered in (
        (f"train with s3://{bucket}/", ["other/", "sets/"]),
        (f"train with s3://{bucket}/se", ["sets/"]),
        (f"train with s3://{bucket}/sets/", ["sets/a b/", "sets/genomes/", "sets/note.txt"]),
        (f"train with s3://{bucket}/sets/g", ["sets/genomes/"]),
        (f"train with s3://{bucket}/none/", []),
        ("train with s3://no-such-bucket-here/", []),
    ):
        arrived.clear()
        if not completions(found, typed_so_far) and offered != completions(found, typed_so_far):
            assert arrived.wait(20)
        assert completions(found, typed_so_far) == [f"s3://{bucket}/{key}" for key in offered]


def test_what_is_offered_is_of_the_language():
    assert {"batch size", "no validation"} <= phrase_starts(phrase_table())
    for line in examples():
        assert HUB.read(line).status == "ok"


def test_tab_takes_the_only_completion_and_offers_what_lies_below(tmp_path):
    (tmp_path / "data/datasets/one").mkdir(parents=True)
    steps = [
        ("discover data/d", "discover data/d"),
        ("\t", "discover data/datasets/"),
        ("\t", "discover data/datasets/one/"),
    ]
    assert typed(tmp_path, InMemoryHistory(), steps) == ["discover data/datasets/one/"]


def test_flags_are_offered(tmp_path):
    words = SessionWords(words=("plan",), flags=("--plan", "--yes"))
    found = SentenceCompleter(words, list, StoreFolders(lambda _uri: ()), start_dir=tmp_path)
    assert completions(found, "train with x --pl") == ["--plan"]


@pytest.mark.parametrize(("width", "facts"), [(79, 4), (39, 2), (8, 1)])
def test_what_the_keys_do_is_told_in_whole_facts(width, facts):
    read: Any = HUB.read
    [(_, line, *_)] = reading_line(read, "  ", width)
    told = line.split(" · ")
    assert len(told) == facts
    assert told == ["? shows examples", "Tab completes", "Ctrl-D leaves", "Ctrl-R searches"][:facts]


class LateCompleter(Completer):
    """Knows nothing at first; what was asked before the listing came ends after it, with nothing."""

    def __init__(self, *, knows: bool = False, finds: bool = True) -> None:
        self.knows, self.finds, self.asked = knows, finds, 0
        self.ends = asyncio.Event()

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> list[Any]:
        raise NotImplementedError

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        self.asked += 1
        if self.knows and self.finds:
            yield Completion("data/", start_position=-2)
        elif not self.knows:
            await self.ends.wait()


async def offered_late(late: LateCompleter, text: str = "discover s3://b/da") -> Buffer:
    """Return the buffer after a listing came while the letters before were still completed."""
    buffer = Buffer(completer=late, document=Document(text))
    if not late.knows:
        buffer.start_completion(select_first=False)
        await asyncio.sleep(0.02)
        late.knows = True
        asyncio.get_running_loop().call_later(0.1, late.ends.set)
    await asyncio.wait_for(offer_completions(buffer), 20)
    return buffer


def test_a_listing_that_arrives_while_letters_are_completed_is_offered():
    late = LateCompleter()
    buffer = asyncio.run(offered_late(late))
    assert buffer.complete_state is not None
    assert [one.text for one in buffer.complete_state.completions] == ["data/"]
    assert late.asked == 2  # once before, once after


def test_nothing_is_offered_for_nothing_and_asking_for_it_ends():
    empty = LateCompleter(knows=True)
    assert asyncio.run(offered_late(empty, "")).complete_state is None
    assert empty.asked == 0
    nothing = LateCompleter(knows=True, finds=False)
    assert asyncio.run(offered_late(nothing)).complete_state is None
    assert 1 < nothing.asked < 1000
