"""What the interactive session offers while a sentence is typed.

Words of the language, aliases, run names, setting keys and local paths at once; keys of a store are
fetched by a thread of their own and offered when they are there: no key ever waits for a store.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from tools_utilities.background import BACKGROUND
from tools_utilities.errors import QuarkError
from tools_utilities.run_words import run_in_sentence
from tools_utilities.terminal_text import shown

MOST_ENTRIES = 200
PATH_STARTS = ("/", "./", "../", "~")
RUN_LEADS = ("of", "run", "to")
"""Words between a verb and its run."""


class SessionWords(msgspec.Struct, frozen=True, kw_only=True):
    """What may be completed without looking anywhere."""

    words: tuple[str, ...] = ()
    """Verbs and phrases of the language; a phrase is offered from its first word on."""
    keys: tuple[str, ...] = ()
    """Settings, offered as `key=` after `--override` and where a word could be one."""
    aliases: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    """Of the program; they may stand beside a sentence."""
    run_verbs: tuple[str, ...] = ()
    """Behind these every run is offered, before a letter of its name is typed."""


class StoreFolders:
    """Folders of stores, listed in the background, each once."""

    def __init__(self, list_folder: Callable[[str], Sequence[str]]) -> None:
        """`list_folder(uri)` returns the full URIs directly under a folder; it may take long."""
        self._list = list_folder
        self._known: dict[str, tuple[str, ...]] = {}
        self._asked: set[str] = set()
        self._lock = threading.Lock()
        self.arrived: Callable[[], None] = lambda: None
        """Called, from another thread, when a listing has come."""

    def entries(self, uri: str) -> tuple[str, ...]:
        """Return what is known under a folder; asks for it, and returns nothing, the first time."""
        with self._lock:
            if uri in self._asked:
                return self._known.get(uri, ())
            self._asked.add(uri)
        threading.Thread(target=self._fetch, args=(uri,), daemon=True, name="completion").start()
        return ()

    def _fetch(self, uri: str) -> None:
        try:
            with BACKGROUND.piece():
                found = tuple(self._list(uri))
        except QuarkError:
            found = ()  # the command itself will say what is wrong with the store
        with self._lock:
            self._known[uri] = found
        self.arrived()


class SentenceCompleter(Completer):
    """Completes the word before the cursor."""

    def __init__(
        self,
        words: SessionWords | Callable[[], SessionWords],
        run_names: Callable[[], Iterable[str]],
        folders: StoreFolders,
        *,
        home: Path | None = None,
        start_dir: Path,
    ) -> None:
        """`words` may be a function: it is called when something is completed first."""
        self._words_of = words if callable(words) else lambda: words
        self._run_names = run_names
        self._folders = folders
        self._home = home
        self._start_dir = start_dir

    def get_completions(
        self,
        document: Document,
        complete_event: CompleteEvent,  # noqa: ARG002 - prompt-toolkit's signature
    ) -> Iterator[Completion]:
        """Yield what the word before the cursor may become."""
        before = document.text_before_cursor
        word = before[max(before.rfind(" "), before.rfind("\t")) + 1 :]
        previous = before[: len(before) - len(word)].split()
        for text, meta in self._candidates(word, previous):
            # Control characters would be typed into the line: such names are quoted by hand.
            if text.isprintable():
                yield Completion(
                    text, start_position=-len(word), display=shown(text), display_meta=meta
                )

    def _candidates(self, word: str, previous: Sequence[str]) -> Iterator[tuple[str, str]]:
        if "://" in word:
            folder = word[: word.rfind("/") + 1]
            if not folder.endswith("://"):
                found = self._folders.entries(folder)
                yield from ((uri, "store") for uri in found if uri.startswith(word))
            return
        if word.startswith(PATH_STARTS) or "/" in word:
            yield from ((path, "path") for path in self._paths(word))
            return
        if word.startswith("--"):
            yield from ((flag, "flag") for flag in self._words_of().flags if flag.startswith(word))
            return
        after_override = bool(previous) and previous[-1] == "--override"
        folded = word.casefold()
        if not after_override:
            yield from self._said(word, folded, previous)
        if word or after_override:
            keys = (key for key in self._words_of().keys if key.startswith(folded))
            yield from ((f"{key}=", "setting") for key in keys)

    def _said(self, word: str, folded: str, previous: Sequence[str]) -> Iterator[tuple[str, str]]:
        yield from (
            (name, "dataset") for name in self._words_of().aliases if name.startswith(word) and word
        )
        if word or self._is_for_run([one.casefold() for one in previous]):
            yield from ((said, "run") for said in self._runs(folded))
        if word:
            words = (text for text in self._words_of().words if text.startswith(folded))
            yield from ((text, "") for text in words)

    def _is_for_run(self, previous: Sequence[str]) -> bool:
        """Tell whether what comes next is a run: behind `show`, `logs of`, `delete run`."""
        said = previous[:-1] if previous[-1:] and previous[-1] in RUN_LEADS else previous
        return bool(said) and said[-1] in self._words_of().run_verbs

    def _runs(self, folded: str) -> list[str]:
        """Return how runs are said whose name, or what says it, begins so."""
        said = ((name, run_in_sentence(name)) for name in self._run_names())
        found = (
            text
            for name, text in said
            if text and (name.casefold().startswith(folded) or text.casefold().startswith(folded))
        )
        return list(islice(found, MOST_ENTRIES))

    def _paths(self, word: str) -> Iterator[str]:
        typed_folder = word[: word.rfind("/") + 1]
        if word == "~":
            typed_folder = "~/"
        name = word[len(typed_folder) :] if word != "~" else ""
        folder = Path(typed_folder or ".")
        if typed_folder.startswith("~/") and self._home is not None:
            folder = self._home / typed_folder[2:]
        try:
            with os.scandir(self._start_dir / folder) as entries:
                found = [
                    f"{entry.name}/" if entry.is_dir() else entry.name
                    for entry in entries
                    if entry.name.startswith(name) and (name or not entry.name.startswith("."))
                ]
        except OSError:
            return  # no such folder, or none of ours
        yield from (f"{typed_folder}{entry}" for entry in sorted(found)[:MOST_ENTRIES])
