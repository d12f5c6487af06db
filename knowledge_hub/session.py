"""The interactive session's knowledge: what is read, completed and remembered."""

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools_utilities.console import Console
from tools_utilities.object_store import open_store
from tools_utilities.session_line import SESSION_FLAGS, split_line
from tools_utilities.setting_keys import SETTING_KEYS
from tools_utilities.settings import Settings, load_settings

if TYPE_CHECKING:
    from knowledge_hub.phrases import PhraseTable

EXAMPLES_FIRST = (
    "discover", "inspect", "train", "estimate", "list", "show", "logs", "resume", "again", "evaluate",
    "finetune", "stop", "doctor", "help",
)  # fmt: skip
"""The order in which a newcomer meets them; the rest follows by name."""
MOST_PAGES = 1
"""Of a store's folder: a thousand names are more than anybody chooses from."""


def run_session(console: Console, run: Callable[[str], int], start_dir: Path) -> int:
    """Read sentences at the terminal until the person leaves; `run` carries one out."""
    from tools_utilities.terminal_completion import SentenceCompleter, StoreFolders
    from tools_utilities.terminal_session import (
        Session,
        SessionActions,
        history_in,
        terminal_of,
    )

    settings = load_settings(start_dir=start_dir)

    def read(sentence: str) -> Any:
        return _hub().read(split_line(sentence)[0], aliases=settings.aliases)

    def list_folder(uri: str) -> Sequence[str]:
        return store_entries(settings, uri)

    folders = StoreFolders(list_folder)
    completer = SentenceCompleter(
        cache(lambda: session_words(settings)), lambda: run_names(settings), folders,
        home=settings.environment.home, start_dir=start_dir,
    )  # fmt: skip
    keys, output = terminal_of(*console.terminal())
    state = settings.environment.state_home
    actions = SessionActions(
        read=read,
        run=run,
        confirm=lambda question: console.confirm(question, default=False),
        say=lambda lines: console.note(*lines),
        examples=examples,
    )
    history = history_in(None if state is None else state / "quark")
    session = Session(actions, completer=completer, history=history, keys=keys, output=output)
    folders.arrived = session.redraw
    # The line stands there first; the language is loaded while the person looks at it.
    threading.Thread(target=_hub, daemon=True, name="language").start()
    return session.loop()


@cache
def _hub() -> Any:
    from knowledge_hub.hub import KnowledgeHub

    return KnowledgeHub()


def examples() -> list[str]:
    """Return one sentence of each intent that can be carried out, a newcomer's first."""
    from knowledge_hub.hub import intents

    known = intents()
    order = [*(name for name in EXAMPLES_FIRST if name in known), *sorted(known)]
    able = [known[name] for name in dict.fromkeys(order) if known[name].run is not None]
    return [f"  {one.examples[0]}" for one in able]


def session_words(settings: Settings) -> Any:
    """Return what is completed: verbs, phrases up to their first value, keys and aliases."""
    from knowledge_hub.hub import intents
    from knowledge_hub.phrases import phrase_table
    from tools_utilities.terminal_completion import SessionWords

    table, known = phrase_table(), intents()
    return SessionWords(
        words=tuple(sorted({*table.verbs, *phrase_starts(table)})),
        keys=tuple(key.name for key in SETTING_KEYS),
        aliases=tuple(sorted(settings.aliases)),
        flags=(*SESSION_FLAGS, "--override"),
        run_verbs=tuple(
            verb for verb, intent in table.verbs.items() if "run" in known[intent].slots
        ),
    )


def phrase_starts(table: "PhraseTable") -> set[str]:
    """Return the words with which phrases begin, up to the first value: `batch size`."""
    from knowledge_hub.phrases import expansions

    found = set()
    for phrase in table.phrases:
        for sequence in expansions(phrase.say):
            words = []
            for part in sequence:
                if part[0] == "{":
                    break
                words.append(part)
            if words:
                found.add(" ".join(words))
    return found


def run_names(settings: Settings) -> Iterable[str]:
    """Return the names of the runs, and of folders that look like runs; a listing, nothing read."""
    from resource_manager.runs import out_dir_of

    out_dir = out_dir_of(settings)
    if not out_dir.is_dir():
        return []
    with os.scandir(out_dir) as entries:
        return sorted(
            entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")
        )


def store_entries(settings: Settings, uri: str) -> list[str]:
    """Return the URIs directly under a folder of a store: its folders first, then its objects.

    Raises:
        QuarkError: the store does not answer, or there is none.
    """
    scheme, _, rest = uri.partition("://")
    bucket, _, prefix = rest.partition("/")
    base = f"{scheme}://{bucket}"
    store = open_store(settings.store_spec(base))
    folders: list[str] = []
    objects: list[str] = []
    for page in store.list_folder(prefix, max_pages=MOST_PAGES):
        folders += [f"{base}/{folder}" for folder in page.prefixes]
        objects += [f"{base}/{info.key}" for info in page.objects]
    return [*folders, *objects]
